//! `evener requests`: shows the outstanding bytes of each open request of a server. The data comes
//! from the agent's kernel programs. If no agent tracks requests, this command tracks them while it
//! runs.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use evener_dataplane::pending::{FollowError, PendingPrograms, requests_of};

use super::load::{self, host, source_of};
use super::state;
use crate::admin::table;
use crate::cli::{self, CONFIG_FILE};
use crate::config::{self, Config};
use crate::io::diag::{self, OpenConnection};
use crate::io::network::{self, Network, NetworkError};
use crate::runtime::lock::Lock;
use crate::runtime::terminal::{self, Page};
use crate::runtime::{Exit, folders};
use crate::views::RequestView;

const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum RequestsError {
    #[error("only root may see clients' requests")]
    Privilege,
    #[error("{0}")]
    Config(String),
    #[error(transparent)]
    Follow(#[from] FollowError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("failed to read this host's sockets: {0}")]
    Host(io::Error),
    #[error("failed to list the kernel's sockets: {0}")]
    Kernel(io::Error),
    #[error("failed to write the requests: {0}")]
    Output(io::Error),
}

/// Shows the requests, once or until interrupted.
pub fn run(args: &cli::RequestsArgs) -> Exit {
    match show(args) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            eprintln!("evener: {error}");
            if matches!(error, RequestsError::Privilege) { Exit::Privileges } else { Exit::Failed }
        }
    }
}

fn show(args: &cli::RequestsArgs) -> Result<(), RequestsError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(RequestsError::Privilege);
    }
    let config = config(args)?;
    let network = network()?;
    let ports = load::ports(&config);
    let source = PendingSource::open(&ports)?;
    if !args.watch && matches!(source, PendingSource::Own(_)) {
        eprintln!(
            "evener: no agent tracks requests on this host, so only the kernel's send queues are shown. `evener requests --watch` tracks new requests"
        );
    }
    let look = || {
        let sending = diag::sending(&ports, source.requests()).map_err(RequestsError::Kernel)?;
        let now_ns = host::monotonic_ns();
        let mut requests: Vec<RequestView> =
            sending.open.iter().map(|one| request_of(one, &config, &network, now_ns)).collect();
        requests.sort_by_key(|request| std::cmp::Reverse(request.bytes_left));
        let json = match (args.json, args.watch) {
            (false, _) => return Ok(table::requests(&requests, Page::of_stdout())),
            (true, true) => serde_json::to_string(&requests),
            (true, false) => serde_json::to_string_pretty(&requests),
        };
        json.map(|text| text + "\n").map_err(|error| RequestsError::Output(error.into()))
    };
    terminal::show(args.watch.then_some(INTERVAL), args.json, look, RequestsError::Output)
}

/// Reads this host's network, to find the host's own addresses in the file.
fn network() -> Result<Network, RequestsError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(RequestsError::Host)?.block_on(network::read())?)
}

/// Loads the named file, the agent's file, or the default file.
fn config(args: &cli::RequestsArgs) -> Result<Config, RequestsError> {
    let of_agent =
        || Some(state::read(&folders::directory().ok()?).ok()??.config).filter(|path| path.exists());
    let path = args.config.clone().or_else(of_agent).unwrap_or_else(|| PathBuf::from(CONFIG_FILE));
    config::load(&path).map_err(|problems| RequestsError::Config(problems.render(false)))
}

/// Source of the requests.
enum PendingSource {
    /// Map of this host's agent.
    Agent(OwnedFd),
    /// Programs of this command.
    Own(PendingPrograms),
}

impl PendingSource {
    fn open(ports: &BTreeSet<u16>) -> Result<PendingSource, RequestsError> {
        let of_agent = || {
            let directory = folders::directory().ok()?;
            let number = load::number_of(&directory)
                .filter(|_| Lock::is_held(&folders::agent_lock_path(&directory)))?;
            requests_of(number).ok()
        };
        Ok(match of_agent() {
            Some(map) => PendingSource::Agent(map),
            None => PendingSource::Own(PendingPrograms::start(ports)?),
        })
    }

    fn requests(&self) -> Option<BorrowedFd<'_>> {
        match self {
            PendingSource::Agent(map) => Some(map.as_fd()),
            PendingSource::Own(following) => following.requests(),
        }
    }
}

fn request_of(open: &OpenConnection, config: &Config, network: &Network, now_ns: u64) -> RequestView {
    let (bytes_left, is_exact) = open.left();
    let rate = open.rate_since(now_ns).filter(|rate| *rate > 0.0);
    let line = open.request.as_ref().map(|request| words_of(&request.line)).unwrap_or_default();
    let (service, server) = place_of(open.server, config, network);
    RequestView {
        service,
        client: open.client.to_string(),
        server: server.unwrap_or_else(|| open.server.to_string()),
        method: line.0,
        url: line.1,
        bytes_sent: open.taken(),
        bytes_left,
        rate_bps: rate.map(|rate| rate * 8.0),
        seconds_left: rate.map(|rate| bytes_left as f64 / rate),
        source: source_of(is_exact).to_owned(),
    }
}

/// Parses method and target of a request's first line (RFC 9112, section 3), as far as the line is
/// stored.
fn words_of(line: &[u8]) -> (Option<String>, Option<String>) {
    let text = String::from_utf8_lossy(line);
    let end = text.find(['\r', '\n']);
    let first = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    let mut words = first.splitn(3, ' ').filter(|word| !word.is_empty());
    let (method, target) = (words.next(), words.next());
    // The stored line ends within the target.
    let is_whole = end.is_some() || words.next().is_some();
    let url =
        target.map(|target| if is_whole { Cow::from(target) } else { Cow::from(format!("{target}...")) });
    (method.map(str::to_owned), url.map(Cow::into_owned))
}

/// Returns the service of an address of this host, and this server's name in it.
fn place_of(at: SocketAddr, config: &Config, network: &Network) -> (Option<String>, Option<String>) {
    let services = config.services.iter();
    let by_address = services.clone().find(|service| service.addresses.contains(&at));
    let has_server = |service: &&evener_core::farm::Service| {
        let port = service.addresses.first().map(SocketAddr::port);
        let is_here = |server: &evener_core::farm::Server| {
            server.address == at.ip() && server.port.or(port) == Some(at.port())
        };
        service.servers.iter().any(is_here)
    };
    if let Some(service) = by_address.or_else(|| services.clone().find(has_server)) {
        let own = service.servers.iter().find(|server| network.is_local(server.address));
        return (Some(service.name.clone()), own.map(|server| server.name.clone()));
    }
    for service in &config.groups {
        let is_here =
            |url: &evener_core::net::http::Url| url.address() == Some(at.ip()) && url.port() == at.port();
        if let Some(member) = service.group.members.iter().find(|member| is_here(&member.url)) {
            return (Some(service.group.name.clone()), Some(member.name.clone()));
        }
    }
    let member = config.members().find(|member| member.address == Some(at.ip()) && member.port == at.port());
    (None, member.map(|member| member.name.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_and_target_are_read_from_stored_head() {
        let words = |line: &[u8]| {
            let (method, url) = words_of(line);
            (method.unwrap_or_default(), url.unwrap_or_default())
        };
        let pair = |method: &str, url: &str| (method.to_owned(), url.to_owned());
        assert_eq!(words(b"GET /a?b=c HTTP/1.1\r\nHost: a"), pair("GET", "/a?b=c"));
        assert_eq!(words(b"HEAD / HTTP/1.0\r\n"), pair("HEAD", "/"));
        assert_eq!(words(b"GET /long/pa"), pair("GET", "/long/pa..."));
        assert_eq!(words(b"GET /\xff\x1b HTTP/1.1\r\n"), pair("GET", "/\u{fffd}\u{1b}"));
        assert_eq!(words(b"GET"), pair("GET", ""));
        assert_eq!(words(b""), pair("", ""));
    }
}
