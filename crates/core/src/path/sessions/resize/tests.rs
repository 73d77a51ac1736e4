//! Tests of tables that grow and shrink: with packets between any two steps, with a daemon that
//! dies at any step, and with several threads at once.

extern crate std;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicBool, AtomicU64};

use proptest::prelude::*;

use super::super::{ALL_BUCKETS, Bucket4, Counted, SHARE_WORDS, SessionKey, Shares, buckets_for, extent_for};
use super::*;

const SEED: Seed = Seed(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
/// Number of buckets of the whole table. It is not a power of two.
const ALL: usize = 52;
const LIFE: u32 = 1_000;

/// Table of IPv4 sessions with its counts.
struct World {
    buckets: Vec<Bucket4>,
    active: Vec<AtomicU64>,
    shares: Vec<AtomicU64>,
    extent: AtomicU64,
}

impl World {
    fn new(all: usize, extent: u64) -> World {
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        World {
            buckets: (0..all).map(|_| Bucket4::default()).collect(),
            active: words(8),
            shares: words(SHARE_WORDS),
            extent: AtomicU64::new(extent),
        }
    }

    fn table(&self) -> Table<'_, 1> {
        let counted = Counted { active: &self.active, shares: Shares(&self.shares), ..Counted::NOTHING };
        Table::new(&self.buckets, counted).within(super::super::Extent(Some(&self.extent)))
    }

    fn insert(&self, client: u32, state: State, now: u32) -> bool {
        let (key, hash) = key(client);
        let value = Value::new(1, state, now.wrapping_add(LIFE));
        self.table().insert(&key, hash, value, now).is_ok()
    }

    fn finds(&self, client: u32, now: u32) -> bool {
        let (key, hash) = key(client);
        self.table().find(&key, hash, now).is_some()
    }

    /// Sweeps expired sessions, asserts that the counts match the table, and returns its sessions.
    fn check(&self, now: u32) -> BTreeMap<Words<1>, Value> {
        self.table().sweep(now, |_, _| true);
        let all: Vec<_> = self.table().list(now).collect();
        let count =
            |counts: fn(State) -> bool| all.iter().filter(|(_, value)| counts(value.state())).count() as u64;
        assert_eq!(self.active[1].load(Relaxed), count(State::is_active), "active ones");
        assert_eq!(Shares(&self.shares).assured(1), count(State::is_assured), "assured ones");
        all.into_iter().collect()
    }
}

fn key(client: u32) -> (Words<1>, FlowHash) {
    let key = SessionKey { client: Ipv4Addr::from_bits(client).into(), port: 1, vip: 1 };
    ([u64::from(client) << 32 | 1 << 16 | 1], key.hash(SEED))
}

/// Resizes the table. The resize stays under way if a session finds no room.
fn move_to(table: &Table<'_, 1>, mask: u32, now: u32) {
    table.begin_move(mask);
    if table.move_all(0..table.buckets(), SEED, now) == 0 {
        table.end_move();
    }
}

#[derive(Clone, Debug)]
enum Act {
    Insert {
        client: u32,
        state: State,
    },
    Change {
        client: u32,
        state: State,
    },
    Pass {
        ticks: u32,
    },
    /// Starts a resize, unless another one is under way.
    Begin {
        buckets: usize,
    },
    /// Moves one bucket. After the last bucket, ends the resize if all sessions have found room.
    Walk,
    /// The daemon dies. The next walk starts at the first bucket.
    Die,
}

fn act() -> impl Strategy<Value = Act> {
    let flow = || (0u32..200, prop::sample::select(State::ALL.to_vec()));
    prop_oneof![
        6 => flow().prop_map(|(client, state)| Act::Insert { client, state }),
        6 => flow().prop_map(|(client, state)| Act::Change { client, state }),
        1 => (0u32..40).prop_map(|ticks| Act::Pass { ticks }),
        2 => (1usize..=ALL).prop_map(|buckets| Act::Begin { buckets }),
        30 => Just(Act::Walk),
        1 => Just(Act::Die),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sessions_are_found_and_counted_between_any_two_steps(acts in prop::collection::vec(act(), 1..600)) {
        let world = World::new(ALL, extent_for(4, ALL));
        let table = world.table();
        let (mut now, mut next, mut left) = (u32::MAX - 300, 0, 0);
        let mut known: BTreeMap<u32, (State, u32)> = BTreeMap::new();
        for act in acts {
            match act {
                Act::Pass { ticks } => now = now.wrapping_add(ticks),
                Act::Insert { client, state } => {
                    // Inserts into full buckets are left out, since they evict another session.
                    // Another test covers this.
                    let (words, hash) = key(client);
                    let masks = table.extent.masks();
                    let has_room = |mask| table.pair(hash, mask).unwrap().iter().any(|number| {
                        world.buckets[*number].0.iter().any(|slot| Value(slot.value.load(Relaxed)).is_vacant(now))
                    });
                    if table.find(&words, hash, now).is_none() && has_room(masks.now) {
                        prop_assert!(world.insert(client, state, now));
                        known.insert(client, (state, now.wrapping_add(LIFE)));
                    }
                }
                Act::Change { client, state } => {
                    let (words, hash) = key(client);
                    if let Some((_, found)) = table.find(&words, hash, now) {
                        let expires = now.wrapping_add(LIFE);
                        prop_assert!(table.change(found, Value::new(1, state, expires)));
                        known.insert(client, (state, expires));
                    }
                }
                Act::Begin { buckets } if !table.extent.masks().is_moving() => {
                    table.begin_move(mask_for(buckets, ALL));
                    (next, left) = (0, 0);
                }
                Act::Begin { .. } => {}
                Act::Walk if table.extent.masks().is_moving() => {
                    left += table.move_all(next..next + 1, SEED, now);
                    next += 1;
                    if next == table.buckets() {
                        if left == 0 {
                            table.end_move();
                        }
                        (next, left) = (0, 0);
                    }
                }
                Act::Walk => {}
                Act::Die => {
                    (next, left) = (0, 0);
                    for count in world.active.iter() {
                        count.store(0, Relaxed);
                    }
                    Shares(&world.shares).clear_counts();
                    table.recover(now);
                }
            }
            known.retain(|_, (_, expires)| (expires.wrapping_sub(now) as i32) > 0);
            for (client, (state, expires)) in &known {
                let (words, hash) = key(*client);
                let found = table.find(&words, hash, now).map(|(_, found)| (found.value.state(), found.value.expires()));
                prop_assert_eq!(found, Some((*state, *expires)), "{}", client);
            }
            prop_assert_eq!(world.check(now).len(), known.len());
        }
    }
}

/// A daemon that dies between two writes leaves a claimed slot, or a copy that isn't counted.
#[test]
fn a_move_that_was_cut_is_made_good_by_the_next_one() {
    for is_copied in [false, true] {
        let world = World::new(ALL, extent_for(16, ALL));
        let table = world.table();
        assert!((0..60).all(|client| world.insert(client, State::Established, 1)));
        table.begin_move(u32::MAX);
        let mask = table.extent.masks().now;
        for client in 0..30 {
            let (words, hash) = key(client);
            let (number, found) = table.find(&words, hash, 1).unwrap();
            let pair = table.pair(hash, mask).unwrap();
            if pair.contains(&(number / BUCKET_SESSIONS)) {
                continue;
            }
            let (_, place) = table.claim_in(table.order(pair, 1), hash, 1).unwrap();
            if is_copied {
                place.write(&words, found.value);
            }
        }
        assert!((0..60).all(|client| world.finds(client, 1)), "packets find all meanwhile");
        // The next daemon starts.
        world.active.iter().for_each(|count| count.store(0, Relaxed));
        Shares(&world.shares).clear_counts();
        table.recover(1);
        assert_eq!(table.move_all(0..table.buckets(), SEED, 1), 0);
        table.end_move();
        assert!((0..60).all(|client| world.finds(client, 1)));
        assert_eq!(world.check(1).len(), 60);
    }
}

#[test]
fn a_table_without_room_for_all_stays_in_both_extents_until_there_is() {
    let world = World::new(ALL, ALL_BUCKETS);
    let table = world.table();
    assert!((0..100).all(|client| world.insert(client, State::Established, 1)));
    move_to(&table, mask_for(4, ALL), 1);
    assert!(table.extent.masks().is_moving(), "32 places don't hold a hundred");
    assert!((0..100).all(|client| world.finds(client, 1)));
    assert_eq!(world.check(1).len(), 100);
    for client in 20..100 {
        let (words, hash) = key(client);
        let (_, found) = table.find(&words, hash, 1).unwrap();
        table.change(found, Value::new(1, State::Closing, 2));
    }
    assert_eq!(table.move_all(0..table.buckets(), SEED, 3), 0);
    table.end_move();
    assert_eq!((table.buckets(), world.check(3).len()), (4, 20));
    assert!((0..20).all(|client| world.finds(client, 3)));
}

/// Takes steps until the next step may wait.
fn fit(world: &World, fitting: &mut TableResizer, most: usize, now: u32) {
    let none: [super::super::Bucket6; 0] = [];
    let counted = Counted { active: &world.active, shares: Shares(&world.shares), ..Counted::NOTHING };
    let sessions = Sessions::new(&world.buckets, &none, counted).within(core::slice::from_ref(&world.extent));
    for _ in 0..10_000 {
        match fitting.step(&sessions, [most, 0], SEED, now) {
            ResizeStep::Settle => fitting.settled(),
            ResizeStep::Walk => {}
            ResizeStep::Watch | ResizeStep::Rest => break,
        }
    }
}

#[test]
fn a_table_grows_with_its_sessions_and_shrinks_once_they_are_gone() {
    let all = buckets_for(400_000);
    let world = World::new(all, extent_for(FIRST_BUCKETS, all));
    let mut fitting = TableResizer::default();
    let (mut used, mut refused) = (Vec::new(), 0);
    for client in 0..400_000u32 {
        if client % 500 == 0 {
            fit(&world, &mut fitting, all, 1);
            used.push(world.table().buckets());
        }
        refused += u32::from(!world.insert(client, State::Established, 1));
    }
    assert_eq!(refused, 0);
    used.dedup();
    assert_eq!(used, [2_048, 4_096, 8_192, 16_384, 32_768, 65_536, all]);
    assert_eq!(world.check(1).len(), 400_000);
    // End all but a thousand sessions.
    world.table().sweep(1, |key, _| key[0] >> 32 < 1_000);
    for _ in 0..2_000 {
        fit(&world, &mut fitting, all, 1);
    }
    assert_eq!(world.table().buckets(), FIRST_BUCKETS);
    assert!((0..1_000).all(|client| world.finds(client, 1)));
    assert_eq!(world.check(1).len(), 1_000);
    // The configuration may bound the number of buckets.
    for client in 1_000..60_000 {
        world.insert(client, State::Established, 1);
        fit(&world, &mut fitting, 5_000, 1);
    }
    assert_eq!(world.table().buckets(), 8_192);
}

/// During resizes, other threads look up, change, add and end sessions. No lookup misses a session,
/// and the final counts are right.
#[test]
fn threads_find_sessions_during_resize() {
    const STAYING: u32 = 150;
    let all = 333;
    let world = World::new(all, extent_for(64, all));
    for client in 0..STAYING {
        assert!(world.insert(client, State::Established, 1));
    }
    let over = AtomicBool::new(false);
    // Number of operations of each thread. The test uses it so that no thread sleeps through
    // several resizes, which doesn't happen in production.
    let done = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        let reader = || {
            while !over.load(Relaxed) {
                for client in 0..STAYING {
                    assert!(world.finds(client, 1), "{client}");
                    done[0].fetch_add(1, Relaxed);
                }
            }
        };
        let changer = || {
            let states = [State::Established, State::HalfClosed, State::Closing, State::New];
            for turn in (0..).take_while(|_| !over.load(Relaxed)) {
                let (words, hash) = key(turn as u32 % STAYING);
                let (_, found) = world.table().find(&words, hash, 1).unwrap();
                let expires = 1 + LIFE + turn as u32 % 7;
                world.table().change(found, Value::new(1, states[turn % 4], expires));
                done[1].fetch_add(1, Relaxed);
            }
        };
        let coming = || {
            for turn in (0u32..).take_while(|_| !over.load(Relaxed)) {
                let (words, hash) = key(STAYING + turn % 50);
                match world.table().find(&words, hash, 1) {
                    // The session expires at once, so its slot becomes vacant.
                    Some((_, found)) => drop(world.table().change(found, Value::new(1, State::Closing, 1))),
                    None => drop(world.insert(STAYING + turn % 50, State::Closing, 1)),
                }
                done[2].fetch_add(1, Relaxed);
            }
        };
        let threads = [scope.spawn(reader), scope.spawn(changer), scope.spawn(coming)];
        for turn in 0..400 {
            let table = world.table();
            table.begin_move(mask_for([64, 256, 128, all][turn % 4], all));
            while table.move_all(0..table.buckets(), SEED, 1) > 0 {}
            table.end_move();
            let before: Vec<u64> = done.iter().map(|count| count.load(Relaxed)).collect();
            let has_failed = || threads.iter().any(|thread| thread.is_finished());
            while done.iter().zip(&before).any(|(count, before)| count.load(Relaxed) == *before)
                && !has_failed()
            {
                std::thread::yield_now();
            }
        }
        over.store(true, Relaxed);
    });
    let end = 1 + LIFE;
    let all: Vec<_> = world.table().list(1).filter(|(key, _)| key[0] >> 32 < u64::from(STAYING)).collect();
    assert_eq!(all.len(), STAYING as usize);
    assert!(all.iter().all(|(_, value)| value.expires() >= end));
    world.check(1);
}
