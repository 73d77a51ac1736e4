//! Servers listed for one name alone.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use crate::pool;

/// A server listed for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnServer {
    /// Name, unique within the list; `None` if the server is named by its address.
    pub name: Option<Arc<str>>,
    /// Address, with the port to probe.
    pub address: SocketAddr,
    /// Share relative to the others; 0 drains.
    pub weight: u16,
    /// True if the server is answered only while no other one works.
    pub backup: bool,
    /// Address to probe, if it isn't the server's own.
    pub health_address: Option<IpAddr>,
}

impl OwnServer {
    /// Name, or the address if there is none.
    pub fn name(&self) -> Cow<'_, str> {
        match &self.name {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(self.address.ip().to_string()),
        }
    }
}

/// Servers listed for a name. Names with equal settings share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerList {
    /// In the order of the file.
    pub servers: Box<[OwnServer]>,
    pub settings: Arc<pool::PoolSettings>,
}

impl ServerList {
    /// Returns the index of a server with this address, preferably `place`.
    pub fn place_of(&self, place: usize, address: SocketAddr) -> Option<usize> {
        let is_there = self.servers.get(place).is_some_and(|server| server.address == address);
        let found = || self.servers.iter().position(|server| server.address == address);
        if is_there { Some(place) } else { found() }
    }
}
