//! Session with one other node. It decides which messages of the node are used.

use alloc::vec::Vec;
use core::net::IpAddr;

use super::body::{Components, MessageBody, Receptor};
use super::event::LccpEvent;
use super::key::HourlyKeys;
use super::wire::{Addresses, LccpMessage};
use crate::node::association::{
    Association, Delivery, Handshake, MessageCounters, MessageVerdict, Numbers, ReceivedMessage, Refusal,
};

/// Time without messages after which a node gets no requests, in milliseconds. Nodes send several
/// greetings in this time.
pub const SILENCE_MS: u64 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalNode {
    /// Address from which the node sends and at which it receives.
    pub address: IpAddr,
    /// Random number of the node's start, never 0.
    pub incarnation: u64,
    pub components: Components,
}

/// Effect of a received message.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MessageEffect {
    /// The received message, if the caller has to act on it.
    pub message: Option<LccpMessage>,
    /// Bytes to send back to the node, not longer than the received message.
    pub answer: Option<Vec<u8>>,
    /// Event for the log.
    pub notice: Option<LccpEvent>,
}

/// The session with one other node.
#[derive(Clone, Debug)]
pub struct LccpSession {
    own: LocalNode,
    peer: IpAddr,
    association: Association,
    /// Components of the other node; `None` until the node is known.
    components: Option<Components>,
}

impl LccpSession {
    /// Returns a session with a node that has sent no message. Message numbers continue after
    /// `after`. It is 0, or [`LccpSession::sequence`] of an earlier session with the node since
    /// this node's start.
    pub fn new(own: LocalNode, peer: IpAddr, after: u64) -> LccpSession {
        let association = Association::new(Delivery::Each, own.incarnation, SILENCE_MS, after);
        LccpSession { own, peer, association, components: None }
    }

    /// True if the other node is known, so that [`LccpSession::send`] returns messages.
    pub fn is_known(&self) -> bool {
        self.association.believed().is_some()
    }

    /// True if the node is not silent.
    pub fn is_alive(&self, now_ms: u64) -> bool {
        self.association.alive_until_ms().is_some_and(|until_ms| now_ms < until_ms)
    }

    /// Components of the other node; `None` until the node is known.
    pub fn components(&self) -> Option<Components> {
        self.components
    }

    pub fn counters(&self) -> &MessageCounters {
        self.association.counters()
    }

    /// Number of the last message that was sent to the node.
    pub fn sequence(&self) -> u64 {
        self.association.sequence()
    }

    /// Reason why all messages of the node are refused. `None` if one is accepted, or if the reason
    /// is unknown.
    pub fn trouble(&self) -> Option<Refusal> {
        self.association.trouble()
    }

    /// Checks for silence, and returns the event once.
    pub fn expire(&mut self, now_ms: u64) -> Option<LccpEvent> {
        self.association.expire(now_ms).then_some(LccpEvent::Silent { peer: self.peer })
    }

    /// Returns a greeting. The caller sends greetings until the node is known, and again while the
    /// node is silent.
    pub fn init(&mut self, keys: &HourlyKeys) -> Vec<u8> {
        self.send_init(keys, Numbers::default())
    }

    /// Returns an unsolicited message with its number. Answers to the message echo the number.
    /// `None` until the node is known.
    pub fn send(
        &mut self,
        keys: &HourlyKeys,
        receptor: Receptor,
        body: MessageBody,
    ) -> Option<(u64, Vec<u8>)> {
        let echo = Numbers { incarnation: self.association.believed()?, sequence: 0 };
        let bytes = self.write(keys, echo, receptor, body);
        Some((self.sequence(), bytes))
    }

    /// Returns an answer to this message; `None` if the message's sender has restarted since.
    pub fn answer(
        &mut self,
        keys: &HourlyKeys,
        message: &LccpMessage,
        receptor: Receptor,
        body: MessageBody,
    ) -> Option<Vec<u8>> {
        let same = self.association.believed() == Some(message.numbers.incarnation);
        same.then(|| self.write(keys, message.numbers, receptor, body))
    }

    /// Applies the payload of an IP packet from the node's address to this node's address.
    pub fn receive(&mut self, now_ms: u64, keys: &HourlyKeys, bytes: &[u8]) -> MessageEffect {
        let addresses = Addresses { source: self.peer, destination: self.own.address };
        let message = match LccpMessage::read(bytes, addresses, keys) {
            Ok(message) => message,
            Err(error) => return self.refuse(error.into()),
        };
        let LccpMessage { numbers, echo, .. } = message;
        let known = self.is_known();
        match self
            .association
            .judge(now_ms, ReceivedMessage { numbers, echo, handshake: handshake_of(&message.body) })
        {
            MessageVerdict::Hello => {
                MessageEffect { answer: Some(self.send_init(keys, numbers)), ..MessageEffect::default() }
            }
            MessageVerdict::Refused(refusal) => {
                // With these refusals, one of the two nodes doesn't know yet that the other has
                // restarted. A greeting starts a new handshake.
                let needs_handshake = matches!(refusal, Refusal::Former | Refusal::Unknown | Refusal::Stale);
                let answer = needs_handshake.then(|| self.send_init(keys, numbers));
                MessageEffect { answer, ..self.refuse(refusal) }
            }
            MessageVerdict::Good { .. } if !self.own.components.contains(message.receptor) => {
                self.refuse(Refusal::Receptor)
            }
            MessageVerdict::Good { first, revived } => {
                let peer = self.peer;
                let notice = match (first, known) {
                    (true, false) => Some(LccpEvent::Met { peer }),
                    (true, true) => Some(LccpEvent::Restarted { peer }),
                    (false, _) => revived.then_some(LccpEvent::Answers { peer }),
                };
                MessageEffect { notice, ..self.believe(keys, message) }
            }
        }
    }

    /// Passes an accepted message to the caller. Greetings are answered by the session itself.
    fn believe(&mut self, keys: &HourlyKeys, message: LccpMessage) -> MessageEffect {
        let (MessageBody::Init { components } | MessageBody::InitAck { components }) = message.body else {
            return MessageEffect { message: Some(message), ..MessageEffect::default() };
        };
        self.components = Some(components);
        let answers = matches!(message.body, MessageBody::Init { .. });
        let body = MessageBody::InitAck { components: self.own.components };
        let answer = answers.then(|| self.write(keys, message.numbers, Receptor::Agent, body));
        MessageEffect { answer, ..MessageEffect::default() }
    }

    /// Writes a greeting with this node's components, which requests an answer.
    fn send_init(&mut self, keys: &HourlyKeys, echo: Numbers) -> Vec<u8> {
        let components = self.own.components;
        self.write(keys, echo, Receptor::Agent, MessageBody::Init { components })
    }

    fn write(&mut self, keys: &HourlyKeys, echo: Numbers, receptor: Receptor, body: MessageBody) -> Vec<u8> {
        let numbers = self.association.next();
        let addresses = Addresses { source: self.own.address, destination: self.peer };
        LccpMessage { numbers, echo, receptor, body }.write(addresses, keys)
    }

    fn refuse(&mut self, refusal: Refusal) -> MessageEffect {
        self.association.suspect(refusal);
        let news = self.association.refuse(refusal);
        let notice = news.then_some(LccpEvent::Refused { peer: self.peer, refusal });
        MessageEffect { notice, ..MessageEffect::default() }
    }
}

fn handshake_of(body: &MessageBody) -> Handshake {
    match body {
        MessageBody::Init { .. } => Handshake::Hello,
        MessageBody::InitAck { .. } => Handshake::Ack,
        _ => Handshake::None,
    }
}
