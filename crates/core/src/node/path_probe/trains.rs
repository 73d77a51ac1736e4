//! How an agent handles path probes: its answers to requests, and the trains that it sends.

use alloc::collections::VecDeque;
use core::net::{IpAddr, SocketAddr};

use super::{NONCE_LEN, Nonce, ProbeMessage, TrainKind, is_in_time};
use crate::node::secret::Key;

/// Length of a time slot, in milliseconds. A challenge is valid in the slot of its computation and
/// in the next slot.
const SLOT_MS: u64 = 2_000;
/// Minimum time between the end of a train and the next train, in milliseconds. The second train of
/// a probe may follow at once.
const PAUSE_MS: u64 = 250;
/// Number of sent trains that are remembered, so that no train is sent twice. While a challenge is
/// valid, fewer trains can be sent.
const REMEMBERED: usize = 64;

/// A train to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// Number of the agent for the probe.
    pub challenge: Nonce,
    pub step: TrainKind,
    /// Time between two packets, in nanoseconds.
    pub gap_ns: u32,
}

/// Reason why a message is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeRefusal {
    /// The sender is not allowed to probe, or the message is malformed or invalid.
    Silent,
    /// A train is being sent, or was sent a moment ago.
    Busy,
}

/// State of an agent that answers probe requests.
#[derive(Debug)]
pub struct ProbeResponder {
    key: Key,
    /// The agent's own secret key, by which it computes challenges.
    own: Key,
    /// Trains that were sent, the latest first.
    sent: VecDeque<(Nonce, TrainKind)>,
    /// Challenge of the last train, and the time in milliseconds from which the next train is
    /// allowed.
    last: Option<Nonce>,
    free_ms: u64,
}

impl ProbeResponder {
    /// Returns the state of an agent. `key` is the farm's key of probes, and `own` a random key of
    /// the agent.
    pub fn new(key: Key, own: Key) -> ProbeResponder {
        ProbeResponder { key, own, sent: VecDeque::new(), last: None, free_ms: 0 }
    }

    /// Returns the answer to a message, or the train to send. `is_director` decides which addresses
    /// may probe.
    ///
    /// # Errors
    /// The message is not answered.
    pub fn receive(
        &mut self,
        now_ms: u64,
        from: SocketAddr,
        bytes: &[u8],
        is_director: impl Fn(IpAddr) -> bool,
    ) -> Result<ProbeResponse, ProbeRefusal> {
        // The address is checked before the tag, since checking the tag costs more.
        if !is_director(from.ip().to_canonical()) {
            return Err(ProbeRefusal::Silent);
        }
        match ProbeMessage::open(&self.key, bytes).ok_or(ProbeRefusal::Silent)? {
            ProbeMessage::Request(request) => {
                let challenge = self.challenge(request, from, now_ms / SLOT_MS);
                Ok(ProbeResponse::Answer(ProbeMessage::Challenge { request, challenge }))
            }
            ProbeMessage::Go { request, challenge, step, gap_ns } => {
                let slot = now_ms / SLOT_MS;
                let is_own = [slot, slot.wrapping_sub(1)]
                    .iter()
                    .any(|slot| self.challenge(request, from, *slot) == challenge);
                if !is_own || self.sent.contains(&(challenge, step)) || !is_in_time(step, gap_ns) {
                    return Err(ProbeRefusal::Silent);
                }
                if now_ms < self.free_ms && self.last != Some(challenge) {
                    return Err(ProbeRefusal::Busy);
                }
                self.sent.push_front((challenge, step));
                self.sent.truncate(REMEMBERED);
                self.last = Some(challenge);
                let train_ms = u64::from(step.packets()) * u64::from(gap_ns) / 1_000_000;
                self.free_ms = now_ms.saturating_add(train_ms).saturating_add(PAUSE_MS);
                Ok(ProbeResponse::Train(Train { challenge, step, gap_ns }))
            }
            // The answer needs no challenge, since it is shorter than the request and needs no
            // state.
            ProbeMessage::Size { request, len } => {
                Ok(ProbeResponse::Answer(ProbeMessage::Arrived { request, len }))
            }
            ProbeMessage::Challenge { .. } | ProbeMessage::Arrived { .. } => Err(ProbeRefusal::Silent),
        }
    }

    /// Returns the challenge for this request from this address in this slot.
    fn challenge(&self, request: Nonce, from: SocketAddr, slot: u64) -> Nonce {
        let mut bytes = request.to_vec();
        match from.ip() {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
        bytes.extend(from.port().to_be_bytes());
        bytes.extend(slot.to_be_bytes());
        let len = bytes.len();
        let sealed = self.own.seal(b"", bytes);
        let mut challenge = [0; NONCE_LEN];
        challenge.iter_mut().zip(sealed.iter().skip(len)).for_each(|(to, from)| *to = *from);
        challenge
    }
}

/// Response of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResponse {
    /// Send this message back.
    Answer(ProbeMessage),
    /// Send this train of packets.
    Train(Train),
}

#[cfg(test)]
mod tests {
    use super::super::{SIZE_MIN, key};
    use super::*;
    use crate::node::secret::Secret;

    const REQUEST: Nonce = [5; NONCE_LEN];

    fn director() -> SocketAddr {
        ([192, 0, 2, 2], 5_000).into()
    }

    struct Farm {
        key: Key,
        responder: ProbeResponder,
    }

    impl Farm {
        fn new() -> Farm {
            let key = key(&Secret::new([1; 32]));
            Farm { key, responder: ProbeResponder::new(key, Key([9; 32])) }
        }

        fn receive(
            &mut self,
            now_ms: u64,
            from: SocketAddr,
            message: ProbeMessage,
        ) -> Result<ProbeResponse, ProbeRefusal> {
            let bytes = message.seal(&self.key);
            self.responder.receive(now_ms, from, &bytes, |address| address == director().ip())
        }

        fn challenge(&mut self, now_ms: u64, request: Nonce) -> Nonce {
            match self.receive(now_ms, director(), ProbeMessage::Request(request)) {
                Ok(ProbeResponse::Answer(ProbeMessage::Challenge { request: of, challenge }))
                    if of == request =>
                {
                    challenge
                }
                other => panic!("{other:?}"),
            }
        }

        fn go(
            &mut self,
            now_ms: u64,
            from: SocketAddr,
            challenge: Nonce,
            step: TrainKind,
        ) -> Result<ProbeResponse, ProbeRefusal> {
            self.receive(
                now_ms,
                from,
                ProbeMessage::Go { request: REQUEST, challenge, step, gap_ns: 1_000_000 },
            )
        }
    }

    #[test]
    fn sizes_are_answered_in_short() {
        let mut farm = Farm::new();
        for len in [SIZE_MIN, 1_472, u16::MAX] {
            let size = ProbeMessage::Size { request: REQUEST, len };
            let arrived = ProbeMessage::Arrived { request: REQUEST, len };
            assert_eq!(size.seal(&farm.key).len(), usize::from(len));
            assert_eq!(farm.receive(1, director(), size), Ok(ProbeResponse::Answer(arrived)));
            assert_eq!(ProbeMessage::open(&farm.key, &arrived.seal(&farm.key)), Some(arrived));
            assert!(arrived.seal(&farm.key).len() < usize::from(SIZE_MIN));
            assert!(farm.receive(1, ([192, 0, 2, 99], 1).into(), size).is_err(), "a stranger's");
        }
    }

    #[test]
    fn verified_director_gets_each_train_once() {
        let mut farm = Farm::new();
        let challenge = farm.challenge(1_000, REQUEST);
        for step in [TrainKind::AtOnce, TrainKind::Paced] {
            let train = Train { challenge, step, gap_ns: 1_000_000 };
            assert_eq!(farm.go(1_100, director(), challenge, step), Ok(ProbeResponse::Train(train)));
            assert_eq!(farm.go(1_100, director(), challenge, step), Err(ProbeRefusal::Silent), "again");
        }
        let other = farm.challenge(1_200, [6; NONCE_LEN]);
        assert_ne!(other, challenge);
        let go = ProbeMessage::Go {
            request: [6; NONCE_LEN],
            challenge: other,
            step: TrainKind::AtOnce,
            gap_ns: 0,
        };
        assert_eq!(farm.receive(1_200, director(), go), Err(ProbeRefusal::Busy));
        assert!(farm.receive(1_400, director(), go).is_ok());
    }

    #[test]
    fn unverified_or_late_director_gets_no_train() {
        let mut farm = Farm::new();
        let challenge = farm.challenge(1_000, REQUEST);
        let elsewhere = ([192, 0, 2, 2], 5_001).into();
        assert_eq!(farm.go(1_100, elsewhere, challenge, TrainKind::AtOnce), Err(ProbeRefusal::Silent));
        assert_eq!(
            farm.go(4_000, director(), challenge, TrainKind::AtOnce),
            Err(ProbeRefusal::Silent),
            "late"
        );
        assert_eq!(farm.go(1_100, director(), [0; NONCE_LEN], TrainKind::AtOnce), Err(ProbeRefusal::Silent));
        let stranger = ([192, 0, 2, 66], 5_000).into();
        assert_eq!(farm.receive(1_100, stranger, ProbeMessage::Request(REQUEST)), Err(ProbeRefusal::Silent));
        let forged = ProbeMessage::Request(REQUEST).seal(&Key([0; 32]));
        let refused = farm.responder.receive(1_100, director(), &forged, |_| true);
        assert_eq!(refused, Err(ProbeRefusal::Silent));
        // An agent answers no challenge, not even one of its own.
        let own = ProbeMessage::Challenge { request: REQUEST, challenge };
        assert_eq!(farm.receive(1_100, director(), own), Err(ProbeRefusal::Silent));
        let long =
            ProbeMessage::Go { request: REQUEST, challenge, step: TrainKind::Paced, gap_ns: 80_000_000 };
        assert_eq!(farm.receive(1_100, director(), long), Err(ProbeRefusal::Silent), "more than two seconds");
        assert!(
            farm.go(1_100, director(), challenge, TrainKind::AtOnce).is_ok(),
            "and nothing of that is in the way"
        );
    }
}
