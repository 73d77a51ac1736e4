//! How many instructions packets of sessions at work take. On the short way a packet's wait for its session overlaps with the next one
//! only while all of it is short: more instructions cost more than their number says.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::tables::{Behind, Forwarding, Pick, Tables, VipKey};
use evener_dataplane::xdp::{Hook, Options, XdpEngine};

use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

use crate::frames::{answer_to, segment};
use crate::walk::{XDP_REDIRECT, walk};
use crate::world::{Builder, NOW, OWN, RING_SEED, SEED, SESSIONS, vip};

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const SYN_ACK: u8 = 0x12;
/// In ticks of 2^20 ns.
const A_SECOND: u32 = 953;
const XDP_PASS: u64 = 2;
const XDP_TX: u64 = 3;

/// Services by the last byte of their address, and the most instructions that a packet of theirs may take: a few more than it does.
const L2: (u8, u32) = (1, 198);
const TUNNEL: (u8, u32) = (2, 294);
const NAT: (u8, u32) = (3, 294);
/// Of what a server answers that is reached by NAT.
const ANSWERED: u32 = 404;
/// Of packets for no service.
const PASSED: u32 = 108;
const NO_SERVICE: u8 = 9;

fn tables() -> Tables {
    let mut builder = Builder { tables: Tables::default(), next_server: 1, next_vip: 1 };
    builder.tables.interfaces.insert(1, OWN);
    let at = |last: u8| [10, 0, 5, last].into();
    let ipip = Encapsulation::Ipip;
    let tunnel = Forwarding::Tunnel { encapsulation: ipip, from: at(1), to: at(2), mtu: 1500, mark: None };
    let nat = Forwarding::Nat { to: (at(3), 8080).into(), own: at(1), source_nat: false, mtu: 1500 };
    for ((last, _), forwarding) in [(L2, Forwarding::Link), (TUNNEL, tunnel), (NAT, nat)] {
        let server = builder.server(forwarding, 1);
        let vip = builder.service(vip(false, last), Protocol::Tcp, Pick::Cursor, &[server]);
        if let Forwarding::Nat { to, .. } = forwarding {
            let key = VipKey { address: to.ip(), port: to.port(), protocol: Protocol::Tcp };
            builder.tables.endpoints.insert(key, vec![Behind { vip, server }]);
        }
    }
    builder.tables
}

fn options() -> Options {
    let (seed, ring_seed) = (SEED, Some(RING_SEED));
    let (sessions_max, sessions6_max) = (SESSIONS, SESSIONS);
    Options { sessions_max, sessions6_max, seed, ring_seed, mode: None, pins: None }
}

// What needs privileges is skipped without them.

fn start_at(now: u32) -> Option<XdpEngine> {
    XdpEngine::start_at(options(), now).ok()
}

fn start(tables: Tables) -> Option<XdpEngine> {
    let mut engine = XdpEngine::start(options()).ok()?;
    engine.load_tables(&Arc::new(tables)).unwrap();
    Some(engine)
}

#[test]
fn packets_of_sessions_at_work_stay_within_their_instructions() {
    let Some(engine) = start(tables()) else { return };
    let run = |frame: &[u8]| engine.test_run(Hook::Xdp, frame).unwrap().1;
    for (service, most) in [L2, TUNNEL, NAT] {
        let frame = |flags| segment(false, service, 1, 1000, flags);
        if let Some(answer) = answer_to(&run(&frame(SYN)), SYN_ACK) {
            run(&answer);
        }
        run(&frame(ACK));
        let (verdict, count) = walk(&engine, &frame(ACK));
        println!("service {service}: {count} instructions");
        assert_eq!(verdict, XDP_TX, "service {service}");
        assert!(count <= most, "service {service}: {count} of {most}");
    }
}

/// A connection by NAT, whose answers' way the kernel was asked for.
fn answered(engine: &XdpEngine) -> Vec<u8> {
    let run = |frame: &[u8]| engine.test_run(Hook::Xdp, frame).unwrap().1;
    let to_server = |flags| run(&segment(false, NAT.0, 1, 1000, flags));
    run(&answer_to(&to_server(SYN), SYN_ACK).unwrap());
    let answer = answer_to(&to_server(ACK), ACK).unwrap();
    run(&answer);
    answer
}

/// What is remembered is of one CPU.
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
    let Some(engine) = start(tables()) else { return };
    let answer = answered(&engine);
    let (verdict, count) = walk(&engine, &answer);
    println!("an answer: {count} instructions");
    assert_eq!(verdict, XDP_REDIRECT);
    assert!(count <= ANSWERED, "{count} of {ANSWERED}");
}

/// The clock stands, so nothing is over by itself.
#[test]
fn an_answers_way_is_asked_for_again_after_a_second_or_when_routes_change() {
    if !crate::in_a_network() {
        return;
    }
    stay_on_this_cpu();
    let Some(mut engine) = start_at(NOW) else { return };
    engine.load_tables(&Arc::new(tables())).unwrap();
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
    // The kernel tells the daemon, which takes a moment.
    let patience = Instant::now() + Duration::from_secs(60);
    while sent_to() == before {
        assert!(Instant::now() < patience, "the old way is still gone");
        std::thread::yield_now();
    }
    assert_eq!(sent_to(), other);
}

#[test]
fn packets_for_no_service_stay_within_their_instructions() {
    let Some(engine) = start(Tables { endpoints: Default::default(), ..tables() }) else { return };
    let (verdict, count) = walk(&engine, &segment(false, NO_SERVICE, 1, 1000, ACK));
    println!("no service: {count} instructions");
    assert_eq!(verdict, XDP_PASS);
    assert!(count <= PASSED, "{count} of {PASSED}");
}
