//! A probe's own socket on the link.

use std::io;

use evener_core::net::wire::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use evener_core::pool::health::Failure;
use evener_dataplane::link::{EtherType, Instruction, LinkSocket};
use nix::net::if_::if_indextoname;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket that receives what its filter accepts.
pub(super) struct ProbeSocket {
    socket: AsyncFd<LinkSocket>,
    ifindex: u32,
}

impl ProbeSocket {
    /// On the interface of this index; with 0 it hears every interface, and can't send.
    pub(super) fn open(ifindex: u32, ethertype: u16, filter: &[Instruction]) -> Result<ProbeSocket, Failure> {
        // Filters of IP packets say themselves that they are.
        let kind = if ethertype == ETHERTYPE_ARP { EtherType::Only(ethertype) } else { EtherType::All };
        let socket = LinkSocket::open_filtered(ifindex, kind, filter);
        let socket = socket.and_then(AsyncFd::new);
        Ok(ProbeSocket { socket: socket.map_err(|error| unusable(ifindex, &error))?, ifindex })
    }

    /// Sends a frame. One that the queue has no room for is lost, as it could be anywhere else.
    pub(super) fn send(&self, frame: &[u8]) -> Result<(), Failure> {
        match self.socket.get_ref().send(frame) {
            Err(error) if !is_passing(&error) => Err(unusable(self.ifindex, &error)),
            _ => Ok(()),
        }
    }

    /// The next frame that is there already, if any, cut to the length of the buffer.
    pub(super) fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>, Failure> {
        match self.socket.try_io(Interest::READABLE, |socket| socket.recv(buffer)) {
            Ok((_, meta)) if meta.outgoing => Ok(Some(&[])),
            Ok((len, _)) => Ok(Some(buffer.get(..len).unwrap_or(buffer))),
            Err(error) if is_passing(&error) => Ok(None),
            Err(error) => Err(unusable(self.ifindex, &error)),
        }
    }

    /// Waits until there may be a frame.
    pub(super) async fn wait(&self) -> Result<(), Failure> {
        self.socket.readable().await.map(drop).map_err(|error| unusable(self.ifindex, &error))
    }

    /// Closes the socket where that holds nobody up: the kernel waits until no processor looks at
    /// it any more, which takes 10 to 20 ms. A link that is just dropped closes all the same.
    pub(super) fn close(self) {
        let socket = self.socket.into_inner();
        tokio::task::spawn_blocking(move || drop(socket));
    }
}

/// The EtherType of IP packets.
pub(super) fn ethertype(version_6: bool) -> u16 {
    if version_6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 }
}

/// Whether it may go better next time: the queue is full or empty, or a signal came.
fn is_passing(error: &io::Error) -> bool {
    use nix::libc::ENOBUFS;
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(ENOBUFS)
}

fn unusable(ifindex: u32, error: &io::Error) -> Failure {
    // Of an interface that is gone there is no name, or an empty one.
    let name = if_indextoname(ifindex).ok().and_then(|name| name.into_string().ok());
    let name = name.filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| format!("interface number {ifindex}"));
    failure(error, format!("no probe can leave by {name}: {error}"))
}

/// A probe that this host couldn't make, or whose server can't be reached, by what the kernel says.
pub(super) fn failure(error: &io::Error, sentence: String) -> Failure {
    use nix::libc::{EADDRINUSE, EMFILE, ENFILE, ENOBUFS, ENOMEM};
    match error.raw_os_error() {
        Some(EMFILE | ENFILE | ENOMEM | ENOBUFS | EADDRINUSE) => Failure::NotProbed(sentence),
        _ => Failure::Other(sentence),
    }
}
