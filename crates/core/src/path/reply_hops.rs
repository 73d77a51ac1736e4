//! Lookup of a reply's next hop in the host's routing table, for each packet.

use core::fmt;
use core::net::IpAddr;

use crate::net::wire::Mac;

/// Next hop of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibResult {
    /// The next hop is a neighbour with a known MAC address.
    Neighbour {
        /// Number of the outgoing interface.
        ifindex: u32,
        src: Mac,
        dst: Mac,
        /// Maximum packet size of the path, in bytes.
        mtu: u16,
    },
    /// A route exists, but the host's stack must resolve the neighbour or handle the packet.
    HostStack,
    /// The host has no route.
    None,
}

/// The host's routing table.
pub trait Routes: fmt::Debug {
    /// Returns the next hop of a packet from `src` to `dst` received on interface `ingress`.
    fn hop(&self, ingress: u32, src: IpAddr, dst: IpAddr) -> FibResult;

    /// Returns the maximum packet size of an interface in bytes. `None` if there is no such
    /// interface.
    fn mtu(&self, ifindex: u32) -> Option<u16>;
}
