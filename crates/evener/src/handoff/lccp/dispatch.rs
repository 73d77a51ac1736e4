//! Dispatcher of the farm: queries to the dispatcher, and answers if this node is the dispatcher. A
//! node that gets no answer decides by its own tables, and publishes an event.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::node::lccp::wire::LccpMessage;
use evener_core::node::lccp::{ClientRequest, ErrorCode, MessageBody, Receptor, SocketId};
use tokio::sync::oneshot;

use super::{AddressPair, LccpNode, LccpState};
use crate::events::DaemonEvent;
use crate::handoff::{ControlLink, ControlQuery, FourTuple, NormalizedRequest};

/// State of the dispatcher, at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct DispatcherState {
    /// Address. `None` if there is no dispatcher, or if this node is the dispatcher.
    pub(super) at: Option<IpAddr>,
    /// True if the dispatcher has left a query unanswered, and no later query was answered.
    pub(super) unanswered: bool,
    /// True if an event has reported that this node decides by its own tables.
    pub(super) alone: bool,
}

impl LccpNode {
    /// Returns the dispatcher to query. `None` if no other node decides.
    pub(crate) fn dispatcher_elsewhere(&self) -> Option<IpAddr> {
        self.0.talk().dispatcher.at
    }

    /// Notifies the dispatcher of connections that it has assigned and that have ended. Lost
    /// notifications are harmless, since the dispatcher forgets connections later.
    pub(crate) fn announce_ended(&self, over: &[FourTuple]) {
        let Some(dispatcher) = self.0.talk().dispatcher.at else { return };
        for socket in over.iter().filter_map(|ends| SocketId::new(ends.client, ends.service)) {
            self.0.send(dispatcher, Receptor::Forwarder, MessageBody::Close { socket });
        }
    }

    /// Returns the dispatcher, and whether it responds. `None` without a dispatcher.
    pub(crate) fn dispatcher(&self) -> Option<(IpAddr, bool)> {
        let DispatcherState { at, unanswered, .. } = self.0.talk().dispatcher;
        at.map(|at| (at, !unanswered && self.0.speaks(at, Receptor::Dispatcher)))
    }

    /// Records whether the dispatcher responds. Publishes each change once. `requested` is true if
    /// the dispatcher was queried, and false if it is unreachable.
    pub(crate) fn dispatcher_answers(&self, dispatcher: IpAddr, answers: bool, requested: bool) {
        let known = &mut self.0.talk().dispatcher;
        known.unanswered = !answers && (known.unanswered || requested);
        if std::mem::replace(&mut known.alone, !answers) == answers {
            self.publish_dispatcher(dispatcher, answers);
        }
    }

    /// Publishes the event. Only nodes with a control loop have a dispatcher.
    fn publish_dispatcher(&self, address: IpAddr, decides: bool) {
        if let Some(control) = &self.0.control {
            control.publish(DaemonEvent::Dispatcher { address, decides });
        }
    }
}

impl LccpState {
    /// Answers a node's query through the control loop. Sends no answer without a control loop, or
    /// if there are too many queries.
    fn consult<F>(
        self: &Arc<Self>,
        way: AddressPair,
        message: LccpMessage,
        query: impl FnOnce(ControlLink) -> F,
    ) where
        F: Future<Output = Option<MessageBody>> + Send + 'static,
    {
        let Some(control) = self.control.clone() else { return };
        let Ok(turn) = Arc::clone(&self.consulted).try_acquire_owned() else { return };
        let (socket, reply) = (message.body.socket(), query(control));
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let body = reply.await.unwrap_or(MessageBody::Error { socket, code: ErrorCode::NoServer });
            shared.counts.decided.fetch_add(1, Relaxed);
            shared.answer(way, &message, Receptor::Distributor, body);
            drop(turn);
        });
    }

    /// Answers a dispatch query of another node.
    pub(super) fn decide(
        self: &Arc<Self>,
        way: AddressPair,
        message: LccpMessage,
        socket: SocketId,
        content: &ClientRequest,
    ) {
        let wanted = NormalizedRequest::from_peer(content);
        self.consult(way, message, |control| async move {
            let (route, server) = control.decide(ends(socket), &wanted).await?;
            Some(MessageBody::DispatchReply { socket, route: route.unwrap_or(u16::MAX), server })
        });
    }

    /// Forwards a connection that another node has assigned to a server.
    pub(super) fn forward(
        self: &Arc<Self>,
        way: AddressPair,
        message: LccpMessage,
        socket: SocketId,
        server: SocketAddr,
    ) {
        self.consult(way, message, |control| async move {
            let (answer, reply) = oneshot::channel();
            control.send(ControlQuery::Forward { ends: ends(socket), server, answer }).await;
            reply.await.ok().flatten().map(|()| MessageBody::ForwardAck { socket })
        });
    }

    /// Passes the end of a connection to the control loop.
    pub(super) fn close(&self, socket: SocketId) {
        if let Some(control) = &self.control {
            control.try_send(ControlQuery::Close { ends: ends(socket) });
        }
    }
}

fn ends(socket: SocketId) -> FourTuple {
    FourTuple { client: socket.client(), service: socket.server() }
}
