//! Identification of a connection in messages.

use core::net::SocketAddr;

/// Socket ID of the LCCP paper: the endpoints of a client's connection. Both endpoints have the
/// same address family, and neither address nor port is zero.
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

    /// Service address and port, which are the same for all servers.
    pub fn server(&self) -> SocketAddr {
        self.server
    }
}

/// Returns the endpoint without flow label and scope, which have meaning on one host only. `None`
/// if address or port is zero.
pub(super) fn bare(end: SocketAddr) -> Option<SocketAddr> {
    let is_one = !end.ip().is_unspecified() && end.port() != 0;
    is_one.then(|| SocketAddr::new(end.ip().to_canonical(), end.port()))
}
