//! Table of buckets of eight slots, with keys of any number of words. It is used for sessions and
//! for source-NAT ports.

use super::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
    fence,
};
use super::extent::{self, Extent};
use super::{AFFINITY_KEY, BUCKET_FILL, BUCKET_SESSIONS, Class, Counted, FlowHash, Full, State, Value};

/// Words of a key. The caller defines their meaning.
pub type Words<const N: usize> = [u64; N];

/// Slot of a session.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot<const N: usize> {
    key: [AtomicU64; N],
    pub(super) value: AtomicU64,
}

/// Eight slots in neighbouring cache lines: two lines for keys of one word, four lines for keys of
/// three words.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Bucket<const N: usize>(pub(super) [Slot<N>; BUCKET_SESSIONS]);

impl<const N: usize> Default for Bucket<N> {
    #[cfg(not(loom))]
    fn default() -> Self {
        // The expression is a constant, so that a table of millions of buckets can be created from
        // it.
        Bucket(
            [const { Slot { key: [const { AtomicU64::new(0) }; N], value: AtomicU64::new(0) } };
                BUCKET_SESSIONS],
        )
    }

    #[cfg(loom)]
    fn default() -> Self {
        let slot = || Slot { key: core::array::from_fn(|_| AtomicU64::new(0)), value: AtomicU64::new(0) };
        Bucket(core::array::from_fn(|_| slot()))
    }
}

/// A session that a lookup found, with the location of its value for [`Table::change`].
#[derive(Clone, Copy, Debug)]
pub struct FoundSession<'a> {
    place: &'a AtomicU64,
    vip: u16,
    pub value: Value,
}

/// Number of attempts to evict another session for a new one.
const ATTEMPTS: usize = 2;

/// Returns the VIP in the last word of a key.
pub(super) fn vip_of<const N: usize>(key: &Words<N>) -> u16 {
    key.last().map_or(0, |word| *word as u16)
}

/// Returns the network of a key's client: an IPv4 /24 or an IPv6 /56. An attacker may own all of
/// its addresses.
fn source_of<const N: usize>(key: &Words<N>) -> u64 {
    match key.as_slice() {
        [] => 0,
        [word] => word >> 40,
        // An IPv4 client's address is mapped.
        [0, low, ..] => low >> 8,
        [high, ..] => high >> 8,
    }
}

/// View of the buckets of one IP version and of the counts of sessions.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a, const N: usize> {
    pub(super) buckets: &'a [Bucket<N>],
    pub(super) extent: Extent<'a>,
    pub(super) counted: Counted<'a>,
}

impl<'a, const N: usize> Table<'a, N> {
    /// Makes a view of `buckets`, all of them in use.
    pub const fn new(buckets: &'a [Bucket<N>], counted: Counted<'a>) -> Self {
        Table { buckets, extent: Extent(None), counted }
    }

    /// Returns the view with an extent word.
    pub const fn within(self, extent: Extent<'a>) -> Self {
        Table { extent, ..self }
    }

    /// Returns the number of buckets in use. The buckets after them are empty.
    pub fn buckets(&self) -> usize {
        let masks = self.extent.masks();
        extent::used(masks.now.max(masks.before), self.buckets.len())
    }

    /// Returns a view of these buckets alone.
    pub(crate) fn part(&self, range: core::ops::Range<usize>) -> Table<'a, N> {
        let end = range.end.min(self.buckets.len());
        Table { buckets: self.buckets.get(range.start..end).unwrap_or_default(), ..*self }
    }

    /// Returns the number of sessions that the table is sized for.
    pub const fn sized_for(&self) -> usize {
        self.buckets.len() * BUCKET_FILL
    }

    /// Returns the two buckets that may hold a session under a mask. `None` if the table has no
    /// buckets.
    pub(super) fn pair(&self, hash: FlowHash, mask: u32) -> Option<[usize; 2]> {
        let (first, second) = hash.buckets(self.buckets.len() as u32);
        (!self.buckets.is_empty()).then_some([(first & mask) as usize, (second & mask) as usize])
    }

    /// Finds a live session. Also returns the number of the session's slot.
    pub fn find(&self, key: &Words<N>, hash: FlowHash, now: u32) -> Option<(usize, FoundSession<'a>)> {
        let mut masks = self.extent.masks();
        // The loop repeats only if the extent changed during the lookup, which happens at most a
        // few times per second.
        loop {
            let found = match masks.is_moving() {
                false => self.find_in(masks.now, key, hash, now),
                // The third lookup is for a session that moved between the first and the second.
                true => [masks.now, masks.before, masks.now]
                    .into_iter()
                    .find_map(|mask| self.find_in(mask, key, hash, now)),
            };
            let before = core::mem::replace(&mut masks, self.extent.masks());
            if found.is_some() || masks == before {
                return found;
            }
        }
    }

    pub(super) fn find_in(
        &self,
        mask: u32,
        key: &Words<N>,
        hash: FlowHash,
        now: u32,
    ) -> Option<(usize, FoundSession<'a>)> {
        // A bucket may also hold an expired entry with this key. An insert takes the first vacant
        // slot after the home slot, and an expired slot is vacant. So the live entry precedes the
        // expired one, and the first match is the right one.
        self.pair(hash, mask)?.into_iter().find_map(|number| {
            let (at, slot) = self.buckets[number].round(hash.home()).find(|(_, slot)| slot.has(key))?;
            let (found, value) = slot.read();
            let is_it = found == *key && value.is_live(now);
            let found = FoundSession { place: &slot.value, vip: vip_of(key), value };
            is_it.then_some((number * BUCKET_SESSIONS + at, found))
        })
    }

    /// Returns the session in a slot; `None` if the slot has no live session.
    pub fn at(&self, number: usize, now: u32) -> Option<(Words<N>, FoundSession<'a>)> {
        let slot = self.buckets.get(number / BUCKET_SESSIONS)?.0.get(number % BUCKET_SESSIONS)?;
        let (key, value) = slot.read();
        value.is_live(now).then_some((key, FoundSession { place: &slot.value, vip: vip_of(&key), value }))
    }

    /// Inserts a new session. Until its first bucket is half full, the session enters that bucket,
    /// which lookups read first. Otherwise the session enters the emptier one of its two buckets,
    /// since two choices keep buckets level (Mitzenmacher 2001). If both buckets are full, the
    /// insert evicts another session. For an affinity entry a bucket is full when it is half full.
    /// Returns the number of the slot.
    ///
    /// # Errors
    /// [`Full`] if no session in the two buckets may be evicted.
    pub fn insert(&self, key: &Words<N>, hash: FlowHash, mut value: Value, now: u32) -> Result<usize, Full> {
        let mut masks = self.extent.masks();
        loop {
            let number = self.insert_in(masks.now, key, hash, value, now)?;
            // Either this thread sees that the extent changed, or the thread that moves sessions
            // sees the new session. The other thread executes the same fence.
            fence(SeqCst);
            let before = core::mem::replace(&mut masks, self.extent.masks());
            if masks == before || !self.take_back(number, key, value) {
                return Ok(number);
            }
            // A concurrent resize may have copied this session, and frees the copy if its value
            // matches. If the new insert reuses the slot of the copy, the value must not match.
            value = value.moved_to(value.state(), value.expires().wrapping_add(1));
        }
    }

    fn insert_in(
        &self,
        mask: u32,
        key: &Words<N>,
        hash: FlowHash,
        value: Value,
        now: u32,
    ) -> Result<usize, Full> {
        let pair = self.pair(hash, mask).ok_or(Full)?;
        let order = self.order(pair, now);
        let takes_vacant = value.state() != State::Affinity || !self.is_half_full(order[0], now);
        if takes_vacant && let Some((number, slot)) = self.claim_in(order, hash, now) {
            self.fill(slot, key, value);
            return Ok(number);
        }
        if value.state().class() == Some(Class::Replicated) {
            return Err(Full);
        }
        // Another CPU may win the slot, so the eviction is tried again.
        let displaced = (0..ATTEMPTS).find_map(|_| self.claim_candidate(pair, key, value, now));
        let (number, slot) = displaced.ok_or(Full)?;
        self.fill(slot, key, value);
        Ok(number)
    }

    /// Returns the two buckets of a session in the order in which an insert tries them.
    pub(super) fn order(&self, [first, second]: [usize; 2], now: u32) -> [usize; 2] {
        let (vacant1, vacant2) = (self.buckets[first].vacant(now), self.buckets[second].vacant(now));
        let crowded = vacant1 < BUCKET_SESSIONS / 2 && vacant2 > vacant1;
        if crowded { [second, first] } else { [first, second] }
    }

    /// True if more than half of a bucket's slots are taken.
    fn is_half_full(&self, number: usize, now: u32) -> bool {
        self.buckets[number].vacant(now) < BUCKET_SESSIONS / 2
    }

    /// Claims a vacant slot, in the first of these buckets that has one. Returns the slot with its
    /// number.
    pub(super) fn claim_in(
        &self,
        numbers: [usize; 2],
        hash: FlowHash,
        now: u32,
    ) -> Option<(usize, &'a Slot<N>)> {
        let buckets = self.buckets;
        numbers.into_iter().find_map(|number| {
            let mut round = buckets[number].round(hash.home());
            let (at, slot) = round.find(|(_, slot)| slot.claim(now, self.counted))?;
            Some((number * BUCKET_SESSIONS + at, slot))
        })
    }

    /// Frees a session that was just inserted. Returns false if the session has changed or moved
    /// since.
    fn take_back(&self, number: usize, key: &Words<N>, value: Value) -> bool {
        let slot = &self.buckets[number / BUCKET_SESSIONS].0[number % BUCKET_SESSIONS];
        let is_back = slot.value.compare_exchange(value.0, Value::FREE.0, Release, Relaxed).is_ok();
        if is_back {
            self.counted.count(vip_of(key), value, -1);
        }
        is_back
    }

    /// Writes a session to a claimed slot and counts it.
    fn fill(&self, slot: &Slot<N>, key: &Words<N>, value: Value) {
        slot.write(key, value);
        self.counted.count(vip_of(key), value, 1);
    }

    /// Evicts a session from two full buckets for `newcomer`, which gets `value`, and claims its
    /// slot. Fails if another CPU changed the victim first.
    ///
    /// Among embryonic sessions, the victim belongs to the source with most embryonic sessions in
    /// these buckets, the newcomer included. So a client that sends from a whole network evicts its
    /// own sessions first.
    fn claim_candidate(
        &self,
        numbers: [usize; 2],
        newcomer: &Words<N>,
        value: Value,
        now: u32,
    ) -> Option<(usize, &'a Slot<N>)> {
        let (shares, vip, state) = (self.counted.shares, vip_of(newcomer), value.state());
        let may_go = |key: &Words<N>, value: Value| match value.state().class()? {
            class if state == State::Affinity => (class == Class::Affinity).then_some(class),
            Class::Assured => {
                (shares.is_short(vip) && shares.is_beyond(vip_of(key))).then_some(Class::Assured)
            }
            other => Some(other),
        };
        let buckets = self.buckets;
        let slots: [_; 2 * BUCKET_SESSIONS] = core::array::from_fn(|place| {
            let at = numbers[place / BUCKET_SESSIONS] * BUCKET_SESSIONS + place % BUCKET_SESSIONS;
            let slot = &buckets[at / BUCKET_SESSIONS].0[at % BUCKET_SESSIONS];
            (at, slot, slot.read())
        });
        let sources = slots.map(|(_, _, (key, value))| {
            (value.state().class() == Some(Class::Embryonic)).then(|| source_of(&key))
        });
        let others = |source: Option<u64>| match source {
            None => 0,
            its => {
                let all = sources.into_iter().chain([Some(source_of(newcomer))]);
                all.filter(|other| *other != its).count()
            }
        };
        let ranked = slots.into_iter().zip(sources).filter_map(|((at, slot, (key, value)), source)| {
            let left = value.expires().wrapping_sub(now);
            may_go(&key, value).map(|class| ((class, others(source), left), at, slot, key, value))
        });
        let (_, at, slot, key, value) = ranked.min_by_key(|(rank, ..)| *rank)?;
        let won = slot.value.compare_exchange(value.0, Value::CLAIMED.0, Acquire, Relaxed).is_ok();
        if won {
            self.counted.count(vip_of(&key), value, -1);
            if value.state() == State::Affinity {
                self.counted.affinity.count_evicted(vip_of(&key) & !AFFINITY_KEY);
            }
        }
        won.then_some((at, slot))
    }

    /// Changes the value of a session. Returns false if another CPU changed it first: that change
    /// stands.
    pub fn change(&self, found: FoundSession<'a>, to: Value) -> bool {
        let changed = found.place.compare_exchange(found.value.0, to.0, Release, Relaxed).is_ok();
        if changed {
            self.counted.change(found.vip, found.value, to);
        }
        changed
    }

    fn in_use(&self) -> &'a [Bucket<N>] {
        self.buckets.get(..self.buckets()).unwrap_or_default()
    }

    /// Lists live sessions. Other threads may add and remove sessions meanwhile. During a resize, a
    /// session may be listed twice.
    pub fn list(&self, now: u32) -> impl Iterator<Item = (Words<N>, Value)> + use<'a, N> {
        self.in_use().iter().flat_map(|bucket| &bucket.0).filter_map(move |slot| {
            let (key, value) = slot.read();
            value.is_live(now).then_some((key, value))
        })
    }

    /// Replaces the keys of live entries. No other thread or program may use the table at the same
    /// time.
    pub(crate) fn rekey(&self, now: u32, key: impl Fn(Words<N>) -> Words<N>) {
        for slot in self.in_use().iter().flat_map(|bucket| &bucket.0) {
            let (old, value) = slot.read();
            if value.is_live(now) {
                slot.key.iter().zip(key(old)).for_each(|(word, new)| word.store(new, Relaxed));
            }
        }
    }

    /// Frees expired sessions, and live sessions for which `keep` returns false. Adjusts the
    /// counts. Returns the number of slots freed.
    pub fn sweep(&self, now: u32, mut keep: impl FnMut(Words<N>, Value) -> bool) -> usize {
        let mut freed = 0;
        for slot in self.in_use().iter().flat_map(|bucket| &bucket.0) {
            let (key, value) = slot.read();
            if matches!(value.state(), State::Free | State::Claimed)
                || (value.is_live(now) && keep(key, value))
            {
                continue;
            }
            if slot.value.compare_exchange(value.0, Value::FREE.0, Release, Relaxed).is_ok() {
                self.counted.count(vip_of(&key), value, -1);
                freed += 1;
            }
        }
        freed
    }

    /// Frees slots that a killed writer claimed and never filled, and counts the live sessions. No
    /// other thread or program may use the table at the same time.
    pub fn recover(&self, now: u32) {
        for slot in self.in_use().iter().flat_map(|bucket| &bucket.0) {
            let value = Value(slot.value.load(Acquire));
            if value.is_live(now) {
                self.counted.count(vip_of(&slot.key()), value, 1);
            } else {
                slot.value.store(Value::FREE.0, Release);
            }
        }
    }
}

impl<const N: usize> Bucket<N> {
    /// Returns all slots with their positions in the bucket. It starts at position `home` and wraps
    /// at the end.
    fn round(&self, home: usize) -> impl Iterator<Item = (usize, &Slot<N>)> {
        self.0.iter().enumerate().cycle().skip(home).take(BUCKET_SESSIONS)
    }

    fn vacant(&self, now: u32) -> usize {
        self.0.iter().filter(|slot| Value(slot.value.load(Acquire)).is_vacant(now)).count()
    }
}

impl<const N: usize> Slot<N> {
    /// Writes a session to a claimed slot.
    pub(super) fn write(&self, key: &Words<N>, value: Value) {
        for (place, word) in self.key.iter().zip(key) {
            place.store(*word, Release);
        }
        self.value.store(value.0, Release);
    }

    /// Frees the slot if it holds `value`, and clears its key. Without this, a lookup could stop at
    /// the old key. The session may have been inserted again further on in the bucket, and the next
    /// claimant of this slot may not have written its own key yet.
    pub(super) fn vacate(&self, value: Value) -> bool {
        let is_ours = self.value.compare_exchange(value.0, Value::CLAIMED.0, AcqRel, Relaxed).is_ok();
        if is_ours {
            self.write(&[0; N], Value::FREE);
        }
        is_ours
    }

    fn has(&self, key: &Words<N>) -> bool {
        self.key.iter().zip(key).all(|(place, word)| place.load(Acquire) == *word)
    }

    pub(super) fn value(&self) -> Value {
        Value(self.value.load(Acquire))
    }

    fn key(&self) -> Words<N> {
        core::array::from_fn(|at| self.key[at].load(Acquire))
    }

    /// Returns key and value as they were at one moment. A slot whose session changes during the
    /// read reads as claimed.
    pub(super) fn read(&self) -> (Words<N>, Value) {
        let key = self.key();
        let value = self.value.load(Acquire);
        if self.has(&key) { (key, Value(value)) } else { (key, Value::CLAIMED) }
    }

    /// Claims a vacant slot. If the slot has an expired session, this session is no longer counted.
    fn claim(&self, now: u32, counted: Counted<'_>) -> bool {
        let key = self.key();
        let value = Value(self.value.load(Acquire));
        let won = value.is_vacant(now)
            && self.value.compare_exchange(value.0, Value::CLAIMED.0, Acquire, Relaxed).is_ok();
        if won {
            counted.count(vip_of(&key), value, -1);
        }
        won
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket<1>>() == 128 && size_of::<Bucket<3>>() == 256);
