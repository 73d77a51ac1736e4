//! Handoff Information of the LCCP paper: the state of a socket, from which another host can
//! restore the socket.
//!
//! The fields are those of Linux's `TCP_REPAIR`, in a form independent of Linux.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum length of each queue of a socket, in bytes. It is twice the default maximum of Linux.
pub const QUEUE_MAX: u32 = 8 << 20;
/// Length of an encoded state, in bytes.
pub(super) const STATE_LEN: usize = size_of::<StateBytes>();

/// Maximum window scale (RFC 7323, section 2.3).
const SCALE_MAX: u8 = 14;

/// Bits of [`StateBytes::options`] for the TCP options that client and server have negotiated.
const OPTION_SCALES: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_TIMESTAMPS: u8 = 4;

/// State of an open TCP connection. Names are those of RFC 9293, section 3.3.1, or of Linux. *Send*
/// is the direction from the host to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpState {
    /// First sequence number that was sent and is not acknowledged. The send queue starts here.
    pub snd_una: u32,
    /// First sequence number that was not sent.
    pub snd_nxt: u32,
    /// First sequence number that was not received. The receive queue ends here.
    pub rcv_nxt: u32,
    /// Maximum segment size for sending, in bytes.
    pub mss: u16,
    /// Window scales (RFC 7323); `None` unless both sides support window scaling.
    pub scales: Option<Scales>,
    /// True if both sides support selective acknowledgments.
    pub sack: bool,
    /// Current timestamp of the host (RFC 7323); `None` unless both sides support timestamps.
    pub timestamp: Option<u32>,
    pub window: TcpWindow,
    /// Length of the send queue in bytes. The queue contains data that the client has not
    /// acknowledged, sent or not.
    pub send_len: u32,
    /// Length of the receive queue in bytes. The queue contains received data that the process has
    /// not read.
    pub receive_len: u32,
}

/// Window scales in bits (RFC 7323, section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Scales {
    /// Scale announced by the client; at most 14.
    pub snd: u8,
    /// Scale announced by the host; at most 14.
    pub rcv: u8,
}

/// Send and receive windows, as in Linux's `struct tcp_repair_window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpWindow {
    /// Sequence number of the segment that last updated the send window.
    pub snd_wl1: u32,
    /// Send window, in bytes.
    pub snd_wnd: u32,
    /// Maximum send window so far, in bytes.
    pub max_window: u32,
    /// Receive window, in bytes.
    pub rcv_wnd: u32,
    /// `rcv_nxt` at the last window update.
    pub rcv_wup: u32,
}

/// A [`TcpState`] in wire format.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StateBytes {
    snd_una: U32,
    snd_nxt: U32,
    rcv_nxt: U32,
    timestamp: U32,
    snd_wl1: U32,
    snd_wnd: U32,
    max_window: U32,
    rcv_wnd: U32,
    rcv_wup: U32,
    send_len: U32,
    receive_len: U32,
    mss: U16,
    options: u8,
    snd_scale: u8,
    rcv_scale: u8,
    reserved: u8,
}

impl TcpState {
    /// True if the state is possible. Data that was sent and not acknowledged must be queued, and
    /// scales and queues must be within their limits.
    pub fn is_sound(&self) -> bool {
        let scales = self.scales.is_none_or(|scales| scales.snd.max(scales.rcv) <= SCALE_MAX);
        let queues = self.send_len.max(self.receive_len) <= QUEUE_MAX;
        scales && queues && self.mss > 0 && self.snd_nxt.wrapping_sub(self.snd_una) <= self.send_len
    }

    /// Number of bytes in both queues.
    pub fn queued_len(&self) -> u32 {
        self.send_len.saturating_add(self.receive_len)
    }

    pub(super) fn bytes(&self) -> [u8; STATE_LEN] {
        let option = |is: bool, bit: u8| if is { bit } else { 0 };
        let scales = self.scales.unwrap_or_default();
        let bytes = StateBytes {
            snd_una: self.snd_una.into(),
            snd_nxt: self.snd_nxt.into(),
            rcv_nxt: self.rcv_nxt.into(),
            timestamp: self.timestamp.unwrap_or_default().into(),
            snd_wl1: self.window.snd_wl1.into(),
            snd_wnd: self.window.snd_wnd.into(),
            max_window: self.window.max_window.into(),
            rcv_wnd: self.window.rcv_wnd.into(),
            rcv_wup: self.window.rcv_wup.into(),
            send_len: self.send_len.into(),
            receive_len: self.receive_len.into(),
            mss: self.mss.into(),
            options: option(self.scales.is_some(), OPTION_SCALES)
                | option(self.sack, OPTION_SACK)
                | option(self.timestamp.is_some(), OPTION_TIMESTAMPS),
            snd_scale: scales.snd,
            rcv_scale: scales.rcv,
            reserved: 0,
        };
        zerocopy::transmute!(bytes)
    }

    /// Decodes a state. The result may be impossible (see [`TcpState::is_sound`]). [`super::wire`]
    /// refuses bytes that differ from the encoding of the decoded state.
    pub(super) fn of_bytes(bytes: [u8; STATE_LEN]) -> TcpState {
        let bytes: StateBytes = zerocopy::transmute!(bytes);
        let option = |bit: u8| bytes.options & bit != 0;
        TcpState {
            snd_una: bytes.snd_una.get(),
            snd_nxt: bytes.snd_nxt.get(),
            rcv_nxt: bytes.rcv_nxt.get(),
            mss: bytes.mss.get(),
            scales: option(OPTION_SCALES).then_some(Scales { snd: bytes.snd_scale, rcv: bytes.rcv_scale }),
            sack: option(OPTION_SACK),
            timestamp: option(OPTION_TIMESTAMPS).then_some(bytes.timestamp.get()),
            window: TcpWindow {
                snd_wl1: bytes.snd_wl1.get(),
                snd_wnd: bytes.snd_wnd.get(),
                max_window: bytes.max_window.get(),
                rcv_wnd: bytes.rcv_wnd.get(),
                rcv_wup: bytes.rcv_wup.get(),
            },
            send_len: bytes.send_len.get(),
            receive_len: bytes.receive_len.get(),
        }
    }
}
