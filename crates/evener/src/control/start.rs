//! From a file to a running daemon, or one clear sentence.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, IsTerminal, Read};
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evener_core::plan::ServerName;
use evener_core::sessions::Seed;
use evener_core::wire::{ARP_REPLY, Arp as ArpBody, ETHERNET_LEN, Mac};
use evener_dataplane::packet::{self, PacketEngine};
use evener_dataplane::xdp::{self, XdpEngine, pins};
use evener_dataplane::{Engine, EngineError};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use zerocopy::FromBytes;

use super::arp::{Arp, ArpFrame};
use super::director::{DirectError, Director};
use super::lock::{Lock, LockError};
use super::request::Request;
use super::show::About;
use super::{Daemon, REQUESTS, display, now_ms, paths};
use crate::admin;
use crate::cli::Exit;
use crate::config::{self, Config, EngineKind, Problems, XdpMode};
use crate::network::{Network, NetworkError};

/// How long another owner of an announced address has to answer.
const CONFLICT_WAIT: Duration = Duration::from_millis(300);

/// Why the daemon did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The file is wrong.
    #[error("{}", .0.render(io::stderr().is_terminal()))]
    Config(Problems),
    /// Another daemon runs.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The network isn't as the file needs it.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// An address that the director should announce is another host's.
    #[error(
        "{address} is owned elsewhere: {mac} answers ARP for it on {interface}. If that is one of the servers, make \
         it silent for the address (arp_ignore = 1, arp_announce = 2), or set discover = \"arp\""
    )]
    OwnedElsewhere {
        /// The address.
        address: Ipv4Addr,
        /// Who answers.
        mac: Mac,
        /// Where.
        interface: String,
    },
    /// The engine can't do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The farm can't be carried out.
    #[error(transparent)]
    Direct(#[from] DirectError),
    /// Something on this host can't be used.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl StartError {
    /// The exit status that `evener --help` documents.
    pub(super) fn exit(&self) -> Exit {
        match self {
            StartError::Config(_) => Exit::Failed,
            StartError::Lock(LockError::Held { .. }) => Exit::Running,
            StartError::Engine(EngineError::Privilege { .. })
            | StartError::Direct(DirectError::Engine(EngineError::Privilege { .. })) => Exit::Privileges,
            StartError::Io { source, .. } | StartError::Lock(LockError::Io { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Exit::Privileges
            }
            StartError::Io { .. } | StartError::Lock(LockError::Io { .. }) => Exit::Failed,
            _ => Exit::Environment,
        }
    }

    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| StartError::Io { what, source }
    }
}

/// Starts everything. What was attached until an error is detached with it.
pub(super) async fn start(config_path: &Path) -> Result<Daemon, StartError> {
    let config = config::load(config_path).map_err(StartError::Config)?;
    let directory = paths::directory().map_err(StartError::io("the network namespace can't be told"))?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(StartError::io(format!(
        "{} can't be made (run as root, or set EVENER_RUN_DIR to a folder of your own)",
        directory.display()
    )))?;
    let lock = Lock::take(&directory.join("lock"))?;
    paths::clear_vanished(&directory);
    let network = Network::read().await?;
    let interfaces = network.pick_interfaces(&config.engine.interfaces, &config.services)?;

    let network_changes = crate::network::watch().await?;
    let (mut arp, mut arp_frames) = Arp::new();
    if let Err((ifindex, error)) = arp.listen(&interfaces) {
        let name = network.interfaces.get(&ifindex).map_or("?", |interface| &interface.name);
        return Err(EngineError::system(format!("hearing ARP on {name}"), "CAP_NET_RAW", error).into());
    }
    let (engine, engine_note) = engine(&config, &directory)?;
    let adopted = engine.running().is_some();
    let started_ms = now_ms();
    let drained = read_drained(&directory);
    let mut director = Director::new(config, engine, network, interfaces, drained, started_ms);
    let (handle, requests) = mpsc::channel(REQUESTS);
    if let Err(error) = open(&mut director, adopted, &arp, &mut arp_frames, handle, &directory).await {
        // What was found running is left as it was found.
        let _ = fs::remove_file(directory.join("admin.sock"));
        if let Err(error) = director.engine.leave(adopted) {
            tracing::warn!(%error, "something stays attached");
        }
        return Err(error);
    }
    let (probe_results, probed) = mpsc::channel(256);
    Ok(Daemon {
        about: About {
            started_ms,
            config: display(config_path),
            adopted,
            engine_note,
            reloads: 0,
            reload_error: None,
        },
        network_changes,
        director,
        config_path: config_path.to_owned(),
        directory,
        arp,
        arp_frames,
        requests,
        probed,
        probe_results,
        ready: false,
        _lock: lock,
    })
}

/// Opens the farm to traffic, and the daemon to requests.
async fn open(
    director: &mut Director,
    adopted: bool,
    arp: &Arp,
    arp_frames: &mut mpsc::Receiver<ArpFrame>,
    requests: mpsc::Sender<Request>,
    directory: &Path,
) -> Result<(), StartError> {
    if !adopted {
        refuse_conflicts(&director.config, &director.network, &director.interfaces, arp, arp_frames).await?;
    }
    director.match_healths();
    director.replan()?;
    tracing::info!(engine = director.engine.describe(), adopted, "attached");
    director.warn_of_own_addresses();
    arp.announce(&director.announced());
    admin::server::start(requests, &directory.join("admin.sock"), director.config.admin.listen)
        .await
        .map_err(StartError::io("the admin interface can't be opened"))
}

/// The engine that the file asks for; for `auto` also why it isn't the kernel's.
fn engine(config: &Config, directory: &Path) -> Result<(Box<dyn Engine>, Option<String>), StartError> {
    match config.engine.kind {
        EngineKind::Xdp => Ok((Box::new(xdp(config, directory)?), None)),
        EngineKind::Packet => Ok((Box::new(packet(config, directory)?), None)),
        EngineKind::Auto => match xdp(config, directory) {
            Ok(engine) => Ok((Box::new(engine), None)),
            Err(StartError::Engine(error)) => {
                let note = format!("the packet engine, since the kernel engine can't run: {error}");
                tracing::warn!("{note}");
                Ok((Box::new(packet(config, directory)?), Some(note)))
            }
            Err(error) => Err(error),
        },
    }
}

fn xdp(config: &Config, directory: &Path) -> Result<XdpEngine, StartError> {
    let mode = match config.engine.xdp_mode {
        XdpMode::Auto => None,
        XdpMode::Native => Some(xdp::Mode::Native),
        XdpMode::Generic => Some(xdp::Mode::Generic),
    };
    let options = xdp::Options {
        sessions_max: config.engine.sessions_max,
        seed: seed()?,
        mode,
        pins: Some(pins::directory()?),
    };
    let engine = XdpEngine::start(options)?;
    packet::clear_left(&session_file(directory));
    Ok(engine)
}

fn packet(config: &Config, directory: &Path) -> Result<PacketEngine, StartError> {
    pins::clear_left()?;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(PacketEngine::start(packet::Options {
        sessions_max: config.engine.sessions_max,
        seed: seed()?,
        threads: config.engine.threads.unwrap_or(processors),
        session_file: session_file(directory),
    })?)
}

fn session_file(directory: &Path) -> PathBuf {
    directory.join("sessions")
}

/// A new key for the flow hash.
fn seed() -> Result<Seed, StartError> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(StartError::io("no random numbers from /dev/urandom"))?;
    let (first, second) = bytes.split_at(8);
    let word = |half: &[u8]| half.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    Ok(Seed(word(first), word(second)))
}

/// Asks, before the director answers for an address, whether anyone else does (RFC 5227, section 2.1).
async fn refuse_conflicts(
    config: &Config,
    network: &Network,
    interfaces: &BTreeMap<u32, Mac>,
    arp: &Arp,
    frames: &mut mpsc::Receiver<ArpFrame>,
) -> Result<(), StartError> {
    let announced = config.services.iter().filter(|service| service.announce);
    let addresses: BTreeSet<Ipv4Addr> =
        announced.flat_map(|service| &service.addresses).map(|address| *address.ip()).collect();
    if addresses.is_empty() {
        return Ok(());
    }
    for address in &addresses {
        interfaces.keys().for_each(|ifindex| arp.ask(*ifindex, Ipv4Addr::UNSPECIFIED, *address));
    }
    let end = Instant::now() + CONFLICT_WAIT;
    while let Ok(Some(frame)) = timeout_at(end, frames.recv()).await {
        let Some(body) = frame.bytes.get(ETHERNET_LEN..).and_then(|b| ArpBody::ref_from_prefix(b).ok())
        else {
            continue;
        };
        let (body, _) = body;
        let address = Ipv4Addr::from_bits(body.sender_ip.get());
        let own = interfaces.values().any(|mac| *mac == body.sender_mac);
        if body.is_ipv4_over_ethernet()
            && body.operation.get() == ARP_REPLY
            && addresses.contains(&address)
            && !own
        {
            let interface = network.interfaces.get(&frame.ifindex).map_or("?", |i| &i.name).to_owned();
            return Err(StartError::OwnedElsewhere { address, mac: body.sender_mac, interface });
        }
    }
    Ok(())
}

pub(super) fn drained_path(directory: &Path) -> PathBuf {
    directory.join("drained")
}

/// What the operator drained, one `service/server` a line; neither name has a slash.
fn read_drained(directory: &Path) -> BTreeSet<ServerName> {
    let text = fs::read_to_string(drained_path(directory)).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_once('/'));
    names.map(|(service, server)| ServerName { service: service.into(), server: server.into() }).collect()
}

pub(super) fn write_drained(directory: &Path, drained: &BTreeSet<ServerName>) -> io::Result<()> {
    let lines = drained.iter().map(|name| format!("{}/{}\n", name.service, name.server));
    let path = drained_path(directory);
    let new = path.with_extension("new");
    fs::write(&new, lines.collect::<String>())?;
    fs::rename(new, path)
}
