//! Server groups: the product without an engine and without privileges, real web servers as
//! members, real clients.

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
