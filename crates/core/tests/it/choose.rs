//! A client that asks which server a connection gets is told the one that the data plane gives it
//! to.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::world::{DIRECTOR, ROUTER, World};
use etherparse::PacketBuilder;
use evener_core::farm::choose::{
    ChoiceReason, ChosenServer, ConnectionRequest, NoServerReason, RequestContent,
};
use evener_core::farm::membership::{LinkAddress, Member, ServerOrigin, ServerRoute};
use evener_core::farm::plan::{Hosts, MemberState, Plan, ServiceState, Slots, plan};
use evener_core::farm::{Method, Route, Service, example};
use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::path::content::{ContentParse, PathPattern, RouteMatch, read};
use evener_core::path::cookie::{FourTuple, Keys, Schedule, SharedKeys, SynOptions};
use evener_core::path::decide::{Decision, Memory, Opens, decide};
use evener_core::path::seed::Seed;
use evener_core::path::select::Counts;
use evener_core::path::tables::{NO_SERVER, SERVER_SLOTS, Vip};
use evener_core::pool::FULL_WEIGHT;
use evener_core::pool::health::{HealthState, HealthStatus};
use evener_core::pool::policy::{Fills, names_for_packets};
use proptest::prelude::*;

const VIP: [u8; 4] = [192, 0, 2, 100];
const NOW: u32 = 1_000;
const ISN: u32 = 70;
/// All with the same beginning.
const PATHS: [&str; 5] = ["/img/a", "/img/b/last", "/js/a", "/x", "/"];

/// A server of this weight that works, or doesn't; its name is its number.
fn member(number: usize, weight: u16, works: bool) -> MemberState {
    let place = LinkAddress { mac: super::world::SERVER, ifindex: 1 };
    let own = IpAddr::from([192, 0, 2, 2]);
    MemberState {
        member: Member {
            name: number.to_string(),
            address: Some([192, 0, 2, 10 + number as u8].into()),
            mac: Some(place.mac),
            ifindex: Some(place.ifindex),
            hop: Some(ServerRoute { place, own, tunnel: own, mtu: 1_500, on_link: true }),
            weight,
            backup: false,
            local: false,
            draining: false,
            source: ServerOrigin::Listed,
            since_ms: 0,
            last_seen_ms: None,
        },
        health: HealthStatus {
            state: if works { HealthState::Up } else { HealthState::Down },
            since_ms: 0,
            was_up: false,
        },
        admin_draining: false,
        refuses: false,
        is_full: false,
        share: None,
        tenths: FULL_WEIGHT,
    }
}

/// The number of a policy.
fn number(name: &str) -> usize {
    names_for_packets().position(|policy| policy == name).unwrap()
}

fn service(method: Method, policy: usize) -> Service {
    let to = |path: &str, servers: &[&str]| Route {
        host: None,
        path: Some(PathPattern::parse(path).unwrap()),
        methods: vec![],
        servers: servers.iter().map(|name| (*name).to_owned()).collect(),
    };
    let routes = vec![to("/img/*", &["0"]), to("/js/*", &["0", "2"]), to("/*/last", &["1"])];
    Service {
        method,
        policy: names_for_packets().nth(policy % names_for_packets().count()).unwrap(),
        routes: if method == Method::Handoff { routes.into() } else { vec![].into() },
        ..example::service("web", SocketAddr::new(VIP.into(), 80), vec![])
    }
}

fn planned(service: &Service, members: Vec<MemberState>) -> Plan {
    let hosts = Hosts { reads_punted: true, seed: Seed(5, 6), ..Hosts::default() };
    let state = ServiceState { service, members };
    plan(&[state], &[(1, DIRECTOR)], &hosts, &mut Slots::default(), &mut Fills::default(), None).unwrap()
}

fn vip(plan: &Plan) -> &Vip {
    plan.tables.vips.values().next().unwrap()
}

/// The inputs of packets and of those who ask: the same counts for both.
struct Known {
    world: World,
    cursors: Vec<AtomicU64>,
    active: Vec<AtomicU64>,
    keys: [AtomicU64; 4],
}

fn copies(counts: &[AtomicU64]) -> Vec<AtomicU64> {
    counts.iter().map(|count| AtomicU64::new(count.load(Relaxed))).collect()
}

impl Known {
    fn new(plan: &Plan) -> Known {
        let zeros = || (0..SERVER_SLOTS).map(|_| AtomicU64::new(0)).collect();
        let schedule = Schedule::fixed(&Keys { key: Seed(3, 4), epoch: 9 }, NOW);
        Known {
            world: World::of((*plan.tables).clone()),
            cursors: zeros(),
            active: zeros(),
            keys: schedule.words().map(AtomicU64::new),
        }
    }

    fn memory<'k>(&'k self, cursors: &'k [AtomicU64]) -> Memory<'k> {
        let counts = Counts { cursors, active: &self.active, scores: &[], limits: &[] };
        Memory { counts, cookies: SharedKeys(&self.keys), ..self.world.memory() }
    }

    fn load(&self, loads: &[u64]) {
        self.active.iter().skip(1).zip(loads).for_each(|(active, load)| active.store(*load, Relaxed));
    }

    fn decide(&self, frame: &[u8]) -> Decision {
        let mut buffer = vec![0; HEADROOM];
        buffer.extend(frame);
        let mut packet = Packet::new(&mut buffer, HEADROOM, 1);
        decide(&self.world.tables, &self.memory(&self.cursors), &mut packet, NOW)
    }
}

/// Asks about a connection before its first packet is decided. Choosing moves on what the packet
/// would: `moves`, if it does.
fn choose_server<'p>(
    plan: &'p Plan,
    known: &Known,
    request: &ConnectionRequest<'_>,
    frame: &[u8],
    moves: bool,
) -> (Result<ChosenServer<'p>, NoServerReason>, Decision) {
    let vip = vip(plan);
    let before = copies(&known.cursors);
    let foretold = plan.peek(&known.memory(&known.cursors), vip, request);
    assert_eq!(values(&known.cursors), values(&before), "who only wants to know changes nothing");
    assert_eq!(plan.choose(&known.memory(&before), vip, request), foretold);
    let decision = known.decide(frame);
    if moves {
        assert_eq!(values(&known.cursors), values(&before));
    }
    (foretold, decision)
}

fn values(counts: &[AtomicU64]) -> Vec<u64> {
    counts.iter().map(|count| count.load(Relaxed)).collect()
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::new([203, 0, 113, (port % 7) as u8].into(), 40_000 + port)
}

fn head(client: SocketAddr, sequence: u32) -> etherparse::PacketBuilderStep<etherparse::TcpHeader> {
    let IpAddr::V4(address) = client.ip() else { panic!("{client}") };
    let ip = PacketBuilder::ethernet2(ROUTER.0, DIRECTOR.0).ipv4(address.octets(), VIP, 64);
    ip.tcp(client.port(), 80, sequence, 65_000)
}

fn syn(client: SocketAddr) -> Vec<u8> {
    let mut frame = Vec::new();
    head(client, ISN).syn().write(&mut frame, &[]).unwrap();
    frame
}

/// The first segment with data, behind the cookie that it is told.
fn first(known: &Known, client: SocketAddr, text: &str) -> Vec<u8> {
    let ends = FourTuple { client, service: SocketAddr::new(VIP.into(), 80) };
    let keys = SharedKeys(&known.keys).at(NOW);
    let cookie = keys.make(&ends, ISN, SynOptions::new(false, Some(1_460), None)).unwrap();
    let mut frame = Vec::new();
    let head = head(client, ISN + 1).ack(cookie.number.wrapping_add(1)).psh();
    head.write(&mut frame, text.as_bytes()).unwrap();
    frame
}

fn farms() -> impl Strategy<Value = (usize, Vec<(u16, bool)>)> {
    (0..names_for_packets().count(), prop::collection::vec((0u16..4, any::<bool>()), 0..6))
}

fn members(servers: &[(u16, bool)]) -> Vec<MemberState> {
    servers.iter().enumerate().map(|(number, (weight, works))| member(number, *weight, *works)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn explained_server_gets_first_packet(
        (policy, servers) in farms(),
        connections in prop::collection::vec(prop::collection::vec(0u64..6, 6), 1..24),
    ) {
        let service = service(Method::L2, policy);
        let plan = planned(&service, members(&servers));
        let known = Known::new(&plan);
        for (port, loads) in (0..).zip(&connections) {
            known.load(loads);
            let client = client(port);
            let request = ConnectionRequest { client: Some(client), content: RequestContent::Unread, named: None };
            let (choice, decision) = choose_server(&plan, &known, &request, &syn(client), true);
            prop_assert_eq!(decision.server(), choice.map_or(NO_SERVER, |choice| choice.server));
            if let Ok(choice) = choice {
                prop_assert_eq!((choice.route, &plan.servers[&choice.server]), (None, choice.name));
            }
        }
    }

    #[test]
    fn explained_server_gets_request_or_punt_does(
        (policy, servers) in farms(),
        connections in prop::collection::vec((prop::collection::vec(0u64..6, 6), 0..PATHS.len()), 1..24),
    ) {
        let service = service(Method::Handoff, policy);
        let plan = planned(&service, members(&servers));
        let known = Known::new(&plan);
        let (vip, routes) = (vip(&plan), plan.tables.routes.values().next().unwrap());
        let punt = vip.handoff.unwrap().punt;
        for (port, (loads, path)) in (0..).zip(&connections) {
            known.load(loads);
            let (client, text) = (client(port), format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", PATHS[*path]));
            let ContentParse::Request(key) = read(text.as_bytes()) else { panic!("{text}") };
            let found = routes.find(&key);
            let by_packets = matches!(found, RouteMatch::Ring { .. });
            let request = ConnectionRequest { client: Some(client), content: RequestContent::Key(key), named: None };
            let (choice, decision) = choose_server(&plan, &known, &request, &first(&known, client, &text), by_packets);
            match choice {
                Ok(choice) if by_packets => {
                    prop_assert_eq!(decision.selected.opens, Opens::Request { route: choice.route });
                    prop_assert_eq!(decision.server(), choice.server);
                }
                Ok(_) | Err(NoServerReason::NoServer) => prop_assert_eq!(decision.server(), punt),
                Err(nobody) => panic!("{nobody:?}"),
            }
            // The result of a look-up elsewhere is the same.
            let (route, ring) = routes.find_all(&key);
            let routed = ConnectionRequest { content: RequestContent::Routed { route, ring }, ..request };
            let memory = known.memory(&known.cursors);
            prop_assert_eq!(plan.peek(&memory, vip, &routed), plan.peek(&memory, vip, &request));
        }
    }
}

#[test]
fn named_server_is_chosen_if_route_allows() {
    let service = service(Method::Handoff, number("round-robin"));
    let plan = planned(&service, members(&[(1, true), (1, true), (1, true), (0, true), (1, false)]));
    let known = Known::new(&plan);
    let memory = known.memory(&known.cursors);
    let slot = |number: usize| {
        plan.servers.iter().find(|(_, name)| name.server == number.to_string()).map(|(slot, _)| *slot)
    };
    let choice = |path: &str, named| {
        let text = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let ContentParse::Request(key) = read(text.as_bytes()) else { panic!("{text}") };
        let request = ConnectionRequest { client: Some(client(1)), content: RequestContent::Key(key), named };
        plan.peek(&memory, vip(&plan), &request).map(|choice| (choice.server, choice.why))
    };
    assert_eq!(choice("/js/a", slot(2)), Ok((slot(2).unwrap(), ChoiceReason::Named)));
    // Its route forbids it; it takes no new sessions; it has failed; there is none.
    for (path, named) in [
        ("/js/a", slot(1)),
        ("/", slot(3)),
        ("/", slot(4)),
        ("/", Some(4_000)),
        ("/", vip(&plan).handoff.map(|h| h.punt)),
    ] {
        assert_eq!(choice(path, named), Ok((slot(0).unwrap(), ChoiceReason::Turn)), "{path} {named:?}");
    }
}

#[test]
fn choice_without_needed_facts_has_no_server() {
    let (turn, hash) = (number("round-robin"), number("hash"));
    for (method, policy, client, content, expected) in [
        (Method::L2, hash, None, RequestContent::Unread, Some(NoServerReason::Unnamed)),
        (Method::L2, turn, None, RequestContent::Unread, None),
        (Method::L2, hash, Some(client(1)), RequestContent::Unread, None),
        (Method::Handoff, turn, Some(client(1)), RequestContent::Unread, Some(NoServerReason::Unread)),
        (Method::Handoff, turn, None, RequestContent::Routed { route: None, ring: 0 }, None),
        (
            Method::Handoff,
            turn,
            None,
            RequestContent::Routed { route: Some(0), ring: 60_000 },
            Some(NoServerReason::NoServer),
        ),
    ] {
        let service = service(method, policy);
        let plan = planned(&service, members(&[(1, true), (2, true)]));
        let known = Known::new(&plan);
        let request = ConnectionRequest { client, content, named: None };
        let answer = plan.choose(&known.memory(&known.cursors), vip(&plan), &request);
        assert_eq!(answer.err(), expected, "{method} {content:?}");
    }
}
