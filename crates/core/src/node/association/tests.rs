//! Two nodes and an attacker on their network, for both kinds of delivery: the messages that each
//! node accepts.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::vec::Vec;

const SILENCE_MS: u64 = 3_000;
const BOTH: [Delivery; 2] = [Delivery::Latest, Delivery::Each];

/// A message in flight. The attacker has recorded it, too.
#[derive(Clone, Copy, Debug)]
struct Mail {
    from: usize,
    /// Life of the sender; lives of both nodes are counted together.
    life: u64,
    sent_ms: u64,
    message: ReceivedMessage,
}

struct Node {
    association: Association,
    life: u64,
    /// Lead of the node's clock, in milliseconds.
    ahead_ms: u64,
    started_ms: u64,
    /// Accepted messages, by sender's life and sequence number.
    believed: BTreeSet<(u64, u64)>,
    /// Life of the last accepted message.
    last: Option<u64>,
}

struct Pair {
    delivery: Delivery,
    now_ms: u64,
    lives: u64,
    nodes: [Node; 2],
    recorded: Vec<Mail>,
}

impl Pair {
    fn new(delivery: Delivery) -> Pair {
        let nodes = [0, 1].map(|at| Node::new(delivery, at as u64 + 1, [7, 1 << 50][at], 0));
        Pair { delivery, now_ms: 0, lives: 2, nodes, recorded: Vec::new() }
    }

    /// Encodes a message of a node, in the given role of the handshake.
    fn write(&mut self, from: usize, handshake: Handshake, echo: Numbers) -> Mail {
        let node = &mut self.nodes[from];
        let numbers = match self.delivery {
            Delivery::Latest => node.association.next_at(self.now_ms + node.ahead_ms),
            Delivery::Each => node.association.next(),
        };
        let message = ReceivedMessage { numbers, echo, handshake };
        let mail = Mail { from, life: node.life, sent_ms: self.now_ms, message };
        self.recorded.push(mail);
        mail
    }

    fn send(&mut self, from: usize, is_hello: bool) -> Mail {
        let echo = match self.delivery {
            Delivery::Latest => self.nodes[from].association.echo(),
            Delivery::Each if is_hello => Numbers::default(),
            Delivery::Each => {
                let incarnation = self.nodes[from].association.believed().unwrap_or_default();
                Numbers { incarnation, sequence: 0 }
            }
        };
        let is_hello = is_hello || self.delivery == Delivery::Latest;
        self.write(from, if is_hello { Handshake::Hello } else { Handshake::None }, echo)
    }

    /// Delivers a message, from its sender or the attacker. Returns the answer.
    fn deliver(&mut self, mail: Mail) -> Option<Mail> {
        let to = 1 - mail.from;
        let ReceivedMessage { numbers, handshake, .. } = mail.message;
        let node = &mut self.nodes[to];
        let now_ms = self.now_ms + node.ahead_ms;
        let acquaints = match node.association.judge(now_ms, mail.message) {
            MessageVerdict::Good { first, .. } => {
                self.check(mail, first);
                let answers = handshake == Handshake::Hello;
                return match self.delivery {
                    Delivery::Latest => first.then(|| self.write(to, Handshake::Hello, numbers)),
                    Delivery::Each => answers.then(|| self.write(to, Handshake::Ack, numbers)),
                };
            }
            MessageVerdict::Hello => true,
            MessageVerdict::Refused(refusal) => {
                node.association.refuse(refusal);
                matches!(refusal, Refusal::Stale | Refusal::Former | Refusal::Unknown)
            }
        };
        acquaints.then(|| self.write(to, Handshake::Hello, numbers))
    }

    /// Checks an accepted message: it was not accepted before, is not meant for an earlier life of
    /// the receiver, and belongs to no life before the last accepted one. With [`Delivery::Latest`]
    /// it is no older than the silence.
    fn check(&mut self, mail: Mail, first: bool) {
        let node = &mut self.nodes[1 - mail.from];
        let (sent_ms, ReceivedMessage { numbers, echo, handshake }) = (mail.sent_ms, mail.message);
        assert!(node.believed.insert((mail.life, numbers.sequence)), "{mail:?} is believed twice");
        assert!(
            echo.incarnation == node.association.own || handshake == Handshake::Hello && !first,
            "{mail:?}"
        );
        assert!(sent_ms >= node.started_ms || !first, "{mail:?} was written before this node's start");
        assert!(
            node.last.is_none_or(|last| mail.life >= last),
            "{mail:?} is of a life before {:?}",
            node.last
        );
        node.last = Some(mail.life);
        if self.delivery == Delivery::Latest {
            assert!(self.now_ms - sent_ms <= SILENCE_MS, "{mail:?} is old at {}", self.now_ms);
            let later = node.believed.range((mail.life, numbers.sequence + 1)..=(mail.life, u64::MAX));
            assert_eq!(later.count(), 0, "{mail:?} was overtaken");
        }
    }

    /// Delivers a message, then all answers.
    fn talk(&mut self, mail: Mail) {
        let mut mails = 0;
        let mut next = Some(mail);
        while let Some(mail) = next {
            next = self.deliver(mail);
            mails += 1;
            assert!(mails < 8, "answers end");
        }
    }

    fn restart(&mut self, at: usize) {
        self.lives += 1;
        self.nodes[at] = Node::new(self.delivery, self.lives, self.nodes[at].ahead_ms, self.now_ms);
    }

    fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        for node in &mut self.nodes {
            node.association.expire(self.now_ms + node.ahead_ms);
        }
    }

    /// True if each node accepts the present life of the other.
    fn are_acquainted(&self) -> bool {
        [0, 1].into_iter().all(|at| {
            self.nodes[at].association.believed() == Some(self.nodes[1 - at].association.own)
                && self.nodes[at].association.is_alive()
        })
    }

    fn refused(&self, at: usize, refusal: Refusal) -> u64 {
        self.nodes[at].association.counters().refused(refusal)
    }
}

impl Node {
    fn new(delivery: Delivery, life: u64, ahead_ms: u64, started_ms: u64) -> Node {
        // Incarnations have no order.
        let association = Association::new(delivery, (life * 0x9e37_79b9) % 65_521, SILENCE_MS, 0);
        Node { association, life, ahead_ms, started_ms, believed: BTreeSet::new(), last: None }
    }
}

fn acquainted(delivery: Delivery) -> Pair {
    let mut pair = Pair::new(delivery);
    let hello = pair.send(0, true);
    pair.talk(hello);
    assert!(pair.are_acquainted(), "{delivery:?}");
    pair
}

#[test]
fn three_messages_make_acquaintance_and_a_restart_takes_no_more() {
    for delivery in BOTH {
        let mut pair = acquainted(delivery);
        for at in [0, 1] {
            pair.restart(at);
            let before = pair.recorded.len();
            let hello = pair.send(at, true);
            pair.talk(hello);
            assert!(pair.are_acquainted(), "{delivery:?}");
            assert!(pair.recorded.len() - before <= 4, "{delivery:?}");
        }
    }
}

#[test]
fn each_kind_of_old_message_has_a_refusal_of_its_own() {
    for delivery in BOTH {
        let mut pair = acquainted(delivery);
        let mail = pair.send(0, false);
        pair.talk(mail);
        pair.talk(mail);
        assert_eq!(pair.refused(1, Refusal::Replayed), 1, "{delivery:?}: twice");
        let held_back = pair.send(0, false);
        pair.restart(0);
        let hello = pair.send(0, true);
        pair.talk(hello);
        pair.deliver(held_back);
        let ended = if delivery == Delivery::Latest { Refusal::Ended } else { Refusal::Unknown };
        assert_eq!(pair.refused(1, ended), 1, "{delivery:?}: of a former life of its sender");
        let written = pair.send(0, false);
        pair.restart(1);
        pair.deliver(written);
        let former = if delivery == Delivery::Latest { 0 } else { 1 };
        assert_eq!(pair.refused(1, Refusal::Former), former, "{delivery:?}: to a former life");
        assert!(pair.nodes[1].association.believed().is_none());
    }
}

#[test]
fn two_hosts_with_one_name_are_distinguished_and_one_accepted() {
    for delivery in BOTH {
        let mut pair = acquainted(delivery);
        let mut twin = Node::new(delivery, 99, 0, 0).association;
        for _ in 0..10 {
            let mail = pair.send(0, true);
            pair.talk(mail);
            let mail = pair.send(1, true);
            pair.talk(mail);
            let message = ReceivedMessage {
                numbers: twin.next(),
                echo: Numbers::default(),
                handshake: Handshake::Hello,
            };
            let now_ms = pair.now_ms + pair.nodes[1].ahead_ms;
            if let MessageVerdict::Refused(refusal) = pair.nodes[1].association.judge(now_ms, message) {
                pair.nodes[1].association.refuse(refusal);
            }
            pair.wait(500);
        }
        assert!(pair.are_acquainted() && pair.refused(1, Refusal::Namesake) > 0, "{delivery:?}");
        assert_eq!(pair.refused(0, Refusal::Namesake), 0);
    }
}

/// A node that was not in the file for a while may remember earlier messages.
#[test]
fn node_restored_to_file_keeps_its_association() {
    for delivery in BOTH {
        let mut pair = acquainted(delivery);
        for _ in 0..200 {
            let mail = pair.send(0, true);
            pair.talk(mail);
        }
        let (own, after) = (pair.nodes[0].association.own, pair.nodes[0].association.sequence());
        let recorded = pair.recorded.clone();
        pair.nodes[0].association = Association::new(delivery, own, SILENCE_MS, after);
        pair.nodes[0].believed.clear();
        for mail in recorded.into_iter().filter(|mail| mail.from == 1) {
            pair.deliver(mail);
        }
        assert!(pair.nodes[0].association.believed().is_none(), "{delivery:?}: all that is of before");
        for at in [0, 1] {
            let mail = pair.send(at, true);
            pair.talk(mail);
        }
        assert!(pair.are_acquainted(), "{delivery:?}");
    }
}

#[test]
fn refusal_is_reported_once_and_kept_until_valid_message() {
    let mut pair = acquainted(Delivery::Each);
    let (key, version) = (Refusal::Key { ahead_h: 24 }, Refusal::Version { theirs: 2, ours: 1 });
    let one = &mut pair.nodes[0].association;
    let refuse = |one: &mut Association, refusal| (one.refuse(refusal), one.suspect(refusal));
    assert_eq!(refuse(one, key), (true, false), "told, and what is heard is understood");
    assert_eq!((one.trouble(), refuse(one, key).0), (None, false));
    pair.wait(SILENCE_MS);
    let one = &mut pair.nodes[0].association;
    assert!(!one.is_alive());
    assert_eq!((one.trouble(), refuse(one, version)), (Some(key), (true, true)));
    assert_eq!(refuse(one, Refusal::Replayed), (true, false));
    assert_eq!(one.trouble(), Some(version));
    let mail = pair.send(1, true);
    pair.talk(mail);
    let one = &mut pair.nodes[0].association;
    assert_eq!((one.trouble(), refuse(one, key)), (None, (true, false)), "told anew");
    assert_eq!(
        (refuse(one, version), one.trouble()),
        ((true, true), Some(version)),
        "it may live all the same"
    );
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A message is sent. It may be lost.
    Send {
        from: usize,
        is_hello: bool,
        arrives: bool,
    },
    /// Any earlier message is delivered late or again.
    Play(usize),
    Restart(usize),
    Wait(u64),
    /// A clock jumps ahead.
    Leap(usize, u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..2usize, any::<bool>(), any::<bool>())
            .prop_map(|(from, is_hello, arrives)| Event::Send { from, is_hello, arrives }),
        6 => any::<usize>().prop_map(Event::Play),
        1 => (0..2usize).prop_map(Event::Restart),
        3 => (0u64..2_000).prop_map(Event::Wait),
        1 => (0..2usize, prop::sample::select(std::vec![1, SILENCE_MS, 86_400_000])).prop_map(|(at, ms)| Event::Leap(at, ms)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// [`Pair::check`] checks every accepted message.
    #[test]
    fn replayed_messages_are_refused_and_nodes_reassociate(
        each: bool, events in prop::collection::vec(event(), 0..80),
    ) {
        let mut pair = Pair::new(if each { Delivery::Each } else { Delivery::Latest });
        for event in events {
            match event {
                Event::Send { from, is_hello, arrives } => {
                    let mail = pair.send(from, is_hello);
                    if arrives {
                        pair.talk(mail);
                    }
                }
                Event::Play(which) => {
                    let which = which.checked_rem(pair.recorded.len());
                    which.map(|at| pair.recorded[at]).into_iter().for_each(|mail| pair.talk(mail));
                }
                Event::Restart(at) => pair.restart(at),
                Event::Wait(ms) => pair.wait(ms),
                Event::Leap(at, ms) => {
                    pair.nodes[at].ahead_ms += ms;
                    pair.wait(0);
                }
            }
            for node in &pair.nodes {
                prop_assert!(node.association.memory() <= 64);
            }
        }
        // A few delivered messages suffice, whatever happened before.
        for at in [0, 1, 0, 1] {
            let mail = pair.send(at, true);
            pair.talk(mail);
        }
        prop_assert!(pair.are_acquainted());
    }
}
