//! What nodes of a farm say to each other: [`peers`] between every-host hosts, [`lccp`] between directors and servers.

pub mod lccp;
pub mod peers;
