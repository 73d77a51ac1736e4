//! Where answers go: what the host's routing table says, asked for each packet by the engine.

use core::fmt;
use core::net::IpAddr;

use crate::net::wire::Mac;

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibResult {
    /// To this neighbour.
    Neighbour {
        /// Out of this interface,
        ifindex: u32,
        /// with its MAC
        src: Mac,
        /// to this one.
        dst: Mac,
        /// The longest packet that the way takes, in bytes.
        mtu: u16,
    },
    /// There is a route; the host's own stack must find the neighbour first, or knows better.
    HostStack,
    /// Nowhere.
    None,
}

/// The host's routing table.
pub trait Routes: fmt::Debug {
    /// Where a packet from `src` to `dst` that came in by interface `ingress` goes.
    fn hop(&self, ingress: u32, src: IpAddr, dst: IpAddr) -> FibResult;

    /// The longest packet that an interface takes, in bytes; `None` if there is no such interface.
    fn mtu(&self, ifindex: u32) -> Option<u16>;
}
