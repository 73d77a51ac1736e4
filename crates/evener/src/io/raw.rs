//! Raw sockets for messages of nodes, one for each address by which other nodes know this host. The
//! destination of a message is therefore known, and its tag covers it.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::sync::Arc;

use evener_core::node::lccp::{self, wire};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// Buffer size, longer than any message with the longest IPv4 header (RFC 791, section 3.1).
const PACKET_BYTES: usize = 60 + wire::LEN_MAX + 1;
/// Pause after a failed receive, so that the task never loops without a pause.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(100);

/// Raw socket of one address. Dropping this ends the reception.
pub(crate) struct RawReceiver {
    socket: Arc<UdpSocket>,
    task: JoinHandle<()>,
}

impl RawReceiver {
    /// Opens the socket on an address of this host. `is_node` is called first with a packet's
    /// source. If it returns true, `receive` gets the packet.
    pub(crate) fn open(
        own: IpAddr,
        is_node: impl Fn(IpAddr) -> bool + Send + 'static,
        receive: impl Fn(IpAddr, &[u8]) + Send + 'static,
    ) -> io::Result<RawReceiver> {
        let protocol = Some(Protocol::from(i32::from(lccp::PROTOCOL)));
        let socket = Socket::new(Domain::for_address((own, 0).into()), Type::RAW, protocol)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(own, 0).into())?;
        // The runtime treats the socket as a datagram socket. All ports are 0.
        let socket = Arc::new(UdpSocket::from_std(StdSocket::from(socket))?);
        let task = tokio::spawn(listen(Arc::clone(&socket), is_node, receive));
        Ok(RawReceiver { socket, task })
    }

    /// Sends a message. A message that can't be sent is lost, as any message may be.
    pub(crate) fn send(&self, to: IpAddr, message: &[u8]) {
        if let Err(error) = self.socket.try_send_to(message, SocketAddr::new(to, 0)) {
            tracing::debug!(%to, %error, "failed to send a control message");
        }
    }
}

impl Drop for RawReceiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(socket: Arc<UdpSocket>, is_node: impl Fn(IpAddr) -> bool, receive: impl Fn(IpAddr, &[u8])) {
    let mut buffer = [0; PACKET_BYTES];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((len, from)) if is_node(from.ip()) => {
                let packet = buffer.get(..len).unwrap_or_default();
                receive(from.ip(), content(from.ip(), packet));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "failed to receive control messages");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Returns the part after the IP header. IPv4 sockets deliver the header (raw(7)), IPv6 sockets
/// don't (RFC 3542, section 3).
fn content(from: IpAddr, packet: &[u8]) -> &[u8] {
    match (from, packet.first()) {
        (IpAddr::V4(_), Some(first)) => packet.get(usize::from(first & 0xf) * 4..).unwrap_or_default(),
        _ => packet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ipv4_has_its_header_in_front() {
        let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]));
        let mut packet = [vec![0x45; 20], b"LCCP".to_vec()].concat();
        assert_eq!(content(v4, &packet), b"LCCP");
        assert_eq!(content(v6, b"LCCP"), b"LCCP");
        packet[0] = 0x46;
        assert_eq!(content(v4, &packet), b"", "options, cut off");
        assert_eq!(content(v4, b""), b"");
    }
}
