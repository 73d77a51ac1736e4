//! Messages between nodes of a farm: [`peers`] between every-host hosts, [`directors`] between
//! directors, [`lccp`] between directors and servers, [`group`] between the director of a server
//! group and its members; and path measurement by a director ([`path_probe`]).
//!
//! The modules for peers, directors and LCCP keep one [`association`] for each other node, which
//! decides whether to accept a message. These modules and the path measurement authenticate
//! messages with keys derived from the farm's [`secret`].

pub mod association;
pub mod directors;
mod envelope;
pub mod group;
pub mod lccp;
pub mod path_probe;
pub mod peers;
pub mod secret;
mod sending;
