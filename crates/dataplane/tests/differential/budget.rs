//! Limits the instructions per packet of established sessions. On the fast path, the memory access
//! of one packet overlaps with the next packet only if the whole path is short. Extra instructions
//! therefore cost more than their number suggests.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::sessions::{SessionKey, State, Value};
use evener_core::path::tables::{
    Forwarding, Handoff, NO_SERVER, Pick, RehandoffMode, ReplyOrigin, Tables, VipKey,
};
use evener_dataplane::Engine;
use evener_dataplane::xdp::{Hook, Options, XdpEngine};

use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

use crate::frames::{answer_to, datagram, segment};
use crate::walk::{XDP_REDIRECT, walk};
use crate::world::{Builder, IDLE, NOW, OWN, RING_SEED, SEED, SESSIONS, vip};

const ACK: u8 = 0x10;
/// One second in ticks of 2^20 ns.
const A_SECOND: u32 = 953;
const XDP_PASS: u64 = 2;
const XDP_TX: u64 = 3;

/// A path of an established session, and the limit of instructions for its packet. The limit is
/// slightly above the current number. The clock is fixed here: reading the clock takes three more
/// instructions.
struct Kind {
    name: &'static str,
    protocol: Protocol,
    v6: bool,
    way: Forwarding,
    /// True if connections are handed off.
    handoff: bool,
    every_host: bool,
    most: u32,
}

fn kinds() -> [Kind; 9] {
    let at = |last: u8| [10, 0, 5, last].into();
    let ipip = Encapsulation::Ipip;
    let tunnel = Forwarding::Tunnel { encapsulation: ipip, from: at(1), to: at(2), mtu: 1500, mark: None };
    let nat = Forwarding::Nat { to: (at(3), 8080).into(), own: at(1), source_nat: false, mtu: 1500 };
    let kind = |name, way, most| Kind {
        name,
        protocol: Protocol::Tcp,
        v6: false,
        way,
        handoff: false,
        every_host: false,
        most,
    };
    let link = Forwarding::Link;
    [
        kind("l2", link, 195),
        Kind { protocol: Protocol::Udp, ..kind("l2, UDP", link, 181) },
        kind("tunnel", tunnel, 290),
        kind("nat in", nat, 289),
        Kind { handoff: true, ..kind("handoff", link, 197) },
        Kind { handoff: true, ..kind("handoff by tunnel", tunnel, 293) },
        Kind { every_host: true, ..kind("every-host", link, 224) },
        Kind { v6: true, protocol: Protocol::Udp, ..kind("l2, UDP over IPv6", link, 265) },
        Kind { v6: true, ..kind("l2, IPv6", link, 280) },
    ]
}

/// Limit for replies of a server that is reached by NAT.
const ANSWERED: u32 = 401;
/// Limit for packets to no service.
const PASSED: u32 = 103;
const NO_SERVICE: u8 = 9;

const SERVICE: u8 = 1;

fn tables(kind: &Kind) -> Tables {
    let mut builder = Builder { tables: Tables::default(), next_server: 1, next_vip: 1 };
    builder.tables.interfaces.insert(1, OWN);
    let server = builder.server(kind.way, 1);
    let here = builder.server(Forwarding::Link, 1);
    let vip = builder.service(vip(kind.v6, SERVICE), kind.protocol, Pick::Cursor, &[server]);
    if let Forwarding::Nat { to, .. } = kind.way {
        let key = VipKey { address: to.ip(), port: to.port(), protocol: kind.protocol };
        builder.tables.endpoints.insert(key, vec![ReplyOrigin { vip, server }]);
    }
    for vip in builder.tables.vips.values_mut() {
        let handoff = Handoff { mss: 1400, punt: 0, held: 0, later: RehandoffMode::Stay };
        vip.handoff = kind.handoff.then_some(handoff);
        vip.own = if kind.every_host { here } else { NO_SERVER };
    }
    builder.tables
}

/// Creates an established session and returns a packet of it.
fn at_work(engine: &XdpEngine, kind: &Kind) -> Vec<u8> {
    let frame = match kind.protocol {
        Protocol::Tcp => segment(kind.v6, SERVICE, 1, 1000, ACK),
        Protocol::Udp => datagram(kind.v6, SERVICE, 1, 1000, 24),
    };
    let client = if kind.v6 { "2001:db8:c1::1".parse().unwrap() } else { [203, 0, 111, 1].into() };
    let key = SessionKey { client, port: 1000, vip: 1 };
    let state = if kind.protocol == Protocol::Tcp { State::Established } else { State::Udp };
    let (now, idle) = (engine.now(), state.idle(&IDLE));
    let value = Value::new(1, state, now.wrapping_add(idle));
    engine.memory().sessions.insert(key, key.hash(SEED), value, now).unwrap();
    frame
}

fn options() -> Options {
    let (seed, ring_seed) = (SEED, Some(RING_SEED));
    let (sessions_max, sessions6_max) = (SESSIONS, SESSIONS);
    Options { sessions_max, sessions6_max, seed, ring_seed, mode: None, pins: None }
}

// Tests that need privileges skip without them.

fn start_at(now: u32) -> Option<XdpEngine> {
    XdpEngine::start_at(options(), now).ok()
}

/// Starts an engine with a fixed clock. On a busy machine, time would pass between a session's
/// creation and its packet.
fn start(tables: Tables) -> Option<XdpEngine> {
    let mut engine = start_at(NOW)?;
    engine.load_tables(&Arc::new(tables)).unwrap();
    Some(engine)
}

#[test]
fn packets_of_sessions_at_work_stay_within_their_instructions() {
    for kind in kinds() {
        let Some(engine) = start(tables(&kind)) else { return };
        let frame = at_work(&engine, &kind);
        let (verdict, count) = walk(&engine, &frame);
        println!("{}: {count} instructions", kind.name);
        assert_eq!(verdict, XDP_TX, "{}", kind.name);
        assert!(count <= kind.most, "{}: {count} of {}", kind.name, kind.most);
    }
}

fn nat() -> Kind {
    kinds().into_iter().find(|kind| kind.name == "nat in").unwrap()
}

/// Creates a NAT session whose reply route is already looked up, and returns a reply.
fn answered(engine: &XdpEngine) -> Vec<u8> {
    let run = |frame: &[u8]| engine.test_run(Hook::Xdp, frame).unwrap().1;
    let answer = answer_to(&run(&at_work(engine, &nat())), ACK).unwrap();
    run(&answer);
    answer
}

/// Session memory is per CPU.
fn stay_on_this_cpu() {
    let mut cpus = CpuSet::new();
    cpus.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
}

#[test]
fn answers_of_sessions_at_work_stay_within_their_instructions() {
    if !crate::in_a_network() {
        return;
    }
    stay_on_this_cpu();
    let Some(engine) = start(tables(&nat())) else { return };
    let answer = answered(&engine);
    let (verdict, count) = walk(&engine, &answer);
    println!("an answer: {count} instructions");
    assert_eq!(verdict, XDP_REDIRECT);
    assert!(count <= ANSWERED, "{count} of {ANSWERED}");
}

/// The clock is fixed, so no cached route expires by time alone.
#[test]
fn reply_hop_is_looked_up_again_after_second_or_route_change() {
    if !crate::in_a_network() {
        return;
    }
    stay_on_this_cpu();
    let Some(mut engine) = start_at(NOW) else { return };
    engine.load_tables(&Arc::new(tables(&nat()))).unwrap();
    let answer = answered(&engine);
    let is_known = || walk(&engine, &answer).0 == XDP_REDIRECT;
    assert!(is_known());
    engine.set_clock(NOW + A_SECOND - 1);
    assert!(is_known());
    engine.set_clock(NOW + A_SECOND);
    assert!(!is_known(), "a second is over");
    let sent_to = || engine.test_run(Hook::Xdp, &answer).unwrap().1[..6].to_vec();
    let before = sent_to();
    assert!(is_known(), "it was asked again");
    let other = [2, 0, 0, 0, 0, 7];
    for command in
        ["neigh add 10.9.9.7 lladdr 02:00:00:00:00:07 dev out0", "route replace 203.0.111.0/24 via 10.9.9.7"]
    {
        assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success());
    }
    // The kernel notifies the daemon of the route change after a moment.
    let patience = Instant::now() + Duration::from_secs(60);
    while sent_to() == before {
        assert!(Instant::now() < patience, "the old way is still gone");
        std::thread::yield_now();
    }
    assert_eq!(sent_to(), other);
}

#[test]
fn packets_for_no_service_stay_within_their_instructions() {
    let Some(engine) = start(Tables { endpoints: Default::default(), ..tables(&nat()) }) else { return };
    let (verdict, count) = walk(&engine, &segment(false, NO_SERVICE, 1, 1000, ACK));
    println!("no service: {count} instructions");
    assert_eq!(verdict, XDP_PASS);
    assert!(count <= PASSED, "{count} of {PASSED}");
}
