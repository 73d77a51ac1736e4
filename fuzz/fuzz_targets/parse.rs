//! No bytes, however odd, make the packet parser panic.
#![no_main]

use evener_core::net::wire::Mac;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let own = Mac([0x02, 0x00, 0x5e, 0x10, 0x00, 0x0a]);
    evener_core::path::parse::parse(frame, None);
    evener_core::path::parse::parse(frame, Some(own));
    evener_core::path::parse::PacketEndpoints::of(frame);
});
