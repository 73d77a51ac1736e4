//! Model check of a resize beside one other thread, in all interleavings and with all reorderings
//! of memory that a processor may show (`make model`). The tables have two buckets of two slots.

extern crate std;

use alloc::vec::Vec;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread;

use super::super::{Bucket4, Counted, Extent, FoundSession, Shares, extent_for};
use super::*;

const NOW: u32 = 1;
const ALL: usize = 2;

struct World {
    buckets: Vec<Bucket4>,
    active: [AtomicU64; 2],
    shares: [AtomicU64; 4],
    extent: AtomicU64,
    is_started: AtomicBool,
}

impl World {
    fn new(extent: u64) -> Arc<World> {
        let word = || AtomicU64::new(0);
        Arc::new(World {
            buckets: (0..ALL).map(|_| Bucket4::default()).collect(),
            active: [word(), word()],
            shares: [word(), word(), word(), word()],
            extent: AtomicU64::new(extent),
            is_started: AtomicBool::new(false),
        })
    }

    fn table(&self) -> Table<'_, 1> {
        let counted = Counted { active: &self.active, shares: Shares(&self.shares), ..Counted::NOTHING };
        Table::new(&self.buckets, counted).within(Extent(Some(&self.extent)))
    }

    fn find(&self, key: Words<1>) -> Option<FoundSession<'_>> {
        self.table().find(&key, FlowHash::of(&key, SEED), NOW).map(|(_, found)| found)
    }

    /// Inserts a session. Returns false if there was no room, since a claimed slot is not
    /// available.
    fn insert(&self, key: Words<1>, state: State) -> bool {
        self.table().insert(&key, FlowHash::of(&key, SEED), in_state(state), NOW).is_ok()
    }

    /// Resizes the table without waiting for the other thread to settle.
    fn resize(&self, mask: u32) {
        let table = self.table();
        table.begin_move(mask);
        while table.move_all(0..table.buckets(), SEED, NOW) > 0 {
            thread::yield_now();
        }
        table.end_move();
    }

    /// Returns the states of the session's entries, and asserts that the counts match the table.
    fn check(&self, key: Words<1>) -> Vec<State> {
        let all: Vec<_> = self.table().list(NOW).collect();
        let count = |counts: fn(State) -> bool| all.iter().filter(|(_, value)| counts(value.state())).count();
        assert_eq!(self.active[1].load(Relaxed), count(State::is_active) as u64, "active ones: {all:?}");
        assert_eq!(self.shares[3].load(Relaxed), count(State::is_assured) as u64, "assured ones: {all:?}");
        all.into_iter().filter(|(its, _)| *its == key).map(|(_, value)| value.state()).collect()
    }
}

const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);

fn in_state(state: State) -> Value {
    Value::new(1, state, NOW + 100)
}

/// Returns the first client of VIP 1 with these two buckets in the whole table.
fn client(pair: [usize; 2]) -> Words<1> {
    let keys = (1u64..).map(|client| [client << 32 | 1 << 16 | 1]);
    let hash = |key: &Words<1>| FlowHash::of(key, SEED).buckets(ALL as u32);
    keys.into_iter().find(|key| hash(key) == (pair[0] as u32, pair[1] as u32)).unwrap()
}

/// Buckets of a session that must move when the table grows from one bucket.
const UP: [usize; 2] = [1, 1];

/// Model-checks a table that grows and a table that shrinks, while another thread runs `what`. Runs
/// `after` once both threads have ended.
fn alongside(
    what: impl Fn(&World, Words<1>) + Send + Sync + Copy + 'static,
    after: impl Fn(&World, Words<1>) + Send + Sync + Copy + 'static,
) {
    for (before, mask) in [(extent_for(1, ALL), u32::MAX), (extent_for(2, ALL), 0)] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let (world, key) = (World::new(before), client(UP));
            assert!(world.insert(key, State::Established));
            let other = Arc::clone(&world);
            let thread = thread::spawn(move || what(&other, key));
            world.resize(mask);
            thread.join().unwrap();
            after(&world, key);
        });
    }
}

#[test]
fn a_session_is_found_at_each_moment() {
    alongside(
        |world, key| assert_eq!(world.find(key).map(|found| found.value), Some(in_state(State::Established))),
        |world, key| assert_eq!(world.check(key), [State::Established]),
    );
}

#[test]
fn changing_session_is_counted_by_final_state() {
    alongside(
        |world, key| {
            for state in [State::HalfClosed, State::Established, State::Closing] {
                let found = world.find(key).unwrap();
                world.table().change(found, in_state(state));
            }
        },
        |world, key| assert_eq!(world.check(key).len(), 1),
    );
}

#[test]
fn a_session_that_ends_is_not_counted_any_more() {
    alongside(
        |world, _| assert!(world.table().sweep(NOW, |_, _| false) <= 2),
        // A session that was copied just before a sweep may stay, until the next sweep frees it.
        |world, key| assert!(world.check(key).len() <= 1),
    );
}

#[test]
fn a_session_that_begins_is_found_from_then_on() {
    alongside(
        |world, _| {
            let new = client([1, 0]);
            if world.insert(new, State::New) {
                assert!(world.find(new).is_some());
                world.is_started.store(true, Relaxed);
            }
        },
        |world, key| {
            assert_eq!(world.check(key), [State::Established]);
            assert_eq!(world.check(client([1, 0])).len(), usize::from(world.is_started.load(Relaxed)));
        },
    );
}
