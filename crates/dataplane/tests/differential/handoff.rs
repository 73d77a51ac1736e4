//! Services with handoff: random routes, and clients that mostly return a valid cookie.

use std::sync::Arc;

use evener_core::net::wire::Mac;
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::content::{HashKey, HostPattern, PathPattern, RouteIndex, RoutePattern};
use evener_core::path::cookie::{Cookie, FourTuple, Keys, REPLAYED, Schedule, SynOptions};
use evener_core::path::decide::Reason;
use evener_core::path::mark::PUNTED;
use evener_core::path::seed::Seed;
use evener_core::path::tables::{Forwarding, Handoff, NO_SERVER, Pick, RehandoffMode, Ring, Tables};
use proptest::prelude::*;
use std::net::SocketAddr;

use crate::every_host::SOURCES;
use crate::frames::{link, packet_v4, packet_v6, sum, tagged};
use crate::payloads::{HOSTS, METHODS, PATHS, payload};
use crate::world::{Builder, client, vip};

/// Last address bytes of the services: with a punt server, without one, without routes, without
/// servers, and with every-host selection that includes this host. Later requests close connections
/// of the first service and move connections of the second.
pub const HANDOFF: [u8; 5] = [140, 141, 142, 143, 144];
/// Rings that routes refer to. The fourth has no servers, and the fifth does not exist.
pub const RINGS: [u16; 5] = [58, 59, 60, 61, u16::MAX];
/// The key and epoch of the test's cookies.
pub const KEYS: Keys = Keys { key: Seed(8, 0x1111), epoch: 7 };

/// A daemon that set the clock and key of the data plane once, some epochs ago.
#[derive(Clone, Copy, Debug)]
pub struct CookieClaim {
    pub key: Seed,
    pub epoch_ms: u64,
    pub epochs: u64,
}

impl CookieClaim {
    /// Returns the key schedule at `now`, which is in the middle of an epoch.
    pub fn schedule(&self, now: u32) -> Schedule {
        let age = (self.epochs * self.epoch_ms * 1_000_000) >> 20;
        let unix_ms = 25_000_000 * self.epoch_ms + self.epoch_ms / 2;
        Schedule::new(self.key, self.epoch_ms, unix_ms, now.wrapping_sub(age as u32))
    }
}

/// Claims with or without a key, up to 50 days old.
pub fn cookie_claims() -> impl Strategy<Value = CookieClaim> {
    let key = prop_oneof![8 => any::<(u64, u64)>().prop_map(|key| Seed(key.0, key.1)), 1 => Just(Seed(0, 0))];
    let age = prop_oneof![0u64..5, Just(30), Just(60), Just(1_200)];
    let epoch_ms = prop_oneof![3 => Just(64_000u64), 1 => Just(3_600_000)];
    (key, epoch_ms, age).prop_map(|(key, epoch_ms, epochs)| CookieClaim { key, epoch_ms, epochs })
}

pub fn add(builder: &mut Builder) {
    let [punt, marked, own] = [1; 3].map(|ifindex| builder.server(Forwarding::Link, ifindex));
    for slot in [punt, marked, own] {
        builder.tables.servers.entry(slot).and_modify(|server| server.local = true);
    }
    builder.tables.servers.entry(marked).and_modify(|server| server.mac = PUNTED);
    let held = builder.server(Forwarding::Link, 0);
    let on_link = [1, 77].map(|ifindex| builder.server(Forwarding::Link, ifindex));
    let mut tunnel = |encapsulation, to: [u8; 4], mtu, ifindex| {
        let way =
            Forwarding::Tunnel { encapsulation, from: [10, 0, 8, 1].into(), to: to.into(), mtu, mark: None };
        builder.server(way, ifindex)
    };
    let far = [
        tunnel(Encapsulation::Ipip, [10, 0, 8, 2], 1500, 1),
        tunnel(Encapsulation::Gue, [10, 0, 8, 3], 1400, 77),
    ];
    let picks = [Pick::Cursor, Pick::Hash, Pick::Least, Pick::Cursor, Pick::Two];
    for v6 in [false, true] {
        for (last, pick) in HANDOFF.into_iter().zip(picks) {
            let servers: &[u16] = match last {
                last if last == HANDOFF[3] => &[],
                last if last == HANDOFF[4] => &[own, on_link[0], far[0], on_link[1]],
                _ => &[on_link[0], far[0], on_link[1]],
            };
            let id = builder.service(vip(v6, last), Protocol::Tcp, pick, servers);
            let punt = match last {
                last if last == HANDOFF[1] => NO_SERVER,
                last if last == HANDOFF[4] => marked,
                _ => punt,
            };
            let later = match last {
                last if last == HANDOFF[0] => RehandoffMode::Close,
                last if last == HANDOFF[1] => RehandoffMode::Rehandoff,
                _ => RehandoffMode::Stay,
            };
            let vip = builder.tables.vips.values_mut().find(|vip| vip.id == id).unwrap();
            vip.own = if last == HANDOFF[4] { own } else { NO_SERVER };
            vip.handoff = Some(Handoff {
                mss: 1400 + u16::from(last),
                punt,
                held: if v6 { held } else { NO_SERVER },
                later,
            });
            let routes = RouteIndex::compile(&[], vip.service, HashKey::new(Seed(3, 5)));
            builder.tables.routes.insert(vip.service, Arc::new(routes));
        }
    }
    let members = [&far[..], &on_link[..1], &[on_link[1], held, far[1]], &[]];
    builder.tables.pools.extend([punt, held].map(|slot| (slot, u64::MAX)));
    for (ring, members) in RINGS.into_iter().zip(members) {
        for slot in members {
            *builder.tables.pools.entry(*slot).or_default() |= 1 << ring;
        }
        assert!(!builder.tables.rings.contains_key(&ring), "services have grown up to {ring}");
        let hash = match members {
            [] => Vec::new(),
            members => {
                (0..evener_core::path::tables::HASH_SLOTS).map(|slot| members[slot % members.len()]).collect()
            }
        };
        let ring_of =
            Ring { order: members.to_vec(), hash: hash.into(), previous: [].into(), second: [].into() };
        builder.tables.rings.insert(ring, Arc::new(ring_of));
    }
}

/// Routes by their parts. Numbers are indices into lists of texts.
#[derive(Clone, Debug)]
pub struct RouteWords {
    host: Option<String>,
    path: Option<String>,
    methods: Vec<String>,
    ring: usize,
}

fn route() -> impl Strategy<Value = RouteWords> {
    let host = prop::sample::select(HOSTS.to_vec()).prop_map(str::to_owned);
    let wild =
        ["*.example.com", "*.img.example.com", "*.com", "*.y", "*.d.e.f.g.h.i.j.k", "*.c.d.e.f.g.h.i.j.k"];
    let host = prop_oneof![
        2 => Just(None),
        3 => host.prop_map(Some),
        2 => prop::sample::select(wild.to_vec()).prop_map(|host| Some(host.to_owned())),
    ];
    let path = prop::sample::select(PATHS.to_vec()).prop_map(str::to_owned);
    let prefix = [
        "/*",
        "/img/*",
        "/img/deep/*",
        "/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/*",
        "/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/*",
        "/api/*",
    ];
    let path = prop_oneof![
        3 => Just(None),
        2 => path.prop_map(Some),
        3 => prop::sample::select(prefix.to_vec()).prop_map(|path| Some(path.to_owned())),
        1 => Just(Some("/img/*.png".to_owned())),
    ];
    let methods = prop::sample::subsequence(METHODS.to_vec(), 0..3);
    let methods = prop_oneof![3 => Just(Vec::new()), 1 => methods];
    (host, path, methods, 0..RINGS.len()).prop_map(|(host, path, methods, ring)| RouteWords {
        host,
        path,
        methods: methods.into_iter().map(str::to_owned).collect(),
        ring,
    })
}

/// Routes of the first two services, and the seed of their hash.
#[derive(Clone, Debug)]
pub struct SynOffer {
    routes: Vec<RouteWords>,
    seed: (u64, u64),
}

pub fn syn_offers() -> impl Strategy<Value = SynOffer> {
    let seed = prop_oneof![4 => any::<(u64, u64)>(), 1 => Just((u64::MAX, 0)), 1 => Just((0x7fff_fffc, 0x7fff_fffd))];
    (prop::collection::vec(route(), 0..8), seed).prop_map(|(routes, seed)| SynOffer { routes, seed })
}

impl SynOffer {
    /// Returns one route that sends all requests to one ring, by its index in [`RINGS`].
    pub fn all_to(ring: usize) -> SynOffer {
        let route = RouteWords { host: None, path: None, methods: Vec::new(), ring };
        SynOffer { routes: vec![route], seed: (1, 2) }
    }

    /// Returns the tables with these routes on all services that have routes.
    pub fn put(&self, mut tables: Tables) -> Tables {
        let one = |words: &RouteWords| RoutePattern {
            host: words.host.as_deref().map(|host| HostPattern::parse(host).unwrap()),
            path: words.path.as_deref().map(|path| PathPattern::parse(path).unwrap()),
            methods: words.methods.clone(),
            ring: RINGS[words.ring],
        };
        let routes: Vec<RoutePattern> = self.routes.iter().map(one).collect();
        for (key, vip) in &tables.vips {
            if [HANDOFF[0], HANDOFF[1], HANDOFF[4]]
                .iter()
                .any(|last| [false, true].map(|v6| crate::world::vip(v6, *last)).contains(&key.address))
            {
                let seed = HashKey::new(Seed(self.seed.0, self.seed.1));
                let routes = RouteIndex::compile(&routes, vip.service, seed);
                tables.routes.insert(vip.service, Arc::new(routes));
            }
        }
        tables
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Connection {
    v6: bool,
    client: u8,
    port: u16,
    service: u8,
}

/// TCP options of a SYN.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    mss: Option<u16>,
    scale: Option<u8>,
    sack: bool,
    timestamp: Option<u32>,
    /// Bytes after the other options.
    rest: Vec<u8>,
}

#[derive(Clone, Debug)]
enum What {
    Syn,
    Ack,
    Data(Vec<u8>),
    /// A keepalive segment: its sequence number is one below the next one.
    Probe(Vec<u8>),
    Fin,
    Other(u8, Vec<u8>),
}

/// Description of a segment, before it is damaged.
#[derive(Clone, Debug)]
pub struct Segment {
    connection: Connection,
    offer: Offer,
    what: What,
    /// Added to the sequence number and the acknowledgment number.
    skew: (u32, u32),
    /// Difference between the echoed timestamp and the timestamp of the SYN-ACK, with timestamps.
    echo: Option<u32>,
    /// Added to the epoch of the cookie.
    late: i8,
    tags: usize,
    /// Source address of the frame, which marks how the packet arrived.
    source: Mac,
    damage: Option<(usize, u8)>,
    dont_fragment: bool,
}

pub fn segment() -> impl Strategy<Value = Segment> {
    // Mostly services whose later requests are inspected: these need two matching segments of one
    // connection.
    let service = prop_oneof![2 => prop::sample::select(HANDOFF[..2].to_vec()), 1 => prop::sample::select(HANDOFF.to_vec())];
    let connection = (any::<bool>(), 0u8..2, 2000u16..2002, service)
        .prop_map(|(v6, client, port, service)| Connection { v6, client, port, service });
    let mss = prop_oneof![1 => Just(None), 4 => prop::sample::select(vec![0, 535, 536, 1219, 1220, 1300, 1439, 1440, 1460, 9000]).prop_map(Some)];
    let scale = prop_oneof![1 => Just(None), 3 => (0u8..16).prop_map(Some), 1 => Just(Some(255))];
    let cut = vec![vec![8, 10, 1, 2], vec![2, 4, 5], vec![3, 3], vec![4, 3]];
    let rest = prop_oneof![
        6 => Just(vec![]),
        2 => prop::collection::vec(any::<u8>(), 1..12),
        1 => Just(vec![0, 2, 4, 5, 180]),
        2 => prop::sample::select(cut),
    ];
    let offer = (mss, scale, any::<bool>(), any::<Option<u32>>(), rest)
        .prop_map(|(mss, scale, sack, timestamp, rest)| Offer { mss, scale, sack, timestamp, rest })
        .boxed();
    // Boxed: proptest moves its value trees over the stack, and a test thread has a stack of 2 MiB.
    let payload = payload().boxed();
    let flags = prop_oneof![2 => Just(0x04u8), 1 => Just(0x12), 1 => Just(0x01), 1 => Just(0x00), 1 => Just(0x38), 1 => any::<u8>()];
    let what = prop_oneof![
        4 => Just(What::Syn),
        2 => Just(What::Ack),
        2 => prop::collection::vec(Just(0), 0..3).prop_map(What::Probe),
        10 => payload.clone().prop_map(What::Data).boxed(),
        1 => Just(What::Fin),
        2 => (flags, prop_oneof![2 => Just(vec![]), 1 => payload]).prop_map(|(flags, data)| What::Other(flags, data)).boxed(),
    ];
    let skew = prop_oneof![6 => Just((0u32, 0u32)), 3 => (1u32..2000, Just(0)), 1 => (Just(0), any::<u32>())];
    let late = prop_oneof![6 => Just(0i8), 1 => Just(-1), 1 => Just(1), 1 => Just(2)];
    let tags = prop_oneof![8 => Just(0usize), 1 => Just(1), 1 => Just(2)];
    let damage = prop_oneof![12 => Just(None), 1 => (12usize..80, any::<u8>()).prop_map(Some)];
    let source = prop_oneof![3 => Just(SOURCES[0]), 2 => prop::sample::select(SOURCES.to_vec())];
    let echo = prop_oneof![
        12 => Just(Some(0u32)),
        1 => (1..REPLAYED).prop_map(Some),
        1 => Just(Some(REPLAYED - 1)),
        1 => Just(Some(REPLAYED)),
        1 => any::<Option<u32>>(),
        12 => Just(None),
    ];
    (connection, offer, what, (skew, echo), late, (tags, source), damage, any::<bool>()).prop_map(
        |(connection, offer, what, (skew, echo), late, (tags, source), damage, dont_fragment)| Segment {
            connection,
            offer,
            what,
            skew,
            echo,
            late,
            tags,
            source,
            damage,
            dont_fragment,
        },
    )
}

impl Offer {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(mss) = self.mss {
            bytes.extend([&[2, 4][..], &mss.to_be_bytes()].concat());
        }
        if self.sack {
            bytes.extend([4, 2]);
        }
        if let Some(clock) = self.timestamp {
            bytes.extend([&[8, 10][..], &clock.to_be_bytes(), &[0; 4]].concat());
        }
        if let Some(scale) = self.scale {
            bytes.extend([1, 3, 3, scale]);
        }
        bytes.extend(&self.rest);
        bytes.truncate(40);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn terms(&self, v6: bool) -> SynOptions {
        SynOptions::new(v6, self.mss, self.scale.filter(|_| self.sack))
    }
}

impl Segment {
    /// Returns the first data segment of a connection, of a client without options.
    pub fn first(v6: bool, client: u8, port: u16, service: u8) -> Segment {
        Segment {
            connection: Connection { v6, client, port, service },
            offer: Offer::default(),
            what: What::Data(b"GET / HTTP/1.1\r\nHost: x.y\r\n\r\n".to_vec()),
            skew: (0, 0),
            echo: None,
            late: 0,
            tags: 0,
            source: SOURCES[0],
            damage: None,
            dont_fragment: true,
        }
    }

    /// Returns the segment with a request for this host.
    pub fn of_host(self, host: &str) -> Segment {
        let data = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        Segment { what: What::Data(data), ..self }
    }

    /// Returns a later segment with the same request, in a frame of `len` bytes.
    pub fn later(v6: bool, client: u8, port: u16, service: u8, len: usize) -> Segment {
        let first = Segment::first(v6, client, port, service);
        let headers_len = 14 + if v6 { 40 } else { 20 } + 20;
        let mut data = b"GET / HTTP/1.1\r\nHost: x.y\r\nCookie: ".to_vec();
        data.resize(len - headers_len - 4, b'c');
        data.extend(b"\r\n\r\n");
        Segment { what: What::Data(data), skew: (1000, 1000), ..first }
    }

    pub fn frame(&self, keys: &Keys) -> Vec<u8> {
        let Connection { v6, client: number, port, service } = self.connection;
        let (src, dst) = (client(v6, number), vip(v6, service));
        let isn = 0xffff_fff0u32.wrapping_add(u32::from(port) << 3);
        let ends = FourTuple { client: SocketAddr::new(src, port), service: SocketAddr::new(dst, 80) };
        let made = Keys { epoch: keys.epoch.wrapping_add_signed(self.late.into()), ..*keys };
        let cookie =
            made.make(&ends, isn, self.offer.terms(v6)).unwrap_or(Cookie { number: 12345, clock: 1 });
        let (flags, data): (u8, &[u8]) = match &self.what {
            What::Syn => (0x02, &[]),
            What::Ack => (0x10, &[]),
            What::Data(data) => (0x18, data),
            What::Probe(data) => (0x10, data),
            What::Fin => (0x11, &[]),
            What::Other(flags, data) => (*flags, data),
        };
        let syn = matches!(self.what, What::Syn);
        let echoes = |later: u32| {
            [&[1, 1, 8, 10, 0, 0, 0, 9][..], &cookie.clock.wrapping_add(later).to_be_bytes()].concat()
        };
        let options = if syn { self.offer.bytes() } else { self.echo.map(echoes).unwrap_or_default() };
        let is_before = syn || matches!(self.what, What::Probe(_));
        let sequence = if is_before { isn } else { isn.wrapping_add(1).wrapping_add(self.skew.0) };
        let acknowledgment = if syn { 0 } else { cookie.number.wrapping_add(1).wrapping_add(self.skew.1) };
        let mut tcp = [port.to_be_bytes(), 80u16.to_be_bytes()].concat();
        tcp.extend(sequence.to_be_bytes());
        tcp.extend(acknowledgment.to_be_bytes());
        tcp.extend([(5 + options.len() as u8 / 4) << 4, flags, 0xfa, 0xf0, 0, 0, 0, 0]);
        tcp.extend(options);
        tcp.extend(data);
        let check = sum(src, dst, 6, &tcp);
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        let field = if self.dont_fragment { 0x4000 } else { 0 };
        let packet = match v6 {
            false => packet_v4(src, dst, 6, 64, (77, field), &tcp),
            true => packet_v6(src, dst, 6, 64, &tcp),
        };
        let mut frame = tagged(link(packet), self.tags);
        frame[6..12].copy_from_slice(&self.source.0);
        if let Some((at, to)) = self.damage
            && let Some(byte) = frame.get_mut(at)
        {
            *byte = to;
        }
        frame
    }
}

/// Reasons that the random segments together must produce.
pub const MET: [Reason; 14] = [
    Reason::BadChecksum,
    Reason::RouteMismatch,
    Reason::Rehandoff,
    Reason::CookieSent,
    Reason::CookieAcked,
    Reason::KeepaliveAcked,
    Reason::CookieBad,
    Reason::CookieUnchecked,
    Reason::Reset,
    Reason::Punted,
    Reason::Forwarded,
    Reason::Local,
    Reason::NoServer,
    Reason::BadFlags,
];
