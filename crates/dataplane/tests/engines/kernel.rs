//! The kernel engine on real interfaces.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evener_core::net::Encapsulation;
use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::net::wire::{Mac, TCP_ACK, TCP_SYN};
use evener_core::path::decide::Reason;
use evener_core::path::mark::{ForwardCount, Marker};
use evener_core::path::mark::{PASSED, PASSED_TWICE};
use evener_core::path::parse::{Parsed, parse};
use evener_core::path::rewrite::{Tunnel, encapsulate};
use evener_core::path::seed::Seed;
use evener_core::path::sessions::FlowHash;
use evener_core::path::tables::{Forwarding, HASH_SLOTS, PEERS_MAX, Ring, ServerEntry, Tables};
use evener_dataplane::Engine;
use evener_dataplane::server::{AttachPoints, Offer, Reason as ServerReason, ServerPrograms};
use evener_dataplane::xdp::{Mode, Options, XdpEngine, pins};

use crate::frames::{Bench, two_servers};
use crate::hosts::{Host, NEVER, SOON, receive, segment};
use crate::{count, key, server, skipped, tables};

pub fn kernel_engine(mode: Option<Mode>, pins: Option<PathBuf>, tables: Tables) -> XdpEngine {
    let mut engine = start(mode, pins);
    engine.apply(&Arc::new(tables)).unwrap();
    engine
}

/// Starts an engine from the pinned maps and programs, without any change to them.
pub fn restart(pins: &Path) -> XdpEngine {
    start(None, Some(pins.to_owned()))
}

fn start(mode: Option<Mode>, pins: Option<PathBuf>) -> XdpEngine {
    let seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
    let options = Options { sessions_max: 4096, sessions6_max: 1024, seed, ring_seed: None, mode, pins };
    XdpEngine::start(options).unwrap()
}

#[test]
fn veths_are_attached_by_tc_unless_configured_otherwise() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        for (mode, name) in [(None, "tc"), (Some(Mode::Tc), "tc"), (Some(Mode::Generic), "generic")] {
            let engine = kernel_engine(mode, None, two_servers(&bench));
            assert_eq!(engine.describe(), format!("xdp ({name} on in0, {name} on out0)"));
            bench.reaches(1000, TCP_SYN);
            bench.reaches(1000, TCP_ACK);
            Box::new(engine).leave(false).unwrap();
        }
    });
}

#[test]
fn older_attachment_is_replaced_and_sessions_stay() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let dir = pins::directory().unwrap();
        let start = |mode| kernel_engine(mode, Some(dir.clone()), two_servers(&bench));
        let mut first = None;
        for (mode, name) in [
            (Some(Mode::Generic), "generic"),
            (None, "tc"),
            (None, "tc"),
            (Some(Mode::Generic), "generic"),
            (Some(Mode::Tc), "tc"),
        ] {
            let engine = start(mode);
            assert!(engine.describe().contains(&format!("{name} on in0")), "{}", engine.describe());
            let flags = if first.is_none() { TCP_SYN } else { TCP_ACK };
            let servers: Vec<Mac> = (0..10).map(|port| bench.reaches(1000 + port, flags)).collect();
            assert_eq!(first.get_or_insert_with(|| servers.clone()), &servers);
            // A drop is like a kill: pinned programs keep running.
            drop(engine);
            assert_eq!(first, Some((0..10).map(|port| bench.reaches(1000 + port, TCP_ACK)).collect()));
        }
        Box::new(start(None)).leave(false).unwrap();
        assert!(!dir.exists());
    });
}

/// Peers: new sessions go to the first. Packets without a session get their second chance at the
/// other.
const PEER: Mac = Mac([2, 0, 0, 0, 0, 3]);
const PEER_BEFORE: Mac = Mac([2, 0, 0, 0, 0, 4]);

/// Tables with three hosts. Slot 1 is this host, and the others are behind `out0`.
fn every_host(bench: &Bench) -> Tables {
    let (encapsulation, mark) = (Encapsulation::Gue, Some(ForwardCount::Twice));
    let way = Forwarding::Tunnel { encapsulation, from: OWN, to: FROM, mtu: 1500, mark };
    let servers = [
        ServerEntry { local: true, ..server(bench.inside.1, bench.inside.0) },
        server(PEER, bench.outside.0),
        ServerEntry { forwarding: way, ..server(PEER_BEFORE, bench.outside.0) },
    ];
    let mut tables = tables(&bench.interfaces(), &servers, true);
    tables.vips.values_mut().for_each(|vip| vip.own = 1);
    let all = |slot| vec![slot; HASH_SLOTS].into();
    tables.rings.insert(0, Arc::new(Ring { order: vec![2], hash: all(2), previous: all(3), second: all(3) }));
    tables.peers = [PEER, PEER_BEFORE].into();
    tables
}

/// Tunnel endpoint addresses of this host and of another host.
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(172, 16, 0, 1));
const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(172, 16, 0, 2));

/// Marker of both hosts.
const MARKER: Marker = Marker { key: Seed(41, 42), generation: 7 };

/// Returns a client's segment as another host forwards it through a tunnel. Without a mark, the
/// segment looks like a director's.
fn passed_on(bench: &Bench, port: u16, flags: u8, mark: Option<(ForwardCount, Marker)>) -> Vec<u8> {
    let mut buffer = vec![0; HEADROOM];
    buffer.extend(segment(bench.client_mac, bench.inside.1, port, flags));
    let mut packet = Packet::new(&mut buffer, HEADROOM, 1);
    let Parsed::Segment(segment) = parse(packet.frame(), Some(bench.inside.1)) else { panic!("a segment") };
    let tunnel = Tunnel { encapsulation: Encapsulation::Gue, from: FROM, to: OWN, mark };
    assert!(encapsulate(&mut packet, &segment.at, tunnel, FlowHash(0), 1));
    packet.readdress(bench.client_mac, bench.inside.1);
    packet.frame().to_vec()
}

/// Starts decapsulation on `in0`.
fn opener(bench: &Bench, marks: bool) -> ServerPrograms {
    let tables = evener_dataplane::server::Tables {
        addresses: [OWN].into(),
        directors: [FROM].into(),
        services: BTreeMap::from([(key(), Offer { is_marked: marks, ..Offer::default() })]),
        marks: marks.then_some(MARKER.key),
    };
    let mut server = ServerPrograms::start(evener_dataplane::server::directory().unwrap()).unwrap();
    let places =
        AttachPoints { tunnels: BTreeMap::from([(bench.inside.0, false)]), ..AttachPoints::default() };
    server.apply(&tables, &places).unwrap();
    server
}

#[test]
fn decapsulated_packet_counts_as_forwarded() {
    if skipped() {
        return;
    }
    for opened_first in [false, true] {
        Host::new("host").enter(|| {
            let bench = Bench::set_up();
            let early = opened_first.then(|| opener(&bench, true));
            let engine = kernel_engine(None, None, every_host(&bench));
            engine.memory().marker.set(&MARKER);
            let server = early.unwrap_or_else(|| opener(&bench, true));
            assert_eq!(bench.reaches(1000, TCP_SYN), PEER);

            let send_marked = |port, flags, mark: Option<(ForwardCount, Marker)>| {
                bench.client.send(&passed_on(&bench, port, flags, mark)).unwrap();
            };
            let send = |port, flags, passed| send_marked(port, flags, Some((passed, MARKER)));
            send(1001, TCP_SYN, ForwardCount::Once);
            send(1001, TCP_ACK, ForwardCount::Once);
            send(1002, TCP_ACK, ForwardCount::Twice);
            assert_eq!(receive(&bench.server, NEVER), None);
            assert_eq!(count(&engine, Reason::Local), 3);
            let sessions = engine.memory().sessions;
            let noted: Vec<u16> = sessions.list(engine.now()).map(|session| session.value.server()).collect();
            assert_eq!(noted.iter().filter(|slot| **slot == 1).count(), 1, "{noted:?}");

            send(1002, TCP_ACK, ForwardCount::Once);
            let frame = receive(&bench.server, SOON).expect("a second chance");
            assert_eq!(frame[..6], PEER_BEFORE.0);
            // The last two bytes of the GUE header hold the flags. The header follows Ethernet,
            // IPv4 and UDP.
            assert_eq!(frame[42..46], [3, 4, 0, 3], "who gets it keeps it, and can believe that");
            assert_eq!(count(&engine, Reason::SecondChance), 1);

            // No peer forwarded these packets, so this host serves them.
            let forger = Marker { key: Seed(41, 43), ..MARKER };
            send_marked(1004, TCP_SYN, None);
            send_marked(1004, TCP_SYN, Some((ForwardCount::Once, forger)));
            for mark in [PASSED, PASSED_TWICE] {
                bench.client.send(&segment(mark, bench.inside.1, 1004, TCP_SYN)).unwrap();
            }
            // A mark of another generation. The segment arrives last, so the others have been
            // counted.
            send_marked(1005, TCP_ACK, Some((ForwardCount::Twice, Marker { generation: 8, ..MARKER })));
            assert_eq!(receive(&bench.server, NEVER), None);
            assert_eq!(server.counters().unwrap()[&ServerReason::ForgedMark], 4);
            assert_eq!(count(&engine, Reason::Local), 4);

            // Without marks, a forwarded packet cannot be told from a client's packet.
            drop(server);
            let server = opener(&bench, false);
            send_marked(1003, TCP_SYN, None);
            assert_eq!(receive(&bench.server, SOON).expect("it is passed on")[..6], PEER.0);
            server.leave(false).unwrap();
            Box::new(engine).leave(false).unwrap();
        });
    }
}

#[test]
fn peers_and_the_lease_outlive_the_daemon() {
    if skipped() {
        return;
    }
    Host::new("host").enter(|| {
        let bench = Bench::set_up();
        let dir = pins::directory().unwrap();
        let mut tables = every_host(&bench);
        // The largest number of peers.
        tables.peers.extend((2..PEERS_MAX as u64).map(|n| {
            let [.., high, low] = n.to_be_bytes();
            Mac([2, 0, 0, 1, high, low])
        }));
        assert_eq!(tables.peers.len(), PEERS_MAX);
        let engine = kernel_engine(None, Some(dir.clone()), tables.clone());
        engine.memory().lease.set(Some(12_345));
        drop(engine);
        let seed = Seed(1, 2);
        let options = Options {
            sessions_max: 4096,
            sessions6_max: 1024,
            seed,
            ring_seed: Some(seed),
            mode: None,
            pins: Some(dir.clone()),
        };
        let engine = XdpEngine::start(options).unwrap();
        let running = engine.running().unwrap();
        assert_eq!((&running.peers, &running.vips), (&tables.peers, &tables.vips));
        assert_eq!((&running.servers, &running.rings), (&tables.servers, &tables.rings));
        let memory = engine.memory();
        assert_eq!(memory.lease.until(), Some(12_345));
        assert_eq!(memory.ring_seed, seed);
        assert_ne!(memory.seed, seed, "sessions stay where they are");
        Box::new(engine).leave(false).unwrap();
    });
}

/// Rewrites the pins as a daemon leaves them that knows no affinity.
fn make_older(pins: &Path) {
    use libbpf_rs::{MapCore, MapFlags, MapHandle};
    for map in ["clients", "affinities"] {
        std::fs::remove_file(pins.join(map)).unwrap();
    }
    let about = MapHandle::from_pinned_path(pins.join("about")).unwrap();
    let key = 0u32.to_ne_bytes();
    let mut value = about.lookup(&key, MapFlags::ANY).unwrap().unwrap();
    value[..4].copy_from_slice(&17u32.to_ne_bytes());
    about.update(&key, &value, MapFlags::ANY).unwrap();
}

#[test]
fn sessions_of_the_version_before_are_carried_over() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let dir = pins::directory().unwrap();
        let engine = kernel_engine(None, Some(dir.clone()), two_servers(&bench));
        let servers: Vec<Mac> = (0..10).map(|port| bench.reaches(1000 + port, TCP_SYN)).collect();
        Box::new(engine).leave(true).unwrap();
        make_older(&dir);
        let mut engine = restart(&dir);
        assert!(engine.running().is_some(), "it is adopted");
        engine.apply(&Arc::new(two_servers(&bench))).unwrap();
        let again: Vec<Mac> = (0..10).map(|port| bench.reaches(1000 + port, TCP_ACK)).collect();
        assert_eq!(servers, again);
        assert_eq!(engine.memory().sessions.list(engine.now()).count(), 10);
        // A daemon of the older version would treat these pins as another daemon's.
        Box::new(engine).leave(true).unwrap();
        let engine = restart(&dir);
        assert!(engine.running().is_some());
        Box::new(engine).leave(false).unwrap();
    });
}
