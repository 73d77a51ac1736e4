//! Probes of servers that only a balanced name lists, and load queries to them.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evener_core::director::{Input, NameFact, ProbePath, Target};
use evener_core::dns::{BalancedName, OwnServer};
use evener_core::pool::health::Failure;
use evener_core::pool::report::BadReport;
use evener_core::pool::{Fact, HealthCheck, HealthKind, ProbeTls};
use tokio::sync::mpsc;

use crate::io::probe::probe;
use crate::io::report;
use crate::runtime::descriptors::ClientLimits;

/// Queries to servers, under way or waiting. Their number is limited: each query under way needs a
/// descriptor and memory, and the first round queries all servers.
pub(super) struct ServerQueries {
    /// Maximum number of queries under way. Computed at the first query.
    limit: OnceCell<usize>,
    under_way: usize,
    waiting: VecDeque<(Arc<BalancedName>, usize, ServerQuery)>,
    facts: mpsc::Sender<Input>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ServerQuery {
    Probe,
    Load,
}

impl ServerQueries {
    pub(super) fn new(facts: mpsc::Sender<Input>) -> ServerQueries {
        ServerQueries { limit: OnceCell::new(), under_way: 0, waiting: VecDeque::new(), facts }
    }

    /// Queries a server as soon as there is room.
    pub(super) fn enqueue(&mut self, name: Arc<BalancedName>, server: usize, question: ServerQuery) {
        self.waiting.push_back((name, server, question));
        self.start_waiting();
    }

    /// Handles the end of a query.
    pub(super) fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.start_waiting();
    }

    fn start_waiting(&mut self) {
        let limit = *self.limit.get_or_init(|| ClientLimits::make().queries);
        while self.under_way < limit {
            let Some((name, server, question)) = self.waiting.pop_front() else {
                // The first round queues all servers, so the queue may have grown large.
                self.waiting.shrink_to(limit);
                return;
            };
            self.under_way += 1;
            let facts = self.facts.clone();
            tokio::spawn(async move {
                let fact = NameFact::Server(server, answer(&name, server, question).await);
                // The receiver is gone only when the daemon ends.
                let _ = facts.send(Input::Name { name, fact }).await;
            });
        }
    }
}

async fn answer(name: &BalancedName, server: usize, question: ServerQuery) -> Fact {
    let found = name.list().and_then(|list| Some((list, list.servers.get(server)?)));
    match question {
        ServerQuery::Probe => Fact::Probed(match found {
            Some((list, server)) => probe_server(name, server, &list.settings.check).await,
            None => Err(Failure::NotProbed("it is no server any more".to_owned())),
        }),
        ServerQuery::Load => Fact::Reported(match found {
            Some((list, server)) => match list.settings.report.as_deref() {
                Some(settings) => {
                    report::fetch(SocketAddr::new(server.address.ip(), settings.port), settings).await
                }
                None => Err(BadReport::Silent),
            },
            None => Err(BadReport::Silent),
        }),
    }
}

/// Probes a server once through this host's own stack, as clients connect.
async fn probe_server(name: &BalancedName, server: &OwnServer, health: &HealthCheck) -> Result<u64, Failure> {
    let address = server.health_address.unwrap_or(server.address.ip());
    let to = SocketAddr::new(address, health.port.unwrap_or(server.address.port()));
    let kind = match &health.kind {
        // The Host header has the server's own port, whichever port is probed.
        HealthKind::Http { path, host: None, status, body, tls: None } => HealthKind::Http {
            path: path.clone(),
            host: Some(authority(server.address)),
            status: status.clone(),
            body: body.clone(),
            tls: None,
        },
        // With TLS, the balanced name is the default name for the certificate.
        HealthKind::Http { path, host, status, body, tls: Some(tls) } => HealthKind::Http {
            path: path.clone(),
            host: host.clone(),
            status: status.clone(),
            body: body.clone(),
            tls: Some(named(tls, &name.settings.name.to_string())),
        },
        kind => kind.clone(),
    };
    let target = Target { destination: to, way: ProbePath::Direct { to } };
    probe(&target, None, &kind, Duration::from_millis(health.timeout_ms)).await
}

/// Returns the TLS settings, with a default for the name.
fn named(tls: &ProbeTls, name: &str) -> ProbeTls {
    ProbeTls { name: tls.name.clone().or_else(|| Some(name.to_owned())), ..tls.clone() }
}

/// Returns an address as in a Host header, without http's default port.
fn authority(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) if address.port() == 80 => address.ip().to_string(),
        SocketAddr::V6(address) if address.port() == 80 => format!("[{}]", address.ip()),
        _ => address.to_string(),
    }
}
