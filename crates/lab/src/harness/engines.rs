//! Reports tests that can't run here as skipped, and runs tests once per engine.

use std::io::Write as _;

use anyhow::{Context, Result};

/// True if the calling test has root privileges; otherwise reports the test as skipped.
///
/// The report goes directly to standard error, which the test runner does not capture. The summary
/// of `make test` counts reports in this form.
pub fn has_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skipped("network namespaces need root");
    }
    root
}

/// Reports the calling test as skipped, with the reason.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    // a closed standard error can't report anything
    let _ = writeln!(std::io::stderr(), "\nskipped: {}: {reason}", thread.name().unwrap_or("a test"));
}

/// Runs a test of a farm with an engine, if there is root. Errors name the engine.
pub fn on_engine(engine: &str, test: fn(&str) -> Result<()>) -> Result<()> {
    if !has_root() {
        return Ok(());
    }
    test(engine).with_context(|| format!("with the {engine} engine"))
}

/// Makes two tests of each function, one per engine, with the engine's name as the argument.
#[macro_export]
macro_rules! on_both_engines {
    ($($name:ident),+ $(,)?) => {
        $crate::on_engine!(xdp: $($name),+);
        $crate::on_engine!(packet: $($name),+);
    };
}

/// Makes tests of functions that don't depend on the engine, with the default engine. Tests about
/// packets belong in [`on_both_engines`].
#[macro_export]
macro_rules! on_one_engine {
    ($($name:ident),+ $(,)?) => {
        mod one_engine {
            $(#[test]
            fn $name() -> anyhow::Result<()> {
                $crate::harness::engines::on_engine("xdp", super::$name)
            })+
        }
    };
}

/// Makes tests of functions with one engine.
#[macro_export]
macro_rules! on_engine {
    ($engine:ident: $($name:ident),+ $(,)?) => {
        mod $engine {
            $(#[test]
            fn $name() -> anyhow::Result<()> {
                $crate::harness::engines::on_engine(stringify!($engine), super::$name)
            })+
        }
    };
}
