//! Access to the host's kernel and network: interfaces and routes, neighbours, probes, raw sockets,
//! socket diagnostics, settings.

pub(crate) mod diag;
pub(crate) mod locating;
pub(crate) mod member_probe;
pub(crate) mod neighbours;
pub mod network;
pub(crate) mod path_probe;
pub mod probe;
pub(crate) mod raw;
pub mod report;
pub(crate) mod sysctl;
