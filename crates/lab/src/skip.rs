//! Tests that cannot run here are reported, never silently passed over; and those that run once for
//! each engine.

use std::io::Write as _;

use anyhow::{Context, Result};

/// Whether the calling test has the root privileges it needs; if not, it is reported as skipped.
///
/// Directly on standard error, which the test runner does not hold back, in the form that the
/// summary of `make test` counts.
pub fn has_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skipped("network namespaces need root");
    }
    root
}

/// Reports the calling test as skipped, and why.
pub fn skipped(reason: &str) {
    let thread = std::thread::current();
    // there is nobody to tell if standard error is closed
    let _ = writeln!(std::io::stderr(), "\nskipped: {}: {reason}", thread.name().unwrap_or("a test"));
}

/// A test of a whole farm with one of the engines, where there is root; its error names the engine.
pub fn on_engine(engine: &str, test: fn(&str) -> Result<()>) -> Result<()> {
    if !has_root() {
        return Ok(());
    }
    test(engine).with_context(|| format!("with the {engine} engine"))
}

/// Makes two tests of each function, one for each engine, whose name is the argument.
#[macro_export]
macro_rules! on_both_engines {
    ($($name:ident),+ $(,)?) => {
        $crate::on_engine!(xdp: $($name),+);
        $crate::on_engine!(packet: $($name),+);
    };
}

/// Makes tests of functions whose property no engine has a part in, on the default engine. Those
/// that packets decide belong in [`on_both_engines`].
#[macro_export]
macro_rules! on_one_engine {
    ($($name:ident),+ $(,)?) => {
        mod one_engine {
            $(#[test]
            fn $name() -> anyhow::Result<()> {
                $crate::skip::on_engine("xdp", super::$name)
            })+
        }
    };
}

/// Makes tests of functions, on one engine.
#[macro_export]
macro_rules! on_engine {
    ($engine:ident: $($name:ident),+ $(,)?) => {
        mod $engine {
            $(#[test]
            fn $name() -> anyhow::Result<()> {
                $crate::skip::on_engine(stringify!($engine), super::$name)
            })+
        }
    };
}
