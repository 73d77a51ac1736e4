//! Finds the sessions and affinity entries that have lasted, for telling them to other directors.
//! Most connections of the web end sooner, so few are told.
//!
//! A session has lasted if two visits of its slot, half a second apart, find it established. The
//! state between two visits is one word per slot, so packets have no more work.

use alloc::vec::Vec;
use core::ops::Range;

use super::{BUCKET_SESSIONS, REPLICATED_ENTRY, Session, SessionKey, Sessions, State, Table, Value, Words};

/// Lower bits of a slot's word. The upper bits are a hash of the session.
const STAGE: u32 = 0b11;
/// The last visit found the session established.
const SEEN: u32 = 1;
/// The session was told.
const REPLICATED: u32 = 2;

/// News of a session or an affinity entry for other directors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// The session has lasted, or its refresh is due.
    Lives,
    /// A session that was told is closing.
    Ended,
    /// The affinity entry has lasted, or its refresh is due.
    Affinity,
}

impl Lasting {
    /// Returns the news that a slot with this value may have. `None` for embryonic sessions, and
    /// for copies of another director's sessions and entries.
    pub const fn of(value: Value) -> Option<Lasting> {
        match value.state() {
            State::Established | State::Udp => Some(Lasting::Lives),
            State::Closing | State::HalfClosed | State::ServerClosed => Some(Lasting::Ended),
            State::Affinity if value.mark() != REPLICATED_ENTRY => Some(Lasting::Affinity),
            _ => None,
        }
    }
}

/// Number of passes over all slots after which what was told is told again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefreshPeriods {
    pub tcp: u32,
    pub udp: u32,
    pub affinity: u32,
}

impl RefreshPeriods {
    /// True if the refresh of a slot in this state is due in this pass. Buckets take turns.
    fn is_due(&self, state: State, pass: u32, bucket: usize) -> bool {
        let period = match state {
            State::Udp => self.udp,
            State::Affinity => self.affinity,
            _ => self.tcp,
        };
        pass.wrapping_add(bucket as u32).is_multiple_of(period.max(1))
    }
}

/// State of the visits of all slots.
#[derive(Clone, Debug, Default)]
pub struct LastingSessions {
    /// Words by slot, of IPv4 and of IPv6 sessions.
    words: [Vec<u32>; 2],
}

impl LastingSessions {
    /// Visits the sessions of these buckets, which are numbered as in [`Sessions::sweep`], in the
    /// pass with this number. `emit` returns false if a session can't be told now; it is tried
    /// again at the next visit.
    pub fn visit(
        &mut self,
        sessions: &Sessions<'_>,
        range: Range<usize>,
        (now, pass): (u32, u32),
        periods: RefreshPeriods,
        mut emit: impl FnMut(Session, Lasting) -> bool,
    ) {
        let four = sessions.four.buckets();
        let in_six = range.start.saturating_sub(four)..range.end.saturating_sub(four);
        let [words4, words6] = &mut self.words;
        let is_due = |state, bucket| periods.is_due(state, pass, bucket);
        visit(&sessions.four, range.start..range.end.min(four), words4, now, is_due, |key, value, what| {
            emit(Session { key: SessionKey::of_word(key), value }, what)
        });
        visit(&sessions.six, in_six, words6, now, is_due, |key, value, what| {
            emit(Session { key: SessionKey::of_words(key), value }, what)
        });
    }
}

fn visit<const N: usize>(
    table: &Table<'_, N>,
    range: Range<usize>,
    words: &mut Vec<u32>,
    now: u32,
    is_due: impl Fn(State, usize) -> bool,
    mut emit: impl FnMut(Words<N>, Value, Lasting) -> bool,
) {
    let end = range.end.min(table.buckets.len());
    if words.len() < end * BUCKET_SESSIONS {
        words.resize(end * BUCKET_SESSIONS, 0);
    }
    let buckets = table.buckets.iter().zip(words.chunks_exact_mut(BUCKET_SESSIONS)).enumerate();
    for (number, (bucket, words)) in buckets.take(end).skip(range.start) {
        for (slot, word) in bucket.0.iter().zip(words) {
            let lasting = |value: Value| Lasting::of(value).filter(|_| value.is_live(now));
            let Some(what) = lasting(slot.value()) else {
                *word = 0;
                continue;
            };
            if what == Lasting::Ended && *word & STAGE != REPLICATED {
                continue;
            }
            let (key, value) = slot.read();
            if let Some(what) = lasting(value) {
                let is_due = || is_due(value.state(), number);
                step(word, hash(&key, value), what, is_due, || {
                    (what != Lasting::Ended || value.has_ended()) && emit(key, value, what)
                });
            }
        }
    }
}

/// Returns a hash of a session and its server. An attacker may find two sessions with the same
/// hash, but gains nothing if one of them isn't told.
fn hash<const N: usize>(key: &Words<N>, value: Value) -> u32 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = key.iter().fold(value.server().into(), |hash, word| mix(hash, *word));
    (hash ^ hash >> 32) as u32 & !STAGE
}

fn step(
    word: &mut u32,
    hash: u32,
    what: Lasting,
    is_due: impl FnOnce() -> bool,
    emit: impl FnOnce() -> bool,
) {
    let was = if *word & !STAGE == hash { *word & STAGE } else { 0 };
    if what == Lasting::Ended {
        if was == REPLICATED && emit() {
            *word = 0;
        }
        return;
    }
    let emits = was == SEEN || (was == REPLICATED && is_due());
    let stage = if emits && emit() { REPLICATED } else { was.max(SEEN) };
    *word = hash | stage;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::seed::Seed;
    use crate::path::sessions::{Bucket4, Counted};

    const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9);

    const NEVER: RefreshPeriods = RefreshPeriods { tcp: u32::MAX, udp: u32::MAX, affinity: u32::MAX };

    fn key(port: u16) -> SessionKey {
        SessionKey { client: [203, 0, 113, 11].into(), port, vip: 1 }
    }

    #[test]
    fn session_is_told_at_its_second_visit_and_when_it_ends() {
        let buckets: Vec<Bucket4> = (0..16).map(|_| Bucket4::default()).collect();
        let sessions = Sessions::new(&buckets, &[], Counted::NOTHING);
        let mut lasting = LastingSessions::default();
        let mut visit = |now: u32, refresh: bool, may: bool| {
            let mut seen = Vec::new();
            let periods = RefreshPeriods { tcp: if refresh { 1 } else { u32::MAX }, ..NEVER };
            lasting.visit(&sessions, 0..sessions.buckets(), (now, 1), periods, |session, what| {
                seen.push((session.key.port, what));
                may
            });
            seen
        };
        let insert = |port: u16, state: State| {
            let key = key(port);
            sessions.insert(key, key.hash(SEED), Value::new(1, state, 10_000), 0).unwrap();
        };
        let to = |port: u16, state: State| {
            let found = sessions.find(key(port), key(port).hash(SEED), 0).unwrap();
            assert!(sessions.change(found, found.value.moved_to(state, 10_000)));
        };
        insert(1, State::Established);
        insert(2, State::New);
        insert(3, State::Replicated);
        assert_eq!(visit(1, false, true), []);
        to(2, State::Established);
        assert_eq!(visit(2, false, false), [(1, Lasting::Lives)]);
        assert_eq!(visit(3, false, true).len(), 2);
        assert_eq!(visit(4, false, true), []);
        assert_eq!(visit(5, true, true).len(), 2);
        to(1, State::Closing);
        assert_eq!(visit(6, false, true), [(1, Lasting::Ended)]);
        assert_eq!(visit(7, true, true), [(2, Lasting::Lives)]);
        // An expired session is forgotten without a word.
        assert_eq!(visit(10_000, true, true), []);
    }

    #[test]
    fn another_session_in_the_slot_begins_anew() {
        let buckets: Vec<Bucket4> = (0..2).map(|_| Bucket4::default()).collect();
        let sessions = Sessions::new(&buckets, &[], Counted::NOTHING);
        let mut lasting = LastingSessions::default();
        let mut count = |sessions: &Sessions<'_>| {
            let mut count = 0;
            lasting.visit(sessions, 0..sessions.buckets(), (0, 1), NEVER, |_, _| {
                count += 1;
                true
            });
            count
        };
        for port in 1..100 {
            let key = key(port);
            sessions.insert(key, key.hash(SEED), Value::new(1, State::Udp, 10_000), 0).unwrap();
            assert_eq!(count(&sessions), 0, "{port}");
            sessions.clear(0);
        }
    }

    #[test]
    fn affinity_entry_is_told_unless_another_director_told_it() {
        let buckets: Vec<Bucket4> = (0..16).map(|_| Bucket4::default()).collect();
        let sessions = Sessions::new(&buckets, &[], Counted::NOTHING);
        let entry = Value::new(1, State::Affinity, 10_000);
        for (port, value) in [(1, entry), (2, entry.with_mark(REPLICATED_ENTRY))] {
            sessions.insert(key(port), key(port).hash(SEED), value, 0).unwrap();
        }
        let mut lasting = LastingSessions::default();
        let mut seen = Vec::new();
        for pass in 0..2 {
            lasting.visit(&sessions, 0..sessions.buckets(), (pass, 1), NEVER, |session, what| {
                seen.push((session.key.port, what));
                true
            });
        }
        assert_eq!(seen, [(1, Lasting::Affinity)]);
    }

    #[test]
    fn each_kind_is_refreshed_once_in_its_period() {
        let periods = RefreshPeriods { tcp: 600, udp: 40, affinity: 7 };
        for (state, period) in [(State::Established, 600), (State::Udp, 40), (State::Affinity, 7)] {
            for bucket in [0, 5, 10_000] {
                let due = (100..100 + period).filter(|pass| periods.is_due(state, *pass, bucket)).count();
                assert_eq!(due, 1, "{state:?}, bucket {bucket}");
            }
        }
    }
}
