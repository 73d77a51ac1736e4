//! Established connections move between the sockets of real hosts, unnoticed by the client.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod farm;
// Shared with the engines' tests, whose frame helpers are unused here.
#[path = "../engines/hosts.rs"]
#[allow(dead_code)]
mod hosts;
mod moves;
mod queues;
mod refusals;
mod terms;

/// True if the host cannot run these tests. Prints the reason.
fn skipped() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: network namespaces need root");
    }
    !root
}
