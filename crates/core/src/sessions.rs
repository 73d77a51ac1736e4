//! The session table: which server has which connection.
//!
//! A flat array of buckets, each of eight sessions of 16 bytes: two neighbouring cache lines, which
//! processors fetch together, in one page. A session's keyed hash names two buckets, of which the first
//! nearly always has it, so a look-up reads one or two cache lines. A table is sized for five sessions a
//! bucket and spends 25.6 bytes on each; the papers count up to 32 (LSMAC, section 4.2.1). The table is plain memory:
//! the kernel's array map, a mapped file or a vector hold the same bits, and this code lists, sweeps
//! and serves all of them. `bpf/sessions.h` is its copy in C.
//!
//! # Concurrency
//! Any number of threads and CPUs may use one table, in the kernel and outside at once. A slot is
//! claimed by compare-and-exchange of its value to [`State::Claimed`]; then the key is written, then
//! the value. A reader reads the key, the value and the key again. Every change of a live session is
//! a compare-and-exchange too, so a server's count of active sessions changes exactly once with it.

use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey(pub u64);

impl SessionKey {
    /// Client address and port, and [`crate::tables::Vip::id`].
    pub const fn new(client: u32, port: u16, vip: u16) -> Self {
        SessionKey((client as u64) << 32 | (port as u64) << 16 | vip as u64)
    }
    /// The client's address.
    pub const fn client(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// The client's port.
    pub const fn port(self) -> u16 {
        (self.0 >> 16) as u16
    }
    /// The VIP's number.
    pub const fn vip(self) -> u16 {
        self.0 as u16
    }
}

/// A secret that keeps strangers from choosing which sessions share a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64, pub u64);

/// A session key's keyed hash: two rounds of multiply and fold, whose odd multipliers are the secret.
///
/// One such round is universal: two keys chosen without knowing the multiplier share a bucket about as
/// seldom as under a random function (Dietzfelbinger et al. 1997, "A reliable randomized algorithm for the
/// closest-pair problem"). The second mixes what is regular in addresses and ports. It costs a tenth of
/// SipHash, which counts where a whole packet costs a few dozen instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash(pub u64);

impl FlowHash {
    /// Hashes a key.
    pub const fn of(key: SessionKey, seed: Seed) -> Self {
        let mixed = key.0.wrapping_mul(seed.0 | 1);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(seed.1 | 1);
        FlowHash(mixed ^ mixed >> 32)
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

/// A session's second word: server, state and the tick at which it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value(pub u64);

impl Value {
    const CLAIMED: Value = Value((State::Claimed as u64) << 16);
    const FREE: Value = Value(0);

    /// Packs server slot, state and expiry.
    pub const fn new(server: u16, state: State, expires: u32) -> Self {
        Value((expires as u64) << 32 | (state as u64) << 16 | server as u64)
    }
    /// The server's slot.
    pub const fn server(self) -> u16 {
        self.0 as u16
    }
    /// Where the session stands.
    pub const fn state(self) -> State {
        State::from_bits((self.0 >> 16) as u8)
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

/// One session's place in memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Slot {
    key: AtomicU64,
    value: AtomicU64,
}

/// Eight sessions in two cache lines.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Bucket([Slot; BUCKET_SESSIONS]);

/// A session as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Who.
    pub key: SessionKey,
    /// Which server, in which state, until when.
    pub value: Value,
}

/// A session found, with its place, so that it can be changed.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    slot: &'a Slot,
    /// What was found.
    pub value: Value,
}

/// No vacant slot in either bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("both buckets are full of live sessions")]
pub struct Full;

/// A view of the table and of the servers' counts of active sessions.
#[derive(Clone, Copy, Debug)]
pub struct Sessions<'a> {
    buckets: &'a [Bucket],
    active: &'a [AtomicU64],
}

/// Buckets of a table that is sized for `sessions_max`.
pub const fn buckets_for(sessions_max: usize) -> usize {
    let buckets = sessions_max.div_ceil(BUCKET_FILL);
    if buckets < 2 { 2 } else { buckets }
}

impl<'a> Sessions<'a> {
    /// A view over `buckets`; `active` is indexed by server slot.
    pub const fn new(buckets: &'a [Bucket], active: &'a [AtomicU64]) -> Self {
        Sessions { buckets, active }
    }

    /// Sessions the table can hold when every slot is taken.
    pub const fn capacity(&self) -> usize {
        self.buckets.len() * BUCKET_SESSIONS
    }

    fn pair(&self, hash: FlowHash) -> [&'a Bucket; 2] {
        let (first, second) = hash.buckets(self.buckets.len() as u32);
        [&self.buckets[first as usize], &self.buckets[second as usize]]
    }

    /// Finds a live session.
    pub fn find(&self, key: SessionKey, hash: FlowHash, now: u32) -> Option<Found<'a>> {
        // A key is noted again only where it has expired, and there in the same place or before it: in each
        // bucket the first is the one.
        self.pair(hash).into_iter().find_map(|bucket| {
            let slot = bucket.0.iter().find(|slot| slot.key.load(Acquire) == key.0)?;
            let (found, value) = slot.read();
            (found == key && value.is_live(now)).then_some(Found { slot, value })
        })
    }

    /// Notes a new session: in its first bucket, which look-ups read first, until that is half full; then in
    /// the emptier one, since two choices keep buckets level (Mitzenmacher 2001).
    ///
    /// # Errors
    /// [`Full`] when both buckets hold live sessions only; no live session is ever put out.
    pub fn insert(&self, key: SessionKey, hash: FlowHash, value: Value, now: u32) -> Result<(), Full> {
        let [first, second] = self.pair(hash);
        let (room1, room2) = (first.room(now), second.room(now));
        let crowded = room1 < BUCKET_SESSIONS / 2 && room2 > room1;
        let order = if crowded { [second, first] } else { [first, second] };
        for bucket in order {
            for slot in &bucket.0 {
                if slot.claim(now, self.active) {
                    slot.key.store(key.0, Release);
                    slot.value.store(value.0, Release);
                    self.count(value, 1);
                    return Ok(());
                }
            }
        }
        Err(Full)
    }

    /// Changes a session found, unless another CPU was faster; then its change stands.
    pub fn change(&self, found: Found<'a>, to: Value) -> bool {
        let changed = found.slot.value.compare_exchange(found.value.0, to.0, Release, Relaxed).is_ok();
        if changed
            && (found.value.state().is_active(), found.value.server())
                != (to.state().is_active(), to.server())
        {
            self.count(found.value, -1);
            self.count(to, 1);
        }
        changed
    }

    fn count(&self, value: Value, by: i64) {
        count(self.active, value, by);
    }

    /// All live sessions, while others come and go.
    pub fn list(&self, now: u32) -> impl Iterator<Item = Session> + 'a {
        self.buckets.iter().flat_map(|bucket| &bucket.0).filter_map(move |slot| {
            let (key, value) = slot.read();
            value.is_live(now).then_some(Session { key, value })
        })
    }

    /// Frees what has expired and what `keep` doesn't want, in the buckets of `range`, so that the
    /// counts of active sessions stay true. Returns how many slots it freed.
    pub fn sweep(
        &self,
        range: core::ops::Range<usize>,
        now: u32,
        mut keep: impl FnMut(SessionKey, Value) -> bool,
    ) -> usize {
        let end = range.end.min(self.buckets.len());
        let buckets = self.buckets.get(range.start..end).unwrap_or_default();
        let mut freed = 0;
        for slot in buckets.iter().flat_map(|bucket| &bucket.0) {
            let (key, value) = slot.read();
            if matches!(value.state(), State::Free | State::Claimed)
                || (value.is_live(now) && keep(key, value))
            {
                continue;
            }
            if slot.value.compare_exchange(value.0, Value::FREE.0, Release, Relaxed).is_ok() {
                self.count(value, -1);
                freed += 1;
            }
        }
        freed
    }

    /// Frees slots that a writer claimed and never finished (it was killed in between). Only for a
    /// table that nobody else uses yet. Makes the counts of active sessions anew.
    pub fn recover(&self, now: u32) {
        for count in self.active {
            count.store(0, Relaxed);
        }
        for slot in self.buckets.iter().flat_map(|bucket| &bucket.0) {
            let value = Value(slot.value.load(Acquire));
            if value.is_live(now) {
                self.count(value, 1);
            } else {
                slot.value.store(Value::FREE.0, Release);
            }
        }
    }

    /// Sessions that the table is sized for.
    pub const fn sized_for(&self) -> usize {
        self.buckets.len() * BUCKET_FILL
    }

    /// Number of buckets, for walking the table in portions.
    pub const fn buckets(&self) -> usize {
        self.buckets.len()
    }
}

fn count(active: &[AtomicU64], value: Value, by: i64) {
    if value.state().is_active()
        && let Some(count) = active.get(usize::from(value.server()))
    {
        count.fetch_add(by as u64, Relaxed);
    }
}

impl Bucket {
    fn room(&self, now: u32) -> usize {
        self.0.iter().filter(|slot| Value(slot.value.load(Acquire)).is_vacant(now)).count()
    }
}

impl Slot {
    /// Key and value as of one moment; a slot that changes hands meanwhile reads as claimed.
    fn read(&self) -> (SessionKey, Value) {
        let key = self.key.load(Acquire);
        let value = self.value.load(Acquire);
        if self.key.load(Acquire) == key {
            (SessionKey(key), Value(value))
        } else {
            (SessionKey(key), Value::CLAIMED)
        }
    }

    /// Takes a vacant slot; an expired session in it ends here and leaves its server's count.
    fn claim(&self, now: u32, active: &[AtomicU64]) -> bool {
        let value = Value(self.value.load(Acquire));
        let won = value.is_vacant(now)
            && self.value.compare_exchange(value.0, Value::CLAIMED.0, Acquire, Relaxed).is_ok();
        if won {
            count(active, value, -1);
        }
        won
    }
}

const _: () = assert!(size_of::<Bucket>() == 128 && size_of::<Slot>() == SESSION_BYTES);
