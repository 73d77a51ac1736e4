//! Tests that cannot run here are reported, never silently passed over.

use std::io::Write as _;

/// Whether the calling test has the root privileges it needs; if not, it is reported as skipped.
///
/// Directly on standard error, which the test runner does not hold back, in the form that the summary
/// of `make test` counts.
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
