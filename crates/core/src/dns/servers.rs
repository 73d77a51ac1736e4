//! Servers that the farm file lists for a balanced name itself. They don't belong to a service.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use crate::pool;

/// Server in the list of a DNS name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnServer {
    /// Name, unique within the list. `None` if the configuration has only an address.
    pub name: Option<Arc<str>>,
    /// Address in DNS answers, with the port to probe.
    pub address: SocketAddr,
    /// Weight relative to the other servers; 0 drains the server.
    pub weight: u16,
    /// True if DNS answers have the server's address only while no other server works.
    pub backup: bool,
    /// Address to probe, if it differs from `address`.
    pub health_address: Option<IpAddr>,
}

impl OwnServer {
    /// Returns the name, or the address if there is no name.
    pub fn name(&self) -> Cow<'_, str> {
        match &self.name {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(self.address.ip().to_string()),
        }
    }
}

/// List of servers of a DNS name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerList {
    /// Servers in the order of the configuration.
    pub servers: Box<[OwnServer]>,
    /// Probes, reports and slow start of the servers. Names with equal settings share one value.
    pub settings: Arc<pool::PoolSettings>,
}

impl ServerList {
    /// Returns the index of a server with this address. It is `place` if the server there has the
    /// address, or else the first server that has it.
    pub fn place_of(&self, place: usize, address: SocketAddr) -> Option<usize> {
        let is_there = self.servers.get(place).is_some_and(|server| server.address == address);
        let found = || self.servers.iter().position(|server| server.address == address);
        if is_there { Some(place) } else { found() }
    }
}
