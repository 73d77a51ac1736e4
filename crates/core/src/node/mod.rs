//! Messages between nodes of a farm: [`peers`] between every-host hosts, [`directors`] between
//! directors, [`lccp`] between directors and servers, and [`group`] between the director of a
//! server group and its members. A director measures paths by [`path_probe`].
//!
//! The modules for peers, directors and LCCP keep one [`association`] for each other node, which
//! decides if a message is accepted. These modules and [`path_probe`] authenticate messages with
//! keys that are derived from the farm's [`secret`].

pub mod association;
pub mod directors;
mod envelope;
pub mod group;
pub mod lccp;
pub mod path_probe;
pub mod peers;
pub mod secret;
mod sending;
