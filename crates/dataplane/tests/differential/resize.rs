//! Packets of many sessions while the table is resized.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release};
use std::thread;
use std::time::Instant;

use evener_core::net::Protocol;
use evener_core::path::decide::Verdict;
use evener_core::path::sessions::{SessionKey, State, Value, buckets_for};
use evener_core::path::tables::{Forwarding, Pick, Tables};
use evener_dataplane::Engine;
use evener_dataplane::xdp::{Hook, Options, XdpEngine};

use crate::frames::segment;
use crate::world::{Builder, IDLE, OWN, RING_SEED, SEED, vip};

const ACK: u8 = 0x10;
const SERVICE: u8 = 1;
/// Sessions per IP version.
const SESSIONS: u32 = 65_536;
const SESSIONS_MAX: usize = 400_000;

/// Returns the key, last address byte and port of client session `number`.
fn client(v6: bool, number: u32) -> (SessionKey, u8, u16) {
    let (last, port) = (1 + (number >> 15) as u8, 1_000 + (number & 0x7fff) as u16);
    let address = match v6 {
        true => format!("2001:db8:c1::{last}").parse().unwrap(),
        false => [203, 0, 111, last].into(),
    };
    (SessionKey { client: address, port, vip: 1 + u16::from(v6) }, last, port)
}

fn tables() -> Tables {
    let mut builder = Builder { tables: Tables::default(), next_server: 1, next_vip: 1 };
    builder.tables.interfaces.insert(1, OWN);
    let servers = [1, 1].map(|ifindex| builder.server(Forwarding::Link, ifindex));
    for v6 in [false, true] {
        builder.service(vip(v6, SERVICE), Protocol::Tcp, Pick::Cursor, &servers);
    }
    builder.tables
}

/// Returns the destination MAC of a client's segment.
fn server_of(engine: &XdpEngine, v6: bool, number: u32) -> Option<Vec<u8>> {
    let (_, last, port) = client(v6, number);
    let (verdict, frame) = engine.test_run(Hook::Xdp, &segment(v6, SERVICE, last, port, ACK)).unwrap();
    matches!(verdict, Verdict::Forward { .. }).then(|| frame[..6].to_vec())
}

#[test]
fn packets_find_their_sessions_while_the_table_grows_and_shrinks() {
    let (seed, ring_seed) = (SEED, Some(RING_SEED));
    let options = Options {
        sessions_max: SESSIONS_MAX,
        sessions6_max: SESSIONS_MAX,
        seed,
        ring_seed,
        mode: None,
        pins: None,
    };
    let Ok(mut engine) = XdpEngine::start(options) else { return };
    engine.load_tables(&Arc::new(tables())).unwrap();
    let now = engine.now();
    for (v6, number) in [false, true].into_iter().flat_map(|v6| (0..SESSIONS).map(move |number| (v6, number)))
    {
        let (key, ..) = client(v6, number);
        let value = Value::new(
            1 + (number % 2) as u16,
            State::Established,
            now.wrapping_add(State::Established.idle(&IDLE)),
        );
        // A new table has the smallest size and would evict sessions.
        if number % 1_000 == 0 && engine.memory().sessions.buckets() < 60_000 {
            resize_at_once(&engine);
        }
        engine.memory().sessions.insert(key, key.hash(SEED), value, now).unwrap();
    }
    let servers = [0, 1].map(|number| server_of(&engine, false, number).unwrap());
    assert_ne!(servers[0], servers[1]);

    let plane = engine.data_plane();
    let (is_over, wanted, had) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut packets = 0u32;
    thread::scope(|scope| {
        scope.spawn(|| {
            let memory = plane.memory();
            let sessions = &memory.sessions;
            let most = buckets_for(SESSIONS_MAX);
            for (turn, buckets) in [16_384, 32_768, most, 65_536, 32_768].into_iter().enumerate() {
                sessions.begin_move([buckets; 2]);
                // Only the thread with the engine can wait for running packets.
                let settled = wanted.fetch_add(1, Release) + 1;
                while had.load(Acquire) < settled {
                    thread::yield_now();
                }
                let began = Instant::now();
                let all = sessions.buckets();
                // One resize stops halfway, and the next one starts over.
                if turn == 1 {
                    assert_eq!(sessions.move_some(0..all / 3, SEED, now), 0);
                }
                assert_eq!(sessions.move_some(0..all, SEED, now), 0);
                sessions.end_move();
                println!("to {buckets} buckets: {:?}", began.elapsed());
            }
            is_over.store(true, Release);
        });
        let mut number = 1u32;
        while !is_over.load(Acquire) {
            let settled = wanted.load(Acquire);
            if settled > had.load(Acquire) {
                plane.synchronize().unwrap();
                had.store(settled, Release);
            }
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (v6, of) = (number >> 31 == 1, (number >> 8) % SESSIONS);
            let server = server_of(&engine, v6, of);
            assert_eq!(server.as_ref(), Some(&servers[of as usize % 2]), "of packet {packets}");
            packets += 1;
        }
    });
    println!("{packets} packets");
    let memory = engine.memory();
    assert_eq!(memory.sessions.list(engine.now()).count(), 2 * SESSIONS as usize);
    assert_eq!(memory.sessions.shares().all_assured(), 2 * u64::from(SESSIONS));
    for number in 0..SESSIONS {
        for v6 in [false, true] {
            assert_eq!(server_of(&engine, v6, number).as_ref(), Some(&servers[number as usize % 2]));
        }
    }
}

/// Resizes at once: no packets are running yet.
fn resize_at_once(engine: &XdpEngine) {
    let memory = engine.memory();
    memory.sessions.begin_move([65_536; 2]);
    memory.sessions.move_some(0..memory.sessions.buckets(), SEED, engine.now());
    memory.sessions.end_move();
}
