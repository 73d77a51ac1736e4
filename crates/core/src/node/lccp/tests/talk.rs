//! Two nodes over a network that loses, duplicates, delays and replays messages.

use std::vec::Vec;

use super::super::wire::{VERSION, seal};
use super::*;
use crate::node::association::Refusal;
use crate::node::secret::TAG_LEN;

struct Node {
    own: IpAddr,
    peer: IpAddr,
    session: LccpSession,
    received: Vec<LccpMessage>,
    notices: Vec<LccpEvent>,
}

/// Returns node 11 or 12, with the other one as its peer.
fn node(last: u8, incarnation: u64) -> Node {
    let components = match last {
        11 => Components::new(&[Receptor::Distributor]),
        _ => Components::new(&[Receptor::Dispatcher]),
    };
    let own = LocalNode { address: address(last), incarnation, components };
    let peer = address(23 - last);
    let session = LccpSession::new(own, peer, 0);
    Node { own: own.address, peer, session, received: Vec::new(), notices: Vec::new() }
}

impl Node {
    fn receive(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let received = self.session.receive(0, &keys(), bytes);
        self.received.extend(received.message);
        self.notices.extend(received.notice);
        received.answer
    }

    fn refused(&self, refusal: Refusal) -> u64 {
        self.session.counters().refused(refusal)
    }

    fn query(&mut self) -> Vec<u8> {
        let body = MessageBody::DispatchRequest { socket: socket(false), content: ClientRequest::default() };
        self.session.send(&keys(), Receptor::Dispatcher, body).unwrap().1
    }
}

/// Delivers a message, and then the answers to it. Returns all messages in sequence.
fn deliver(bytes: Vec<u8>, from: &mut Node, to: &mut Node) -> Vec<Vec<u8>> {
    let mut wire = std::vec![bytes];
    let (mut receiver, mut sender) = (to, from);
    while let Some(answer) = wire.last().and_then(|bytes| receiver.receive(bytes)) {
        assert!(wire.len() < 10, "answers end");
        assert!(wire.last().is_some_and(|bytes| answer.len() <= bytes.len()), "no answer is longer");
        wire.push(answer);
        (receiver, sender) = (sender, receiver);
    }
    wire
}

/// Returns a distributor and a dispatcher that know each other, and the messages of their
/// handshake.
fn acquainted() -> (Node, Node, Vec<Vec<u8>>) {
    let (mut one, mut other) = (node(11, 100), node(12, 200));
    let init = one.session.init(&keys());
    let wire = deliver(init, &mut one, &mut other);
    (one, other, wire)
}

#[test]
fn three_messages_make_two_nodes_known_to_each_other() {
    let (mut one, mut other, wire) = acquainted();
    assert_eq!(wire.len(), 3);
    assert_eq!(one.notices, [LccpEvent::Met { peer: address(12) }]);
    assert_eq!(other.notices, [LccpEvent::Met { peer: address(11) }]);
    assert!(one.session.components().unwrap().contains(Receptor::Dispatcher));
    assert!(!one.session.components().unwrap().contains(Receptor::Forwarder));

    let request = one.query();
    assert_eq!(other.receive(&request), None);
    let received = other.received.remove(0);
    assert_eq!(received.body.socket(), Some(socket(false)));
    let body = MessageBody::DispatchReply {
        socket: socket(false),
        route: 1,
        server: "192.0.2.21:80".parse().unwrap(),
    };
    let reply = other.session.answer(&keys(), &received, Receptor::Distributor, body.clone()).unwrap();
    assert_eq!(one.receive(&reply), None);
    assert_eq!((&one.received[0].body, one.received[0].echo), (&body, received.numbers));
    for node in [&one, &other] {
        assert!(node.session.counters().refusals().all(|(_, count)| count == 0));
    }
}

#[test]
fn greetings_that_cross_do_no_harm() {
    let (mut one, mut other) = (node(11, 100), node(12, 200));
    let (from_one, from_other) = (one.session.init(&keys()), other.session.init(&keys()));
    let to_other = one.receive(&from_other).unwrap();
    deliver(from_one, &mut one, &mut other);
    deliver(to_other, &mut one, &mut other);
    assert!(one.session.is_known() && other.session.is_known());
    assert_eq!((one.notices.len(), other.notices.len()), (1, 1));
}

#[test]
fn unknown_node_gets_no_message_before_handshake() {
    let mut one = node(11, 100);
    let body = MessageBody::Close { socket: socket(false) };
    assert_eq!(one.session.send(&keys(), Receptor::Forwarder, body), None);
    assert!(!one.session.is_known() && one.session.components().is_none());
}

#[test]
fn replayed_message_is_refused() {
    let (mut one, mut other, wire) = acquainted();
    let request = one.query();
    other.receive(&request);
    for n in 1..=3 {
        assert_eq!(other.receive(&request), None);
        assert_eq!((other.received.len(), other.refused(Refusal::Replayed)), (1, n));
    }
    // Replayed greetings have no effect, since their lives are known and their numbers were
    // received or are too old.
    for bytes in [&wire[0], &wire[2]] {
        other.receive(bytes);
    }
    one.receive(&wire[1]);
    assert_eq!(other.notices.iter().filter(|notice| matches!(notice, LccpEvent::Refused { .. })).count(), 1);
    assert_eq!(other.notices.iter().filter(|notice| matches!(notice, LccpEvent::Met { .. })).count(), 1);
    assert_eq!(one.refused(Refusal::Replayed), 1);
}

#[test]
fn reordered_message_is_accepted_once() {
    let (mut one, mut other, _) = acquainted();
    let requests: Vec<Vec<u8>> = (0..70).map(|_| one.query()).collect();
    for bytes in requests.iter().skip(6).rev() {
        other.receive(bytes);
    }
    assert_eq!(other.received.len(), 64);
    for bytes in &requests {
        other.receive(bytes);
    }
    assert_eq!((other.received.len(), other.refused(Refusal::Replayed)), (64, 70));
}

#[test]
fn restarted_receiver_refuses_old_messages() {
    let (mut one, mut other, wire) = acquainted();
    let (delivered, held_back) = (one.query(), one.query());
    other.receive(&delivered);
    let mut other = node(12, 201);
    for bytes in [&wire[2], &delivered, &held_back] {
        other.receive(bytes);
    }
    assert!(other.received.is_empty() && !other.session.is_known());
    assert_eq!(other.refused(Refusal::Former), 3);

    // The first message after the restart is refused, and causes a new handshake.
    let lost = one.query();
    assert_eq!(deliver(lost, &mut one, &mut other).len(), 3);
    assert_eq!(one.notices.last(), Some(&LccpEvent::Restarted { peer: address(12) }));
    other.receive(&held_back);
    assert!(other.received.is_empty(), "what was written to its former life stays dead");
    other.receive(&one.query());
    assert_eq!(other.received.len(), 1);
}

#[test]
fn a_sender_that_starts_anew_is_known_by_its_new_life_alone() {
    let (mut former, mut other, wire) = acquainted();
    let (delivered, held_back) = (former.query(), former.query());
    other.receive(&delivered);
    let late = former.session.init(&keys());
    let mut one = node(11, 101);
    let init = one.session.init(&keys());
    assert_eq!(deliver(init, &mut one, &mut other).len(), 3);
    assert_eq!(other.notices.last(), Some(&LccpEvent::Restarted { peer: address(11) }));
    let received = other.received.len();
    for bytes in [&wire[0], &wire[2], &delivered, &held_back, &late] {
        // `other` may send a greeting to the earlier life. The exchange with the new life ends
        // after one answer.
        let answer = other.receive(bytes);
        answer.into_iter().for_each(|answer| {
            assert!(one.receive(&answer).is_none_or(|more| other.receive(&more).is_none()))
        });
    }
    assert_eq!(other.received.len(), received, "no message of the former life is believed");
    assert_eq!(
        other.notices.iter().filter(|notice| matches!(notice, LccpEvent::Restarted { .. })).count(),
        1
    );
    other.receive(&one.query());
    assert_eq!(other.received.len(), received + 1);
}

/// An attacker delays answers of an earlier life, and delivers them after answers of the new life.
#[test]
fn a_former_life_does_not_come_back_by_answers_that_were_held_back() {
    let (mut former, mut other) = (node(11, 100), node(12, 200));
    let (early, late) = (other.session.init(&keys()), other.session.init(&keys()));
    let held_back = former.receive(&late).unwrap();
    let mut one = node(11, 101);
    deliver(early, &mut other, &mut one);
    assert!(other.session.is_known());
    let before = other.notices.len();
    assert_eq!(other.receive(&held_back), None);
    assert_eq!(other.refused(Refusal::Ended), 1);
    assert_eq!(other.notices.len(), before + 1, "told, and no restart");
    other.receive(&one.query());
    assert_eq!(other.received.len(), 1);
}

#[test]
fn lost_handshake_is_repaired_by_next_message() {
    for lost in 0..3 {
        let (mut one, mut other) = (node(11, 100), node(12, 200));
        let mut bytes = one.session.init(&keys());
        for n in 0..lost {
            bytes = if n % 2 == 0 { other.receive(&bytes).unwrap() } else { one.receive(&bytes).unwrap() };
        }
        let again = if one.session.is_known() { one.query() } else { one.session.init(&keys()) };
        deliver(again, &mut one, &mut other);
        assert!(one.session.is_known() && other.session.is_known(), "{lost}");
        other.receive(&one.query());
        assert_eq!(other.received.len(), 1, "{lost}");
    }
}

/// The first node knows the current life of the second. The second node knows only an earlier life
/// of the first.
#[test]
fn a_node_that_only_answers_is_found_after_its_start() {
    let (mut one, _, _) = acquainted();
    let mut other = node(12, 201);
    let init = other.session.init(&keys());
    let hello = one.receive(&init).unwrap();
    let lost = other.receive(&hello);
    assert!(lost.is_some() && other.session.is_known());
    let stale = one.query();
    deliver(stale, &mut one, &mut other);
    assert_eq!((other.received.len(), other.refused(Refusal::Former)), (0, 1));
    other.receive(&one.query());
    assert_eq!(other.received.len(), 1);
}

#[test]
fn a_message_for_a_component_that_is_not_there_is_refused() {
    let (mut one, mut other, _) = acquainted();
    for (receptor, refused) in [(Receptor::Forwarder, 1), (Receptor::Distributor, 2), (Receptor::Agent, 2)] {
        let body = MessageBody::Close { socket: socket(false) };
        other.receive(&one.session.send(&keys(), receptor, body).unwrap().1);
        assert_eq!(other.refused(Refusal::Receptor), refused);
    }
    assert_eq!(other.received.len(), 1);
    let is_refusal = |notice: &&LccpEvent| matches!(notice, LccpEvent::Refused { .. });
    assert_eq!(other.notices.iter().filter(is_refusal).count(), 1, "told once");
    assert!(std::format!("{}", other.notices[1]).starts_with("a control message from 192.0.2.11: this node"));
}

#[test]
fn strangers_change_counters_alone() {
    let (mut one, mut other, _) = acquainted();
    let before = other.session.is_known();
    let foreign = HourlyKeys::at(&Secret::new([9; 32]), NOW_S);
    let old = HourlyKeys::at(&secret(), NOW_S - 3 * EPOCH_S);
    let refused = [
        (one.session.init(&foreign), Refusal::Forged),
        (one.session.init(&old), Refusal::Key { ahead_h: -3 }),
        (Vec::new(), Refusal::Malformed),
        (b"LCCP".to_vec(), Refusal::Malformed),
        (other.session.init(&keys()), Refusal::Forged),
    ];
    for (bytes, refusal) in refused {
        let count = other.refused(refusal);
        assert_eq!(other.receive(&bytes), None, "{refusal:?} is not answered");
        assert_eq!(other.refused(refusal), count + 1);
    }
    assert!(before && other.session.is_known() && other.received.is_empty());
    other.receive(&one.query());
    assert_eq!(other.received.len(), 1);
}

#[test]
fn the_hour_may_change_while_nodes_talk() {
    let (mut one, mut other, _) = acquainted();
    for later_s in (0..5 * EPOCH_S).step_by(600) {
        let [keys, theirs] = [0, 900].map(|ahead_s| HourlyKeys::at(&secret(), NOW_S + later_s + ahead_s));
        let body = MessageBody::Close { socket: socket(false) };
        let (_, bytes) = one.session.send(&keys, Receptor::Agent, body).unwrap();
        assert!(other.session.receive(0, &theirs, &bytes).message.is_some(), "{later_s}");
    }
}

/// A clock jumps, so that the node uses the keys of another time.
#[test]
fn clock_leap_is_reported_and_association_kept() {
    for (leap_h, seen_h) in [(24, 24), (-24, -24)] {
        let (mut one, mut other, _) = acquainted();
        let body = || MessageBody::Close { socket: socket(false) };
        let wrong = HourlyKeys::at(&secret(), NOW_S.saturating_add_signed(leap_h * EPOCH_S as i64));
        let mut notices = [Vec::new(), Vec::new()];
        for now_ms in (1_000..6_000).step_by(1_000) {
            let (_, message) = one.session.send(&wrong, Receptor::Agent, body()).unwrap();
            let (_, received) = other.session.send(&keys(), Receptor::Agent, body()).unwrap();
            let received = [
                other.session.receive(now_ms, &keys(), &message),
                one.session.receive(now_ms, &wrong, &received),
            ];
            for (received, notices) in received.into_iter().zip(&mut notices) {
                assert_eq!((received.message, received.answer), (None, None));
                notices.extend(received.notice);
            }
            let expired = [other.session.expire(now_ms), one.session.expire(now_ms)];
            notices.iter_mut().zip(expired).for_each(|(notices, notice)| notices.extend(notice));
        }
        for (peer, ahead_h, notices, session) in
            [(11, seen_h, &notices[0], &other.session), (12, -seen_h, &notices[1], &one.session)]
        {
            let (peer, refusal) = (address(peer), Refusal::Key { ahead_h });
            assert_eq!(notices[..], [LccpEvent::Refused { peer, refusal }, LccpEvent::Silent { peer }]);
            assert_eq!((session.trouble(), session.is_alive(6_000)), (Some(refusal), false));
        }
        // The clock is corrected.
        let (_, message) = one.session.send(&keys(), Receptor::Agent, body()).unwrap();
        let received = other.session.receive(7_000, &keys(), &message);
        assert!(received.message.is_some(), "nobody has to be asked who it is");
        assert_eq!(received.notice, Some(LccpEvent::Answers { peer: address(11) }));
        assert_eq!((other.session.trouble(), other.session.is_alive(7_000)), (None, true));
    }
}

/// Returns an authentic message of another version. Behind the prefix it has the current format.
fn of_version(node: &mut Node, version: u8) -> Vec<u8> {
    let mut bytes = node.session.init(&keys());
    bytes.truncate(bytes.len() - TAG_LEN);
    bytes[4] = version;
    let addresses = Addresses { source: node.own, destination: node.peer };
    seal(bytes, addresses, keys().own().1)
}

/// Each mismatch has its own refusal, for known and for unknown nodes.
#[test]
fn version_farm_and_incarnation_mismatch_are_distinguished() {
    let (mut known, mut other, _) = acquainted();
    let foreign = HourlyKeys::at(&Secret::new([9; 32]), NOW_S);
    for (version, older) in [(0, "upgrade it"), (2, "upgrade this node"), (255, "upgrade this node")] {
        let refusal = Refusal::Version { theirs: version, ours: VERSION };
        let mut fresh = node(12, 201);
        for receiver in [&mut fresh, &mut other] {
            let bytes = of_version(&mut known, version);
            let before = receiver.refused(refusal);
            assert_eq!(receiver.receive(&bytes), None, "not answered");
            assert_eq!((receiver.refused(refusal), receiver.session.trouble()), (before + 1, Some(refusal)));
        }
        let message = std::format!("{}", fresh.notices[0]);
        let names = std::format!("from 192.0.2.11: it has protocol version {version}");
        assert!(message.contains(&names) && message.ends_with(older), "{message}");
    }
    // Messages of each command are refused if they have another farm's key or are meant for an
    // earlier life.
    for message in samples(false) {
        let (mut known, mut other, _) = acquainted();
        let forged = known.session.send(&foreign, message.receptor, message.body.clone()).unwrap().1;
        other.receive(&forged);
        assert_eq!(other.refused(Refusal::Forged), 1, "{message:?}");
        let bytes = known.session.send(&keys(), message.receptor, message.body.clone()).unwrap().1;
        let mut anew = node(12, 202);
        anew.receive(&bytes);
        let is_init = matches!(message.body, MessageBody::Init { .. });
        assert_eq!(anew.refused(Refusal::Former), u64::from(!is_init), "{message:?}");
        assert!(anew.received.is_empty() && !anew.session.is_known() && other.received.is_empty());
    }
}
