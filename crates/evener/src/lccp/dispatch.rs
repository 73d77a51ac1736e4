//! One node decides for all: asking the dispatcher, and answering as it. Who gets no answer decides by its own tables, and
//! says so.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::node::lccp::wire::Message;
use evener_core::node::lccp::{Body, Content, ErrorCode, Receptor, SocketId};
use tokio::sync::oneshot;

use super::{Association, Shared, Speaker};
use crate::events::Event;
use crate::handoff::{Asking, FourTuple, Question, Wanted};

/// A question is asked again after the first of these times, and given up after the second, in milliseconds.
const REPEATS_MS: [u64; 2] = [40, 60];

/// What a dispatcher is to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Dispatcher {
    /// Where it is; `None` if there is none, or if this node is the one.
    pub(super) at: Option<IpAddr>,
    /// Whether it left a question without an answer since it gave one.
    pub(super) unanswered: bool,
    /// Whether it was said that this node decides by its own tables.
    pub(super) alone: bool,
}

impl Speaker {
    /// Asks the dispatcher which server is to have a connection, where there is another node that is one.
    pub(crate) async fn dispatch(&self, ends: &FourTuple, wanted: &Wanted) -> Option<SocketAddr> {
        let dispatcher = self.0.talk().dispatcher.at?;
        let counts = &self.0.counts;
        let socket = SocketId::new(ends.client, ends.service);
        // What is too long to be told is decided here, and that is nobody's fault.
        let answer = match socket.zip(wanted.content()) {
            Some((socket, content)) => self.ask(dispatcher, socket, content).await,
            None => None,
        };
        if let Some(Body::DispatchReply { server, .. }) = answer {
            counts.answered.fetch_add(1, Relaxed);
            return Some(server);
        }
        counts.alone.fetch_add(1, Relaxed);
        None
    }

    /// Notes that an answer named a server that is none for this connection by this node's own tables.
    pub(crate) fn disbelieve(&self) {
        self.0.counts.unbelieved.fetch_add(1, Relaxed);
    }

    /// Tells the dispatcher which connections of those that it has decided are over. What gets lost it forgets by itself, later.
    pub(crate) fn tell_over(&self, over: &[FourTuple]) {
        let Some(dispatcher) = self.0.talk().dispatcher.at else { return };
        for socket in over.iter().filter_map(|ends| SocketId::new(ends.client, ends.service)) {
            self.0.say(dispatcher, Receptor::Forwarder, Body::Close { socket });
        }
    }

    /// The dispatcher, and whether it decides; nothing without one.
    pub(crate) fn dispatcher(&self) -> Option<(IpAddr, bool)> {
        let Dispatcher { at, unanswered, .. } = self.0.talk().dispatcher;
        at.map(|at| (at, !unanswered && self.0.speaks(at, Receptor::Dispatcher)))
    }

    async fn ask(&self, dispatcher: IpAddr, socket: SocketId, content: Content) -> Option<Body> {
        if !self.0.speaks(dispatcher, Receptor::Dispatcher) {
            self.decides_alone(dispatcher, false);
            return None;
        }
        self.0.counts.asked.fetch_add(1, Relaxed);
        let body = Body::DispatchRequest { socket, content };
        let answer = self.0.ask(dispatcher, Receptor::Dispatcher, body, &REPEATS_MS).await;
        match answer {
            Some(_) => self.heard_of(dispatcher),
            None => self.decides_alone(dispatcher, true),
        }
        answer
    }

    fn heard_of(&self, dispatcher: IpAddr) {
        let known = &mut self.0.talk().dispatcher;
        known.unanswered = false;
        if std::mem::take(&mut known.alone) {
            self.tell_of_dispatcher(dispatcher, true);
        }
    }

    /// Said once for each time that it is gone.
    fn decides_alone(&self, dispatcher: IpAddr, asked: bool) {
        let known = &mut self.0.talk().dispatcher;
        known.unanswered |= asked;
        if !std::mem::replace(&mut known.alone, true) {
            self.tell_of_dispatcher(dispatcher, false);
        }
    }

    /// Only who has a control loop to ask has a dispatcher, too.
    fn tell_of_dispatcher(&self, address: IpAddr, decides: bool) {
        if let Some(asking) = &self.0.asking {
            asking.tell_of(Event::Dispatcher { address, decides });
        }
    }
}

impl Shared {
    /// Has the control loop say what a node asks; without an answer there is no server. Where nobody listens, or there is too much to
    /// be asked, nothing is said.
    fn consult<F>(self: &Arc<Self>, way: Association, heard: Message, ask: impl FnOnce(Asking) -> F)
    where
        F: Future<Output = Option<Body>> + Send + 'static,
    {
        let Some(asking) = self.asking.clone() else { return };
        let Ok(turn) = Arc::clone(&self.consulted).try_acquire_owned() else { return };
        let (socket, said) = (heard.body.socket(), ask(asking));
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let body = said.await.unwrap_or(Body::Error { socket, code: ErrorCode::NoServer });
            shared.counts.decided.fetch_add(1, Relaxed);
            shared.answer(way, &heard, Receptor::Distributor, body);
            drop(turn);
        });
    }

    /// Decides for another node.
    pub(super) fn decide(
        self: &Arc<Self>,
        way: Association,
        heard: Message,
        socket: SocketId,
        content: &Content,
    ) {
        let wanted = Wanted::told(content);
        self.consult(way, heard, |asking| async move {
            let (route, server) = asking.decide(ends(socket), &wanted).await?;
            Some(Body::DispatchReply { socket, route: route.unwrap_or(u16::MAX), server })
        });
    }

    /// Sends on to a server what comes here for a connection that another node has given to it.
    pub(super) fn forward(
        self: &Arc<Self>,
        way: Association,
        heard: Message,
        socket: SocketId,
        server: SocketAddr,
    ) {
        self.consult(way, heard, |asking| async move {
            let (answer, said) = oneshot::channel();
            asking.ask(Question::Forward { ends: ends(socket), server, answer }).await;
            said.await.ok().flatten().map(|()| Body::ForwardAck { socket })
        });
    }

    /// Notes that a connection is over.
    pub(super) fn close(&self, socket: SocketId) {
        if let Some(asking) = &self.asking {
            asking.tell(Question::Close { ends: ends(socket) });
        }
    }
}

fn ends(socket: SocketId) -> FourTuple {
    FourTuple { client: socket.client(), service: socket.server() }
}
