//! The engines' trace events.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evener_core::net::checksum;
use evener_core::net::wire::{Mac, TCP_ACK, TCP_SYN};
use evener_core::path::content::{HashKey, PathPattern, RouteIndex, RoutePattern};
use evener_core::path::cookie::{FourTuple, Keys, Schedule, SynOptions};
use evener_core::path::decide::Reason;
use evener_core::path::seed::Seed;
use evener_core::path::tables::{Handoff, NO_SERVER, RehandoffMode, Tables};
use evener_dataplane::events::{CLIENTS_MAX, EventSource, TraceEvent, TraceFilter, TracedVerdict};
use evener_dataplane::packet::PacketEngine;
use evener_dataplane::xdp::{Hook, Mode, Options, XdpEngine, pins};
use evener_dataplane::{Engine, EngineError};

use crate::frames::{Bench, SERVER, two_servers};
use crate::hosts::{CLIENT, Host, NEVER, SOON, VIP, segment, segment_to};
use crate::kernel::kernel_engine;
use crate::{apply, count, options, server, session_file, skipped, tables};

/// Returns a filter that matches all events of the client.
fn all() -> TraceFilter {
    TraceFilter { connections: true, clients: [CLIENT.into()].into() }
}

fn keys() -> Keys {
    Keys { key: Seed(15, 16), epoch: 15 }
}

/// Returns tables with two routes and no punt server.
fn handing_off(bench: &Bench) -> Tables {
    let mut tables = tables(&bench.interfaces(), &[server(SERVER, bench.outside.0)], false);
    tables.vips.values_mut().for_each(|vip| {
        vip.handoff =
            Some(Handoff { mss: 1460, punt: NO_SERVER, held: NO_SERVER, later: RehandoffMode::Stay })
    });
    let routes = ["/a/*", "/img/*"].map(|path| RoutePattern {
        host: None,
        path: Some(PathPattern::parse(path).unwrap()),
        methods: vec![],
        ring: 0,
    });
    tables.routes.insert(0, Arc::new(RouteIndex::compile(&routes, 0, HashKey::new(Seed(1, 2)))));
    tables
}

/// Returns the first data segment of a client whose handshake is complete.
fn request(bench: &Bench, port: u16, request: &str) -> Vec<u8> {
    let mut frame = segment(bench.client_mac, bench.inside.1, port, TCP_ACK);
    let ends = FourTuple { client: client(port), service: service(80) };
    let cookie = keys().make(&ends, 999, SynOptions::new(false, Some(1460), None)).unwrap().number;
    frame[38..42].copy_from_slice(&1_000u32.to_be_bytes());
    frame[42..46].copy_from_slice(&cookie.wrapping_add(1).to_be_bytes());
    frame.extend(request.bytes());
    let len = frame.len() as u16 - 14;
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    let sum = |bytes: &[u8]| checksum::finish(checksum::add(0, bytes)).to_be_bytes();
    frame[24..26].fill(0);
    let header_sum = sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header_sum);
    frame[50..52].fill(0);
    // The pseudo-header (RFC 9293, section 3.1): addresses, protocol, length.
    let pseudo = [&frame[26..34], &[0, 6], &(len - 20).to_be_bytes()].concat();
    let segment_sum = sum(&[&pseudo, &frame[34..]].concat());
    frame[50..52].copy_from_slice(&segment_sum);
    frame
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::new(CLIENT.into(), port)
}

fn service(port: u16) -> SocketAddr {
    SocketAddr::new(VIP.into(), port)
}

/// Returns `many` events with their times set to zero.
fn read(events: &mut dyn EventSource, many: usize) -> Vec<TraceEvent> {
    let (mut traced, end) = (Vec::new(), Instant::now() + SOON);
    while traced.len() < many && Instant::now() < end {
        traced.extend(events.read(Duration::from_millis(20)).unwrap());
    }
    assert_eq!(traced.len(), many, "{traced:?}");
    traced.iter_mut().for_each(|event| match event {
        TraceEvent::Connection(connection) => (connection.at_ns, connection.latency_ns) = (0, 0),
        TraceEvent::Packet(packet) => packet.at_ns = 0,
    });
    traced
}

/// Plays all events of a connection and returns the trace events.
fn story(bench: &Bench, engine: &mut dyn Engine) -> Vec<TraceEvent> {
    engine.memory().cookies.set(&Schedule::fixed(&keys(), engine.now()));
    engine.watch(&all()).unwrap();
    let mut events = engine.events().unwrap();
    assert!(matches!(engine.events(), Err(EngineError::Host(_))), "there is one reader");
    let from_stranger = |mut frame: Vec<u8>| {
        frame[29] += 1;
        frame
    };
    let syn = segment(bench.client_mac, bench.inside.1, 1000, TCP_SYN);
    let elsewhere = segment_to(81, bench.client_mac, bench.inside.1, 1000, TCP_SYN);
    let mut damaged = syn.clone();
    damaged[14] = 0x46;
    let long = format!("GET /img/a HTTP/1.0\r\nCookie: {}\r\n\r\n", "c".repeat(300));
    let frames = [
        (syn.clone(), 1),
        (request(bench, 1000, &long), 2),
        (request(bench, 1000, "more"), 1),
        (request(bench, 1001, "GET / HTTP/1.0\r\n\r\n"), 2),
        (request(bench, 1002, "GET /%61 HTTP/1.0\r\n\r\n"), 2),
        (segment(bench.client_mac, bench.inside.1, 1003, TCP_ACK), 1),
        (elsewhere, 1),
        (damaged, 1),
        (from_stranger(syn), 0),
    ];
    let mut events_read = Vec::new();
    for (frame, many) in frames {
        bench.client.send(&frame).unwrap();
        events_read.extend(read(&mut *events, many));
    }
    assert_eq!(events.lost(), 0);
    events_read
}

#[test]
fn every_engine_traces_the_same_events() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        apply(&mut engine, handing_off(&bench));
        let traced = story(&bench, &mut engine);
        Box::new(engine).leave(false).unwrap();
        for mode in [Mode::Tc, Mode::Generic] {
            let mut engine = kernel_engine(Some(mode), None, handing_off(&bench));
            assert_eq!(story(&bench, &mut engine), traced, "{mode:?}");
            Box::new(engine).leave(false).unwrap();
        }

        let connections: Vec<_> = traced
            .iter()
            .filter_map(|event| match event {
                TraceEvent::Connection(connection) => Some(connection),
                TraceEvent::Packet(_) => None,
            })
            .collect();
        let of = |n: usize| (connections[n].server, connections[n].route, connections[n].reason);
        assert_eq!(of(0), (1, Some(1), Reason::Forwarded));
        assert_eq!(of(1), (1, None, Reason::Forwarded));
        assert_eq!(of(2), (NO_SERVER, None, Reason::NoServer), "nobody can be asked");
        assert_eq!((connections[0].client, connections[0].service), (client(1000), service(80)));
        assert_eq!(connections[0].head.len(), 256);
        assert!(connections[0].head.starts_with(b"GET /img/a HTTP/1.0\r\nCookie: ccc"));
        assert_eq!(connections[1].head, b"GET / HTTP/1.0\r\n\r\n");

        let packets: Vec<_> = traced
            .iter()
            .filter_map(|event| match event {
                TraceEvent::Packet(packet) => Some((packet.verdict, packet.reason, packet.server)),
                TraceEvent::Connection(_) => None,
            })
            .collect();
        let expected = [
            (TracedVerdict::Forward, Reason::CookieSent, NO_SERVER),
            (TracedVerdict::Forward, Reason::Forwarded, 1),
            (TracedVerdict::Forward, Reason::Forwarded, 1),
            (TracedVerdict::Forward, Reason::Forwarded, 1),
            (TracedVerdict::Drop, Reason::NoServer, NO_SERVER),
            (TracedVerdict::Drop, Reason::CookieBad, NO_SERVER),
            (TracedVerdict::Pass, Reason::NotService, NO_SERVER),
            (TracedVerdict::Drop, Reason::IpOptions, NO_SERVER),
        ];
        assert_eq!(packets, expected);
        let TraceEvent::Packet(first) = &traced[0] else { panic!("{traced:?}") };
        assert_eq!((first.src, first.dst, first.protocol), (client(1000), service(80), 6));
        assert_eq!((first.tcp_flags, first.len, first.also_counted), (TCP_SYN, 40, None));
    });
}

#[test]
fn removed_watch_sends_no_events_and_others_were_never_traced() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let mut packet = PacketEngine::start(options(session_file())).unwrap();
        apply(&mut packet, two_servers(&bench));
        let silence = |engine: &mut dyn Engine| {
            let mut events = engine.events().unwrap();
            let nothing = |events: &mut dyn EventSource| {
                bench.reaches(1000, TCP_ACK);
                assert_eq!(events.read(NEVER).unwrap(), []);
            };
            bench.reaches(1000, TCP_SYN);
            nothing(&mut *events);
            let others: Vec<IpAddr> = (1..=5).map(|last| IpAddr::from([198, 51, 100, last])).collect();
            engine
                .watch(&TraceFilter { connections: true, clients: others[..4].iter().copied().collect() })
                .unwrap();
            nothing(&mut *events);
            let many = TraceFilter { connections: false, clients: others.iter().copied().collect() };
            assert!(many.clients.len() > CLIENTS_MAX);
            assert!(matches!(engine.watch(&many), Err(EngineError::Capacity(_))));
            engine.watch(&all()).unwrap();
            bench.reaches(1000, TCP_ACK);
            read(&mut *events, 1);
            engine.watch(&TraceFilter { clients: [].into(), ..all() }).unwrap();
            nothing(&mut *events);
            engine.watch(&all()).unwrap();
            bench.reaches(1000, TCP_ACK);
            read(&mut *events, 1);
            engine.watch(&TraceFilter::default()).unwrap();
            nothing(&mut *events);
        };
        silence(&mut packet);
        Box::new(packet).leave(false).unwrap();
        let mut kernel = kernel_engine(None, None, two_servers(&bench));
        silence(&mut kernel);
        Box::new(kernel).leave(false).unwrap();
    });
}

/// Returns an engine without interfaces, for test runs.
fn idle_kernel(bench: &Bench) -> XdpEngine {
    let options = Options {
        sessions_max: 4096,
        sessions6_max: 1024,
        seed: Seed(1, 2),
        ring_seed: None,
        mode: None,
        pins: None,
    };
    let mut engine = XdpEngine::start(options).unwrap();
    let mut tables = two_servers(bench);
    // Test runs use the loopback interface.
    tables.interfaces = [(1, bench.inside.1)].into();
    let tables = Arc::new(tables);
    engine.load_tables(&tables).unwrap();
    engine
}

#[test]
fn unread_events_are_dropped_and_counted() {
    const MANY: u64 = 20_000;
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let all_are_told_or_lost = |events: &mut dyn EventSource, many: u64| {
            let mut traced = 0;
            loop {
                match events.read(NEVER).unwrap().len() as u64 {
                    0 => break,
                    some => traced += some,
                }
            }
            assert!(traced > 1000 && events.lost() > 1000, "{traced} told, {} lost", events.lost());
            assert_eq!(traced + events.lost(), many);
        };
        let mut engine = idle_kernel(&bench);
        engine.watch(&all()).unwrap();
        let mut events = engine.events().unwrap();
        let frame = segment(bench.client_mac, bench.inside.1, 1000, TCP_ACK);
        for _ in 0..MANY {
            engine.test_run(Hook::Xdp, &frame).unwrap();
        }
        all_are_told_or_lost(&mut *events, MANY);
        // The buffer has room again.
        engine.test_run(Hook::Tc, &frame).unwrap();
        read(&mut *events, 1);

        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        apply(&mut engine, two_servers(&bench));
        engine.watch(&all()).unwrap();
        let mut events = engine.events().unwrap();
        for sent in 1..=MANY {
            bench.client.send(&frame).unwrap();
            // No more frames at once than the packet ring holds.
            let end = Instant::now() + SOON;
            while sent % 500 == 0 && count(&engine, Reason::Forwarded) < sent && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        all_are_told_or_lost(&mut *events, count(&engine, Reason::Forwarded));
        Box::new(engine).leave(false).unwrap();
    });
}

#[test]
fn an_adopted_data_plane_goes_on_telling() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let dir = pins::directory().unwrap();
        let start = || kernel_engine(None, Some(dir.clone()), two_servers(&bench));
        let mut engine = start();
        engine.watch(&all()).unwrap();
        let mut events = engine.events().unwrap();
        bench.reaches(1000, TCP_SYN);
        read(&mut *events, 1);
        // A drop is like a kill: pinned programs keep running.
        drop((engine, events));
        let server = bench.reaches(1000, TCP_ACK);

        let mut engine = start();
        let mut events = engine.events().unwrap();
        bench.reaches(1001, TCP_SYN);
        let traced = read(&mut *events, 2);
        let ports: Vec<u16> = traced
            .iter()
            .map(|event| match event {
                TraceEvent::Packet(packet) => packet.src.port(),
                TraceEvent::Connection(_) => panic!("{event:?}"),
            })
            .collect();
        assert_eq!(ports, [1000, 1001], "what happened while nobody was there is read, too");
        let TraceEvent::Packet(packet) = &traced[0] else { panic!("{traced:?}") };
        assert_eq!(server, Mac([2, 0, 0, 0, 0, packet.server as u8]));
        engine.watch(&TraceFilter::default()).unwrap();
        bench.reaches(1000, TCP_ACK);
        assert_eq!(events.read(NEVER).unwrap(), []);
        Box::new(engine).leave(false).unwrap();
    });
}
