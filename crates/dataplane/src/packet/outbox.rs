//! Sends frames: a batch in place with one sendmmsg(2), and packets that the host's own stack
//! routes.

use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use evener_core::net::wire::{ETHERNET_LEN, ETHERTYPE_QINQ, ETHERTYPE_VLAN};
use evener_core::path::decide::{Decision, Reason, Verdict};
use socket2::{Domain, Protocol, Socket, Type};

use super::ring::VLAN_LEN;
use super::virtio::VIRTIO_LEN;
use crate::link::{self, set_option};

/// Number of frames in a batch.
pub(super) const BATCH: usize = 64;
const QUEUE_LEN: i32 = 8 << 20;

/// Sockets for outgoing frames. No socket is bound; each frame names its interface.
#[derive(Debug)]
pub(crate) struct Exits {
    /// Bypasses the queueing discipline, straight to the driver.
    direct: Socket,
    /// Uses the queueing discipline. This path also cuts large frames into segments if the driver
    /// can't; the direct path drops such frames.
    queued: Socket,
    /// For packets without a frame: the host's own stack selects the route.
    host_v4: Socket,
    /// `None` on a host without IPv6.
    host_v6: Option<Socket>,
}

impl Exits {
    pub(crate) fn open() -> io::Result<Exits> {
        let exits = Exits {
            direct: exit()?,
            queued: exit()?,
            host_v4: host_exit(Domain::IPV4)?,
            host_v6: host_exit(Domain::IPV6).ok(),
        };
        set_option(exits.direct.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        Ok(exits)
    }

    /// Sends a packet by the host's own stack. `packet` starts at the IP header and has complete
    /// checksums. A packet without a route is lost. `link` is the interface of a link-local
    /// destination.
    pub(crate) fn by_host(&self, packet: &[u8], link: Option<u32>) {
        let Some((dst, len)) = destination(packet) else { return };
        let socket = match dst {
            IpAddr::V4(_) => &self.host_v4,
            IpAddr::V6(_) => match &self.host_v6 {
                Some(socket) => socket,
                None => return,
            },
        };
        let Some(packet) = packet.get(..len) else { return };
        let to: SocketAddr = match dst {
            IpAddr::V4(dst) => SocketAddrV4::new(dst, 0).into(),
            IpAddr::V6(dst) => SocketAddrV6::new(dst, 0, 0, link.unwrap_or_default()).into(),
        };
        let _ = socket.send_to_with_flags(packet, &to.into(), libc::MSG_DONTWAIT);
    }
}

/// Returns the destination of a packet and its length without Ethernet padding.
fn destination(packet: &[u8]) -> Option<(IpAddr, usize)> {
    let half = |at: usize| {
        let bytes = packet.get(at..)?.first_chunk::<2>()?;
        Some(usize::from(u16::from_be_bytes(*bytes)))
    };
    if packet.first()? >> 4 == 4 {
        let dst = Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?);
        return Some((dst.into(), half(2)?));
    }
    let dst = Ipv6Addr::from(*packet.get(24..)?.first_chunk::<16>()?);
    Some((dst.into(), 40 + half(4)?))
}

fn exit() -> io::Result<Socket> {
    let socket = link::packet_socket()?;
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    if set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, QUEUE_LEN).is_err() {
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, QUEUE_LEN)?;
    }
    Ok(socket)
}

/// Opens a send-only socket for packets with their IP header (raw(7), IPPROTO_RAW).
fn host_exit(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))
}

/// Message headers of a batch, allocated once and reused.
pub(crate) struct Outbox {
    // Boxed slices, because the messages point into `parts` and `targets`.
    messages: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    targets: Box<[libc::sockaddr_ll]>,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        let mut parts: Box<[_]> =
            vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH].into();
        let mut targets: Box<[_]> = vec![link::link_address(0, 0); BATCH].into();
        let messages =
            parts.iter_mut().zip(&mut targets).map(|(part, target)| message(part, target)).collect();
        Outbox { messages, parts, targets }
    }

    /// Carries out the decision on a single frame that follows its virtio header. `loopback` is the
    /// interface on which frames are sent to the host's own stack.
    pub(crate) fn carry_out(&mut self, decision: &Decision, packet: &mut [u8], loopback: u32, exits: &Exits) {
        let mut batch = self.fill();
        match (decision.verdict, decision.reason) {
            (Verdict::Forward { ifindex }, _) => batch.push(packet, ifindex),
            (Verdict::Pass, Reason::Local | Reason::IcmpForwarded) => {
                let stripped = make_local(&mut packet[VIRTIO_LEN..]);
                packet.copy_within(..VIRTIO_LEN, stripped);
                batch.push(&mut packet[stripped..], loopback);
            }
            (Verdict::HostStack { link }, _) => {
                let frame = &packet[VIRTIO_LEN..];
                exits.by_host(frame.get(l3_of(frame)..).unwrap_or_default(), link);
            }
            _ => {}
        }
        batch.send(exits);
    }

    /// Starts a batch of frames with lifetime `'f`.
    pub(crate) fn fill<'f>(&mut self) -> Filling<'_, 'f> {
        Filling { outbox: self, len: 0, segments: false, frames: PhantomData }
    }
}

fn message(part: &mut libc::iovec, target: &mut libc::sockaddr_ll) -> libc::mmsghdr {
    // SAFETY: zeros are a valid `mmsghdr`: no name, no parts, no control data.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_name = std::ptr::from_mut(target).cast();
    message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_hdr.msg_iov = part;
    message.msg_hdr.msg_iovlen = 1;
    message
}

/// Returns the offset of a frame's layer-three header, behind at most two VLAN tags.
pub(super) fn l3_of(frame: &[u8]) -> usize {
    let is_tag = |at: usize| {
        let ethertype = frame.get(at..).and_then(|rest| rest.first_chunk::<2>()).copied();
        let ethertype = ethertype.map(u16::from_be_bytes);
        matches!(ethertype, Some(ETHERTYPE_VLAN | ETHERTYPE_QINQ))
    };
    let tags =
        [ETHERNET_LEN - 2, ETHERNET_LEN - 2 + VLAN_LEN].into_iter().take_while(|at| is_tag(*at)).count();
    ETHERNET_LEN + tags * VLAN_LEN
}

/// Prepares a frame for the loopback interface: removes VLAN tags and sets the destination to the
/// interface's all-zero address, since the stack drops frames for other addresses. Returns the
/// number of bytes removed at the front.
pub(super) fn make_local(frame: &mut [u8]) -> usize {
    let tags_len = l3_of(frame) - ETHERNET_LEN;
    if frame.len() >= ETHERNET_LEN + tags_len {
        // The EtherType before the layer-three header is already the packet's own.
        frame.copy_within(6..12, tags_len + 6);
        frame[tags_len..tags_len + 6].fill(0);
        return tags_len;
    }
    0
}

/// Batch under construction; it borrows its frames until dropped.
pub(crate) struct Filling<'o, 'f> {
    outbox: &'o mut Outbox,
    len: usize,
    segments: bool,
    frames: PhantomData<&'f mut [u8]>,
}

impl<'f> Filling<'_, 'f> {
    /// Adds a frame that follows its virtio header. A frame beyond [`BATCH`] is left out.
    pub(crate) fn push(&mut self, packet: &'f mut [u8], ifindex: u32) {
        let at = self.len;
        if let (Some(part), Some(target)) = (self.outbox.parts.get_mut(at), self.outbox.targets.get_mut(at)) {
            // The header's second byte is gso_type: nonzero if the frame has to be cut into
            // segments.
            self.segments |= packet.len() > VIRTIO_LEN && packet[1] != 0;
            part.iov_base = packet.as_mut_ptr().cast();
            part.iov_len = packet.len();
            target.sll_ifindex = ifindex as libc::c_int;
            self.len += 1;
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len >= BATCH
    }

    /// Sends the batch in order and clears it. A frame that the kernel refuses is lost: the
    /// interface is down, the queue is full, or the frame exceeds the MTU.
    pub(crate) fn send(&mut self, exits: &Exits) {
        // One socket for the whole batch keeps the order of a flow's frames.
        let exit = if self.segments { &exits.queued } else { &exits.direct };
        let mut sent = 0;
        while sent < self.len {
            let rest = &mut self.outbox.messages[sent..self.len];
            // SAFETY: `rest` is a slice of initialised messages. Each points to a part and a target
            // in the outbox's boxes, and the part to a frame that `'f` keeps alive.
            let done = unsafe { libc::sendmmsg(exit.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0) };
            match usize::try_from(done) {
                Ok(done) => sent += done.max(1),
                Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                Err(_) => sent += 1,
            }
        }
        (self.len, self.segments) = (0, false);
    }
}
