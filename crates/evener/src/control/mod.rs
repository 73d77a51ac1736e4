//! The daemon: one loop that hears neighbours, probes, signals and requests, and keeps the engine in step.

mod conflicts;
mod executor;
mod groups;
mod handoff;
pub(crate) mod hosts;
mod installed;
mod interfaces;
mod names;
mod reading;
mod rehandoff;
mod reload;
mod showing;
mod start;
mod telling;
mod totals;

use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evener_core::director::Input;
use evener_core::dns::{BalancedName, OwnServer};
use evener_core::farm::plan::ServerName;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use reading::Reading;

use crate::agent::local_server::LocalServer;
use crate::board::request::Request;
use crate::cli;
use crate::events::log::Log;
use crate::events::{Bus, Event};
use crate::handoff::{Held, Question};
use crate::io::neighbours::Frame;
use crate::io::network;
use crate::io::network::path_mtu::PathMtu;
use crate::redirect::Ask;
use crate::runtime::Exit;
use crate::runtime::lock::Lock;
use crate::runtime::log;
use crate::runtime::signals::{Signals, Wish};
use crate::runtime::spelling::meant;
use crate::views::has_service;
use executor::Executor;
use hosts::Heard;
use reload::Fixed;
use start::StartError;

/// Between two portions of the sweep through the session table.
const SWEEP: Duration = Duration::from_secs(1);
/// How often the kernel is held against what was set up there: a firewall's reload may have ended the service.
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
    let bus = Bus::default();
    let written = match Log::start(&bus) {
        Ok(written) => written,
        Err(error) => {
            log::error(format_args!("the log's thread can't be started: {error}"));
            return Exit::Failed;
        }
    };
    let done = runtime.block_on(async {
        let mut daemon = start::start(&args.config, bus).await?;
        let end = daemon.serve().await;
        if end == Wish::Dismantle {
            daemon.executor.groups.forget();
        }
        daemon.leave(args.keep && end != Wish::Dismantle).await
    });
    drop(written);
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
    executor: Executor,
    config_path: PathBuf,
    directory: PathBuf,
    /// What of the file is read at the start only, as it was then.
    fixed: Fixed,
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
    local_server: Option<LocalServer>,
    /// What came of probes and of questions to servers.
    facts: mpsc::Receiver<Input>,
    /// Files that are read for a reload.
    reading: Reading,
    /// Messages of groups' members.
    asked: mpsc::Receiver<Ask>,
    _lock: Lock,
}

impl Daemon {
    /// The loop. Ends with SIGTERM or SIGINT, or with SIGQUIT.
    async fn serve(&mut self) -> Wish {
        let mut signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => {
                tracing::error!(%error, "signals can't be heard");
                return Wish::Stop;
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
            self.say_ready();
            let wake = self.next_wake();
            tokio::select! {
                wish = signals.next() => match wish {
                    // What came of it is told on the bus.
                    Wish::Reload => self.begin_reload(None),
                    end => return end,
                },
                Some(Frame { ifindex, bytes }) = self.frames.recv() => {
                    self.executor.tell(Input::Frame { ifindex, bytes });
                }
                Some(PathMtu { from, to, mtu }) = self.path_mtus.recv() => {
                    self.executor.tell(Input::PathMtu { from, to, mtu });
                }
                Some((from, bytes)) = self.heard.recv() => {
                    self.executor.tell(Input::Datagram { from, bytes });
                }
                Some(fact) = self.facts.recv() => {
                    self.executor.names.answered(&fact);
                    self.executor.tell(fact);
                }
                Some(ask) = self.asked.recv() => self.executor.answer_member(ask),
                Some(read) = self.reading.done.recv() => self.reload(read).await,
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
                _ = restore_server.tick() => self.restore_server().await,
                _ = sweep.tick() => {
                    self.executor.sweep_some();
                    // Traces may have ended.
                    if let Err(error) = self.executor.watch() {
                        tracing::error!("{error}; it is tried again in a second");
                    }
                    self.executor.renew_cookies();
                    let over = self.executor.dispatched_and_over();
                    if let Some(local_server) = &mut self.local_server {
                        local_server.renew_cookies();
                        if let Some(speaker) = local_server.speaker() {
                            speaker.tell_over(&over);
                        }
                    }
                }
                () = sleep_until(wake) => self.executor.time(),
            }
        }
    }

    fn say_ready(&mut self) {
        let Some(serving) = self.executor.take_ready() else { return };
        self.executor.names.begin();
        self.executor.bus.tell(Event::Ready { serving });
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
                self.executor.tell(Input::Network(Box::new(network)));
                if let Some(local_server) = &mut self.local_server {
                    local_server.look(&self.executor.config, self.executor.director.network()).await;
                }
                self.executor.follow_network();
                self.show_local();
            }
            Err(error) => tracing::warn!(%error, "the network can't be read; what was known of it stays"),
        }
    }

    /// Holds this host, as a server, against what it is to be: settings, programs and pins change without a word from the kernel.
    async fn restore_server(&mut self) {
        if let Some(local_server) = &mut self.local_server {
            local_server.look(&self.executor.config, self.executor.director.network()).await;
        }
    }

    /// Publishes what this host is as a server.
    fn show_local(&mut self) {
        self.executor.show_local(self.local_server.as_ref().map(LocalServer::local));
    }

    /// Reads the file again; what comes of that is answered once it is read.
    fn begin_reload(&mut self, answer: Option<reading::Answer>) {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Reloading]);
        self.reading.begin(&self.config_path, answer);
    }

    async fn answer(&mut self, request: Request) {
        // Who asked may have gone; that is no matter.
        match request {
            Request::Ping(to) => drop(to.send(())),
            Request::Drain { service, server, drain, answer } => {
                drop(answer.send(self.drain(ServerName { service, server }, drain)));
            }
            Request::Group { group, asker, message, answer } => {
                drop(answer.send(self.executor.answer_group(&group, &asker, message)));
            }
            Request::Trace(client, to) => drop(to.send(self.executor.follow(client))),
            Request::Reload(to) => self.begin_reload(Some(to)),
        }
    }

    fn drain(&mut self, name: ServerName, drain: bool) -> Result<String, String> {
        if self.executor.director.group(&name.service).is_some() {
            return self.drain_member(name, drain);
        }
        if let Some(known) = self.executor.director.name(&name.service) {
            let known = Arc::clone(known);
            return self.drain_of_name(&known, &name.server, drain);
        }
        has_service(self.executor.director.farm(), &name.service)?;
        let director = &self.executor.director;
        let members = director.membership().members(&name.service);
        let names = members.iter().map(|member| member.name.as_str());
        if !names.clone().any(|known| known == name.server) {
            let meant = meant(&name.server, names);
            return Err(format!("service {} has no server {}; {meant}", name.service, name.server));
        }
        if let Some(host) = director.other_host(&name) {
            return Err(format!(
                "{host} is another host, whose part in the farm it tells itself: do that there"
            ));
        }
        let full = format!("{}/{}", name.service, name.server);
        let service = name.service.clone();
        let changed = director.drained().contains(&name) != drain;
        self.executor.feed(Input::Drain { server: name, drain }).map_err(|error| error.to_string())?;
        start::write_drained(&self.directory, self.executor.director.drained())
            .map_err(|error| format!("{full}: done, but it will be forgotten at a restart: {error}"))?;
        Ok(match (drain, changed) {
            (true, true) => {
                let left = self.executor.director.without_servers(&service).map(|what| format!("; {what}"));
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

    fn drain_member(&mut self, name: ServerName, drain: bool) -> Result<String, String> {
        let service = name.service.clone();
        let full = format!("{service}/{}", name.server);
        let drained = |daemon: &Daemon| {
            daemon.executor.director.group(&service).map(|members| members.drained().clone())
        };
        let known =
            self.executor.director.group(&service).map(|members| members.called(&name.server).is_some());
        if known != Some(true) {
            let groups = &self.executor.director.snapshot().groups;
            let seen = groups.iter().filter(|seen| seen.group.name == service).flat_map(|seen| &seen.members);
            let meant = meant(&name.server, seen.map(|member| member.name.as_str()));
            return Err(format!("service {service} has no server {}; {meant}", name.server));
        }
        let before = drained(self);
        self.executor.tell(Input::Drain { server: name, drain });
        let after = drained(self).unwrap_or_default();
        let text = after.iter().map(|name| format!("{name}\n")).collect::<String>();
        groups::replace(&groups::drained_path(&self.directory, &service), &text)
            .map_err(|error| format!("{full}: done, but it will be forgotten at a restart: {error}"))?;
        Ok(match (drain, before != Some(after)) {
            (true, true) => format!("{full} drains: no more clients are sent to it"),
            (true, false) => format!("{full} was draining already"),
            (false, true) => format!("{full} gets clients again"),
            (false, false) => format!("{full} was not drained"),
        })
    }

    fn drain_of_name(&mut self, name: &BalancedName, server: &str, drain: bool) -> Result<String, String> {
        let named = name.settings.name.to_string();
        let Some(list) = name.list() else {
            return Err(format!(
                "{named} has no servers of its own: drain those of its services, as SERVICE/SERVER"
            ));
        };
        let names: Vec<_> = list.servers.iter().map(OwnServer::name).collect();
        if !names.iter().any(|known| known == server) {
            let meant = meant(server, names.iter().map(AsRef::as_ref));
            return Err(format!("name {named} has no server {server}; {meant}"));
        }
        let full = format!("{named}/{server}");
        let server = ServerName { service: named.clone(), server: server.to_owned() };
        let changed = self.executor.director.drained_of_names().contains(&server) != drain;
        self.executor.tell(Input::Drain { server, drain });
        names::drained::write(&self.directory, self.executor.director.drained_of_names())
            .map_err(|error| format!("{full}: done, but it will be forgotten at a restart: {error}"))?;
        let others_live = self.executor.director.has_living(&named, self.executor.moment());
        Ok(match (drain, changed) {
            (true, true) if others_live => format!("{full} drains: its address is no longer given"),
            (true, true) => {
                format!("{full} drains; no other server of {named} lives: `none_alive` says what is answered")
            }
            (true, false) => format!("{full} was draining already"),
            (false, true) => format!("{full} is given again"),
            (false, false) => format!("{full} was not drained"),
        })
    }

    /// Leaves the farm as it should be left.
    async fn leave(mut self, keep: bool) -> Result<(), StartError> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        self.executor.bus.tell(Event::Stopping);
        let _ = std::fs::remove_file(self.directory.join("admin.sock"));
        if !keep {
            let _ = std::fs::remove_file(start::drained_path(&self.directory));
            names::drained::forget(&self.directory);
            let _ = std::fs::remove_file(totals::path(&self.directory));
        }
        self.executor.groups.end();
        if !keep && self.executor.identity().is_some() {
            self.executor.tell(Input::Leave);
            tokio::time::sleep(HANDOVER).await;
        }
        self.executor.fall_silent();
        let Executor { engine, director, mut settings, .. } = self.executor;
        let left = engine.leave(keep);
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
