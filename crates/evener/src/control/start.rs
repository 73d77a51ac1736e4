//! From a file to a running daemon, or one clear sentence.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use evener_core::director::{Director, Identity, IdentityError, Input, Moment, Start, tunnel_source};
use evener_core::node::secret::Secret;
use evener_core::path::seed::Seed;
use evener_core::path::sessions::ticks;
use evener_dataplane::claim::Role;
use evener_dataplane::{Engine, EngineError};
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use super::changing::ExecuteError;
use super::conflicts::{OwnedElsewhere, ProbedAddresses};
use super::directors::DirectorTalk;
use super::engine;
use super::executor::{Executor, Tools};
use super::former_drains;
use super::group_files::GroupFiles;
use super::groups::GroupControl;
use super::hosts::{HostSocket, ReceivedDatagram};
use super::names::{NameControl, OpenError};
use super::readiness::ReadinessRecord;
use super::reading::{FileReader, NamedFiles, read_dns_files};
use super::reload::{self, StartupSettings};
use super::ring_key;
use super::state::{self, StateControl};
use super::totals::ServiceTotals;
use super::trace_control::open_log;
use super::{Daemon, PACKET_ENGINE, REQUESTS, clocks, display, now_ms};
use crate::admin;
use crate::agent::local_server::LocalServer;
use crate::agent::{self, AgentError};
use crate::board::request::ControlRequest;
use crate::board::{DaemonInfo, LoadedFile};
use crate::config::{self, Config, Problems};
use crate::events::readers::Readers;
use crate::events::{Bus, DaemonEvent, history};
use crate::handoff::lccp::{LccpNode, NodeRole};
use crate::handoff::{ControlLink, ControlQuery, ConversationContext};
use crate::io::neighbours::{Neighbours, ReceivedFrame};
use crate::io::network::{self, Network, NetworkError, path_mtu};
use crate::io::sysctl::ChangedSysctls;
use crate::record::Recorder;
use crate::redirect::ListenError;
use crate::runtime::Exit;
use crate::runtime::descriptors::ClientLimits;
use crate::runtime::lock::{Lock, LockError};
use crate::runtime::paths;
use crate::runtime::secret;
use crate::runtime::terminal::has_colour;
use crate::state::store::Store;
use crate::state::{RebasedFile, places};

/// The source of every key.
const RANDOM: &str = "no random numbers from /dev/urandom";

/// Why the daemon did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The file is wrong.
    #[error("{}", .0.render(has_colour(&io::stderr())))]
    Config(Problems),
    /// The file is of a host that is only a member of a group.
    #[error("{path} has neither a service nor names: `evener agent` has this host join the group that it names", path = .0.display())]
    NoService(PathBuf),
    /// Another daemon runs.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The network isn't as the file needs it.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// An address that the director should announce is another host's.
    #[error(transparent)]
    OwnedElsewhere(#[from] OwnedElsewhere),
    /// Every host is to decide, and the file does not say which of them this is.
    #[error(transparent)]
    NotAHost(#[from] IdentityError),
    /// The secret by which hosts know each other.
    #[error(transparent)]
    Secret(#[from] secret::SecretFileError),
    /// This host can't be the server that it has to be.
    #[error(transparent)]
    Server(#[from] AgentError),
    /// The engine can't do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The kernel engine can't run, and the file asks for no other.
    #[error("{0}; with `kind = \"auto\"` in [engine] the packet engine serves where the kernel engine can't")]
    KernelEngine(EngineError),
    /// The access log.
    #[error("{0}")]
    Log(String),
    /// A group's clients can't be heard.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Names can't be answered for.
    #[error(transparent)]
    Names(#[from] OpenError),
    /// The farm can't be carried out.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// Something on this host can't be used.
    #[error("{what}: {source}")]
    Io {
        /// The step that was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl StartError {
    /// The exit status that `evener --help` documents.
    pub(super) fn exit(&self) -> Exit {
        match self {
            StartError::Config(_) | StartError::NoService(_) | StartError::Secret(_) | StartError::Log(_) => {
                Exit::Failed
            }
            StartError::Server(error) => error.exit(),
            StartError::Lock(LockError::Held { .. } | LockError::Claimed { .. }) => Exit::Running,
            StartError::Engine(EngineError::Privilege { .. })
            | StartError::KernelEngine(EngineError::Privilege { .. })
            | StartError::Execute(ExecuteError::Engine(EngineError::Privilege { .. })) => Exit::Privileges,
            StartError::Io { source, .. }
            | StartError::Lock(LockError::Io { source, .. } | LockError::Unclaimed(source))
            | StartError::Listen(ListenError::Address { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Exit::Privileges
            }
            StartError::Io { .. } | StartError::Lock(_) => Exit::Failed,
            _ => Exit::Environment,
        }
    }

    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| StartError::Io { what, source }
    }
}

/// Starts everything. Programs attached until an error are detached with it.
pub(super) async fn start(config_path: &Path, readers: &Readers) -> Result<Daemon, StartError> {
    let file = config::load_tables(config_path).map_err(StartError::Config)?;
    if !file.config.has_services() {
        return Err(StartError::NoService(config_path.to_owned()));
    }
    let directory = paths::directory().map_err(StartError::io("the network namespace can't be told"))?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(StartError::io(format!(
        "{} can't be made (run as root, or set EVENER_RUN_DIR to a folder of your own)",
        directory.display()
    )))?;
    let mut lock = Lock::acquire(&directory.join("lock"))?;
    let folder = paths::state_directory().map_err(StartError::io("the network namespace can't be told"))?;
    history::start(readers, &folder).await;
    let bus = readers.bus().clone();
    let store = Store::new(&folder);
    let (restored, trouble) = state::restore(&store, file).map_err(StartError::Config)?;
    if !restored.dropped.is_empty()
        && let Err(error) = state::keep_dropped(&store, &restored)
    {
        tracing::error!("the file overrules run-time changes, which can't be written: {error}");
    }
    let RebasedFile { state: farm_state, config, dropped } = restored;
    let farm_state = former_drains::import(&store, farm_state, &config, &directory);
    if !dropped.is_empty() {
        bus.publish(DaemonEvent::ChangesDropped { places: places(&dropped) });
    }
    if let Some(trouble) = &trouble {
        tracing::error!("{trouble}");
    }
    if config.takes_packets() {
        lock.claim(Role::Director)?;
    }
    paths::clear_vanished(&directory);
    let recorder = Arc::new(Recorder::default());
    open_log(&config).and_then(|log| recorder.log(log)).map_err(StartError::Log)?;
    let network = network::read().await?;
    let links = match config.takes_packets() {
        true => network
            .pick_interfaces(&config.engine.interfaces, &config.services)
            .map_err(NetworkError::from)?,
        false => BTreeMap::new(),
    };

    let network_changes = crate::io::network::watch().await?;
    let path_mtus = path_mtus(&config);
    let (mut neighbours, mut frames) = Neighbours::new();
    if let Err((ifindex, error)) = neighbours.listen(&links, config.description().has_ipv6()) {
        let name = network.interfaces.get(&ifindex).map_or("?", |interface| &interface.name);
        return Err(EngineError::system(format!("hearing neighbours on {name}"), "CAP_NET_RAW", error).into());
    }
    let identity = identity(&config, &network)?;
    let secret = agent::secret_of(&config)?;
    let ring_seed = ring_key::read(&config, &folder)?;
    let (engine, engine_note) = engine::start(&config, &directory, ring_seed, links.keys().copied())?;
    let adopted = engine.running().is_some();
    // Loading programs takes a while, in which nobody could be heard.
    let started_ms = now_ms();
    let (sender, questions) = mpsc::channel(REQUESTS);
    let part = if identity.is_some() { NodeRole::Host } else { NodeRole::Director };
    let reader = secret.clone().map(|secret| reader(sender, secret, &recorder, &bus, part, &network));
    let reader = reader.transpose().map_err(StartError::io(RANDOM))?;
    let host_role = host_role(&config, identity, reader, config_path, &directory, engine.kind()).await;
    let HostRole { hosts, datagrams, mut local_server } = match host_role {
        Ok(host_role) => host_role,
        Err(error) => {
            engine::leave(engine, adopted);
            return Err(error);
        }
    };
    let (results, facts) = mpsc::channel(256);
    let (mut groups, member_messages) = GroupControl::new(&directory, results.clone(), &recorder);
    let mut names = NameControl::new(seed()?, results.clone());
    let dns = read_dns_files(&config).map_err(OpenError::from)?;
    let named = NamedFiles { dns, groups: GroupFiles::read(&config)? };
    let mut opened_groups = groups.open(&config, &named.groups)?;
    names.will_follow(Some(names.open(&config, named.dns.clone())?));
    let start = Start {
        farm: config.description(),
        network,
        links,
        host: hosts.as_ref().map(|(hosts, incarnation)| (hosts.identity.clone(), hosts.key(), *incarnation)),
        seed: engine.memory().seed,
        running: engine.running().cloned(),
        operator: farm_state.states.servers.clone(),
        groups: groups.kept(&config),
    };
    let hosts = hosts.map(|(hosts, _)| hosts);
    let lease_ms = hosts.is_some().then(|| start.farm.lease_ms());
    let director = Director::new(start, beginning(&*engine, lease_ms, started_ms));
    let fixed = StartupSettings::of(&config, &*engine);
    let restart_needed_for = fixed.differences(&config);
    if let Some(keys) = &restart_needed_for {
        tracing::warn!(
            "what runs was adopted, and is not as the file says in {keys}: {}",
            reload::remedy(keys)
        );
    }
    let about = DaemonInfo {
        started_ms,
        config: display(config_path),
        adopted,
        engine_note,
        loaded: LoadedFile { at: SystemTime::now(), restart_needed_for, trouble },
    };
    let settings = ChangedSysctls::new(&directory);
    let (fronts, queries) = (groups.fronts(), names.counts());
    let tools = Tools { engine, neighbours, settings, hosts, groups, names, facts: results, bus };
    let mut executor = Executor::new(director, config, about, tools);
    executor.show_groups(fronts, queries);
    let state = StateControl::new(store, farm_state, named);
    executor.show_state(Arc::clone(&state.state));
    executor.totals = ServiceTotals::open(&directory, adopted);
    executor.mark_what_is_passed_on();
    executor.hand_over_by(secret);
    executor.set_recorder(recorder);
    // Before the data plane is asked for anything: what it holds meanwhile waits here.
    let held = executor.held();
    let (handle, requests) = mpsc::channel(REQUESTS);
    let opened = open(&mut executor, &mut local_server, adopted, &mut frames, handle, &directory).await;
    if let Err(error) = opened {
        if !state.state.record.is_empty() {
            let changes = folder.join("changes.json");
            tracing::error!(
                "run-time changes are part of this farm: if it can't be started for them, move {} elsewhere",
                changes.display()
            );
        }
        // A state that was found running is left as it was found.
        let _ = fs::remove_file(directory.join("admin.sock"));
        executor.fall_silent();
        if let Some(local_server) = local_server {
            local_server.abandon(executor.director.network()).await;
        }
        if let Some(engine) = executor.changing.into_engine() {
            engine::leave(engine, adopted);
        }
        return Err(error);
    }
    executor.follow_groups(opened_groups.take());
    let mut daemon = Daemon {
        network_changes,
        fixed,
        executor,
        config_path: config_path.to_owned(),
        readiness: ReadinessRecord::in_folder(&directory),
        directors: DirectorTalk::default(),
        directory,
        frames,
        path_mtus,
        datagrams,
        questions,
        held,
        local_server,
        requests,
        facts,
        reading: FileReader::new(),
        member_messages,
        state,
        checking: None,
        reloading: None,
        draining: Vec::new(),
        _lock: lock,
    };
    daemon.executor.follow_network();
    daemon.directors.follow(&daemon.executor).await;
    warn_of_unlisted_tunnels(&daemon.executor);
    Ok(daemon)
}

/// When the director begins. A running data plane may have a lease to answer for addresses, if
/// hosts share them.
fn beginning(engine: &dyn Engine, lease_ms: Option<u64>, now_ms: u64) -> Moment {
    let (lease, now) = (engine.memory().lease, engine.now());
    let lease_holds = lease.until().is_some() && lease.holds(now);
    match lease_ms {
        // The data plane before may have had hosts.
        None => lease.set(None),
        // A new one has no end: a host that begins without a cable, and so renews none, would
        // answer after its daemon's death.
        Some(ms) if lease.until().is_none() => lease.set(Some(now.wrapping_add(ticks(ms)))),
        Some(_) => {}
    }
    Moment { ms: now_ms, lease_holds: lease_holds && lease_ms.is_some(), ..clocks() }
}

/// This host's identity among others, and the secret that they share, where every host decides.
fn identity(config: &Config, network: &Network) -> Result<Option<(Identity, Secret)>, StartError> {
    let found = Identity::find(&config.description(), network)?;
    let Some((identity, secret_file)) = found.zip(config.farm.secret_file.as_ref()) else { return Ok(None) };
    Ok(Some((identity, secret::read(secret_file)?)))
}

/// This host as one among others.
struct HostRole {
    /// With a number that no other start of it has.
    hosts: Option<(HostSocket, u64)>,
    datagrams: mpsc::Receiver<ReceivedDatagram>,
    local_server: Option<LocalServer>,
}

/// Has this host take its part, where every host decides.
async fn host_role(
    config: &Config,
    identity: Option<(Identity, Secret)>,
    reader: Option<(ConversationContext, Secret)>,
    config_path: &Path,
    directory: &Path,
    engine: &str,
) -> Result<HostRole, StartError> {
    let mark_key = identity.as_ref().map(|(_, secret)| secret::mark_key(secret));
    let (hosts, datagrams) = hosts(config, identity).await?;
    let copies = engine == PACKET_ENGINE;
    let local_server = match hosts.is_some() || reader.is_some() {
        true => Some(LocalServer::start(directory, config_path, copies, reader, mark_key)?),
        false => None,
    };
    Ok(HostRole { hosts, datagrams, local_server })
}

/// The reader for the data plane, which speaks with other nodes.
fn reader(
    queries: mpsc::Sender<ControlQuery>,
    secret: Secret,
    recorder: &Arc<Recorder>,
    bus: &Bus,
    part: NodeRole,
    network: &Network,
) -> io::Result<(ConversationContext, Secret)> {
    let link = ControlLink::new(queries, Arc::clone(recorder), bus.clone());
    let speaker = LccpNode::start(secret.clone(), part, network, Some(link.clone()))?;
    Ok((ConversationContext::new(link, Arc::clone(recorder), speaker, ClientLimits::make()), secret))
}

/// Begins to hear other hosts.
async fn hosts(
    config: &Config,
    identity: Option<(Identity, Secret)>,
) -> Result<(Option<(HostSocket, u64)>, mpsc::Receiver<ReceivedDatagram>), StartError> {
    let Some((identity, secret)) = identity else { return Ok((None, mpsc::channel(1).1)) };
    let incarnation = secret::random_number().map_err(StartError::io(RANDOM))?;
    let at = SocketAddr::new(identity.address, config.farm.peers.port);
    let opened = HostSocket::open(at.port(), identity, secret).await;
    let (hosts, datagrams) = opened.map_err(StartError::io(format!("hosts can't be heard on UDP {at}")))?;
    Ok((Some((hosts, incarnation)), datagrams))
}

/// Word of path MTUs. It can come later that a service has tunnels; none comes where it can't be
/// heard.
fn path_mtus(config: &Config) -> mpsc::Receiver<path_mtu::PathMtu> {
    path_mtu::listen().unwrap_or_else(|error| {
        if config.services.iter().any(|service| service.method.encapsulates()) {
            tracing::warn!(%error, "routers that can't pass on long tunnel packets won't be heard: set `mtu`");
        }
        mpsc::channel(1).1
    })
}

/// Says what agents on servers will refuse.
fn warn_of_unlisted_tunnels(executor: &Executor) {
    let (farm, network) = (executor.director.farm(), executor.director.network());
    for service in farm.services.iter().filter(|service| service.method.encapsulates()) {
        let sources = service.servers.iter().filter_map(|server| network.source_towards(server.address));
        let mut sources = sources.map(|own| tunnel_source(farm, network, own));
        if let Some(source) = sources.find(|source| !farm.tunnel_sources().contains(source)) {
            tracing::warn!(
                service = service.name,
                "tunnels go out from {source}, which [farm] directors does not list: agents on servers take none"
            );
        }
    }
}

/// Opens the farm to traffic, and the daemon to requests.
async fn open(
    executor: &mut Executor,
    local_server: &mut Option<LocalServer>,
    adopted: bool,
    frames: &mut mpsc::Receiver<ReceivedFrame>,
    requests: mpsc::Sender<ControlRequest>,
    directory: &Path,
) -> Result<(), StartError> {
    refuse_conflicts(executor, frames).await?;
    if let Some(local_server) = local_server {
        local_server.fulfil(&executor.config, executor.director.network()).await?;
    }
    executor.handle_fact(Input::Time { active: BTreeMap::new() });
    executor.finish().await?;
    executor.watch()?;
    if let Some(local_server) = local_server {
        // The program that makes connections here must stand behind the engine, which is there only
        // now.
        local_server.fulfil(&executor.config, executor.director.network()).await?;
    }
    executor.bus.publish(DaemonEvent::Started { engine: executor.engine_detail.clone(), adopted });
    executor.warn_of_host();
    executor.show_local(local_server.as_ref().map(LocalServer::local));
    let board = Arc::clone(&executor.showing.board);
    admin::server::start(board, requests, &directory.join("admin.sock"), &executor.config.admin)
        .await
        .map_err(StartError::io("the admin interface can't be opened"))
}

/// A new key for the flow hash.
pub(super) fn seed() -> Result<Seed, StartError> {
    let mut bytes = [0; 16];
    secret::random(&mut bytes).map_err(StartError::io(RANDOM))?;
    Ok(Seed::from_bytes(bytes))
}

/// Asks, before the director answers for an address, whether anyone else does.
async fn refuse_conflicts(
    executor: &Executor,
    frames: &mut mpsc::Receiver<ReceivedFrame>,
) -> Result<(), StartError> {
    let director = &executor.director;
    let Some(probed) = ProbedAddresses::send(executor, director.farm(), director.links()) else {
        return Ok(());
    };
    while let Ok(Some(frame)) = timeout_at(probed.until, frames.recv()).await {
        probed.owner(&frame, director.network())?;
    }
    Ok(())
}
