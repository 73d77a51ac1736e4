//! `evener agent`: what a server does for its services. It finds out which those are, puts the
//! service addresses where the method wants them, takes packets out of tunnels, and takes back what
//! it did when it stops.
//!
//! The same file serves the whole farm; each host finds itself in it by its addresses.

mod desired;
pub mod doctor;
mod firewall;
mod listening;
mod load;
pub(crate) mod local_server;
mod member;
pub(crate) mod path_probe;
mod place;
mod prerequisites;
pub mod requests;
mod show;
mod state;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use load::findings;
pub(crate) use path_probe::ServerKeys;

use evener_core::node::secret::Secret;
use evener_dataplane::claim::Role;
use evener_dataplane::server::{Hook, Reason};
use sd_notify::NotifyState;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::cli;
use crate::config::{self, Config, Problems};
use crate::handoff::lccp::{LccpNode, NodeRole};
use crate::io::network::{self, Network, NetworkError};
use crate::runtime::Exit;
use crate::runtime::folders;
use crate::runtime::lock::{Lock, LockError};
use crate::runtime::log;
use crate::runtime::program::{self, HostError};
use crate::runtime::reader;
use crate::runtime::secret;
use crate::runtime::signals::{ProcessSignals, SignalAction};
use crate::runtime::terminal::has_colour;
use desired::{AgentIdentity, DesiredState};
use load::{LoadContext, LoadExporter};
use member::Memberships;
use place::{HostState, PlaceError};
use state::StateFile;

/// Changes of the network come in flocks: act once they have settled.
const SETTLE: Duration = Duration::from_millis(200);
/// An interval at which everything is looked at in any case: settings, programs and pins change
/// without a word from the kernel.
const LOOK: Duration = Duration::from_secs(3);
/// How often it is seen to it that keys are those of the time of day; they change once a minute.
const RENEWAL: Duration = Duration::from_secs(2);

/// Why the agent did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    /// The file is wrong.
    #[error("{}", .0.render(has_colour(&io::stderr())))]
    Config(Problems),
    /// The file has nothing for this host.
    #[error("{0}")]
    Role(String),
    /// Another agent runs.
    #[error("another evener agent (pid {0}) already runs in this network namespace; stop it first")]
    Running(String),
    /// The host or its lock is somebody else's.
    #[error(transparent)]
    Lock(LockError),
    /// The network can't be read.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Something was refused.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// There is no secret, and connections are handed over.
    #[error(transparent)]
    Secret(#[from] secret::SecretFileError),
    /// Something on this host can't be used.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl AgentError {
    fn not_alone(error: LockError) -> AgentError {
        match error {
            LockError::Held { pid } => AgentError::Running(pid),
            other => AgentError::Lock(other),
        }
    }

    /// The exit status that `evener --help` documents.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            AgentError::Config(_) | AgentError::Role(_) | AgentError::Secret(_) => Exit::Failed,
            AgentError::Running(_) => Exit::Running,
            AgentError::Lock(error) => error.exit(),
            AgentError::Place(error) if error.is_denied() => Exit::Privileges,
            AgentError::Host(error) => error.exit(),
            _ => Exit::Environment,
        }
    }
}

/// Runs the agent until it is told to stop, or shows what one has done.
pub fn run(args: &cli::AgentArgs) -> Exit {
    if args.status {
        return show::run(args.json);
    }
    log::start();
    let identity = AgentIdentity { host: args.host.clone(), services: args.service.clone() };
    program::run("the agent", Builder::new_current_thread(), AgentError::exit, async {
        let mut agent = Agent::start(&args.config, identity, args.hook).await?;
        let end = agent.serve().await;
        agent.leave(args.keep && end != SignalAction::Dismantle).await
    })
}

/// A file, and the state that it asks of this host.
struct AgentPlan {
    config: Config,
    network: Network,
    desired: DesiredState,
    secret: Option<Secret>,
    keys: Option<ServerKeys>,
}

impl AgentPlan {
    async fn new(
        config: Config,
        identity: &AgentIdentity,
        hook: Option<Hook>,
    ) -> Result<AgentPlan, AgentError> {
        let network = network::read().await?;
        let desired = what_to_do(&config, identity, hook, &network).await.map_err(AgentError::Role)?;
        let (secret, keys) = (secret_of(&config)?, ServerKeys::read(&config)?);
        Ok(AgentPlan { config, network, desired, secret, keys })
    }
}

/// An agent at work.
struct Agent {
    config_path: PathBuf,
    config: Config,
    identity: AgentIdentity,
    hook: Option<Hook>,
    host_state: HostState,
    network_changes: mpsc::Receiver<()>,
    trouble: LastProblem,
    counted: BTreeMap<Reason, u64>,
    /// By whom this server's load is told.
    exporter: LoadExporter,
    /// Groups that it joins.
    memberships: Memberships,
    /// By whom directors are spoken with, where connections are handed over.
    speaker: Option<LccpNode>,
    /// How many of their messages were refused, by reason.
    unheard: BTreeMap<String, u64>,
    /// Last, since it removes the folder when nothing else is in it.
    _lock: Lock,
}

impl Agent {
    /// Carries out the desired state. Steps done before an error are undone.
    async fn start(
        config_path: &Path,
        identity: AgentIdentity,
        hook: Option<Hook>,
    ) -> Result<Agent, AgentError> {
        let config = config::load(config_path).map_err(AgentError::Config)?;
        // Without a secret nothing is begun, so nothing is written down.
        let plan = AgentPlan::new(config, &identity, hook).await?;
        let AgentPlan { config, network, desired, secret, keys } = plan;
        let directory = folders::make_directory()?;
        let (state, lock) = take_over(&directory, config_path, identity.clone())?;
        let adopted = state.done.is_something();
        let network_changes = network::watch().await?;
        let mut host_state = HostState::open(state)?;
        host_state.secret = secret;
        host_state.cookie_epoch_ms = config.farm.cookie_epoch_ms;
        if let Err(error) = host_state.fulfil(&desired, &network).await {
            // A state that was found at work is left as it was found.
            if let Err(left) = host_state.leave(adopted, &network_now(network).await).await {
                tracing::warn!(error = %left, "something stays as it was changed");
            }
            return Err(error.into());
        }
        let counted = counters(&host_state);
        let config_path = config_path.to_owned();
        let wanted = member::wanted(&config, &identity, &network);
        let known = LoadContext { config: &config, network: &network, memberships: &wanted, keys };
        let exporter = LoadExporter::start(&known, &directory);
        let mut memberships = Memberships::new(&directory);
        memberships.follow(wanted, &exporter);
        let mut agent = Agent {
            config_path,
            config,
            identity,
            hook,
            host_state,
            network_changes,
            trouble: LastProblem::default(),
            counted,
            exporter,
            memberships,
            speaker: None,
            unheard: BTreeMap::new(),
            _lock: lock,
        };
        agent.speak(&network);
        Ok(agent)
    }

    /// Has directors spoken with, and by the secret as it is.
    fn speak(&mut self, network: &Network) {
        let secret = self.host_state.secret.as_ref();
        self.speaker = self.speaker.take().filter(|speaker| secret.is_some_and(|secret| speaker.has(secret)));
        if let (None, Some(secret)) = (&self.speaker, secret) {
            let speaker = LccpNode::start(secret.clone(), NodeRole::Server, network, None);
            self.speaker = speaker.map_err(|error| tracing::error!(%error, "no random numbers")).ok();
        }
        if let Some(speaker) = &self.speaker {
            speaker.follow(&self.config, network);
            if let Some(connections) = self.host_state.connections() {
                speaker.look_at(connections);
            }
        }
    }

    /// The loop. Ends with SIGTERM or SIGINT, or with SIGQUIT.
    async fn serve(&mut self) -> SignalAction {
        let mut signals = match ProcessSignals::new() {
            Ok(signals) => signals,
            Err(error) => {
                tracing::error!(%error, "signals can't be heard");
                return SignalAction::Stop;
            }
        };
        eprintln!("evener: ready");
        program::notify(NotifyState::Ready);
        let mut look = Instant::now() + LOOK;
        let mut renewal = tokio::time::interval(RENEWAL);
        loop {
            tokio::select! {
                action = signals.next() => match action {
                    SignalAction::Reload => self.reload().await,
                    // The agent has no log of its own.
                    SignalAction::Reopen => {}
                    end => return end,
                },
                _ = renewal.tick() => self.host_state.renew_cookies(),
                Some(()) = self.network_changes.recv() => look = look.min(Instant::now() + SETTLE),
                () = sleep_until(look) => {
                    self.refresh().await;
                    look = Instant::now() + LOOK;
                }
            }
        }
    }

    /// Reads the file again. A file with an error changes nothing.
    async fn reload(&mut self) {
        program::notify(NotifyState::Reloading);
        match self.try_reload().await {
            Ok(()) => tracing::info!(file = %self.config_path.display(), "reloaded"),
            Err(error) => tracing::error!("{error}"),
        }
        program::notify(NotifyState::Ready);
    }

    async fn try_reload(&mut self) -> Result<(), String> {
        let next = self.read_again().await.map_err(|error| format!("nothing was changed: {error}"))?;
        let AgentPlan { config, network, desired, secret, keys } = next;
        self.host_state.secret = secret;
        self.host_state.cookie_epoch_ms = config.farm.cookie_epoch_ms;
        let wanted = member::wanted(&config, &self.identity, &network);
        self.exporter.follow(&LoadContext { config: &config, network: &network, memberships: &wanted, keys });
        self.memberships.follow(wanted, &self.exporter);
        self.config = config;
        let done = self.host_state.fulfil(&desired, &network).await;
        self.speak(&network);
        done.map_err(|error| format!("{error}; the rest was done, and this is tried again"))
    }

    async fn read_again(&self) -> Result<AgentPlan, String> {
        let (path, name) = (self.config_path.clone(), self.config_path.display().to_string());
        let read = reader::within(reader::TIMEOUT, &name, move || config::load_again(&path)).await??;
        let plan = AgentPlan::new(read.config, &self.identity, self.hook).await;
        plan.map_err(|error| error.to_string())
    }

    /// Holds the host against its desired state: interfaces come and go, and so may what was placed
    /// on them.
    async fn refresh(&mut self) {
        let trouble = self.try_look().await.err();
        self.trouble.log_once(trouble);
        self.report();
    }

    async fn try_look(&mut self) -> Result<(), String> {
        let network = network::read().await.map_err(|error| error.to_string())?;
        // An address that is gone for a while makes this host no other one: what is placed stays.
        let desired = what_to_do(&self.config, &self.identity, self.hook, &network).await?;
        self.speak(&network);
        self.host_state.fulfil(&desired, &network).await.map_err(|error| error.to_string())
    }

    /// Says which packets were refused since it was last said.
    fn report(&mut self) {
        let counted = counters(&self.host_state);
        let since = |(reason, count): (&Reason, &u64)| {
            let new = count.saturating_sub(self.counted.get(reason).copied().unwrap_or_default());
            (reason.is_refusal() && new > 0).then(|| format!("{new} {}", reason.name()))
        };
        let refused: Vec<String> = counted.iter().filter_map(since).collect();
        if !refused.is_empty() {
            tracing::warn!("packets were refused: {}", refused.join(", "));
        }
        self.counted = counted;
        let unheard = self.speaker.as_ref().map(LccpNode::refused).unwrap_or_default();
        if unheard != self.unheard && !unheard.is_empty() {
            let counts: Vec<String> = unheard.iter().map(|(why, count)| format!("{count} {why}")).collect();
            tracing::warn!("control messages were refused since the start: {}", counts.join(", "));
        }
        self.unheard = unheard;
    }

    /// Leaves the host as it was found.
    async fn leave(self, keep: bool) -> Result<(), AgentError> {
        program::notify(NotifyState::Stopping);
        // First: clients are sent elsewhere before anything changes here.
        self.memberships.end(keep).await;
        let network = network::read().await?;
        Ok(self.host_state.leave(keep, &network).await?)
    }
}

/// Takes the place of whoever made this host a server before, with the record of what was done.
fn take_over(
    directory: &Path,
    config_path: &Path,
    identity: AgentIdentity,
) -> Result<(StateFile, Lock), AgentError> {
    let mut lock = Lock::try_take(&state::lock_path(directory)).map_err(AgentError::not_alone)?;
    match lock.claim(Role::Agent) {
        // an agent that takes nothing over may lack the capability, and then has its folder's lock
        // alone
        Err(LockError::Unclaimed(error)) if error.kind() == io::ErrorKind::PermissionDenied => {}
        claimed => claimed.map_err(AgentError::not_alone)?,
    }
    let mut state = StateFile::load(directory).map_err(PlaceError::State)?;
    state.done.identity = identity;
    state.done.config = config_path.canonicalize().unwrap_or_else(|_| config_path.to_owned());
    state.store().map_err(PlaceError::State)?;
    Ok((state, lock))
}

/// The last problem, which is reported once.
#[derive(Default)]
struct LastProblem(Option<String>);

impl LastProblem {
    fn log_once(&mut self, trouble: Option<String>) {
        if let Some(error) = trouble.as_ref().filter(|_| trouble != self.0) {
            tracing::error!("{error}; it is tried again");
        }
        self.0 = trouble;
    }
}

/// The farm's secret, where connections are handed over.
pub(crate) fn secret_of(config: &Config) -> Result<Option<Secret>, AgentError> {
    let file = config.farm.secret_file.as_ref().filter(|_| config.hands_over());
    Ok(file.map(|file| secret::read(file)).transpose()?)
}

async fn what_to_do(
    config: &Config,
    identity: &AgentIdentity,
    hook: Option<Hook>,
    network: &Network,
) -> Result<DesiredState, String> {
    let roles = desired::roles(config, identity, network)?;
    desired::desired(
        &roles,
        &config.tunnel_sources().into_iter().collect::<Vec<_>>(),
        network,
        &place::host(hook).await,
    )
}

/// The network as it is now, or else as it was known.
async fn network_now(known: Network) -> Network {
    network::read().await.unwrap_or(known)
}

fn counters(host_state: &HostState) -> BTreeMap<Reason, u64> {
    let counters = host_state.server.as_ref().map(|server| server.counters());
    match counters {
        Some(Ok(counters)) => counters,
        Some(Err(error)) => {
            tracing::debug!(%error, "no counters");
            BTreeMap::new()
        }
        None => BTreeMap::new(),
    }
}
