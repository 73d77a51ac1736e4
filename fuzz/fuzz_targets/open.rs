//! No frame, however odd, makes the opener of tunnels panic; what comes out is a packet of the
//! frame for one of the host's services, and what doesn't is left as it was.
#![no_main]

#[path = "../../crates/core/tests/it/tunnels.rs"]
mod tunnels;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    tunnels::open_and_check(frame);
});
