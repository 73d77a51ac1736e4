//! Receives frames: the TPACKET_V2 ring that the kernel fills and a thread drains (packet(7),
//! PACKET_RX_RING).

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};

use evener_core::net::packet::HEADROOM;
use evener_core::net::wire::ETHERTYPE_VLAN;
use memmap2::{MmapOptions, MmapRaw};
use socket2::Socket;

use super::virtio::VIRTIO_LEN;
use crate::link::{self, EtherType, set_option, set_option_with};

/// Bytes reserved before a frame, for a longer header, a restored VLAN tag and a virtio header.
pub(super) const RESERVE: usize = HEADROOM + VLAN_LEN + VIRTIO_LEN;
/// Length of a VLAN tag in bytes.
pub(super) const VLAN_LEN: usize = 4;
/// Bytes per slot, enough for an Ethernet frame of 1500 bytes, the reserve and the kernel's header.
const SLOT_LEN: usize = 2048;
/// Number of slots: 20 ms of 200,000 frames a second, for times when the thread does not run.
const SLOTS: usize = 4096;
/// Size of the kernel's allocations in bytes.
const BLOCK_LEN: usize = 1 << 18;
/// Size of the queue for frames longer than a slot, in bytes.
const QUEUE_LEN: i32 = 8 << 20;

/// Receive ring of one thread on one interface.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    map: MmapRaw,
    next: usize,
}

/// Received frame, which occupies its slot.
pub(super) struct RingFrame<'r> {
    /// VLAN tag that the kernel removed: type and value.
    pub(super) tag: Option<(u16, u16)>,
    /// True if this host sent the frame (on kernels without PACKET_FANOUT_FLAG_IGNORE_OUTGOING).
    pub(super) outgoing: bool,
    pub(super) content: FrameStorage<'r>,
}

pub(super) enum FrameStorage<'r> {
    /// In the slot: [`RESERVE`] bytes, which end with the virtio header, then the frame.
    Whole(&'r mut [u8]),
    /// Longer than a slot: next frame in the socket's queue, with this length in bytes.
    Queued(usize),
    /// Dropped: longer than a slot, and the queue was full.
    Lost,
}

impl ReceiveRing {
    /// Opens a ring on an interface. With `group` the ring shares frames with the other rings of
    /// that fan-out group: the first ring founds the group and notes its number.
    pub(super) fn open(ifindex: u32, group: Option<&mut FanoutGroup>) -> io::Result<(Socket, ReceiveRing)> {
        let socket = link::packet_socket()?;
        let fd = socket.as_fd();
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_RESERVE, RESERVE as i32)?;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, SLOT_LEN as i32)?;
        let _ = set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
        // Exceeding the system's limit requires CAP_NET_ADMIN. The limit itself is enough, with
        // more loss of large frames under load.
        if set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, QUEUE_LEN).is_err() {
            set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, QUEUE_LEN)?;
        }
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_LEN as u32,
            tp_block_nr: (SLOTS * SLOT_LEN / BLOCK_LEN) as u32,
            tp_frame_size: SLOT_LEN as u32,
            tp_frame_nr: SLOTS as u32,
        };
        set_option_with(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let map = MmapOptions::new().len(SLOTS * SLOT_LEN).map_raw(&socket)?;
        link::bind(&socket, ifindex, EtherType::All)?;
        if let Some(group) = group {
            group.join(&socket)?;
        }
        Ok((socket, ReceiveRing { map, next: 0 }))
    }

    /// Returns the received frames, oldest first. The iterator returns each frame once.
    pub(super) fn ready(&mut self) -> ReadyFrames<'_> {
        ReadyFrames { at: self.next, ring: self }
    }

    /// Releases the oldest `count` slots to the kernel.
    pub(super) fn release(&mut self, count: usize) {
        for _ in 0..count {
            self.status(self.next).store(libc::TP_STATUS_KERNEL, Release);
            self.next = (self.next + 1) % SLOTS;
        }
    }

    fn slot(&self, at: usize) -> *mut u8 {
        // SAFETY: the mapping is `SLOTS * SLOT_LEN` bytes long, and the remainder keeps the index
        // below SLOTS.
        unsafe { self.map.as_mut_ptr().add((at % SLOTS) * SLOT_LEN) }
    }

    fn status(&self, at: usize) -> &AtomicU32 {
        // SAFETY: a slot begins with its 32-bit status, aligned as slots are. Kernel and program
        // hand the slot over to each other by it, so every access is atomic. The mapping lives as
        // long as `self`.
        unsafe { AtomicU32::from_ptr(self.slot(at).cast()) }
    }
}

/// Iterator over the frames in a [`ReceiveRing`].
pub(super) struct ReadyFrames<'r> {
    ring: &'r ReceiveRing,
    at: usize,
}

impl<'r> Iterator for ReadyFrames<'r> {
    type Item = RingFrame<'r>;

    fn next(&mut self) -> Option<RingFrame<'r>> {
        // A full round would return slots twice; the caller's batches are far shorter.
        let turn = self.at.wrapping_sub(self.ring.next) >= SLOTS;
        let status = self.ring.status(self.at % SLOTS).load(Acquire);
        if turn || status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let slot = self.ring.slot(self.at);
        self.at += 1;
        // SAFETY: the status says that the slot is ours: the kernel wrote a header there and won't
        // change it until `release`, which needs the ring that `'r` borrows. Headers are plain
        // data, aligned by 16.
        let (header, sender) = unsafe {
            let sender = slot.add(size_of::<libc::tpacket2_hdr>()).cast::<libc::sockaddr_ll>();
            (&*slot.cast::<libc::tpacket2_hdr>(), &*sender)
        };
        let start = usize::from(header.tp_mac).saturating_sub(RESERVE);
        let len = header.tp_snaplen as usize + RESERVE;
        let notes_len = size_of::<libc::tpacket2_hdr>() + size_of::<libc::sockaddr_ll>();
        let content = if status & libc::TP_STATUS_COPY != 0 {
            FrameStorage::Queued(header.tp_len as usize)
        } else if header.tp_snaplen < header.tp_len || start < notes_len || start + len > SLOT_LEN {
            FrameStorage::Lost
        } else {
            // SAFETY: the range is within the slot and behind the header and sender read above, as
            // just checked. The iterator returns each slot once: `at` moves on, and never a full
            // round. The slot is ours by its status.
            FrameStorage::Whole(unsafe { std::slice::from_raw_parts_mut(slot.add(start), len) })
        };
        Some(RingFrame {
            tag: (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
                let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                (if known { header.tp_vlan_tpid } else { ETHERTYPE_VLAN }, header.tp_vlan_tci)
            }),
            outgoing: sender.sll_pkttype == libc::PACKET_OUTGOING,
            content,
        })
    }
}

/// Sockets that share an interface's frames by the CPU that received the frame (PACKET_FANOUT). A
/// thread on that CPU is the cheapest to wake. Network cards and RPS keep a flow on one CPU, and so
/// in order. If a ring is full, its frames go to another ring.
#[derive(Debug, Default)]
pub(super) struct FanoutGroup {
    /// Group id that the kernel picked when the first socket joined; `None` before. The first group
    /// since boot has id 0.
    number: Option<u16>,
}

impl FanoutGroup {
    fn join(&mut self, socket: &Socket) -> io::Result<()> {
        let new = if self.number.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
        let flags = libc::PACKET_FANOUT_FLAG_ROLLOVER | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING | new;
        let fanout = u32::from(self.number.unwrap_or(0)) | (libc::PACKET_FANOUT_CPU | flags) << 16;
        set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, fanout as i32)?;
        let joined = link::option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT)?;
        self.number = Some(joined as u16);
        Ok(())
    }
}

const _: () = assert!(BLOCK_LEN.is_multiple_of(SLOT_LEN) && (SLOTS * SLOT_LEN).is_multiple_of(BLOCK_LEN));
const _: () = assert!(size_of::<libc::tpacket2_hdr>() == 32);
