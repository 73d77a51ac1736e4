//! Which connection a message is about.

use core::net::SocketAddr;

/// The paper's Socket ID: the two ends of a client's connection. Both of one family, neither
/// without address or port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId {
    client: SocketAddr,
    server: SocketAddr,
}

impl SocketId {
    /// Of the client's end and the server's, which is the service address. `None` if they can't be
    /// those of a connection.
    pub fn new(client: SocketAddr, server: SocketAddr) -> Option<SocketId> {
        let (client, server) = (bare(client)?, bare(server)?);
        (client.is_ipv4() == server.is_ipv4()).then_some(SocketId { client, server })
    }

    /// The client's end.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// The server's end: the service address, whichever server has the connection.
    pub fn server(&self) -> SocketAddr {
        self.server
    }
}

/// An end without flow label and scope, which say nothing to another host. `None` if there is no
/// address or port.
pub(super) fn bare(end: SocketAddr) -> Option<SocketAddr> {
    let is_one = !end.ip().is_unspecified() && end.port() != 0;
    is_one.then(|| SocketAddr::new(end.ip().to_canonical(), end.port()))
}
