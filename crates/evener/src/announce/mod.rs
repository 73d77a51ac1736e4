//! `evener announce`: keeps a host route for each ready service address with `announce = "route"`.
//! A routing daemon, such as BIRD or FRR, announces the routes (docs/operating/bird.md).
//!
//! The announcer is a program of its own, so that the routes follow the readiness even if the
//! daemon is dead. It reads the daemon's record of readiness, and never asks the daemon. Its
//! protocol number is its own: any other route with that number is removed.

mod level;
mod routes;
mod show;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use evener_dataplane::now_ns;
use sd_notify::NotifyState;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::cli::AnnounceArgs;
use crate::config::AnnounceConfig;
use crate::io::network::{self, NetworkError};
use crate::ready::{self, InputError, ReadinessInput, RoutedAddresses, RoutedState};
use crate::runtime::folder_watch::FolderWatch;
use crate::runtime::lock::{Lock, LockError};
use crate::runtime::log::{self, LastProblem};
use crate::runtime::program::{self, HostError};
use crate::runtime::signals::{ProcessSignals, SignalAction};
use crate::runtime::{Exit, folders};
use level::{AddressLevels, Level, LevelChange};
use routes::{HostRoute, RouteTables};
use state::{AnnouncedAddress, AnnouncedState};

/// Maximum time between two looks. Nothing notifies of a daemon that hangs, or of lost programs.
const LOOK_MS: u64 = 1_000;
/// Minimum time between two repairs of what others have changed, so that two programs that don't
/// agree don't flood the routers.
const REPAIR_MS: u64 = 1_000;
/// Time for which the last readiness counts if it can't be read.
const PATIENCE_MS: u64 = 5_000;
/// Time after which a look counts as stuck. The service manager starts the program again.
const STUCK: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum AnnounceError {
    #[error("another evener announce (pid {0}) already runs in this network namespace; stop it first")]
    Running(String),
    #[error(transparent)]
    Lock(LockError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("the kernel has not answered for {} s", STUCK.as_secs())]
    Stuck,
    /// Routes that stay behind.
    #[error(
        "failed to remove routes: {0}; `ip -4 route flush` and `ip -6 route flush` with table {1} proto {2} remove them"
    )]
    Left(String, u32, u8),
}

impl AnnounceError {
    fn not_alone(error: LockError) -> AnnounceError {
        match error {
            LockError::Held { pid } => AnnounceError::Running(pid),
            other => AnnounceError::Lock(other),
        }
    }

    fn exit(&self) -> Exit {
        match self {
            AnnounceError::Running(_) => Exit::Running,
            AnnounceError::Lock(error) => error.exit(),
            AnnounceError::Host(error) => error.exit(),
            AnnounceError::Network(_) | AnnounceError::Stuck | AnnounceError::Left(..) => Exit::Environment,
        }
    }
}

/// Keeps the routes until it is stopped, or shows the state of the announcer.
pub fn run(args: &AnnounceArgs) -> Exit {
    if args.status {
        return show::run(args.json);
    }
    log::start();
    program::run("the announcer", Builder::new_current_thread(), AnnounceError::exit, async {
        let mut announcer = Announcer::start().await?;
        let end = announcer.serve().await?;
        match args.keep && end != SignalAction::Dismantle {
            true => Ok(()),
            false => announcer.withdraw().await,
        }
    })
}

/// Returns the state of the announcer that runs in this network namespace.
pub(crate) fn state() -> io::Result<Option<AnnouncedState>> {
    let directory = folders::directory()?;
    match Lock::is_held(&folders::announcer_lock_path(&directory)) {
        true => state::read(&directory),
        false => Ok(None),
    }
}

/// Removes the routes that an announcer has left behind. Returns false if there are none, or if an
/// announcer runs.
///
/// # Errors
/// A sentence, if routes stay behind.
pub fn withdraw_left() -> Result<bool, String> {
    let directory = folders::directory().map_err(|error| error.to_string())?;
    if !matches!(state::read(&directory), Ok(Some(_)))
        || Lock::is_held(&folders::announcer_lock_path(&directory))
    {
        return Ok(false);
    }
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let withdrawn = runtime.block_on(async { Announcer::start().await?.withdraw().await });
    withdrawn.map(|()| true).map_err(|error| error.to_string())
}

struct Announcer {
    directory: PathBuf,
    levels: AddressLevels,
    /// Time, settings and states of the newest readable record.
    last: Option<(u64, AnnounceConfig, BTreeMap<IpAddr, RoutedState>)>,
    /// Routes that this program has added or taken over. `None` before the first look.
    own: Option<BTreeSet<HostRoute>>,
    /// Known routes of other programs to the same addresses.
    foreign: BTreeSet<HostRoute>,
    repaired_ms: Option<u64>,
    problem: LastProblem,
    /// Tables and protocol numbers of earlier settings, whose routes are to be removed.
    former: BTreeSet<(u32, u8)>,
    /// State in the file.
    written: AnnouncedState,
    record_watch: FolderWatch,
    network_changes: mpsc::Receiver<()>,
    /// Last, since dropping it removes the folder if it is empty.
    _lock: Lock,
}

impl Announcer {
    async fn start() -> Result<Announcer, AnnounceError> {
        let directory = folders::make_directory()?;
        let lock =
            Lock::acquire(&folders::announcer_lock_path(&directory)).map_err(AnnounceError::not_alone)?;
        let written = state::read(&directory).unwrap_or_else(|error| {
            tracing::warn!(%error, "the last announcer's state can't be read, so routes in a former table may stay");
            None
        });
        let written = written.unwrap_or_default();
        let known = written.addresses.iter().map(|one| (one.address, one.state)).collect();
        Ok(Announcer {
            levels: AddressLevels::after(known),
            last: None,
            own: None,
            foreign: BTreeSet::new(),
            repaired_ms: None,
            problem: LastProblem::default(),
            former: written.former.clone(),
            written,
            record_watch: FolderWatch::begin(&directory)
                .map_err(HostError::of("failed to watch for changes of the daemon's record"))?,
            network_changes: network::watch().await?,
            directory,
            _lock: lock,
        })
    }

    /// Follows the readiness until a signal ends it.
    async fn serve(&mut self) -> Result<SignalAction, AnnounceError> {
        let mut signals = ProcessSignals::new().map_err(HostError::of("failed to wait for signals"))?;
        let record = ready::path(&self.directory);
        let record = record.file_name().unwrap_or(OsStr::new(""));
        let mut wait_ms = self.look().await?;
        eprintln!("evener: ready");
        program::notify(NotifyState::Ready);
        loop {
            tokio::select! {
                action = signals.next() => match action {
                    SignalAction::Reload | SignalAction::Reopen => continue,
                    end => return Ok(end),
                },
                () = self.record_watch.changed(record) => {}
                Some(()) = self.network_changes.recv() => {}
                () = sleep(Duration::from_millis(wait_ms)) => {}
            }
            wait_ms = self.look().await?;
            program::notify(NotifyState::Watchdog);
        }
    }

    /// Follows the readiness and the kernel's routes once. Returns the time until the next look.
    async fn look(&mut self) -> Result<u64, AnnounceError> {
        let now_ms = now_ns() / 1_000_000;
        let looked = async {
            let readiness = ReadinessInput::at(&self.directory).await.routed();
            let Some((settings, states)) = self.follow(now_ms, readiness) else { return LOOK_MS };
            let looked = self.reconcile(now_ms, &settings, &states).await;
            let repair_ms = looked.as_ref().copied().unwrap_or_default();
            let problem = looked.err();
            self.write(&settings, problem.clone());
            self.problem.log_once(problem);
            let due_ms = repair_ms.into_iter().chain(self.levels.due_ms(settings.hold_ms)).min();
            due_ms.map_or(LOOK_MS, |due_ms| due_ms.saturating_sub(now_ms).clamp(1, LOOK_MS))
        };
        timeout(STUCK, looked).await.map_err(|_| AnnounceError::Stuck)
    }

    /// Returns the settings and the states of all addresses. Without a record, the known addresses
    /// aren't ready. If the record or the host's state can't be read, the last states count for a
    /// while.
    fn follow(&mut self, now_ms: u64, readiness: Result<RoutedAddresses, InputError>) -> RoutedAddresses {
        match readiness {
            Ok(Some((settings, states))) => {
                self.last = Some((now_ms, settings, states.clone()));
                Some((settings, states))
            }
            Ok(None) => Some((self.written.settings?, BTreeMap::new())),
            Err(InputError { is_missing, reason }) => {
                let recent = self.last.as_ref().filter(|(at_ms, ..)| now_ms < at_ms + PATIENCE_MS);
                if let Some((_, settings, states)) = recent.filter(|_| !is_missing) {
                    return Some((*settings, states.clone()));
                }
                let known =
                    self.levels.addresses.keys().chain(self.written.addresses.iter().map(|one| &one.address));
                let states = known.map(|address| (*address, RoutedState::NotReady(reason.clone())));
                Some((self.written.settings?, states.collect()))
            }
        }
    }

    /// Gives the kernel the routes that the addresses should have. Returns when the next repair may
    /// be, if one must wait.
    async fn reconcile(
        &mut self,
        now_ms: u64,
        settings: &AnnounceConfig,
        states: &BTreeMap<IpAddr, RoutedState>,
    ) -> Result<Option<u64>, String> {
        self.note_former(settings);
        let tables =
            RouteTables::connect().map_err(|error| format!("failed to reach the kernel: {error}"))?;
        let (present, foreign) = self.present(&tables, settings).await?;
        let changes = self.levels.step(now_ms, states, settings, &present);
        self.log_foreign(foreign);
        let wanted = self.levels.routes(settings);
        let mut own = self.own.get_or_insert_with(|| present.clone()).clone();
        let deleted: BTreeSet<HostRoute> =
            own.iter().filter(|route| wanted.contains(route) && !present.contains(route)).copied().collect();
        let added: BTreeSet<HostRoute> =
            present.difference(&own).filter(|route| !wanted.contains(route)).copied().collect();
        let may_repair_ms = self.repaired_ms.map_or(0, |repaired_ms| repaired_ms + REPAIR_MS);
        let is_disturbed = !(deleted.is_empty() && added.is_empty());
        let waits = is_disturbed && now_ms < may_repair_ms;
        if is_disturbed && !waits {
            self.repaired_ms = Some(now_ms);
            deleted
                .iter()
                .for_each(|route| tracing::warn!("{route} was deleted by somebody, and is restored"));
            added.iter().for_each(|route| tracing::warn!("{route} was added by somebody, and is removed"));
        }
        let later = |route: &&HostRoute| waits && (deleted.contains(route) || added.contains(route));
        let missing: Vec<HostRoute> =
            wanted.difference(&present).filter(|route| !later(route)).copied().collect();
        let extra: Vec<HostRoute> =
            present.difference(&wanted).filter(|route| !later(route)).copied().collect();
        // The next announcer must know the new levels, and the tables that still have routes.
        self.write(settings, self.written.problem.clone());
        let result = change(&tables, &mut own, &missing, &extra).await;
        changes.iter().for_each(|change| log_change(change, settings));
        own.retain(|route| wanted.contains(route));
        self.own = Some(own);
        result?;
        self.former.clear();
        Ok(waits.then_some(may_repair_ms))
    }

    /// Notes the table and protocol of earlier settings, whose routes are to be removed.
    fn note_former(&mut self, settings: &AnnounceConfig) {
        let newest = (settings.table, settings.protocol);
        let last = self.written.settings.map(|last| (last.table, last.protocol));
        self.former.extend(last);
        self.former.remove(&newest);
    }

    /// Returns Evener's routes, and other programs' routes to the same addresses.
    async fn present(
        &self,
        tables: &RouteTables,
        settings: &AnnounceConfig,
    ) -> Result<(BTreeSet<HostRoute>, BTreeSet<HostRoute>), String> {
        let newest = (settings.table, settings.protocol);
        let numbers: BTreeSet<(u32, u8)> = self.former.iter().copied().chain([newest]).collect();
        let mut routes = BTreeSet::new();
        for table in numbers.iter().map(|(table, _)| *table).collect::<BTreeSet<u32>>() {
            let read = tables.read(table).await;
            routes.extend(read.map_err(|error| {
                format!("failed to read routing table {table}: {}", routes::sentence(&error))
            })?);
        }
        let is_own =
            |route: &HostRoute| route.is_blackhole && numbers.contains(&(route.table, route.protocol));
        let (own, mut foreign): (BTreeSet<_>, BTreeSet<_>) = routes.into_iter().partition(is_own);
        foreign.retain(|route| route.table == newest.0 && self.levels.addresses.contains_key(&route.address));
        Ok((own, foreign))
    }

    fn log_foreign(&mut self, foreign: BTreeSet<HostRoute>) {
        for route in foreign.difference(&self.foreign) {
            tracing::warn!(
                "{route} is another program's route to a service address, and stays when Evener's is withdrawn"
            );
        }
        self.foreign = foreign;
    }

    /// Writes the state if it has changed.
    fn write(&mut self, settings: &AnnounceConfig, problem: Option<String>) {
        let own = self.own.iter().flatten();
        let in_kernel: BTreeSet<(IpAddr, u32)> = own.map(|route| (route.address, route.metric)).collect();
        let addresses = self.levels.addresses.iter().map(|(address, one)| AnnouncedAddress {
            address: *address,
            state: one.level,
            metric: one.level.metric(settings).filter(|metric| in_kernel.contains(&(*address, *metric))),
            reason: one.reason.clone(),
        });
        let state = AnnouncedState {
            settings: Some(*settings),
            former: self.former.clone(),
            problem,
            addresses: addresses.collect(),
        };
        match state::write_changed(&self.directory, &self.written, &state) {
            Ok(()) => self.written = state,
            Err(error) => tracing::warn!(%error, "failed to write the announcer's state"),
        }
    }

    /// Removes all routes.
    async fn withdraw(&mut self) -> Result<(), AnnounceError> {
        let Some(settings) = self.written.settings else { return Ok(()) };
        let removed = async {
            let tables = RouteTables::connect().map_err(|error| error.to_string())?;
            let (present, _) = self.present(&tables, &settings).await?;
            let present: Vec<HostRoute> = present.into_iter().collect();
            change(&tables, &mut BTreeSet::new(), &[], &present).await
        };
        removed.await.map_err(|error| AnnounceError::Left(error, settings.table, settings.protocol))?;
        state::remove(&self.directory);
        Ok(())
    }
}

/// Logs a changed level.
fn log_change(change: &LevelChange, settings: &AnnounceConfig) {
    let LevelChange { address, to, reason } = change;
    match to {
        Level::Announced => tracing::info!("{address} is announced, with metric {}", settings.metric),
        Level::Raised => tracing::warn!("{address} has metric {} now: {reason}", settings.raised_metric),
        Level::Withdrawn => tracing::warn!("{address} is withdrawn: {reason}"),
    }
}

fn failure(what: &str, route: &HostRoute, error: &rtnetlink::Error) -> String {
    format!("failed to {what} {route}: {}", routes::sentence(error))
}

/// Adds and deletes routes. New routes come first, since routers withdraw an address that has none
/// for a moment; but a route that excludes a new one, as after a change of the protocol, goes
/// before.
async fn change(
    tables: &RouteTables,
    own: &mut BTreeSet<HostRoute>,
    missing: &[HostRoute],
    extra: &[HostRoute],
) -> Result<(), String> {
    let mut failures = Vec::new();
    let (obstructing, rest): (Vec<&HostRoute>, Vec<&HostRoute>) =
        extra.iter().partition(|route| missing.iter().any(|new| new.excludes(route)));
    for route in obstructing {
        let deleted = tables.delete(route).await;
        failures.extend(deleted.err().map(|error| failure("delete", route, &error)));
    }
    for route in missing {
        match tables.add(route).await {
            Ok(()) => drop(own.insert(*route)),
            Err(error) => failures.push(failure("add", route, &error)),
        }
    }
    for route in rest {
        let deleted = tables.delete(route).await;
        failures.extend(deleted.err().map(|error| failure("delete", route, &error)));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}
