//! Taking open connections: the client's segments once more, into this host's own stack, where the program that accepts
//! what is handed over makes a socket of them. That it is there is what is acknowledged.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evener_core::node::lccp::wire::Message;
use evener_core::node::lccp::{Assembly, Body, ErrorCode, Piece, Receptor, SocketId, TcpState};
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_dataplane::repair::{self, Saved};
use evener_dataplane::server::Connections;

use super::diag::{self, Found};
use super::release::Releases;
use super::state::saved;
use super::{Association, Shared};
use crate::handoff::{LOOPBACK, framed};
use crate::network::Network;

/// The most bytes of a client that were read before somebody was found for it: twice what a director reads.
const UNREAD_MAX: u32 = 128 * 1_024;
/// Connections that are coming, or whose socket is being made.
const TAKINGS_MAX: usize = 4_096;
/// What was done with a connection is remembered for longer than it is asked again.
const MEMORY: Duration = Duration::from_secs(10);
/// Connections of which that is remembered, some 150 bytes each. More than come in that time: the oldest make way.
const MEMORIES_MAX: usize = 65_536;
/// When a connection is looked for, in milliseconds since it was looked for before. After the first look, and each fourth from there,
/// what is missing is put into the stack. A server with many connections to take may be late; who gives one waits for longer.
const LOOKS_MS: [u64; 12] = [0, 0, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640];
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
    open: BTreeMap<Key, Taking>,
    done: Memories,
}

/// The node that gives a connection, and which one.
type Key = (IpAddr, SocketId);

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
}

/// What came of connections a moment ago.
#[derive(Default)]
struct Memories {
    by_connection: BTreeMap<Key, Memory>,
    /// The same, the oldest first. What is here more than once counts at its last place.
    order: VecDeque<(Instant, Key)>,
}

/// It is here, or it can't be.
struct Memory {
    state: TcpState,
    outcome: Result<(), ErrorCode>,
    since: Instant,
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
        let mut takings = self.takings();
        takings.open.retain(|_, taking| is_new(taking.since));
        takings.done.forget(is_new);
        drop(takings);
        self.releases().retain(|_, release| is_new(release.since));
    }

    /// What was let go a moment ago.
    pub(super) fn releases(&self) -> MutexGuard<'_, Releases> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn takings(&self) -> MutexGuard<'_, Takings> {
        self.takings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts one packet of the client's there.
    pub(super) fn put(&self, packet: &[u8]) {
        if let Err(error) = self.stack.send(&framed(LOOPBACK, packet)) {
            tracing::debug!(%error, "a segment of a connection was not put in");
        }
    }

    /// Makes the connection's socket. `None`: it is there, and lacks bytes, or this can't be told.
    async fn restore(&self, socket: SocketId, saved: &Saved) -> Option<Result<(), ErrorCode>> {
        let connections = self.connections();
        // No cookie vouches for what is in the middle of its life, or was silent for long.
        if let Some(Err(error)) = connections.as_ref().map(|connections| connections.expect(saved)) {
            tracing::debug!(%error, "a connection is not expected");
        }
        let mut last = None;
        for (look, after_ms) in LOOKS_MS.into_iter().enumerate() {
            if after_ms > 0 {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
            }
            let seen = Self::see(socket, connections.as_ref(), saved)?;
            match seen.outcome(saved.unread.len()) {
                Outcome::Taken => return Some(Ok(())),
                // What was put in may be on its way yet.
                Outcome::Lacks { from } if look % 4 == 0 => self.put_in(saved, from),
                Outcome::Lacks { .. } => {}
            }
            last = Some(seen);
        }
        (last? == Seen::Nothing).then_some(Err(ErrorCode::NotRestored))
    }

    /// What there is of a connection; `None` if that can't be told.
    fn see(socket: SocketId, connections: Option<&Connections>, saved: &Saved) -> Option<Seen> {
        let seen = diag::find(socket).and_then(|found| match found {
            Found::Connection { received } => Ok(Seen::Connection { received }),
            // Asked for last: what wasn't there may have been made, and gone, since.
            _ => match connections.map(|connections| connections.was_made(saved)).transpose()? {
                Some(true) => Ok(Seen::Gone),
                _ => Ok(Seen::Nothing),
            },
        });
        let unknown =
            |error: &io::Error| tracing::warn!(%error, "whether a connection is here can't be told");
        seen.inspect_err(unknown).ok()
    }

    /// Puts the client's segments into this host's stack, as if they came in by the loopback interface: those behind so many
    /// bytes that it has.
    fn put_in(&self, saved: &Saved, from: usize) {
        let left = Saved { unread: saved.unread.get(from..).unwrap_or_default().to_vec(), ..saved.clone() };
        repair::replay(&left, SEGMENT_MAX).iter().for_each(|packet| self.put(packet));
    }
}

/// What there is of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// No socket, and there was none.
    Nothing,
    /// Its socket, which has so many of the client's bytes.
    Connection { received: u64 },
    /// No socket any more.
    Gone,
}

/// What that says about the client's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// They are with the server's program, or were.
    Taken,
    /// Those behind so many bytes are missing: the stack had no room, or they are on their way to it.
    Lacks { from: usize },
}

impl Seen {
    /// Nothing is put twice into a stack that made a socket of it. The server's program may have answered, and ended the connection
    /// at once, and would answer again. Behind the first segment no socket is made of anything.
    fn outcome(self, len: usize) -> Outcome {
        let received = match self {
            Seen::Gone => return Outcome::Taken,
            Seen::Nothing => return Outcome::Lacks { from: 0 },
            Seen::Connection { received } => usize::try_from(received).unwrap_or(usize::MAX),
        };
        match received >= len {
            true => Outcome::Taken,
            // Its first segment is on its way through the stack just now.
            false => Outcome::Lacks { from: if received == 0 { len } else { received } },
        }
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
        if let Some(outcome) = self.done.find(&key, &state) {
            return outcome.map_or_else(error, |()| ack(state.queued_len()));
        }
        let is_full = self.open.len() >= TAKINGS_MAX;
        let begin = |piece| Taking { state, step: Step::Coming(Assembly::new(piece)), since: now };
        let taking = match self.open.entry(key) {
            Entry::Vacant(_) if is_full => return error(ErrorCode::NoRoom),
            Entry::Vacant(place) => place.insert(begin(piece.clone())),
            Entry::Occupied(place) => place.into_mut(),
        };
        if taking.state != state {
            *taking = begin(piece.clone());
        }
        let assembly = match &mut taking.step {
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

    /// Notes what came of a connection; nothing if it begins anew.
    fn end(&mut self, key: Key, outcome: Option<Result<(), ErrorCode>>, now: Instant) {
        let Some(taking) = self.open.remove(&key) else { return };
        if let Some(outcome) = outcome {
            self.done.add(key, Memory { state: taking.state, outcome, since: now });
        }
    }
}

impl Memories {
    fn find(&self, key: &Key, state: &TcpState) -> Option<Result<(), ErrorCode>> {
        self.by_connection.get(key).filter(|memory| memory.state == *state).map(|memory| memory.outcome)
    }

    fn add(&mut self, key: Key, memory: Memory) {
        self.order.push_back((memory.since, key));
        self.by_connection.insert(key, memory);
        while self.order.len() > MEMORIES_MAX {
            self.forget_first();
        }
    }

    fn forget(&mut self, is_new: impl Fn(Instant) -> bool) {
        while self.order.front().is_some_and(|(since, _)| !is_new(*since)) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((since, key)) = self.order.pop_front() else { return };
        if self.by_connection.get(&key).is_some_and(|memory| memory.since == since) {
            self.by_connection.remove(&key);
        }
    }
}

impl Shared {
    /// Takes a piece of a connection, and answers once there is something to say.
    pub(super) fn take(self: &Arc<Self>, way: Association, heard: Message, socket: SocketId, piece: Piece) {
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
            taker.takings().end((way.node, socket), restored, Instant::now());
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
    use evener_core::node::lccp::Transfer;

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

    /// The connection from another port.
    fn from(port: u16) -> SocketId {
        SocketId::new(SocketAddr::new([203, 0, 113, 8].into(), port), socket().server()).unwrap()
    }

    fn ack_to(port: u16, missing: u32) -> Next {
        Next::Answer(Body::HandoffAck { socket: from(port), missing })
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
        takings.end((NODE, socket()), Some(Ok(())), now);
        assert_eq!(takings.take(NODE, socket(), pieces[0].clone(), now), ack(2_500));
    }

    #[test]
    fn what_could_not_be_restored_never_is() {
        let (mut takings, now) = (takings(), Instant::now());
        let first = pieces(5, b"GET").remove(0);
        assert!(matches!(takings.take(NODE, socket(), first.clone(), now), Next::Restore(_)));
        takings.end((NODE, socket()), Some(Err(ErrorCode::NotRestored)), now);
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
        assert!(takings.open.is_empty());
        for port in 1..=TAKINGS_MAX as u16 {
            let answer = takings.take(NODE, from(port), pieces(5, &[0; 2_000]).remove(0), now);
            assert_eq!(answer, ack_to(port, 1_024));
        }
        assert_eq!(takings.take(NODE, socket(), pieces(5, b"GET").remove(0), now), error(ErrorCode::NoRoom));
        // What is asked again about one of them has its place.
        assert_eq!(takings.take(NODE, from(1), pieces(5, &[0; 2_000]).remove(0), now), ack_to(1, 1_024));
        // One that is done with makes room for one.
        takings.end((NODE, from(1)), Some(Ok(())), now);
        assert!(matches!(takings.take(NODE, socket(), pieces(5, b"GET").remove(0), now), Next::Restore(_)));
        assert_eq!(takings.take(NODE, from(1), pieces(5, &[0; 2_000]).remove(0), now), ack_to(1, 2_000));
        let code = ErrorCode::NoRoom;
        let full = Next::Answer(Body::Error { socket: Some(from(5_000)), code });
        assert_eq!(takings.take(NODE, from(5_000), pieces(5, b"GET").remove(0), now), full);
    }

    /// At any rate: what is done takes no room from what is to come.
    #[test]
    fn as_many_are_taken_as_come() {
        let (mut takings, now) = (takings(), Instant::now());
        let piece = pieces(5, b"GET").remove(0);
        for port in 1..=u16::MAX {
            let taken = takings.take(NODE, from(port), piece.clone(), now);
            assert!(matches!(taken, Next::Restore(_)), "{port}: {taken:?}");
            takings.end((NODE, from(port)), Some(Ok(())), now);
        }
        assert_eq!(takings.done.order.len(), usize::from(u16::MAX));
        let elsewhere = IpAddr::from([192, 0, 2, 12]);
        for port in 1..=2 {
            takings.take(elsewhere, from(port), piece.clone(), now);
            takings.end((elsewhere, from(port)), Some(Ok(())), now);
        }
        // The oldest has made way, and all of it goes with time.
        assert_eq!(takings.done.by_connection.len(), MEMORIES_MAX);
        assert_eq!(takings.done.find(&(NODE, from(1)), piece.state()), None);
        assert_eq!(takings.done.find(&(NODE, from(2)), piece.state()), Some(Ok(())));
        takings.done.forget(|_| false);
        assert!(takings.done.by_connection.is_empty() && takings.done.order.is_empty());
    }

    #[test]
    fn nothing_is_told_twice() {
        let seen = |received| Seen::Connection { received }.outcome(3_000);
        assert_eq!(Seen::Nothing.outcome(3_000), Outcome::Lacks { from: 0 });
        assert_eq!(Seen::Gone.outcome(3_000), Outcome::Taken);
        assert_eq!([seen(3_000), seen(5_000)], [Outcome::Taken; 2]);
        // The first segment is what sockets are made of.
        assert_eq!([seen(0), seen(1_388)].map(|seen| seen == Outcome::Lacks { from: 0 }), [false; 2]);
        assert_eq!(seen(1_388), Outcome::Lacks { from: 1_388 });
    }
}
