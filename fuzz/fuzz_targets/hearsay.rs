//! What strangers on the link or on the way say about neighbours and path MTUs makes no reader
//! panic.
#![no_main]

use evener::io::network::path_mtu::{fragmentation_needed, packet_too_big};
use evener_core::farm::membership::NeighbourReply;
use evener_core::net::neighbour::Advertisement;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = NeighbourReply::read(1, bytes);
    let _ = Advertisement::read(bytes);
    fragmentation_needed(bytes);
    packet_too_big(bytes);
});
