//! Servers that are listed for one name alone.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use crate::pool;

/// A server of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnServer {
    /// Its name, unique among the servers of a name; `None`: its address is its name.
    pub name: Option<Arc<str>>,
    /// Where it is, with the port that is probed.
    pub address: SocketAddr,
    /// Its share relative to the others; 0 drains.
    pub weight: u16,
    /// Whether answers have it only while no server without this lives.
    pub backup: bool,
    /// Where it is probed, if not at its address.
    pub health_address: Option<IpAddr>,
}

impl OwnServer {
    /// Its name.
    pub fn name(&self) -> Cow<'_, str> {
        match &self.name {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(self.address.ip().to_string()),
        }
    }
}

/// The servers of a name, as the file has them. Settings are shared by all names that have the
/// same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerList {
    /// In the order of the file.
    pub servers: Box<[OwnServer]>,
    /// How they are looked after.
    pub settings: Arc<pool::PoolSettings>,
}

impl ServerList {
    /// Where a server stands that was at `place` when its address was this one.
    pub fn place_of(&self, place: usize, address: SocketAddr) -> Option<usize> {
        let is_there = self.servers.get(place).is_some_and(|server| server.address == address);
        let found = || self.servers.iter().position(|server| server.address == address);
        if is_there { Some(place) } else { found() }
    }
}
