//! The daemon: one loop that handles neighbours, probes, signals and requests, and keeps the engine
//! up to date.

mod change;
mod changing;
mod conflicts;
mod directors;
mod draining;
mod engine;
mod executor;
mod former_drains;
mod group_files;
mod groups;
mod handoff;
pub(crate) mod hosts;
mod inbox;
mod installed;
mod interfaces;
mod names;
mod prepare;
mod publisher;
mod readiness;
mod reading;
mod rehandoff;
mod reload_reply;
mod replication;
mod restore;
mod ring_key;
mod session_walk;
mod start;
mod totals;
mod trace_control;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evener_core::director::{Input, Moment};
use evener_dataplane::heap;
use sd_notify::NotifyState;
use tokio::runtime::Builder;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};

use readiness::ReadinessRecord;
use replication::JoiningState;

use crate::agent::local_server::LocalServer;
use crate::board::request::ControlRequest;
use crate::cli;
use crate::events::readers::Readers;
use crate::events::{Bus, DaemonEvent, log as event_log};
use crate::io::network;
use crate::runtime::Exit;
use crate::runtime::day::second_of_day;
use crate::runtime::lock::Lock;
use crate::runtime::signals::{ProcessSignals, SignalAction};
use crate::runtime::{log, program};
use change::ChangeControl;
use directors::DirectorTalk;
use executor::Executor;
use inbox::{Inbox, Message};
use prepare::StartupSettings;
use start::StartError;

/// Interval between two portions of the sweep through the session tables.
const SWEEP: Duration = Duration::from_secs(1);
/// Interval of checks of the parts that this daemon set up in the kernel. A firewall's reload may
/// have removed them.
const RESTORE: Duration = Duration::from_millis(500);
/// Interval of checks of this host as a server. These checks take longer.
const RESTORE_SERVER: Duration = Duration::from_secs(3);
/// Delay between a change of the network and reading it, since changes come in bursts.
const SETTLE: Duration = Duration::from_millis(200);
/// Interval at which the network is read even without a notified change.
const REREAD: Duration = Duration::from_secs(10);
/// Engine that receives copies of frames.
const PACKET_ENGINE: &str = "packet";
/// Engine of a daemon whose services forward no packets.
const IDLE_ENGINE: &str = "none";
/// Time for other hosts to become owners of the addresses of a host that leaves.
const HANDOVER: Duration = Duration::from_millis(1_500);
/// Help for keys that a reload can't change.
const RESTART: &str = "restart the daemon for that (`evener run --keep` leaves traffic flowing meanwhile)";
/// Capacity of the queue of requests.
const REQUESTS: usize = 64;

/// Runs the daemon until it is stopped.
pub fn run(args: &cli::RunArgs) -> Exit {
    log::start();
    let readers = Readers::new(Bus::default());
    if let Err(error) = readers.spawn("log", event_log::take) {
        log::error(format_args!("the log's thread can't be started: {error}"));
        return Exit::Failed;
    }
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(2);
    program::run("the control plane's threads", runtime, StartError::exit, async move {
        let mut daemon = start::start(&args.config, &readers).await?;
        let end = daemon.serve().await;
        if end == SignalAction::Dismantle {
            daemon.executor.groups.forget();
        }
        daemon.leave(args.keep && end != SignalAction::Dismantle).await
    })
}

/// Returns the monotonic clock in milliseconds.
fn now_ms() -> u64 {
    evener_dataplane::now_ns() / 1_000_000
}

/// Reads all clocks together.
fn clocks() -> Moment {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment {
        ms: now_ms(),
        unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
        second_of_day: second_of_day(),
        lease_holds: false,
    }
}

struct Daemon {
    executor: Executor,
    config_path: PathBuf,
    directory: PathBuf,
    /// Settings that are read only at the start, with their values at the start.
    fixed: StartupSettings,
    inbox: Inbox,
    /// This host as a server, in an every-host farm.
    local_server: Option<LocalServer>,
    changes: ChangeControl,
    readiness: ReadinessRecord,
    directors: DirectorTalk,
    joining: JoiningState,
    _lock: Lock,
}

impl Daemon {
    /// Runs the loop. Returns at SIGTERM, SIGINT or SIGQUIT.
    async fn serve(&mut self) -> SignalAction {
        let mut signals = match ProcessSignals::new() {
            Ok(signals) => signals,
            Err(error) => {
                tracing::error!(%error, "failed to wait for signals");
                return SignalAction::Stop;
            }
        };
        let [mut sweep, mut restore, mut restore_server] = [SWEEP, RESTORE, RESTORE_SERVER].map(interval);
        restore.set_missed_tick_behavior(MissedTickBehavior::Delay);
        restore_server.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut reread, mut fit) = (Instant::now() + REREAD, Instant::now());
        loop {
            self.print_ready();
            let joining = self.joining.obstacle(self.directors.known());
            self.readiness.follow(&self.executor, joining.as_deref());
            let wake = self.next_wake();
            tokio::select! {
                action = signals.next() => match action {
                    // The result is published as an event.
                    SignalAction::Reload => self.begin_reload(false, None),
                    SignalAction::Reopen => drop(self.reopen()),
                    end => return end,
                },
                message = self.inbox.next() => match message {
                    Message::NetworkChange => reread = reread.min(Instant::now() + SETTLE),
                    message => self.receive(message).await,
                },
                done = self.executor.engine.done() => self.applied(done).await,
                input = self.changes.next() => self.continue_change(input).await,
                input = self.directors.next() => self.directors.step(input, &self.executor),
                _ = restore.tick() => {
                    self.executor.restore();
                    self.executor.show();
                }
                // While the engine applies a farm, this host stays the server of that farm until
                // the farm is refused.
                _ = restore_server.tick(), if !self.changes.is_applying() => self.restore_server().await,
                _ = sweep.tick() => self.sweep(),
                () = sleep_until(reread) => {
                    self.reread_network().await;
                    reread = Instant::now() + REREAD;
                }
                () = sleep_until(fit) => fit = Instant::now() + self.executor.fit_sessions(),
                () = sleep_until(wake) => self.executor.time(),
            }
        }
    }

    async fn receive(&mut self, message: Message) {
        match message {
            Message::Frame(frame) => self.receive_frame(frame).await,
            Message::Request(request) => self.answer(request).await,
            Message::Fact(fact) => {
                self.executor.names.answered(&fact);
                self.executor.handle_fact(fact);
            }
            Message::Member(message) => self.executor.answer_member(message),
            Message::Query(query) => self.executor.answer_question(query),
            Message::Held(held) => {
                if let Some((moving, local_server)) =
                    self.executor.examine(held).zip(self.local_server.as_ref())
                {
                    local_server.rehandoff(moving);
                }
            }
            Message::NetworkChange => {}
        }
    }

    fn sweep(&mut self) {
        let joining = self.joining.obstacle(self.directors.known());
        let record = readiness::record(&self.executor, joining.as_deref());
        self.directors.report(&record, &mut self.executor);
        self.readiness.write(record);
        self.executor.walk_sessions();
        // Traces may have ended, so the data plane's filter may have to change.
        if let Err(error) = self.executor.watch() {
            tracing::error!("{error}; retrying in a second");
        }
        self.executor.renew_cookies();
        let over = self.executor.dispatched_and_over();
        if let Some(local_server) = &mut self.local_server {
            local_server.renew_cookies();
            if let Some(lccp_node) = local_server.lccp_node() {
                lccp_node.announce_ended(&over);
            }
        }
    }

    fn print_ready(&mut self) {
        let Some(serving) = self.executor.take_ready() else { return };
        self.executor.names.begin();
        self.readiness.begin();
        heap::give_back();
        self.executor.bus.publish(DaemonEvent::Ready { serving });
        eprintln!("evener: ready");
        program::notify(NotifyState::Ready);
    }

    fn next_wake(&self) -> Instant {
        let at = self.executor.director.next_at();
        Instant::now() + Duration::from_millis(at.saturating_sub(now_ms()).min(60_000))
    }

    async fn reread_network(&mut self) {
        if self.executor.is_idle() {
            return;
        }
        match network::read().await {
            Ok(network) => {
                self.executor.handle_fact(Input::Network(Box::new(network)));
                if !self.changes.is_applying() {
                    self.restore_server().await;
                }
                self.executor.follow_network();
                if self.directors.is_hindered() {
                    self.directors.follow(&self.executor).await;
                }
                self.show_local();
            }
            Err(error) => {
                tracing::warn!(%error, "failed to read the network configuration; the last known one stays in use")
            }
        }
    }

    /// Checks this host as a server. The kernel doesn't notify of changed settings, programs and
    /// pins.
    async fn restore_server(&mut self) {
        if let Some(local_server) = &mut self.local_server {
            local_server.refresh(&self.executor.config, self.executor.director.network()).await;
        }
    }

    /// Publishes the state of this host as a server.
    fn show_local(&mut self) {
        self.executor.show_local(self.local_server.as_ref().map(LocalServer::local));
    }

    async fn answer(&mut self, request: ControlRequest) {
        // The client may have disconnected.
        match request {
            ControlRequest::Ping(to) => drop(to.send(())),
            ControlRequest::Change(request, answer) => self.receive_request(*request, answer),
            ControlRequest::Group { group, sender, message, answer } => {
                drop(answer.send(self.executor.answer_group(&group, &sender, message)));
            }
            ControlRequest::Trace(client, to) => drop(to.send(self.executor.follow(client))),
            ControlRequest::Reload { forget, answer } => self.begin_reload(forget, Some(answer)),
            ControlRequest::Reopen(answer) => {
                // The client may have disconnected.
                let _ = answer.send(self.reopen());
            }
        }
    }

    /// Leaves the farm. Keeps the setup with `keep`, and removes it otherwise.
    async fn leave(mut self, keep: bool) -> Result<(), StartError> {
        program::notify(NotifyState::Stopping);
        self.executor.bus.publish(DaemonEvent::Stopping);
        let _ = std::fs::remove_file(self.directory.join("admin.sock"));
        if !keep {
            let _ = std::fs::remove_file(totals::path(&self.directory));
            self.readiness.forget().await;
        }
        self.executor.groups.end();
        if !keep && self.executor.identity().is_some() {
            self.executor.handle_fact(Input::Leave);
            let until = Instant::now() + HANDOVER;
            while let Ok(done) = timeout_at(until, self.executor.engine.done()).await {
                // No caller waits for this result.
                let _ = self.executor.finish_change(done);
            }
        }
        self.executor.engine.come_back().await;
        self.executor.stop_tracing();
        let Executor { engine, director, mut settings, .. } = self.executor;
        let left = engine.into_engine().map_or(Ok(()), |engine| engine.leave(keep));
        if !keep {
            settings.restore();
        }
        if let Some(local_server) = self.local_server {
            local_server.leave(keep, director.network()).await?;
        }
        Ok(left?)
    }
}

/// Formats a path for people.
fn display(path: &Path) -> String {
    path.display().to_string()
}
