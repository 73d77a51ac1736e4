//! Link-layer socket of a probe.

use std::io;

use evener_core::net::wire::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use evener_core::pool::health::Failure;
use evener_dataplane::link::{EtherType, Instruction, LinkSocket};
use nix::net::if_::if_indextoname;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Socket that receives the packets that its filter accepts.
pub(super) struct ProbeSocket {
    socket: AsyncFd<LinkSocket>,
    ifindex: u32,
}

impl ProbeSocket {
    /// Opens a socket on an interface. With index 0 the socket receives on all interfaces, and
    /// can't send.
    pub(super) fn open(ifindex: u32, ethertype: u16, filter: &[Instruction]) -> Result<ProbeSocket, Failure> {
        // Filters for IP packets check the EtherType themselves.
        let kind = if ethertype == ETHERTYPE_ARP { EtherType::Only(ethertype) } else { EtherType::All };
        let socket = LinkSocket::open_filtered(ifindex, kind, filter);
        let socket = socket.and_then(AsyncFd::new);
        Ok(ProbeSocket { socket: socket.map_err(|error| unusable(ifindex, &error))?, ifindex })
    }

    /// Sends a frame. If the queue is full, the frame is lost, as any frame may be.
    pub(super) fn send(&self, frame: &[u8]) -> Result<(), Failure> {
        match self.socket.get_ref().send(frame) {
            Err(error) if !is_passing(&error) => Err(unusable(self.ifindex, &error)),
            _ => Ok(()),
        }
    }

    /// Returns the next queued frame, truncated to the length of the buffer.
    pub(super) fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>, Failure> {
        match self.socket.try_io(Interest::READABLE, |socket| socket.recv(buffer)) {
            Ok((_, meta)) if meta.outgoing => Ok(Some(&[])),
            Ok((len, _)) => Ok(Some(buffer.get(..len).unwrap_or(buffer))),
            Err(error) if is_passing(&error) => Ok(None),
            Err(error) => Err(unusable(self.ifindex, &error)),
        }
    }

    /// Waits until the socket may have a frame.
    pub(super) async fn wait(&self) -> Result<(), Failure> {
        self.socket.readable().await.map(drop).map_err(|error| unusable(self.ifindex, &error))
    }

    /// Closes the socket on another thread. The kernel waits 10 to 20 ms until no processor uses
    /// the socket. Dropping the link also closes it, but blocks.
    pub(super) fn close(self) {
        let socket = self.socket.into_inner();
        tokio::task::spawn_blocking(move || drop(socket));
    }
}

/// Returns the EtherType of IP packets.
pub(super) fn ethertype(version_6: bool) -> u16 {
    if version_6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 }
}

/// True if a retry may succeed: a queue is full or empty, or a signal arrived.
fn is_passing(error: &io::Error) -> bool {
    use nix::libc::ENOBUFS;
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(ENOBUFS)
}

fn unusable(ifindex: u32, error: &io::Error) -> Failure {
    // An interface that is gone has no name, or an empty one.
    let name = if_indextoname(ifindex).ok().and_then(|name| name.into_string().ok());
    let name = name.filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| format!("interface number {ifindex}"));
    failure(error, format!("no probe can leave by {name}: {error}"))
}

/// Converts the kernel's error to the failure of a probe: this host can't send, or the server is
/// unreachable.
pub(super) fn failure(error: &io::Error, sentence: String) -> Failure {
    use nix::libc::{EADDRINUSE, EMFILE, ENFILE, ENOBUFS, ENOMEM};
    match error.raw_os_error() {
        Some(EMFILE | ENFILE | ENOMEM | ENOBUFS | EADDRINUSE) => Failure::NotProbed(sentence),
        _ => Failure::Other(sentence),
    }
}
