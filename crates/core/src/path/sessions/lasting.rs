//! Finds the sessions that have lasted, for telling them to other directors. Most connections of
//! the web end sooner, so few are told.
//!
//! A session has lasted if two visits of its slot, half a second apart, find it established. The
//! state between two visits is one word per slot, so packets have no more work.

use alloc::vec::Vec;
use core::ops::Range;

use super::{BUCKET_SESSIONS, Session, SessionKey, Sessions, Table, Value, Words};
use crate::path::seed::Seed;

/// Lower bits of a slot's word. The upper bits are a hash of the session.
const STAGE: u32 = 0b11;
/// The last visit found the session established.
const SEEN: u32 = 1;
/// The session was told.
const REPLICATED: u32 = 2;

/// Change of a session that other directors must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// The session has lasted, or its refresh is due.
    Lives,
    /// A session that was told is closing.
    Ended,
}

/// State of the visits of all slots.
#[derive(Clone, Debug, Default)]
pub struct LastingSessions {
    /// Words by slot, of IPv4 and of IPv6 sessions.
    words: [Vec<u32>; 2],
}

impl LastingSessions {
    /// Visits the sessions of these buckets, which are numbered as in [`Sessions::sweep`]. With
    /// `refresh`, sessions that were told are told again. `emit` returns false if a session can't
    /// be told now; it is tried again at the next visit.
    pub fn visit(
        &mut self,
        sessions: &Sessions<'_>,
        range: Range<usize>,
        (now, seed): (u32, Seed),
        refresh: bool,
        mut emit: impl FnMut(Session, Lasting) -> bool,
    ) {
        let four = sessions.four.buckets();
        let in_six = range.start.saturating_sub(four)..range.end.saturating_sub(four);
        let [words4, words6] = &mut self.words;
        let mut at_slot = |word: &mut u32, key: SessionKey, value: Value| {
            step(word, Session { key, value }, seed, refresh, &mut emit);
        };
        visit(&sessions.four, range.start..range.end.min(four), words4, now, |word, key, value| {
            at_slot(word, SessionKey::of_word(key), value);
        });
        visit(&sessions.six, in_six, words6, now, |word, key, value| {
            at_slot(word, SessionKey::of_words(key), value);
        });
    }
}

fn visit<const N: usize>(
    table: &Table<'_, N>,
    range: Range<usize>,
    words: &mut Vec<u32>,
    now: u32,
    mut at_slot: impl FnMut(&mut u32, Words<N>, Value),
) {
    let end = range.end.min(table.buckets.len());
    if words.len() < end * BUCKET_SESSIONS {
        words.resize(end * BUCKET_SESSIONS, 0);
    }
    let buckets = table.buckets.iter().zip(words.chunks_exact_mut(BUCKET_SESSIONS));
    for (bucket, words) in buckets.take(end).skip(range.start) {
        for (slot, word) in bucket.0.iter().zip(words) {
            let value = slot.value();
            let may_be_replicated =
                value.is_live(now) && (value.state().is_assured() || value.state().is_ending());
            if !may_be_replicated {
                *word = 0;
                continue;
            }
            if value.state().is_ending() && *word & STAGE != REPLICATED {
                continue;
            }
            let (key, value) = slot.read();
            at_slot(word, key, value);
        }
    }
}

fn step(
    word: &mut u32,
    session: Session,
    seed: Seed,
    refresh: bool,
    emit: &mut impl FnMut(Session, Lasting) -> bool,
) {
    let state = session.value.state();
    let hash = (session.key.hash(seed).0 >> 32) as u32 ^ u32::from(session.value.server()).rotate_right(8);
    let (hash, is_same) = (hash & !STAGE, *word & !STAGE == hash & !STAGE);
    let was = if is_same { *word & STAGE } else { 0 };
    if state.is_ending() {
        if was == REPLICATED && session.value.has_ended() && emit(session, Lasting::Ended) {
            *word = 0;
        }
        return;
    }
    let emits = was == SEEN || (was == REPLICATED && refresh);
    let stage = match emits && emit(session, Lasting::Lives) {
        true => REPLICATED,
        false => was.max(SEEN),
    };
    *word = hash | stage;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::sessions::{Bucket4, Counted, State};

    const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9);

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
            lasting.visit(&sessions, 0..sessions.buckets(), (now, SEED), refresh, |session, what| {
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
            lasting.visit(sessions, 0..sessions.buckets(), (0, SEED), false, |_, _| {
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
}
