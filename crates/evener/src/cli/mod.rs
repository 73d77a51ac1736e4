//! The command line: one definition, from which help, man pages and completions are generated.

mod change;
mod list;
mod request;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use evener_core::net::Protocol;
use evener_dataplane::server::Hook;
use serde::Serialize;

pub use change::{
    AddArgs, ChangeArgs, DrainArgs, DrainedArgs, RemoveArgs, ServerStateArgs, StateArgs, UndoArgs,
    UndrainArgs, WeightArgs,
};
pub use list::{ListArgs, ServersArgs, ServicesArgs};
pub use request::WebRequest;

/// Default path of the configuration.
pub const CONFIG_FILE: &str = "/etc/evener/evener.toml";

const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  the request failed, or the file has errors
  2  the command line is wrong, or an import lost what changes who is served
  3  privileges are missing
  4  the network or the kernel is not as the file needs it
     (no such interface, address owned elsewhere, kernel too old)
  5  another daemon already runs for these services
  6  no daemon answers";

/// One address in front of several web servers.
#[derive(Debug, Parser)]
#[command(name = "evener", version, after_help = EXIT_STATUS, max_term_width = 80)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the farm in the foreground; ready when it prints "evener: ready"
    Run(RunArgs),
    /// Configure this host as a server of the farm, in the foreground
    Agent(AgentArgs),
    /// Keep host routes of ready addresses, which a routing daemon announces, in the foreground
    Announce(AnnounceArgs),
    /// End the programs of this host, and restore all that they changed
    Leave,
    /// Check a file for this host, and show all errors
    Check(CheckArgs),
    /// Make a file of another program's: HAProxy, IPVS, keepalived or nginx
    Import(ImportArgs),
    /// Write a new secret, which authenticates the hosts of a farm
    Keygen(KeygenArgs),
    /// Show the state of the daemon
    Status(ViewArgs),
    /// Show the services
    Services(ServicesArgs),
    /// Show the servers, their state and their share of connections
    Servers(ServersArgs),
    /// Show the hosts of an every-host farm, and the addresses that they own
    Hosts(ViewArgs),
    /// Show the directors of the farm: who is ready, and in what they differ
    Directors(ViewArgs),
    /// Show the addresses of balanced DNS names, and their shares
    Names(ViewArgs),
    /// Show the sessions
    Sessions(SessionsArgs),
    /// Show the clients that return to their servers, and which
    Affinity(AffinityArgs),
    /// On a server: show the open requests, and the bytes still to send of each
    Requests(RequestsArgs),
    /// Tell by the exit status whether this director is ready for clients
    Ready(ReadyArgs),
    /// Show which server a flow or a request gets, and why
    Explain(ExplainArgs),
    /// Watch servers, rates, checks and events in the terminal
    Top(TopArgs),
    /// Follow a client's packets and connections
    Trace(TraceArgs),
    /// Follow events, or show past ones: servers, drains, reloads, hosts, links
    Events(EventsArgs),
    /// Check host, network and servers for faults
    Doctor(DoctorArgs),
    /// Send a server no new sessions, or this director no new clients; what they have goes on
    Drain(DrainArgs),
    /// Send a server new sessions again, drained or in maintenance; or end the director's drain
    Undrain(UndrainArgs),
    /// Drain a server, and neither probe it nor ask it for its load
    Maintenance(ServerStateArgs),
    /// Change a server's share of new sessions
    Weight(WeightArgs),
    /// Add a server to a service
    Add(AddArgs),
    /// Remove a server from a service; its sessions end, so drain it first
    Remove(RemoveArgs),
    /// Undo a change that was made at run time: the last one, or the one with this number
    Undo(UndoArgs),
    /// Print the farm as it is with all run-time changes, list these, or replace the farm
    State(StateArgs),
    /// Read the file again; a file with errors changes nothing
    Reload(ReloadArgs),
    /// Open the access log again, after it was moved aside
    Reopen(ViewArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print a manual page, or write all of them
    Man(ManArgs),
}

/// `evener run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = CONFIG_FILE, value_hint = ValueHint::FilePath)]
    pub config: PathBuf,
    /// Leave the data plane running on SIGTERM; the next start takes it over
    #[arg(long)]
    pub keep: bool,
}

/// `evener agent`
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// The farm's configuration, the same as the directors'
    #[arg(long, value_name = "FILE", default_value = CONFIG_FILE, value_hint = ValueHint::FilePath)]
    pub config: PathBuf,
    /// This host is the server of this name; found by its addresses unless named
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// This host is a server of this service, which uses discovery; may be repeated
    #[arg(long, value_name = "NAME")]
    pub service: Vec<String>,
    /// Leave everything in place on SIGTERM; the next start takes it over
    #[arg(long)]
    pub keep: bool,
    /// Where in the kernel tunnels are opened; as early as is good for each interface unless given
    #[arg(long, value_name = "native|tc|generic", hide = true, value_parser = hook)]
    pub hook: Option<Hook>,
    /// Show what an agent has set up here, and its counters, instead
    #[arg(long, conflicts_with_all = ["host", "service", "keep"])]
    pub status: bool,
    /// Print JSON
    #[arg(long, requires = "status")]
    pub json: bool,
}

fn hook(text: &str) -> Result<Hook, &'static str> {
    let hooks = [Hook::Native, Hook::Tc, Hook::Generic];
    hooks.into_iter().find(|hook| hook.name() == text).ok_or("write native, tc or generic")
}

/// `evener announce`
#[derive(Debug, Args)]
pub struct AnnounceArgs {
    /// Leave the routes on SIGTERM; the next start takes them over
    #[arg(long)]
    pub keep: bool,
    /// Show the addresses and their routes instead
    #[arg(long, conflicts_with = "keep")]
    pub status: bool,
    /// Print JSON
    #[arg(long, requires = "status")]
    pub json: bool,
}

/// `evener requests`
#[derive(Debug, Args)]
pub struct RequestsArgs {
    /// The farm's configuration, unless an agent runs here with one already
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Show them again each second, until interrupted
    #[arg(long)]
    pub watch: bool,
    /// Print JSON instead; with --watch a list a line
    #[arg(long)]
    pub json: bool,
}

/// `evener check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, default_value = CONFIG_FILE)]
    pub file: PathBuf,
    /// Print a JSON Schema of configurations instead, by which editors complete and check them
    #[arg(long, conflicts_with_all = ["file_only", "json"])]
    pub schema: bool,
    /// Check the file only, not whether this host has the keys and interfaces that it names
    #[arg(long)]
    pub file_only: bool,
    /// Print a list of {file, line, column, level, message, help} instead; level is error or note
    #[arg(long)]
    pub json: bool,
}

/// `evener import`
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// haproxy.cfg, keepalived.conf, nginx.conf or output of `ipvsadm -S -n`; - is standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// The program whose file it is; seen from its text unless named
    #[arg(long, value_name = "PROGRAM", value_enum)]
    pub from: Option<ImportOrigin>,
    /// End with 0 even if the new file serves other clients, or by other servers, than the old one;
    /// without it such an import ends with 2
    #[arg(long)]
    pub lossy: bool,
    /// Print JSON instead: the new file, and which lines were carried over, left or to be filled in
    #[arg(long)]
    pub json: bool,
}

/// The program whose file is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ImportOrigin {
    /// haproxy.cfg
    Haproxy,
    /// The output of `ipvsadm -S`, or a script of its commands
    Ipvsadm,
    /// keepalived.conf
    Keepalived,
    /// nginx.conf
    Nginx,
}

/// `evener keygen`
#[derive(Debug, Args)]
pub struct KeygenArgs {
    /// The file, which must not be there yet; only its owner can read it
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

/// How to reach the daemon.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// The daemon's admin socket; found from the network namespace unless named
    #[arg(long, value_name = "PATH", hide = true, value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,
}

/// A request whose answer is shown.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// Print JSON instead
    #[arg(long)]
    pub json: bool,
    /// How to reach the daemon.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `evener ready`
#[derive(Debug, Args)]
pub struct ReadyArgs {
    /// Only this service, by its name or an address of it; unless given, all must be ready
    #[arg(value_name = "SERVICE|ADDRESS")]
    pub subject: Option<String>,
    /// Look each second until interrupted, and print each change
    #[arg(long)]
    pub watch: bool,
    /// With --watch: run this by the shell once ready, until it ends with 0
    #[arg(long, value_name = "COMMAND", requires = "watch")]
    pub on: Option<String>,
    /// The same once not ready any more, or not at the start; $EVENER_REASON says why
    #[arg(long, value_name = "COMMAND", requires = "watch")]
    pub off: Option<String>,
    /// Print JSON instead; with --watch an object a line
    #[arg(long)]
    pub json: bool,
}

/// `evener doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The configuration, unless a daemon or an agent runs with one already
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// End with 1 for warnings too
    #[arg(long)]
    pub strict: bool,
    /// How to answer, and whom to ask.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// `evener sessions`
#[derive(Debug, Args)]
pub struct SessionsArgs {
    /// Only those of this service
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Only those of this client
    #[arg(long, value_name = "IP[:PORT]")]
    pub client: Option<ClientArg>,
    /// At most this many; unless given, all, or the first 100 on a terminal
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    pub limit: Option<usize>,
    /// How to show them.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// `evener affinity`
#[derive(Debug, Args)]
pub struct AffinityArgs {
    /// Only those of this service
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Only the one of this client
    #[arg(long, value_name = "ADDRESS")]
    pub client: Option<IpAddr>,
    /// At most this many; unless given, all, or the first 100 on a terminal
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    pub limit: Option<usize>,
    /// How to show them.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// `evener explain`
#[derive(Debug, Args)]
#[command(override_usage = "\
evener explain [OPTIONS] <CLIENT_IP:PORT> <VIP:PORT>
       evener explain [OPTIONS] --request <REQUEST> [<CLIENT_IP:PORT> <VIP:PORT>]")]
pub struct ExplainArgs {
    /// Where the flow comes from
    #[arg(value_name = "CLIENT_IP:PORT", required_unless_present = "request", requires = "vip", value_parser = endpoint)]
    pub client: Option<SocketAddr>,
    /// The service address it goes to
    #[arg(value_name = "VIP:PORT", required_unless_present = "request", value_parser = endpoint)]
    pub vip: Option<SocketAddr>,
    /// Its transport
    #[arg(
        long,
        value_name = "tcp|udp",
        default_value = "tcp",
        conflicts_with = "request",
        value_parser = protocol
    )]
    pub protocol: Protocol,
    /// A request, as in 'HEAD http://img.example.com/a.png'; of https:// only the host counts
    #[arg(long, value_name = "REQUEST")]
    pub request: Option<WebRequest>,
    /// The service that the request is for; found by its address or port unless named
    #[arg(long, value_name = "NAME", requires = "request", conflicts_with = "client")]
    pub service: Option<String>,
    /// How to show it.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// `evener top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Between two looks at the daemon
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub interval: Duration,
    /// Print a line of JSON each time instead
    #[arg(long)]
    pub json: bool,
    /// End after this many lines
    #[arg(long, value_name = "N", requires = "json", value_parser = count::<u64>)]
    pub count: Option<u64>,
    /// How to reach the daemon.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `evener trace`
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The client, on all its ports or on one
    #[arg(value_name = "IP[:PORT]")]
    pub client: ClientArg,
    /// End after this time, in seconds or with a unit
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub seconds: Option<Duration>,
    /// End after this many lines
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    pub count: Option<u64>,
    /// Print JSON instead, an object a line
    #[arg(long)]
    pub json: bool,
    /// How to reach the daemon.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `evener events`
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Print the events of this time, as in 1h, those before a restart of the daemon too; then end
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub since: Option<Duration>,
    /// With --since: go on with events as they happen, as without it
    #[arg(short, long)]
    pub follow: bool,
    /// End after this time, in seconds or with a unit
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub seconds: Option<Duration>,
    /// End after this many events
    #[arg(long, value_name = "N", value_parser = count::<u64>)]
    pub count: Option<u64>,
    /// Print JSON instead, an object a line
    #[arg(long)]
    pub json: bool,
    /// How to reach the daemon.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// A time: a number of seconds, or a number with a unit.
fn time(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().map(Duration::from_secs);
    let time = seconds.or_else(|_| humantime::parse_duration(text));
    time.map_err(|_| "write a number of seconds, or a time with a unit, as in 500ms, 30s or 5m")
}

fn count<T: FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "write a whole number")
}

fn weight(text: &str) -> Result<u16, &'static str> {
    text.parse().map_err(|_| "write a whole number from 0 to 65535")
}

fn protocol(text: &str) -> Result<Protocol, &'static str> {
    match text {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        _ => Err("write tcp or udp"),
    }
}

/// Parses one end of a flow, with a separate error for each kind of mistake.
fn endpoint(text: &str) -> Result<SocketAddr, String> {
    if let Ok(endpoint) = text.parse() {
        return Ok(endpoint);
    }
    let bare = text.trim_matches(['[', ']']).parse::<IpAddr>();
    let port =
        text.rsplit_once(':').filter(|(host, _)| host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok());
    Err(match (bare, port) {
        (Ok(address), _) => {
            format!("the port is missing: write {}", SocketAddr::new(address, 80))
        }
        (_, Some((_, port))) => format!("{port:?} is not a port: write one from 0 to 65535"),
        _ => "write an address and a port, as in 198.51.100.7:40000 or [2001:db8::7]:40000".to_owned(),
    })
}

/// `evener reload`
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// Drop all run-time changes, so that the farm is the file's
    #[arg(long)]
    pub forget: bool,
    /// How to show it.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// `evener completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell that they are for
    pub shell: Shell,
}

/// `evener man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Which: evener unless named, evener.toml for the file, evener-packets for packet reasons
    #[arg(value_name = "PAGE", conflicts_with = "dir")]
    pub page: Option<String>,
    /// Write all pages, one for each command too, into this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// Server on the command line: `SERVICE/SERVER`. The service may be a balanced name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerArg {
    pub service: String,
    pub server: String,
}

impl FromStr for ServerArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A server without a name is named by its URL, which contains slashes. No other name does.
        let url = text.split_once('/').filter(|(_, rest)| rest.contains("://"));
        match url.or_else(|| text.rsplit_once('/')) {
            Some((service, server)) if !service.is_empty() && !server.is_empty() => {
                Ok(ServerArg { service: service.to_owned(), server: server.to_owned() })
            }
            _ => Err(
                "write SERVICE/SERVER, as in web/web1, or NAME/SERVER; `evener servers` and `evener names` list them",
            ),
        }
    }
}

/// Client on the command line: an address, with an optional port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientArg {
    pub address: IpAddr,
    /// `None` for any port.
    pub port: Option<u16>,
}

impl fmt::Display for ClientArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

impl FromStr for ClientArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse() {
            return Ok(ClientArg { address, port: None });
        }
        match text.parse::<SocketAddr>() {
            Ok(client) => Ok(ClientArg { address: client.ip(), port: Some(client.port()) }),
            Err(_) => Err(
                "write an address, perhaps with port, as in 198.51.100.7, 198.51.100.7:40000 or [2001:db8::7]:40000",
            ),
        }
    }
}
