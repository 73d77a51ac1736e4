//! Streams of sessions between directors. Each director tells the others the sessions that have
//! lasted, so that connections go on at another director.
//!
//! A stream is ordered and complete: its batches are numbered, the receiver acknowledges the next
//! one that it expects, and the sender repeats batches from there. Each stream begins with the
//! *bulk*: all sessions of the sender. If either side loses the stream, the sender begins another
//! one, with a higher number of its own. Batches name a service's address and a server by a number
//! that an earlier item of the same stream has defined, since directors number both differently.
//!
//! The datagrams have the envelope of the directors' reports, and name the incarnations that the
//! reports have settled, so that a batch of an earlier start is refused.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::wire::mapped;
use crate::net::Protocol;
use crate::node::envelope::ReadError;
use crate::path::sessions::{Lasting, Value};
use crate::path::tables::VipKey;

/// Value of the kind field in datagrams with sessions.
pub(super) const KIND: u8 = 3;
/// Maximum length of the items of a batch, in bytes. A datagram fits an Ethernet frame.
const BATCH_LEN: usize = 1_200;
/// Maximum number of batches that the other director has not acknowledged.
const WINDOW: usize = 512;
/// Maximum number of batches in a tick.
const BURST: usize = 64;
/// Time without an acknowledgment after which batches are repeated, in milliseconds.
const REPEAT_MS: u64 = 250;
/// Length of the head of a body, in bytes.
const HEAD_LEN: usize = 17;
/// Flag of a head: the bulk is complete with this batch.
const COMPLETE: u8 = 1;

/// Kinds of items, as the first byte of an item. The kind of an item with an IPv6 client is one
/// higher.
const PLACE: u8 = 1;
const LIVES: u8 = 2;
const ENDED: u8 = 4;
const AFFINITY: u8 = 6;
/// Maximum number of places of a stream. One more begins the numbering anew on both sides.
const PLACES_MAX: usize = 1 << 16;

/// Service address and server of a session, by names that all directors know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionPlace {
    pub vip: VipKey,
    /// Digest of the service's and server's names: [`crate::farm::plan::identity`].
    pub server: u64,
}

/// A session or affinity entry that has lasted, or a session that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicatedSession {
    pub what: Lasting,
    pub client: IpAddr,
    /// Port of the client; 0 for an affinity entry.
    pub port: u16,
    pub place: SessionPlace,
    /// Mark of the session's value.
    pub mark: u16,
}

/// Progress of the bulk of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bulk {
    /// The next bucket of the session tables.
    From(usize),
    Complete,
}

/// Counters of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReplicationCounts {
    /// Sessions that were sent to the director.
    pub sent: u64,
    /// Sessions that came from the director.
    pub received: u64,
    /// Batches that were sent again.
    pub repeated: u64,
    /// Streams that had to begin anew.
    pub restarted: u64,
    /// Sessions that did not fit into the stream.
    pub unsent: u64,
}

/// Streams to and from one director.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    /// Number of the stream to the director.
    number: u32,
    /// Number of the next batch.
    next: u32,
    /// Batches that are not acknowledged, beginning with the oldest.
    waiting: VecDeque<Batch>,
    /// Number of waiting batches that were sent.
    sent: usize,
    /// Items of the batch that is being filled.
    filling: Vec<u8>,
    places: BTreeMap<SessionPlace, u16>,
    bulk: Bulk,
    /// True if a session did not fit into the stream since the bulk began.
    lacks_some: bool,
    progress_ms: u64,
    /// Number of the last datagram that was sent, and of the last one that was received.
    sequences: (u64, u64),
    /// Incarnation of the director that sends the other stream.
    theirs: u64,
    /// Number of the director's stream, and of the batch that is expected next.
    expected: (u32, u32),
    their_places: Vec<SessionPlace>,
    /// True if the director's bulk is complete.
    is_complete: bool,
    owes_answer: bool,
    pub(super) counts: ReplicationCounts,
}

#[derive(Clone, Debug)]
struct Batch {
    number: u32,
    flags: u8,
    items: Vec<u8>,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            number: 1,
            next: 1,
            waiting: VecDeque::new(),
            sent: 0,
            filling: Vec::new(),
            places: BTreeMap::new(),
            bulk: Bulk::From(0),
            lacks_some: false,
            progress_ms: 0,
            sequences: (0, 0),
            theirs: 0,
            expected: (0, 1),
            their_places: Vec::new(),
            is_complete: false,
            owes_answer: false,
            counts: ReplicationCounts::default(),
        }
    }
}

impl Streams {
    /// Begins another stream to the director, with the bulk.
    pub(super) fn restart(&mut self) {
        self.number += 1;
        self.next = 1;
        self.waiting.clear();
        self.sent = 0;
        self.filling.clear();
        self.places.clear();
        (self.bulk, self.lacks_some) = (Bulk::From(0), false);
        self.counts.restarted += 1;
    }

    /// Follows the incarnation of the director. A new one has none of the sessions.
    pub(super) fn follow(&mut self, theirs: u64) {
        if self.theirs != theirs {
            let is_first = self.theirs == 0;
            (self.theirs, self.expected, self.is_complete) = (theirs, (0, 1), false);
            self.sequences.1 = 0;
            self.their_places.clear();
            if !is_first {
                self.restart();
            }
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the next bucket of the bulk if there is room for its sessions.
    pub(super) fn bulk_from(&self) -> Option<usize> {
        match self.bulk {
            Bulk::From(bucket) if self.waiting.len() < WINDOW / 2 => Some(bucket),
            _ => None,
        }
    }

    /// Notes that the bulk has reached this bucket, or its end.
    pub(super) fn bulk_to(&mut self, bucket: Option<usize>) {
        self.bulk = bucket.map_or(Bulk::Complete, Bulk::From);
        if bucket.is_none() {
            self.close_batch(COMPLETE);
            self.repeat_bulk_if_needed();
        }
    }

    /// Adds a session to the stream. If the stream is full, the bulk begins anew once there is
    /// room, which includes the session.
    pub(super) fn replicate(&mut self, session: &ReplicatedSession) {
        if self.waiting.len() >= WINDOW {
            self.counts.unsent += 1;
            self.lacks_some |= session.what != Lasting::Ended;
            self.repeat_bulk_if_needed();
            return;
        }
        let place = self.place(session.place);
        let kind = match session.what {
            Lasting::Lives => LIVES,
            Lasting::Ended => ENDED,
            Lasting::Affinity => AFFINITY,
        };
        match session.client {
            IpAddr::V4(client) => {
                self.filling.push(kind);
                self.filling.extend_from_slice(&client.octets());
            }
            IpAddr::V6(client) => {
                self.filling.push(kind + 1);
                self.filling.extend_from_slice(&client.octets());
            }
        }
        for number in [session.port, place, session.mark] {
            self.filling.extend_from_slice(&number.to_be_bytes());
        }
        self.counts.sent += 1;
        if self.filling.len() >= BATCH_LEN {
            self.close_batch(0);
        }
    }

    /// Repeats the bulk, since the director may now know more servers than before.
    pub(super) fn repeat_bulk(&mut self) {
        self.lacks_some = true;
        self.repeat_bulk_if_needed();
    }

    fn repeat_bulk_if_needed(&mut self) {
        if self.lacks_some && self.bulk == Bulk::Complete {
            (self.bulk, self.lacks_some) = (Bulk::From(0), false);
        }
    }

    /// Returns the number of a place, and defines it if it is new in the stream.
    fn place(&mut self, place: SessionPlace) -> u16 {
        if let Some(number) = self.places.get(&place) {
            return *number;
        }
        if self.places.len() == PLACES_MAX {
            self.places.clear();
        }
        let number = self.places.len() as u16;
        self.places.insert(place, number);
        self.filling.push(PLACE);
        self.filling.extend_from_slice(&mapped(place.vip.address));
        self.filling.extend_from_slice(&place.vip.port.to_be_bytes());
        self.filling.push(place.vip.protocol.number());
        self.filling.extend_from_slice(&place.server.to_be_bytes());
        number
    }

    fn close_batch(&mut self, flags: u8) {
        let items = core::mem::take(&mut self.filling);
        self.waiting.push_back(Batch { number: self.next, flags, items });
        self.next += 1;
    }

    /// Returns the bodies that are due. Call it every few dozen milliseconds.
    pub(super) fn bodies(&mut self, now_ms: u64) -> Vec<Vec<u8>> {
        if !self.filling.is_empty() {
            self.close_batch(0);
        }
        if self.sent == 0 {
            self.progress_ms = now_ms;
        } else if now_ms.saturating_sub(self.progress_ms) >= REPEAT_MS {
            self.counts.repeated += self.sent as u64;
            (self.sent, self.progress_ms) = (0, now_ms);
        }
        let due = self.waiting.iter().skip(self.sent).take(BURST);
        let mut bodies: Vec<Vec<u8>> = due.map(|batch| self.body(batch)).collect();
        self.sent += bodies.len();
        if bodies.is_empty() && self.owes_answer {
            bodies.push(self.body(&Batch { number: 0, flags: 0, items: Vec::new() }));
        }
        self.owes_answer = false;
        bodies
    }

    fn body(&self, batch: &Batch) -> Vec<u8> {
        let mut body = Vec::with_capacity(HEAD_LEN + batch.items.len());
        body.push(batch.flags);
        for number in [self.number, batch.number, self.expected.0, self.expected.1] {
            body.extend_from_slice(&number.to_be_bytes());
        }
        body.extend_from_slice(&batch.items);
        body
    }

    /// Returns the number of the next datagram.
    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequences.0 += 1;
        self.sequences.0
    }

    /// Reads the body of the datagram with this number, and returns the sessions of the batch that
    /// was expected. Datagrams that were overtaken or replayed are ignored.
    ///
    /// # Errors
    /// The body is malformed.
    pub(super) fn receive(
        &mut self,
        now_ms: u64,
        sequence: u64,
        body: &[u8],
    ) -> Result<Vec<ReplicatedSession>, ReadError> {
        if sequence <= self.sequences.1 {
            return Ok(Vec::new());
        }
        self.sequences.1 = sequence;
        let (head, items) = body.split_first_chunk::<HEAD_LEN>().ok_or(ReadError::Malformed)?;
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        self.acknowledge(now_ms, (number(9), number(13)));
        let (stream, batch) = (number(1), number(5));
        if batch == 0 {
            return Ok(Vec::new());
        }
        self.owes_answer = true;
        if stream > self.expected.0 {
            (self.expected, self.is_complete) = ((stream, 1), false);
            self.their_places.clear();
        }
        if (stream, batch) != self.expected {
            return Ok(Vec::new());
        }
        let mut places = core::mem::take(&mut self.their_places);
        let sessions = read_items(items, &mut places);
        self.their_places = places;
        let sessions = sessions?;
        self.expected.1 += 1;
        self.is_complete |= head[0] & COMPLETE != 0;
        self.counts.received += sessions.len() as u64;
        Ok(sessions)
    }

    /// Forgets the batches before the one that the director expects. A director that expects an
    /// earlier one has lost the stream.
    fn acknowledge(&mut self, now_ms: u64, (stream, expected): (u32, u32)) {
        if stream != self.number {
            return;
        }
        let oldest = self.waiting.front().map_or(self.next, |batch| batch.number);
        if expected < oldest || expected > self.next {
            self.restart();
            return;
        }
        let known = (expected - oldest) as usize;
        if known > 0 {
            self.waiting.drain(..known);
            self.sent = self.sent.saturating_sub(known);
            self.progress_ms = now_ms;
        }
    }
}

/// Reads items. Sessions of unknown places are left out.
fn read_items(mut items: &[u8], places: &mut Vec<SessionPlace>) -> Result<Vec<ReplicatedSession>, ReadError> {
    let mut sessions = Vec::new();
    while let Some((kind, rest)) = items.split_first() {
        items = match *kind {
            PLACE => {
                let (bytes, rest) = rest.split_first_chunk::<27>().ok_or(ReadError::Malformed)?;
                if places.len() == PLACES_MAX {
                    places.clear();
                }
                places.push(place(bytes)?);
                rest
            }
            _ => {
                let what = match kind & !1 {
                    LIVES => Lasting::Lives,
                    ENDED => Lasting::Ended,
                    AFFINITY => Lasting::Affinity,
                    _ => return Err(ReadError::Malformed),
                };
                let (client, rest): (IpAddr, &[u8]) = if kind & 1 == 0 {
                    let (client, rest) = rest.split_first_chunk::<4>().ok_or(ReadError::Malformed)?;
                    (Ipv4Addr::from(*client).into(), rest)
                } else {
                    let (client, rest) = rest.split_first_chunk::<16>().ok_or(ReadError::Malformed)?;
                    (Ipv6Addr::from(*client).into(), rest)
                };
                let (numbers, rest) = rest.split_first_chunk::<6>().ok_or(ReadError::Malformed)?;
                sessions.extend(session(what, client, numbers, places));
                rest
            }
        };
    }
    Ok(sessions)
}

fn session(
    what: Lasting,
    client: IpAddr,
    numbers: &[u8; 6],
    places: &[SessionPlace],
) -> Option<ReplicatedSession> {
    let [port, place, mark] = [0, 2, 4].map(|at| u16::from_be_bytes([numbers[at], numbers[at + 1]]));
    let mark = mark & ((1 << Value::MARK_BITS) - 1);
    Some(ReplicatedSession { what, client, port, place: *places.get(usize::from(place))?, mark })
}

fn place(bytes: &[u8; 27]) -> Result<SessionPlace, ReadError> {
    let (address, rest) = bytes.split_first_chunk::<16>().ok_or(ReadError::Malformed)?;
    let (port, rest) = rest.split_first_chunk::<2>().ok_or(ReadError::Malformed)?;
    let (protocol, server) = rest.split_first().ok_or(ReadError::Malformed)?;
    let protocol = [Protocol::Tcp, Protocol::Udp].into_iter().find(|one| one.number() == *protocol);
    let address = Ipv6Addr::from(*address).to_canonical();
    let server = u64::from_be_bytes(server.try_into().map_err(|_| ReadError::Malformed)?);
    let protocol = protocol.ok_or(ReadError::Malformed)?;
    Ok(SessionPlace { vip: VipKey { address, port: u16::from_be_bytes(*port), protocol }, server })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn session(port: u16) -> ReplicatedSession {
        let vip = VipKey { address: [192, 0, 2, 100].into(), port: 80, protocol: Protocol::Tcp };
        let client = if port.is_multiple_of(3) {
            Ipv6Addr::from(u128::from(port)).into()
        } else {
            Ipv4Addr::from(u32::from(port) + (203 << 24)).into()
        };
        let what = match port % 7 {
            0 => Lasting::Ended,
            1 => Lasting::Affinity,
            _ => Lasting::Lives,
        };
        ReplicatedSession {
            what,
            client,
            port,
            place: SessionPlace { vip, server: u64::from(port % 5) },
            mark: port & 0xfff,
        }
    }

    /// Sends what is due, and returns what the other side has read.
    fn send(
        now_ms: u64,
        from: &mut Streams,
        to: &mut Streams,
        mut keep: impl FnMut() -> bool,
    ) -> Vec<ReplicatedSession> {
        let bodies = from.bodies(now_ms);
        let sent = bodies.into_iter().map(|body| (from.next_sequence(), body));
        let kept: Vec<_> = sent.filter(|_| keep()).collect();
        kept.into_iter().flat_map(|(sequence, body)| to.receive(now_ms, sequence, &body).unwrap()).collect()
    }

    /// Lets both sides send until nothing is left. `keep` decides which datagrams arrive.
    fn settle(
        now_ms: &mut u64,
        from: &mut Streams,
        to: &mut Streams,
        mut keep: impl FnMut() -> bool,
    ) -> Vec<ReplicatedSession> {
        let mut read = Vec::new();
        for _ in 0..2_000 {
            *now_ms += 20;
            read.extend(send(*now_ms, from, to, &mut keep));
            assert_eq!(send(*now_ms, to, from, &mut keep), []);
            if from.waiting.is_empty() && from.filling.is_empty() {
                break;
            }
        }
        read
    }

    #[test]
    fn sessions_arrive_once_and_in_order_over_a_lossy_network() {
        let (mut from, mut to) = (Streams::default(), Streams::default());
        let (mut now_ms, mut number) = (0, 0u32);
        let sent: Vec<ReplicatedSession> = (1..2_000).map(session).collect();
        sent.iter().for_each(|one| from.replicate(one));
        from.bulk_to(None);
        let read = settle(&mut now_ms, &mut from, &mut to, || {
            number = number.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            !(number >> 16).is_multiple_of(3)
        });
        assert!(read == sent, "{} of {}", read.len(), sent.len());
        assert!(to.is_complete() && from.waiting.is_empty());
        assert!(from.counts.repeated > 0 && from.counts.restarted == 0);
    }

    #[test]
    fn full_stream_is_bounded_and_its_bulk_begins_anew() {
        let mut from = Streams::default();
        from.bulk_to(None);
        (0..200_000u32).for_each(|number| from.replicate(&session((number % 60_000) as u16)));
        assert_eq!(from.waiting.len(), WINDOW);
        assert!(from.counts.unsent > 100_000);
        assert_eq!((from.bulk, from.bulk_from()), (Bulk::From(0), None));
        let mut now_ms = 0;
        settle(&mut now_ms, &mut from, &mut Streams::default(), || true);
        assert_eq!(from.bulk_from(), Some(0));
    }

    #[test]
    fn more_places_than_numbers_begin_the_numbering_anew() {
        let (mut from, mut to, mut now_ms) = (Streams::default(), Streams::default(), 0);
        let sent: Vec<ReplicatedSession> = (0..PLACES_MAX as u64 + 10)
            .map(|server| ReplicatedSession {
                place: SessionPlace { server, ..session(2).place },
                ..session(2)
            })
            .collect();
        let mut read = Vec::new();
        for part in sent.chunks(5_000) {
            part.iter().for_each(|one| from.replicate(one));
            read.extend(settle(&mut now_ms, &mut from, &mut to, || true));
        }
        assert!(read == sent, "{} of {}", read.len(), sent.len());
        assert_eq!((from.counts.restarted, to.their_places.len()), (0, 10));
    }

    #[test]
    fn bulk_is_repeated_after_it_is_complete() {
        let mut from = Streams::default();
        from.repeat_bulk();
        from.bulk_to(Some(7));
        from.repeat_bulk();
        assert_eq!(from.bulk_from(), Some(7), "a bulk on its way is not interrupted");
        from.bulk_to(None);
        assert_eq!(from.bulk_from(), Some(0));
        from.bulk_to(None);
        assert_eq!(from.bulk_from(), None);
    }

    #[test]
    fn director_that_has_lost_the_stream_gets_another_one() {
        let (mut from, mut to) = (Streams::default(), Streams::default());
        let mut now_ms = 0;
        (1..300).for_each(|port| from.replicate(&session(port)));
        settle(&mut now_ms, &mut from, &mut to, || true);
        // The receiver's state is gone, but the sender does not know that it has started anew.
        let mut to = Streams::default();
        from.replicate(&session(300));
        let read = send(1_000_000, &mut from, &mut to, || true);
        assert_eq!(read, []);
        // The receiver's numbers begin anew, too.
        from.sequences.1 = 0;
        send(1_000_000, &mut to, &mut from, || true);
        assert_eq!((from.counts.restarted, from.bulk), (1, Bulk::From(0)));
        from.follow(5);
        from.follow(6);
        assert_eq!((from.counts.restarted, from.bulk), (2, Bulk::From(0)));
        (1..310).for_each(|port| from.replicate(&session(port)));
        assert_eq!(settle(&mut now_ms, &mut from, &mut to, || true).len(), 309);
    }

    #[test]
    fn batch_of_an_earlier_stream_and_replays_are_ignored() {
        let (mut from, mut to) = (Streams::default(), Streams::default());
        from.replicate(&session(1));
        let old = from.bodies(0);
        from.restart();
        from.replicate(&session(2));
        let new = from.bodies(0);
        assert_eq!(to.receive(0, 2, &new[0]), Ok(vec![session(2)]));
        assert_eq!(to.receive(0, 1, &old[0]), Ok(vec![]), "overtaken");
        assert_eq!(to.receive(0, 2, &new[0]), Ok(vec![]), "replayed");
        assert_eq!(to.receive(0, 3, &old[0]), Ok(vec![]), "of an earlier stream");
        from.replicate(&session(4));
        let next = from.bodies(0);
        assert_eq!(to.receive(0, 4, &next[0]), Ok(vec![session(4)]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut streams = Streams::default();
            let _ = streams.receive(0, 1, &body);
            let _ = read_items(&body, &mut vec![session(1).place]);
        }
    }
}
