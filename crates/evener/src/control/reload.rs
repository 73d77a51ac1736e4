//! Another configuration for a running daemon: all of it, or nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use evener_core::director::Input;
use evener_core::farm::Farm;
use evener_core::net::wire::Mac;
use evener_core::path::sessions::{buckets_for, sessions_for};
use evener_dataplane::heap;

use super::changing::ExecuteError;
use super::conflicts::ProbedAddresses;
use super::names::OpenedNames;
use super::reading::{FileRead, NamedFiles, ReloadReply};
use super::state::Committed;
use super::trace_control::open_log;
use super::{Daemon, IDLE_ENGINE, RESTART, display};
use crate::board::LoadedFile;
use crate::config::{AdminConfig, Config, EngineConfig};
use crate::events::DaemonEvent;
use crate::io::neighbours::ReceivedFrame;
use crate::io::network::{self, Network, NetworkError};
use crate::redirect::GroupSockets;
use crate::state::store::AuditEntry;
use crate::state::{Edit, FarmState, OrderError, places};

impl Daemon {
    /// Begins with a file that was read.
    pub(super) async fn reload(&mut self, read: FileRead) {
        let is_latest = self.reading.is_latest(&read);
        let FileRead { files, forget, answer: to, .. } = read;
        match (is_latest, files) {
            (false, _) => {
                let later = "nothing was changed: a reload that was asked for later is in force";
                answer(to, Err(later.to_owned()));
            }
            (true, Ok(files)) => self.begin_rebase(files, forget, to),
            (true, Err(error)) => {
                self.refuse(error, Origin::Reload { answer: to, dropped: Vec::new() }).await
            }
        }
    }

    /// Stays with the farm in force: another one can't be.
    pub(super) async fn refuse(&mut self, error: String, origin: Origin) {
        match origin {
            Origin::Reload { answer, .. } => {
                self.executor.handle_fact(Input::ReloadRefused { error: error.clone() });
                self.reloaded(Err(error), answer).await;
            }
            Origin::Requests { committed, .. } => {
                self.settle_after(false).await;
                let error = OrderError::Conflict(format!("nothing was changed: {error}"));
                self.refuse_requests(committed, &error);
            }
        }
    }

    /// The same where a change can't be made to last.
    pub(super) async fn refuse_unwritten(&mut self, error: String, origin: Origin) {
        match origin {
            reload @ Origin::Reload { .. } => self.refuse(error, reload).await,
            Origin::Requests { committed, .. } => {
                self.settle_after(false).await;
                let error = OrderError::Unavailable(format!("nothing was changed: {error}"));
                for committed in committed {
                    committed.refuse(error.clone());
                }
            }
        }
    }

    /// Takes in a frame, by which a file may be refused whose addresses are asked for.
    pub(super) async fn receive_frame(&mut self, frame: ReceivedFrame) {
        let network = self.executor.director.network();
        let owner = self.checking.as_ref().and_then(|checking| checking.probed.owner(&frame, network).err());
        let ReceivedFrame { ifindex, bytes } = frame;
        self.executor.handle_fact(Input::Frame { ifindex, bytes });
        let Some(owner) = owner else { return };
        if let Some(checking) = self.checking.take() {
            self.refuse(owner.to_string(), checking.origin).await;
        }
    }

    /// The time is over in which others could answer for the addresses of a file. Answers may wait
    /// here.
    pub(super) async fn order_checked(&mut self) {
        for _ in 0..self.frames.len() {
            let Ok(frame) = self.frames.try_recv() else { break };
            self.receive_frame(frame).await;
        }
        if let Some(AddressCheck { file, next, origin, .. }) = self.checking.take() {
            self.write(Some(file), next, origin);
        }
    }

    /// Orders that the farm of a file be in force, or nothing of it.
    pub(super) fn order(&mut self, file: CheckedFile, next: Arc<FarmState>, origin: Origin) {
        let CheckedFile { config, farm, network, links, opened, opened_names, named } = file;
        let later = self.fixed.differences(&config);
        if let Origin::Reload { .. } = origin {
            let loaded =
                LoadedFile { at: SystemTime::now(), restart_needed_for: later.clone(), trouble: None };
            self.executor.showing.will_load(Some(loaded));
        }
        let groups = self.executor.groups.kept(&config);
        self.executor.names.will_follow(Some(opened_names));
        let reload = Input::Reload { farm: Box::new(farm), network: Box::new(network), links, groups };
        self.executor.handle_fact(reload);
        let number = self.executor.director.awaited().unwrap_or_default();
        self.reloading = Some(PendingReload { number, config, named, opened, next, origin });
    }

    /// Goes on with a farm that is in force, or with the one before.
    pub(super) async fn finish_reload(&mut self, reloading: PendingReload, result: Result<(), ExecuteError>) {
        let PendingReload { config, named, opened, next, origin, .. } = reloading;
        self.executor.showing.will_load(None);
        self.executor.names.will_follow(None);
        if let Err(error) = result {
            if next.record.generation != self.state.state.record.generation {
                self.write_back().await;
                self.log_refusal(next.record.generation, &error.to_string()).await;
            }
            return self.refuse(error.to_string(), origin).await;
        }
        self.executor.config = config;
        self.executor.follow_groups(opened);
        self.executor.mark_what_is_passed_on();
        self.keep_named(named);
        if let Origin::Requests { .. } = origin {
            self.settle_after(false).await;
        }
        self.follow_states(next, origin).await;
    }

    /// Has the rest of the daemon go by the farm in force.
    async fn settle_after(&mut self, is_new: bool) {
        if is_new {
            self.executor.warn_of_host();
        }
        // After an error the rest of the daemon may have begun to follow: back to what is in force.
        self.restore_server().await;
        self.executor.follow_network();
        self.show_local();
    }

    /// Has the rest of the daemon go by the file in force, and says which that is; gives the keys
    /// that take a restart, and the run-time changes that were dropped for it.
    pub(super) async fn reloaded(&mut self, done: Result<Vec<Edit>, String>, to: Option<ReloadReply>) {
        self.settle_after(done.is_ok()).await;
        if done.is_ok() {
            self.directors.follow(&self.executor).await;
        }
        heap::give_back();
        let later = self.executor.showing.about().loaded.restart_needed_for.clone();
        let done = done.map(|dropped| (later, self.report_dropped(&dropped)));
        let (file, is_in_force) = (display(&self.config_path), done.is_ok());
        let reply = match done {
            Ok((later, dropped)) => self.follow_log().map(|()| match later {
                Some(keys) => format!("{file} is in force, but for {keys}: {}{dropped}", remedy(&keys)),
                None => format!("{file} is in force{dropped}"),
            }),
            Err(why) => {
                // A program that has moved the log aside waits for that, whatever is wrong with the
                // file.
                if let Err(error) = self.executor.reopen_log() {
                    tracing::warn!("{error}; it goes on where it was");
                }
                Err(format!("nothing was changed: {why}"))
            }
        };
        self.executor.bus.publish(match &reply {
            Err(error) if !is_in_force => DaemonEvent::ReloadRefused { file, error: error.clone() },
            Ok(_) | Err(_) => {
                let LoadedFile { restart_needed_for, trouble, .. } = &self.executor.showing.about().loaded;
                let restart_needed_for = restart_needed_for.clone().map(|keys| (keys.clone(), remedy(&keys)));
                DaemonEvent::Reloaded { file, restart_needed_for, trouble: trouble.clone() }
            }
        });
        answer(to, reply);
    }

    /// Says which run-time changes were dropped, since the file itself has changed there.
    fn report_dropped(&self, dropped: &[Edit]) -> String {
        if dropped.is_empty() {
            return String::new();
        }
        let places = places(dropped);
        self.executor.bus.publish(DaemonEvent::ChangesDropped { places: places.clone() });
        format!("; the file's own value counts again, and not the run-time change, in {places}")
    }

    /// Looks whether anything speaks against a farm that would keep a daemon from starting with it.
    /// Addresses that it newly has are asked for then.
    pub(super) async fn prepare(
        &mut self,
        config: Config,
        named: NamedFiles,
    ) -> Result<(CheckedFile, Option<ProbedAddresses>), String> {
        let network = network::read().await.map_err(|error| error.to_string())?;
        let idle = self.executor.is_idle();
        if idle && config.takes_packets() {
            return Err(format!(
                "services that send packets on need an engine, and there is none: {RESTART}"
            ));
        }
        let links = match idle {
            true => BTreeMap::new(),
            false => network
                .pick_interfaces(&config.engine.interfaces, &config.services)
                .map_err(|error| NetworkError::from(error).to_string())?,
        };
        self.executor.still_this_host(&config, &network)?;
        self.executor.hands_over_still(&config)?;
        open_log(&config)?;
        let farm = config.description();
        if !idle {
            self.listen_on_links(&farm, &network, &links)?;
        }
        let probed = ProbedAddresses::send(&self.executor, &farm, &links);
        if let Some(local_server) = &mut self.local_server {
            local_server.fulfil(&config, &network).await.map_err(|error| error.to_string())?;
        }
        let opened = self.executor.groups.open(&config, &named.groups).map_err(|error| error.to_string())?;
        let opened_names =
            self.executor.names.open(&config, named.dns.clone()).map_err(|error| error.to_string())?;
        Ok((CheckedFile { config, farm, network, links, opened, opened_names, named }, probed))
    }

    /// Hears the neighbours of a file's farm, too.
    fn listen_on_links(
        &mut self,
        farm: &Farm,
        network: &Network,
        links: &BTreeMap<u32, Mac>,
    ) -> Result<(), String> {
        let mut links_before = self.executor.director.links().clone();
        links_before.extend(links);
        let ipv6 = farm.has_ipv6() || self.executor.director.farm().has_ipv6();
        self.executor.neighbours.listen(&links_before, ipv6).map_err(|(ifindex, error)| {
            let name = network.interfaces.get(&ifindex).map_or("?", |interface| &interface.name);
            format!("neighbours can't be heard on {name}: {error}")
        })
    }

    /// Opens the access log again, and reads no file.
    pub(super) fn reopen(&mut self) -> Result<String, String> {
        let reopened = self.executor.reopen_log();
        match &reopened {
            Ok(()) => tracing::info!("the access log is open again"),
            Err(error) => tracing::warn!("{error}; it goes on where it was"),
        }
        reopened.map(|()| "the access log is open again".to_owned())
    }

    /// Goes on with the log of the file in force.
    fn follow_log(&mut self) -> Result<(), String> {
        self.executor.reopen_log().map_err(|error| {
            let trouble = format!("{} is in force, but for its log: {error}", display(&self.config_path));
            self.executor.show_trouble(trouble.clone());
            trouble
        })
    }
}

/// Answers who has ordered a reload; who did may have gone, and that is no matter.
fn answer(to: Option<ReloadReply>, reply: Result<String, String>) {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let _ = to.map(|to| to.send(reply));
}

/// The origin of a farm that is to be put in force.
pub(super) enum Origin {
    /// A reload of the file, for somebody who waits or for nobody; these run-time changes are
    /// dropped by it.
    Reload { answer: Option<ReloadReply>, dropped: Vec<Edit> },
    /// Requests to change it.
    Requests { committed: Vec<Committed>, audit: Vec<AuditEntry> },
}

/// A farm whose addresses are asked for.
pub(super) struct AddressCheck {
    pub(super) probed: ProbedAddresses,
    pub(super) file: CheckedFile,
    pub(super) next: Arc<FarmState>,
    pub(super) origin: Origin,
}

/// A farm that waits for the engine.
pub(super) struct PendingReload {
    /// The order with whose answer it is in force.
    pub(super) number: u64,
    config: Config,
    named: NamedFiles,
    opened: Option<GroupSockets>,
    next: Arc<FarmState>,
    origin: Origin,
}

/// A farm that nothing speaks against.
pub(super) struct CheckedFile {
    config: Config,
    farm: Farm,
    network: Network,
    links: BTreeMap<u32, Mac>,
    /// Sockets of groups, on which nobody answers yet.
    opened: Option<GroupSockets>,
    /// Zones, and sockets by which queries come.
    opened_names: OpenedNames,
    named: NamedFiles,
}

/// The help for keys that a running daemon, or a running data plane, can't follow.
pub(super) fn remedy(keys: &str) -> String {
    match keys.contains("sessions") {
        true => "stop the daemon without --keep (SIGQUIT does that always) and start it: a session table has the size it was \
                 made with, and ends with its sessions"
            .to_owned(),
        false => RESTART.to_owned(),
    }
}

/// The part of a file that a daemon reads when it starts, and never again.
#[derive(Debug)]
pub(super) struct StartupSettings {
    engine: EngineConfig,
    admin: AdminConfig,
}

impl StartupSettings {
    /// As a daemon has it that starts with this file, where the engine didn't find it otherwise:
    /// sessions stay in the tables that an earlier daemon made.
    pub(super) fn of(config: &Config, engine: &dyn evener_dataplane::Engine) -> StartupSettings {
        let mut fixed = StartupSettings { engine: config.engine.clone(), admin: config.admin.clone() };
        if engine.kind() == IDLE_ENGINE {
            return fixed;
        }
        let [four, six] = engine.buckets();
        for (max, buckets) in [(&mut fixed.engine.sessions_max, four), (&mut fixed.engine.sessions6_max, six)]
        {
            if buckets_for(*max) != buckets {
                *max = sessions_for(buckets);
            }
        }
        fixed
    }

    /// The keys of it that differ in another file.
    pub(super) fn differences(&self, config: &Config) -> Option<String> {
        let (old, new) = (&self.engine, &config.engine);
        let keys = [
            ("[engine] kind", old.kind != new.kind),
            ("[engine] xdp_mode", old.xdp_mode != new.xdp_mode),
            // Less bounds what is in use of the tables.
            ("[engine] sessions_max", old.sessions_max < new.sessions_max),
            ("[engine] sessions6_max", old.sessions6_max < new.sessions6_max),
            ("[engine] threads", old.threads != new.threads),
            ("[admin]", self.admin != config.admin),
        ];
        let differ: Vec<&str> = keys.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect();
        (!differ.is_empty()).then(|| differ.join(", "))
    }
}
