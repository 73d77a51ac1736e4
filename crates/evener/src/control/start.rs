//! Starts the daemon from a file. A failure is one sentence.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use evener_core::director::{Director, Identity, IdentityError, Input, Moment, Start, tunnel_source};
use evener_core::net::wire::Mac;
use evener_core::node::secret::Secret;
use evener_core::path::seed::Seed;
use evener_core::path::sessions::ticks;
use evener_dataplane::claim::Role;
use evener_dataplane::{Engine, EngineError};
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use super::change::ChangeControl;
use super::changing::ExecuteError;
use super::conflicts::{OwnedElsewhere, ProbedAddresses};
use super::directors::DirectorTalk;
use super::engine;
use super::executor::{Executor, Tools};
use super::group_files::GroupFiles;
use super::groups::GroupControl;
use super::hosts::{HostSocket, ReceivedDatagram};
use super::inbox::Inbox;
use super::names::{NameControl, OpenError};
use super::prepare::{StartupSettings, remedy};
use super::readiness::ReadinessRecord;
use super::reading::{NamedFiles, read_dns_files};
use super::replication::JoiningState;
use super::restore::{RestoredFarm, restore};
use super::ring_key;
use super::totals::ServiceTotals;
use super::trace_control::open_log;
use super::{Daemon, PACKET_ENGINE, REQUESTS, clocks, display, now_ms};
use crate::admin;
use crate::agent::local_server::LocalServer;
use crate::agent::{self, AgentError};
use crate::board::request::ControlRequest;
use crate::board::{DaemonInfo, LoadedFile, PublishedState};
use crate::config::{self, Config, Problems};
use crate::events::readers::Readers;
use crate::events::{Bus, DaemonEvent, history};
use crate::handoff::lccp::{LccpNode, NodeRole};
use crate::handoff::{ControlLink, ControlQuery, ConversationContext};
use crate::io::neighbours::{Neighbours, ReceivedFrame};
use crate::io::network::{self, Network, NetworkError, path_mtu};
use crate::io::sysctl::ChangedSysctls;
use crate::record::Recorder;
use crate::redirect::{GroupSockets, ListenError, MemberMessage};
use crate::runtime::Exit;
use crate::runtime::descriptors::ClientLimits;
use crate::runtime::folders;
use crate::runtime::lock::{Lock, LockError};
use crate::runtime::program::HostError;
use crate::runtime::secret;
use crate::runtime::terminal::has_colour;
use crate::state::FarmState;
use crate::state::store::Store;

/// Error text if no key can be generated.
const RANDOM: &str = "no random numbers from /dev/urandom";

/// Error of the daemon's start or end.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("{}", .0.render(has_colour(&io::stderr())))]
    Config(Problems),
    /// The file is for a host that is only a member of a group.
    #[error("{path} has neither services nor names, only a group to join: run `evener agent` with this file", path = .0.display())]
    NoService(PathBuf),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Another host owns an address that the director should announce.
    #[error(transparent)]
    OwnedElsewhere(#[from] OwnedElsewhere),
    /// In an every-host farm, the file doesn't identify this host.
    #[error(transparent)]
    NotAHost(#[from] IdentityError),
    /// The farm's secret can't be read.
    #[error(transparent)]
    Secret(#[from] secret::SecretFileError),
    /// This host can't be set up as a server.
    #[error(transparent)]
    Server(#[from] AgentError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The kernel engine can't run, and the file asks for no other.
    #[error(
        "{0}; with `kind = \"auto\"` in [engine] Evener uses the packet engine if the kernel engine fails"
    )]
    KernelEngine(EngineError),
    #[error("{0}")]
    Log(String),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Names(#[from] OpenError),
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    #[error(transparent)]
    Host(#[from] HostError),
}

impl StartError {
    /// Returns the exit status, as documented by `evener --help`.
    pub(super) fn exit(&self) -> Exit {
        match self {
            StartError::Config(_) | StartError::NoService(_) | StartError::Secret(_) | StartError::Log(_) => {
                Exit::Failed
            }
            StartError::Server(error) => error.exit(),
            StartError::Lock(error) => error.exit(),
            StartError::Host(error) => error.exit(),
            StartError::Engine(EngineError::Privilege { .. })
            | StartError::KernelEngine(EngineError::Privilege { .. })
            | StartError::Execute(ExecuteError::Engine(EngineError::Privilege { .. })) => Exit::Privileges,
            StartError::Listen(ListenError::Address { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Exit::Privileges
            }
            _ => Exit::Environment,
        }
    }
}

/// Starts the daemon. On an error, attached programs are detached.
pub(super) async fn start(config_path: &Path, readers: &Readers) -> Result<Daemon, StartError> {
    let base = DaemonBase::open(config_path, readers).await?;
    let links = HostLinks::open(&base.config).await?;
    let identity = identity(&base.config, &links.network)?;
    let secret = agent::secret_of(&base.config)?;
    let ring_seed = ring_key::read(&base.config, &base.folder)?;
    let interfaces = links.interfaces.keys().copied();
    let (engine, note) = engine::start(&base.config, &base.directory, ring_seed, interfaces)?;
    let adopted = engine.running().is_some();
    // The start time is read before programs are loaded, since no message of another host is
    // received meanwhile.
    let started_ms = now_ms();
    let role = match HostRole::begin(&base, &links.network, identity, secret.clone(), engine.kind()).await {
        Ok(role) => role,
        Err(error) => {
            engine::leave(engine, adopted);
            return Err(error);
        }
    };
    let engine = StartedEngine { engine, note, adopted, started_ms };
    let (daemon, opened) = assemble(base, links, role, engine, secret)?;
    open(daemon, adopted, opened).await
}

/// The lock, the folders and the farm: all that a daemon has before it examines its host.
struct DaemonBase {
    config_path: PathBuf,
    lock: Lock,
    directory: PathBuf,
    /// Folder of run-time changes.
    folder: PathBuf,
    bus: Bus,
    recorder: Arc<Recorder>,
    store: Store,
    state: FarmState,
    config: Config,
    /// Reason why stored changes are not in force.
    trouble: Option<String>,
}

impl DaemonBase {
    async fn open(config_path: &Path, readers: &Readers) -> Result<DaemonBase, StartError> {
        let file = config::load_tables(config_path).map_err(StartError::Config)?;
        if !file.config.has_services() {
            return Err(StartError::NoService(config_path.to_owned()));
        }
        let directory = folders::make_directory()?;
        let mut lock = Lock::acquire(&folders::lock_path(&directory))?;
        let folder =
            folders::state_directory().map_err(HostError::of("failed to read the network namespace"))?;
        history::start(readers, &folder).await;
        let (bus, store) = (readers.bus().clone(), Store::new(&folder));
        let restored = restore(&store, file, &directory, &bus).map_err(StartError::Config)?;
        let RestoredFarm { state, config, trouble } = restored;
        if config.takes_packets() {
            lock.claim(Role::Director)?;
        }
        folders::clear_vanished(&directory);
        let recorder = Arc::new(Recorder::default());
        open_log(&config).and_then(|log| recorder.log(log)).map_err(StartError::Log)?;
        let config_path = config_path.to_owned();
        Ok(DaemonBase { config_path, lock, directory, folder, bus, recorder, store, state, config, trouble })
    }
}

/// The network around this host, and the channels of its events.
struct HostLinks {
    network: Network,
    /// Interfaces of the director, with their MAC addresses.
    interfaces: BTreeMap<u32, Mac>,
    network_changes: mpsc::Receiver<()>,
    path_mtus: mpsc::Receiver<path_mtu::PathMtu>,
    neighbours: Neighbours,
    frames: mpsc::Receiver<ReceivedFrame>,
}

impl HostLinks {
    async fn open(config: &Config) -> Result<HostLinks, StartError> {
        let network = network::read().await?;
        let interfaces = match config.takes_packets() {
            true => network
                .pick_interfaces(&config.engine.interfaces, &config.services)
                .map_err(NetworkError::from)?,
            false => BTreeMap::new(),
        };
        let network_changes = network::watch().await?;
        let path_mtus = path_mtus(config);
        let (mut neighbours, frames) = Neighbours::new();
        let listening = neighbours.listen(&interfaces, config.description().has_ipv6());
        listening.map_err(|(ifindex, error)| {
            let name = network.interfaces.get(&ifindex).map_or("?", |interface| &interface.name);
            EngineError::system(format!("hearing neighbours on {name}"), "CAP_NET_RAW", error)
        })?;
        Ok(HostLinks { network, interfaces, network_changes, path_mtus, neighbours, frames })
    }
}

/// An engine, and how it was started.
struct StartedEngine {
    engine: Box<dyn Engine>,
    /// Reason why `auto` didn't choose the kernel engine.
    note: Option<String>,
    /// True if the data plane was found running.
    adopted: bool,
    started_ms: u64,
}

impl StartedEngine {
    /// Creates a director on the tables that this engine has in force.
    fn direct(
        &self,
        base: &DaemonBase,
        (network, links): (Network, BTreeMap<u32, Mac>),
        host: Option<&(HostSocket, u64)>,
        groups: &GroupControl,
    ) -> Director {
        let lease_ms = host.map(|_| base.config.description().lease_ms());
        let start = Start {
            farm: base.config.description(),
            network,
            links,
            host: host.map(|(host, number)| (host.identity.clone(), host.key(), *number)),
            seed: self.engine.memory().seed,
            running: self.engine.running().cloned(),
            operator: base.state.states.servers.clone(),
            groups: groups.kept(&base.config),
        };
        Director::new(start, beginning(&*self.engine, lease_ms, self.started_ms))
    }

    /// Returns the daemon's state besides its farm.
    fn about(&self, base: &DaemonBase, restart_needed_for: Option<String>) -> DaemonInfo {
        if let Some(keys) = &restart_needed_for {
            tracing::warn!(
                "the running data plane was adopted with its own values of {keys}, not those of the file: {}",
                remedy(keys)
            );
        }
        let trouble = base.trouble.clone();
        DaemonInfo {
            started_ms: self.started_ms,
            config: display(&base.config_path),
            adopted: self.adopted,
            engine_note: self.note.clone(),
            loaded: LoadedFile { at: SystemTime::now(), restart_needed_for, trouble, reloads: 0 },
        }
    }
}

/// Groups and names of the file. Their sockets are open but not served yet.
struct Consumers {
    groups: GroupControl,
    names: NameControl,
    named: NamedFiles,
    opened: Option<GroupSockets>,
    member_messages: mpsc::Receiver<MemberMessage>,
}

impl Consumers {
    fn open(base: &DaemonBase, results: &mpsc::Sender<Input>) -> Result<Consumers, StartError> {
        let (mut groups, member_messages) =
            GroupControl::new(&base.directory, results.clone(), &base.recorder);
        let mut names = NameControl::new(seed()?, results.clone());
        let dns = read_dns_files(&base.config).map_err(OpenError::from)?;
        let named = NamedFiles { dns, groups: GroupFiles::read(&base.config)? };
        let opened = groups.open(&base.config, &named.groups)?;
        names.will_follow(Some(names.open(&base.config, named.dns.clone())?));
        Ok(Consumers { groups, names, named, opened, member_messages })
    }
}

/// Parts that are opened once the farm is in force.
struct Unopened {
    groups: Option<GroupSockets>,
    requests: mpsc::Sender<ControlRequest>,
}

/// Assembles a daemon whose farm is not in force yet.
fn assemble(
    base: DaemonBase,
    links: HostLinks,
    role: HostRole,
    started: StartedEngine,
    secret: Option<Secret>,
) -> Result<(Daemon, Unopened), StartError> {
    let (results, facts) = mpsc::channel(256);
    let consumers = Consumers::open(&base, &results)?;
    let around = (links.network, links.interfaces);
    let adopted = started.adopted;
    let director = started.direct(&base, around, role.host.as_ref(), &consumers.groups);
    let fixed = StartupSettings::of(&base.config, &*started.engine);
    let about = started.about(&base, fixed.differences(&base.config));
    let state = Arc::new(base.state);
    let (totals, engine) = (ServiceTotals::open(&base.directory, started.adopted), started.engine);
    let published = PublishedState {
        snapshot: Arc::clone(director.snapshot()),
        about: Arc::new(about),
        gone: totals.gone(),
        engine: engine.kind(),
        engine_detail: engine.describe(),
        readings: engine.data_plane(),
        recorder: Arc::clone(&base.recorder),
        bus: base.bus.clone(),
        local: None,
        installed: Arc::default(),
        state: Arc::clone(&state),
        fronts: consumers.groups.fronts(),
        queries: consumers.names.counts(),
        directors: Arc::default(),
    };
    let tools = Tools {
        engine,
        neighbours: links.neighbours,
        settings: ChangedSysctls::new(&base.directory),
        hosts: role.host.map(|(host, _)| host),
        groups: consumers.groups,
        names: consumers.names,
        totals,
        facts: results,
    };
    let mut executor = Executor::new(director, base.config, published, tools);
    executor.set_mark_key();
    executor.enable_handoff(secret);
    let (handle, requests) = mpsc::channel(REQUESTS);
    let inbox = Inbox {
        frames: links.frames,
        requests,
        network_changes: links.network_changes,
        path_mtus: links.path_mtus,
        datagrams: role.datagrams,
        queries: role.queries,
        // Created before the first order to the data plane, whose held segments wait in this queue.
        held: executor.held(),
        facts,
        member_messages: consumers.member_messages,
    };
    let daemon = Daemon {
        executor,
        config_path: base.config_path,
        readiness: ReadinessRecord::in_folder(&base.directory),
        directory: base.directory,
        fixed,
        inbox,
        local_server: role.local_server,
        changes: ChangeControl::new(base.store, state, consumers.named),
        directors: DirectorTalk::default(),
        joining: JoiningState::begin(adopted),
        _lock: base.lock,
    };
    Ok((daemon, Unopened { groups: consumers.opened, requests: handle }))
}

/// Opens the farm to traffic, and the daemon to requests. On an error, restores the host.
async fn open(mut daemon: Daemon, adopted: bool, unopened: Unopened) -> Result<Daemon, StartError> {
    if let Err(error) = serve_farm(&mut daemon, adopted, unopened.requests).await {
        daemon.abandon(adopted).await;
        return Err(error);
    }
    daemon.executor.follow_groups(unopened.groups);
    daemon.executor.follow_network();
    daemon.directors.follow(&daemon.executor).await;
    warn_of_unlisted_tunnels(&daemon.executor);
    Ok(daemon)
}

/// Puts the farm in force, and starts to answer requests.
async fn serve_farm(
    daemon: &mut Daemon,
    adopted: bool,
    requests: mpsc::Sender<ControlRequest>,
) -> Result<(), StartError> {
    let Daemon { executor, local_server, inbox, directory, .. } = daemon;
    refuse_conflicts(executor, &mut inbox.frames).await?;
    if let Some(local_server) = local_server {
        local_server.apply(&executor.config, executor.director.network()).await?;
    }
    executor.handle_fact(Input::Time { active: BTreeMap::new() });
    executor.finish().await?;
    executor.watch()?;
    if let Some(local_server) = local_server {
        // The program that accepts handed-off connections must run after the engine's, which exists
        // only now.
        local_server.apply(&executor.config, executor.director.network()).await?;
    }
    executor.bus.publish(DaemonEvent::Started { engine: executor.engine_detail().to_owned(), adopted });
    executor.warn_of_host();
    executor.show_local(local_server.as_ref().map(LocalServer::local));
    let board = Arc::clone(&executor.showing.board);
    let socket = directory.join("admin.sock");
    let opened = admin::server::start(board, requests, &socket, &executor.config.admin).await;
    Ok(opened.map_err(HostError::of("the admin interface can't be opened"))?)
}

impl Daemon {
    /// Leaves a farm that could not be started. A data plane that was found running keeps running.
    async fn abandon(mut self, adopted: bool) {
        if !self.changes.state.record.is_empty() {
            tracing::error!(
                "the farm includes run-time changes; to start without them, move {} away",
                self.changes.store.path().display()
            );
        }
        let _ = fs::remove_file(self.directory.join("admin.sock"));
        self.executor.stop_tracing();
        if let Some(local_server) = self.local_server {
            local_server.abandon(self.executor.director.network()).await;
        }
        if let Some(engine) = self.executor.engine.into_engine() {
            engine::leave(engine, adopted);
        }
    }
}

/// Returns the moment at which the director begins. A running data plane may have a lease on
/// addresses that hosts share.
fn beginning(engine: &dyn Engine, lease_ms: Option<u64>, now_ms: u64) -> Moment {
    let (lease, now) = (engine.memory().lease, engine.now());
    let lease_holds = lease.until().is_some() && lease.holds(now);
    match lease_ms {
        // The previous farm may have been an every-host farm with a lease.
        None => lease.set(None),
        // A lease without an end gets one. A host that starts without a network link can't renew
        // the lease, and would otherwise answer even after its daemon's death.
        Some(ms) if lease.until().is_none() => lease.set(Some(now.wrapping_add(ticks(ms)))),
        Some(_) => {}
    }
    Moment { ms: now_ms, lease_holds: lease_holds && lease_ms.is_some(), ..clocks() }
}

/// Returns this host's identity and the farm's secret, in an every-host farm.
fn identity(config: &Config, network: &Network) -> Result<Option<(Identity, Secret)>, StartError> {
    let found = Identity::find(&config.description(), network)?;
    let Some((identity, secret_file)) = found.zip(config.farm.secret_file.as_ref()) else { return Ok(None) };
    Ok(Some((identity, secret::read(secret_file)?)))
}

/// This host's role: as a host of an every-host farm, and as a reader for the data plane.
struct HostRole {
    /// The socket, and a number that is unique to this start.
    host: Option<(HostSocket, u64)>,
    datagrams: mpsc::Receiver<ReceivedDatagram>,
    local_server: Option<LocalServer>,
    queries: mpsc::Receiver<ControlQuery>,
}

impl HostRole {
    async fn begin(
        base: &DaemonBase,
        network: &Network,
        identity: Option<(Identity, Secret)>,
        secret: Option<Secret>,
        engine: &str,
    ) -> Result<HostRole, StartError> {
        let (sender, queries) = mpsc::channel(REQUESTS);
        let part = if identity.is_some() { NodeRole::Host } else { NodeRole::Director };
        let reader = secret.map(|secret| {
            let link = ControlLink::new(sender, Arc::clone(&base.recorder), base.bus.clone());
            let lccp_node = LccpNode::start(secret.clone(), part, network, Some(link.clone()))?;
            let limits = ClientLimits::make();
            Ok((ConversationContext::new(link, Arc::clone(&base.recorder), lccp_node, limits), secret))
        });
        let reader = reader.transpose().map_err(HostError::of(RANDOM))?;
        let mark_key = identity.as_ref().map(|(_, secret)| secret::mark_key(secret));
        let (host, datagrams) = host(&base.config, identity).await?;
        let copies = engine == PACKET_ENGINE;
        let local_server = match host.is_some() || reader.is_some() {
            true => Some(LocalServer::start(&base.directory, &base.config_path, copies, reader, mark_key)?),
            false => None,
        };
        Ok(HostRole { host, datagrams, local_server, queries })
    }
}

/// Opens the socket to other hosts, in an every-host farm.
async fn host(
    config: &Config,
    identity: Option<(Identity, Secret)>,
) -> Result<(Option<(HostSocket, u64)>, mpsc::Receiver<ReceivedDatagram>), StartError> {
    let Some((identity, secret)) = identity else { return Ok((None, mpsc::channel(1).1)) };
    let incarnation = secret::random_number().map_err(HostError::of(RANDOM))?;
    let at = SocketAddr::new(identity.address, config.farm.peers.port);
    let opened = HostSocket::open(at.port(), identity, secret).await;
    let (host, datagrams) =
        opened.map_err(HostError::of(format!("failed to listen for reports of hosts on UDP {at}")))?;
    Ok((Some((host, incarnation)), datagrams))
}

/// Listens to ICMP messages on path MTUs, even if no service has tunnels yet. Returns an empty
/// receiver if the socket can't be opened.
fn path_mtus(config: &Config) -> mpsc::Receiver<path_mtu::PathMtu> {
    path_mtu::listen().unwrap_or_else(|error| {
        if config.services.iter().any(|service| service.method.encapsulates()) {
            tracing::warn!(%error, "failed to listen for ICMP errors of routers, so path MTUs are unknown: set `mtu` of tunnel services");
        }
        mpsc::channel(1).1
    })
}

/// Warns about tunnels that agents on servers will refuse.
fn warn_of_unlisted_tunnels(executor: &Executor) {
    let (farm, network) = (executor.director.farm(), executor.director.network());
    for service in farm.services.iter().filter(|service| service.method.encapsulates()) {
        let sources = service.servers.iter().filter_map(|server| network.source_towards(server.address));
        let mut sources = sources.map(|own| tunnel_source(farm, network, own));
        if let Some(source) = sources.find(|source| !farm.tunnel_sources().contains(source)) {
            tracing::warn!(
                service = service.name,
                "tunnel packets have the source {source}, which `directors` in [farm] does not list: servers' agents will drop them"
            );
        }
    }
}

/// Generates a key for the flow hash.
pub(super) fn seed() -> Result<Seed, StartError> {
    let mut bytes = [0; 16];
    secret::random(&mut bytes).map_err(HostError::of(RANDOM))?;
    Ok(Seed::from_bytes(bytes))
}

/// Probes the addresses that the director will announce. Fails if another host owns one of these
/// addresses.
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
