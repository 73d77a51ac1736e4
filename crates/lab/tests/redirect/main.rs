//! Server groups: the program without an engine and without capabilities, real web servers as
//! members and real clients.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod agents;
mod anonymous;
mod changes;
mod credentials;
mod following;
mod hostile;
mod membership;
mod reach;
mod requests;
mod run_time;
mod stage;
mod tls;
