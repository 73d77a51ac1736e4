//! Open connections that are moved between the sockets of real hosts, while their client knows of
//! nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod farm;
// Namespaces as the engines' tests have them; their frames are not needed here.
#[path = "../engines/hosts.rs"]
#[allow(dead_code)]
mod hosts;
mod moves;
mod queues;
mod refusals;
mod terms;

/// Says why a test does not run here, if it doesn't.
fn skipped() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: network namespaces need root");
    }
    !root
}
