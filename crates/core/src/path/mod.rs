//! Path of a packet through a director. The modules are the specification of the C code in `bpf/`.
//!
//! * steps of the path in order: [`parse`] · [`arrival`], [`mark`] · [`decide`], with [`sessions`],
//!   [`select`], [`cookie`] and [`content`] · [`rewrite`]
//! * input: [`tables`], and hashes with a [`seed`]
//! * interfaces to the host and shared state: [`reply_hops`], [`fragments`], [`ports`], [`lease`]
//! * packets that are dropped or refused: [`reason`], [`unmatched`], [`guesses`]

pub mod affinity;
pub mod arrival;
pub mod content;
pub mod cookie;
pub mod decide;
pub mod fragments;
pub mod guesses;
pub mod lease;
pub mod mark;
pub mod parse;
pub mod ports;
pub mod reason;
pub mod reply_hops;
pub mod rewrite;
pub mod seed;
pub mod select;
pub mod sessions;
pub mod tables;
pub mod unmatched;
