//! Servers of a name alone: they are probed, and asked for their load, from here.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evener_core::director::{self, ProbePath, Target};
use evener_core::dns::{Effect, MeasuredPath, Order, OwnServer, ServerList};
use evener_core::farm::plan::ServerName;
use evener_core::pool::health::Failure;
use evener_core::pool::report::BadReport;
use evener_core::pool::{Fact, HealthCheck, HealthKind};
use tokio::sync::mpsc;

use crate::config::{From, NameConfig};
use crate::events::{Bus, Event};
use crate::io::probe::probe;
use crate::io::report;
use crate::runtime::descriptors::Room;

/// What came of a question to one server.
pub(in crate::control) struct Told {
    /// The name, as it was when it was asked.
    pub(super) name: Arc<NameConfig>,
    pub(super) answer: Answer,
}

/// Such an answer.
pub(super) enum Answer {
    /// Of a server, by its place in its list.
    Server(usize, Fact),
    /// Ranks that somebody else made, as text.
    Ranks(Result<String, String>),
    /// Of the path to a server.
    Path(IpAddr, Result<MeasuredPath, String>),
}

/// The servers that a name has of its own.
pub(super) fn list_of(config: &NameConfig) -> Option<&ServerList> {
    match &config.from {
        From::Servers(list) => Some(list),
        From::Services { .. } => None,
    }
}

/// Questions to servers: those that are under way, and those that wait. Each takes a descriptor and some memory, and the first round asks
/// all servers.
pub(super) struct Questions {
    /// So many are under way at a time; unknown while nobody was asked.
    room: OnceCell<usize>,
    under_way: usize,
    waiting: VecDeque<(Arc<NameConfig>, Order)>,
    results: mpsc::Sender<Told>,
}

impl Questions {
    pub(super) fn new(results: mpsc::Sender<Told>) -> Questions {
        Questions { room: OnceCell::new(), under_way: 0, waiting: VecDeque::new(), results }
    }

    /// Where answers go.
    pub(super) fn results(&self) -> &mpsc::Sender<Told> {
        &self.results
    }

    /// Asks a server as soon as there is room.
    pub(super) fn ask(&mut self, name: &Arc<NameConfig>, order: Order) {
        self.waiting.push_back((Arc::clone(name), order));
        self.ask_waiting();
    }

    /// A question is through.
    pub(super) fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.ask_waiting();
    }

    fn ask_waiting(&mut self) {
        let room = *self.room.get_or_init(|| Room::make().asked);
        while self.under_way < room {
            let Some((name, order)) = self.waiting.pop_front() else {
                // The first round may have been long.
                self.waiting.shrink_to(room);
                return;
            };
            self.under_way += 1;
            let results = self.results.clone();
            tokio::spawn(async move {
                let (Order::Probe(server) | Order::Ask(server)) = order;
                let fact = answer(&name, order).await;
                // The loop ends first only when the daemon does.
                let _ = results.send(Told { name, answer: Answer::Server(server, fact) }).await;
            });
        }
    }
}

async fn answer(name: &NameConfig, order: Order) -> Fact {
    let list = list_of(name);
    let server = |place: usize| list.and_then(|list| Some((list, list.servers.get(place)?)));
    match order {
        Order::Probe(place) => Fact::Probed(match server(place) {
            Some((list, server)) => probe_server(server, &list.settings.check).await,
            None => Err(Failure::NotProbed("it is no server any more".to_owned())),
        }),
        Order::Ask(place) => Fact::Reported(match server(place) {
            Some((list, server)) => match list.settings.report.as_deref() {
                Some(settings) => {
                    report::ask(SocketAddr::new(server.address.ip(), settings.port), settings).await
                }
                None => Err(BadReport::Silent),
            },
            None => Err(BadReport::Silent),
        }),
    }
}

/// Probes a server once, by this host's own stack, as clients come.
async fn probe_server(server: &OwnServer, health: &HealthCheck) -> Result<u64, Failure> {
    let to = SocketAddr::new(server.address.ip(), health.port.unwrap_or(server.address.port()));
    let kind = match &health.kind {
        // Clients call it by its own port, whichever is probed.
        HealthKind::Http { path, host: None, status, body } => HealthKind::Http {
            path: path.clone(),
            host: Some(authority(server.address)),
            status: status.clone(),
            body: body.clone(),
        },
        kind => kind.clone(),
    };
    let target = Target { destination: to, way: ProbePath::Direct { to } };
    probe(&target, None, &kind, Duration::from_millis(health.timeout_ms)).await
}

/// As a Host line has it: without the port that http has anyway.
fn authority(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) if address.port() == 80 => address.ip().to_string(),
        SocketAddr::V6(address) if address.port() == 80 => format!("[{}]", address.ip()),
        _ => address.to_string(),
    }
}

fn server_name(name: &NameConfig, server: &OwnServer) -> ServerName {
    ServerName { service: name.settings.name.to_string(), server: server.name().into_owned() }
}

/// Tells what happened to a server.
pub(super) fn tell(bus: &Bus, name: &NameConfig, place: usize, effect: Effect) {
    let Some(server) = list_of(name).and_then(|list| list.servers.get(place)) else { return };
    let Effect { member, refuses, reports, is_news: _ } = effect;
    if let Some(what) = member {
        bus.tell(Event::Farm(director::Event::Member { member: server_name(name, server), change: what }));
    }
    if let Some(refuses) = refuses {
        bus.tell(Event::Farm(director::Event::Wished { server: server_name(name, server), refuses }));
    }
    if let Some(error) = reports {
        bus.tell(Event::Farm(director::Event::Reports { server: server_name(name, server), error }));
    }
}
