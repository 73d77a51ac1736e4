//! Taking open connections: the client's segments once more, into this host's own stack, where the program that accepts
//! what is handed over makes a socket of them. That it is there is what is acknowledged.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evener_core::lccp::wire::Message;
use evener_core::lccp::{Assembly, Body, ErrorCode, Piece, Receptor, SocketId, TcpState};
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_dataplane::repair::{self, Saved};
use evener_dataplane::server::Connections;

use super::diag::{self, Found};
use super::release::Releases;
use super::state::saved;
use super::{Shared, Way};
use crate::handoff::{LOOPBACK, framed};
use crate::network::Network;

/// The most bytes of a client that were read before somebody was found for it: twice what a director reads.
const UNREAD_MAX: u32 = 128 * 1_024;
/// Connections that are coming, or came a moment ago.
const TAKINGS_MAX: usize = 4_096;
/// What was done with a connection is remembered for longer than it is asked again.
const MEMORY: Duration = Duration::from_secs(10);
/// When a connection is looked for, in milliseconds since its segments were put into the stack or since it was looked
/// for before. A server with many connections to take may be late; who gives one waits for longer.
const LOOKS_MS: [u64; 11] = [0, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640];
/// Data and options of a segment that any stack takes, in bytes.
const SEGMENT_MAX: u16 = 1_400;

/// Where connections are taken.
pub(super) struct Taker {
    /// The way into this host's own stack.
    stack: LinkSocket,
    takings: Mutex<Takings>,
    releases: Mutex<Releases>,
    /// What the programs here know, once they run.
    connections: Mutex<Option<Connections>>,
}

#[derive(Default)]
struct Takings {
    services: BTreeSet<SocketAddr>,
    by_connection: BTreeMap<(IpAddr, SocketId), Taking>,
}

/// A connection that a node gives to this one.
struct Taking {
    state: TcpState,
    step: Step,
    since: Instant,
}

enum Step {
    /// Pieces are missing.
    Coming(Assembly),
    /// Its socket is being made.
    Restoring,
    /// It is here, or it can't be.
    Done(Result<(), ErrorCode>),
}

/// What is to be done about a piece.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Answer(Body),
    Restore(Saved),
    /// Nothing: it is being done.
    Wait,
}

impl Taker {
    /// Opens the way into the stack.
    pub(super) fn open(network: &Network) -> io::Result<Taker> {
        diag::check()?;
        let loopback = network.interfaces.iter().find(|(_, interface)| interface.loopback);
        let (ifindex, _) = loopback.ok_or_else(|| io::Error::other("there is no loopback interface"))?;
        Ok(Taker {
            stack: LinkSocket::open(*ifindex, EtherType::None)?,
            takings: Mutex::default(),
            releases: Mutex::default(),
            connections: Mutex::default(),
        })
    }

    /// Takes connections to these from now on.
    pub(super) fn serve(&self, services: BTreeSet<SocketAddr>) {
        self.takings().services = services;
    }

    /// Goes by these from now on.
    pub(super) fn look_at(&self, connections: Connections) {
        *self.connections.lock().unwrap_or_else(PoisonError::into_inner) = Some(connections);
    }

    /// What the programs here know, once they run.
    pub(super) fn connections(&self) -> Option<Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether connections to a service are taken here.
    pub(super) fn serves(&self, service: SocketAddr) -> bool {
        self.takings().services.contains(&service)
    }

    /// Forgets what nobody asks for again.
    pub(super) fn forget_old(&self, now: Instant) {
        let is_new = |since: Instant| now.saturating_duration_since(since) < MEMORY;
        self.takings().by_connection.retain(|_, taking| is_new(taking.since));
        self.releases().retain(|_, release| is_new(release.since));
    }

    /// What was let go a moment ago.
    pub(super) fn releases(&self) -> MutexGuard<'_, Releases> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn takings(&self) -> MutexGuard<'_, Takings> {
        self.takings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the client's segments into this host's stack, as if they came in by the loopback interface.
    fn put_in(&self, saved: &Saved) {
        repair::replay(saved, SEGMENT_MAX).iter().for_each(|packet| self.put(packet));
    }

    /// Puts one packet of the client's there.
    pub(super) fn put(&self, packet: &[u8]) {
        if let Err(error) = self.stack.send(&framed(LOOPBACK, packet)) {
            tracing::debug!(%error, "a segment of a connection was not put in");
        }
    }

    /// Makes the connection's socket. `None`: it is there, and lacks bytes, or this can't be told.
    async fn restore(&self, socket: SocketId, saved: &Saved) -> Option<Result<(), ErrorCode>> {
        let mut is_there = false;
        // No cookie vouches for what is in the middle of its life, or was silent for long.
        if let Some(Err(error)) = self.connections().map(|connections| connections.expect(saved)) {
            tracing::debug!(%error, "a connection is not expected");
        }
        for (look, after_ms) in LOOKS_MS.into_iter().enumerate() {
            if after_ms > 0 {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
            }
            // The stack takes no byte twice, and may have had no room for the last ones.
            if look % 4 == 0 {
                self.put_in(saved);
            }
            match diag::find(socket) {
                Ok(Found::Connection { received }) if received >= saved.unread.len() as u64 => {
                    return Some(Ok(()));
                }
                Ok(Found::Connection { .. }) => is_there = true,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "whether a connection is here can't be told");
                    return None;
                }
            }
        }
        (!is_there).then_some(Err(ErrorCode::NotRestored))
    }
}

impl Takings {
    /// Takes in a piece of a connection.
    fn take(&mut self, node: IpAddr, socket: SocketId, piece: Piece, now: Instant) -> Next {
        let state = *piece.state();
        let error = |code| Next::Answer(Body::Error { socket: Some(socket), code });
        let ack = |missing| Next::Answer(Body::HandoffAck { socket, missing });
        if !self.services.contains(&socket.server()) {
            return error(ErrorCode::NoServer);
        }
        // What was said to the client already would have to be said again by the server's own program.
        if state.send_len > 0 || state.receive_len == 0 || state.receive_len > UNREAD_MAX {
            return error(ErrorCode::NotRestored);
        }
        let key = (node, socket);
        let is_full = self.by_connection.len() >= TAKINGS_MAX;
        let begin = |piece| Taking { state, step: Step::Coming(Assembly::new(piece)), since: now };
        let taking = match self.by_connection.entry(key) {
            Entry::Vacant(_) if is_full => return error(ErrorCode::NoRoom),
            Entry::Vacant(place) => place.insert(begin(piece.clone())),
            Entry::Occupied(place) => place.into_mut(),
        };
        if taking.state != state {
            *taking = begin(piece.clone());
        }
        let assembly = match &mut taking.step {
            Step::Done(Ok(())) => return ack(state.queued_len()),
            Step::Done(Err(code)) => return error(*code),
            Step::Restoring => return Next::Wait,
            Step::Coming(assembly) => assembly,
        };
        assembly.add(piece);
        match assembly.handed() {
            Some(handed) => {
                taking.step = Step::Restoring;
                Next::Restore(saved(socket, handed))
            }
            None => ack(assembly.missing()),
        }
    }

    /// Notes how far it came with a connection; `None` begins anew.
    fn end(&mut self, key: (IpAddr, SocketId), step: Option<Step>) {
        match (self.by_connection.get_mut(&key), step) {
            (Some(taking), Some(step)) => taking.step = step,
            (_, None) => drop(self.by_connection.remove(&key)),
            (None, Some(_)) => {}
        }
    }
}

impl Shared {
    /// Takes a piece of a connection, and answers once there is something to say.
    pub(super) fn take(self: &Arc<Self>, way: Way, heard: Message, socket: SocketId, piece: Piece) {
        let Some(taker) = &self.taker else {
            let body = Body::Error { socket: Some(socket), code: ErrorCode::NotRestored };
            return self.answer(way, &heard, Receptor::Distributor, body);
        };
        let len = piece.state().queued_len();
        let next = taker.takings().take(way.node, socket, piece, Instant::now());
        let saved = match next {
            Next::Answer(body) => return self.answer(way, &heard, Receptor::Distributor, body),
            Next::Wait => return,
            Next::Restore(saved) => saved,
        };
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let Some(taker) = &shared.taker else { return };
            let restored = taker.restore(socket, &saved).await;
            taker.takings().end((way.node, socket), restored.map(Step::Done));
            let body = match restored {
                Some(Ok(())) => {
                    shared.counts.taken.fetch_add(1, Relaxed);
                    Body::HandoffAck { socket, missing: len }
                }
                Some(Err(code)) => {
                    shared.counts.not_taken.fetch_add(1, Relaxed);
                    tracing::debug!(client = %socket.client(), "a connection could not be had here");
                    Body::Error { socket: Some(socket), code }
                }
                // Who gives it says it again.
                None => return,
            };
            shared.answer(way, &heard, Receptor::Distributor, body);
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use evener_core::lccp::Transfer;

    use super::*;

    const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 11));

    fn socket() -> SocketId {
        SocketId::new("203.0.113.7:40000".parse().unwrap(), "192.0.2.100:80".parse().unwrap()).unwrap()
    }

    fn takings() -> Takings {
        Takings { services: [socket().server()].into(), ..Takings::default() }
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
        Transfer::new(state, b"", receive).unwrap().pieces(0).collect()
    }

    fn ack(missing: u32) -> Next {
        Next::Answer(Body::HandoffAck { socket: socket(), missing })
    }

    fn error(code: ErrorCode) -> Next {
        Next::Answer(Body::Error { socket: Some(socket()), code })
    }

    #[test]
    fn a_connection_is_restored_once_however_often_it_comes() {
        let (mut takings, now) = (takings(), Instant::now());
        let bytes = vec![7; 2_500];
        let pieces = pieces(9_000, &bytes);
        assert_eq!(takings.take(NODE, socket(), pieces[1].clone(), now), ack(0));
        assert_eq!(takings.take(NODE, socket(), pieces[0].clone(), now), ack(2_048));
        assert_eq!(takings.take(NODE, socket(), pieces[0].clone(), now), ack(2_048));
        let Next::Restore(saved) = takings.take(NODE, socket(), pieces[2].clone(), now) else {
            panic!("all is here")
        };
        assert_eq!((saved.unread, saved.receive_next), (bytes, 9_000));
        assert_eq!(takings.take(NODE, socket(), pieces[2].clone(), now), Next::Wait);
        takings.end((NODE, socket()), Some(Step::Done(Ok(()))));
        assert_eq!(takings.take(NODE, socket(), pieces[0].clone(), now), ack(2_500));
    }

    #[test]
    fn what_could_not_be_restored_never_is() {
        let (mut takings, now) = (takings(), Instant::now());
        let first = pieces(5, b"GET").remove(0);
        assert!(matches!(takings.take(NODE, socket(), first.clone(), now), Next::Restore(_)));
        takings.end((NODE, socket()), Some(Step::Done(Err(ErrorCode::NotRestored))));
        assert_eq!(takings.take(NODE, socket(), first, now), error(ErrorCode::NotRestored));
        // but for the next connection between the same ends
        assert!(matches!(takings.take(NODE, socket(), pieces(6, b"GET").remove(0), now), Next::Restore(_)));
    }

    #[test]
    fn what_is_held_is_bounded() {
        let (mut takings, now) = (takings(), Instant::now());
        let elsewhere = SocketId::new(socket().client(), "192.0.2.101:80".parse().unwrap()).unwrap();
        let other = Body::Error { socket: Some(elsewhere), code: ErrorCode::NoServer };
        assert_eq!(takings.take(NODE, elsewhere, pieces(5, b"GET").remove(0), now), Next::Answer(other));
        for len in [0, UNREAD_MAX as usize + 1] {
            let piece = pieces(5, &vec![0; len]).remove(0);
            assert_eq!(takings.take(NODE, socket(), piece, now), error(ErrorCode::NotRestored));
        }
        assert!(takings.by_connection.is_empty());
        for port in 1..=TAKINGS_MAX as u16 {
            let client = SocketAddr::new(socket().client().ip(), port);
            let socket = SocketId::new(client, socket().server()).unwrap();
            takings.take(NODE, socket, pieces(5, &[0; 2_000]).remove(0), now);
        }
        assert_eq!(takings.take(NODE, socket(), pieces(5, b"GET").remove(0), now), error(ErrorCode::NoRoom));
    }
}
