//! The director's own network, by which neighbours are recognised that are no servers: the director
//! itself and the routers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;

use super::binding::LinkAddress;
use super::event::ReplyRefusal;
use super::neighbour_reply::NeighbourReply;
use crate::net::wire::Mac;

/// The director's own interfaces and addresses, and its routers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LocalNetwork {
    /// Interfaces of the director that lead to servers, by index, with their MAC addresses.
    pub interfaces: BTreeMap<u32, Mac>,
    /// The director's own addresses on all interfaces.
    pub addresses: BTreeSet<IpAddr>,
    /// Gateways of the director's routes.
    pub routers: Vec<Router>,
    /// Known next hops of servers found by routes (methods `nat` and `tunnel`), by server address.
    pub hops: BTreeMap<IpAddr, ServerRoute>,
}

/// Path to a server that may be on another network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerRoute {
    /// Destination of frames: the server itself, or the next router.
    pub place: LinkAddress,
    /// The director's address towards the server.
    pub own: IpAddr,
    /// The director's address that is the outer source of tunnels to the server.
    pub tunnel: IpAddr,
    /// MTU of the path, in bytes.
    pub mtu: u16,
    /// True if the server is on this host's link; false if it is behind a router.
    pub on_link: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Router {
    pub address: IpAddr,
    /// MAC address; `None` until the kernel has resolved it.
    pub mac: Option<Mac>,
}

impl LocalNetwork {
    /// True if an answer for this address may conflict with the director or a router.
    pub(super) fn is_concerned(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || self.routers.iter().any(|router| router.address == address)
    }

    /// True if this host has the address.
    pub(super) fn is_local(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// True if this MAC address can't be a server's.
    pub(super) fn excludes(&self, mac: Mac) -> bool {
        self.is_own(mac) || self.is_router(mac)
    }

    /// Judges an answer. `service_address` is true if the answer is for a service's address. The
    /// director may have that address too, if it is also a server (LSMAC, section 4.2.4).
    pub(super) fn judge(&self, reply: &NeighbourReply, service_address: bool) -> Result<(), ReplyRefusal> {
        let LinkAddress { mac, .. } = reply.place;
        let address = reply.address;
        let own_address = self.is_local(address) && !service_address;
        let router = self.routers.iter().find(|router| router.address == address);
        if !mac.is_unicast() {
            Err(ReplyRefusal::MulticastMac)
        } else if self.is_own(mac) {
            if self.is_local(address) { Ok(()) } else { Err(ReplyRefusal::OwnMac) }
        } else if own_address {
            Err(ReplyRefusal::ClaimsDirector)
        } else if let Some(Router { mac: router, .. }) = router {
            if router.is_none_or(|router| router == mac) { Ok(()) } else { Err(ReplyRefusal::ClaimsRouter) }
        } else if self.is_router(mac) {
            Err(ReplyRefusal::IsRouter)
        } else {
            Ok(())
        }
    }

    fn is_own(&self, mac: Mac) -> bool {
        self.interfaces.values().any(|own| *own == mac)
    }

    fn is_router(&self, mac: Mac) -> bool {
        self.routers.iter().any(|router| router.mac == Some(mac))
    }
}
