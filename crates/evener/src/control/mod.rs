//! The daemon: one loop that hears neighbours, probes, signals and requests, and keeps the engine
//! in step.

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
mod installed;
mod interfaces;
mod names;
mod publisher;
mod readiness;
mod reading;
mod rehandoff;
mod reload;
mod ring_key;
mod session_walk;
mod start;
mod state;
mod totals;
mod trace_control;

use std::future::{pending, ready};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evener_core::director::{Input, Moment};
use evener_dataplane::heap;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, sleep_until, timeout_at};

use readiness::ReadinessRecord;
use reading::FileReader;

use crate::agent::local_server::LocalServer;
use crate::board::request::ControlRequest;
use crate::cli;
use crate::events::readers::Readers;
use crate::events::{Bus, DaemonEvent, log as event_log};
use crate::handoff::{ControlQuery, HeldSegment};
use crate::io::neighbours::ReceivedFrame;
use crate::io::network;
use crate::io::network::path_mtu::PathMtu;
use crate::redirect::MemberMessage;
use crate::runtime::Exit;
use crate::runtime::day::second_of_day;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use crate::runtime::signals::{ProcessSignals, SignalAction};
use changing::{ChangeResult, ExecuteError};
use directors::DirectorTalk;
use draining::PendingDrain;
use executor::Executor;
use hosts::ReceivedDatagram;
use reload::{AddressCheck, PendingReload, StartupSettings};
use start::StartError;
use state::StateControl;

/// Between two portions of the sweep through the session table.
const SWEEP: Duration = Duration::from_secs(1);
/// How often the kernel is held against what was set up there: a firewall's reload may have ended
/// the service.
const RESTORE: Duration = Duration::from_millis(500);
/// The same for what this host is as a server, which takes more looking.
const RESTORE_SERVER: Duration = Duration::from_secs(3);
/// Changes of the network come in flocks: read it once they have settled.
const SETTLE: Duration = Duration::from_millis(200);
/// An interval at which the network is read in any case.
const REREAD: Duration = Duration::from_secs(10);
/// The engine that gets copies of frames.
const PACKET_ENGINE: &str = "packet";
/// The one of a daemon without services that send packets on.
const IDLE_ENGINE: &str = "none";
/// How long other hosts may take to own the addresses of one that leaves.
const HANDOVER: Duration = Duration::from_millis(1_500);
/// The help for keys that a reload can't change.
const RESTART: &str = "restart the daemon for that (`evener run --keep` leaves traffic flowing meanwhile)";
/// Requests waiting for the loop.
const REQUESTS: usize = 64;

/// Runs the daemon until it is told to stop.
pub fn run(args: &cli::RunArgs) -> Exit {
    log::start();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log::error(format_args!("the control plane's threads can't be started: {error}"));
            return Exit::Failed;
        }
    };
    let readers = Readers::new(Bus::default());
    if let Err(error) = readers.spawn("log", event_log::take) {
        log::error(format_args!("the log's thread can't be started: {error}"));
        return Exit::Failed;
    }
    let done = runtime.block_on(async {
        let mut daemon = start::start(&args.config, &readers).await?;
        let end = daemon.serve().await;
        if end == SignalAction::Dismantle {
            daemon.executor.groups.forget();
        }
        daemon.leave(args.keep && end != SignalAction::Dismantle).await
    });
    drop(readers);
    match done {
        Ok(()) => Exit::Ok,
        Err(error) => {
            log::error(&error);
            error.exit()
        }
    }
}

/// The monotonic clock in milliseconds.
fn now_ms() -> u64 {
    evener_dataplane::now_ns() / 1_000_000
}

/// All clocks, read together.
fn clocks() -> Moment {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment {
        ms: now_ms(),
        unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
        second_of_day: second_of_day(),
        lease_holds: false,
    }
}

/// Everything that runs.
struct Daemon {
    executor: Executor,
    config_path: PathBuf,
    directory: PathBuf,
    /// The part of the file that is read at the start only, as it was then.
    fixed: StartupSettings,
    frames: mpsc::Receiver<ReceivedFrame>,
    requests: mpsc::Receiver<ControlRequest>,
    network_changes: mpsc::Receiver<()>,
    path_mtus: mpsc::Receiver<PathMtu>,
    /// The datagrams of other hosts.
    datagrams: mpsc::Receiver<ReceivedDatagram>,
    /// The questions of the readers for the data plane.
    questions: mpsc::Receiver<ControlQuery>,
    /// Later requests that other servers are for.
    held: mpsc::Receiver<HeldSegment>,
    /// This host as a server, where every host is director and server.
    local_server: Option<LocalServer>,
    /// The results of probes and of questions to servers.
    facts: mpsc::Receiver<Input>,
    /// Files that are read for a reload.
    reading: FileReader,
    /// Messages of groups' members.
    member_messages: mpsc::Receiver<MemberMessage>,
    /// The file, and the run-time changes over it.
    state: StateControl,
    readiness: ReadinessRecord,
    directors: DirectorTalk,
    /// A farm whose addresses are asked for, or that waits for the engine; and drains that do.
    checking: Option<AddressCheck>,
    reloading: Option<PendingReload>,
    draining: Vec<PendingDrain>,
    _lock: Lock,
}

impl Daemon {
    /// The loop. Ends with SIGTERM or SIGINT, or with SIGQUIT.
    async fn serve(&mut self) -> SignalAction {
        let mut signals = match ProcessSignals::new() {
            Ok(signals) => signals,
            Err(error) => {
                tracing::error!(%error, "signals can't be heard");
                return SignalAction::Stop;
            }
        };
        let mut sweep = tokio::time::interval(SWEEP);
        let mut restore = tokio::time::interval(RESTORE);
        let mut restore_server = tokio::time::interval(RESTORE_SERVER);
        restore_server.set_missed_tick_behavior(MissedTickBehavior::Delay);
        restore.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reread = Some(Instant::now() + REREAD);
        let mut fit = Instant::now();
        loop {
            self.print_ready();
            let wake = self.next_wake();
            tokio::select! {
                action = signals.next() => match action {
                    // The bus reports its result.
                    SignalAction::Reload => self.begin_reload(false, None),
                    SignalAction::Reopen => drop(self.reopen()),
                    end => return end,
                },
                Some(frame) = self.frames.recv() => self.receive_frame(frame).await,
                () = until(self.checking.as_ref().map(|checking| checking.probed.until)) => {
                    self.order_checked().await;
                }
                Some(PathMtu { from, to, mtu }) = self.path_mtus.recv() => {
                    self.executor.handle_fact(Input::PathMtu { from, to, mtu });
                }
                Some((from, bytes)) = self.datagrams.recv() => {
                    self.executor.handle_fact(Input::Datagram { from, bytes });
                }
                input = self.directors.next() => self.directors.step(input, &self.executor),
                Some(fact) = self.facts.recv() => {
                    self.executor.names.answered(&fact);
                    self.executor.handle_fact(fact);
                }
                Some(message) = self.member_messages.recv() => self.executor.answer_member(message),
                done = self.executor.changing.done() => self.settled(done).await,
                Some(read) = self.reading.done.recv(), if self.is_free() => self.reload(read).await,
                Some(work) = self.state.done.recv() => self.continue_work(work).await,
                () = ready(()), if self.state.has_waiting() && self.is_free() => self.begin_batch(),
                Some(request) = self.requests.recv() => self.answer(request).await,
                Some(()) = self.network_changes.recv() => {
                    reread = Some(reread.unwrap_or_else(Instant::now).min(Instant::now() + SETTLE));
                }
                () = until(reread) => {
                    self.reread_network().await;
                    reread = Some(Instant::now() + REREAD);
                }
                Some(question) = self.questions.recv() => self.executor.answer_question(question),
                Some(held) = self.held.recv() => {
                    if let Some((moving, local_server)) = self.executor.take_up(held).zip(self.local_server.as_ref()) {
                        local_server.rehandoff(moving);
                    }
                }
                () = tokio::time::sleep_until(fit) => fit = Instant::now() + self.executor.fit_sessions(),
                _ = restore.tick() => self.executor.restore(),
                // While a reload is on its way this host is the server that its file describes,
                // until it is refused.
                _ = restore_server.tick(), if self.reloading.is_none() => self.restore_server().await,
                _ = sweep.tick() => {
                    let record = readiness::record(&self.executor);
                    self.directors.report(&record, &mut self.executor);
                    self.readiness.write(record);
                    self.executor.walk_sessions();
                    // Traces may have ended.
                    if let Err(error) = self.executor.watch() {
                        tracing::error!("{error}; it is tried again in a second");
                    }
                    self.executor.renew_cookies();
                    let over = self.executor.dispatched_and_over();
                    if let Some(local_server) = &mut self.local_server {
                        local_server.renew_cookies();
                        if let Some(speaker) = local_server.speaker() {
                            speaker.announce_ended(&over);
                        }
                    }
                }
                () = sleep_until(wake) => self.executor.time(),
            }
        }
    }

    /// Whether no other farm is under way.
    fn is_free(&self) -> bool {
        self.checking.is_none() && self.reloading.is_none() && !self.state.is_busy()
    }

    fn print_ready(&mut self) {
        let Some(serving) = self.executor.take_ready() else { return };
        self.executor.names.begin();
        self.readiness.begin();
        heap::give_back();
        self.executor.bus.publish(DaemonEvent::Ready { serving });
        eprintln!("evener: ready");
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
            tracing::debug!(%error, "the service manager was not told");
        }
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
                if self.reloading.is_none() {
                    self.restore_server().await;
                }
                self.executor.follow_network();
                if self.directors.is_hindered() {
                    self.directors.follow(&self.executor).await;
                }
                self.show_local();
            }
            Err(error) => tracing::warn!(%error, "the network can't be read; what was known of it stays"),
        }
    }

    /// Holds this host, as a server, against what it is to be: settings, programs and pins change
    /// without a word from the kernel.
    async fn restore_server(&mut self) {
        if let Some(local_server) = &mut self.local_server {
            local_server.refresh(&self.executor.config, self.executor.director.network()).await;
        }
    }

    /// Publishes what this host is as a server.
    fn show_local(&mut self) {
        self.executor.show_local(self.local_server.as_ref().map(LocalServer::local));
    }

    /// Reads the file again; what comes of that is answered once it is read.
    fn begin_reload(&mut self, forget: bool, answer: Option<reading::ReloadReply>) {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Reloading]);
        self.reading.begin(&self.config_path, forget, answer);
    }

    async fn answer(&mut self, request: ControlRequest) {
        // The client may have gone; that is no matter.
        match request {
            ControlRequest::Ping(to) => drop(to.send(())),
            ControlRequest::Change(request, answer) => self.receive_request(*request, answer),
            ControlRequest::Group { group, sender, message, answer } => {
                drop(answer.send(self.executor.answer_group(&group, &sender, message)));
            }
            ControlRequest::Trace(client, to) => drop(to.send(self.executor.follow(client))),
            ControlRequest::Reload { forget, answer } => self.begin_reload(forget, Some(answer)),
            ControlRequest::Reopen(answer) => {
                // The client may have gone, and that is no matter.
                let _ = answer.send(self.reopen());
            }
        }
    }

    /// Goes on with what became of a change, and answers whoever waits for it.
    async fn settled(&mut self, done: ChangeResult) {
        let (number, result) = self.executor.finish_change(done);
        let reloading = self.reloading.take_if(|reloading| reloading.number == number);
        self.finish_drains(number, &result, reloading.is_some());
        match (reloading, result) {
            (Some(reloading), result) => self.finish_reload(reloading, result).await,
            (None, Err(ExecuteError::Plan(error))) => tracing::error!("{error}; what was in force stays"),
            // The director has told of it, and tries again.
            (None, _) => {}
        }
    }

    /// Leaves the farm as it should be left.
    async fn leave(mut self, keep: bool) -> Result<(), StartError> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
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
            while let Ok(done) = timeout_at(until, self.executor.changing.done()).await {
                // Nobody waits for this answer any more.
                let _ = self.executor.finish_change(done);
            }
        }
        self.executor.changing.come_back().await;
        self.executor.fall_silent();
        let Executor { changing, director, mut settings, .. } = self.executor;
        let left = changing.into_engine().map_or(Ok(()), |engine| engine.leave(keep));
        if !keep {
            settings.restore();
        }
        if let Some(local_server) = self.local_server {
            local_server.leave(keep, director.network()).await?;
        }
        Ok(left?)
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// The path as people would write it.
fn display(path: &Path) -> String {
    path.display().to_string()
}
