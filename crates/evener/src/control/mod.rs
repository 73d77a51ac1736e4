//! The daemon: one loop that hears neighbours, probes, signals and requests, and keeps the engine in step.

mod conflicts;
mod director;
mod every_host;
mod explain;
mod handoff;
pub(crate) mod hosts;
mod interfaces;
mod lock;
pub(crate) mod neighbours;
pub mod paths;
mod rehandoff;
mod reload;
pub mod request;
pub(crate) mod settings;
mod show;
mod start;
mod telling;
mod totals;
mod watch;
pub(crate) mod ways;

use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evener_core::health::Failure;
use evener_core::membership::{Answer, Round};
use evener_core::plan::ServerName;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::agent::resident::Resident;
use crate::cli;
use crate::cli::Exit;
use crate::handoff::{Held, Question};
use crate::log;
use crate::network::Network;
use crate::network::path_mtu::PathMtu;
use crate::probe::probe;
use crate::spelling::meant;
use director::{DirectError, Director};
use every_host::Errands;
use hosts::Heard;
use neighbours::{Frame, Neighbours};
use reload::Fixed;
use request::Request;
use settings::Settings;
use show::About;
use start::StartError;

/// How long a new daemon may look for servers before it says that it is ready all the same.
const READY_AFTER_MS: u64 = 3_000;
/// Between two portions of the sweep through the session table.
const SWEEP: Duration = Duration::from_secs(1);
/// Changes of the network come in flocks: read it once they have settled.
const SETTLE: Duration = Duration::from_millis(200);
/// An interval at which the network is read in any case.
const REREAD: Duration = Duration::from_secs(10);
/// The engine whose packets go by the kernel's routes.
const KERNEL_ENGINE: &str = "xdp";
/// The engine that gets copies of frames.
const PACKET_ENGINE: &str = "packet";
/// How long other hosts may take to own the addresses of one that leaves.
const HANDOVER: Duration = Duration::from_millis(1_500);
/// What a reload can't bring.
const RESTART: &str = "restart the daemon for that (`evener run --keep` leaves traffic flowing meanwhile)";
/// Requests waiting for the loop.
const REQUESTS: usize = 64;

/// Runs the daemon until it is told to stop.
pub fn run(args: &cli::Run) -> Exit {
    log::start();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log::error(format_args!("the control plane's threads can't be started: {error}"));
            return Exit::Failed;
        }
    };
    let done = runtime.block_on(async {
        let mut daemon = start::start(&args.config).await?;
        let end = daemon.serve().await;
        daemon.leave(args.keep && end == End::Stopped).await
    });
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

/// Everything that runs.
struct Daemon {
    director: Director,
    about: About,
    config_path: PathBuf,
    directory: PathBuf,
    settings: Settings,
    /// What of the file is read at the start only, as it was then.
    fixed: Fixed,
    neighbours: Neighbours,
    frames: mpsc::Receiver<Frame>,
    requests: mpsc::Receiver<Request>,
    network_changes: mpsc::Receiver<()>,
    path_mtus: mpsc::Receiver<PathMtu>,
    /// What other hosts say.
    heard: mpsc::Receiver<Heard>,
    /// What those ask who read for the data plane.
    questions: mpsc::Receiver<Question>,
    /// Later requests that other servers are for.
    held: mpsc::Receiver<Held>,
    /// What this host is as a server, where every host is director and server.
    resident: Option<Resident>,
    probed: mpsc::Receiver<Probed>,
    probe_results: mpsc::Sender<Probed>,
    ready: bool,
    _lock: lock::Lock,
}

/// A probe's result on its way back.
struct Probed {
    server: ServerName,
    result: Result<u64, Failure>,
}

/// How the daemon was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// As its command line says.
    Stopped,
    /// With all that it has set up, whatever the command line says.
    Dismantled,
}

/// Signals that the daemon answers to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

impl Daemon {
    /// The loop. Ends with SIGTERM or SIGINT, or with SIGQUIT.
    async fn serve(&mut self) -> End {
        let mut signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => {
                tracing::error!(%error, "signals can't be heard");
                return End::Stopped;
            }
        };
        let mut sweep = tokio::time::interval(SWEEP);
        let mut reread = Some(Instant::now() + REREAD);
        loop {
            self.say_ready();
            let wake = self.next_wake();
            tokio::select! {
                _ = signals.terminate.recv() => return End::Stopped,
                _ = signals.interrupt.recv() => return End::Stopped,
                _ = signals.quit.recv() => return End::Dismantled,
                _ = signals.hangup.recv() => {
                    if let Err(error) = self.reload().await {
                        tracing::error!("{error}");
                    }
                }
                Some(frame) = self.frames.recv() => self.hear(&frame),
                Some(learned) = self.path_mtus.recv() => {
                    log_failure(self.director.path_mtu(&learned, now_ms()));
                }
                Some((from, datagram)) = self.heard.recv() => {
                    log_failure(self.director.hear_host(from, &datagram, now_ms()));
                }
                Some(Probed { server, result }) = self.probed.recv() => {
                    let done = self.director.probed(&server, result, now_ms());
                    log_failure(done);
                }
                Some(request) = self.requests.recv() => self.answer(request).await,
                Some(()) = self.network_changes.recv() => {
                    reread = Some(reread.unwrap_or_else(Instant::now).min(Instant::now() + SETTLE));
                }
                () = until(reread) => {
                    self.reread_network().await;
                    reread = Some(Instant::now() + REREAD);
                }
                Some(question) = self.questions.recv() => self.director.answer_question(question),
                Some(held) = self.held.recv() => {
                    if let Some((moving, resident)) = self.director.take_up(held).zip(self.resident.as_ref()) {
                        resident.rehandoff(moving);
                    }
                }
                _ = sweep.tick() => {
                    self.director.sweep_some();
                    self.director.tell_missing();
                    // Traces may have ended.
                    log_failure(self.director.watch().map_err(DirectError::from));
                    self.director.renew_cookies();
                    let over = self.director.dispatched_and_over();
                    if let Some(resident) = &mut self.resident {
                        resident.renew_cookies();
                        if let Some(speaker) = resident.speaker() {
                            speaker.tell_over(&over);
                        }
                    }
                }
                () = sleep_until(wake) => self.tick(),
            }
        }
    }

    fn say_ready(&mut self) {
        let waited = now_ms().saturating_sub(self.about.started_ms) > READY_AFTER_MS;
        let settled = self.director.is_serving() && self.director.is_settled();
        if self.ready || !(settled || waited) {
            return;
        }
        self.ready = true;
        if !self.director.is_serving() {
            tracing::warn!(
                "some service has no server yet: its packets are dropped until one is found and healthy"
            );
        }
        eprintln!("evener: ready");
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
            tracing::debug!(%error, "the service manager was not told");
        }
    }

    fn next_wake(&self) -> Instant {
        let ready = if self.ready { u64::MAX } else { self.about.started_ms + READY_AFTER_MS + 1 };
        let round = self.director.membership.next_round_at().unwrap_or(u64::MAX);
        let at = round.min(self.director.next_probe_at()).min(self.director.next_report_at()).min(ready);
        Instant::now() + Duration::from_millis(at.saturating_sub(now_ms()).min(60_000))
    }

    /// Does what is due: a report to other hosts, a round of questions to the neighbours, probes.
    fn tick(&mut self) {
        let now = now_ms();
        match self.director.report(now) {
            Ok(Errands { asks, announcements }) => {
                for address in asks {
                    self.director
                        .interfaces
                        .keys()
                        .for_each(|ifindex| self.neighbours.ask(*ifindex, None, address));
                }
                self.neighbours.announce(&announcements);
            }
            Err(error) => tracing::error!("{error}"),
        }
        if self.director.membership.next_round_at().is_some_and(|at| at <= now) {
            let Round { asks, notices } = self.director.membership.round(now);
            for address in asks {
                for &ifindex in self.director.interfaces.keys() {
                    if let Some(source) = self.director.network.source_for(ifindex, address) {
                        self.neighbours.ask(ifindex, Some(source), address);
                    }
                }
            }
            log_failure(self.director.notice(&notices));
        }
        match self.director.due_probes(now) {
            Ok(due) => due.into_iter().for_each(|due| self.start_probe(due)),
            Err(error) => tracing::error!("{error}"),
        }
    }

    fn start_probe(&self, due: director::Due) {
        let results = self.probe_results.clone();
        tokio::spawn(async move {
            let timeout = Duration::from_millis(due.settings.timeout_ms);
            let result = probe(&due.target, &due.settings.kind, timeout).await;
            // The loop ends first only when the daemon does.
            let _ = results.send(Probed { server: due.server, result }).await;
        });
    }

    fn hear(&mut self, frame: &Frame) {
        if let Ok(Some(Answer { place, address })) = Answer::read(frame.ifindex, &frame.bytes)
            && !self.director.interfaces.values().any(|own| *own == place.mac)
        {
            self.director.answered(address, place.mac, now_ms());
        }
        let notices = self.director.membership.frame(now_ms(), frame.ifindex, &frame.bytes);
        log_failure(self.director.notice(&notices));
    }

    async fn reread_network(&mut self) {
        match Network::read().await {
            Ok(network) => {
                let moved = self.director.network.interfaces != network.interfaces;
                log_failure(self.director.surroundings(network, now_ms()));
                if let Some(resident) = &mut self.resident {
                    resident.look(&self.director.config, &self.director.network).await;
                }
                self.follow_network();
                if moved {
                    // Whoever knew an announced address at another MAC, or forgot it, is told.
                    self.neighbours.announce(&self.director.announced());
                }
            }
            Err(error) => tracing::warn!(%error, "the network can't be read; what was known of it stays"),
        }
    }

    /// Has everything outside the engine follow the director's interfaces and servers: what is listened to,
    /// what the kernel is to ask for and to let through.
    fn follow_network(&mut self) {
        let ipv6 = director::has_ipv6(&self.director.config);
        if let Err((ifindex, error)) = self.neighbours.listen(&self.director.interfaces, ipv6) {
            let name =
                self.director.network.interfaces.get(&ifindex).map_or("?", |interface| &interface.name);
            tracing::warn!(interface = name, %error, "no ARP and no neighbour discovery here");
        }
        self.neighbours.attend(&self.director.announceable());
        self.director.resolve_next_hops(now_ms());
        // The packet engine finds its own way.
        if self.director.engine.kind() == KERNEL_ENGINE {
            self.settings.forward(&self.director.forwarded());
        }
    }

    async fn answer(&mut self, request: Request) {
        // Who asked may have gone; that is no matter.
        match request {
            Request::Status(to) => {
                let resident = self.resident.as_ref();
                drop(to.send(self.director.show_status(&self.about, resident, now_ms())));
            }
            Request::Services(to) => drop(to.send(self.director.show_services())),
            Request::Servers(to) => drop(to.send(self.director.show_servers())),
            Request::Hosts(to) => drop(to.send(self.director.show_hosts(now_ms()))),
            Request::Sessions(filter, to) => drop(to.send(self.director.show_sessions(&filter))),
            Request::Explain(flow, to) => drop(to.send(self.director.explain(&flow))),
            Request::Drain { service, server, drain, answer } => {
                drop(answer.send(self.drain(ServerName { service, server }, drain)));
            }
            Request::Trace(client, to) => drop(to.send(self.director.follow(client))),
            Request::Reload(to) => drop(to.send(self.reload().await)),
        }
    }

    fn drain(&mut self, name: ServerName, drain: bool) -> Result<String, String> {
        self.director.has_service(&name.service)?;
        let members = self.director.membership.members(&name.service);
        let names = members.iter().map(|member| member.name.as_str());
        if !names.clone().any(|known| known == name.server) {
            let meant = meant(&name.server, names);
            return Err(format!("service {} has no server {}; {meant}", name.service, name.server));
        }
        if let Some(host) = self.director.other_host(&name) {
            return Err(format!(
                "{host} is another host, whose part in the farm it tells itself: do that there"
            ));
        }
        let full = format!("{}/{}", name.service, name.server);
        let (service, server) = (name.service.clone(), name.server.clone());
        let changed =
            if drain { self.director.drained.insert(name) } else { self.director.drained.remove(&name) };
        if changed {
            let to = if drain {
                "drained: it keeps its sessions and takes no new ones"
            } else {
                "takes new sessions again"
            };
            tracing::info!(service, server, "the operator's order: {to}");
        }
        self.director.say_own();
        self.director.replan().map_err(|error| error.to_string())?;
        start::write_drained(&self.directory, &self.director.drained)
            .map_err(|error| format!("{full}: done, but it will be forgotten at a restart: {error}"))?;
        Ok(match (drain, changed) {
            (true, true) => {
                let left = self.director.without_servers(&service).map(|what| format!("; {what}"));
                format!(
                    "{full} drains: it keeps its sessions and takes no new ones{}",
                    left.unwrap_or_default()
                )
            }
            (true, false) => format!("{full} was draining already"),
            (false, true) => format!("{full} takes new sessions again"),
            (false, false) => format!("{full} was not drained"),
        })
    }

    /// Leaves the farm as it should be left.
    async fn leave(mut self, keep: bool) -> Result<(), StartError> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let _ = std::fs::remove_file(self.directory.join("admin.sock"));
        if !keep {
            let _ = std::fs::remove_file(start::drained_path(&self.directory));
            let _ = std::fs::remove_file(totals::path(&self.directory));
        }
        if !keep && self.director.leave_hosts(now_ms()) {
            tokio::time::sleep(HANDOVER).await;
        }
        self.director.fall_silent();
        let left = self.director.engine.leave(keep);
        if !keep {
            self.settings.restore();
        }
        if let Some(resident) = self.resident {
            resident.leave(keep, &self.director.network).await?;
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

fn log_failure(done: Result<(), DirectError>) {
    if let Err(error) = done {
        tracing::error!("{error}; what was in force stays, and it is tried again with the next change");
    }
}

/// The path as people would write it.
fn display(path: &Path) -> String {
    path.display().to_string()
}
