//! Selection of a server for a new session, from the ring that a policy filled.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::path::sessions::FlowHash;
use crate::path::tables::{ALL_FULL, NO_SERVER, ORDER_MAX, Pick, Ring, SERVICE_SERVERS_MAX, Tables};

/// Counters, scores and limits that the selection of a server uses. Cursors are indexed by service,
/// the others by server slot.
#[derive(Clone, Copy, Debug)]
pub struct Counts<'a> {
    /// Position in the ring of each service. A selection from the ring adds one.
    pub cursors: &'a [AtomicU64],
    /// Active sessions of each server.
    pub active: &'a [AtomicU64],
    /// [`Score`] of each server, for policies that use load. A missing slot has the default score.
    pub scores: &'a [AtomicU16],
    /// Maximum number of active sessions of each server. 0 or a missing slot means unlimited.
    pub limits: &'a [AtomicU32],
}

/// Load of a server, which corrects the server's session count, and the limit of this correction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Load of the server, in [`SCORE_UNIT`]ths above the least loaded server of the service.
    pub load: u8,
    /// Part of the flows that may select this server only because of its load. These are flows
    /// whose second candidate is this server, and whose first candidate would be better by session
    /// counts. In 256ths, less one.
    pub gain: u8,
}

impl Score {
    const fn bits(self) -> u16 {
        u16::from_be_bytes([self.gain, self.load])
    }

    const fn of_bits(bits: u16) -> Score {
        let [gain, load] = bits.to_be_bytes();
        Score { load, gain }
    }
}

impl Counts<'_> {
    /// Replaces the scores of these servers. Every later packet uses the new scores.
    pub fn score(&self, scores: &[(u16, Score)]) {
        for (slot, score) in scores {
            if let Some(place) = self.scores.get(usize::from(*slot)) {
                place.store(score.bits(), Relaxed);
            }
        }
    }

    /// Replaces the session limits of these servers. Every later packet uses the new limits.
    pub fn limit(&self, limits: &[(u16, u32)]) {
        for (slot, limit) in limits {
            if let Some(place) = self.limits.get(usize::from(*slot)) {
                place.store(*limit, Relaxed);
            }
        }
    }

    /// True if a server has reached its limit of active sessions.
    pub(crate) fn is_full(&self, slot: u16) -> bool {
        let limit = self.limits.get(usize::from(slot)).map_or(0, |limit| limit.load(Relaxed));
        limit != 0 && self.active_of(slot) >= limit.into()
    }

    fn score_of(&self, slot: u16) -> Score {
        let bits = self.scores.get(usize::from(slot)).map_or(0, |score| score.load(Relaxed));
        Score::of_bits(bits)
    }

    fn active_of(&self, slot: u16) -> u64 {
        self.active.get(usize::from(slot)).map_or(0, |active| active.load(Relaxed))
    }
}

/// Of this many flows, one ignores scores and goes to its first candidate. So the server with the
/// worst score keeps three percent of its share, and its recovery is noticed. The number is a power
/// of two.
pub const EXPLORING: u64 = 32;

/// Number of flows of which [`Score::gain`] is a part.
pub const GAIN_UNIT: u64 = 256;

/// Number of parts into which scores divide the least load of a service. [`Score::load`] 0 stands
/// for the least load, and 255 for nearly 17 times as much.
pub const SCORE_UNIT: u64 = 16;

/// Selects a server for a new session from the ring of `service`. Returns [`NO_SERVER`] if the ring
/// has no server, and [`ALL_FULL`] if all servers have reached their session limits. `hash` is
/// [`crate::path::tables::Vip::ring_hash`].
pub fn select(tables: &Tables, counts: Counts<'_>, service: u16, pick: Pick, hash: FlowHash) -> u16 {
    draw(tables, counts, (service, pick), hash, next)
}

/// Returns the server that [`select`] would return now. Doesn't advance the ring's cursor.
pub fn peek(tables: &Tables, counts: Counts<'_>, service: u16, pick: Pick, hash: FlowHash) -> u16 {
    draw(tables, counts, (service, pick), hash, standing)
}

fn draw(
    tables: &Tables,
    counts: Counts<'_>,
    (service, pick): (u16, Pick),
    hash: FlowHash,
    turn: fn(Counts<'_>, u16) -> u64,
) -> u16 {
    let Some(ring) = tables.rings.get(&service) else {
        return NO_SERVER;
    };
    let server = match (pick, ring.order.len()) {
        (Pick::Hash, _) => by_hash(ring, hash),
        (Pick::Two, _) => two(tables, counts, ring, hash),
        (Pick::Cursor | Pick::Least, 0) => NO_SERVER,
        (Pick::Cursor, len) => ring.order[(turn(counts, service) % len as u64) as usize],
        (Pick::Least, len) => {
            let len = len.min(SERVICE_SERVERS_MAX);
            least(tables, counts, ring, len, (turn(counts, service) % len as u64) as usize)
        }
    };
    if server != NO_SERVER && counts.is_full(server) { next_not_full(counts, ring, hash) } else { server }
}

/// Returns a server of the ring that isn't full. The search starts at an entry by the hash, so
/// flows whose server is full spread over the other servers.
fn next_not_full(counts: Counts<'_>, ring: &Ring, hash: FlowHash) -> u16 {
    let len = ring.order.len().min(ORDER_MAX);
    let begin = hash.0.checked_rem(len as u64).unwrap_or_default() as usize;
    let (behind, ahead) = ring.order.split_at(begin);
    ahead.iter().chain(behind).copied().find(|slot| !counts.is_full(*slot)).unwrap_or(ALL_FULL)
}

/// Returns the server in the flow's slot of the hash table.
pub fn by_hash(ring: &Ring, hash: FlowHash) -> u16 {
    ring.hash.get(hash.hash_slot()).copied().unwrap_or(NO_SERVER)
}

/// Returns the server or host in the flow's slot of [`Ring::previous`], for a flow without a
/// session.
pub fn by_previous(ring: &Ring, hash: FlowHash) -> u16 {
    ring.previous.get(hash.hash_slot()).copied().unwrap_or(NO_SERVER)
}

fn next(counts: Counts<'_>, service: u16) -> u64 {
    counts.cursors.get(usize::from(service)).map_or(0, |cursor| cursor.fetch_add(1, Relaxed))
}

fn standing(counts: Counts<'_>, service: u16) -> u64 {
    counts.cursors.get(usize::from(service)).map_or(0, |cursor| cursor.load(Relaxed))
}

/// Returns the better of the flow's two candidates. The cost of a candidate is its number of
/// sessions including the new one, times its load, divided by its weight.
///
/// Scores are one or two reports old, while session counts are current. So the product of both is
/// compared. With scores alone, all new sessions would go to a server that was idle in its last
/// report, until its next report. If the session counts alone favour the first candidate, the load
/// may decide only for a part of the flows ([`Score::gain`]).
fn two(tables: &Tables, counts: Counts<'_>, ring: &Ring, hash: FlowHash) -> u16 {
    let first = by_hash(ring, hash);
    let second = ring.second.get(hash.hash_slot()).copied().unwrap_or(NO_SERVER);
    let Some(other) = tables.servers.get(&second) else {
        return first;
    };
    let Some(server) = tables.servers.get(&first) else {
        return second;
    };
    let (score, other_score) = (counts.score_of(first), counts.score_of(second));
    // The new session is included, since servers without sessions would be equal otherwise,
    // whatever their weights.
    let (sessions, other_sessions) = (counts.active_of(first) + 1, counts.active_of(second) + 1);
    // cost / weight of the second < cost / weight of the first, without dividing
    let is_second =
        |cost: u64, other_cost: u64| other_cost * u64::from(server.weight) < cost * u64::from(other.weight);
    let by_sessions = is_second(sessions, other_sessions);
    let is_second = if score.load == other_score.load {
        by_sessions
    } else if hash.0.is_multiple_of(EXPLORING) {
        false
    } else {
        let cost = |sessions: u64, score: Score| sessions * (SCORE_UNIT + u64::from(score.load));
        let by_load = is_second(cost(sessions, score), cost(other_sessions, other_score));
        by_load && (by_sessions || hash.0 / EXPLORING % GAIN_UNIT <= u64::from(other_score.gain))
    };
    if is_second { second } else { first }
}

/// Returns the server among the first `len` of the ring with the fewest active sessions for its
/// weight, including the new session. The search starts at the cursor, so that equal servers take
/// turns.
fn least(tables: &Tables, counts: Counts<'_>, ring: &Ring, len: usize, start: usize) -> u16 {
    let mut best = NO_SERVER;
    let (mut best_sessions, mut best_weight) = (0, 0);
    for step in 0..len {
        let at = if start + step >= len { start + step - len } else { start + step };
        let slot = ring.order[at];
        let (Some(server), Some(active)) = (tables.servers.get(&slot), counts.active.get(usize::from(slot)))
        else {
            continue;
        };
        let (sessions, weight) = (active.load(Relaxed) + 1, u64::from(server.weight));
        // sessions / weight < best_sessions / best_weight, without dividing
        if best == NO_SERVER || sessions * best_weight < best_sessions * weight {
            (best, best_sessions, best_weight) = (slot, sessions, weight);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec::Vec;

    use super::*;
    use crate::net::wire::Mac;
    use crate::path::tables::{Forwarding, HASH_SLOTS, SERVER_SLOTS, ServerEntry};
    use proptest::prelude::*;

    /// Returns tables in which servers 1 and 2 are the first and second candidate of each slot.
    fn tables(weights: [u16; 2]) -> Tables {
        let mut tables = Tables::default();
        for (slot, weight) in (1..).zip(weights) {
            let (identity, mac, forwarding) = (slot.into(), Mac::default(), Forwarding::Link);
            let entry = ServerEntry { identity, mac, ifindex: 1, weight, up: true, local: false, forwarding };
            tables.servers.insert(slot, entry);
        }
        let all = |slot| Arc::from(alloc::vec![slot; HASH_SLOTS]);
        let ring = Ring { order: alloc::vec![1, 2], hash: all(1), second: all(2), previous: Arc::default() };
        tables.rings.insert(0, Arc::new(ring));
        tables
    }

    fn choice(tables: &Tables, active: [u64; 2], scores: [u8; 2], hash: u64) -> u16 {
        limited(tables, active, scores, &[], hash)
    }

    /// Like [`choice`], with session limits by slot.
    fn limited(tables: &Tables, active: [u64; 2], scores: [u8; 2], limits: &[u32], hash: u64) -> u16 {
        let mut counts: Vec<AtomicU64> = (0..SERVER_SLOTS).map(|_| AtomicU64::new(0)).collect();
        let places: Vec<AtomicU16> = (0..SERVER_SLOTS).map(|_| AtomicU16::new(0)).collect();
        for (slot, active) in (1..).zip(active) {
            counts[slot] = AtomicU64::new(active);
        }
        let limits: Vec<AtomicU32> = limits.iter().map(|limit| AtomicU32::new(*limit)).collect();
        let counts = Counts { cursors: &[], active: &counts, scores: &places, limits: &limits };
        let score = |load| Score { load, gain: u8::MAX };
        counts.score(&[(1, score(scores[0])), (2, score(scores[1])), (u16::MAX, score(9))]);
        select(tables, counts, 0, Pick::Two, FlowHash(hash))
    }

    #[test]
    fn the_fewer_sessions_win_times_the_load_then_the_first() {
        let even = tables([1, 1]);
        assert_eq!(choice(&even, [0, 0], [0, 0], 1), 1);
        assert_eq!(choice(&even, [1, 0], [0, 0], 1), 2);
        assert_eq!(choice(&even, [0, 0], [8, 7], 1), 2, "of two without sessions the less loaded");
        assert_eq!(choice(&even, [9, 5], [0, 16], 1), 1, "10 x 1 against 6 x 2");
        assert_eq!(choice(&even, [9, 3], [0, 16], 1), 2, "10 x 1 against 4 x 2");
        let heavy = tables([3, 1]);
        assert_eq!(choice(&heavy, [3, 1], [0, 0], 1), 1);
        assert_eq!(choice(&heavy, [5, 1], [0, 0], 1), 1);
        assert_eq!(choice(&heavy, [6, 1], [0, 0], 1), 2, "7 / 3 against 2 / 1");
        assert_eq!(choice(&tables([1, 3]), [0, 0], [0, 0], 1), 2, "weights count where nothing is open");
        assert_eq!(choice(&heavy, [5, 1], [16, 0], 1), 2, "6 x 2 / 3 against 2 x 1 / 1");
        assert_eq!(choice(&heavy, [2, 1], [16, 0], 1), 1, "3 x 2 / 3 against 2 x 1 / 1");
    }

    /// Returns the part of a thousand connections that server 2 gets, with `open` of them open at a
    /// time.
    fn part_of_second(weights: [u16; 2], pick: Pick, open: usize) -> u32 {
        let tables = tables(weights);
        let active: Vec<AtomicU64> = (0..SERVER_SLOTS).map(|_| AtomicU64::new(0)).collect();
        let cursors = [AtomicU64::new(0)];
        let counts = Counts { cursors: &cursors, active: &active, scores: &[], limits: &[] };
        let mut sessions = Vec::new();
        let mut second = 0;
        for flow in 0..1_000 {
            let server = select(&tables, counts, 0, pick, FlowHash(flow * 2_654_435_761));
            second += u32::from(server == 2);
            active[usize::from(server)].fetch_add(1, Relaxed);
            sessions.push(server);
            if sessions.len() > open {
                active[usize::from(sessions.remove(0))].fetch_sub(1, Relaxed);
            }
        }
        second
    }

    #[test]
    fn weights_count_however_few_connections_are_open() {
        for pick in [Pick::Least, Pick::Two] {
            for open in [0, 1, 5, 50] {
                // One server is in slow start and has a tenth of its weight.
                let part = part_of_second([1, 10], pick, open);
                assert!((880..=1_000).contains(&part), "{pick:?}, {open} open: {part} of 1,000");
                let part = part_of_second([10, 1], pick, open);
                assert!((0..=120).contains(&part), "{pick:?}, {open} open: {part} of 1,000");
            }
            let many = part_of_second([1, 10], pick, 50);
            assert!((890..=930).contains(&many), "{pick:?}: {many} of 1,000");
            let even = part_of_second([1, 1], pick, 5);
            assert!((400..=600).contains(&even), "{pick:?}: {even} of 1,000");
        }
    }

    #[test]
    fn full_server_is_passed_over_until_all_are() {
        let even = tables([1, 1]);
        assert_eq!(limited(&even, [1, 5], [0, 0], &[0, 2, 0], 1), 1, "one of two");
        assert_eq!(limited(&even, [2, 5], [0, 0], &[0, 2, 0], 1), 2, "full, though the other has more");
        assert_eq!(limited(&even, [2, 5], [0, 0], &[0, 2, 6], 1), 2);
        assert_eq!(limited(&even, [2, 6], [0, 0], &[0, 2, 6], 1), ALL_FULL);
        assert_eq!(limited(&even, [3, 9], [0, 0], &[0, 2, 6], 2), ALL_FULL, "after a limit was lowered");
    }

    #[test]
    fn missing_server_is_not_selected() {
        let mut one = tables([1, 1]);
        one.servers.remove(&2);
        assert_eq!(choice(&one, [9, 0], [9, 0], 1), 1);
        let mut other = tables([1, 1]);
        other.servers.remove(&1);
        assert_eq!(choice(&other, [0, 9], [0, 9], 1), 2);
        let mut alone = tables([1, 1]);
        Arc::make_mut(alone.rings.get_mut(&0).unwrap()).second = Arc::default();
        assert_eq!(choice(&alone, [9, 0], [9, 0], 1), 1);
    }

    proptest! {
        #[test]
        fn the_worst_keeps_one_flow_in_so_many(hash: u64) {
            let worst_is_chosen = choice(&tables([1, 1]), [0, 0], [u8::MAX, 0], hash) == 1;
            prop_assert_eq!(worst_is_chosen, hash.is_multiple_of(EXPLORING));
        }
    }
}
