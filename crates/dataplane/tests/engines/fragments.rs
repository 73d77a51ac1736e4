//! Fragments that arrive out of order, through both engines.

use std::thread;
use std::time::{Duration, Instant};

use evener_core::net::wire::TCP_SYN;
use evener_core::path::decide::Reason;
use evener_dataplane::Engine;
use evener_dataplane::packet::PacketEngine;

use crate::frames::{Bench, two_servers};
use crate::hosts::{Host, NEVER, SOON, receive, segment};
use crate::kernel::kernel_engine;
use crate::{count, options, session_file, skipped};

/// Returns a packet to the service as two fragments.
fn fragments(bench: &Bench, port: u16, id: u8) -> [Vec<u8>; 2] {
    let whole = segment(bench.client_mac, bench.inside.1, port, TCP_SYN);
    let (headers, payload) = (&whole[..34], vec![0x55; 48]);
    let transport = [&whole[34..], &payload].concat();
    let part = |offset: u16, more: bool, bytes: &[u8]| {
        let mut frame = [headers, bytes].concat();
        frame[16..18].copy_from_slice(&(20 + bytes.len() as u16).to_be_bytes());
        frame[19] = id;
        frame[20..22].copy_from_slice(&((offset / 8) | (u16::from(more) << 13)).to_be_bytes());
        frame[24..26].fill(0);
        let sum = evener_core::net::checksum::finish(evener_core::net::checksum::add(0, &frame[14..34]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    [part(0, true, &transport[..40]), part(40, false, &transport[40..])]
}

/// Waits until `expected` fragments have been held in total.
fn held(engine: &dyn Engine, expected: u64) {
    let end = Instant::now() + SOON;
    while count(engine, Reason::FragmentHeld) < expected && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(count(engine, Reason::FragmentHeld), expected);
}

/// Waits until `expected` held fragments have been dropped.
fn are_lost(engine: &dyn Engine, expected: u64) {
    let end = Instant::now() + SOON;
    while count(engine, Reason::FragmentLost) < expected && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(count(engine, Reason::FragmentLost), expected);
}

fn play(bench: &Bench, engine: &dyn Engine) {
    // In order, then reversed.
    for (id, order) in [[0, 1], [1, 0]].into_iter().enumerate() {
        let sent = fragments(bench, 1000 + id as u16, id as u8 + 1);
        let mut servers = Vec::new();
        for (turn, number) in order.into_iter().enumerate() {
            bench.client.send(&sent[number]).unwrap();
            // A later fragment that arrives first is held.
            if turn == 0 && number == 1 {
                assert_eq!(receive(&bench.server, NEVER), None);
            }
        }
        for _ in order {
            let received = receive(&bench.server, SOON).expect("both fragments arrive");
            assert!(sent.iter().any(|frame| frame[14..] == received[14..]), "nothing but the MACs changed");
            servers.push(received[..6].to_vec());
        }
        assert_eq!(servers[0], servers[1], "both go to one server");
    }
    assert_eq!(count(engine, Reason::Forwarded), 4);
    assert_eq!(count(engine, Reason::FragmentHeld), 1);
    let counters = engine.counters().unwrap();
    assert_eq!(counters.servers.values().map(|server| server.packets).sum::<u64>(), 4);

    // A fragment whose first fragment never arrives is dropped.
    let [_, lost] = fragments(bench, 1000, 9);
    bench.client.send(&lost).unwrap();
    assert_eq!(receive(&bench.server, Duration::from_millis(700)), None);
    are_lost(engine, 1);

    // During a flood of later fragments, at most 256 frames are held, and other packets still pass.
    for _ in 0..2 {
        for id in 100..250 {
            let [_, later] = fragments(bench, 1000, id);
            bench.client.send(&later).unwrap();
        }
    }
    let [first, later] = fragments(bench, 1000, 250);
    bench.client.send(&later).unwrap();
    held(engine, 303);
    bench.client.send(&first).unwrap();
    for _ in 0..2 {
        assert!(receive(&bench.server, SOON).is_some(), "both come through behind the flood");
    }
    are_lost(engine, 301);
}

#[test]
fn fragments_reach_one_server_in_any_order_in_application_space() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let mut engine = PacketEngine::start(options(session_file())).unwrap();
        crate::apply(&mut engine, two_servers(&bench));
        play(&bench, &engine);
        Box::new(engine).leave(false).unwrap();
    });
}

#[test]
fn fragments_reach_one_server_in_any_order_in_the_kernel() {
    if skipped() {
        return;
    }
    Host::new("director").enter(|| {
        let bench = Bench::set_up();
        let engine = kernel_engine(None, None, two_servers(&bench));
        play(&bench, &engine);
        Box::new(engine).leave(false).unwrap();
    });
}
