//! Everything Evener decides, and nothing it does.
//!
//! This crate has no IO, no clock, no randomness and no async: bytes, time and seeds are arguments.
//! It is `no_std`, so the compiler holds it to that promise. Its packet side is the specification
//! of the C in `bpf/`; the same packets go through both and must come out alike.
//!
//! Eight rooms, each of which knows only those above it:
//!
//! * [`net`]: what is on the wire
//! * [`path`]: one packet's way through a director
//! * [`server`]: one packet's way on a server
//! * [`pool`]: servers, what is known of them, and who of them is chosen
//! * [`dns`]: names: messages, zones, and whose address is given
//! * [`farm`]: services and servers as data; the tables that follow
//! * [`node`]: what nodes say to each other, and what of it is believed
//! * [`director`]: a whole farm's state machine
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
