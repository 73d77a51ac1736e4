//! Session table: maps each client's flow to its server.
//!
//! The table is a flat array of buckets. A bucket has eight sessions of 16 bytes: two neighbouring
//! cache lines in one page, which processors fetch together. The keyed hash of a session selects
//! two buckets. Nearly always the first of them holds the session, at the slot that three more bits
//! of the hash select, or soon after this slot. So a lookup reads one or two cache lines.
//!
//! A table is sized for five sessions per bucket, which makes 25.6 bytes per IPv4 session. The slot
//! of an IPv6 session has 32 bytes, which makes 51.2 bytes per session. (The papers count up to 32
//! bytes per session: LSMAC, section 4.2.1.) The table is plain memory with the same layout in the
//! kernel's array map, a mapped file or a vector. The code here lists and sweeps all of these.
//! `bpf/director/sessions.h` is its copy in C.
//!
//! # Concurrency
//! Any number of threads and CPUs may use a table, in the kernel and in user space at once. A
//! writer claims a slot: it changes the value to [`State::Claimed`] by compare-and-exchange. Then
//! it writes the key, then the value. A reader reads the key, the value and the key again. Every
//! change of a live session is a compare-and-exchange, too. So each change is counted exactly once,
//! in the server's count of active sessions and the VIP's count of assured sessions.
//!
//! # Extent
//! A table is allocated for the maximum number of sessions. It uses only as many buckets as its
//! present sessions need ([`Extent`], [`TableResizer`]).
//!
//! # Eviction
//! If both buckets of a new session are full of live sessions, the new session evicts one of them,
//! in this order ([`Class`]):
//!
//! - an embryonic session, of the source (IPv4 /24, IPv6 /56) with most embryonic sessions in these
//!   buckets, the earliest expiry first;
//! - a session that only another director has seen ([`State::Replicated`]);
//! - an affinity entry ([`crate::path::affinity`]);
//! - a session that is closed or half-closed;
//! - an assured session whose VIP exceeds its share, if the VIP of the new session has less than
//!   its share.
//!
//! An assured session within its VIP's share is never evicted. A new affinity entry evicts only
//! affinity entries, and takes a vacant slot only in a bucket that is at least half vacant. A told
//! session evicts nothing.

mod atomic;
mod extent;
mod lasting;
mod resize;
mod shares;
mod table;
mod value;

pub use extent::{ALL_BUCKETS, Extent, FIRST_BUCKETS, extent_for};
pub use lasting::{Lasting, LastingSessions, RefreshPeriods};
pub use resize::{ResizeStep, TableResizer, buckets_in_use_for};
pub use shares::{AFFINITY_WORDS, AffinityCounts, SHARE_WORDS, Shares};
pub use table::{Bucket, FoundSession, Table, Words};
pub use value::{Class, LIFE_MAX, PLAUSIBLE, REPLICATED_ENTRY, State, Value};

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::path::seed::Seed;
use crate::path::tables::{HASH_SLOTS, Tables};
use atomic::{AtomicU64, Ordering::Relaxed};

/// Number of sessions in a bucket. The model checker can't explore more than two.
pub const BUCKET_SESSIONS: usize = if cfg!(loom) { 2 } else { 8 };
/// Number of sessions per bucket for which a table is sized.
const BUCKET_FILL: usize = 5;
/// Bytes of an IPv4 session in its bucket.
pub const SESSION_BYTES: usize = 16;

/// Converts milliseconds to ticks of 2^20 ns, about 1.05 ms. The kernel's nanoseconds become ticks
/// by a shift. Ticks wrap after 52 days, so code compares them only by difference.
pub const fn ticks(ms: u64) -> u32 {
    let ticks = ms.saturating_mul(1_000_000) >> 20;
    // Differences of ticks are signed, so an idle time above half the range would look like the
    // past.
    if ticks > (i32::MAX as u64) / 2 { (i32::MAX / 2) as u32 } else { ticks as u32 }
}

/// Converts ticks to milliseconds.
pub const fn ms(ticks: u32) -> u64 {
    ((ticks as u64) << 20) / 1_000_000
}

/// Flag of [`SessionKey::vip`] in the key of an affinity entry. The other bits are the number of
/// the service.
pub const AFFINITY_KEY: u16 = 1 << 15;

/// Key of a session: the client's endpoint and the number of the VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey {
    pub client: IpAddr,
    pub port: u16,
    pub vip: u16,
}

impl SessionKey {
    /// Returns the key as stored in the slot of an IPv4 session.
    fn word(client: Ipv4Addr, port: u16, vip: u16) -> Words<1> {
        [u64::from(client.to_bits()) << 32 | u64::from(port) << 16 | u64::from(vip)]
    }

    fn of_word([word]: Words<1>) -> Self {
        let client = Ipv4Addr::from_bits((word >> 32) as u32).into();
        SessionKey { client, port: (word >> 16) as u16, vip: word as u16 }
    }

    /// Returns the key as stored in the slot of an IPv6 session or of a port. An IPv4 client's
    /// address is mapped (RFC 4291, section 2.5.5.2).
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

    /// Returns the hash that selects from the hash tables. Hosts with the same seed compute the
    /// same hash. The hash covers only the client's address and port (Distributed Packet Rewriting,
    /// section 3), since each host numbers its VIPs itself. [`Vip::ring_hash`] takes the service's
    /// affinity into account.
    ///
    /// [`Vip::ring_hash`]: crate::path::tables::Vip::ring_hash
    pub fn ring_hash(&self, seed: Seed) -> FlowHash {
        SessionKey { vip: 0, ..*self }.hash(seed)
    }
}

/// Keyed hash of a session key: two rounds of multiplying and folding. The odd multipliers are the
/// secret key.
///
/// One such round is universal: an attacker without the multiplier finds keys that share a bucket
/// hardly more often than under a random function (Dietzfelbinger et al. 1997, "A reliable
/// randomized algorithm for the closest-pair problem"). The second round mixes the regular bits of
/// addresses and ports. The hash costs a tenth of SipHash. This matters since a whole packet costs
/// a few dozen instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash(pub u64);

impl FlowHash {
    /// Hashes a key: mixes each word into the hash of the words before, then mixes the result once
    /// more.
    pub(crate) fn of<const N: usize>(words: &Words<N>, seed: Seed) -> Self {
        let seeds = [seed.0 | 1, seed.1 | 1];
        let mix = |hash: u64, (at, word): (usize, &u64)| fold((hash ^ word).wrapping_mul(seeds[at % 2]));
        let hash = words.iter().enumerate().fold(0, mix);
        FlowHash(fold(hash.wrapping_mul(seeds[N % 2])))
    }
    /// Returns the slot of the service's hash table for this flow.
    pub const fn hash_slot(self) -> usize {
        (((self.0 >> 16) as u32 as u64 * HASH_SLOTS as u64) >> 32) as usize
    }
    /// Returns the slot of a bucket at which lookups start. It comes from the lowest bits of the
    /// hash, which do not influence the choice of the bucket.
    pub const fn home(self) -> usize {
        self.0 as usize % BUCKET_SESSIONS
    }
    /// Returns the two buckets that may hold the session, in a table of `buckets`.
    pub const fn buckets(self, buckets: u32) -> (u32, u32) {
        let first = scale(self.0 as u32, buckets);
        let second = scale((self.0 >> 32) as u32, buckets);
        (first, second)
    }
}

/// Folds the upper half of a product into the lower half, whose bits are mixed less.
const fn fold(x: u64) -> u64 {
    x ^ x >> 32
}

/// Maps a 32-bit number to the range below `n` without a division.
const fn scale(x: u32, n: u32) -> u32 {
    ((x as u64 * n as u64) >> 32) as u32
}

/// Bucket of eight IPv4 sessions.
pub type Bucket4 = Bucket<1>;
/// Bucket of eight IPv6 sessions or source-NAT ports.
pub type Bucket6 = Bucket<3>;

/// Copy of a session in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub key: SessionKey,
    /// Server, state and expiry.
    pub value: Value,
}

/// Error of an insert: both buckets of the new session are full, and no session in them may be
/// evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("both buckets are full of sessions that stay")]
pub struct Full;

/// View of the session tables of both IP versions and of their counts.
#[derive(Clone, Copy, Debug)]
pub struct Sessions<'a> {
    four: Table<'a, 1>,
    six: Table<'a, 3>,
    counted: Counted<'a>,
}

/// Counts of sessions that a table keeps up to date.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// Active sessions, by server slot.
    pub active: &'a [AtomicU64],
    /// Assured sessions, by VIP.
    pub shares: Shares<'a>,
    /// Affinity entries, by service.
    pub affinity: AffinityCounts<'a>,
}

impl Counted<'_> {
    /// Counts of nothing, for tables whose entries are not counted.
    pub const NOTHING: Counted<'static> =
        Counted { active: &[], shares: Shares(&[]), affinity: AffinityCounts(&[]) };

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

    /// Counts a session or affinity entry that was added (`by` 1) or removed (`by` -1).
    fn count(&self, vip: u16, value: Value, by: i64) {
        if value.state() == State::Affinity {
            self.affinity.count(vip & !AFFINITY_KEY, by);
        }
        self.active(value, by);
        self.assured(vip, value, by);
    }

    /// Adjusts the counts for a session whose value changed.
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

/// Returns the number of buckets of a table that is sized for `sessions_max`.
pub const fn buckets_for(sessions_max: usize) -> usize {
    let buckets = sessions_max.div_ceil(BUCKET_FILL);
    if buckets < 2 { 2 } else { buckets }
}

/// Returns the number of sessions for which a table of this many buckets is sized.
pub const fn sessions_for(buckets: usize) -> usize {
    buckets * BUCKET_FILL
}

impl<'a> Sessions<'a> {
    /// Makes a view of the buckets for each IP version.
    pub const fn new(four: &'a [Bucket4], six: &'a [Bucket6], counted: Counted<'a>) -> Self {
        Sessions { four: Table::new(four, counted), six: Table::new(six, counted), counted }
    }

    /// Returns the view with the extent words of both tables, IPv4's first ([`Extent`]).
    pub fn within(self, extents: &'a [AtomicU64]) -> Self {
        let (four, six) = (Extent(extents.first()), Extent(extents.get(1)));
        Sessions { four: self.four.within(four), six: self.six.within(six), ..self }
    }

    /// Starts to resize the two tables to at least these numbers of buckets. New sessions enter the
    /// new extent. Lookups also search the previous extent until [`Sessions::end_move`]. No other
    /// resize may be under way. [`TableResizer`] drives these steps.
    pub fn begin_move(&self, [four, six]: [usize; 2]) {
        self.four.begin_move(extent::mask_for(four, self.four.buckets.len()));
        self.six.begin_move(extent::mask_for(six, self.six.buckets.len()));
    }

    /// Moves the sessions of these buckets to the new extent. Returns the number of sessions that
    /// find no room there. Must be called only once no packet uses the previous extent alone.
    pub fn move_some(&self, range: core::ops::Range<usize>, seed: Seed, now: u32) -> usize {
        let four = self.four.buckets();
        let in_six = range.start.saturating_sub(four)..range.end.saturating_sub(four);
        self.four.move_all(range.start..range.end.min(four), seed, now) + self.six.move_all(in_six, seed, now)
    }

    /// Ends the resize, once all sessions have moved.
    pub fn end_move(&self) {
        self.four.end_move();
        self.six.end_move();
    }

    /// True while sessions move to another extent.
    pub fn is_resizing(&self) -> bool {
        self.four.extent.masks().is_moving() || self.six.extent.masks().is_moving()
    }

    /// Computes the share of each VIP of `tables`, and forgets the evictions of other services.
    pub fn share(&self, tables: &Tables) {
        self.counted.affinity.keep(tables);
        self.counted.shares.share(tables, self.four.sized_for(), self.six.sized_for());
    }

    /// Returns the shares and assured counts of the VIPs.
    pub const fn shares(&self) -> Shares<'a> {
        self.counted.shares
    }

    /// Returns the counts of affinity entries.
    pub const fn affinity_counts(&self) -> AffinityCounts<'a> {
        self.counted.affinity
    }

    /// Returns the number of session slots in the buckets in use.
    pub fn capacity(&self) -> usize {
        self.buckets() * BUCKET_SESSIONS
    }

    /// Returns the number of sessions that both tables are sized for.
    pub const fn sized_for(&self) -> usize {
        self.four.sized_for() + self.six.sized_for()
    }

    /// Returns the number of session slots in all buckets, in use or not.
    pub const fn capacity_max(&self) -> usize {
        (self.four.buckets.len() + self.six.buckets.len()) * BUCKET_SESSIONS
    }

    /// Number of buckets in use, for walking the tables in portions.
    pub fn buckets(&self) -> usize {
        self.four.buckets() + self.six.buckets()
    }

    /// Finds a live session. `hash` is [`SessionKey::hash`] of the key.
    pub fn find(&self, key: SessionKey, hash: FlowHash, now: u32) -> Option<FoundSession<'a>> {
        let found = match key.client {
            IpAddr::V4(client) => self.four.find(&SessionKey::word(client, key.port, key.vip), hash, now),
            IpAddr::V6(_) => self.six.find(&key.words(), hash, now),
        };
        found.map(|(_, found)| found)
    }

    /// Inserts a new session, and evicts another one if both buckets are full.
    ///
    /// # Errors
    /// [`Full`] if no session in the two buckets may be evicted.
    pub fn insert(&self, key: SessionKey, hash: FlowHash, value: Value, now: u32) -> Result<(), Full> {
        let inserted = match key.client {
            IpAddr::V4(client) => {
                self.four.insert(&SessionKey::word(client, key.port, key.vip), hash, value, now)
            }
            IpAddr::V6(_) => self.six.insert(&key.words(), hash, value, now),
        };
        inserted.map(drop)
    }

    /// Frees a session. Returns false if another CPU changed it first.
    pub fn remove(&self, found: FoundSession<'a>) -> bool {
        self.four.change(found, Value::FREE)
    }

    /// Changes the value of a session. Returns false if another CPU changed the session first, so
    /// that the other CPU's change stands.
    pub fn change(&self, found: FoundSession<'a>, to: Value) -> bool {
        self.four.change(found, to)
    }

    /// Lists live sessions and affinity entries. Other threads may add and remove sessions at the
    /// same time.
    pub fn list(&self, now: u32) -> impl Iterator<Item = Session> + use<'a> {
        let four =
            self.four.list(now).map(|(words, value)| Session { key: SessionKey::of_word(words), value });
        let six =
            self.six.list(now).map(|(words, value)| Session { key: SessionKey::of_words(words), value });
        four.chain(six)
    }

    /// Visits the live sessions and affinity entries of the buckets in `range`.
    pub fn visit(&self, range: core::ops::Range<usize>, now: u32, mut at: impl FnMut(Session)) {
        let four = self.four.buckets();
        let in_six = range.start.saturating_sub(four)..range.end.saturating_sub(four);
        let of_four = self.four.part(range).list(now);
        of_four.for_each(|(words, value)| at(Session { key: SessionKey::of_word(words), value }));
        let of_six = self.six.part(in_six).list(now);
        of_six.for_each(|(words, value)| at(Session { key: SessionKey::of_words(words), value }));
    }

    /// Frees the expired sessions of the buckets in `range`, and live sessions for which `keep`
    /// returns false. Adjusts the counts. Returns the number of freed slots.
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

    /// Frees all sessions. Returns the number of slots freed.
    pub fn clear(&self, now: u32) -> usize {
        self.sweep(0..self.buckets(), now, |_, _| false)
    }

    /// Frees slots that a killed writer claimed and never filled, and counts all sessions anew. No
    /// other thread or program may use the tables at the same time.
    pub fn recover(&self, now: u32) {
        for count in self.counted.active {
            count.store(0, Relaxed);
        }
        self.counted.shares.clear_counts();
        self.counted.affinity.clear_entries();
        self.four.recover(now);
        self.six.recover(now);
    }
}
