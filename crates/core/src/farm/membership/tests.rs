use super::*;
use crate::farm::{Allow, Announce, Discover, Method, Server, Service, example};
use crate::net::neighbour::{announcement, solicitation};
use crate::net::wire::{ARP_REPLY, ARP_REQUEST};
use alloc::string::ToString;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use proptest::prelude::*;
use std::{format, vec};

mod routed;

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 100));
const DIRECTOR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const ROUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const ETH: u32 = 3;
const OTHER_ETH: u32 = 4;
const INTERVAL_MS: u64 = 5_000;
const ROUNDS: u32 = 3;

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

fn own_address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, host))
}

fn place(last: u8) -> LinkAddress {
    LinkAddress { mac: mac(last), ifindex: ETH }
}

fn around() -> LocalNetwork {
    LocalNetwork {
        interfaces: [(ETH, mac(0xd1)), (OTHER_ETH, mac(0xd2))].into(),
        addresses: [DIRECTOR].into(),
        routers: vec![Router { address: ROUTER, mac: Some(mac(0xfe)) }],
        hops: BTreeMap::new(),
    }
}

fn service() -> Service {
    Service {
        discover: Some(Discover::Arp),
        discover_interval_ms: INTERVAL_MS,
        discover_rounds: ROUNDS,
        announce: Announce::Never,
        ..example::service("web", SocketAddr::new(VIP, 80), vec![])
    }
}

fn listed(host: u8) -> Server {
    Server {
        name: format!("web{host}"),
        address: own_address(host),
        port: None,
        mac: None,
        weight: 1,
        backup: false,
        max_connections: 0,
        health_address: None,
        publish: Vec::new(),
    }
}

/// A membership with a clock that advances from round to round.
struct Lan {
    membership: Membership,
    now_ms: u64,
}

impl Lan {
    fn new(service: Service) -> Lan {
        let mut lan = Lan { membership: Membership::new(&[service], around(), 0), now_ms: 0 };
        lan.round();
        lan
    }

    fn reply(&mut self, place: LinkAddress, address: IpAddr) -> Vec<MembershipEvent> {
        self.now_ms += 1;
        events(self.membership.answer(self.now_ms, NeighbourReply { place, address }))
    }

    /// Runs the next round at its time.
    fn round(&mut self) -> Vec<MembershipEvent> {
        self.now_ms = self.membership.next_round_at().unwrap();
        events(self.membership.round(self.now_ms).notices)
    }

    /// Runs rounds in which these hosts answer for the service address.
    fn rounds(&mut self, count: u32, answering: &[u8]) -> Vec<MembershipEvent> {
        let mut events = vec![];
        for _ in 0..count {
            events.extend(self.round());
            for &host in answering {
                events.extend(self.reply(place(host), VIP));
            }
        }
        events
    }

    fn member(&self, name: &str) -> Option<Member> {
        self.membership.members("web").into_iter().find(|member| member.name == name)
    }

    fn names(&self) -> Vec<String> {
        self.membership.members("web").into_iter().map(|member| member.name).collect()
    }

    fn refused(&self, refusal: ReplyRefusal) -> u64 {
        self.membership.refused(Some("web")).count(refusal) + self.membership.refused(None).count(refusal)
    }
}

fn events(notices: Vec<ServiceNotice>) -> Vec<MembershipEvent> {
    notices.into_iter().map(|notice| notice.event).collect()
}

fn name(host: u8) -> String {
    mac(host).to_string()
}

fn joined(host: u8) -> MembershipEvent {
    MembershipEvent::Joined { server: name(host), place: place(host) }
}

#[test]
fn discovery_adds_servers_that_answer_arp() {
    let mut membership = Membership::new(&[service()], around(), 70);
    assert_eq!(membership.next_round_at(), Some(70));
    assert_eq!(membership.round(70), DiscoveryRound { requests: vec![VIP], notices: vec![] });
    assert_eq!(membership.round(71), DiscoveryRound::default(), "not due yet");
    let mut lan = Lan { membership, now_ms: 70 };
    assert_eq!(lan.reply(place(1), VIP), [joined(1)]);
    assert_eq!(lan.reply(place(2), VIP), [joined(2)]);
    assert_eq!(lan.reply(place(1), VIP), []);
    let member = lan.member(&name(1)).unwrap();
    assert_eq!((member.mac, member.ifindex, member.weight), (Some(mac(1)), Some(ETH), 1));
    assert_eq!(
        (member.source, member.draining, member.last_seen_ms),
        (ServerOrigin::Discovered, false, Some(73))
    );
}

#[test]
fn the_second_round_comes_soon_and_the_others_at_the_interval() {
    let mut lan = Lan::new(service());
    assert_eq!(lan.membership.next_round_at(), Some(1_000));
    lan.round();
    assert_eq!(lan.membership.next_round_at(), Some(1_000 + INTERVAL_MS));
}

#[test]
fn silent_server_is_drained_removed_and_may_return() {
    let mut lan = Lan::new(service());
    lan.reply(place(1), VIP);
    lan.reply(place(2), VIP);
    assert_eq!(lan.rounds(ROUNDS, &[1]), []);
    assert_eq!(lan.rounds(1, &[1]), [MembershipEvent::Silent { server: name(2) }]);
    assert!(lan.member(&name(2)).unwrap().draining);
    assert_eq!(lan.reply(place(2), VIP), [MembershipEvent::Returned { server: name(2) }]);
    assert!(!lan.member(&name(2)).unwrap().draining);
    let gone = MembershipEvent::Removed { server: name(2), why: Removal::Silent };
    assert_eq!(lan.rounds(2 * ROUNDS + 1, &[1]), [MembershipEvent::Silent { server: name(2) }, gone]);
    assert_eq!(lan.names(), [name(1)]);
    assert_eq!(lan.reply(place(2), VIP), [joined(2)]);
}

#[test]
fn simultaneous_silence_removes_no_server() {
    let mut lan = Lan::new(service());
    lan.reply(place(1), VIP);
    lan.rounds(20, &[]);
    assert_eq!(lan.names(), [name(1)]);

    let mut strict = Lan::new(Service { keep_last: false, ..service() });
    strict.reply(place(1), VIP);
    strict.rounds(20, &[]);
    assert!(strict.names().is_empty());
}

#[test]
fn a_listed_server_is_found_by_its_own_address_and_never_removed() {
    let mut lan = Lan::new(Service { servers: vec![listed(11)], discover: None, ..service() });
    let unknown = lan.member("web11").unwrap();
    assert_eq!((unknown.mac, unknown.local), (None, false));
    let joined = MembershipEvent::Joined { server: "web11".into(), place: place(1) };
    assert_eq!(lan.reply(place(1), own_address(11)), [joined]);
    assert_eq!(lan.reply(place(2), VIP), [], "nobody is discovered unless that is asked for");
    assert_eq!(lan.rounds(20, &[]), [MembershipEvent::Silent { server: "web11".into() }]);
    let silent = lan.member("web11").unwrap();
    assert_eq!((silent.mac, silent.draining), (Some(mac(1)), true));
}

#[test]
fn a_listed_server_that_answers_for_the_service_is_itself() {
    let servers = vec![listed(11), listed(12)];
    let mut lan = Lan::new(Service { servers, ..service() });
    assert_eq!(lan.membership.clone().round(1_000).requests, [own_address(11), own_address(12), VIP]);
    // A host that answers for the service address before all listed servers are resolved may be a
    // listed server.
    assert_eq!(lan.reply(place(1), VIP), []);
    assert_eq!(lan.reply(place(3), VIP), []);
    lan.reply(place(1), own_address(11));
    let events = lan.reply(place(2), own_address(12));
    assert_eq!(events, [MembershipEvent::Joined { server: "web12".into(), place: place(2) }, joined(3)]);
    assert_eq!(lan.names(), [name(3), "web11".into(), "web12".into()]);
    assert_eq!(lan.rounds(10, &[1, 2, 3]), [], "an answer for the service counts as one");
}

#[test]
fn a_listed_server_found_late_takes_over_its_discovered_self() {
    let mut lan = Lan::new(Service { servers: vec![listed(11)], ..service() });
    lan.reply(place(1), VIP);
    assert_eq!(lan.round(), [joined(1)]);
    let merged = MembershipEvent::Removed { server: name(1), why: Removal::Listed("web11".into()) };
    let found = MembershipEvent::Joined { server: "web11".into(), place: place(1) };
    assert_eq!(lan.reply(place(1), own_address(11)), [found, merged]);
    assert_eq!(lan.names(), ["web11"]);
}

#[test]
fn a_fixed_mac_needs_no_arp_and_takes_no_other() {
    let server = Server { mac: Some(mac(1)), ..listed(11) };
    let mut lan = Lan::new(Service { servers: vec![server], discover: None, ..service() });
    assert_eq!(lan.member("web11").unwrap().mac, None, "two interfaces: which one is not known");
    lan.reply(place(9), own_address(11));
    assert_eq!(lan.refused(ReplyRefusal::NotAllowed), 1);
    let one = LocalNetwork { interfaces: [(ETH, mac(0xd1))].into(), ..around() };
    lan.membership.surroundings(one, lan.now_ms);
    assert_eq!(lan.member("web11").unwrap().ifindex, Some(ETH));
    assert_eq!(lan.rounds(20, &[]), []);
}

#[test]
fn the_director_may_be_a_server_itself() {
    let here = Server { address: DIRECTOR, ..listed(2) };
    let mut lan = Lan::new(Service { servers: vec![here], ..service() });
    let member = lan.member("web2").unwrap();
    assert_eq!((member.local, member.mac), (true, None));
    assert_eq!(lan.reply(place(1), VIP), [joined(1)], "nobody waits for it to answer");
    lan.rounds(20, &[1]);
    assert!(!lan.member("web2").unwrap().draining);
    // The director also has the service address, and other hosts still answer for the address.
    let addresses = [DIRECTOR, VIP].into();
    lan.membership.surroundings(LocalNetwork { addresses, ..around() }, lan.now_ms);
    assert_eq!(lan.reply(place(7), VIP), [joined(7)]);
}

#[test]
fn an_allow_list_of_macs_and_addresses() {
    let allow = vec![Allow::Mac(mac(1)), Allow::Address(own_address(12))];
    let mut lan = Lan::new(Service { allow, ..service() });
    for host in 1..=3 {
        assert_eq!(lan.reply(place(host), VIP), [], "who has {} is not known yet", own_address(12));
    }
    let reply = NeighbourReply { place: place(3), address: VIP };
    let refused = MembershipEvent::Refused { reply, refusal: ReplyRefusal::NotAllowed };
    assert_eq!(lan.reply(place(2), own_address(12)), [joined(1), joined(2), refused]);
    assert_eq!(lan.reply(place(3), VIP), [], "told once");
    assert_eq!(lan.refused(ReplyRefusal::NotAllowed), 2);
}

#[test]
fn servers_and_remembered_refusals_are_capped() {
    let mut lan = Lan::new(Service { servers_max: 2, ..service() });
    let mut event_count = 0;
    for host in 1..=100 {
        event_count += lan.reply(place(host), VIP).len();
    }
    assert_eq!(lan.names().len(), 2);
    assert_eq!(lan.refused(ReplyRefusal::Full), 98);
    assert_eq!(event_count, 2 + 4 * 2);
}

#[test]
fn reply_with_director_or_router_mac_is_refused() {
    let mut lan = Lan::new(service());
    let cases = [
        (place(5), DIRECTOR, ReplyRefusal::ClaimsDirector),
        (place(5), ROUTER, ReplyRefusal::ClaimsRouter),
        (place(0xfe), VIP, ReplyRefusal::IsRouter),
        (place(0xd2), VIP, ReplyRefusal::OwnMac),
        (LinkAddress { mac: Mac([3, 0, 0, 0, 0, 1]), ifindex: ETH }, VIP, ReplyRefusal::MulticastMac),
        (LinkAddress { mac: Mac::BROADCAST, ifindex: ETH }, VIP, ReplyRefusal::MulticastMac),
        (LinkAddress { mac: Mac([0; 6]), ifindex: ETH }, VIP, ReplyRefusal::MulticastMac),
    ];
    for (place, address, refusal) in cases {
        let before = lan.refused(refusal);
        let refused = MembershipEvent::Refused { reply: NeighbourReply { place, address }, refusal };
        assert_eq!(lan.reply(place, address), [refused]);
        assert_eq!(lan.refused(refusal), before + 1);
    }
    assert!(lan.names().is_empty());
    // Answers of the router and the director for their own addresses cause no event.
    assert_eq!(lan.reply(place(0xfe), ROUTER), []);
    assert_eq!(lan.reply(place(0xd1), DIRECTOR), []);
}

#[test]
fn a_router_recognised_late_is_a_server_no_longer() {
    let mut lan = Lan::new(service());
    lan.membership.surroundings(LocalNetwork { routers: vec![], ..around() }, 0);
    assert_eq!(lan.reply(place(0xfe), VIP), [joined(0xfe)]);
    let events = events(lan.membership.surroundings(around(), 9));
    assert_eq!(events, [MembershipEvent::Removed { server: name(0xfe), why: Removal::NotAServer }]);
    assert!(lan.names().is_empty());
}

#[test]
fn a_server_must_be_silent_for_an_announced_address() {
    let servers = vec![listed(11)];
    let mut lan = Lan::new(Service { servers, discover: None, announce: Announce::Director, ..service() });
    lan.reply(place(1), VIP);
    assert_eq!(lan.refused(ReplyRefusal::Announced), 1);
}

#[test]
fn moved_server_is_followed_once_old_mac_is_silent() {
    let mut lan = Lan::new(Service { servers: vec![listed(11)], discover: None, ..service() });
    let web = || String::from("web11");
    lan.reply(place(1), own_address(11));
    let moved = MembershipEvent::AddressConflict { server: web(), from: place(1), to: place(2) };
    assert_eq!(lan.reply(place(2), own_address(11)), [moved]);
    for _ in 0..10 {
        assert_eq!(lan.round(), [], "both answer: the first stays");
        lan.reply(place(1), own_address(11));
        lan.reply(place(2), own_address(11));
    }
    let mut events = vec![];
    for _ in 0..=ROUNDS {
        events.extend(lan.round());
        events.extend(lan.reply(place(2), own_address(11)));
    }
    assert_eq!(events, [MembershipEvent::Moved { server: web(), from: place(1), to: place(2) }]);
    assert_eq!(lan.member("web11").unwrap().mac, Some(mac(2)));
}

#[test]
fn mac_is_bound_to_its_interface() {
    let mut lan = Lan::new(service());
    lan.reply(place(1), VIP);
    let there = LinkAddress { mac: mac(1), ifindex: OTHER_ETH };
    let moved = MembershipEvent::AddressConflict { server: name(1), from: place(1), to: there };
    assert_eq!(lan.reply(there, VIP), [moved]);
    assert_eq!(lan.member(&name(1)).unwrap().ifindex, Some(ETH));
    for _ in 0..=ROUNDS {
        lan.round();
        lan.reply(there, VIP);
    }
    assert_eq!(lan.member(&name(1)).unwrap().ifindex, Some(OTHER_ETH));
}

#[test]
fn reload_keeps_remaining_servers() {
    let mut lan = Lan::new(Service { servers: vec![listed(11), listed(12)], ..service() });
    lan.reply(place(1), own_address(11));
    lan.reply(place(2), own_address(12));
    lan.reply(place(3), VIP);
    lan.reply(place(4), VIP);
    let mut next = Service { servers: vec![Server { weight: 5, ..listed(11) }], ..service() };
    next.allow = vec![Allow::Mac(mac(3))];
    let events = events(lan.membership.reconfigure(&[next.clone()], 9_000));
    let removed =
        |server: &str| MembershipEvent::Removed { server: server.into(), why: Removal::Configuration };
    assert_eq!(events, [removed("web12"), removed(&name(4))]);
    let kept = lan.member("web11").unwrap();
    assert_eq!((kept.mac, kept.weight), (Some(mac(1)), 5));
    assert_eq!(lan.names(), [name(3), "web11".into()]);
    assert_eq!(lan.membership.reconfigure(&[next], 9_001), []);
    assert_eq!(lan.membership.next_round_at(), Some(9_000), "what changed is asked for at once");
    lan.membership.reconfigure(&[], 9_002);
    assert_eq!((lan.names().len(), lan.membership.next_round_at()), (0, None));
}

#[test]
fn a_restart_knows_the_servers_that_packets_go_to() {
    let service = Service { servers: vec![listed(11)], ..service() };
    let mut membership = Membership::new(&[service], around(), 0);
    let known = |service: &str, server: &str, place| RestoredServer {
        service: service.into(),
        server: server.into(),
        place,
        hop: None,
    };
    membership.resume(&known("web", "web11", place(1)), 0);
    membership.resume(&known("web", &name(2), place(2)), 0);
    for (service, server, place) in [
        ("web", "web12", place(3)),
        ("mail", "mail1", place(4)),
        ("web", &name(0xfe), place(0xfe)),
        ("web", &name(5), LinkAddress { ifindex: 99, ..place(5) }),
    ] {
        membership.resume(&known(service, server, place), 0);
    }
    let mut lan = Lan { membership, now_ms: 0 };
    assert_eq!(lan.names(), [name(2), "web11".into()]);
    assert_eq!(lan.member("web11").unwrap().mac, Some(mac(1)));
    // A restored server has as many rounds to answer as a server that has just answered.
    assert_eq!(lan.rounds(ROUNDS + 1, &[]), []);
}

fn frame(operation: u16, hardware_len: u8, mac: Mac, address: IpAddr) -> Vec<u8> {
    let IpAddr::V4(address) = address else { panic!("ARP is for IPv4") };
    let mut frame = [Mac::BROADCAST.0, mac.0].concat();
    frame.extend([0x08, 0x06, 0, 1, 8, 0, hardware_len, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(mac.0);
    frame.extend(address.octets());
    frame.extend([0; 10]);
    frame
}

#[test]
fn frames_are_read_and_malformed_ones_counted() {
    let mut lan = Lan::new(service());
    let good = frame(ARP_REPLY, 6, mac(1), VIP);
    let padded = [good.as_slice(), &[0; 18]].concat();
    assert_eq!(events(lan.membership.frame(1, ETH, &padded)), [joined(1)]);
    assert!(lan.membership.frame(1, ETH, &frame(ARP_REQUEST, 6, mac(2), VIP)).is_empty());
    assert!(lan.membership.frame(1, ETH, &[]).is_empty());
    for bad in [&good[..41], &frame(ARP_REPLY, 8, mac(2), VIP)] {
        lan.membership.frame(1, ETH, bad);
    }
    assert_eq!(lan.refused(ReplyRefusal::Malformed), 2);
    assert_eq!(lan.names(), [name(1)]);
}

const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x100);

#[test]
fn servers_of_an_ipv6_address_are_discovered_alike() {
    let addresses = vec![SocketAddr::new(VIP, 80), SocketAddr::new(VIP6.into(), 80)];
    let mut lan = Lan::new(Service { addresses, ..service() });
    assert_eq!(lan.membership.clone().round(1_000).requests, [VIP, VIP6.into()]);
    assert_eq!(events(lan.membership.frame(1, ETH, &announcement(mac(1), VIP6))), [joined(1)]);
    assert_eq!(events(lan.membership.frame(2, ETH, &frame(ARP_REPLY, 6, mac(1), VIP))), [], "one server");
    assert!(lan.membership.frame(3, ETH, &solicitation(mac(2), Ipv6Addr::UNSPECIFIED, VIP6)).is_empty());
    let mut spoilt = announcement(mac(2), VIP6);
    spoilt[60] ^= 1;
    lan.membership.frame(4, ETH, &spoilt);
    assert_eq!(lan.refused(ReplyRefusal::Malformed), 1);
    let router = events(lan.membership.frame(5, ETH, &announcement(mac(0xfe), VIP6)));
    assert!(
        matches!(router[..], [MembershipEvent::Refused { refusal: ReplyRefusal::IsRouter, .. }]),
        "{router:?}"
    );
    assert_eq!(lan.names(), [name(1)]);
    assert_eq!(lan.rounds(ROUNDS, &[]), []);
    assert_eq!(lan.rounds(1, &[]), [MembershipEvent::Silent { server: name(1) }]);
    assert_eq!(events(lan.membership.frame(lan.now_ms, ETH, &announcement(mac(1), VIP6))).len(), 1);
}

#[test]
fn unicast_solicitation_may_be_answered_without_mac() {
    let mut lan = Lan::new(Service { addresses: vec![SocketAddr::new(VIP6.into(), 80)], ..service() });
    // The advertisement is solicited, goes to the director's own address and has no option.
    let mut bare = announcement(mac(1), VIP6);
    bare.truncate(78);
    bare[19] = 24;
    bare[38..54].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    bare[58] = 0x60;
    bare[56..58].fill(0);
    let pseudo = [&bare[22..54], &[0, 0, 0, 24, 0, 0, 0, 58], &bare[54..]].concat();
    let checksum = crate::net::checksum::finish(crate::net::checksum::add(0, &pseudo));
    bare[56..58].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(events(lan.membership.frame(1, ETH, &bare)), [joined(1)]);
}

#[test]
fn notices_are_sentences() {
    let reply = NeighbourReply { place: place(1), address: VIP };
    let event = MembershipEvent::Refused { reply, refusal: ReplyRefusal::Full };
    let notice = ServiceNotice { service: Some("web".into()), event };
    assert_eq!(
        notice.to_string(),
        "service web: 02:00:00:00:00:01 on interface 3 answered ARP for 192.0.2.100: refused, the service \
         has as many servers as `servers_max` allows"
    );
    assert!(ReplyRefusal::ALL.iter().enumerate().all(|(at, refusal)| *refusal as usize == at));
}

proptest! {
    /// Whatever answers arrive, the number of servers stays within `servers_max`, and the director
    /// and the routers never become servers.
    #[test]
    fn any_answers(
        heard in prop::collection::vec(
            (0u8..12, prop::sample::select(vec![VIP, DIRECTOR, ROUTER, own_address(11), own_address(12)]),
             prop_oneof![Just(ETH), Just(OTHER_ETH)], prop::bool::weighted(0.2)),
            0..200,
        ),
        listed_too: bool,
        allow in prop::collection::vec(
            prop_oneof![(0u8..12).prop_map(|m| Allow::Mac(mac(m))), Just(Allow::Address(own_address(12)))], 0..3),
    ) {
        let servers = if listed_too { vec![listed(11)] } else { vec![] };
        let mut lan = Lan::new(Service { servers, servers_max: 4, allow: allow.clone(), ..service() });
        let surroundings = LocalNetwork {
            interfaces: [(ETH, mac(0)), (OTHER_ETH, mac(1))].into(),
            addresses: [DIRECTOR].into(),
            routers: vec![Router { address: ROUTER, mac: Some(mac(2)) }],
            hops: BTreeMap::new(),
        };
        lan.membership.surroundings(surroundings.clone(), 0);
        for (host, address, ifindex, round) in heard {
            lan.reply(LinkAddress { mac: mac(host), ifindex }, address);
            if round {
                lan.round();
            }
            let members = lan.membership.members("web");
            prop_assert!(members.len() <= 4);
            for member in &members {
                let Some(at) = member.mac else {
                    prop_assert_eq!(member.source, ServerOrigin::Listed);
                    continue;
                };
                prop_assert!(!surroundings.excludes(at));
                let twins = members.iter().filter(|other| other.mac == Some(at)).count();
                prop_assert_eq!(twins, 1, "one MAC, one server");
                let by_mac = allow.is_empty() || allow.contains(&Allow::Mac(at));
                let by_address = allow.contains(&Allow::Address(own_address(12)));
                prop_assert!(member.source == ServerOrigin::Listed || by_mac || by_address);
            }
        }
    }

    #[test]
    fn any_frame(frame in prop::collection::vec(any::<u8>(), 0..80), arp: bool) {
        let mut frame = frame;
        if let (true, Some(ethertype)) = (arp, frame.get_mut(12..14)) {
            ethertype.copy_from_slice(&[0x08, 0x06]);
        }
        let mut lan = Lan::new(service());
        lan.membership.frame(1, ETH, &frame);
    }
}
