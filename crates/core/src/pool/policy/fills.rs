//! Cache of hash tables that were filled recently. If a server fails and recovers, a drain ends, or
//! a refused change is retried, the table need not be filled again.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Weighted, maglev, refilled};
use crate::path::tables::HASH_SLOTS;

/// Number of tables in the cache: three for each service of the largest farm. They take 24 MiB.
const KEPT: usize = 192;

/// Hash tables by members. The least recently used table is evicted first.
#[derive(Clone, Debug)]
pub struct Fills {
    tables: BTreeMap<Members, CachedTable>,
    kept: usize,
    used: u64,
}

/// Seed, configured weight and current weight of each member. The weights are divided by their
/// greatest common divisor. A cached table depends on nothing else, since its entries are the
/// members' numbers from 1.
type Members = Vec<(u64, u16, u16)>;

impl Default for Fills {
    fn default() -> Fills {
        Fills::keeping(KEPT)
    }
}

#[derive(Clone, Debug)]
struct CachedTable {
    table: Arc<[u16]>,
    /// Lookup count at the last use.
    used: u64,
}

impl Fills {
    /// Returns a cache of this many tables, of 128 KiB each.
    pub const fn keeping(kept: usize) -> Fills {
        Fills { tables: BTreeMap::new(), kept, used: 0 }
    }

    /// Returns the table of [`HASH_SLOTS`] entries that [`refilled`] computes from the base of the
    /// `configured` members, while the `serving` members serve. Each serving member must also be in
    /// `configured`.
    pub fn table(&mut self, configured: &[Weighted], serving: &[Weighted]) -> Arc<[u16]> {
        let mut of: Vec<Weighted> = configured.iter().copied().filter(|one| one.weight > 0).collect();
        of.sort_unstable_by_key(|one| (one.seed, one.slot));
        let now: BTreeMap<u64, u16> = serving.iter().map(|one| (one.seed, one.weight)).collect();
        debug_assert!(now.keys().all(|seed| of.iter().any(|one| one.seed == *seed)), "each is configured");
        let now = |one: &Weighted| now.get(&one.seed).copied().unwrap_or(0);
        let divisor = of.iter().fold(0, |divisor, one| gcd(divisor, one.weight)).max(1);
        let divisor_now = of.iter().fold(0, |divisor, one| gcd(divisor, now(one))).max(1);
        let members = of.iter().map(|one| (one.seed, one.weight / divisor, now(one) / divisor_now));
        let table = self.numbered(members.collect());
        table.iter().map(|number| of[usize::from(*number) - 1].slot).collect()
    }

    /// Returns the table whose entries are the members' numbers from 1.
    fn numbered(&mut self, members: Members) -> Arc<[u16]> {
        self.used += 1;
        if let Some(kept) = self.tables.get_mut(&members) {
            kept.used = self.used;
            return Arc::clone(&kept.table);
        }
        let weighted = |by: fn(&(u64, u16, u16)) -> u16| -> Vec<Weighted> {
            let all = (1..).zip(&members).map(|(slot, one)| Weighted { slot, weight: by(one), seed: one.0 });
            all.filter(|one| one.weight > 0).collect()
        };
        let base: Members = members.iter().map(|(seed, weight, _)| (*seed, *weight, *weight)).collect();
        let configured = weighted(|one| one.1);
        let table: Arc<[u16]> = match members == base {
            true => maglev(&configured, HASH_SLOTS).into(),
            false => refilled(&self.numbered(base), &configured, &weighted(|one| one.2)).into(),
        };
        if self.tables.len() >= self.kept {
            let oldest = self.tables.iter().min_by_key(|(_, kept)| kept.used);
            if let Some(oldest) = oldest.map(|(members, _)| members.clone()) {
                self.tables.remove(&oldest);
            }
        }
        self.tables.insert(members, CachedTable { table: Arc::clone(&table), used: self.used });
        table
    }
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
            sets in prop::collection::vec(
                (prop::collection::vec((0_u16..4, any::<bool>()), 0..4), 1_u16..20), 1..8
            )
        ) {
            let mut fills = Fills::keeping(3);
            for (weights, first) in sets {
                let (weights, serve): (Vec<u16>, Vec<bool>) = weights.into_iter().unzip();
                let members = members(&weights, first);
                let serving = members.iter().zip(serve).filter(|(one, serves)| *serves && one.weight > 0);
                let serving: Vec<Weighted> = serving.map(|(one, _)| *one).collect();
                let new = refilled(&maglev(&members, HASH_SLOTS), &members, &serving);
                prop_assert_eq!(&*fills.table(&members, &serving), new);
                prop_assert!(fills.tables.len() <= 3);
            }
        }
    }

    #[test]
    fn other_slots_and_multiples_of_weights_need_no_other_fill() {
        let mut fills = Fills::default();
        for (weights, first) in [([1, 2], 1), ([1, 2], 9), ([3, 6], 17)] {
            let members = members(&weights, first);
            assert_eq!(&*fills.table(&members, &members), maglev(&members, HASH_SLOTS));
        }
        assert_eq!(fills.tables.len(), 1);
    }

    #[test]
    fn servers_without_a_number_are_in_the_base_and_never_in_force() {
        let mut all = members(&[1, 1, 1], 1);
        let serving = all[1..].to_vec();
        let table = Fills::default().table(&all, &serving);
        all[0].slot = crate::path::tables::NO_SERVER;
        assert_eq!(Fills::default().table(&all, &serving), table);
        assert!(Fills::default().table(&all, &[]).is_empty());
    }

    #[test]
    fn least_recently_used_table_is_evicted() {
        let mut fills = Fills::keeping(3);
        for first in [0, 1, 2, 0, 3] {
            let members = members(&[1], first);
            fills.table(&members, &members);
        }
        let seeds: Vec<u64> = fills.tables.keys().map(|members| members[0].0).collect();
        assert_eq!(seeds, [0, 2, 3]);
    }
}
