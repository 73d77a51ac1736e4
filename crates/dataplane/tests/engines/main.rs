//! The engines on real links between network namespaces: the user-space engine, and properties of
//! the kernel engine that test runs cannot show.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod connections;
mod fragments;
mod frames;
mod handoff;
mod hosts;
mod kernel;
mod methods;
mod moves;
mod raw_only;
mod refused;
mod reload;
mod signalled;
mod told;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use evener_core::net::Protocol;
use evener_core::net::wire::Mac;
use evener_core::path::decide::Reason;
use evener_core::path::seed::Seed;
use evener_core::path::sessions::ticks;
use evener_core::path::tables::{
    Forwarding, HASH_SLOTS, IdleTicks, Pick, Ring, ServerEntry, Tables, Vip, VipKey,
};
use evener_dataplane::Engine;
use evener_dataplane::packet::{Options, PacketEngine};

/// True if the host cannot run these tests. Prints the reason.
fn skipped() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: network namespaces need root");
    }
    !root
}

/// Returns the path of a new session file.
fn session_file() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
    std::env::temp_dir().join(format!("evener-packet-{process}-{number}.sessions"))
}

fn options(session_file: PathBuf) -> Options {
    Options {
        sessions_max: 4096,
        sessions6_max: 1024,
        seed: Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f),
        ring_seed: None,
        threads: 2,
        session_file,
    }
}

fn key() -> VipKey {
    VipKey { address: hosts::VIP.into(), port: 80, protocol: Protocol::Tcp }
}

fn server(mac: Mac, ifindex: u32) -> ServerEntry {
    let identity = u64::from(mac.0[5]) + 77;
    ServerEntry { identity, mac, ifindex, weight: 1, up: true, local: false, forwarding: Forwarding::Link }
}

/// Returns tables with one service. Its `servers` are in slots from 1 on, selected by round robin.
fn tables(interfaces: &[(u32, Mac)], servers: &[ServerEntry], announce: bool) -> Tables {
    let idle = IdleTicks {
        syn: ticks(30_000),
        tcp: ticks(900_000),
        half_closed: ticks(120_000),
        closing: ticks(10_000),
        udp: ticks(60_000),
        udp_new: ticks(30_000),
    };
    let order: Vec<u16> = (1..).take(servers.len()).collect();
    let hash = order.iter().copied().cycle().take(HASH_SLOTS).collect();
    Tables {
        vips: BTreeMap::from([(
            key(),
            Vip {
                id: 1,
                service: 0,
                announce,
                pick: Pick::Cursor,
                idle,
                own: 0,
                stateless: false,
                affinity: None,
                handoff: None,
            },
        )]),
        rings: BTreeMap::from([(0, Arc::new(Ring { order, hash, previous: [].into(), second: [].into() }))]),
        servers: (1..).zip(servers.iter().copied()).collect(),
        interfaces: interfaces.iter().copied().collect(),
        ..Tables::default()
    }
}

fn apply(engine: &mut PacketEngine, tables: Tables) {
    let tables = Arc::new(tables);
    engine.apply(&tables).unwrap();
}

fn count(engine: &dyn Engine, reason: Reason) -> u64 {
    engine.counters().unwrap().reasons[&reason]
}
