//! Hash table in force. All configured servers together fill a base table, which is the same on all
//! directors. A server that does not serve is replaced in its own slots, and no other slot changes.

use alloc::vec::Vec;

use super::Weighted;
use super::hash::mixed;
use crate::path::tables::{SERVER_SLOTS, place};

/// Number of random draws for a replacement in a slot whose server does not serve. If no draw hits
/// a serving server, the server of the next slot that has one is used. If one server in sixteen
/// serves, 1.6 percent of slots reach this limit.
const DRAWS: u64 = 64;

/// Value of [`parts`] for a server that keeps all its slots.
const WHOLE: u128 = 1 << 32;

/// Returns the table in force. It is the `base` that [`maglev`](super::maglev) computed from the
/// `configured` servers, with replacements for servers that are not in `serving`. `serving` has
/// current weights. The table is empty if no server serves.
///
/// Each slot has a sequence of servers that depends on `base` alone and begins with the slot's own
/// server. The first serving server of the sequence gets the slot. So directors that consider
/// different servers as working still agree about most slots. A server with a part of its weight
/// keeps that part of its slots, which are always the same slots.
pub fn refilled(base: &[u16], configured: &[Weighted], serving: &[Weighted]) -> Vec<u16> {
    let parts = parts(configured, serving);
    let part = |server: u16| parts[place(server)];
    let takes = |server: u16, drawn: u64| part(server) > drawn >> 32;
    let Some(mut next) = base.iter().copied().find(|server| part(*server) > 0) else {
        return Vec::new();
    };
    let mut table = base.to_vec();
    for (at, slot) in table.iter_mut().enumerate().rev() {
        let own = *slot;
        let first = at as u64 * (DRAWS + 1);
        if !takes(own, mixed(first)) {
            let mut others = (1..=DRAWS).map(|turn| {
                let drawn = mixed(first + turn);
                (base[drawn as u32 as usize % base.len()], drawn)
            });
            *slot = others.find(|(server, drawn)| takes(*server, *drawn)).map_or(next, |(server, _)| server);
        }
        if part(own) > 0 {
            next = own;
        }
    }
    table
}

/// Returns the part of its slots that each server keeps, by slot number: [`WHOLE`] for the servers
/// with the largest ratio of current to configured weight.
fn parts(configured: &[Weighted], serving: &[Weighted]) -> Vec<u64> {
    let mut whole = alloc::vec![0; SERVER_SLOTS];
    configured.iter().for_each(|one| whole[place(one.slot)] = u128::from(one.weight));
    let ratio = |one: &Weighted| u128::from(one.weight) * WHOLE / whole[place(one.slot)].max(1);
    let most = serving.iter().map(ratio).max().unwrap_or(0).max(1);
    let mut parts = alloc::vec![0; SERVER_SLOTS];
    for one in serving {
        parts[place(one.slot)] = (ratio(one) * WHOLE / most) as u64;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::hash::tests::members;
    use super::super::{maglev, second_candidates};
    use super::*;
    use crate::path::tables::HASH_SLOTS;
    use alloc::sync::Arc;
    use proptest::prelude::*;

    fn share(table: &[u16], slot: u16) -> f64 {
        table.iter().filter(|one| **one == slot).count() as f64 / HASH_SLOTS as f64
    }

    #[test]
    fn base_is_in_force_while_all_serve() {
        let all = members(&[1, 2, 3], 5);
        let base = maglev(&all, HASH_SLOTS);
        assert_eq!(refilled(&base, &all, &all), base);
        let tenfold: Vec<Weighted> =
            all.iter().map(|one| Weighted { weight: one.weight * 10, ..*one }).collect();
        assert_eq!(refilled(&base, &all, &tenfold), base);
        assert!(refilled(&base, &all, &[]).is_empty());
        assert!(refilled(&[], &[], &[]).is_empty());
    }

    #[test]
    fn last_server_has_all_slots() {
        let all = members(&[u16::MAX, 1], 5);
        let base = maglev(&all, HASH_SLOTS);
        for one in &all {
            assert!(refilled(&base, &all, &[*one]).iter().all(|slot| *slot == one.slot));
        }
    }

    #[test]
    fn rising_server_gains_slots_and_loses_none() {
        let all = members(&[3, 3, 6, 1], 5);
        let base = maglev(&all, HASH_SLOTS);
        let mut before = refilled(&base, &all, &[all[1], all[2], all[3]]);
        for tenths in 1..=10_u16 {
            let weight = |one: &Weighted| one.weight * if one.slot == 1 { tenths } else { 10 };
            let now: Vec<Weighted> = all.iter().map(|one| Weighted { weight: weight(one), ..*one }).collect();
            let table = refilled(&base, &all, &now);
            let due = f64::from(3 * tenths) / f64::from(100 + 3 * tenths);
            assert!((share(&table, 1) - due).abs() < 0.01, "{tenths}: {} of {due}", share(&table, 1));
            let is_kept = |(was, is): (&u16, &u16)| was == is || *is == 1;
            assert!(before.iter().zip(&table).all(is_kept), "{tenths} tenths");
            before = table;
        }
        assert_eq!(before, base);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn directors_agree_where_both_hold_servers_for_working(
            weights in prop::collection::vec(1u16..=10, 2..24), seed: u64,
            working in prop::collection::vec(any::<u32>(), 64)
        ) {
            let all = members(&weights, seed);
            let base = maglev(&all, HASH_SLOTS);
            let works = |bits: u32, slot: u16| bits >> slot & 1 == 1;
            let tables: Vec<(u32, Vec<u16>, Arc<[u16]>)> = working
                .into_iter()
                .map(|bits| {
                    let serving: Vec<Weighted> = all.iter().copied().filter(|one| works(bits, one.slot)).collect();
                    let table = refilled(&base, &all, &serving);
                    let second = second_candidates(&table);
                    (bits, table, second)
                })
                .collect();
            for ((one, firsts, seconds), (other, their_firsts, their_seconds)) in tables.iter().zip(&tables[1..]) {
                let both = |slot: u16| works(*one & *other, slot);
                for (at, (ours, theirs)) in firsts.iter().zip(their_firsts).enumerate() {
                    prop_assert!(ours == theirs || !both(*ours) || !both(*theirs));
                    let (Some(second), Some(their_second)) = (seconds.get(at), their_seconds.get(at)) else {
                        continue;
                    };
                    let all_work = [ours, theirs, second, their_second].iter().all(|slot| both(**slot));
                    prop_assert!(second == their_second || !all_work);
                }
            }
        }

        #[test]
        fn slots_of_a_failed_server_go_to_others_by_weight(
            weights in prop::collection::vec(1u16..=10, 2..24), seed: u64, out: prop::sample::Index
        ) {
            let all = members(&weights, seed);
            let base = maglev(&all, HASH_SLOTS);
            let failed = all[out.index(all.len())].slot;
            let serving: Vec<Weighted> = all.iter().copied().filter(|one| one.slot != failed).collect();
            let table = refilled(&base, &all, &serving);
            let total: f64 = serving.iter().map(|one| f64::from(one.weight)).sum();
            for one in &serving {
                let (share, due) = (share(&table, one.slot), f64::from(one.weight) / total);
                prop_assert!((share / due - 1.0).abs() < 0.1, "{share}, due {due}");
            }
            let astray = base.iter().zip(&table).filter(|(was, is)| **was != failed && was != is);
            prop_assert_eq!(astray.count(), 0);
        }
    }
}
