//! Connections that other nodes hand off to this node: received pieces, and outcomes of recent
//! handoffs.
//!
//! A node repeats a handoff until it gets an answer. Each connection is restored only once, so the
//! outcome is stored for longer than the handoff is repeated.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::net::{IpAddr, SocketAddr};

use super::{Assembly, ErrorCode, MessageBody, Piece, ReceivedConnection, SocketId, TcpState};

/// Maximum length of a connection's receive queue, in bytes. It is twice the maximum length of a
/// request at a director.
const UNREAD_MAX: u32 = 128 * 1_024;
/// Maximum number of connections being received or restored.
const HANDOFFS_MAX: usize = 4_096;
/// Lifetime of an outcome, in milliseconds. It is longer than a handoff is repeated.
pub(super) const MEMORY_MS: u64 = 10_000;
/// Maximum number of stored outcomes, some 150 bytes each. Beyond this number, the oldest outcomes
/// are evicted.
const MEMORIES_MAX: usize = 65_536;

/// Handoffs to this node that are in progress, and outcomes of recent ones.
#[derive(Debug, Default)]
pub struct IncomingHandoffs {
    services: BTreeSet<SocketAddr>,
    open: BTreeMap<HandoffId, IncomingHandoff>,
    done: SettledHandoffs,
}

/// Action for a received piece.
#[derive(Debug, PartialEq, Eq)]
pub enum HandoffAction {
    /// Send this answer to the node.
    Answer(MessageBody),
    /// All pieces have arrived. Restore the socket, and return the result to
    /// [`IncomingHandoffs::end`].
    Restore(ReceivedConnection),
    /// Send nothing, since the connection is being restored.
    Wait,
}

/// The sending node and the connection of a handoff.
type HandoffId = (IpAddr, SocketId);

/// A connection being handed off to this node.
#[derive(Debug)]
struct IncomingHandoff {
    state: TcpState,
    coming: Option<Assembly>,
    is_restoring: bool,
    since_ms: u64,
}

/// Outcomes of recent handoffs.
#[derive(Debug, Default)]
struct SettledHandoffs {
    by_connection: BTreeMap<HandoffId, SettledHandoff>,
    /// Handoffs by the time of their outcome, oldest first. Of several entries for one connection,
    /// the last is valid.
    order: VecDeque<(u64, HandoffId)>,
}

/// Outcome of a handoff.
#[derive(Debug)]
struct SettledHandoff {
    state: TcpState,
    outcome: Result<(), ErrorCode>,
    since_ms: u64,
}

impl IncomingHandoffs {
    /// Sets the services whose connections this host accepts.
    pub fn serve(&mut self, services: BTreeSet<SocketAddr>) {
        self.services = services;
    }

    /// True if this host accepts connections of the service.
    pub fn serves(&self, service: SocketAddr) -> bool {
        self.services.contains(&service)
    }

    /// Removes expired handoffs and outcomes.
    pub fn forget_old(&mut self, now_ms: u64) {
        let is_new = |since_ms: u64| now_ms.saturating_sub(since_ms) < MEMORY_MS;
        self.open.retain(|_, taking| is_new(taking.since_ms));
        self.done.forget(is_new);
    }

    /// Applies a received piece of a connection.
    pub fn receive_piece(
        &mut self,
        node: IpAddr,
        socket: SocketId,
        piece: Piece,
        now_ms: u64,
    ) -> HandoffAction {
        let state = *piece.state();
        let error = |code| HandoffAction::Answer(MessageBody::Error { socket: Some(socket), code });
        let ack = |missing| HandoffAction::Answer(MessageBody::HandoffAck { socket, missing });
        let key = (node, socket);
        // A connection that was restored on this host stays here, even if the services have changed
        // since.
        if let Some(outcome) = self.done.find(&key, &state) {
            return outcome.map_or_else(error, |()| ack(state.queued_len()));
        }
        let is_known = self.open.get(&key).is_some_and(|taking| taking.state == state);
        if !is_known {
            if !self.serves(socket.server()) {
                return error(ErrorCode::NoServer);
            }
            // Bytes in the send queue belong to a response that this server's program did not
            // write. Without a request in the receive queue, the program has nothing to serve.
            if state.send_len > 0 || state.receive_len == 0 || state.receive_len > UNREAD_MAX {
                return error(ErrorCode::NotRestored);
            }
            if self.open.len() >= HANDOFFS_MAX && !self.open.contains_key(&key) {
                return error(ErrorCode::NoCapacity);
            }
            self.open
                .insert(key, IncomingHandoff { state, coming: None, is_restoring: false, since_ms: now_ms });
        }
        let Some(taking) = self.open.get_mut(&key).filter(|taking| !taking.is_restoring) else {
            return HandoffAction::Wait;
        };
        let assembly = match &mut taking.coming {
            Some(assembly) => {
                assembly.add(piece);
                assembly
            }
            none => none.insert(Assembly::new(piece)),
        };
        let Some(handed) = assembly.handed() else { return ack(assembly.missing()) };
        (taking.coming, taking.is_restoring) = (None, true);
        HandoffAction::Restore(handed)
    }

    /// Records the outcome of a restore. `None` means that the outcome is unknown, so the socket
    /// may exist. Then no answer is sent, and the sender repeats the handoff, which is not refused.
    pub fn end(
        &mut self,
        node: IpAddr,
        socket: SocketId,
        outcome: Option<Result<(), ErrorCode>>,
        now_ms: u64,
    ) {
        let key = (node, socket);
        match outcome {
            Some(outcome) => {
                let Some(taking) = self.open.remove(&key) else { return };
                self.done.add(key, SettledHandoff { state: taking.state, outcome, since_ms: now_ms });
            }
            None => {
                if let Some(taking) = self.open.get_mut(&key) {
                    taking.is_restoring = false;
                }
            }
        }
    }
}

impl SettledHandoffs {
    fn find(&self, key: &HandoffId, state: &TcpState) -> Option<Result<(), ErrorCode>> {
        self.by_connection.get(key).filter(|memory| memory.state == *state).map(|memory| memory.outcome)
    }

    fn add(&mut self, key: HandoffId, memory: SettledHandoff) {
        self.order.push_back((memory.since_ms, key));
        self.by_connection.insert(key, memory);
        while self.order.len() > MEMORIES_MAX {
            self.forget_first();
        }
    }

    fn forget(&mut self, is_new: impl Fn(u64) -> bool) {
        while self.order.front().is_some_and(|(since_ms, _)| !is_new(*since_ms)) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((since_ms, key)) = self.order.pop_front() else { return };
        if self.by_connection.get(&key).is_some_and(|memory| memory.since_ms == since_ms) {
            self.by_connection.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::lccp::TransferImage;
    use alloc::vec::Vec;
    use std::vec;

    const NODE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 11));

    fn socket() -> SocketId {
        SocketId::new("203.0.113.7:40000".parse().unwrap(), "192.0.2.100:80".parse().unwrap()).unwrap()
    }

    fn handoffs() -> IncomingHandoffs {
        IncomingHandoffs { services: [socket().server()].into(), ..IncomingHandoffs::default() }
    }

    fn pieces(rcv_nxt: u32, receive: &[u8]) -> Vec<Piece> {
        let state = TcpState {
            snd_una: 1,
            snd_nxt: 1,
            rcv_nxt,
            mss: 1_448,
            receive_len: receive.len() as u32,
            ..TcpState::default()
        };
        TransferImage::new(state, b"", receive).unwrap().pieces(0).collect()
    }

    fn ack(missing: u32) -> HandoffAction {
        HandoffAction::Answer(MessageBody::HandoffAck { socket: socket(), missing })
    }

    fn error(code: ErrorCode) -> HandoffAction {
        HandoffAction::Answer(MessageBody::Error { socket: Some(socket()), code })
    }

    /// Returns the ID of the connection from another client port.
    fn from(port: u16) -> SocketId {
        SocketId::new(SocketAddr::new([203, 0, 113, 8].into(), port), socket().server()).unwrap()
    }

    fn ack_to(port: u16, missing: u32) -> HandoffAction {
        HandoffAction::Answer(MessageBody::HandoffAck { socket: from(port), missing })
    }

    #[test]
    fn repeated_handoff_restores_connection_once() {
        let (mut handoffs, now) = (handoffs(), 1_000);
        let bytes = vec![7; 2_500];
        let pieces = pieces(9_000, &bytes);
        assert_eq!(handoffs.receive_piece(NODE, socket(), pieces[1].clone(), now), ack(0));
        assert_eq!(handoffs.receive_piece(NODE, socket(), pieces[0].clone(), now), ack(2_048));
        assert_eq!(handoffs.receive_piece(NODE, socket(), pieces[0].clone(), now), ack(2_048));
        let HandoffAction::Restore(handed) = handoffs.receive_piece(NODE, socket(), pieces[2].clone(), now)
        else {
            panic!("all is here")
        };
        assert_eq!((handed.receive, handed.state.rcv_nxt), (bytes, 9_000));
        assert_eq!(handoffs.receive_piece(NODE, socket(), pieces[2].clone(), now), HandoffAction::Wait);
        handoffs.end(NODE, socket(), Some(Ok(())), now);
        assert_eq!(handoffs.receive_piece(NODE, socket(), pieces[0].clone(), now), ack(2_500));
    }

    #[test]
    fn failed_restore_is_never_retried() {
        let (mut handoffs, now) = (handoffs(), 1_000);
        let first = pieces(5, b"GET").remove(0);
        assert!(matches!(
            handoffs.receive_piece(NODE, socket(), first.clone(), now),
            HandoffAction::Restore(_)
        ));
        handoffs.end(NODE, socket(), Some(Err(ErrorCode::NotRestored)), now);
        assert_eq!(handoffs.receive_piece(NODE, socket(), first, now), error(ErrorCode::NotRestored));
        // The next connection between the same endpoints is accepted.
        assert!(matches!(
            handoffs.receive_piece(NODE, socket(), pieces(6, b"GET").remove(0), now),
            HandoffAction::Restore(_)
        ));
    }

    #[test]
    fn settled_handoffs_are_bounded() {
        let (mut handoffs, now) = (handoffs(), 1_000);
        let elsewhere = SocketId::new(socket().client(), "192.0.2.101:80".parse().unwrap()).unwrap();
        let other = MessageBody::Error { socket: Some(elsewhere), code: ErrorCode::NoServer };
        assert_eq!(
            handoffs.receive_piece(NODE, elsewhere, pieces(5, b"GET").remove(0), now),
            HandoffAction::Answer(other)
        );
        for len in [0, UNREAD_MAX as usize + 1] {
            let piece = pieces(5, &vec![0; len]).remove(0);
            assert_eq!(handoffs.receive_piece(NODE, socket(), piece, now), error(ErrorCode::NotRestored));
        }
        assert!(handoffs.open.is_empty());
        for port in 1..=HANDOFFS_MAX as u16 {
            let answer = handoffs.receive_piece(NODE, from(port), pieces(5, &[0; 2_000]).remove(0), now);
            assert_eq!(answer, ack_to(port, 1_024));
        }
        assert_eq!(
            handoffs.receive_piece(NODE, socket(), pieces(5, b"GET").remove(0), now),
            error(ErrorCode::NoCapacity)
        );
        // Even if there is no room for new connections, a repeated piece of a known connection is
        // accepted.
        assert_eq!(
            handoffs.receive_piece(NODE, from(1), pieces(5, &[0; 2_000]).remove(0), now),
            ack_to(1, 1_024)
        );
        // A finished handoff makes room for another one.
        handoffs.end(NODE, from(1), Some(Ok(())), now);
        assert!(matches!(
            handoffs.receive_piece(NODE, socket(), pieces(5, b"GET").remove(0), now),
            HandoffAction::Restore(_)
        ));
        assert_eq!(
            handoffs.receive_piece(NODE, from(1), pieces(5, &[0; 2_000]).remove(0), now),
            ack_to(1, 2_000)
        );
        let code = ErrorCode::NoCapacity;
        let full = HandoffAction::Answer(MessageBody::Error { socket: Some(from(5_000)), code });
        assert_eq!(handoffs.receive_piece(NODE, from(5_000), pieces(5, b"GET").remove(0), now), full);
    }

    /// Finished handoffs don't count towards the limit of handoffs in progress.
    #[test]
    fn as_many_are_taken_as_come() {
        let (mut handoffs, now) = (handoffs(), 1_000);
        let piece = pieces(5, b"GET").remove(0);
        for port in 1..=u16::MAX {
            let taken = handoffs.receive_piece(NODE, from(port), piece.clone(), now);
            assert!(matches!(taken, HandoffAction::Restore(_)), "{port}: {taken:?}");
            handoffs.end(NODE, from(port), Some(Ok(())), now);
        }
        assert_eq!(handoffs.done.order.len(), usize::from(u16::MAX));
        let elsewhere = IpAddr::from([192, 0, 2, 12]);
        for port in 1..=2 {
            handoffs.receive_piece(elsewhere, from(port), piece.clone(), now);
            handoffs.end(elsewhere, from(port), Some(Ok(())), now);
        }
        // The oldest outcome was evicted. The other outcomes are kept until they expire.
        assert_eq!(handoffs.done.by_connection.len(), MEMORIES_MAX);
        assert_eq!(handoffs.done.find(&(NODE, from(1)), piece.state()), None);
        assert_eq!(handoffs.done.find(&(NODE, from(2)), piece.state()), Some(Ok(())));
        handoffs.forget_old(now + MEMORY_MS);
        assert!(handoffs.done.by_connection.is_empty() && handoffs.done.order.is_empty());
    }

    #[test]
    fn taken_connection_stays_after_service_removal() {
        let (mut handoffs, now) = (handoffs(), 1_000);
        let piece = pieces(5, b"GET").remove(0);
        assert!(matches!(
            handoffs.receive_piece(NODE, socket(), piece.clone(), now),
            HandoffAction::Restore(_)
        ));
        handoffs.end(NODE, socket(), Some(Ok(())), now);
        let other = pieces(7, b"GET").remove(0);
        assert!(matches!(
            handoffs.receive_piece(NODE, from(1), other.clone(), now),
            HandoffAction::Restore(_)
        ));
        handoffs.serve(BTreeSet::new());
        assert_eq!(handoffs.receive_piece(NODE, socket(), piece, now), ack(3));
        assert_eq!(handoffs.receive_piece(NODE, from(1), other.clone(), now), HandoffAction::Wait);
        handoffs.end(NODE, from(1), None, now);
        assert!(
            matches!(handoffs.receive_piece(NODE, from(1), other, now), HandoffAction::Restore(_)),
            "it may be here"
        );
        assert_eq!(
            handoffs.receive_piece(NODE, socket(), pieces(6, b"GET").remove(0), now),
            error(ErrorCode::NoServer)
        );
    }
}
