//! ARP and neighbour discovery by the daemon itself. The host's own tables keep only one MAC for an
//! address, but discovery needs the MACs of all hosts that answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use evener_core::net::neighbour::{announcement, solicitation, solicited_node};
use evener_core::net::wire::icmpv6::NEIGHBOUR_ADVERTISEMENT;
use evener_core::net::wire::{ETHERTYPE_ARP, ETHERTYPE_IPV6, Mac, arp_request, protocol};
use evener_dataplane::link::{EtherType, Field, Instruction, LinkSocket, filter};
use socket2::{Domain, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::io::network::interface_name;

/// Length of a frame that is read: more than any advertisement with the existing options.
const FRAME_MAX: usize = 256;
/// Capacity of the queue of frames. Further frames are dropped, as on any busy link.
const QUEUE: usize = 1024;

#[derive(Debug)]
pub(crate) struct ReceivedFrame {
    pub(crate) ifindex: u32,
    /// From the Ethernet header on.
    pub(crate) bytes: Vec<u8>,
}

/// Sends and receives ARP, and neighbour discovery if needed, on several interfaces.
pub(crate) struct Neighbours {
    links: BTreeMap<u32, InterfaceSockets>,
    frames: mpsc::Sender<ReceivedFrame>,
}

/// Sockets of one interface.
struct InterfaceSockets {
    own: Mac,
    arp: FrameReceiver,
    discovery: Option<FrameReceiver>,
    /// Joined multicast groups, and the socket that holds the memberships.
    groups: Option<(BTreeSet<Ipv6Addr>, Socket)>,
}

impl InterfaceSockets {
    fn is_alive(&self) -> bool {
        [Some(&self.arp), self.discovery.as_ref()]
            .into_iter()
            .flatten()
            .all(|listener| !listener.reader.is_finished())
    }
}

/// Receiver of frames of one kind.
struct FrameReceiver {
    socket: Arc<AsyncFd<LinkSocket>>,
    reader: JoinHandle<()>,
}

impl Drop for FrameReceiver {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Neighbours {
    /// Listens on no interface yet. Frames arrive at the receiver.
    pub(crate) fn new() -> (Self, mpsc::Receiver<ReceivedFrame>) {
        let (frames, receiver) = mpsc::channel(QUEUE);
        (Neighbours { links: BTreeMap::new(), frames }, receiver)
    }

    /// Listens on exactly these interfaces. Listens for neighbour advertisements only if the farm
    /// has IPv6.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, or if an interface is gone or down. The other interfaces are still
    /// served.
    pub(crate) fn listen(
        &mut self,
        interfaces: &BTreeMap<u32, Mac>,
        ipv6: bool,
    ) -> Result<(), (u32, io::Error)> {
        self.links.retain(|ifindex, link| {
            interfaces.get(ifindex) == Some(&link.own) && link.is_alive() && link.discovery.is_some() == ipv6
        });
        let mut first_error = Ok(());
        for (&ifindex, &own) in interfaces {
            if self.links.contains_key(&ifindex) {
                continue;
            }
            match self.open(ifindex, own, ipv6) {
                Ok(link) => {
                    self.links.insert(ifindex, link);
                }
                Err(error) => first_error = first_error.and(Err((ifindex, error))),
            }
        }
        first_error
    }

    fn open(&self, ifindex: u32, own: Mac, ipv6: bool) -> io::Result<InterfaceSockets> {
        let arp = LinkSocket::open(ifindex, EtherType::Only(ETHERTYPE_ARP))?;
        let discovery = ipv6.then(|| LinkSocket::open_filtered(ifindex, EtherType::All, &advertisements()));
        let discovery = discovery.transpose()?.map(|socket| self.listener(ifindex, socket)).transpose()?;
        Ok(InterfaceSockets { own, arp: self.listener(ifindex, arp)?, discovery, groups: None })
    }

    fn listener(&self, ifindex: u32, socket: LinkSocket) -> io::Result<FrameReceiver> {
        let socket = Arc::new(AsyncFd::new(socket)?);
        let reader = tokio::spawn(read(socket.clone(), ifindex, self.frames.clone()));
        Ok(FrameReceiver { socket, reader })
    }

    /// Sends a request for the MAC of `target` on an interface.
    /// Without a `sender`, the request is a probe for an address that this host will claim (RFC
    /// 5227, section 2.1.1; RFC 4862, section 5.4.2).
    pub(crate) fn request(&self, ifindex: u32, sender: Option<IpAddr>, target: IpAddr) {
        let Some(link) = self.links.get(&ifindex) else { return };
        match (sender, target) {
            (Some(IpAddr::V4(sender)), IpAddr::V4(target)) => {
                send(&link.arp, ifindex, &arp_request(link.own, sender, target));
            }
            (None, IpAddr::V4(target)) => {
                send(&link.arp, ifindex, &arp_request(link.own, [0; 4].into(), target));
            }
            (Some(IpAddr::V6(sender)), IpAddr::V6(target)) => {
                link.send(ifindex, &solicitation(link.own, sender, target));
            }
            (None, IpAddr::V6(target)) => {
                link.send(ifindex, &solicitation(link.own, Ipv6Addr::UNSPECIFIED, target));
            }
            // Both addresses must be of one family.
            (Some(_), _) => {}
        }
    }

    /// Announces these addresses on every interface.
    pub(crate) fn announce(&self, addresses: &BTreeSet<IpAddr>) {
        for (&ifindex, link) in &self.links {
            for address in addresses {
                match *address {
                    IpAddr::V4(_) => self.request(ifindex, Some(*address), *address),
                    IpAddr::V6(own) => link.send(ifindex, &announcement(link.own, own)),
                }
            }
        }
    }

    /// Joins the multicast groups of solicitations for these addresses on every interface.
    /// Interfaces and switches forward group traffic only to members (RFC 4291, section 2.7.1; RFC
    /// 4541).
    pub(crate) fn join_groups(&mut self, addresses: &BTreeSet<IpAddr>) {
        let groups: BTreeSet<Ipv6Addr> = addresses
            .iter()
            .filter_map(|address| match address {
                IpAddr::V6(address) => Some(solicited_node(*address)),
                IpAddr::V4(_) => None,
            })
            .collect();
        for (&ifindex, link) in &mut self.links {
            if link.groups.as_ref().map_or(groups.is_empty(), |(joined, _)| *joined == groups) {
                continue;
            }
            match join(ifindex, &groups) {
                // Closing the previous socket leaves its groups.
                Ok(socket) => link.groups = Some((groups.clone(), socket)),
                Err(error) => {
                    let interface = interface_name(ifindex);
                    tracing::warn!(interface, %error, "failed to join the multicast groups of announced IPv6 addresses: solicitations may not arrive");
                }
            }
        }
    }
}

impl InterfaceSockets {
    fn send(&self, ifindex: u32, frame: &[u8]) {
        if let Some(discovery) = &self.discovery {
            send(discovery, ifindex, frame);
        }
    }
}

/// A frame that can't be sent is lost, as any frame may be.
fn send(listener: &FrameReceiver, ifindex: u32, frame: &[u8]) {
    if let Err(error) = listener.socket.get_ref().send(frame) {
        tracing::debug!(ifindex, %error, "failed to send an ARP request or a solicitation");
    }
}

fn join(ifindex: u32, groups: &BTreeSet<Ipv6Addr>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, None)?;
    groups.iter().try_for_each(|group| socket.join_multicast_v6(group, ifindex))?;
    Ok(socket)
}

/// Returns a filter for neighbour advertisements (RFC 4861, section 4.4).
fn advertisements() -> Vec<Instruction> {
    const ETHERTYPE: u32 = 12;
    const NEXT_HEADER: u32 = 20;
    const ICMP_TYPE: u32 = 54;
    filter(&[
        Field::Half(ETHERTYPE, ETHERTYPE_IPV6),
        Field::Byte(NEXT_HEADER, protocol::ICMPV6),
        Field::Byte(ICMP_TYPE, NEIGHBOUR_ADVERTISEMENT),
    ])
}

async fn read(socket: Arc<AsyncFd<LinkSocket>>, ifindex: u32, frames: mpsc::Sender<ReceivedFrame>) {
    let mut buffer = [0; FRAME_MAX];
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        match ready.try_io(|socket| socket.get_ref().recv(&mut buffer)) {
            Ok(Ok((len, meta))) if !meta.outgoing => {
                let bytes = buffer.get(..len).unwrap_or(&buffer).to_vec();
                if let Err(mpsc::error::TrySendError::Closed(_)) =
                    frames.try_send(ReceivedFrame { ifindex, bytes })
                {
                    return;
                }
            }
            // The interface went down. The next call of `listen` opens it again.
            Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}
