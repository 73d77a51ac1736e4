//! The kernel's interface for TCP_REPAIR: socket options of linux/tcp.h, and lengths of queues.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::{SockAddr, SockAddrStorage, SockRef};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{AgreedOptions, RepairError, Window};
use crate::link::set_option_with;

/// Of TCP_REPAIR. Leaving with 0 instead would send a window probe.
const ON: libc::c_int = 1;
const OFF_WITHOUT_PROBE: libc::c_int = -1;

/// Of TCP_REPAIR_OPTIONS, numbered as on the wire (RFC 9293, section 3.2).
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW: u32 = 3;
const OPTION_SACK_PERMITTED: u32 = 4;
const OPTION_TIMESTAMP: u32 = 8;

/// A queue, as TCP_REPAIR_QUEUE numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Receive = 1,
    Send = 2,
}

/// Begins repair: from here on the socket sends nothing when it is closed, and its address may be
/// another's, too.
pub(super) fn enter(socket: BorrowedFd<'_>) -> Result<(), RepairError> {
    set(socket, libc::TCP_REPAIR, &ON, "TCP_REPAIR").map_err(|error| match error {
        RepairError::System { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            RepairError::Privilege
        }
        other => other,
    })
}

/// Ends repair. The kernel forgets SO_REUSEADDR with it.
pub(super) fn leave_repair_mode(socket: BorrowedFd<'_>) -> Result<(), RepairError> {
    set(socket, libc::TCP_REPAIR, &OFF_WITHOUT_PROBE, "the end of TCP_REPAIR")
}

/// Ends a connection in repair, silently. Closing does so too, but not while a process that was
/// forked off has a copy of the descriptor, though it is about to run another program.
pub(super) fn disconnect(socket: BorrowedFd<'_>) -> Result<(), RepairError> {
    // SAFETY: of an address of no family (AF_UNSPEC is zero) nothing else is looked at, and all of
    // it is zero.
    let null_filter =
        unsafe { SockAddr::new(SockAddrStorage::zeroed(), size_of::<libc::sockaddr>() as libc::socklen_t) };
    SockRef::from(&socket).connect(&null_filter).map_err(RepairError::system("disconnecting"))
}

/// Says which queue is read, written and numbered.
pub(super) fn select(socket: BorrowedFd<'_>, queue: Queue) -> Result<(), RepairError> {
    set(socket, libc::TCP_REPAIR_QUEUE, &(queue as libc::c_int), "TCP_REPAIR_QUEUE")
}

/// The sequence number behind the last byte of the selected queue.
pub(super) fn sequence(socket: BorrowedFd<'_>) -> Result<u32, RepairError> {
    get(socket, libc::TCP_QUEUE_SEQ, "TCP_QUEUE_SEQ")
}

/// Says where the selected queue begins, which is empty; before the socket is connected.
pub(super) fn set_sequence(socket: BorrowedFd<'_>, sequence: u32) -> Result<(), RepairError> {
    set(socket, libc::TCP_QUEUE_SEQ, &sequence, "setting TCP_QUEUE_SEQ")
}

/// The part of TCP_INFO about a connection's state and terms.
pub(super) struct TcpInfo {
    state: u8,
    options: u8,
    scales: (u8, u8),
}

impl TcpInfo {
    pub(super) fn of(socket: BorrowedFd<'_>) -> Result<TcpInfo, RepairError> {
        // The first bytes of `struct tcp_info`; the kernel gives as much of it as is asked for.
        let [state, _, _, _, _, options, scales, _]: [u8; 8] = get(socket, libc::TCP_INFO, "TCP_INFO")?;
        // Two bit fields, which are laid out from the machine's own end.
        let (low, high) = (scales & 0xf, scales >> 4);
        let scales = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
        Ok(TcpInfo { state, options, scales })
    }

    /// Whether both ends may still send.
    pub(super) fn require_open(&self) -> Result<(), RepairError> {
        // States of net/tcp_states.h.
        match self.state {
            1 => Ok(()),
            4 | 5 | 8 | 9 | 11 => Err(RepairError::HalfClosed),
            10 => Err(RepairError::Listening),
            _ => Err(RepairError::NotConnected),
        }
    }

    /// The agreed options. In repair mode, where the largest segment is the one of the handshake.
    pub(super) fn terms(&self, socket: BorrowedFd<'_>) -> Result<AgreedOptions, RepairError> {
        // TCPI_OPT_* of linux/tcp.h.
        let [timestamps, sack, scaling] = [1, 2, 4].map(|option| self.options & option != 0);
        let mss: u32 = get(socket, libc::TCP_MAXSEG, "TCP_MAXSEG")?;
        let timestamp: u32 = get(socket, libc::TCP_TIMESTAMP, "TCP_TIMESTAMP")?;
        // Since Linux 6.7 the lowest bit says by which unit the clock runs, and is none of the
        // time: what was sent last may be one more. The next one must not be less.
        let timestamp = (timestamp | 1).wrapping_add(1);
        Ok(AgreedOptions {
            mss: u16::try_from(mss).unwrap_or(u16::MAX),
            window_scales: scaling.then_some(self.scales),
            sack,
            timestamp: timestamps.then_some(timestamp),
        })
    }
}

/// Sets the largest segment; before the socket is connected. The kernel reckons with it only there:
/// one that comes with the other terms counts for what the next packets may be at most, and they
/// stay as short as without any.
pub(super) fn set_mss(socket: BorrowedFd<'_>, mss: u16) -> Result<(), RepairError> {
    /// The kernel's bounds (TCP_MIN_MSS and MAX_TCP_WINDOW of its net/tcp.h).
    const TAKEN: std::ops::RangeInclusive<u16> = 88..=32_767;
    let mss = libc::c_int::from(mss.clamp(*TAKEN.start(), *TAKEN.end()));
    set(socket, libc::TCP_MAXSEG, &mss, "setting TCP_MAXSEG")
}

/// Sets what was agreed on; on a connected socket that has sent nothing.
pub(super) fn set_terms(socket: BorrowedFd<'_>, terms: &AgreedOptions) -> Result<(), RepairError> {
    // Without an agreement the scales are set to zero: the kernel has chosen one of its own for
    // what we announce.
    let (send, receive) = terms.window_scales.unwrap_or_default();
    let scales = u32::from(send) | u32::from(receive) << 16;
    let mut options = vec![[OPTION_MSS, u32::from(terms.mss)], [OPTION_WINDOW, scales]];
    options.extend(terms.sack.then_some([OPTION_SACK_PERMITTED, 0]));
    options.extend(terms.timestamp.map(|_| [OPTION_TIMESTAMP, 0]));
    for option in options {
        set(socket, libc::TCP_REPAIR_OPTIONS, &option, "TCP_REPAIR_OPTIONS")?;
    }
    match terms.timestamp {
        // An odd one would have the clock run by microseconds.
        Some(now) => set(socket, libc::TCP_TIMESTAMP, &now.wrapping_add(now & 1), "setting TCP_TIMESTAMP"),
        None => Ok(()),
    }
}

/// How much either side lets the other send.
pub(super) fn window(socket: BorrowedFd<'_>) -> Result<Window, RepairError> {
    let [send_update, send, send_max, receive, receive_update]: [u32; 5] =
        get(socket, libc::TCP_REPAIR_WINDOW, "TCP_REPAIR_WINDOW")?;
    Ok(Window { send_update, send, send_max, receive, receive_update })
}

/// Sets it; behind the refilled queues, whose ends it goes by.
pub(super) fn set_window(socket: BorrowedFd<'_>, window: &Window) -> Result<(), RepairError> {
    let Window { send_update, send, send_max, receive, receive_update } = *window;
    let window = [send_update, send, send_max, receive, receive_update];
    set(socket, libc::TCP_REPAIR_WINDOW, &window, "setting TCP_REPAIR_WINDOW")
}

/// Bytes in the receive queue.
pub(super) fn unread_len(socket: BorrowedFd<'_>) -> Result<usize, RepairError> {
    queue_len(socket, libc::FIONREAD, "SIOCINQ")
}

/// Bytes in the send queue: what the other end has not acknowledged, sent or not.
///
/// # Errors
/// When it is no TCP socket.
pub fn unacked_len(socket: BorrowedFd<'_>) -> Result<usize, RepairError> {
    queue_len(socket, libc::TIOCOUTQ, "SIOCOUTQ")
}

/// Bytes in the send queue that were never sent.
pub(super) fn unsent_len(socket: BorrowedFd<'_>) -> Result<usize, RepairError> {
    /// linux/sockios.h
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    queue_len(socket, SIOCOUTQNSD, "SIOCOUTQNSD")
}

fn queue_len(socket: BorrowedFd<'_>, request: libc::Ioctl, what: &'static str) -> Result<usize, RepairError> {
    let mut len: libc::c_int = 0;
    // SAFETY: for a TCP socket each of the three requests writes one `int`, to a live one.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut len) };
    if done < 0 {
        return Err(RepairError::system(what)(io::Error::last_os_error()));
    }
    Ok(usize::try_from(len).unwrap_or_default())
}

fn set<T: Copy>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    value: &T,
    what: &'static str,
) -> Result<(), RepairError> {
    set_option_with(socket, libc::IPPROTO_TCP, name, value).map_err(RepairError::system(what))
}

fn get<T: FromBytes + IntoBytes + Immutable>(
    socket: BorrowedFd<'_>,
    name: libc::c_int,
    what: &'static str,
) -> Result<T, RepairError> {
    let mut value = T::new_zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    let place = value.as_mut_bytes().as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `len` bytes to `value`, which is as long and may hold any
    // bytes.
    let done = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, place, &raw mut len) };
    if done == 0 { Ok(value) } else { Err(RepairError::system(what)(io::Error::last_os_error())) }
}
