//! This server's load: measured periodically, and reported on request to directors, HAProxy and
//! Prometheus.

mod answers;
mod bandwidth;
mod delay;
pub(crate) mod findings;
mod first_speed;
mod following;
pub(super) mod host;
mod measure;
pub(super) mod queries;
mod running;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evener_core::net::http::Url;
use evener_dataplane::pending::PendingPrograms;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::member::MembershipConfig;
use super::path_probe::{self, ServerKeys};
use crate::config::{AgentConfig, Config};
use crate::io::network::Network;
use answers::{ListenSettings, Permitted};
use delay::Delay;
use findings::FindingsAccess;
use first_speed::FirstRequest;
use following::RequestTracker;
pub(super) use following::number_of;
use measure::Meter;
pub(super) use measure::{Load, source_of};
use queries::QueryAccess;
use running::Processes;

/// Maximum time between attempts to open a listener.
const AGAIN: Duration = Duration::from_secs(10);
/// First time between attempts: the listener from before a reload ends soon.
const SOON: Duration = Duration::from_millis(20);

/// Time between attempts to listen.
#[derive(Default)]
pub(super) struct RetryDelay(Duration);

impl RetryDelay {
    /// Waits for the next attempt, twice as long each time. Returns true if the wait is so long
    /// that it should be logged.
    pub(super) async fn wait(&mut self) -> bool {
        self.0 = (self.0 * 2).clamp(SOON, AGAIN);
        tokio::time::sleep(self.0).await;
        self.0 > Duration::from_secs(1)
    }
}

/// Measures and answers until dropped.
pub(super) struct LoadExporter {
    settings: LoadSettings,
    load: Arc<watch::Sender<Load>>,
    /// Queries of groups' directors.
    queries: Arc<QueryAccess>,
    /// Tracker of requests, which lives across reloads.
    followed: RequestTracker,
    tasks: JoinSet<()>,
}

/// Settings of the measurement and its listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LoadSettings {
    config: AgentConfig,
    /// Ports of clients' requests.
    ports: BTreeSet<u16>,
    /// Directors in the file.
    directors: Arc<BTreeSet<IpAddr>>,
    /// Directors of `[farm] directors`, which may query at every address, also at an address that
    /// refuses other clients.
    askers: BTreeSet<IpAddr>,
    /// True if this host reports to groups.
    is_member: bool,
    /// Rate of directors' HTTP probes, in thousandths per second.
    probes_milli: u64,
    /// Requests for the first measurement of the speed.
    first_requests: Vec<FirstRequest>,
    /// Keys that authenticate directors.
    keys: Option<ServerKeys>,
}

/// Port of a group's member without a URL in the file.
const HTTP_PORT: u16 = 80;

/// Returns the ports of the file's services, of servers with ports of their own, and of members.
pub(super) fn ports(config: &Config) -> BTreeSet<u16> {
    let services = config.services.iter();
    let of_servers = services.clone().flat_map(|s| &s.servers).filter_map(|server| server.port);
    let ports = services.flat_map(|service| &service.addresses).map(SocketAddr::port).chain(of_servers);
    let member = &config.agent.member;
    let own = member.group.as_ref().map(|_| member.url.as_ref().map_or(HTTP_PORT, Url::port));
    ports.chain(config.members().map(|member| member.port)).chain(own).collect()
}

/// Inputs of the measurement: the file and its environment.
pub(super) struct LoadContext<'a> {
    pub(super) config: &'a Config,
    pub(super) network: &'a Network,
    pub(super) memberships: &'a [MembershipConfig],
    /// Keys that authenticate directors.
    pub(super) keys: Option<ServerKeys>,
}

impl LoadSettings {
    fn of(known: &LoadContext<'_>) -> LoadSettings {
        let LoadContext { config, network, memberships, keys } = *known;
        LoadSettings {
            config: config.agent.clone(),
            ports: ports(config),
            directors: Arc::new(config.director_addresses()),
            askers: config.farm.directors.iter().copied().collect(),
            is_member: !memberships.is_empty(),
            probes_milli: memberships.iter().map(MembershipConfig::probes_milli).sum(),
            first_requests: first_speed::first_requests(config, network),
            keys,
        }
    }

    /// True if there is any listener or group to report to.
    fn measures(&self) -> bool {
        self.config.listen.is_some() || self.config.check_listen.is_some() || self.is_member
    }
}

impl LoadExporter {
    /// Starts with this file. `directory` is the folder that `evener requests` reads.
    pub(super) fn start(known: &LoadContext<'_>, directory: &Path) -> LoadExporter {
        let settings = LoadSettings::of(known);
        let mut exporter = LoadExporter {
            settings: settings.clone(),
            load: Arc::new(watch::channel(Load::default()).0),
            queries: Arc::new(QueryAccess::new()),
            followed: RequestTracker::new(directory),
            tasks: JoinSet::new(),
        };
        exporter.begin(settings);
        exporter
    }

    /// Adopts another file. Restarts if the settings differ.
    pub(super) fn follow(&mut self, known: &LoadContext<'_>) {
        let settings = LoadSettings::of(known);
        if settings != self.settings {
            self.begin(settings);
        }
    }

    pub(super) fn load(&self) -> watch::Receiver<Load> {
        self.load.subscribe()
    }

    /// Returns the queries of groups' directors.
    pub(super) fn queries(&self) -> &Arc<QueryAccess> {
        &self.queries
    }

    fn begin(&mut self, settings: LoadSettings) {
        let mut tasks = JoinSet::new();
        let (listen, check_listen) = (settings.config.listen, settings.config.check_listen);
        let (refresh, refreshes) = mpsc::channel(1);
        let findings = settings.keys.and_then(|keys| FindingsAccess::new(keys.findings)).map(Arc::new);
        let listen_settings = |listen| ListenSettings {
            listen,
            refresh: refresh.clone(),
            directors: Arc::clone(&settings.directors),
            queries: Arc::clone(&self.queries),
            findings: findings.clone(),
            permitted: settings.config.is_restricted(listen).then(|| Permitted {
                directors: settings.askers.clone(),
                networks: settings.config.allow.clone(),
            }),
        };
        if settings.measures() {
            let following = self.followed.follow(&settings.ports);
            tasks.spawn(measure(settings.clone(), Arc::clone(&self.load), following, refreshes));
        }
        if let Some(listen) = listen {
            tasks.spawn(answers::serve(listen_settings(listen), self.load(), answers::http));
        }
        if let (Some(listen), Some(keys)) = (listen, settings.keys) {
            tasks.spawn(path_probe::serve(listen, keys.probes, settings.askers.clone()));
        }
        if let Some(listen) = check_listen {
            tasks.spawn(answers::serve(listen_settings(listen), self.load(), answers::agent_check));
        }
        (self.settings, self.tasks) = (settings, tasks);
    }
}

async fn measure(
    settings: LoadSettings,
    load: Arc<watch::Sender<Load>>,
    following: Option<Arc<PendingPrograms>>,
    mut refreshes: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let mut meter = Meter::without_probes(settings.probes_milli as f64 / 1e3);
    let processes = Processes::of(settings.config.cgroup.as_deref());
    let mut delay = Delay::new(settings.config.delay);
    delay.first_speed = first_speed::measure(&settings.first_requests).await;
    let mut sockets = host::Sockets::new(settings.ports, following, processes, delay);
    let mut ticks = tokio::time::interval(Duration::from_millis(settings.config.report_ms));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let began = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let status = match &settings.config.status_url {
                    Some(url) => Some(host::requests(url).await),
                    None => None,
                };
                let reading = host::read(&mut sockets, status);
                load.send_replace(meter.measure(reading, began.elapsed()));
            }
            Some(done) = refreshes.recv() => {
                let now = sockets.refresh();
                load.send_modify(|load| load.set_to_send(now));
                // The client may have disconnected.
                let _ = done.send(());
            }
        }
    }
}
