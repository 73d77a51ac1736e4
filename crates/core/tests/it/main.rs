//! Core's decisions, seen from outside. One program, since each links all of core.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod choose;
mod corpus;
mod every_host;
mod fast_path;
mod gain;
mod heads;
mod inside;
mod moves;
mod produced;
mod queries;
mod segments;
mod sessions;
mod tunnels;
mod turns;
mod world;

#[path = "../request_heads/mod.rs"]
mod request_heads;
