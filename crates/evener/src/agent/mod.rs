//! `evener agent`: sets up a server for its services.
//! The agent finds its services in the file, places their addresses as the method requires, and
//! decapsulates tunnels. When it stops, it removes its setup.
//!
//! All hosts share one file. Each host finds itself in the file by its addresses.

mod desired;
pub mod doctor;
mod firewall;
pub mod leave;
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
use crate::runtime::log::{self, LastProblem};
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

/// Delay between a change of the network and the reaction, since changes come in bursts.
const SETTLE: Duration = Duration::from_millis(200);
/// Interval of checks. The kernel doesn't notify of changed settings, programs and pins.
const LOOK: Duration = Duration::from_secs(3);
/// Interval at which the cookie keys are set by the time of day. The keys change once a minute.
const RENEWAL: Duration = Duration::from_secs(2);

/// Error of the agent's start or end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error("{}", .0.render(has_colour(&io::stderr())))]
    Config(Problems),
    /// The file has no service for this host.
    #[error("{0}")]
    Role(String),
    #[error("another evener agent (pid {0}) already runs in this network namespace; stop it first")]
    Running(String),
    /// Another process holds the lock or the host's claim.
    #[error(transparent)]
    Lock(LockError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The secret for handoffs is missing.
    #[error(transparent)]
    Secret(#[from] secret::SecretFileError),
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

    /// Returns the exit status, as documented by `evener --help`.
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

/// Runs the agent until it is stopped, or shows the state of a running one.
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

/// A file, and the desired state that follows from it.
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

struct Agent {
    config_path: PathBuf,
    config: Config,
    identity: AgentIdentity,
    hook: Option<Hook>,
    host_state: HostState,
    network_changes: mpsc::Receiver<()>,
    trouble: LastProblem,
    counted: BTreeMap<Reason, u64>,
    /// Measures and reports this server's load.
    exporter: LoadExporter,
    /// Groups that this host joins.
    memberships: Memberships,
    /// LCCP node for messages to and from directors, if there are handoff services.
    lccp_node: Option<LccpNode>,
    /// Number of refused messages, by reason.
    refused: BTreeMap<String, u64>,
    /// Last, since dropping it removes the folder if it is empty.
    _lock: Lock,
}

impl Agent {
    /// Applies the desired state. An error undoes earlier steps.
    async fn start(
        config_path: &Path,
        identity: AgentIdentity,
        hook: Option<Hook>,
    ) -> Result<Agent, AgentError> {
        let config = config::load(config_path).map_err(AgentError::Config)?;
        // If the secret is missing, nothing is started or recorded.
        let plan = AgentPlan::new(config, &identity, hook).await?;
        let AgentPlan { config, network, desired, secret, keys } = plan;
        let directory = folders::make_directory()?;
        let (state, lock) = take_over(&directory, config_path, identity.clone())?;
        let adopted = state.done.has_changes();
        let network_changes = network::watch().await?;
        let mut host_state = HostState::open(state)?;
        host_state.secret = secret;
        host_state.cookie_epoch_ms = config.farm.cookie_epoch_ms;
        if let Err(error) = host_state.apply(&desired, &network).await {
            // A setup that was found at the start stays as it is.
            if let Err(left) = host_state.leave(adopted, &network_now(network).await).await {
                tracing::warn!(error = %left, "failed to restore this host's settings; run `evener doctor`");
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
            lccp_node: None,
            refused: BTreeMap::new(),
            _lock: lock,
        };
        agent.start_node(&network);
        Ok(agent)
    }

    /// Starts the LCCP node, or replaces it if the secret has changed.
    fn start_node(&mut self, network: &Network) {
        let secret = self.host_state.secret.as_ref();
        self.lccp_node =
            self.lccp_node.take().filter(|lccp_node| secret.is_some_and(|secret| lccp_node.has(secret)));
        if let (None, Some(secret)) = (&self.lccp_node, secret) {
            let lccp_node = LccpNode::start(secret.clone(), NodeRole::Server, network, None);
            self.lccp_node =
                lccp_node.map_err(|error| tracing::error!(%error, "failed to get random numbers")).ok();
        }
        if let Some(lccp_node) = &self.lccp_node {
            lccp_node.follow(&self.config, network);
            if let Some(connections) = self.host_state.connections() {
                lccp_node.look_at(connections);
            }
        }
    }

    /// Runs the loop. Returns at SIGTERM, SIGINT or SIGQUIT.
    async fn serve(&mut self) -> SignalAction {
        let mut signals = match ProcessSignals::new() {
            Ok(signals) => signals,
            Err(error) => {
                tracing::error!(%error, "failed to wait for signals");
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
        let done = self.host_state.apply(&desired, &network).await;
        self.start_node(&network);
        done.map_err(|error| format!("{error}; all other changes were made; retrying"))
    }

    async fn read_again(&self) -> Result<AgentPlan, String> {
        let (path, name) = (self.config_path.clone(), self.config_path.display().to_string());
        let read = reader::within(reader::TIMEOUT, &name, move || config::load_again(&path)).await??;
        let plan = AgentPlan::new(read.config, &self.identity, self.hook).await;
        plan.map_err(|error| error.to_string())
    }

    /// Applies the desired state again, since interfaces and their settings may have changed.
    async fn refresh(&mut self) {
        let trouble = self.try_look().await.err();
        self.trouble.log_once(trouble);
        self.report();
    }

    async fn try_look(&mut self) -> Result<(), String> {
        let network = network::read().await.map_err(|error| error.to_string())?;
        // Roles are computed from the current network. A temporarily missing address is an error,
        // so the setup stays.
        let desired = what_to_do(&self.config, &self.identity, self.hook, &network).await?;
        self.start_node(&network);
        self.host_state.apply(&desired, &network).await.map_err(|error| error.to_string())
    }

    /// Logs which packets and messages were refused since the last call.
    fn report(&mut self) {
        let counted = counters(&self.host_state);
        let since = |(reason, count): (&Reason, &u64)| {
            let new = count.saturating_sub(self.counted.get(reason).copied().unwrap_or_default());
            (reason.is_refusal() && new > 0).then(|| format!("{new} {}", reason.name()))
        };
        let refused: Vec<String> = counted.iter().filter_map(since).collect();
        if !refused.is_empty() {
            tracing::warn!("packets were dropped: {}", refused.join(", "));
        }
        self.counted = counted;
        let refused = self.lccp_node.as_ref().map(LccpNode::refused).unwrap_or_default();
        if refused != self.refused && !refused.is_empty() {
            let counts: Vec<String> = refused.iter().map(|(why, count)| format!("{count} {why}")).collect();
            tracing::warn!("control messages were refused since the start: {}", counts.join(", "));
        }
        self.refused = refused;
    }

    async fn leave(self, keep: bool) -> Result<(), AgentError> {
        program::notify(NotifyState::Stopping);
        // Leaves the groups first, so that clients are redirected to other members before this host
        // changes.
        self.memberships.end(keep).await;
        let network = network::read().await?;
        Ok(self.host_state.leave(keep, &network).await?)
    }
}

/// Takes over from a previous agent, with its record.
fn take_over(
    directory: &Path,
    config_path: &Path,
    identity: AgentIdentity,
) -> Result<(StateFile, Lock), AgentError> {
    let mut lock = Lock::try_take(&folders::agent_lock_path(directory)).map_err(AgentError::not_alone)?;
    match lock.claim(Role::Agent) {
        // An agent that adopts nothing may lack CAP_NET_RAW. Such an agent only holds its folder's
        // lock.
        Err(LockError::Unclaimed(error)) if error.kind() == io::ErrorKind::PermissionDenied => {}
        claimed => claimed.map_err(AgentError::not_alone)?,
    }
    let mut state = StateFile::load(directory).map_err(PlaceError::State)?;
    state.done.identity = identity;
    state.done.config = config_path.canonicalize().unwrap_or_else(|_| config_path.to_owned());
    state.store().map_err(PlaceError::State)?;
    Ok((state, lock))
}

/// Reads the farm's secret, if there are handoff services.
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

/// Returns the current network, or `known` if the network can't be read.
async fn network_now(known: Network) -> Network {
    network::read().await.unwrap_or(known)
}

fn counters(host_state: &HostState) -> BTreeMap<Reason, u64> {
    let counters = host_state.server.as_ref().map(|server| server.counters());
    match counters {
        Some(Ok(counters)) => counters,
        Some(Err(error)) => {
            tracing::debug!(%error, "failed to read the counters");
            BTreeMap::new()
        }
        None => BTreeMap::new(),
    }
}
