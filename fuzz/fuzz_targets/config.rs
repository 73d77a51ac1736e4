//! No text, however odd, makes the configuration or its error messages panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(problems) = evener::config::parse(text, "fuzz.toml") {
        problems.render(true);
        assert!(problems.reports().count() > 0);
    }
});
