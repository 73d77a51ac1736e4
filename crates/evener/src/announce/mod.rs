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
use tokio::time::sleep;

use crate::cli::AnnounceArgs;
use crate::config::AnnounceConfig;
use crate::io::network::{self, NetworkError};
use crate::ready::{self, ReadinessInput, RoutedAddresses, RoutedState};
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
/// Minimum time between two restorations of deleted routes, so that two programs that don't agree
/// don't flood the routers.
const RESTORE_MS: u64 = 1_000;

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
    /// Routes that stay behind.
    #[error("failed to remove routes: {0}; `ip route flush table {1} proto {2}` removes them")]
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
            AnnounceError::Network(_) | AnnounceError::Left(..) => Exit::Environment,
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

struct Announcer {
    directory: PathBuf,
    tables: RouteTables,
    levels: AddressLevels,
    /// Settings of the newest readable record, or of the last announcer.
    settings: Option<AnnounceConfig>,
    /// Table and protocol of an earlier configuration, whose routes are to be removed.
    former: Option<(u32, u8)>,
    /// Routes that this program has added or taken over. `None` before the first look.
    own: Option<BTreeSet<HostRoute>>,
    /// Known routes of other programs to the same addresses.
    foreign: BTreeSet<HostRoute>,
    restored_ms: Option<u64>,
    problem: LastProblem,
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
        let settings = written.as_ref().and_then(|state| state.settings);
        Ok(Announcer {
            tables: RouteTables::connect().map_err(NetworkError::Socket)?,
            levels: AddressLevels::default(),
            settings,
            former: None,
            own: None,
            foreign: BTreeSet::new(),
            restored_ms: None,
            problem: LastProblem::default(),
            written: written.unwrap_or_default(),
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
        let mut wait_ms = self.look().await;
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
            wait_ms = self.look().await;
        }
    }

    /// Follows the readiness and the kernel's routes once. Returns the time until the next look.
    async fn look(&mut self) -> u64 {
        let now_ms = now_ns() / 1_000_000;
        let readiness = ReadinessInput::at(&self.directory).await.routed();
        let Some((settings, states)) = self.follow(readiness) else { return LOOK_MS };
        let looked = self.reconcile(now_ms, &settings, &states).await;
        let due_ms = looked.as_ref().copied().unwrap_or_default();
        let problem = looked.err();
        self.write(&settings, problem.clone());
        self.problem.log_once(problem);
        let level_due_ms = self.levels.due_ms(settings.hold_ms);
        let due_ms = due_ms.into_iter().chain(level_due_ms).min();
        due_ms.map_or(LOOK_MS, |due_ms| due_ms.saturating_sub(now_ms).clamp(1, LOOK_MS))
    }

    /// Returns the settings and the states of all addresses. Without a readable record, the known
    /// addresses aren't ready.
    fn follow(&mut self, readiness: Result<RoutedAddresses, String>) -> RoutedAddresses {
        match readiness {
            Ok(None) => Some((self.settings?, BTreeMap::new())),
            Ok(Some((settings, states))) => {
                let newest = (settings.table, settings.protocol);
                let last = self.settings.replace(settings).map(|last| (last.table, last.protocol));
                self.former = self.former.or(last.filter(|last| *last != newest));
                Some((settings, states))
            }
            Err(reason) => {
                let settings = self.settings?;
                let known =
                    self.levels.addresses.keys().chain(self.written.addresses.iter().map(|one| &one.address));
                let states = known.map(|address| (*address, RoutedState::NotReady(reason.clone())));
                Some((settings, states.collect()))
            }
        }
    }

    /// Gives the kernel the routes that the addresses should have. Returns when deleted routes may
    /// be restored, if that must wait.
    async fn reconcile(
        &mut self,
        now_ms: u64,
        settings: &AnnounceConfig,
        states: &BTreeMap<IpAddr, RoutedState>,
    ) -> Result<Option<u64>, String> {
        let (present, foreign) = self.present(settings).await?;
        for change in self.levels.step(now_ms, states, settings, &present) {
            log_change(&change, settings);
        }
        self.log_foreign(foreign);
        let wanted = self.levels.routes(settings);
        let mut own = self.own.take().unwrap_or_else(|| present.clone());
        let strange = present.difference(&own).filter(|route| !wanted.contains(route));
        strange.for_each(|route| tracing::warn!("{route} was added by somebody, and is removed"));
        let deleted: BTreeSet<HostRoute> =
            own.iter().filter(|route| wanted.contains(route) && !present.contains(route)).copied().collect();
        let may_restore_ms = self.restored_ms.map_or(0, |restored_ms| restored_ms + RESTORE_MS);
        let waits = !deleted.is_empty() && now_ms < may_restore_ms;
        if !deleted.is_empty() && !waits {
            self.restored_ms = Some(now_ms);
            deleted
                .iter()
                .for_each(|route| tracing::warn!("{route} was deleted by somebody, and is restored"));
        }
        let missing: Vec<HostRoute> =
            wanted.difference(&present).filter(|route| !waits || !deleted.contains(route)).copied().collect();
        let extra: Vec<HostRoute> = present.difference(&wanted).copied().collect();
        let result = self.change(&mut own, &missing, &extra).await;
        own.retain(|route| wanted.contains(route));
        self.own = Some(own);
        result?;
        self.former = None;
        Ok(waits.then_some(may_restore_ms))
    }

    /// Adds and deletes routes. An address never lacks a route in between: routers would withdraw
    /// it.
    async fn change(
        &self,
        own: &mut BTreeSet<HostRoute>,
        missing: &[HostRoute],
        extra: &[HostRoute],
    ) -> Result<(), String> {
        let mut failures = Vec::new();
        let (obstructing, rest): (Vec<&HostRoute>, Vec<&HostRoute>) =
            extra.iter().partition(|route| missing.iter().any(|new| new.excludes(route)));
        for route in obstructing {
            let deleted = self.tables.delete(route).await;
            failures.extend(deleted.err().map(|error| failure("delete", route, &error)));
        }
        for route in missing {
            match self.tables.add(route).await {
                Ok(()) => drop(own.insert(*route)),
                Err(error) => failures.push(failure("add", route, &error)),
            }
        }
        for route in rest {
            let deleted = self.tables.delete(route).await;
            failures.extend(deleted.err().map(|error| failure("delete", route, &error)));
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }

    /// Returns Evener's routes, and other programs' routes to the same addresses.
    async fn present(
        &self,
        settings: &AnnounceConfig,
    ) -> Result<(BTreeSet<HostRoute>, BTreeSet<HostRoute>), String> {
        let newest = (settings.table, settings.protocol);
        let numbers = [Some(newest), self.former];
        let tables: BTreeSet<u32> = numbers.iter().flatten().map(|(table, _)| *table).collect();
        let mut routes = BTreeSet::new();
        for table in tables {
            let read = self.tables.read(table).await;
            routes.extend(read.map_err(|error| {
                format!("failed to read routing table {table}: {}", routes::sentence(&error))
            })?);
        }
        let is_own =
            |route: &HostRoute| route.is_blackhole && numbers.contains(&Some((route.table, route.protocol)));
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
        let addresses = self.levels.addresses.iter().map(|(address, one)| AnnouncedAddress {
            address: *address,
            state: one.level,
            metric: one.level.metric(settings),
            reason: one.reason.clone(),
        });
        let state = AnnouncedState { settings: Some(*settings), problem, addresses: addresses.collect() };
        if state == self.written {
            return;
        }
        match state::write(&self.directory, &state) {
            Ok(()) => self.written = state,
            Err(error) => tracing::debug!(%error, "failed to write the announcer's state"),
        }
    }

    /// Removes all routes.
    async fn withdraw(&mut self) -> Result<(), AnnounceError> {
        let Some(settings) = self.settings else { return Ok(()) };
        let removed = async {
            let (present, _) = self.present(&settings).await?;
            let present: Vec<HostRoute> = present.into_iter().collect();
            self.change(&mut BTreeSet::new(), &[], &present).await
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
