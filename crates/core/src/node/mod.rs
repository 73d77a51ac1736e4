//! Messages between nodes of a farm: [`peers`] between every-host hosts, [`directors`] between
//! directors, [`lccp`] between directors and servers, [`group`] between the director of a server
//! group and its members; and how a director measures the path from a server ([`path_probe`]).
//!
//! The first three stand on one [`association`] with each other node, which says what is believed,
//! and on one [`secret`]. A protocol is its messages, and what follows from those that are
//! believed.

pub mod association;
pub mod directors;
mod envelope;
pub mod group;
pub mod lccp;
pub mod path_probe;
pub mod peers;
pub mod secret;
mod sending;
