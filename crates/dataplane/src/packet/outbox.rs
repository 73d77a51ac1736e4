//! Frames out: a batch of them, from where they lie, in one sendmmsg(2).

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use socket2::Socket;

use super::ring::VIRTIO_LEN;
use crate::link::{self, set_option};

/// Frames in a batch.
pub(super) const BATCH: usize = 64;
/// What may be on its way out at once, in bytes.
const QUEUE_LEN: i32 = 8 << 20;

/// The sockets that frames leave by; neither is bound, each frame names its interface.
#[derive(Debug)]
pub(super) struct Exits {
    /// Past the queueing discipline, straight to the driver.
    direct: Socket,
    /// Through it. It also cuts large frames into segments where the driver can't; the direct way drops them.
    queued: Socket,
}

impl Exits {
    pub(super) fn open() -> io::Result<Exits> {
        let exits = Exits { direct: exit()?, queued: exit()? };
        set_option(exits.direct.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        Ok(exits)
    }
}

fn exit() -> io::Result<Socket> {
    let socket = link::packet_socket()?;
    set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    if set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, QUEUE_LEN).is_err() {
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, QUEUE_LEN)?;
    }
    Ok(socket)
}

/// The kernel's description of a batch, made once and filled again and again.
pub(super) struct Outbox {
    // Boxed slices, because the messages point into the other two.
    messages: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    targets: Box<[libc::sockaddr_ll]>,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        let mut parts: Box<[_]> =
            vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH].into();
        let mut targets: Box<[_]> = vec![link::link_address(0, 0); BATCH].into();
        let messages =
            parts.iter_mut().zip(&mut targets).map(|(part, target)| message(part, target)).collect();
        Outbox { messages, parts, targets }
    }

    /// Begins a batch of frames that live for `'f`.
    pub(super) fn fill<'f>(&mut self) -> Filling<'_, 'f> {
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

/// A batch being filled; it borrows its frames until it is sent or dropped.
pub(super) struct Filling<'o, 'f> {
    outbox: &'o mut Outbox,
    len: usize,
    segments: bool,
    frames: PhantomData<&'f mut [u8]>,
}

impl<'f> Filling<'_, 'f> {
    /// Adds a frame with its virtio header before it. What exceeds [`BATCH`] is left out.
    pub(super) fn push(&mut self, packet: &'f mut [u8], ifindex: u32) {
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

    /// Sends the batch, in order. A frame that the kernel refuses (interface down, queue full, longer than
    /// the link allows) is lost, as on any wire.
    pub(super) fn send(self, exits: &Exits) {
        // All by the same way, so that a flow's frames don't overtake one another.
        let exit = if self.segments { &exits.queued } else { &exits.direct };
        let mut sent = 0;
        while sent < self.len {
            let rest = &mut self.outbox.messages[sent..self.len];
            // SAFETY: `rest` is a slice of initialised messages. Each points to a part and a target in the
            // outbox's boxes, and the part to a frame that `'f` keeps alive.
            let done = unsafe { libc::sendmmsg(exit.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0) };
            match usize::try_from(done) {
                Ok(done) => sent += done.max(1),
                Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                Err(_) => sent += 1,
            }
        }
    }
}
