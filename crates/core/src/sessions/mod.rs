//! The session table: which server has which connection.
//!
//! A flat array of buckets, each of eight sessions of 16 bytes: two neighbouring cache lines, which
//! processors fetch together, in one page. A session's keyed hash names two buckets, of which the first
//! nearly always has it, so a look-up reads one or two cache lines. A table is sized for five sessions a
//! bucket and spends 25.6 bytes on each, 51.2 on an IPv6 session, whose slot has 32; the papers count up to 32 (LSMAC, section 4.2.1). The table is plain memory:
//! the kernel's array map, a mapped file or a vector hold the same bits, and this code lists, sweeps
//! and serves all of them. `bpf/sessions.h` is its copy in C.
//!
//! # Concurrency
//! Any number of threads and CPUs may use one table, in the kernel and outside at once. A slot is
//! claimed by compare-and-exchange of its value to [`State::Claimed`]; then the key is written, then
//! the value. A reader reads the key, the value and the key again. Every change of a live session is
//! a compare-and-exchange too, so a server's count of active sessions changes exactly once with it.

mod table;

pub use table::{Bucket, Found, Table, Words};

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::tables::{HASH_SLOTS, IdleTicks};

/// Sessions in a bucket.
pub const BUCKET_SESSIONS: usize = 8;
/// Sessions in a bucket of a table that holds what it is sized for.
const BUCKET_FILL: usize = 5;
/// Bytes of a session in its bucket.
pub const SESSION_BYTES: usize = 16;

/// Milliseconds as ticks of 2^20 ns, about 1.05 ms: a shift makes them from the kernel's nanoseconds.
/// Ticks wrap after 52 days; they are only ever compared by difference.
pub const fn ticks(ms: u64) -> u32 {
    let ticks = ms.saturating_mul(1_000_000) >> 20;
    // Differences are signed: an idle time above half the range would look like the past.
    if ticks > (i32::MAX as u64) / 2 { (i32::MAX / 2) as u32 } else { ticks as u32 }
}

/// Ticks as milliseconds.
pub const fn ms(ticks: u32) -> u64 {
    ((ticks as u64) << 20) / 1_000_000
}

/// What a session is known by: the client's endpoint and the VIP (which stands for the other one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey {
    /// The client's address.
    pub client: IpAddr,
    /// The client's port.
    pub port: u16,
    /// [`crate::tables::Vip::id`].
    pub vip: u16,
}

impl SessionKey {
    /// As an IPv4 session's slot holds it.
    fn word(client: Ipv4Addr, port: u16, vip: u16) -> Words<1> {
        [u64::from(client.to_bits()) << 32 | u64::from(port) << 16 | u64::from(vip)]
    }

    fn of_word([word]: Words<1>) -> Self {
        let client = Ipv4Addr::from_bits((word >> 32) as u32).into();
        SessionKey { client, port: (word >> 16) as u16, vip: word as u16 }
    }

    /// As an IPv6 session's slot holds it, and that of a port; an IPv4 client is mapped (RFC 4291,
    /// section 2.5.5.2).
    pub(crate) fn words(&self) -> Words<3> {
        let client = match self.client {
            IpAddr::V4(client) => client.to_ipv6_mapped(),
            IpAddr::V6(client) => client,
        };
        let bits = client.to_bits();
        [(bits >> 64) as u64, bits as u64, u64::from(self.port) << 16 | u64::from(self.vip)]
    }

    pub(crate) fn of_words([high, low, rest]: Words<3>) -> Self {
        let client = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        SessionKey { client: client.to_canonical(), port: (rest >> 16) as u16, vip: rest as u16 }
    }

    /// Its keyed hash.
    pub fn hash(&self, seed: Seed) -> FlowHash {
        match self.client {
            IpAddr::V4(client) => FlowHash::of(&Self::word(client, self.port, self.vip), seed),
            IpAddr::V6(_) => FlowHash::of(&self.words(), seed),
        }
    }

    /// The hash that picks from hash tables, which hosts that share the seed agree on: by the client's address and
    /// port alone (Distributed Packet Rewriting, section 3), since each host numbers its VIPs itself.
    pub fn ring_hash(&self, seed: Seed) -> FlowHash {
        SessionKey { vip: 0, ..*self }.hash(seed)
    }
}

/// A secret that keeps strangers from choosing which sessions share a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed(pub u64, pub u64);

impl Seed {
    /// From random bytes, or from a derived key's first.
    pub fn from_bytes(bytes: [u8; 16]) -> Seed {
        let bits = u128::from_be_bytes(bytes);
        Seed((bits >> 64) as u64, bits as u64)
    }
}

/// A session key's keyed hash: two rounds of multiply and fold, whose odd multipliers are the secret.
///
/// One such round is universal: two keys chosen without knowing the multiplier share a bucket about as
/// seldom as under a random function (Dietzfelbinger et al. 1997, "A reliable randomized algorithm for the
/// closest-pair problem"). The second mixes what is regular in addresses and ports. It costs a tenth of
/// SipHash, which counts where a whole packet costs a few dozen instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash(pub u64);

impl FlowHash {
    /// Hashes a key: each word is mixed into the last one's hash, and a round at the end mixes what the last
    /// one left regular.
    pub(crate) fn of<const N: usize>(words: &Words<N>, seed: Seed) -> Self {
        let seeds = [seed.0 | 1, seed.1 | 1];
        let mix = |hash: u64, (at, word): (usize, &u64)| fold((hash ^ word).wrapping_mul(seeds[at % 2]));
        let hash = words.iter().enumerate().fold(0, mix);
        FlowHash(fold(hash.wrapping_mul(seeds[N % 2])))
    }
    /// The slot of the service's hash table that this flow falls in.
    pub const fn hash_slot(self) -> usize {
        (((self.0 >> 16) as u32 as u64 * HASH_SLOTS as u64) >> 32) as usize
    }
    /// The two buckets of a table of `buckets` that may hold the session.
    pub const fn buckets(self, buckets: u32) -> (u32, u32) {
        let first = scale(self.0 as u32, buckets);
        let second = scale((self.0 >> 32) as u32, buckets);
        (first, second)
    }
}

/// The upper half over the lower, which a product leaves poorer.
const fn fold(x: u64) -> u64 {
    x ^ x >> 32
}

/// A 32-bit number to the range below `n`, without dividing.
const fn scale(x: u32, n: u32) -> u32 {
    ((x as u64 * n as u64) >> 32) as u32
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No session here.
    Free = 0,
    /// Being written; no reader may use it.
    Claimed = 1,
    /// A SYN was seen, and nothing else.
    New = 2,
    /// More than a SYN was seen.
    Established = 3,
    /// FIN or RST was seen.
    Closing = 4,
    /// A UDP flow.
    Udp = 5,
}

impl State {
    /// Whether a session in this state counts as one of its server's active ones.
    pub const fn is_active(self) -> bool {
        matches!(self, State::New | State::Established | State::Udp)
    }

    /// How long a session in this state lives without a packet.
    pub const fn idle(self, idle: &IdleTicks) -> u32 {
        match self {
            State::Free | State::Claimed => 0,
            State::New => idle.syn,
            State::Established => idle.tcp,
            State::Closing => idle.closing,
            State::Udp => idle.udp,
        }
    }

    /// The name shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Claimed => "claimed",
            State::New => "new",
            State::Established => "established",
            State::Closing => "closing",
            State::Udp => "udp",
        }
    }

    const fn from_bits(bits: u8) -> State {
        match bits {
            1 => State::Claimed,
            2 => State::New,
            3 => State::Established,
            4 => State::Closing,
            5 => State::Udp,
            _ => State::Free,
        }
    }
}

/// A session's second word: from the top the tick at which it expires (32 bits), a mark (12), its state (4) and its server
/// (16).
///
/// What the mark says belongs to the state, as who wrote it says there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(pub u64);

impl Value {
    const CLAIMED: Value = Value((State::Claimed as u64) << 16);
    const FREE: Value = Value(0);
    const MARK: u64 = (1 << Self::MARK_BITS) - 1;
    /// Bits of a mark.
    pub const MARK_BITS: u32 = 12;

    /// Packs server slot, state and expiry.
    pub const fn new(server: u16, state: State, expires: u32) -> Self {
        Value((expires as u64) << 32 | (state as u64) << 16 | server as u64)
    }
    /// The same with a mark, of which the lower [`Value::MARK_BITS`] are kept.
    pub const fn with_mark(self, mark: u16) -> Self {
        Value(self.0 & !(Self::MARK << 20) | (mark as u64 & Self::MARK) << 20)
    }
    /// The same in another state, until another time.
    pub const fn moved_to(self, state: State, expires: u32) -> Self {
        Value::new(self.server(), state, expires).with_mark(self.mark())
    }
    /// The server's slot.
    pub const fn server(self) -> u16 {
        self.0 as u16
    }
    /// Where the session stands.
    pub const fn state(self) -> State {
        State::from_bits((self.0 >> 16) as u8 & 0xf)
    }
    /// What is kept beside the state; 0 where nothing is.
    pub const fn mark(self) -> u16 {
        (self.0 >> 20 & Self::MARK) as u16
    }
    /// The tick at which it is gone unless a packet comes.
    pub const fn expires(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// Whether it is a session, and not yet expired.
    pub const fn is_live(self, now: u32) -> bool {
        self.state() as u8 >= State::New as u8 && (self.expires().wrapping_sub(now) as i32) > 0
    }
    /// Whether a new session may take the slot.
    const fn is_vacant(self, now: u32) -> bool {
        self.state() as u8 != State::Claimed as u8 && !self.is_live(now)
    }
}

/// Eight IPv4 sessions.
pub type Bucket4 = Bucket<1>;
/// Eight IPv6 sessions, or ports.
pub type Bucket6 = Bucket<3>;

/// A session as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Who.
    pub key: SessionKey,
    /// Which server, in which state, until when.
    pub value: Value,
}

/// No vacant slot in either bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("both buckets are full of live sessions")]
pub struct Full;

/// A view of the tables of both IP versions, and of the servers' counts of active sessions.
#[derive(Clone, Copy, Debug)]
pub struct Sessions<'a> {
    four: Table<'a, 1>,
    six: Table<'a, 3>,
    active: &'a [AtomicU64],
}

/// Buckets of a table that is sized for `sessions_max`.
pub const fn buckets_for(sessions_max: usize) -> usize {
    let buckets = sessions_max.div_ceil(BUCKET_FILL);
    if buckets < 2 { 2 } else { buckets }
}

impl<'a> Sessions<'a> {
    /// A view over buckets for each IP version; `active` is indexed by server slot.
    pub const fn new(four: &'a [Bucket4], six: &'a [Bucket6], active: &'a [AtomicU64]) -> Self {
        Sessions { four: Table::new(four, active), six: Table::new(six, active), active }
    }

    /// Sessions the tables can hold when every slot is taken.
    pub const fn capacity(&self) -> usize {
        self.buckets() * BUCKET_SESSIONS
    }

    /// Sessions that the tables are sized for.
    pub const fn sized_for(&self) -> usize {
        self.four.sized_for() + self.six.sized_for()
    }

    /// Number of buckets, for walking the tables in portions.
    pub const fn buckets(&self) -> usize {
        self.four.buckets() + self.six.buckets()
    }

    /// Finds a live session; `hash` is the key's own.
    pub fn find(&self, key: SessionKey, hash: FlowHash, now: u32) -> Option<Found<'a>> {
        let found = match key.client {
            IpAddr::V4(client) => self.four.find(&SessionKey::word(client, key.port, key.vip), hash, now),
            IpAddr::V6(_) => self.six.find(&key.words(), hash, now),
        };
        found.map(|(_, found)| found)
    }

    /// Notes a new session.
    ///
    /// # Errors
    /// [`Full`] when there is no room; no live session is ever put out.
    pub fn insert(&self, key: SessionKey, hash: FlowHash, value: Value, now: u32) -> Result<(), Full> {
        let inserted = match key.client {
            IpAddr::V4(client) => {
                self.four.insert(&SessionKey::word(client, key.port, key.vip), hash, value, now)
            }
            IpAddr::V6(_) => self.six.insert(&key.words(), hash, value, now),
        };
        inserted.map(drop)
    }

    /// Changes a session found, unless another CPU was faster; then its change stands.
    pub fn change(&self, found: Found<'a>, to: Value) -> bool {
        self.four.change(found, to)
    }

    /// All live sessions, while others come and go.
    pub fn list(&self, now: u32) -> impl Iterator<Item = Session> + use<'a> {
        let four =
            self.four.list(now).map(|(words, value)| Session { key: SessionKey::of_word(words), value });
        let six =
            self.six.list(now).map(|(words, value)| Session { key: SessionKey::of_words(words), value });
        four.chain(six)
    }

    /// Frees what has expired and what `keep` doesn't want, in the buckets of `range`, so that the
    /// counts of active sessions stay true. Returns how many slots it freed.
    pub fn sweep(
        &self,
        range: core::ops::Range<usize>,
        now: u32,
        mut keep: impl FnMut(SessionKey, Value) -> bool,
    ) -> usize {
        let four = self.four.buckets();
        let in_six = range.start.saturating_sub(four)..range.end.saturating_sub(four);
        self.four.part(range).sweep(now, |words, value| keep(SessionKey::of_word(words), value))
            + self.six.part(in_six).sweep(now, |words, value| keep(SessionKey::of_words(words), value))
    }

    /// Frees slots that a writer claimed and never finished (it was killed in between). Only for
    /// tables that nobody else uses yet. Makes the counts of active sessions anew.
    pub fn recover(&self, now: u32) {
        for count in self.active {
            count.store(0, Relaxed);
        }
        self.four.recover(now);
        self.six.recover(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_parts_apart() {
        let all = Value::new(0xffff, State::Udp, u32::MAX).with_mark(0xffff);
        assert_eq!(
            (all.server(), all.state(), all.expires(), all.mark()),
            (0xffff, State::Udp, u32::MAX, 0xfff)
        );
        let none = all.with_mark(0);
        assert_eq!(none, Value::new(0xffff, State::Udp, u32::MAX));
        let moved = all.moved_to(State::New, 7);
        assert_eq!(
            (moved.server(), moved.state(), moved.expires(), moved.mark()),
            (0xffff, State::New, 7, 0xfff)
        );
    }
}
