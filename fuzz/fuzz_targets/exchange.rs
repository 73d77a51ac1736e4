//! No talk of client and server, however odd, makes whoever follows their turns panic, or believe
//! in an answer's end that is behind what was said.
#![no_main]

#[path = "../../crates/core/tests/it/turns.rs"]
mod turns;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    turns::follow_and_check(bytes);
});
