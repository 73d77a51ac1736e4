//! ARP by the daemon itself: the host's own table knows one MAC for an address, where discovery wants
//! every one that answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use evener_core::wire::{ETHERTYPE_ARP, Mac, arp_request};
use evener_dataplane::link::{EtherType, LinkSocket};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The longest part of a frame that is looked at: an ARP body for IPv4, padding included.
const FRAME_MAX: usize = 64;
/// Frames waiting for the control loop; more than that are dropped, as on any busy link.
const QUEUE: usize = 1024;

/// An ARP frame as it came in.
#[derive(Debug)]
pub(super) struct ArpFrame {
    /// The interface.
    pub(super) ifindex: u32,
    /// From the Ethernet header on.
    pub(super) bytes: Vec<u8>,
}

/// Speaks ARP on several interfaces.
pub(super) struct Arp {
    links: BTreeMap<u32, Link>,
    frames: mpsc::Sender<ArpFrame>,
}

struct Link {
    socket: Arc<AsyncFd<LinkSocket>>,
    own: Mac,
    reader: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Arp {
    /// On no interface yet; frames come by the receiver.
    pub(super) fn new() -> (Self, mpsc::Receiver<ArpFrame>) {
        let (frames, receiver) = mpsc::channel(QUEUE);
        (Arp { links: BTreeMap::new(), frames }, receiver)
    }

    /// Listens on these interfaces, and no others.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, or when an interface is gone or down; the others are listened on.
    pub(super) fn listen(&mut self, interfaces: &BTreeMap<u32, Mac>) -> Result<(), (u32, io::Error)> {
        self.links
            .retain(|ifindex, link| interfaces.get(ifindex) == Some(&link.own) && !link.reader.is_finished());
        let mut first_error = Ok(());
        for (&ifindex, &own) in interfaces {
            if self.links.contains_key(&ifindex) {
                continue;
            }
            match self.open(ifindex, own) {
                Ok(link) => {
                    self.links.insert(ifindex, link);
                }
                Err(error) => first_error = first_error.and(Err((ifindex, error))),
            }
        }
        first_error
    }

    fn open(&self, ifindex: u32, own: Mac) -> io::Result<Link> {
        let socket = LinkSocket::open(ifindex, EtherType::Only(ETHERTYPE_ARP))?;
        let socket = Arc::new(AsyncFd::new(socket)?);
        let reader = tokio::spawn(read(socket.clone(), ifindex, self.frames.clone()));
        Ok(Link { socket, own, reader })
    }

    /// Asks everyone on an interface who has `target`. What can't be sent is lost, as any frame may be.
    pub(super) fn ask(&self, ifindex: u32, sender: Ipv4Addr, target: Ipv4Addr) {
        if let Some(link) = self.links.get(&ifindex)
            && let Err(error) = link.socket.get_ref().send(&arp_request(link.own, sender, target))
        {
            tracing::debug!(ifindex, %target, %error, "an ARP request was not sent");
        }
    }

    /// Tells everyone on every interface that the director has these addresses.
    pub(super) fn announce(&self, addresses: &BTreeSet<Ipv4Addr>) {
        for &ifindex in self.links.keys() {
            addresses.iter().for_each(|address| self.ask(ifindex, *address, *address));
        }
    }
}

async fn read(socket: Arc<AsyncFd<LinkSocket>>, ifindex: u32, frames: mpsc::Sender<ArpFrame>) {
    let mut buffer = [0; FRAME_MAX];
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        match ready.try_io(|socket| socket.get_ref().recv(&mut buffer)) {
            Ok(Ok((len, meta))) if !meta.outgoing => {
                let bytes = buffer.get(..len).unwrap_or(&buffer).to_vec();
                if let Err(mpsc::error::TrySendError::Closed(_)) =
                    frames.try_send(ArpFrame { ifindex, bytes })
                {
                    return;
                }
            }
            // The interface went down: whoever watches it listens again when it is back.
            Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}
