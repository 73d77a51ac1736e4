//! Connections that this node releases to other nodes. Each connection is released once, even if
//! the request is repeated.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use super::incoming::MEMORY_MS;
use super::{ErrorCode, SocketId, TcpState};

/// Maximum number of release requests for a connection that stays busy at the same position. The
/// client retransmits after a fifth of a second, and then at doubled intervals.
const BUSY_MAX: u32 = 5;
/// Maximum number of connections being released or released recently, some 150 bytes each. An entry
/// is kept for ten seconds, so this also limits the rate of releases.
const RELEASES_MAX: usize = 65_536;

/// Position of a connection: the numbers of the client's next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Sequence number of the segment.
    pub rcv_nxt: u32,
    /// Acknowledgment number of the segment.
    pub snd_nxt: u32,
}

/// Connections that are being released, or were released recently.
#[derive(Debug, Default)]
pub struct Releases {
    by_connection: BTreeMap<(IpAddr, SocketId), Released>,
}

/// A connection that is being released, or was released.
#[derive(Debug)]
struct Released {
    place: ResumePoint,
    /// Answer to the request; `None` while the connection is being released.
    answer: Option<Result<TcpState, ErrorCode>>,
    /// Number of requests that found the connection busy.
    busy: u32,
    since_ms: u64,
}

/// Action for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum ReleaseAction {
    /// Send this answer to the node.
    Answer(Result<TcpState, ErrorCode>),
    /// Release the connection, and return the result to [`Releases::end`].
    Grant,
    /// Send nothing, since the release is in progress.
    Wait,
}

impl Releases {
    /// Applies a node's request to release a connection, which should be idle at this position.
    pub fn begin(
        &mut self,
        node: IpAddr,
        socket: SocketId,
        place: ResumePoint,
        now_ms: u64,
    ) -> ReleaseAction {
        let key = (node, socket);
        let known = self.by_connection.get(&key).filter(|released| released.place == place);
        let busy = known.map_or(0, |released| released.busy);
        match known {
            Some(Released { answer: None, .. }) => return ReleaseAction::Wait,
            // A connection that was busy at an earlier request may be idle by now.
            Some(Released { answer: Some(answer), .. }) if *answer != Err(ErrorCode::Busy) => {
                return ReleaseAction::Answer(*answer);
            }
            _ if self.by_connection.len() >= RELEASES_MAX && !self.by_connection.contains_key(&key) => {
                return ReleaseAction::Answer(Err(ErrorCode::NoCapacity));
            }
            _ => {}
        }
        self.by_connection.insert(key, Released { place, answer: None, busy, since_ms: now_ms });
        ReleaseAction::Grant
    }

    /// Records the outcome of a release, and returns the answer to send. If the outcome is `None`,
    /// the request counts as not received, and the node repeats it. For a connection that stays
    /// busy, the final answer is a refusal.
    pub fn end(
        &mut self,
        node: IpAddr,
        socket: SocketId,
        place: ResumePoint,
        answer: Option<Result<TcpState, ErrorCode>>,
    ) -> Option<Result<TcpState, ErrorCode>> {
        let key = (node, socket);
        let released = self.by_connection.get_mut(&key).filter(|released| released.place == place)?;
        let Some(answer) = answer else {
            self.by_connection.remove(&key);
            return None;
        };
        released.busy += u32::from(answer == Err(ErrorCode::Busy));
        let answer = if released.busy > BUSY_MAX { Err(ErrorCode::NotRestored) } else { answer };
        released.answer = Some(answer);
        Some(answer)
    }

    /// Removes connections whose release ended or began more than ten seconds ago.
    pub fn forget_old(&mut self, now_ms: u64) {
        self.by_connection.retain(|_, released| now_ms.saturating_sub(released.since_ms) < MEMORY_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 2));
    const PLACE: ResumePoint = ResumePoint { rcv_nxt: 5, snd_nxt: 9 };
    const RESTS: Result<TcpState, ErrorCode> = Ok(TcpState {
        snd_una: 9,
        snd_nxt: 9,
        rcv_nxt: 5,
        mss: 1_448,
        scales: None,
        sack: false,
        timestamp: None,
        window: crate::node::lccp::TcpWindow {
            snd_wl1: 0,
            snd_wnd: 0,
            max_window: 0,
            rcv_wnd: 0,
            rcv_wup: 0,
        },
        send_len: 0,
        receive_len: 0,
    });

    fn socket() -> SocketId {
        SocketId::new("203.0.113.7:40000".parse().unwrap(), "192.0.2.100:80".parse().unwrap()).unwrap()
    }

    #[test]
    fn a_connection_is_let_go_once() {
        let mut releases = Releases::default();
        assert_eq!(releases.begin(NODE, socket(), PLACE, 0), ReleaseAction::Grant);
        assert_eq!(releases.begin(NODE, socket(), PLACE, 20), ReleaseAction::Wait);
        assert_eq!(releases.end(NODE, socket(), PLACE, Some(RESTS)), Some(RESTS));
        assert_eq!(releases.begin(NODE, socket(), PLACE, 60), ReleaseAction::Answer(RESTS));
        // Another connection between the same endpoints has another position, and is released
        // separately.
        let elsewhere = ResumePoint { rcv_nxt: 6, ..PLACE };
        assert_eq!(releases.begin(NODE, socket(), elsewhere, 60), ReleaseAction::Grant);
        assert_eq!(releases.end(NODE, socket(), PLACE, Some(RESTS)), None, "of the one before");
        releases.forget_old(60 + MEMORY_MS);
        assert!(releases.by_connection.is_empty());
    }

    #[test]
    fn busy_release_is_retried_a_bounded_number_of_times() {
        let (mut releases, busy) = (Releases::default(), Some(Err(ErrorCode::Busy)));
        for _ in 0..BUSY_MAX {
            assert_eq!(releases.begin(NODE, socket(), PLACE, 0), ReleaseAction::Grant);
            assert_eq!(releases.end(NODE, socket(), PLACE, busy), busy);
        }
        assert_eq!(releases.begin(NODE, socket(), PLACE, 0), ReleaseAction::Grant);
        assert_eq!(releases.end(NODE, socket(), PLACE, busy), Some(Err(ErrorCode::NotRestored)));
        // Without an outcome, the request counts as not received.
        let place = ResumePoint { rcv_nxt: 7, ..PLACE };
        assert_eq!(releases.begin(NODE, socket(), place, 0), ReleaseAction::Grant);
        assert_eq!(releases.end(NODE, socket(), place, None), None);
        assert_eq!(releases.begin(NODE, socket(), place, 0), ReleaseAction::Grant);
    }
}
