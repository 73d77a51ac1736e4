//! The program's position among other programs on an interface, and its life after the agent's
//! exit.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use evener_core::net::checksum;
use evener_core::net::wire::{Ipv4, protocol};
use evener_core::path::seed::Seed;
use evener_core::path::tables::Tables;
use evener_dataplane::Engine;
use evener_dataplane::server::{
    self, AttachPoints, ConnectionState, Connections, Hook, Reason, ServerPrograms,
};
use evener_dataplane::xdp::{Mode, Options, XdpEngine, pins};
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::query::ProgInfoIter;
use zerocopy::IntoBytes;

use crate::again::{call_to_the_end, later};
use crate::expected::{TERMS, saved, stranger};
use crate::hosts::{SOON, mac_of};
use crate::skipped;
use crate::talk::ANSWER;
use crate::world::{PORT, listen, on_a_server};

/// Waits until exactly these programs are attached at ingress, in this order. The kernel detaches a
/// link's program some time after the call that closed its last descriptor.
fn meets(ifindex: u32, expected: &[&str]) {
    let end = Instant::now() + SOON;
    loop {
        let found = programs(ifindex);
        if found == expected {
            return;
        }
        assert!(Instant::now() < end, "{found:?} instead of {expected:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the names of the programs attached at ingress, in order.
fn programs(ifindex: u32) -> Vec<String> {
    let (mut ids, mut count, mut flags) = ([0u32; 16], 16, 0);
    // SAFETY: `ids` has room for `count` entries, and all pointers point to locals.
    let answer = unsafe {
        sys::bpf_prog_query(
            ifindex as i32,
            sys::BPF_TCX_INGRESS,
            0,
            &raw mut flags,
            ids.as_mut_ptr(),
            &raw mut count,
        )
    };
    assert_eq!(answer, 0);
    let names: BTreeMap<u32, String> =
        ProgInfoIter::default().map(|info| (info.id, info.name.to_string_lossy().into_owned())).collect();
    // A program can disappear between the two queries. An empty name stands for such a program.
    ids[..count as usize].iter().map(|id| names.get(id).cloned().unwrap_or_default()).collect()
}

fn director(ifindex: u32) -> XdpEngine {
    let options = Options {
        sessions_max: 4096,
        sessions6_max: 1024,
        seed: Seed(1, 2),
        ring_seed: None,
        mode: Some(Mode::Tc),
        pins: Some(pins::directory().unwrap()),
    };
    let mut engine = XdpEngine::start(options).unwrap();
    let interfaces = BTreeMap::from([(ifindex, mac_of("in0"))]);
    let tables = Tables { interfaces, ..Tables::default() };
    engine.apply(&Arc::new(tables)).unwrap();
    engine
}

#[test]
fn decap_runs_before_director_and_accept() {
    if skipped() {
        return;
    }
    const ORDER: [&str; 3] = ["decap_tc", "director_tc", "accept"];
    on_a_server(Some(PORT), |world| {
        meets(world.ifindex, &["accept"]);
        let engine = director(world.ifindex);
        meets(world.ifindex, &["accept", "director_tc"]);
        let places = AttachPoints {
            tunnels: [(world.ifindex, false)].into(),
            accept: [world.ifindex].into(),
            ..AttachPoints::default()
        };
        for _ in 0..2 {
            world.server.apply(&world.tables(Some(PORT)), &places).unwrap();
            meets(world.ifindex, &ORDER);
        }
        world.open(&world.call(false, 40_000), &listen(false, PORT));
        Box::new(engine).leave(false).unwrap();
        world.server.apply(&world.tables(None), &AttachPoints::default()).unwrap();
        meets(world.ifindex, &[]);
    });
}

#[test]
fn the_next_agent_finds_program_keys_and_counts() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let listener = listen(false, PORT);
        world.open(&world.call(false, 40_000), &listener);
        // Like a kill, dropping the server detaches no program.
        world.server = ServerPrograms::start(server::directory().unwrap()).unwrap();
        assert_eq!(world.server.attached().collect::<Vec<_>>(), [(world.ifindex, Hook::Accept)]);
        world.open(&world.call(false, 40_001), &listener);
        assert_eq!(world.counts(), [(Reason::Accepted, 2)]);
        world.serve(Some(PORT));
        world.open(&world.call(false, 40_002), &listener);
    });
}

#[test]
fn accept_behind_other_programs_follows_exchanges_and_expectations() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        world.follow();
        let listener = listen(false, PORT);
        let (first, second) = (world.call(false, 40_000), stranger(world, false, 40_001));
        let mut stream = world.open(&first, &listener);
        let before = world.server.connections().unwrap();
        before.expect(&saved(&second, TERMS)).unwrap();
        world.server = ServerPrograms::start(server::directory().unwrap()).unwrap();
        let look =
            |connections: &Connections| connections.state(first.ends.client, first.ends.service).unwrap();
        let after = world.server.connections().unwrap();
        assert_eq!((look(&before), look(&after)), (ConnectionState::Busy, ConnectionState::Busy));
        world.reply(&first, &mut stream, ANSWER);
        assert!(matches!(
            (look(&before), look(&after)),
            (ConnectionState::Idle(_), ConnectionState::Idle(_))
        ));
        world.open(&second, &listener);
    });
}

/// This host's tunnel endpoint address. [`FROM`] is the director's.
const OWN: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);
const FROM: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 2);

/// Returns the frame with its packet encapsulated (RFC 2003).
fn in_a_tunnel(frame: &[u8]) -> Vec<u8> {
    let (ethernet, packet) = frame.split_at(14);
    let mut outer = Ipv4 {
        version_ihl: 0x45,
        tos: 0,
        total_len: (20 + packet.len() as u16).into(),
        id: 0.into(),
        fragment: 0.into(),
        ttl: 64,
        protocol: protocol::IPV4,
        checksum: 0.into(),
        src: FROM.to_bits().into(),
        dst: OWN.to_bits().into(),
    };
    outer.checksum = checksum::finish(checksum::add(0, outer.as_bytes())).into();
    [ethernet, outer.as_bytes(), packet].concat()
}

#[test]
fn decapsulated_segment_is_accepted_and_clears_stale() {
    if skipped() {
        return;
    }
    on_a_server(Some(PORT), |world| {
        let tables = server::Tables {
            addresses: [OWN.into()].into(),
            directors: [FROM.into()].into(),
            ..world.tables(Some(PORT))
        };
        let places = AttachPoints {
            tunnels: [(world.ifindex, false)].into(),
            accept: [world.ifindex].into(),
            ..AttachPoints::default()
        };
        world.server.apply(&tables, &places).unwrap();
        world.way = in_a_tunnel;
        let listener = listen(false, PORT);
        let first = world.call(false, 40_000);
        call_to_the_end(world, &first, &listener);
        let mut stream = world.open(&later(world, &first, 1_000_000), &listener);
        world.reply(&later(world, &first, 1_000_000), &mut stream, b"hello again");
        assert_eq!(world.count(Reason::Accepted), 2);
        assert_eq!(world.count(Reason::TimeWaitEvicted), 1);
        assert!(world.count(Reason::Decapsulated) >= 3);
    });
}
