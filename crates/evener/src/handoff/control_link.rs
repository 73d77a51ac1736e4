//! Queries of readers to the control loop about the server of a client.
//! Routes are matched before the query, on another thread. With many complex routes, a match would
//! block the loop or the runtime's threads for too long.

use std::net::SocketAddr;
use std::sync::Arc;

use evener_core::path::content::{NO_ROUTE, RouteIndex};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{ChosenTarget, ControlQuery, FourTuple, NormalizedRequest};
use crate::events::{Bus, DaemonEvent};
use crate::record::Recorder;

/// Maximum number of threads that match complex routes. Other processors stay free for other work.
const LOOKING_MAX: usize = 1;
/// Maximum number of attempts to match a request while routes change.
const ATTEMPTS: usize = 3;

/// Channel to the control loop. Clones share it.
#[derive(Clone)]
pub(crate) struct ControlLink {
    questions: mpsc::Sender<ControlQuery>,
    /// Provides the routes in force.
    recorder: Arc<Recorder>,
    looking: Arc<Semaphore>,
    bus: Bus,
}

/// Result of matching a request against the routes of one moment.
#[derive(Clone, Debug)]
pub(crate) struct MatchedRoute {
    routes: Arc<RouteIndex>,
    /// Index of the route. `None` if no route matches, so that all servers may get the request.
    pub(crate) route: Option<u16>,
    /// Ring of the servers that may get the request.
    pub(crate) ring: u16,
}

#[derive(Debug)]
pub(crate) enum ControlReply<T> {
    Is(T),
    /// The routes have changed since the match.
    Changed,
}

impl MatchedRoute {
    fn by(routes: Arc<RouteIndex>, wanted: &NormalizedRequest) -> MatchedRoute {
        let (route, ring) = routes.find_all(&wanted.key());
        MatchedRoute { routes, route, ring }
    }

    /// True if the request was matched against these routes.
    pub(crate) fn is_by(&self, routes: &Arc<RouteIndex>) -> bool {
        Arc::ptr_eq(&self.routes, routes)
    }
}

impl ControlLink {
    pub(crate) fn new(
        questions: mpsc::Sender<ControlQuery>,
        recorder: Arc<Recorder>,
        bus: Bus,
    ) -> ControlLink {
        ControlLink { questions, recorder, looking: Arc::new(Semaphore::new(LOOKING_MAX)), bus }
    }

    pub(crate) fn publish(&self, event: DaemonEvent) {
        self.bus.publish(event);
    }

    /// Sends a query. True if the control loop is running.
    pub(crate) async fn send(&self, question: ControlQuery) -> bool {
        self.questions.send(question).await.is_ok()
    }

    /// Sends a query that may be lost.
    pub(crate) fn try_send(&self, question: ControlQuery) {
        let _ = self.questions.try_send(question);
    }

    /// Selects the server for a request. `advice` is the dispatcher's choice. Returns the route and
    /// the server.
    pub(crate) async fn choose(
        &self,
        ends: FourTuple,
        wanted: &NormalizedRequest,
        advice: Option<SocketAddr>,
    ) -> (Option<u16>, Option<ChosenTarget>) {
        let question = |matched, answer| ControlQuery::Choose { ends, matched, advice, answer };
        let (route, chosen) = self.matched(ends.service, wanted, question).await;
        (route, chosen.flatten())
    }

    /// True if the connection's server also answers this later request.
    pub(crate) async fn stays(&self, ends: FourTuple, wanted: &NormalizedRequest, server: u16) -> bool {
        let question = |matched, answer| ControlQuery::Stays { ends, matched, server, answer };
        self.matched(ends.service, wanted, question).await.1.unwrap_or_default()
    }

    /// Selects the server for another node's query. Returns the route and the server's address.
    pub(crate) async fn decide(
        &self,
        ends: FourTuple,
        wanted: &NormalizedRequest,
    ) -> Option<(Option<u16>, SocketAddr)> {
        let question = |matched, answer| ControlQuery::Decide { ends, matched, answer };
        let (route, server) = self.matched(ends.service, wanted, question).await;
        Some((route, server.flatten()?))
    }

    /// Matches a request's route, and sends a query with it.
    async fn matched<T>(
        &self,
        service: SocketAddr,
        wanted: &NormalizedRequest,
        question: impl Fn(MatchedRoute, oneshot::Sender<ControlReply<T>>) -> ControlQuery,
    ) -> (Option<u16>, Option<T>) {
        let mut route = None;
        for _ in 0..ATTEMPTS {
            let Some(matched) = self.find(service, wanted).await else { break };
            route = matched.route;
            let (sender, answer) = oneshot::channel();
            if !self.send(question(matched, sender)).await {
                break;
            }
            match answer.await {
                Ok(ControlReply::Is(answer)) => return (route, Some(answer)),
                Ok(ControlReply::Changed) => {}
                Err(_) => break,
            }
        }
        (route, None)
    }

    async fn find(&self, service: SocketAddr, wanted: &NormalizedRequest) -> Option<MatchedRoute> {
        let routes = self.recorder.routes(service)?;
        if routes.complex_from == NO_ROUTE {
            return Some(MatchedRoute::by(routes, wanted));
        }
        let (turn, wanted) = (Arc::clone(&self.looking).acquire_owned().await.ok()?, wanted.clone());
        let look = tokio::task::spawn_blocking(move || {
            let matched = MatchedRoute::by(routes, &wanted);
            drop(turn);
            matched
        });
        look.await.ok()
    }
}
