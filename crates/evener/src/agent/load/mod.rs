//! This server's load, measured again and again, and reported on request: to directors, HAProxy,
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

/// A listener that can't be had is tried again after this time at most.
const AGAIN: Duration = Duration::from_secs(10);
/// And soon at first: whoever listened there before a reload is about to end.
const SOON: Duration = Duration::from_millis(20);

/// The times between attempts to listen.
#[derive(Default)]
pub(super) struct RetryDelay(Duration);

impl RetryDelay {
    /// Waits for the next attempt, twice as long each time; true where it takes so long that it is
    /// to be told.
    pub(super) async fn wait(&mut self) -> bool {
        self.0 = (self.0 * 2).clamp(SOON, AGAIN);
        tokio::time::sleep(self.0).await;
        self.0 > Duration::from_secs(1)
    }
}

/// Measures and answers for as long as it lives.
pub(super) struct LoadExporter {
    settings: LoadSettings,
    /// The last measurement.
    load: Arc<watch::Sender<Load>>,
    /// Directors that ask for reports.
    queries: Arc<QueryAccess>,
    /// By whom requests are followed, over reloads too.
    followed: RequestTracker,
    tasks: JoinSet<()>,
}

/// All that it goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LoadSettings {
    config: AgentConfig,
    /// Where clients' requests come.
    ports: BTreeSet<u16>,
    /// Those that the file names.
    directors: Arc<BTreeSet<IpAddr>>,
    /// Those that may ask where not everybody may: `[farm] directors`, which are named for such
    /// questions.
    askers: BTreeSet<IpAddr>,
    /// Whether this host reports to groups.
    is_member: bool,
    /// How often directors probe it by HTTP, in thousandths in a second.
    probes_milli: u64,
    /// Where its server program may listen.
    first_requests: Vec<FirstRequest>,
    /// By which directors are believed that ask.
    keys: Option<ServerKeys>,
}

/// Ports of the services in the file, of servers that have their own, and of those that clients are
/// told.
pub(super) fn ports(config: &Config) -> BTreeSet<u16> {
    let services = config.services.iter();
    let of_servers = services.clone().flat_map(|s| &s.servers).filter_map(|server| server.port);
    let ports = services.flat_map(|service| &service.addresses).map(SocketAddr::port).chain(of_servers);
    ports.chain(config.members().map(|member| member.port)).collect()
}

/// An agent's knowledge when it begins to measure, or goes on by another file.
pub(super) struct LoadContext<'a> {
    pub(super) config: &'a Config,
    pub(super) network: &'a Network,
    pub(super) memberships: &'a [MembershipConfig],
    /// By which directors are believed that ask.
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

    /// Whether anybody is told.
    fn measures(&self) -> bool {
        self.config.listen.is_some() || self.config.check_listen.is_some() || self.is_member
    }
}

impl LoadExporter {
    /// Begins, by this file. `directory` is where `evener requests` looks.
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

    /// Goes on by another file; begins anew if it says anything else.
    pub(super) fn follow(&mut self, known: &LoadContext<'_>) {
        let settings = LoadSettings::of(known);
        if settings != self.settings {
            self.begin(settings);
        }
    }

    /// The measurements.
    pub(super) fn load(&self) -> watch::Receiver<Load> {
        self.load.subscribe()
    }

    /// By whom reports are asked for.
    pub(super) fn queries(&self) -> &Arc<QueryAccess> {
        &self.queries
    }

    fn begin(&mut self, settings: LoadSettings) {
        let mut tasks = JoinSet::new();
        let (listen, check_listen) = (settings.config.listen, settings.config.check_listen);
        let (refresh, refreshes) = mpsc::channel(1);
        let findings = settings.keys.and_then(|keys| FindingsAccess::new(keys.findings)).map(Arc::new);
        let door = |listen| ListenSettings {
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
            tasks.spawn(answers::serve(door(listen), self.load(), answers::http));
        }
        if let (Some(listen), Some(keys)) = (listen, settings.keys) {
            tasks.spawn(path_probe::serve(listen, keys.probes, settings.askers.clone()));
        }
        if let Some(listen) = check_listen {
            tasks.spawn(answers::serve(door(listen), self.load(), answers::agent_check));
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
                let requests = match &settings.config.status_url {
                    Some(url) => host::requests(url).await,
                    None => None,
                };
                let reading = host::read(&mut sockets, requests);
                load.send_replace(meter.measure(reading, began.elapsed()));
            }
            Some(done) = refreshes.recv() => {
                let now = sockets.refresh();
                load.send_modify(|load| load.set_to_send(now));
                // A client that has given up meanwhile needs no answer.
                let _ = done.send(());
            }
        }
    }
}
