//! Kernel interface of TCP_REPAIR: socket options of linux/tcp.h, and queue lengths.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::{SockAddr, SockAddrStorage, SockRef};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{AgreedOptions, RepairError, Window};
use crate::link::set_option_with;

/// Values of TCP_REPAIR. Leaving repair mode with 0 would send a window probe.
const ON: libc::c_int = 1;
const OFF_WITHOUT_PROBE: libc::c_int = -1;

/// Codes of TCP_REPAIR_OPTIONS, numbered as on the wire (RFC 9293, section 3.2).
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW: u32 = 3;
const OPTION_SACK_PERMITTED: u32 = 4;
const OPTION_TIMESTAMP: u32 = 8;

/// Queue, numbered as in TCP_REPAIR_QUEUE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Receive = 1,
    Send = 2,
}

/// Enters repair mode. From then on closing the socket sends nothing, and another socket may bind
/// its address.
pub(super) fn enter(socket: BorrowedFd<'_>) -> Result<(), RepairError> {
    set(socket, libc::TCP_REPAIR, &ON, "TCP_REPAIR").map_err(|error| match error {
        RepairError::System { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            RepairError::Privilege
        }
        other => other,
    })
}

/// Leaves repair mode. The kernel also clears SO_REUSEADDR.
pub(super) fn leave_repair_mode(socket: BorrowedFd<'_>) -> Result<(), RepairError> {
    set(socket, libc::TCP_REPAIR, &OFF_WITHOUT_PROBE, "the end of TCP_REPAIR")
}

/// Disconnects a socket in repair mode silently. Closing would do the same, but not while a forked
/// process still holds a copy of the descriptor until its exec.
pub(super) fn disconnect(socket: BorrowedFd<'_>) -> Result<(), RepairError> {
    // SAFETY: for AF_UNSPEC, which is zero, the kernel reads only the family, and the whole address
    // is zeroed.
    let null_filter =
        unsafe { SockAddr::new(SockAddrStorage::zeroed(), size_of::<libc::sockaddr>() as libc::socklen_t) };
    SockRef::from(&socket).connect(&null_filter).map_err(RepairError::system("disconnecting"))
}

/// Selects the queue to read, write and number.
pub(super) fn select(socket: BorrowedFd<'_>, queue: Queue) -> Result<(), RepairError> {
    set(socket, libc::TCP_REPAIR_QUEUE, &(queue as libc::c_int), "TCP_REPAIR_QUEUE")
}

/// Returns the sequence number behind the last byte of the selected queue.
pub(super) fn sequence(socket: BorrowedFd<'_>) -> Result<u32, RepairError> {
    get(socket, libc::TCP_QUEUE_SEQ, "TCP_QUEUE_SEQ")
}

/// Sets the first sequence number of the selected, empty queue. Only before the socket is
/// connected.
pub(super) fn set_sequence(socket: BorrowedFd<'_>, sequence: u32) -> Result<(), RepairError> {
    set(socket, libc::TCP_QUEUE_SEQ, &sequence, "setting TCP_QUEUE_SEQ")
}

/// State and agreed options from TCP_INFO.
pub(super) struct TcpInfo {
    state: u8,
    options: u8,
    scales: (u8, u8),
}

impl TcpInfo {
    pub(super) fn of(socket: BorrowedFd<'_>) -> Result<TcpInfo, RepairError> {
        // First bytes of `struct tcp_info`; the kernel returns as many bytes as requested.
        let [state, _, _, _, _, options, scales, _]: [u8; 8] = get(socket, libc::TCP_INFO, "TCP_INFO")?;
        // Two bit fields, whose order depends on the machine's endianness.
        let (low, high) = (scales & 0xf, scales >> 4);
        let scales = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
        Ok(TcpInfo { state, options, scales })
    }

    /// Returns an error unless both ends may still send.
    pub(super) fn require_open(&self) -> Result<(), RepairError> {
        // States of net/tcp_states.h.
        match self.state {
            1 => Ok(()),
            4 | 5 | 8 | 9 | 11 => Err(RepairError::HalfClosed),
            10 => Err(RepairError::Listening),
            _ => Err(RepairError::NotConnected),
        }
    }

    /// Returns the agreed options. Only in repair mode, where TCP_MAXSEG is the segment size of the
    /// handshake.
    pub(super) fn terms(&self, socket: BorrowedFd<'_>) -> Result<AgreedOptions, RepairError> {
        // TCPI_OPT_* of linux/tcp.h.
        let [timestamps, sack, scaling] = [1, 2, 4].map(|option| self.options & option != 0);
        let mss: u32 = get(socket, libc::TCP_MAXSEG, "TCP_MAXSEG")?;
        let timestamp: u32 = get(socket, libc::TCP_TIMESTAMP, "TCP_TIMESTAMP")?;
        // Since Linux 6.7, the lowest bit is the clock's unit and not part of the time. So the last
        // sent timestamp may be larger by one, and the next timestamp must not be smaller.
        let timestamp = (timestamp | 1).wrapping_add(1);
        Ok(AgreedOptions {
            mss: u16::try_from(mss).unwrap_or(u16::MAX),
            window_scales: scaling.then_some(self.scales),
            sack,
            timestamp: timestamps.then_some(timestamp),
        })
    }
}

/// Sets the maximum segment size. The socket must not be connected yet: the kernel computes packet
/// sizes only from an MSS that is set before. An MSS set later with the other options only limits
/// packets, which then stay as short as without the option.
pub(super) fn set_mss(socket: BorrowedFd<'_>, mss: u16) -> Result<(), RepairError> {
    /// Bounds of the kernel (TCP_MIN_MSS and MAX_TCP_WINDOW of its net/tcp.h).
    const TAKEN: std::ops::RangeInclusive<u16> = 88..=32_767;
    let mss = libc::c_int::from(mss.clamp(*TAKEN.start(), *TAKEN.end()));
    set(socket, libc::TCP_MAXSEG, &mss, "setting TCP_MAXSEG")
}

/// Sets the agreed options on a connected socket that has sent nothing.
pub(super) fn set_terms(socket: BorrowedFd<'_>, terms: &AgreedOptions) -> Result<(), RepairError> {
    // Without window scaling both scales are set to zero, because the kernel has already chosen a
    // scale for its own window.
    let (send, receive) = terms.window_scales.unwrap_or_default();
    let scales = u32::from(send) | u32::from(receive) << 16;
    let mut options = vec![[OPTION_MSS, u32::from(terms.mss)], [OPTION_WINDOW, scales]];
    options.extend(terms.sack.then_some([OPTION_SACK_PERMITTED, 0]));
    options.extend(terms.timestamp.map(|_| [OPTION_TIMESTAMP, 0]));
    for option in options {
        set(socket, libc::TCP_REPAIR_OPTIONS, &option, "TCP_REPAIR_OPTIONS")?;
    }
    match terms.timestamp {
        // An odd value would make the clock run in microseconds.
        Some(now) => set(socket, libc::TCP_TIMESTAMP, &now.wrapping_add(now & 1), "setting TCP_TIMESTAMP"),
        None => Ok(()),
    }
}

/// Returns the windows of both directions.
pub(super) fn window(socket: BorrowedFd<'_>) -> Result<Window, RepairError> {
    let [send_update, send, send_max, receive, receive_update]: [u32; 5] =
        get(socket, libc::TCP_REPAIR_WINDOW, "TCP_REPAIR_WINDOW")?;
    Ok(Window { send_update, send, send_max, receive, receive_update })
}

/// Sets the windows. Only after the queues are refilled, because the kernel checks the windows
/// against the queues' ends.
pub(super) fn set_window(socket: BorrowedFd<'_>, window: &Window) -> Result<(), RepairError> {
    let Window { send_update, send, send_max, receive, receive_update } = *window;
    let window = [send_update, send, send_max, receive, receive_update];
    set(socket, libc::TCP_REPAIR_WINDOW, &window, "setting TCP_REPAIR_WINDOW")
}

/// Returns the number of bytes in the receive queue.
pub(super) fn unread_len(socket: BorrowedFd<'_>) -> Result<usize, RepairError> {
    queue_len(socket, libc::FIONREAD, "SIOCINQ")
}

/// Returns the number of bytes in the send queue: unacknowledged bytes, sent or not.
///
/// # Errors
/// Fails if the socket is not a TCP socket.
pub fn unacked_len(socket: BorrowedFd<'_>) -> Result<usize, RepairError> {
    queue_len(socket, libc::TIOCOUTQ, "SIOCOUTQ")
}

/// Returns the number of bytes in the send queue that were never sent.
pub(super) fn unsent_len(socket: BorrowedFd<'_>) -> Result<usize, RepairError> {
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
