//! Exchange with another node about one connection. Its
//! [`Transfer`](evener_core::director::transfer::Transfer) decides about timeouts.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::director::transfer::TransferEvent;
use evener_core::node::lccp::{MessageBody, Receptor, SocketId};
use tokio::sync::mpsc;

use super::{ANSWERS, LccpNode, LccpState, OpenExchange};
use crate::handoff::FourTuple;

/// An exchange with one node about one connection. Answers are received until it is dropped.
pub(crate) struct PeerExchange {
    shared: Arc<LccpState>,
    node: IpAddr,
    receptor: Receptor,
    socket: SocketId,
    /// Identifies the exchange among several exchanges about one connection: a new exchange may
    /// begin before this exchange has ended.
    sender: mpsc::Sender<MessageBody>,
    answers: mpsc::Receiver<MessageBody>,
}

impl LccpNode {
    /// Begins an exchange with a node about a connection. `None` if the node is unreachable, or
    /// lacks the component.
    pub(crate) fn exchange(
        &self,
        node: IpAddr,
        receptor: Receptor,
        ends: &FourTuple,
    ) -> Option<PeerExchange> {
        let socket = SocketId::new(ends.client, ends.service)?;
        if !self.0.speaks(node, receptor) {
            return None;
        }
        let (sender, answers) = mpsc::channel(ANSWERS);
        let waiting = OpenExchange { since: None, answers: sender.clone() };
        self.0.talk().waiting.insert((node, socket), waiting);
        Some(PeerExchange { shared: Arc::clone(&self.0), node, receptor, socket, sender, answers })
    }

    /// Counts an event of a transfer.
    pub(crate) fn count(&self, notice: TransferEvent) {
        let counts = &self.0.counts;
        let count = match notice {
            TransferEvent::ReleaseRequested => &counts.release_requested,
            TransferEvent::Released => &counts.released,
            TransferEvent::Busy => &counts.release_busy,
            TransferEvent::DispatchRequested => &counts.requested,
            TransferEvent::Advised => &counts.answered,
            TransferEvent::Alone { .. } => &counts.alone,
            TransferEvent::Unbelieved => &counts.disallowed_answers,
            TransferEvent::Taken => &counts.given,
            TransferEvent::NotTaken => &counts.not_restored,
            TransferEvent::Unanswered => &counts.unanswered,
            TransferEvent::Settled { .. } => return,
        };
        count.fetch_add(1, Relaxed);
    }
}

impl PeerExchange {
    /// Returns the connection's addresses and ports.
    pub(crate) fn socket(&self) -> SocketId {
        self.socket
    }

    /// Sends a message to the node.
    pub(crate) fn send(&self, body: MessageBody) {
        self.shared.send(self.node, self.receptor, body);
    }

    /// Returns the node's next answer. Never resolves if there is none.
    pub(crate) async fn answer(&mut self) -> MessageBody {
        match self.answers.recv().await {
            Some(body) => {
                if self.receptor == Receptor::Dispatcher {
                    LccpNode(Arc::clone(&self.shared)).dispatcher_answers(self.node, true, true);
                }
                body
            }
            // Unreachable: this exchange holds a sender itself.
            None => std::future::pending().await,
        }
    }
}

impl Drop for PeerExchange {
    fn drop(&mut self) {
        let (waiting, key) = (&mut self.shared.talk().waiting, (self.node, self.socket));
        if waiting.get(&key).is_some_and(|waiting| waiting.answers.same_channel(&self.sender)) {
            waiting.remove(&key);
        }
    }
}
