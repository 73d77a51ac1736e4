//! No frame, however odd, makes a decision panic, on whatever way to a server; nor does the answer to it.
#![no_main]

#[path = "../../crates/core/tests/world/mod.rs"]
mod world;

use std::net::SocketAddr;
use std::sync::LazyLock;

use evener_core::packet::Checksum;
use libfuzzer_sys::fuzz_target;
use world::{World, ways};

/// Worlds live on from frame to frame: a first fragment meets the later ones, a SYN what follows it.
static WORLDS: LazyLock<Vec<World>> = LazyLock::new(|| {
    [false, true]
        .into_iter()
        .flat_map(|v6| {
            let vip: SocketAddr = if v6 { "[2001:db8::100]:80" } else { "192.0.2.100:80" }.parse().unwrap();
            ways(v6).into_iter().map(move |way| World::new(vip, way))
        })
        .collect()
});

fuzz_target!(|frame: &[u8]| {
    for world in WORLDS.iter() {
        for checksum in [Checksum::Whole, Checksum::Partial] {
            world.decide(frame, checksum, 7);
        }
    }
});
