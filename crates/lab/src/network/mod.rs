//! Network of a farm: namespaces, hosts, links, their faults, and views of their packets.

pub mod bare_hop;
pub mod capture;
pub mod decode;
pub mod family;
pub mod faults;
pub mod host;
pub(crate) mod lan;
pub mod medium;
pub mod netns;
pub mod reordering;
