//! A director in memory: all that [`decide`] asks for.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use evener_core::net::packet::{Checksum, HEADROOM, Packet};
use evener_core::net::wire::Mac;
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::cookie::{NO_KEYS, SharedKeys};
use evener_core::path::decide::{Decision, Memory, decide, end, slow_path, stay};
use evener_core::path::fragments::{FragmentKey, Fragments, Track};
use evener_core::path::guesses::Guesses;
use evener_core::path::lease::{ENDLESS, Lease};
use evener_core::path::mark::{self, ForwardCount, SharedMarker};
use evener_core::path::ports::{POOL_BUCKETS, POOLS, Ports};
use evener_core::path::reply_hops::{FibResult, Routes};
use evener_core::path::seed::Seed;
use evener_core::path::select::Counts;
use evener_core::path::sessions::{
    AFFINITY_WORDS, AffinityCounts, Bucket4, Bucket6, Counted, SHARE_WORDS, SessionKey, Sessions, Shares,
    State, Value, buckets_for,
};
use evener_core::path::tables::{
    Forwarding, HASH_SLOTS, IdleTicks, Pick, ReplyOrigin, Ring, SERVER_SLOTS, ServerEntry, Tables, Vip,
    VipKey,
};
use evener_core::path::unmatched::Unmatched;

const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
pub(crate) const MARK_KEY: Seed = Seed(21, 22);
/// That, and a generation.
static MARKER: [AtomicU64; mark::WORDS] = [AtomicU64::new(21), AtomicU64::new(22), AtomicU64::new(7)];
pub(crate) const DIRECTOR: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const SERVER: Mac = Mac([2, 0, 0, 0, 1, 1]);
pub(crate) const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// First fragments in a map, and every client behind one router.
#[derive(Debug, Default)]
pub(crate) struct Around {
    tracks: Mutex<BTreeMap<FragmentKey, Track>>,
}

impl Fragments for Around {
    fn find(&self, key: &FragmentKey) -> Option<Track> {
        self.tracks.lock().unwrap().get(key).copied()
    }
    fn note(&self, key: &FragmentKey, track: Track) {
        self.tracks.lock().unwrap().insert(*key, track);
    }
}

impl Routes for Around {
    fn hop(&self, _: u32, _: IpAddr, _: IpAddr) -> FibResult {
        FibResult::Neighbour { ifindex: 1, src: DIRECTOR, dst: ROUTER, mtu: 1500 }
    }
    fn mtu(&self, _: u32) -> Option<u16> {
        Some(1500)
    }
}

/// The surroundings of packets.
pub(crate) struct World {
    pub(crate) tables: Tables,
    pub(crate) around: Around,
    four: Vec<Bucket4>,
    six: Vec<Bucket6>,
    ports: Vec<Bucket6>,
    active: Vec<AtomicU64>,
    shares: Vec<AtomicU64>,
    affinities: Vec<AtomicU64>,
}

impl World {
    /// One server that is reached by `way`, behind `vip` with both protocols.
    pub(crate) fn new(vip: SocketAddr, way: Forwarding) -> World {
        let mut tables = Tables::default();
        tables.interfaces.insert(1, DIRECTOR);
        let server = ServerEntry {
            identity: 1,
            mac: SERVER,
            ifindex: 1,
            weight: 1,
            up: true,
            local: false,
            forwarding: way,
        };
        tables.servers.insert(1, server);
        let idle = IdleTicks { syn: 100, tcp: 100, half_closed: 100, closing: 100, udp: 100, udp_new: 100 };
        for (id, protocol) in [(1, Protocol::Tcp), (2, Protocol::Udp)] {
            let key = VipKey { address: vip.ip(), port: vip.port(), protocol };
            tables.vips.insert(
                key,
                Vip {
                    id,
                    service: 0,
                    announce: true,
                    pick: Pick::Cursor,
                    idle,
                    own: 0,
                    stateless: false,
                    affinity: None,
                    handoff: None,
                },
            );
            if let Forwarding::Nat { to, .. } = way {
                let endpoint = VipKey { address: to.ip(), port: to.port(), protocol };
                tables.endpoints.insert(endpoint, vec![ReplyOrigin { vip: id, server: 1 }]);
            }
        }
        tables.rings.insert(
            0,
            Ring { order: vec![1], hash: vec![1; HASH_SLOTS].into(), previous: [].into(), second: [].into() }
                .into(),
        );
        World::of(tables)
    }

    /// One of several hosts that all decide: the ring names another, which is reached by `way`, and
    /// the ring before one that is to keep the packet.
    pub(crate) fn among_hosts(vip: SocketAddr, way: Forwarding) -> World {
        let World { mut tables, .. } = World::new(vip, way);
        let entry = |way| ServerEntry {
            identity: 2,
            mac: SERVER,
            ifindex: 1,
            weight: 1,
            up: true,
            local: way == Forwarding::Link,
            forwarding: way,
        };
        let last = Forwarding::Tunnel {
            encapsulation: Encapsulation::Gue,
            from: [10, 0, 0, 1].into(),
            to: [10, 0, 0, 12].into(),
            mtu: 1500,
            mark: Some(ForwardCount::Twice),
        };
        tables.servers.extend([(2, entry(Forwarding::Link)), (3, entry(last))]);
        tables.vips.values_mut().for_each(|vip| (vip.own, vip.stateless) = (2, vip.id == 2));
        tables.peers.insert(SERVER);
        let table = |slot| vec![slot; HASH_SLOTS];
        tables.rings.insert(
            0,
            Ring { order: vec![1, 2], hash: table(1).into(), previous: table(3).into(), second: [].into() }
                .into(),
        );
        World::of(tables)
    }

    /// A host that knows this and remembers nothing.
    pub(crate) fn of(tables: Tables) -> World {
        World {
            tables,
            around: Around::default(),
            four: (0..buckets_for(64)).map(|_| Bucket4::default()).collect(),
            six: (0..buckets_for(64)).map(|_| Bucket6::default()).collect(),
            ports: (0..POOLS * POOL_BUCKETS).map(|_| Bucket6::default()).collect(),
            active: (0..SERVER_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            shares: (0..SHARE_WORDS).map(|_| AtomicU64::new(0)).collect(),
            affinities: (0..AFFINITY_WORDS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The memory of packets besides the tables.
    pub(crate) fn memory(&self) -> Memory<'_> {
        let counted = Counted {
            active: &self.active,
            shares: Shares(&self.shares),
            affinity: AffinityCounts(&self.affinities),
        };
        Memory {
            sessions: Sessions::new(&self.four, &self.six, counted),
            counts: Counts { cursors: &self.active[..64], active: &self.active, scores: &[], limits: &[] },
            ports: Ports::new(&self.ports),
            fragments: &self.around,
            routes: &self.around,
            seed: SEED,
            ring_seed: SEED,
            lease: Lease(&ENDLESS),
            cookies: SharedKeys(&NO_KEYS),
            marker: SharedMarker(&MARKER),
            unmatched: Unmatched(&[]),
            guesses: Guesses(&[]),
        }
    }

    /// Decides a frame that came in by interface 1; what becomes of it, and the bytes then.
    pub(crate) fn decide(&self, frame: &[u8], checksum: Checksum, now: u32) -> (Decision, Vec<u8>) {
        on(frame, checksum, |packet| decide(&self.tables, &self.memory(), packet, now))
    }

    /// The same on the slow path.
    pub(crate) fn slow_path(&self, frame: &[u8], checksum: Checksum, now: u32) -> (Decision, Vec<u8>) {
        on(frame, checksum, |packet| slow_path(&self.tables, &self.memory(), packet, now))
    }

    /// Notes a session of the first VIP that is at work, with server 1.
    pub(crate) fn establish(&self, client: IpAddr, port: u16, now: u32) {
        let key = SessionKey { client, port, vip: 1 };
        let value = Value::new(1, State::Established, now + 100);
        self.memory().sessions.insert(key, key.hash(SEED), value, now).unwrap();
    }

    /// Ends the connection of a frame that came in by interface 1.
    pub(crate) fn end(&self, frame: &[u8], now: u32) -> (Decision, Vec<u8>) {
        on(frame, Checksum::Whole, |packet| end(&self.tables, &self.memory(), packet, now))
    }

    /// Has a frame that came in by interface 1 go to its connection's server.
    pub(crate) fn stay(&self, frame: &[u8], now: u32) -> (Decision, Vec<u8>) {
        on(frame, Checksum::Whole, |packet| stay(&self.tables, &self.memory(), packet, now))
    }
}

fn on(
    frame: &[u8],
    checksum: Checksum,
    decide: impl FnOnce(&mut Packet<'_>) -> Decision,
) -> (Decision, Vec<u8>) {
    let mut buffer = vec![0; HEADROOM];
    buffer.extend(frame);
    let mut packet = Packet::new(&mut buffer, HEADROOM, 1);
    packet.checksum = checksum;
    let decision = decide(&mut packet);
    let after = packet.frame().to_vec();
    (decision, after)
}

/// Every way to a server of the VIP's family, and tunnels in the other too.
pub(crate) fn ways(v6: bool) -> Vec<Forwarding> {
    let (server, own): (IpAddr, IpAddr) = match v6 {
        false => ([10, 0, 0, 11].into(), [10, 0, 0, 1].into()),
        true => ("2001:db8:a::11".parse().unwrap(), "2001:db8:a::1".parse().unwrap()),
    };
    let (to, mtu) = (SocketAddr::new(server, 8080), 1500);
    let mut ways = vec![
        Forwarding::Link,
        Forwarding::Nat { to, own, source_nat: false, mtu },
        Forwarding::Nat { to, own, source_nat: true, mtu },
    ];
    for encapsulation in [Encapsulation::Ipip, Encapsulation::Gue] {
        ways.push(Forwarding::Tunnel {
            encapsulation,
            from: [10, 0, 0, 1].into(),
            to: [10, 0, 0, 11].into(),
            mtu,
            mark: None,
        });
        let (from, to) = ("2001:db8:a::1".parse().unwrap(), "2001:db8:a::11".parse().unwrap());
        ways.push(Forwarding::Tunnel { encapsulation, from, to, mtu, mark: None });
        if encapsulation == Encapsulation::Gue {
            ways.push(Forwarding::Tunnel { encapsulation, from, to, mtu, mark: Some(ForwardCount::Once) });
        }
    }
    ways
}
