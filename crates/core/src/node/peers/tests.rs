//! Two hosts and their failures; [`farm`] has more hosts.

mod farm;

use super::wire::VERSION;
use super::*;
use crate::net::wire::Mac;
use crate::node::association::Refusal;
use crate::node::secret::{KEY_LEN, Key};
use std::format;
use std::string::ToString;
use std::vec;

const INTERVAL_MS: u64 = 500;
const SILENCE_MS: u64 = 3_000;
const KEY: Key = Key([9; KEY_LEN]);

fn address(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

/// Returns the settings of host `name`. Host `web1` publishes .101, `web2` .102 and so on. The
/// hosts elect the owner of .100.
fn settings(name: &str, hosts: &[&str]) -> PeerSettings {
    let hosts: Vec<HostSetting> = (1..)
        .zip(hosts)
        .map(|(last, name)| HostSetting { name: name.to_string(), address: [10, 0, 0, last].into() })
        .collect();
    let published = (101..)
        .zip(&hosts)
        .map(|(last, host)| Publishable { address: address(last), publisher: Some(host.name.clone()) });
    let mut addresses: Vec<Publishable> = published.collect();
    addresses.push(Publishable { address: address(100), publisher: None });
    PeerSettings {
        name: name.to_string(),
        hosts,
        services: vec!["web".to_string(), "dns".to_string()],
        addresses,
        generation: 1,
        interval_ms: INTERVAL_MS,
        silence_ms: SILENCE_MS,
        key: KEY,
    }
}

const TWO: [&str; 2] = ["web1", "web2"];

fn host(name: &str, incarnation: u64, now_ms: u64) -> Peers {
    Peers::new(settings(name, &TWO), incarnation, now_ms)
}

fn tick(peers: &mut Peers, now_ms: u64) -> Vec<u8> {
    peers.tick(now_ms).datagrams.remove(0).1
}

/// Calls [`Peers::tick`] at each time of [`Peers::next_at`] until `until_ms`.
fn pass(peers: &mut Peers, until_ms: u64) {
    while peers.next_at() < until_ms {
        peers.tick(peers.next_at());
    }
}

/// Returns the servers of two services. Bit `i` of `up` and `drained` is about service `i`.
fn servers(up: u8, drained: u8) -> BTreeMap<u8, HostedServer> {
    let server = |at: u8| HostedServer {
        is_up: up & (1_u8 << at) != 0,
        is_drained: drained & (1_u8 << at) != 0,
        weight: Some(1),
        ..HostedServer::HEALTHY
    };
    (0..2).map(|at| (at, server(at))).collect()
}

fn other(peers: &Peers) -> KnownHost {
    peers.hosts().into_iter().find(|host| !host.own).unwrap()
}

/// Returns two hosts that have received each other's datagrams at time 0. The second host's clock
/// is ahead.
fn acquainted(b_ahead_ms: u64) -> (Peers, Peers) {
    let (mut a, mut b) = (host("web1", 11, 0), host("web2", 22, b_ahead_ms));
    let hello = tick(&mut a, 0);
    let (_, answer) = b.receive(b_ahead_ms, &hello).answer.unwrap();
    let (_, echo) = a.receive(0, &answer).answer.unwrap();
    assert!(b.receive(b_ahead_ms, &echo).answer.is_none());
    (a, b)
}

#[test]
fn two_hosts_know_each_other_after_three_datagrams() {
    let (mut a, mut b) = acquainted(1 << 40);
    for (peers, now_ms) in [(&mut a, 0), (&mut b, 1 << 40)] {
        assert!(peers.hosts().iter().all(|host| host.alive));
        assert!(peers.counters().refusals().all(|(_, count)| count == 0));
        assert!(
            !peers.tick(now_ms + INTERVAL_MS - 1).changed && !peers.ready,
            "the ring of the others comes first"
        );
        assert!(peers.tick(now_ms + INTERVAL_MS).changed && peers.ready);
    }
}

#[test]
fn host_report_arrives_and_changes_are_sent_early() {
    let (mut a, mut b) = acquainted(0);
    let macs = vec![Mac([2, 0, 0, 0, 0, 1])];
    tick(&mut a, 500);
    assert_eq!(a.sending.due_ms(), 1_000);
    a.set_own(OwnStatus { load: 5, macs: macs.clone(), servers: servers(1, 2) });
    assert_eq!(a.sending.due_ms(), 625);
    pass(&mut b, 625);
    assert!(b.receive(625, &tick(&mut a, 625)).changed);
    let seen = other(&b);
    assert_eq!((seen.load, seen.servers, &seen.macs, seen.received_ms), (5, servers(1, 2), &macs, Some(625)));
    a.set_own(OwnStatus { load: 6, macs, servers: servers(1, 2) });
    assert_eq!(a.sending.due_ms(), 1_125);
    assert!(!b.receive(1_125, &tick(&mut a, 1_125)).changed, "a load calls for nothing");
    assert_eq!(other(&b).load, 6);
}

#[test]
fn silent_host_is_down_and_reported_once() {
    let (mut a, _) = acquainted(0);
    for now_ms in (500..SILENCE_MS).step_by(500) {
        assert!(!a.tick(now_ms).changed || other(&a).alive);
    }
    let tick = a.tick(SILENCE_MS);
    assert_eq!(tick.notices, [PeerEvent::Silent { host: "web2".to_string() }]);
    assert!(tick.changed && !other(&a).alive);
    assert!(a.tick(SILENCE_MS + 500).notices.iter().all(|n| !matches!(n, PeerEvent::Silent { .. })));
}

#[test]
fn replayed_late_or_misdirected_datagram_is_ignored() {
    let (mut a, mut b) = acquainted(0);
    let old = tick(&mut b, 500);
    let new = tick(&mut b, 1_000);
    assert!(a.receive(1_000, &new).answer.is_none());
    let before = a.hosts();
    for bytes in [&old, &new] {
        let received = a.receive(1_001, bytes);
        assert!(received.answer.is_none() && !received.changed);
    }
    assert_eq!(a.hosts(), before);
    assert_eq!(a.counters().refused(Refusal::Replayed), 2);
    b.receive(1_001, &tick(&mut b.clone(), 1_500));
    assert_eq!(b.counters().refused(Refusal::Replayed), 1, "its own datagram came back");
    let mut c = Peers::new(settings("web3", &["web1", "web2", "web3"]), 33, 0);
    c.receive(0, &new);
    assert_eq!(c.counters().refused(Refusal::Misdirected), 1);
}

#[test]
fn a_datagram_that_was_held_up_is_a_hello_at_most() {
    let (mut a, mut b) = acquainted(0);
    let held = tick(&mut b, 500);
    pass(&mut a, SILENCE_MS + 1);
    let received = a.receive(SILENCE_MS + 1, &held);
    assert!(!other(&a).alive && !received.changed);
    assert_eq!(a.counters().refused(Refusal::Stale), 1);
    let (_, answer) = received.answer.unwrap();
    b.receive(SILENCE_MS + 1, &answer);
    a.receive(SILENCE_MS + 2, &tick(&mut b, SILENCE_MS + 2));
    assert!(other(&a).alive && other(&b).alive, "and so they find each other again");
}

#[test]
fn a_restarted_host_is_known_at_once_and_its_former_life_is_refused() {
    let (mut a, mut b) = acquainted(0);
    let former = tick(&mut b, 500);
    let mut b = host("web2", 23, 600);
    let (_, answer) = a.receive(600, &tick(&mut b, 600)).answer.unwrap();
    let (_, echo) = b.receive(600, &answer).answer.unwrap();
    assert!(a.receive(600, &echo).answer.is_none());
    let before = a.hosts();
    let received = a.receive(700, &former);
    assert!(received.answer.is_none() && a.hosts() == before);
    assert_eq!(a.counters().refused(Refusal::Ended), 1);
}

#[test]
fn a_recorded_hello_does_not_take_the_echo_from_the_host_that_lives() {
    let mut former = host("web2", 21, 0);
    let recorded = tick(&mut former, 0);
    let (mut a, mut b) = acquainted(0);
    let echo = |a: &mut Peers, now_ms| Datagram::read(&tick(a, now_ms), &KEY).unwrap().echo.incarnation;
    a.receive(100, &recorded);
    assert_eq!(echo(&mut a, 500), 22);
    a.receive(600, &tick(&mut b, 600));
    assert!(other(&a).alive);
    pass(&mut a, 601 + SILENCE_MS);
    a.receive(601 + SILENCE_MS, &tick(&mut former, 601 + SILENCE_MS));
    assert_eq!(echo(&mut a, 700 + SILENCE_MS + INTERVAL_MS), 21, "while it is silent, it may be a new one");
}

#[test]
fn second_host_of_same_name_is_reported_and_ignored() {
    let (mut a, mut b) = acquainted(0);
    let mut twin = host("web2", 99, 0);
    let mut notices = Vec::new();
    for now_ms in (500..20_000).step_by(500) {
        let answer = tick(&mut a, now_ms);
        notices.extend(a.receive(now_ms, &tick(&mut b, now_ms)).notices);
        b.receive(now_ms, &answer);
        notices.extend(a.receive(now_ms, &tick(&mut twin, now_ms)).notices);
        assert!(other(&a).alive && other(&b).alive);
    }
    assert!(a.counters().refused(Refusal::Namesake) > 10);
    let refusals =
        notices.iter().filter(|n| matches!(n, PeerEvent::Refused { refusal: Refusal::Namesake, .. }));
    assert!(refusals.count() <= 1);
    // Once the first host is gone, its twin is accepted in its place.
    for now_ms in (20_000..24_000).step_by(500) {
        twin.receive(now_ms, &tick(&mut a, now_ms));
        if let Some((_, answer)) = a.receive(now_ms, &tick(&mut twin, now_ms)).answer {
            twin.receive(now_ms, &answer);
        }
    }
    assert!(other(&a).alive);
    let received = b.receive(24_000, &tick(&mut twin, 24_000));
    assert!(matches!(&received.notices[..], [PeerEvent::Refused { host: None, refusal: Refusal::Namesake }]));
}

#[test]
fn unknown_and_forged_senders_are_counted_and_reported_once() {
    let (mut a, mut b) = acquainted(0);
    let mut stranger = Peers::new(settings("web9", &["web9", "web1"]), 1, 0);
    b.settings.key = Key([1; KEY_LEN]);
    let before = a.hosts();
    let mut notices = Vec::new();
    for now_ms in (500..5_000).step_by(500) {
        for bytes in [tick(&mut b, now_ms), tick(&mut stranger, now_ms), vec![1, 2, 3]] {
            let received = a.receive(now_ms, &bytes);
            assert_eq!((received.answer, received.changed), (None, false));
            notices.extend(received.notices);
        }
    }
    assert_eq!(a.hosts(), before);
    assert_eq!(notices.len(), 3);
    for refusal in [Refusal::Forged, Refusal::Stranger, Refusal::Malformed] {
        assert_eq!(a.counters().refused(refusal), 9, "{refusal:?}");
    }
}

#[test]
fn another_configuration_counts_as_alive_and_no_more_until_files_agree() {
    let (mut a, mut b) = acquainted(0);
    b.set_own(OwnStatus { load: 7, servers: servers(3, 0), ..OwnStatus::default() });
    a.receive(500, &tick(&mut b, 500));
    b.reconfigure(PeerSettings { generation: 2, ..settings("web2", &TWO) }, 600);
    b.set_own(OwnStatus { load: 99, macs: vec![Mac([2; 6])], servers: servers(0, 3) });
    let mut notices = Vec::new();
    for now_ms in (1_000..10_000).step_by(500) {
        b.receive(now_ms, &tick(&mut a, now_ms));
        notices.extend(a.receive(now_ms, &tick(&mut b, now_ms)).notices);
    }
    let seen = other(&a);
    assert!(seen.alive && seen.generation_differs && seen.ready);
    assert_eq!((seen.load, seen.servers, seen.macs), (7, servers(3, 0), vec![Mac([2; 6])]));
    assert!(a.counters().refused(Refusal::Generation) > 10);
    assert_eq!(notices, [PeerEvent::Differs { host: "web2".to_string(), generation: 2 }]);
    assert!(notices[0].to_string().starts_with("host web2 runs another configuration (generation 00"));

    a.reconfigure(PeerSettings { generation: 2, ..settings("web1", &TWO) }, 10_000);
    let agrees = a.receive(10_000, &tick(&mut b, 10_000)).notices;
    assert_eq!(agrees, [PeerEvent::Agrees { host: "web2".to_string() }]);
    assert_eq!((other(&a).load, other(&a).servers), (99, servers(0, 3)));
}

#[test]
fn another_version_counts_as_alive_and_its_body_is_not_read() {
    let (mut a, mut b) = acquainted(0);
    b.set_own(OwnStatus { servers: servers(3, 0), ..OwnStatus::default() });
    a.receive(500, &tick(&mut b, 500));
    b.receive(500, &tick(&mut a, 500));
    let mut foreign = |b: &mut Peers, now_ms, version| {
        let datagram = Datagram::read(&tick(b, now_ms), &KEY).unwrap();
        a.receive(now_ms + 100, &Datagram { body: Body::Foreign { version }, ..datagram }.write(&KEY))
    };
    let received = foreign(&mut b, 1_000, 3);
    let sentences: Vec<String> = received.notices.iter().map(ToString::to_string).collect();
    let names = "host web2: it has protocol version 3, this node has version 2";
    assert!(
        sentences.len() == 1
            && sentences[0].starts_with(names)
            && sentences[0].ends_with("upgrade this node"),
        "{sentences:?}"
    );
    assert!(received.changed && foreign(&mut b, 3_300, 3) == DatagramEffect::default(), "told once");
    assert!(!a.tick(3_500).notices.contains(&PeerEvent::Silent { host: "web2".to_string() }));
    assert!(other(&a).alive && other(&a).servers == servers(3, 0) && other(&a).generation_differs);
    let version = Refusal::Version { theirs: 3, ours: VERSION };
    assert_eq!((a.counters().refused(version), other(&a).refused), (2, Some(version)));
    b.receive(4_000, &tick(&mut a, 4_000));
    let received = a.receive(4_000, &tick(&mut b, 4_000));
    assert!(received.changed && other(&a).refused.is_none(), "it runs this version again");
}

/// Anyone can send datagrams with a wrong tag in a host's name, so a wrong tag is no reason while
/// the host is alive.
#[test]
fn silent_host_has_its_refusal_reason() {
    let (mut a, mut b) = acquainted(0);
    b.settings.key = Key([1; KEY_LEN]);
    assert!(!a.receive(500, &tick(&mut b, 500)).changed && other(&a).refused.is_none());
    pass(&mut a, SILENCE_MS);
    assert!(a.tick(SILENCE_MS).changed && other(&a).refused == Some(Refusal::Forged));
    assert!(!a.receive(3_500, &tick(&mut b, 3_500)).changed && !other(&a).alive);
    b.settings.key = KEY;
    let (_, answer) = a.receive(4_000, &tick(&mut b, 4_000)).answer.unwrap();
    b.receive(4_000, &answer);
    assert!(a.receive(4_500, &tick(&mut b, 4_500)).changed && other(&a).alive && other(&a).refused.is_none());
}

#[test]
fn reload_keeps_reports_under_new_service_numbers() {
    let (mut a, mut b) = acquainted(0);
    b.set_own(OwnStatus { servers: servers(0b10, 0b01), ..OwnStatus::default() });
    a.receive(500, &tick(&mut b, 500));
    let mut new = settings("web1", &TWO);
    new.services = ["dns", "new", "web"].map(ToString::to_string).to_vec();
    new.addresses.retain(|one| one.address != address(101));
    a.owner.resume(address(101));
    let lost = a.reconfigure(new, 600);
    assert_eq!(lost, [PeerEvent::Released { address: address(101), to: None }]);
    let seen = other(&a).servers;
    let of = |at| seen.get(&at).map(|server: &HostedServer| (server.is_up, server.is_drained));
    assert_eq!([of(0), of(1), of(2)], [Some((true, false)), None, Some((false, true))]);
    a.reconfigure(settings("web1", &["web1"]), 700);
    assert_eq!(a.hosts().len(), 1);
    a.reconfigure(settings("web1", &TWO), 800);
    b.receive(800, &tick(&mut a, 825));
    a.receive(900, &tick(&mut b, 1_000));
    assert!(other(&a).alive, "the host that came back counts on from where it was");
}

#[test]
fn a_resumed_host_takes_part_at_once_and_counts_on_the_others_for_a_while() {
    let healthy = || BTreeMap::from([(0, HostedServer::HEALTHY), (1, HostedServer::HEALTHY)]);
    let mut a = host("web1", 5, 0);
    assert!(!a.hosts()[0].ready);
    a.resume(
        0,
        [("web2", healthy()), ("gone", healthy())].into_iter(),
        &BTreeSet::from([address(101), address(7)]),
    );
    assert_eq!(a.owned(), &BTreeSet::from([address(101)]));
    let (own, seen) = (a.hosts().remove(0), other(&a));
    assert!(own.ready && seen.alive && seen.ready && seen.received_ms.is_none());
    assert_eq!(seen.servers, healthy());
    assert_eq!(
        a.tick(0).claimed,
        [address(101)],
        "announced again: others may have taken it in the meantime"
    );
    pass(&mut a, SILENCE_MS);
    assert!(a.tick(SILENCE_MS).changed && !other(&a).alive);
}

/// A host that was busy for a while, for instance loading programs, has unread reports of that
/// time.
#[test]
fn paused_host_receives_reports_before_timing_out_peers() {
    let (mut a, mut b) = acquainted(0);
    pass(&mut b, 4 * SILENCE_MS);
    let late_ms = b.next_at();
    a.tick(late_ms);
    assert!(other(&a).alive, "it wasn't listened to");
    let mut new = host("web1", 33, 0);
    let (_, hello) = new.receive(late_ms, &tick(&mut b, late_ms)).answer.unwrap();
    assert!(!new.tick(late_ms).changed && !new.ready, "it knows no ring yet");
    let (_, answer) = b.receive(late_ms, &hello).answer.unwrap();
    new.receive(late_ms, &answer);
    assert!(other(&new).alive && !new.ready);
    pass(&mut new, late_ms + 2 * INTERVAL_MS);
    assert!(new.ready, "an interval after all others were heard");
    let mut alone = host("web1", 34, 0);
    alone.tick(late_ms);
    pass(&mut alone, late_ms + SILENCE_MS);
    assert!(!alone.ready);
    alone.tick(late_ms + SILENCE_MS);
    assert!(alone.ready, "once others would have been heard");
}

/// If the host took part earlier, its second chances would come from a ring that no other host has
/// used.
#[test]
fn a_host_takes_part_once_the_ring_of_the_others_is_in_force() {
    let (mut a, mut b) = acquainted(0);
    a.wait_for_tables(true);
    for now_ms in (250..4_000).step_by(250) {
        a.receive(now_ms, &b.datagrams(now_ms)[0].1);
        b.receive(now_ms, &a.datagrams(now_ms)[0].1);
        a.tick(now_ms);
        b.tick(now_ms);
    }
    assert!(other(&b).alive && !other(&b).ready && other(&a).ready && a.next_at() > 4_000);
    a.wait_for_tables(false);
    assert!(a.next_at() < 4_000);
    a.tick(4_000);
    assert!(a.hosts().iter().any(|host| host.own && host.ready));
}

#[test]
fn returning_host_is_reported() {
    let (mut a, mut b) = acquainted(0);
    a.receive(500, &tick(&mut b, 500));
    let (_, end) = b.leave(600).remove(0);
    assert_eq!(a.receive(600, &end).notices, [PeerEvent::Left { host: "web2".to_string() }]);
    // A host restarts before the other host notices its silence.
    let mut b = host("web2", 33, 700);
    let mut notices = Vec::new();
    for now_ms in (700..SILENCE_MS + 5_000).step_by(100) {
        for (_, datagram) in a.tick(now_ms).datagrams {
            if let Some((_, answer)) = b.receive(now_ms, &datagram).answer {
                notices.extend(a.receive(now_ms, &answer).notices);
            }
        }
        for (_, datagram) in b.tick(now_ms).datagrams {
            let received = a.receive(now_ms, &datagram);
            notices.extend(received.notices);
            if let Some((_, answer)) = received.answer {
                b.receive(now_ms, &answer);
            }
        }
    }
    let back = |notice: &&PeerEvent| matches!(notice, PeerEvent::Returned { host } if host == "web2");
    assert_eq!(notices.iter().filter(back).count(), 1, "{notices:?}");
}

#[test]
fn leaving_host_takes_effect_at_once() {
    let (mut a, mut b) = acquainted(0);
    a.receive(500, &tick(&mut b, 500));
    let (_, end) = b.leave(600).remove(0);
    let received = a.receive(600, &end);
    assert!(received.changed);
    assert_eq!(received.notices, [PeerEvent::Left { host: "web2".to_string() }]);
    let mut claimed = Vec::new();
    for now_ms in (600..1_600).step_by(100) {
        claimed.extend(a.tick(now_ms).claimed);
        assert!(b.tick(now_ms).probes.is_empty(), "it wants nothing any more");
    }
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>().len(), 3);
    assert_eq!(a.owned().len(), 3);
}

#[test]
fn hellos_are_answered_a_few_times_an_interval() {
    let (mut a, _) = acquainted(0);
    let mut twin = host("web2", 77, 0);
    let mut answers = 0;
    for now_ms in 0..1_000 {
        let (_, bytes) = twin.leave(now_ms).remove(0);
        if let Some((to, answer)) = a.receive(now_ms, &bytes).answer {
            assert!(to == IpAddr::from([10, 0, 0, 2]) && answer.len() <= bytes.len());
            answers += 1;
        }
    }
    assert!((7..=9).contains(&answers), "{answers}");
    assert!(format!("{a:?}").len() < 100_000, "nothing grows");
}
