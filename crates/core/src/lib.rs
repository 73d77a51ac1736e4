//! All decisions of Evener, without any action.
//!
//! This crate has no IO, no clock, no randomness and no async: bytes, time and seeds are arguments.
//! It is `no_std`, so the compiler enforces this. Its packet side is the specification of the C in
//! `bpf/`: tests send the same packets through both, and the results must be equal.
//!
//! Eight modules, each of which depends only on those above it:
//!
//! * [`net`]: packet formats
//! * [`path`]: path of a packet through a director
//! * [`server`]: path of a packet on a server
//! * [`pool`]: servers, their state, and policies that select one
//! * [`dns`]: messages, zones, and address pools of balanced names
//! * [`farm`]: services and servers as data; the tables that follow
//! * [`node`]: messages between nodes, and their authentication
//! * [`director`]: state machine of a whole farm
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[macro_use]
mod reasons;

pub mod director;
pub mod dns;
pub mod farm;
pub mod net;
pub mod node;
pub mod path;
pub mod pool;
pub mod server;
