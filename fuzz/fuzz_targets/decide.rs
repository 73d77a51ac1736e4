//! No frame, however odd, makes a decision panic, on whatever way to a server; nor does the answer
//! to it, nor what other hosts pass on.
#![no_main]

#[path = "../../crates/core/tests/it/world.rs"]
mod world;

use std::net::SocketAddr;
use std::sync::LazyLock;

use evener_core::net::packet::Checksum;
use evener_core::path::mark::{PASSED, PASSED_TWICE};
use evener_core::path::tables::Forwarding;
use libfuzzer_sys::fuzz_target;
use world::{World, ways};

/// Worlds live on from frame to frame: a first fragment meets the later ones, a SYN what follows
/// it.
static WORLDS: LazyLock<Vec<World>> = LazyLock::new(|| worlds(World::new));
static AMONG_HOSTS: LazyLock<Vec<World>> = LazyLock::new(|| worlds(World::among_hosts));

fn worlds(make: fn(SocketAddr, Forwarding) -> World) -> Vec<World> {
    let mut worlds = Vec::new();
    for (v6, vip) in [(false, "192.0.2.100:80"), (true, "[2001:db8::100]:80")] {
        let vip: SocketAddr = vip.parse().unwrap();
        worlds.extend(ways(v6).into_iter().map(|way| make(vip, way)));
    }
    worlds
}

fuzz_target!(|frame: &[u8]| {
    for world in WORLDS.iter().chain(AMONG_HOSTS.iter()) {
        for checksum in [Checksum::Whole, Checksum::Partial] {
            world.decide(frame, checksum, 7);
        }
    }
    for source in [PASSED, PASSED_TWICE] {
        let mut frame = frame.to_vec();
        if let Some(place) = frame.get_mut(6..12) {
            place.copy_from_slice(&source.0);
        }
        AMONG_HOSTS.iter().for_each(|world| {
            world.decide(&frame, Checksum::Whole, 7);
        });
    }
});
