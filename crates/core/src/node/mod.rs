//! Messages between nodes of a farm: [`peers`] between every-host hosts, [`directors`] between
//! directors, [`lccp`] between directors and servers, [`group`] between the director of a server
//! group and its members; and path measurement by a director ([`path_probe`]).
//!
//! The first three use one [`association`] with each other node, which decides about accepted
//! messages, and one [`secret`].

pub mod association;
pub mod directors;
mod envelope;
pub mod group;
pub mod lccp;
pub mod path_probe;
pub mod peers;
pub mod secret;
mod sending;
