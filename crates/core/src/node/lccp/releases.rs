//! Connections that other nodes have this one let go: each is let go once, however often it is
//! asked for.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use super::incoming::MEMORY_MS;
use super::{ErrorCode, SocketId, TcpState};

/// How often a connection may be at work at the same place. The client's segment comes again after
/// a fifth of a second, and each time after twice as long.
const BUSY_MAX: u32 = 5;
/// Connections that are being let go, or were a moment ago, some 150 bytes each. They are
/// remembered for ten seconds, so this bounds how many move in that time.
const RELEASES_MAX: usize = 65_536;

/// Where a client's next segment begins, and what it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// Its sequence number.
    pub rcv_nxt: u32,
    /// Its acknowledgment.
    pub snd_nxt: u32,
}

/// Connections that were let go a moment ago, or are about to be.
#[derive(Debug, Default)]
pub struct Releases {
    by_connection: BTreeMap<(IpAddr, SocketId), Released>,
}

/// One of them.
#[derive(Debug)]
struct Released {
    place: ResumePoint,
    /// The answer; none while it is being let go.
    answer: Option<Result<TcpState, ErrorCode>>,
    /// How often it was asked for in vain.
    busy: u32,
    since_ms: u64,
}

/// The action for a question.
#[derive(Debug, PartialEq, Eq)]
pub enum ReleaseAction {
    /// Say this.
    Answer(Result<TcpState, ErrorCode>),
    /// Let it go, and say by [`Releases::end`] what came of that.
    LetGo,
    /// Nothing: that is being done.
    Wait,
}

impl Releases {
    /// A node wants a connection that is to rest at this place.
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
            // A connection that was at work may rest by now.
            Some(Released { answer: Some(answer), .. }) if *answer != Err(ErrorCode::Busy) => {
                return ReleaseAction::Answer(*answer);
            }
            _ if self.by_connection.len() >= RELEASES_MAX && !self.by_connection.contains_key(&key) => {
                return ReleaseAction::Answer(Err(ErrorCode::NoCapacity));
            }
            _ => {}
        }
        self.by_connection.insert(key, Released { place, answer: None, busy, since_ms: now_ms });
        ReleaseAction::LetGo
    }

    /// Notes its outcome, and gives the answer that is due; `None` is asked again. A connection
    /// that never comes to rest is not waited for.
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

    /// Forgets what nobody asks for again.
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
        assert_eq!(releases.begin(NODE, socket(), PLACE, 0), ReleaseAction::LetGo);
        assert_eq!(releases.begin(NODE, socket(), PLACE, 20), ReleaseAction::Wait);
        assert_eq!(releases.end(NODE, socket(), PLACE, Some(RESTS)), Some(RESTS));
        assert_eq!(releases.begin(NODE, socket(), PLACE, 60), ReleaseAction::Answer(RESTS));
        // The next one between the same ends is another.
        let elsewhere = ResumePoint { rcv_nxt: 6, ..PLACE };
        assert_eq!(releases.begin(NODE, socket(), elsewhere, 60), ReleaseAction::LetGo);
        assert_eq!(releases.end(NODE, socket(), PLACE, Some(RESTS)), None, "of the one before");
        releases.forget_old(60 + MEMORY_MS);
        assert!(releases.by_connection.is_empty());
    }

    #[test]
    fn busy_release_is_retried_a_bounded_number_of_times() {
        let (mut releases, busy) = (Releases::default(), Some(Err(ErrorCode::Busy)));
        for _ in 0..BUSY_MAX {
            assert_eq!(releases.begin(NODE, socket(), PLACE, 0), ReleaseAction::LetGo);
            assert_eq!(releases.end(NODE, socket(), PLACE, busy), busy);
        }
        assert_eq!(releases.begin(NODE, socket(), PLACE, 0), ReleaseAction::LetGo);
        assert_eq!(releases.end(NODE, socket(), PLACE, busy), Some(Err(ErrorCode::NotRestored)));
        // Where it can't be told, it is as if nobody had asked.
        let place = ResumePoint { rcv_nxt: 7, ..PLACE };
        assert_eq!(releases.begin(NODE, socket(), place, 0), ReleaseAction::LetGo);
        assert_eq!(releases.end(NODE, socket(), place, None), None);
        assert_eq!(releases.begin(NODE, socket(), place, 0), ReleaseAction::LetGo);
    }
}
