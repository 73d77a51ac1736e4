//! Hash tables that were filled lately: a server that fails and comes back, is drained and taken up
//! again, or a change that the engine refused and that is tried again, costs no second fill.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Weighted, maglev};
use crate::path::tables::{HASH_SLOTS, NO_SERVER, SERVER_SLOTS, place};

/// Tables that are kept at most: two for each service of the largest farm, 16 MiB.
const KEPT: usize = 128;

/// Hash tables by their members; those that were asked for last.
#[derive(Clone, Debug)]
pub struct Fills {
    tables: BTreeMap<(WeightedPlaces, Vec<u16>), CachedTable>,
    kept: usize,
    used: u64,
}

/// The source of the members' places, and their weights in lowest terms. With their slots it is all
/// that a table depends on.
type WeightedPlaces = Vec<(u64, u16)>;

impl Default for Fills {
    fn default() -> Fills {
        Fills::keeping(KEPT)
    }
}

#[derive(Clone, Debug)]
struct CachedTable {
    table: Arc<[u16]>,
    /// When it was asked for last, counted in questions.
    used: u64,
}

impl Fills {
    /// Keeps so many tables, of 128 KiB each.
    pub const fn keeping(kept: usize) -> Fills {
        Fills { tables: BTreeMap::new(), kept, used: 0 }
    }

    /// The table of [`HASH_SLOTS`] entries that [`maglev`] makes of these members.
    pub fn table(&mut self, members: &[Weighted]) -> Arc<[u16]> {
        let mut members: Vec<Weighted> = members.iter().copied().filter(|one| one.weight > 0).collect();
        members.sort_unstable_by_key(|one| (one.seed, one.slot));
        let divisor = members.iter().fold(0, |divisor, one| gcd(divisor, one.weight)).max(1);
        let of: WeightedPlaces = members.iter().map(|one| (one.seed, one.weight / divisor)).collect();
        let key = (of, members.iter().map(|one| one.slot).collect());
        self.used += 1;
        if let Some(kept) = self.tables.get_mut(&key) {
            kept.used = self.used;
            return Arc::clone(&kept.table);
        }
        let table: Arc<[u16]> = match self.twin(&key.0) {
            Some((slots, table)) => renamed(table, slots, &key.1),
            None => maglev(&members, HASH_SLOTS).into(),
        };
        if self.tables.len() >= self.kept {
            let oldest = self.tables.iter().min_by_key(|(_, kept)| kept.used);
            if let Some(oldest) = oldest.map(|(members, _)| members.clone()) {
                self.tables.remove(&oldest);
            }
        }
        self.tables.insert(key, CachedTable { table: Arc::clone(&table), used: self.used });
        table
    }

    /// A table of the same members by other slots.
    fn twin(&self, of: &WeightedPlaces) -> Option<(&[u16], &[u16])> {
        let mut from = self.tables.range((of.clone(), Vec::new())..);
        from.next()
            .filter(|((members, _), _)| members == of)
            .map(|((_, slots), kept)| (&slots[..], &*kept.table))
    }
}

/// A table in which the same members have other slots.
fn renamed(table: &[u16], old: &[u16], new: &[u16]) -> Arc<[u16]> {
    let mut names = [NO_SERVER; SERVER_SLOTS];
    for (old, new) in old.iter().zip(new) {
        names[place(*old)] = *new;
    }
    let mut table: Arc<[u16]> = table.into();
    Arc::make_mut(&mut table).iter_mut().for_each(|slot| *slot = names[place(*slot)]);
    table
}

fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(weights: &[u16], first: u16) -> Vec<Weighted> {
        let slots = (first..).zip(weights);
        slots.map(|(slot, weight)| Weighted { slot, weight: *weight, seed: u64::from(slot % 8) }).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn cached_table_equals_new_table(
            sets in prop::collection::vec((prop::collection::vec(0_u16..4, 0..4), 1_u16..20), 1..8)
        ) {
            let mut fills = Fills::keeping(3);
            for (weights, first) in sets {
                let members = members(&weights, first);
                prop_assert_eq!(&*fills.table(&members), maglev(&members, HASH_SLOTS));
                prop_assert!(fills.tables.len() <= 3);
            }
        }
    }

    #[test]
    fn other_slots_and_multiples_of_weights_need_no_other_fill() {
        let mut fills = Fills::default();
        for (weights, first) in [([1, 2], 1), ([1, 2], 9), ([3, 6], 17)] {
            let members = members(&weights, first);
            assert_eq!(&*fills.table(&members), maglev(&members, HASH_SLOTS));
        }
        let others = fills.tables.keys().filter(|(members, _)| fills.twin(members).is_none());
        assert_eq!((fills.tables.len(), others.count()), (3, 0));
    }

    #[test]
    fn least_recently_used_table_is_evicted() {
        let mut fills = Fills::keeping(3);
        for first in [0, 1, 2, 0, 3] {
            fills.table(&members(&[1], first));
        }
        let seeds: Vec<u64> = fills.tables.keys().map(|(members, _)| members[0].0).collect();
        assert_eq!(seeds, [0, 2, 3]);
    }
}
