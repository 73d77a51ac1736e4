//! No frame, however odd, makes a server's programs panic; what they change is what they may, and
//! resets are whole.
#![no_main]

#[path = "../../crates/core/tests/it/segments.rs"]
mod segments;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    segments::meet_and_check(frame);
});
