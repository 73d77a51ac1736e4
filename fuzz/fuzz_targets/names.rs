//! Whatever is asked by DNS, an answer is whole, fits, and is no larger than it may be.
#![no_main]

#[path = "../../crates/core/tests/it/queries.rs"]
mod queries;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    queries::answer_and_check(bytes);
});
