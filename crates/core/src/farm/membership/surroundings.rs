//! The neighbours that must not be taken for a server: the director itself and the routers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;

use super::answer::NeighbourReply;
use super::binding::LinkAddress;
use super::event::ReplyRefusal;
use crate::net::wire::Mac;

/// The director's own interfaces and addresses, and its routers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LocalNetwork {
    /// The director's interfaces that lead to servers, by index, with their own MAC.
    pub interfaces: BTreeMap<u32, Mac>,
    /// The director's own addresses, on whatever interface.
    pub addresses: BTreeSet<IpAddr>,
    /// The gateways of its routes.
    pub routers: Vec<Router>,
    /// The ways to servers that are reached by routes (methods `nat` and `tunnel`), by server
    /// address, as far as they are known.
    pub hops: BTreeMap<IpAddr, ServerRoute>,
}

/// The way to a server that may be on another network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerRoute {
    /// Where frames go: to the server itself, or to the gateway before it.
    pub place: LinkAddress,
    /// The director's address towards the server.
    pub own: IpAddr,
    /// The director's address that servers accept tunnels from.
    pub tunnel: IpAddr,
    /// The longest packet that the way takes, in bytes.
    pub mtu: u16,
    /// Whether the server is on the link itself, with no router before it.
    pub on_link: bool,
}

/// A gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Router {
    /// Its address.
    pub address: IpAddr,
    /// Its MAC, once the host has resolved it.
    pub mac: Option<Mac>,
}

impl LocalNetwork {
    /// Whether an answer for this address is worth judging.
    pub(super) fn is_concerned(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || self.routers.iter().any(|router| router.address == address)
    }

    /// Whether this host has the address.
    pub(super) fn is_local(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Whether this MAC cannot be a server's.
    pub(super) fn excludes(&self, mac: Mac) -> bool {
        self.is_own(mac) || self.is_router(mac)
    }

    /// Whether an answer may be believed. `service_address`: it is for a service's address, which
    /// the director may have too, being a server itself (LSMAC, section 4.2.4).
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
