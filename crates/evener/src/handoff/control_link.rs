//! Asking the control loop who serves a client. Which route takes a request is found before that,
//! and elsewhere: with many complex routes it takes a while, for which the loop has no time, nor
//! has a thread that others wait for.

use std::net::SocketAddr;
use std::sync::Arc;

use evener_core::path::content::{NO_ROUTE, RouteIndex};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{ChosenTarget, ControlQuery, FourTuple, NormalizedRequest};
use crate::events::{Bus, DaemonEvent};
use crate::record::Recorder;

/// Threads that look through complex routes at a time; the processor's others are for everything
/// else.
const LOOKING_MAX: usize = 1;
/// How often a request is looked up anew because routes have changed meanwhile.
const ATTEMPTS: usize = 3;

/// The way to the control loop. Clones are the same one.
#[derive(Clone)]
pub(crate) struct ControlLink {
    questions: mpsc::Sender<ControlQuery>,
    /// Has the routes in force.
    recorder: Arc<Recorder>,
    looking: Arc<Semaphore>,
    bus: Bus,
}

/// Which route takes a request, by the routes of one moment.
#[derive(Clone, Debug)]
pub(crate) struct MatchedRoute {
    routes: Arc<RouteIndex>,
    /// Counted from 0; none takes what all servers may have.
    pub(crate) route: Option<u16>,
    /// Of the servers that may have it.
    pub(crate) ring: u16,
}

/// The control loop's reply.
#[derive(Debug)]
pub(crate) enum ControlReply<T> {
    Is(T),
    /// There are other routes by now.
    Changed,
}

impl MatchedRoute {
    fn by(routes: Arc<RouteIndex>, wanted: &NormalizedRequest) -> MatchedRoute {
        let (route, ring) = routes.find_all(&wanted.key());
        MatchedRoute { routes, route, ring }
    }

    /// Whether it was found by these routes.
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

    /// Tells of something that happened.
    pub(crate) fn publish(&self, event: DaemonEvent) {
        self.bus.publish(event);
    }

    /// Asks; whether anybody listens.
    pub(crate) async fn send(&self, question: ControlQuery) -> bool {
        self.questions.send(question).await.is_ok()
    }

    /// Says something that may be lost.
    pub(crate) fn try_send(&self, question: ControlQuery) {
        let _ = self.questions.try_send(question);
    }

    /// Which server is to serve this? The route, and the server. The dispatcher may have named it.
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

    /// Whether the server that has a connection answers this later request on it.
    pub(crate) async fn stays(&self, ends: FourTuple, wanted: &NormalizedRequest, server: u16) -> bool {
        let question = |matched, answer| ControlQuery::Stays { ends, matched, server, answer };
        self.matched(ends.service, wanted, question).await.1.unwrap_or_default()
    }

    /// Which server would serve this that another node asks about? The route, and where the server
    /// is.
    pub(crate) async fn decide(
        &self,
        ends: FourTuple,
        wanted: &NormalizedRequest,
    ) -> Option<(Option<u16>, SocketAddr)> {
        let question = |matched, answer| ControlQuery::Decide { ends, matched, answer };
        let (route, server) = self.matched(ends.service, wanted, question).await;
        Some((route, server.flatten()?))
    }

    /// Finds the route of a request, and asks something about it.
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
