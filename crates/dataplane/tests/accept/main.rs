//! The server's part of a handoff on a real link: hand-made segments, as a director forwards them,
//! become connections of ordinary listeners.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod again;
mod agreed;
mod answers;
mod call;
mod early;
mod expected;
mod first;
#[path = "../engines/hosts.rs"]
#[allow(dead_code)]
mod hosts;
mod listeners;
mod order;
mod requests;
mod talk;
mod world;

use evener_dataplane::server::handoff_support;

/// True if the host cannot run these tests. Prints the reason.
fn skipped() -> bool {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: network namespaces need root");
        return true;
    }
    if let Err(missing) = handoff_support() {
        println!("skipped: {missing}");
        return true;
    }
    false
}
