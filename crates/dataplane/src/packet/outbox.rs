//! Frames out: a batch of them, from where they lie, in one sendmmsg(2); and packets for the host's
//! own stack to send on.

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

/// Frames in a batch.
pub(super) const BATCH: usize = 64;
/// The most that may be on its way out at once, in bytes.
const QUEUE_LEN: i32 = 8 << 20;

/// The sockets that frames leave by; none is bound, each frame names its interface.
#[derive(Debug)]
pub(crate) struct Exits {
    /// Past the queueing discipline, straight to the driver.
    direct: Socket,
    /// Through it. It also cuts large frames into segments where the driver can't; the direct way
    /// drops them.
    queued: Socket,
    /// For packets without a frame: the host's own stack finds their way.
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

    /// Has the host's own stack send a packet, from its IP header on, whose checksums are whole. A
    /// packet that it has no way for is lost. `link` is the interface that leads to a link-local
    /// address.
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

/// Where a packet goes, and its length; Ethernet may have padded it.
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

/// A socket for packets with their IP header (raw(7), IPPROTO_RAW); it receives none.
fn host_exit(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))
}

/// The kernel's description of a batch, made once and filled again and again.
pub(crate) struct Outbox {
    // Boxed slices, because the messages point into the other two.
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

    /// Does what was decided on a frame that comes alone, its virtio header before it. `loopback`
    /// is the interface by which frames go up the host's own stack.
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

    /// Begins a batch of frames that live for `'f`.
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

/// Where a frame's layer-three header begins: behind at most two tags.
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

/// Makes a frame one that the loopback interface takes: without tags, and to its address, which is
/// all zeros; anything else would be another host's there. The frame then begins so many bytes
/// later.
pub(super) fn make_local(frame: &mut [u8]) -> usize {
    let tags_len = l3_of(frame) - ETHERNET_LEN;
    if frame.len() >= ETHERNET_LEN + tags_len {
        // The type before the layer-three header is the packet's own already.
        frame.copy_within(6..12, tags_len + 6);
        frame[tags_len..tags_len + 6].fill(0);
        return tags_len;
    }
    0
}

/// A batch being filled; it borrows its frames until it is dropped.
pub(crate) struct Filling<'o, 'f> {
    outbox: &'o mut Outbox,
    len: usize,
    segments: bool,
    frames: PhantomData<&'f mut [u8]>,
}

impl<'f> Filling<'_, 'f> {
    /// Adds a frame with its virtio header before it. A frame beyond [`BATCH`] is left out.
    pub(crate) fn push(&mut self, packet: &'f mut [u8], ifindex: u32) {
        let at = self.len;
        if let (Some(part), Some(target)) = (self.outbox.parts.get_mut(at), self.outbox.targets.get_mut(at)) {
            // The header's second byte, gso_type: whether the frame is yet to be cut into segments.
            self.segments |= packet.len() > VIRTIO_LEN && packet[1] != 0;
            part.iov_base = packet.as_mut_ptr().cast();
            part.iov_len = packet.len();
            target.sll_ifindex = ifindex as libc::c_int;
            self.len += 1;
        }
    }

    /// Whether there is room for another frame.
    pub(crate) fn is_full(&self) -> bool {
        self.len >= BATCH
    }

    /// Sends the batch, in order, and begins anew. A frame that the kernel refuses (interface down,
    /// queue full, longer than the link allows) is lost, as on any wire.
    pub(crate) fn send(&mut self, exits: &Exits) {
        // All by the same way, so that a flow's frames don't overtake one another.
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
