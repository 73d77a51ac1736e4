//! Everything Evener decides, and nothing it does.
//!
//! This crate has no IO, no clock, no randomness and no async: bytes, time and seeds are arguments.
//! It is `no_std`, so the compiler holds it to that promise. Its packet side is the specification
//! of the C in `bpf/`; the same packets go through both and must come out alike.
//!
//! * packet side: [`wire`] · [`packet`] · [`parse`] · [`sessions`] · [`select`] · [`rewrite`] · [`decide`] ·
//!   [`reason`] · [`arrival`] · [`mark`] · [`cookie`] · [`content`]; and what they ask of their surroundings: [`routes`] · [`fragments`] · [`ports`] ·
//!   [`lease`]
//! * farm side: [`farm`] · [`health`] · [`membership`] · [`peers`] · [`load`] · [`policy`] · [`plan`]
//! * on servers: [`server`]
//! * between hosts: [`lccp`]
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod arrival;
pub mod checksum;
pub mod content;
pub mod cookie;
pub mod decide;
pub mod director;
pub mod farm;
pub mod fragments;
pub mod guesses;
pub mod health;
pub mod lccp;
pub mod lease;
pub mod load;
pub mod mark;
pub mod membership;
pub mod neighbour;
pub mod network;
pub mod packet;
pub mod parse;
pub mod peers;
pub mod plan;
pub mod policy;
pub mod ports;
pub mod reason;
pub mod rewrite;
pub mod routes;
pub mod select;
pub mod server;
pub mod sessions;
pub mod strays;
pub mod tables;
pub mod wire;
