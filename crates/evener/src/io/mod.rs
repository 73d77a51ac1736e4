//! The host's kernel and its links, as others here ask them: the network and what changes in it,
//! neighbours, probes, raw sockets, connections, settings.

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
