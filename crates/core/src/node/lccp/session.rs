//! One other node: which of its messages to believe.
//!
//! No clock is compared. Every message but a greeting names the life of the receiver that it is written to, so nothing
//! that was said before this node's start is believed. And another life of a sender is believed only once it has answered
//! something that was sent after the life before was known: what ended before that has never heard of it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::body::{Body, Components, Receptor};
use super::event::{Counters, Notice, Refusal};
use super::key::Keys;
use super::window::Window;
use super::wire::{Addresses, Message, Numbers};

/// What a node knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// The address that it sends from and is sent to.
    pub address: IpAddr,
    /// Random for each start, not 0.
    pub incarnation: u64,
    /// What it has.
    pub components: Components,
}

/// A life of the other node that is believed.
#[derive(Clone, Copy, Debug)]
struct Life {
    incarnation: u64,
    window: Window,
    components: Components,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    /// To be believed. It may be the `first` of its incarnation.
    Good { first: bool },
    /// Of a life that is to show first that it is one.
    Hello,
    /// Neither.
    Refused(Refusal),
}

/// What came of a message.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Received {
    /// The message, if it is to be acted on.
    pub message: Option<Message>,
    /// Bytes to send back to the node, not longer than what was received.
    pub answer: Option<Vec<u8>>,
    /// Something for the log.
    pub notice: Option<Notice>,
}

/// What is shared with one other node.
#[derive(Clone, Debug)]
pub struct Session {
    own: Own,
    peer: IpAddr,
    /// Of the message that was sent last.
    sequence: u64,
    /// That of the message that was sent last before the believed life was. No other life is believed that answers
    /// it or one before.
    settled: u64,
    life: Option<Life>,
    counters: Counters,
    /// Reasons that were told already.
    told: BTreeSet<Refusal>,
}

impl Session {
    /// With a node that was never heard.
    pub fn new(own: Own, peer: IpAddr) -> Session {
        // 0 in a message means that no life is known
        let own = Own { incarnation: own.incarnation.max(1), ..own };
        Session {
            own,
            peer,
            sequence: 0,
            settled: 0,
            life: None,
            counters: Counters::default(),
            told: BTreeSet::new(),
        }
    }

    /// Whether the other node is known, so that there is somebody to [`Session::send`] to.
    pub fn is_known(&self) -> bool {
        self.life.is_some()
    }

    /// What the other node has, if it is known.
    pub fn components(&self) -> Option<Components> {
        self.life.map(|life| life.components)
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A greeting: to be sent until the node is known, and again when it has stopped to answer.
    pub fn init(&mut self, keys: &Keys) -> Vec<u8> {
        self.send_init(keys, Numbers::default())
    }

    /// A message that answers none; its bytes and its number, which answers will have. `None` until the node is known.
    pub fn send(&mut self, keys: &Keys, receptor: Receptor, body: Body) -> Option<(u64, Vec<u8>)> {
        let echo = Numbers { incarnation: self.life?.incarnation, sequence: 0 };
        let bytes = self.write(keys, echo, receptor, body);
        Some((self.sequence, bytes))
    }

    /// An answer to this message. `None` if its sender has started anew since.
    pub fn answer(
        &mut self,
        keys: &Keys,
        heard: &Message,
        receptor: Receptor,
        body: Body,
    ) -> Option<Vec<u8>> {
        let same = self.life.is_some_and(|life| life.incarnation == heard.numbers.incarnation);
        same.then(|| self.write(keys, heard.numbers, receptor, body))
    }

    /// Takes in what stood behind the IP header of a packet from this node's address to the own one.
    pub fn receive(&mut self, keys: &Keys, bytes: &[u8]) -> Received {
        let addresses = Addresses { source: self.peer, destination: self.own.address };
        let heard = match Message::read(bytes, addresses, keys) {
            Ok(heard) => heard,
            Err(error) => return self.refuse(error.into()),
        };
        let known = self.is_known();
        match self.judge(&heard) {
            Judgement::Hello => {
                self.counters.hellos += 1;
                Received { answer: Some(self.send_init(keys, heard.numbers)), ..Received::default() }
            }
            Judgement::Refused(refusal) => {
                // one of the two doesn't know that the other started anew
                let asks = matches!(refusal, Refusal::Former | Refusal::Unknown);
                let answer = asks.then(|| self.send_init(keys, heard.numbers));
                Received { answer, ..self.refuse(refusal) }
            }
            Judgement::Good { first } => {
                self.counters.accepted += 1;
                let notice = first.then(|| self.meet(known));
                Received { notice, ..self.believe(keys, heard) }
            }
        }
    }

    /// Judges an authentic message, and remembers its numbers if it is good.
    fn judge(&mut self, heard: &Message) -> Judgement {
        let numbers = heard.numbers;
        let is_init = matches!(heard.body, Body::Init { .. });
        let for_us = heard.echo.incarnation == self.own.incarnation;
        if let Some(life) = self.life.as_mut().filter(|life| life.incarnation == numbers.incarnation) {
            return match () {
                () if !for_us && !is_init => Judgement::Refused(Refusal::Former),
                () if !life.window.take(numbers.sequence) => Judgement::Refused(Refusal::Replayed),
                () if !self.own.components.contains(heard.receptor) => Judgement::Refused(Refusal::Receptor),
                () => Judgement::Good { first: false },
            };
        }
        match heard.body {
            Body::Init { .. } if !for_us => Judgement::Hello,
            _ if !for_us => Judgement::Refused(Refusal::Former),
            Body::Init { components } | Body::InitAck { components } => {
                let later = heard.echo.sequence > self.settled && heard.echo.sequence <= self.sequence;
                let mut window = Window::default();
                if !later || !window.take(numbers.sequence) {
                    return Judgement::Refused(Refusal::Replayed);
                }
                self.settled = self.sequence;
                self.life = Some(Life { incarnation: numbers.incarnation, window, components });
                Judgement::Good { first: true }
            }
            _ => Judgement::Refused(Refusal::Unknown),
        }
    }

    /// Hands on what is believed; a greeting is answered here.
    fn believe(&mut self, keys: &Keys, heard: Message) -> Received {
        let (Body::Init { components } | Body::InitAck { components }) = heard.body else {
            return Received { message: Some(heard), ..Received::default() };
        };
        if let Some(life) = &mut self.life {
            life.components = components;
        }
        let answers = matches!(heard.body, Body::Init { .. });
        let body = Body::InitAck { components: self.own.components };
        let answer = answers.then(|| self.write(keys, heard.numbers, Receptor::Agent, body));
        Received { answer, ..Received::default() }
    }

    /// Says who this node is, and wants to know who the other one is.
    fn send_init(&mut self, keys: &Keys, echo: Numbers) -> Vec<u8> {
        let components = self.own.components;
        self.write(keys, echo, Receptor::Agent, Body::Init { components })
    }

    fn write(&mut self, keys: &Keys, echo: Numbers, receptor: Receptor, body: Body) -> Vec<u8> {
        self.sequence += 1;
        self.counters.sent += 1;
        let numbers = Numbers { incarnation: self.own.incarnation, sequence: self.sequence };
        let addresses = Addresses { source: self.own.address, destination: self.peer };
        Message { numbers, echo, receptor, body }.write(addresses, keys)
    }

    fn meet(&mut self, known: bool) -> Notice {
        self.told.clear();
        let peer = self.peer;
        if known { Notice::Restarted { peer } } else { Notice::Met { peer } }
    }

    fn refuse(&mut self, refusal: Refusal) -> Received {
        self.counters.refuse(refusal);
        let news = self.told.insert(refusal);
        let notice = news.then_some(Notice::Refused { peer: self.peer, refusal });
        Received { notice, ..Received::default() }
    }
}
