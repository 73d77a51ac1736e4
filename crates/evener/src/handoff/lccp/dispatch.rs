//! One node decides for all: asking the dispatcher, and answering as it. A node without an answer
//! decides by its own tables, and says so.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::node::lccp::wire::LccpMessage;
use evener_core::node::lccp::{ClientRequest, ErrorCode, MessageBody, Receptor, SocketId};
use tokio::sync::oneshot;

use super::{AddressPair, LccpNode, LccpState};
use crate::events::DaemonEvent;
use crate::handoff::{ControlLink, ControlQuery, FourTuple, NormalizedRequest};

/// The dispatcher's state at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct DispatcherState {
    /// Where it is; `None` if there is none, or if this node is the one.
    pub(super) at: Option<IpAddr>,
    /// Whether it left a question without an answer since it gave one.
    pub(super) unanswered: bool,
    /// Whether it was said that this node decides by its own tables.
    pub(super) alone: bool,
}

impl LccpNode {
    /// The node to ask which server is to have a connection; `None` where no other node decides.
    pub(crate) fn dispatcher_elsewhere(&self) -> Option<IpAddr> {
        self.0.talk().dispatcher.at
    }

    /// Tells the dispatcher which connections of those that it has decided are over. Those that get
    /// lost it forgets by itself, later.
    pub(crate) fn announce_ended(&self, over: &[FourTuple]) {
        let Some(dispatcher) = self.0.talk().dispatcher.at else { return };
        for socket in over.iter().filter_map(|ends| SocketId::new(ends.client, ends.service)) {
            self.0.send(dispatcher, Receptor::Forwarder, MessageBody::Close { socket });
        }
    }

    /// The dispatcher, and whether it decides; nothing without one.
    pub(crate) fn dispatcher(&self) -> Option<(IpAddr, bool)> {
        let DispatcherState { at, unanswered, .. } = self.0.talk().dispatcher;
        at.map(|at| (at, !unanswered && self.0.speaks(at, Receptor::Dispatcher)))
    }

    /// Notes whether the dispatcher has answered. Said once for each time that it is gone: it was
    /// `asked` then, or isn't heard at all.
    pub(crate) fn dispatcher_answers(&self, dispatcher: IpAddr, answers: bool, requested: bool) {
        let known = &mut self.0.talk().dispatcher;
        known.unanswered = !answers && (known.unanswered || requested);
        if std::mem::replace(&mut known.alone, !answers) == answers {
            self.publish_dispatcher(dispatcher, answers);
        }
    }

    /// Only who has a control loop to ask has a dispatcher, too.
    fn publish_dispatcher(&self, address: IpAddr, decides: bool) {
        if let Some(control) = &self.0.control {
            control.publish(DaemonEvent::Dispatcher { address, decides });
        }
    }
}

impl LccpState {
    /// Has the control loop say what a node asks; without an answer there is no server. Where
    /// nobody listens, or there is too much to be asked, nothing is said.
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

    /// Decides for another node.
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

    /// Sends on to a server what comes here for a connection that another node has given to it.
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

    /// Notes that a connection is over.
    pub(super) fn close(&self, socket: SocketId) {
        if let Some(control) = &self.control {
            control.try_send(ControlQuery::Close { ends: ends(socket) });
        }
    }
}

fn ends(socket: SocketId) -> FourTuple {
    FourTuple { client: socket.client(), service: socket.server() }
}
