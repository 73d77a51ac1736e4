//! The session table: which server has which connection.
//!
//! A flat array of buckets, each of eight sessions of 16 bytes: two neighbouring cache lines, which
//! processors fetch together, in one page. A session's keyed hash names two buckets, of which the
//! first nearly always has it, at the place of the eight that three more bits name or soon behind
//! it; so a look-up reads one or two cache lines. A table is sized for five sessions a bucket and
//! spends 25.6 bytes on each, 51.2 on an IPv6 session, whose slot has 32; the papers count up to 32
//! (LSMAC, section 4.2.1). The table is plain memory: the kernel's array map, a mapped file or a
//! vector hold the same bits, and this code lists, sweeps and serves all of them.
//! `bpf/director/sessions.h` is its copy in C.
//!
//! # Concurrency
//! Any number of threads and CPUs may use one table, in the kernel and outside at once. A slot is
//! claimed by compare-and-exchange of its value to [`State::Claimed`]; then the key is written,
//! then the value. A reader reads the key, the value and the key again. Every change of a live
//! session is a compare-and-exchange too, so its server's count of active sessions and its VIP's
//! count of assured ones change exactly once with it.
//!
//! # Extent
//! A table is made for the most that it may hold, and used in part: as many buckets as serve what
//! is in it ([`Extent`], [`Fitting`]).
//!
//! # Room
//! A new session whose two buckets are full of live ones takes the place of another ([`Class`]): of
//! an embryonic one of the source (IPv4 /24, IPv6 /56) that has most of them there, the soonest to
//! expire; else of one that is over, or half; else of an assured one whose VIP has more than its
//! share, if its own has less. An assured session within its VIP's share is never put out.

mod atomic;
mod extent;
mod resize;
mod shares;
mod table;
mod value;

pub use extent::{ALL_BUCKETS, Extent, FIRST_BUCKETS, extent_for};
pub use resize::{Fitting, ResizeStep, buckets_in_use_for};
pub use shares::{SHARE_WORDS, Shares};
pub use table::{Bucket, FoundSession, Table, Words};
pub use value::{Class, LIFE_MAX, State, Value};

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::path::seed::Seed;
use crate::path::tables::{HASH_SLOTS, Tables};
use atomic::{AtomicU64, Ordering::Relaxed};

/// Sessions in a bucket. A model checker has its hands full with two.
pub const BUCKET_SESSIONS: usize = if cfg!(loom) { 2 } else { 8 };
/// Sessions in a bucket of a table that holds what it is sized for.
const BUCKET_FILL: usize = 5;
/// Bytes of a session in its bucket.
pub const SESSION_BYTES: usize = 16;

/// Milliseconds as ticks of 2^20 ns, about 1.05 ms: a shift makes them from the kernel's
/// nanoseconds. Ticks wrap after 52 days; they are only ever compared by difference.
pub const fn ticks(ms: u64) -> u32 {
    let ticks = ms.saturating_mul(1_000_000) >> 20;
    // Differences are signed: an idle time above half the range would look like the past.
    if ticks > (i32::MAX as u64) / 2 { (i32::MAX / 2) as u32 } else { ticks as u32 }
}

/// Converts ticks to milliseconds.
pub const fn ms(ticks: u32) -> u64 {
    ((ticks as u64) << 20) / 1_000_000
}

/// The key of a session: the client's endpoint and the VIP (which stands for the other one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey {
    pub client: IpAddr,
    pub port: u16,
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

    /// Returns the keyed hash of the key.
    pub fn hash(&self, seed: Seed) -> FlowHash {
        match self.client {
            IpAddr::V4(client) => FlowHash::of(&Self::word(client, self.port, self.vip), seed),
            IpAddr::V6(_) => FlowHash::of(&self.words(), seed),
        }
    }

    /// The hash that picks from hash tables, which hosts that share the seed agree on: by the
    /// client's address and port alone (Distributed Packet Rewriting, section 3), since each host
    /// numbers its VIPs itself.
    pub fn ring_hash(&self, seed: Seed) -> FlowHash {
        SessionKey { vip: 0, ..*self }.hash(seed)
    }
}

/// A session key's keyed hash: two rounds of multiply and fold, whose odd multipliers are the
/// secret.
///
/// One such round is universal: two keys chosen without knowing the multiplier share a bucket about
/// as seldom as under a random function (Dietzfelbinger et al. 1997, "A reliable randomized
/// algorithm for the closest-pair problem"). The second mixes what is regular in addresses and
/// ports. It costs a tenth of SipHash, which counts where a whole packet costs a few dozen
/// instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash(pub u64);

impl FlowHash {
    /// Hashes a key: each word is mixed into the last one's hash, and a round at the end mixes what
    /// the last one left regular.
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
    /// Returns the place in its bucket where a session is looked for first: the lowest bits, which
    /// name no bucket.
    pub const fn home(self) -> usize {
        self.0 as usize % BUCKET_SESSIONS
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

/// Bucket of eight IPv4 sessions.
pub type Bucket4 = Bucket<1>;
/// Eight IPv6 sessions, or ports.
pub type Bucket6 = Bucket<3>;

/// A session as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub key: SessionKey,
    /// Server, state and expiry.
    pub value: Value,
}

/// No slot in either bucket that a new session may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("both buckets are full of sessions that stay")]
pub struct Full;

/// A view of the tables of both IP versions, and of what is counted of them.
#[derive(Clone, Copy, Debug)]
pub struct Sessions<'a> {
    four: Table<'a, 1>,
    six: Table<'a, 3>,
    counted: Counted<'a>,
}

/// The counts of sessions.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// Active sessions, by server slot.
    pub active: &'a [AtomicU64],
    /// Assured sessions, by VIP.
    pub shares: Shares<'a>,
}

impl Counted<'_> {
    /// Of tables whose sessions are counted elsewhere.
    pub const NOTHING: Counted<'static> = Counted { active: &[], shares: Shares(&[]) };

    fn active(&self, value: Value, by: i64) {
        if value.state().is_active()
            && let Some(count) = self.active.get(usize::from(value.server()))
        {
            count.fetch_add(by as u64, Relaxed);
        }
    }

    fn assured(&self, vip: u16, value: Value, by: i64) {
        if value.state().is_assured() {
            self.shares.count(vip, by);
        }
    }

    /// A session that comes or goes.
    fn count(&self, vip: u16, value: Value, by: i64) {
        self.active(value, by);
        self.assured(vip, value, by);
    }

    /// A session that changes.
    fn change(&self, vip: u16, from: Value, to: Value) {
        let (was, is) = (from.state(), to.state());
        if (was.is_active(), from.server()) != (is.is_active(), to.server()) {
            self.active(from, -1);
            self.active(to, 1);
        }
        if was.is_assured() != is.is_assured() {
            self.assured(vip, from, -1);
            self.assured(vip, to, 1);
        }
    }
}

/// Buckets of a table that is sized for `sessions_max`.
pub const fn buckets_for(sessions_max: usize) -> usize {
    let buckets = sessions_max.div_ceil(BUCKET_FILL);
    if buckets < 2 { 2 } else { buckets }
}

/// Sessions that a table of so many buckets is sized for.
pub const fn sessions_for(buckets: usize) -> usize {
    buckets * BUCKET_FILL
}

impl<'a> Sessions<'a> {
    /// A view over buckets for each IP version.
    pub const fn new(four: &'a [Bucket4], six: &'a [Bucket6], counted: Counted<'a>) -> Self {
        Sessions { four: Table::new(four, counted), six: Table::new(six, counted), counted }
    }

    /// The same of tables that are in use as far as a word for each says ([`Extent`]), IPv4's
    /// first.
    pub fn within(self, extents: &'a [AtomicU64]) -> Self {
        let (four, six) = (Extent(extents.first()), Extent(extents.get(1)));
        Sessions { four: self.four.within(four), six: self.six.within(six), ..self }
    }

    /// From now on sessions are to stand in so many buckets of each table, or somewhat more; what
    /// stands elsewhere is found there, until it was moved. To be called where no other such change
    /// is on its way. [`Fitting`] takes these steps.
    pub fn begin_move(&self, [four, six]: [usize; 2]) {
        self.four.begin_move(extent::mask_for(four, self.four.buckets.len()));
        self.six.begin_move(extent::mask_for(six, self.six.buckets.len()));
    }

    /// Moves the sessions of these buckets; returns how many found no room. To be called once no
    /// packet goes by what was before alone.
    pub fn move_some(&self, range: core::ops::Range<usize>, seed: Seed, now: u32) -> usize {
        let four = self.four.buckets();
        let in_six = range.start.saturating_sub(four)..range.end.saturating_sub(four);
        self.four.move_all(range.start..range.end.min(four), seed, now) + self.six.move_all(in_six, seed, now)
    }

    /// Sessions stand where they are to. To be called once all were moved.
    pub fn end_move(&self) {
        self.four.end_move();
        self.six.end_move();
    }

    /// True while sessions move to another extent.
    pub fn is_resizing(&self) -> bool {
        self.four.extent.masks().is_moving() || self.six.extent.masks().is_moving()
    }

    /// Gives each service of `tables` its share.
    pub fn share(&self, tables: &Tables) {
        self.counted.shares.share(tables, self.four.sized_for(), self.six.sized_for());
    }

    /// Shares, and what is taken of them.
    pub const fn shares(&self) -> Shares<'a> {
        self.counted.shares
    }

    /// Sessions that can stand in the buckets in use, when every slot is taken.
    pub fn capacity(&self) -> usize {
        self.buckets() * BUCKET_SESSIONS
    }

    /// Sessions that the tables are sized for.
    pub const fn sized_for(&self) -> usize {
        self.four.sized_for() + self.six.sized_for()
    }

    /// The same of all buckets, in use or not.
    pub const fn capacity_max(&self) -> usize {
        (self.four.buckets.len() + self.six.buckets.len()) * BUCKET_SESSIONS
    }

    /// Number of buckets in use, for walking the tables in portions.
    pub fn buckets(&self) -> usize {
        self.four.buckets() + self.six.buckets()
    }

    /// Finds a live session; `hash` is the key's own.
    pub fn find(&self, key: SessionKey, hash: FlowHash, now: u32) -> Option<FoundSession<'a>> {
        let found = match key.client {
            IpAddr::V4(client) => self.four.find(&SessionKey::word(client, key.port, key.vip), hash, now),
            IpAddr::V6(_) => self.six.find(&key.words(), hash, now),
        };
        found.map(|(_, found)| found)
    }

    /// Notes a new session, in the place of one that must go if there is no other.
    ///
    /// # Errors
    /// [`Full`] where all must stay.
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
    pub fn change(&self, found: FoundSession<'a>, to: Value) -> bool {
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
    /// counts stay true. Returns how many slots it freed.
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

    /// Frees all sessions. Returns how many slots it freed.
    pub fn clear(&self, now: u32) -> usize {
        self.sweep(0..self.buckets(), now, |_, _| false)
    }

    /// Frees slots that a writer claimed and never finished (it was killed in between). Only for
    /// tables that nobody else uses yet. Makes all counts anew.
    pub fn recover(&self, now: u32) {
        for count in self.counted.active {
            count.store(0, Relaxed);
        }
        self.counted.shares.clear_counts();
        self.four.recover(now);
        self.six.recover(now);
    }
}
