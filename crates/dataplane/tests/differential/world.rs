//! A farm with all kinds of servers, in the tables of the core and of the C program, with the
//! network around them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
use std::sync::{Arc, LazyLock};

use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::net::wire::Mac;
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::cookie::{self, Schedule, SharedKeys};
use evener_core::path::decide::{Decision, Memory, Reason, Verdict, decide};
use evener_core::path::fragments::{FragmentKey, Fragments, Track};
use evener_core::path::guesses::{self, Guesses};
use evener_core::path::lease::Lease;
use evener_core::path::mark::{self, Marker, SharedMarker};
use evener_core::path::ports::{POOL_BUCKETS, POOLS, Ports};
use evener_core::path::reply_hops::{FibResult, Routes};
use evener_core::path::seed::Seed;
use evener_core::path::select::{Counts, Score};
use evener_core::path::sessions::{
    AFFINITY_WORDS, ALL_BUCKETS, AffinityCounts, Bucket4, Bucket6, Counted, SHARE_WORDS, Sessions, Shares,
    buckets_for, ticks,
};
use evener_core::path::tables::{
    Affinity, Forwarding, HASH_SLOTS, IdleTicks, NO_SERVER, Pick, ReplyOrigin, Ring, SERVER_SLOTS,
    ServerEntry, Tables, Vip, VipKey,
};
use evener_core::path::unmatched::{self, Unmatched};
use evener_dataplane::xdp::XdpEngine;
use evener_dataplane::{Engine, ServerCounters};

use crate::{every_host, handoff};

pub const SEED: Seed = Seed(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
pub const RING_SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
pub const MARKER: Marker = Marker { key: Seed(31, 0x2222), generation: 0x8000_0001 };
pub const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER_SIDE: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// The interface to clients.
const OUT: Mac = Mac([2, 0, 0, 0, 0, 3]);
const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 4]);
pub const SESSIONS: usize = 512;
pub const NOW: u32 = 5_000_000;
/// Longer than a round, so that no session expires.
pub const IDLE: IdleTicks = IdleTicks {
    syn: ticks(600_000),
    tcp: ticks(900_000),
    half_closed: ticks(650_000),
    closing: ticks(700_000),
    udp: ticks(800_000),
    udp_new: ticks(620_000),
};

/// Reasons that random packets need not produce. The last seven need a cookie or an empty segment.
pub const RARE: [Reason; 14] = [
    Reason::BadChecksum,
    Reason::TableFull,
    Reason::NoPort,
    Reason::NoHeadroom,
    Reason::FragmentLost,
    Reason::Fragment,
    Reason::CookieAcked,
    Reason::KeepaliveAcked,
    Reason::CookieUnchecked,
    Reason::Punted,
    Reason::RouteMismatch,
    Reason::Rehandoff,
    Reason::RehandoffBuffered,
    Reason::Reset,
];

/// Last address bytes of the services, in both IP versions.
pub const L2: [u8; 3] = [100, 101, 102];
pub const EMPTY: u8 = 103;
pub const NAT: u8 = 110;
pub const SOURCE_NAT: u8 = 111;
pub const TUNNELS: [u8; 4] = [120, 121, 122, 123];

pub fn vip(v6: bool, last: u8) -> IpAddr {
    if v6 { format!("2001:db8::{last}").parse().unwrap() } else { [192, 0, 2, last].into() }
}

/// Clients 0 to 9 are behind the router, 10 and 11 behind a router with an unknown MAC, 12 and 13
/// behind a link with a small MTU. No route leads to the others. With IPv6, 14 has a link-local
/// address.
pub fn client(v6: bool, number: u8) -> IpAddr {
    let net = match number {
        0..10 => 1,
        10 | 11 => 2,
        12 | 13 => 3,
        _ => 4,
    };
    if v6 && number == 14 {
        "fe80::14".parse().unwrap()
    } else if v6 {
        format!("2001:db8:c{net}::{number}").parse().unwrap()
    } else {
        [203, 0, 110 + net, number].into()
    }
}

/// Sets up this thread's network namespace so that it matches [`TestRoutes`].
pub fn set_up() {
    for setting in ["ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding", "ipv6/conf/default/forwarding"] {
        std::fs::write(format!("/proc/sys/net/{setting}"), "1").unwrap();
    }
    for command in [
        "link set lo up",
        &format!("link add out0 address {OUT} type veth peer name out1"),
        "addr add 10.9.9.1/24 dev out0",
        "link set out0 up",
        "link set out1 up",
        "addr add 2001:db8:9::1/64 dev out0 nodad",
        &format!("neigh add 10.9.9.9 lladdr {ROUTER} dev out0"),
        &format!("neigh add 2001:db8:9::9 lladdr {ROUTER} dev out0"),
        // The services' addresses are not local addresses of this host.
        "route add 192.0.2.0/24 via 10.9.9.9",
        "route add 2001:db8::/64 via 2001:db8:9::9",
        "route add 203.0.111.0/24 via 10.9.9.9",
        "route add 203.0.112.0/24 via 10.9.9.8",
        "route add 203.0.113.0/24 via 10.9.9.9 mtu lock 1300",
        "route add 2001:db8:c1::/64 via 2001:db8:9::9",
        "route add 2001:db8:c2::/64 via 2001:db8:9::8",
        "route add 2001:db8:c3::/64 via 2001:db8:9::9 mtu lock 1300",
    ] {
        let output = Command::new("ip").args(command.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[derive(Debug)]
struct TestRoutes;

impl Routes for TestRoutes {
    fn hop(&self, _ingress: u32, _src: IpAddr, dst: IpAddr) -> FibResult {
        let known = |mtu| FibResult::Neighbour { ifindex: 99, src: OUT, dst: ROUTER, mtu };
        let net = match dst {
            IpAddr::V4(dst) => match dst.octets() {
                [203, 0, net @ 111..=113, _] => u16::from(net) - 110,
                _ => 0,
            },
            IpAddr::V6(dst) => match dst.segments() {
                [0x2001, 0xdb8, net @ 0xc1..=0xc3, 0, ..] => net - 0xc0,
                _ => 0,
            },
        };
        match net {
            1 => known(1500),
            2 => FibResult::HostStack,
            3 => known(1300),
            _ => FibResult::None,
        }
    }
    fn mtu(&self, ifindex: u32) -> Option<u16> {
        // The loopback interface.
        (ifindex == 1).then_some(u16::MAX)
    }
}

#[derive(Debug, Default)]
pub struct TestFragments(pub RefCell<HashMap<FragmentKey, Track>>);

impl Fragments for TestFragments {
    fn find(&self, key: &FragmentKey) -> Option<Track> {
        self.0.borrow().get(key).copied()
    }
    fn note(&self, key: &FragmentKey, track: Track) {
        self.0.borrow_mut().insert(*key, track);
    }
}

/// Returns the affinity of a VIP. Every second VIP has it.
fn affinity(id: u16, address: IpAddr) -> Option<Affinity> {
    let prefix_len = if address.is_ipv6() { 120 } else { 30 };
    id.is_multiple_of(2).then_some(Affinity { tag: 3 * id, prefix_len, lifetime: 30_000 })
}

/// Builds the farm part by part.
pub struct Builder {
    pub tables: Tables,
    pub next_server: u16,
    pub next_vip: u16,
}

impl Builder {
    pub fn server(&mut self, way: Forwarding, ifindex: u32) -> u16 {
        let slot = self.next_server;
        self.next_server += 1;
        let mac = Mac([2, 0, 0, 0, 1, slot as u8]);
        let entry = ServerEntry {
            identity: slot.into(),
            mac,
            ifindex,
            weight: slot,
            up: true,
            local: false,
            forwarding: way,
        };
        self.tables.servers.insert(slot, entry);
        slot
    }

    pub fn service(&mut self, address: IpAddr, protocol: Protocol, pick: Pick, servers: &[u16]) -> u16 {
        let id = self.next_vip;
        self.next_vip += 1;
        let service = id - 1;
        let last = if let IpAddr::V4(address) = address { address.octets()[3] } else { 0 };
        let vip = Vip {
            id,
            service,
            announce: last != 102,
            pick,
            idle: IDLE,
            own: 0,
            stateless: false,
            affinity: affinity(id, address),
            handoff: None,
        };
        self.tables.vips.insert(VipKey { address, port: 80, protocol }, vip);
        let order = servers.to_vec();
        let table = |ahead: usize| -> Arc<[u16]> {
            let slots = if servers.is_empty() { 0 } else { HASH_SLOTS };
            (0..slots).map(|slot| servers[(slot + ahead) % servers.len()]).collect()
        };
        let second = if pick == Pick::Two { table(1) } else { Arc::default() };
        // Without a session, some slots of some services belong to another server.
        let older = |(slot, server): (usize, &u16)| if slot % 3 == 0 { *server } else { NO_SERVER };
        let previous = match pick {
            Pick::Hash => table(2).iter().enumerate().map(older).collect(),
            _ => Arc::default(),
        };
        let ring = Ring { order, hash: table(0), previous, second };
        self.tables.rings.insert(service, Arc::new(ring));
        id
    }

    fn nat(&mut self, v6: bool, protocol: Protocol, source_nat: bool) {
        let address = |last: u8| -> IpAddr {
            if v6 { format!("2001:db8:5::{last}").parse().unwrap() } else { [10, 0, 5, last].into() }
        };
        let first = if source_nat { 20 } else { 10 };
        let mut servers: Vec<u16> = [(1, 1, 1500), (2, 77, 1400)]
            .into_iter()
            .map(|(last, ifindex, mtu)| {
                let to = SocketAddr::new(address(first + last), 8080);
                self.server(Forwarding::Nat { to, own: address(1), source_nat, mtu }, ifindex)
            })
            .collect();
        // The director itself is one of the servers and needs no NAT.
        let here = self.server(Forwarding::Link, 1);
        self.tables.servers.entry(here).and_modify(|server| server.local = true);
        servers.push(here);
        let last = if source_nat { SOURCE_NAT } else { NAT };
        let vip = self.service(vip(v6, last), protocol, Pick::Cursor, &servers);
        for server in servers {
            let Forwarding::Nat { to, .. } = self.tables.servers[&server].forwarding else { continue };
            let key = VipKey { address: to.ip(), port: to.port(), protocol };
            self.tables.endpoints.entry(key).or_default().push(ReplyOrigin { vip, server });
        }
    }

    fn tunnels(&mut self, v6: bool) {
        let four = |last| IpAddr::from([10, 0, 6, last]);
        let six = |last: u8| -> IpAddr { format!("2001:db8:6::{last}").parse().unwrap() };
        let ways = [
            (Encapsulation::Ipip, four(1), four(2), 1500, 1),
            (Encapsulation::Gue, four(1), four(3), 1500, 77),
            (Encapsulation::Ipip, six(1), six(2), 1400, 1),
            (Encapsulation::Gue, six(1), six(3), 1500, 77),
        ];
        for (last, (encapsulation, from, to, mtu, ifindex)) in TUNNELS.into_iter().zip(ways) {
            let server =
                self.server(Forwarding::Tunnel { encapsulation, from, to, mtu, mark: None }, ifindex);
            self.service(vip(v6, last), Protocol::Tcp, Pick::Hash, &[server]);
            self.service(vip(v6, last), Protocol::Udp, Pick::Hash, &[server]);
        }
    }
}

/// Returns tables with all forwarding methods in both IP versions. One LAN server is this host, and
/// one is down. All random cases share the tables, because filling rings takes longer than a case.
pub fn tables() -> Tables {
    static TABLES: LazyLock<Tables> = LazyLock::new(build);
    TABLES.clone()
}

fn build() -> Tables {
    let mut builder = Builder { tables: Tables::default(), next_server: 1, next_vip: 1 };
    builder.tables.interfaces = BTreeMap::from([(1, OWN), (77, OTHER_SIDE)]);
    let lan: Vec<u16> = [1, 77, 1, 1, 1].map(|ifindex| builder.server(Forwarding::Link, ifindex)).into();
    builder.tables.servers.entry(lan[3]).and_modify(|server| server.local = true);
    builder.tables.servers.entry(lan[4]).and_modify(|server| server.up = false);
    let order = [1, 2, 3, 1, 4, 5];
    for v6 in [false, true] {
        for (last, pick) in L2.into_iter().zip([Pick::Hash, Pick::Cursor, Pick::Least]) {
            builder.service(vip(v6, last), Protocol::Tcp, pick, &order);
        }
        builder.service(vip(v6, L2[0]), Protocol::Udp, Pick::Two, &order);
        builder.service(vip(v6, EMPTY), Protocol::Tcp, Pick::Hash, &[]);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            builder.nat(v6, protocol, false);
            builder.nat(v6, protocol, true);
        }
        builder.tunnels(v6);
    }
    every_host::add(&mut builder);
    handoff::add(&mut builder);
    builder.tables
}

/// Loads the tables without attaching: interface 77 does not exist.
pub fn load(engine: &mut XdpEngine) {
    let tables = Arc::new(tables());
    engine.load_tables(&tables).unwrap();
    engine.memory().cookies.set(&Schedule::fixed(&handoff::KEYS, engine.now()));
    engine.memory().marker.set(&MARKER);
    engine.memory().counts.score(&scores_at(NOW));
}

/// Returns session limits, lower for some servers. With 0, no server has a limit.
pub fn limits(least: u32) -> Vec<(u16, u32)> {
    (0..SERVER_SLOTS as u16).map(|slot| (slot, least * (1 + u32::from(slot % 2)))).collect()
}

/// Returns the servers' load scores at a time: equal for some servers, and for most different from
/// a moment ago.
pub fn scores_at(now: u32) -> Vec<(u16, Score)> {
    let score = |slot: u16| {
        let mixed = now.wrapping_mul(u32::from(slot) | 1).wrapping_mul(0x9e37_79b9);
        Score { load: (mixed >> 30) as u8, gain: (mixed >> 16) as u8 }
    };
    (0..SERVER_SLOTS as u16).map(|slot| (slot, score(slot))).collect()
}

/// The core with its own memory.
pub struct Core {
    tables: Tables,
    four: Vec<Bucket4>,
    six: Vec<Bucket6>,
    ports: Vec<Bucket6>,
    active: Vec<AtomicU64>,
    scores: Vec<AtomicU16>,
    limits: Vec<AtomicU32>,
    shares: Vec<AtomicU64>,
    affinities: Vec<AtomicU64>,
    extents: [AtomicU64; 2],
    cursors: Vec<AtomicU64>,
    lease: AtomicU64,
    cookies: [AtomicU64; cookie::WORDS],
    marker: [AtomicU64; mark::WORDS],
    unmatched: [AtomicU64; unmatched::PLACES],
    guesses: Vec<AtomicU64>,
    pub fragments: TestFragments,
    pub reasons: BTreeMap<Reason, u64>,
    pub servers: BTreeMap<u16, ServerCounters>,
    /// Current time in ticks.
    pub now: u32,
}

fn many<T: Default>(count: usize) -> Vec<T> {
    (0..count).map(|_| T::default()).collect()
}

impl Core {
    pub fn new() -> Self {
        Self::with(tables(), &Schedule::fixed(&handoff::KEYS, NOW))
    }

    pub fn with(tables: Tables, keys: &Schedule) -> Self {
        let cookies = [const { AtomicU64::new(0) }; cookie::WORDS];
        SharedKeys(&cookies).set(keys);
        let marker = [const { AtomicU64::new(0) }; mark::WORDS];
        SharedMarker(&marker).set(&MARKER);
        let core = Core {
            tables,
            four: many(buckets_for(SESSIONS)),
            six: many(buckets_for(SESSIONS)),
            ports: many(POOLS * POOL_BUCKETS),
            active: many(SERVER_SLOTS),
            scores: many(SERVER_SLOTS),
            limits: many(SERVER_SLOTS),
            shares: many(SHARE_WORDS),
            affinities: many(AFFINITY_WORDS),
            extents: [const { AtomicU64::new(ALL_BUCKETS) }; 2],
            cursors: many(64),
            lease: AtomicU64::new(0),
            cookies,
            marker,
            unmatched: [const { AtomicU64::new(0) }; unmatched::PLACES],
            guesses: many(guesses::WORDS),
            fragments: TestFragments::default(),
            reasons: BTreeMap::new(),
            servers: BTreeMap::new(),
            now: NOW,
        };
        core.memory().sessions.share(&core.tables);
        core.memory().counts.score(&scores_at(NOW));
        core
    }

    pub fn memory(&self) -> Memory<'_> {
        let counted = Counted {
            active: &self.active,
            shares: Shares(&self.shares),
            affinity: AffinityCounts(&self.affinities),
        };
        Memory {
            sessions: Sessions::new(&self.four, &self.six, counted).within(&self.extents),
            counts: Counts {
                cursors: &self.cursors,
                active: &self.active,
                scores: &self.scores,
                limits: &self.limits,
            },
            ports: Ports::new(&self.ports),
            fragments: &self.fragments,
            routes: &TestRoutes,
            seed: SEED,
            ring_seed: RING_SEED,
            lease: Lease(&self.lease),
            cookies: SharedKeys(&self.cookies),
            marker: SharedMarker(&self.marker),
            unmatched: Unmatched(&self.unmatched),
            guesses: Guesses(&self.guesses),
        }
    }

    pub fn change(&mut self, tables: Tables) {
        self.tables = tables;
        self.memory().sessions.share(&self.tables);
    }

    /// Returns the decision on a frame and the resulting frame.
    pub fn decide(&mut self, before: &[u8]) -> (Decision, Vec<u8>) {
        let mut buffer = vec![0; HEADROOM];
        buffer.extend_from_slice(before);
        let mut packet = Packet::new(&mut buffer, HEADROOM, 1);
        let decision = decide(&self.tables, &self.memory(), &mut packet, self.now);
        let after = packet.frame().to_vec();
        for reason in decision.reasons() {
            *self.reasons.entry(reason).or_default() += 1;
        }
        // A held frame does not count for its server yet.
        if decision.server() != NO_SERVER && decision.verdict != Verdict::Hold {
            let server = self.servers.entry(decision.server()).or_default();
            server.packets += 1;
            server.bytes += before.len() as u64;
            server.connections += u64::from(decision.is_new_session());
        }
        (decision, after)
    }
}
