//! Identification of a connection in messages.

use core::net::SocketAddr;

/// The paper's Socket ID: the two ends of a client's connection. Both of one family, neither
/// without address or port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId {
    client: SocketAddr,
    server: SocketAddr,
}

impl SocketId {
    /// Returns the ID of the connection between the client's address and the service address;
    /// `None` if they can't belong to one connection.
    pub fn new(client: SocketAddr, server: SocketAddr) -> Option<SocketId> {
        let (client, server) = (bare(client)?, bare(server)?);
        (client.is_ipv4() == server.is_ipv4()).then_some(SocketId { client, server })
    }

    /// Address of the client.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// The server's end: the service address, whichever server has the connection.
    pub fn server(&self) -> SocketAddr {
        self.server
    }
}

/// Returns the address without flow label and scope, which are local to a host; `None` without
/// address or port.
pub(super) fn bare(end: SocketAddr) -> Option<SocketAddr> {
    let is_one = !end.ip().is_unspecified() && end.port() != 0;
    is_one.then(|| SocketAddr::new(end.ip().to_canonical(), end.port()))
}
