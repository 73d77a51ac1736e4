//! Next hops of replies, by the host's routing table. The engine is queried for each packet.

use core::fmt;
use core::net::IpAddr;

use crate::net::wire::Mac;

/// Next hop of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibResult {
    /// A neighbour on a link.
    Neighbour {
        /// Out of this interface,
        ifindex: u32,
        src: Mac,
        dst: Mac,
        /// The longest packet that the way takes, in bytes.
        mtu: u16,
    },
    /// There is a route; the host's own stack must find the neighbour first, or knows better.
    HostStack,
    /// The host has no route.
    None,
}

/// The host's routing table.
pub trait Routes: fmt::Debug {
    /// Returns the next hop of a packet from `src` to `dst` received on interface `ingress`.
    fn hop(&self, ingress: u32, src: IpAddr, dst: IpAddr) -> FibResult;

    /// The longest packet that an interface takes, in bytes; `None` if there is no such interface.
    fn mtu(&self, ifindex: u32) -> Option<u16>;
}
