//! Snapshot of a connection's socket, and the check that the connection is idle.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::connections::CONNECTION_LEN;
use super::{ConnectionState, Idle};
use crate::repair::Window;

const ESTABLISHED: u32 = 1;
/// States of a connection without its own socket: no socket, or a listener for the service
/// (`BPF_TCP_LISTEN`).
const NO_SOCKET: [u32; 2] = [0, 10];

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(super) struct SocketSnapshot {
    connection: [u8; CONNECTION_LEN],
    state: u32,
    receive_next: u32,
    copied: u32,
    send_next: u32,
    write_next: u32,
    send_update: u32,
    send_window: u32,
    send_window_max: u32,
    receive_window: u32,
    receive_update: u32,
    request_end: u32,
    answer_begin: u32,
    answered_begin: u32,
    answered_end: u32,
    mss: u16,
    send_scale: u8,
    receive_scale: u8,
    scaled: u8,
    sack: u8,
    timestamps: u8,
    plain: u8,
}

impl SocketSnapshot {
    /// Returns an empty snapshot for the program to fill in.
    pub(super) fn at(connection: [u8; CONNECTION_LEN]) -> Self {
        SocketSnapshot { connection, ..SocketSnapshot::new_zeroed() }
    }

    pub(super) fn judge(&self) -> ConnectionState {
        if self.state != ESTABLISHED {
            return ConnectionState::Gone;
        }
        if self.plain == 0 {
            return ConnectionState::Unclear;
        }
        if !self.rests() {
            return ConnectionState::Busy;
        }
        ConnectionState::Idle(Idle {
            receive_next: self.receive_next,
            send_next: self.send_next,
            mss: self.mss,
            window_scales: (self.scaled != 0).then_some((self.send_scale, self.receive_scale)),
            sack: self.sack != 0,
            timestamps: self.timestamps != 0,
            window: Window {
                send_update: self.send_update,
                send: self.send_window,
                send_max: self.send_window_max,
                receive: self.receive_window,
                receive_update: self.receive_update,
            },
        })
    }

    /// True if nothing was sent to the client after `send_next`, neither a response nor a FIN.
    /// `None` as long as the stack has a socket for the connection.
    pub(super) fn ended_in_silence(&self, send_next: u32) -> Option<bool> {
        NO_SOCKET.contains(&self.state).then_some(self.plain != 0 && self.answered_end == send_next)
    }

    /// True if the process has read the last request, and no bytes came later. The response to this
    /// request must be complete and sent, with no bytes written later.
    fn rests(&self) -> bool {
        let is_read = self.receive_next == self.request_end && self.copied == self.request_end;
        let is_known = self.answered_begin == self.answer_begin && self.answered_end != self.answered_begin;
        is_read && is_known && self.send_next == self.answered_end && self.write_next == self.answered_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resting() -> SocketSnapshot {
        SocketSnapshot {
            state: ESTABLISHED,
            receive_next: 100,
            copied: 100,
            request_end: 100,
            answer_begin: 1_000,
            answered_begin: 1_000,
            answered_end: 1_200,
            send_next: 1_200,
            write_next: 1_200,
            plain: 1,
            ..SocketSnapshot::new_zeroed()
        }
    }

    #[test]
    fn resting_snapshot_has_negotiated_options() {
        let looked =
            SocketSnapshot { mss: 1400, send_scale: 9, receive_scale: 7, scaled: 1, sack: 1, ..resting() };
        let ConnectionState::Idle(idle) = looked.judge() else { panic!("it rests") };
        assert_eq!((idle.receive_next, idle.send_next, idle.mss), (100, 1_200, 1400));
        assert_eq!((idle.window_scales, idle.sack, idle.timestamps), (Some((9, 7)), true, false));
        let ConnectionState::Idle(idle) = (SocketSnapshot { scaled: 0, ..looked }).judge() else {
            panic!("it rests")
        };
        assert_eq!(idle.window_scales, None);
    }

    #[test]
    fn a_last_word_is_not_silence() {
        let gone = SocketSnapshot { state: 0, ..resting() };
        assert_eq!(gone.ended_in_silence(1_200), Some(true));
        assert_eq!(gone.ended_in_silence(1_199), Some(false));
        assert_eq!(
            SocketSnapshot { plain: 0, ..gone }.ended_in_silence(1_200),
            Some(false),
            "it has sent its FIN"
        );
        assert_eq!(SocketSnapshot { state: 10, ..gone }.ended_in_silence(1_200), Some(true));
        for state in [1, 4, 8, 11] {
            assert_eq!(SocketSnapshot { state, ..gone }.ended_in_silence(1_200), None);
        }
    }

    #[test]
    fn unfinished_exchange_is_busy() {
        let unfinished = [
            SocketSnapshot { receive_next: 101, ..resting() },
            SocketSnapshot { receive_next: 99, copied: 99, ..resting() },
            SocketSnapshot { copied: 99, ..resting() },
            SocketSnapshot { request_end: 150, ..resting() },
            SocketSnapshot { answer_begin: 1_200, ..resting() },
            SocketSnapshot { answered_end: 1_000, send_next: 1_000, write_next: 1_000, ..resting() },
            SocketSnapshot { send_next: 1_199, ..resting() },
            SocketSnapshot { write_next: 1_201, ..resting() },
            SocketSnapshot { send_next: 1_201, write_next: 1_201, ..resting() },
        ];
        for (number, looked) in unfinished.iter().enumerate() {
            assert_eq!(looked.judge(), ConnectionState::Busy, "{number}");
            assert_eq!(SocketSnapshot { plain: 0, ..*looked }.judge(), ConnectionState::Unclear, "{number}");
        }
        for state in [0, 4, 8, 10, 12] {
            assert_eq!(SocketSnapshot { state, ..resting() }.judge(), ConnectionState::Gone);
        }
    }
}
