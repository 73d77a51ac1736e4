//! Weighted Maglev hashing (Eisenbud et al. 2016, section 3.4): the flow's hash selects the server,
//! and a change of servers remaps few other flows.

use alloc::sync::Arc;
use alloc::vec::Vec;

use siphasher::sip::SipHasher24;

use super::least_connections::each_once;
use super::{Choice, NamePolicy, PacketPolicy, Policy, RedirectPolicy, Selection, Weighted};
use crate::path::tables::Pick;

/// Number of random draws for the second candidate of a slot. If all draws hit the slot's own
/// server, the next slot with another server is used. A server with five sixths of all weight
/// reaches this limit at three slots in a thousand.
const DRAWS: u64 = 32;

/// Selects the server at the flow's entry of the hash table.
pub(super) static HASH: Policy = Policy {
    name: "hash",
    about: "the server that the flow's hash names (Maglev); the same on every director and after any restart",
    needs: &[],
    // `maglev` fills the hash table. The ring is only used for flows whose server is full.
    packets: Some(PacketPolicy { pick: Pick::Hash, order: each_once, weighing: None, sharing: None }),
    redirect: Some(RedirectPolicy { choice: Choice::Hash, weighing: None }),
    names: Some(NamePolicy { draw: Selection::SourceHash, weighing: None }),
};

/// Returns a hash table of `slots` entries, in which each server has entries in proportion to its
/// weight. `slots` must be prime.
///
/// The result depends on the set of members, not on their order. Each member with a weight has at
/// least one entry while `slots` is no less than the number of members. The table is empty if no
/// member has a weight.
pub fn maglev(members: &[Weighted], slots: usize) -> Vec<u16> {
    debug_assert!(is_prime(slots), "a walk by any stride must reach every slot");
    let mut members: Vec<Weighted> = members.iter().copied().filter(|m| m.weight > 0).collect();
    members.sort_unstable_by_key(|m| (m.seed, m.slot));
    let heaviest = members.iter().map(|m| u32::from(m.weight)).max().unwrap_or(0);
    let mut walks: Vec<SlotWalk> = members.iter().map(|m| SlotWalk::new(m, heaviest, slots)).collect();
    let mut table = alloc::vec![0; if walks.is_empty() { 0 } else { slots }];
    // Late in the fill, most tried slots are taken. A bitmap of the slots fits into the first-level
    // cache.
    let mut taken = alloc::vec![0u64; table.len().div_ceil(64)];
    let mut left = table.len();
    while left > 0 {
        for (walk, member) in walks.iter_mut().zip(&members) {
            if !walk.has_turn(heaviest) {
                continue;
            }
            table[walk.claim_slot(&mut taken, slots)] = member.slot;
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    table
}

/// Returns the second candidate of each slot of a hash table. It is the server of another slot, so
/// that second candidates are in proportion to weight, too. It is never the slot's own server. The
/// result is empty if the table has fewer than two servers.
///
/// The result depends on the table alone, so all directors of a farm compute the same pairs.
pub fn second_candidates(table: &[u16]) -> Arc<[u16]> {
    let len = table.len();
    if table.iter().all(|server| Some(server) == table.first()) {
        return Arc::default();
    }
    // Finds for each slot the next slot with another server. The loop passes the table twice, so
    // that the last slots find the first ones.
    let mut next = alloc::vec![0; len];
    for slot in (0..len).rev().chain((0..len).rev()) {
        let after = (slot + 1) % len;
        next[slot] = if table[after] == table[slot] { next[after] } else { after };
    }
    (0..len)
        .map(|slot| {
            // The draws are random. With a fixed stride some servers would be paired more often
            // than their weight allows, since the members' walks use strides themselves.
            let draw = |turn| (mixed(slot as u64 * DRAWS + turn) % len as u64) as usize;
            let other = (0..DRAWS).map(draw).find(|other| table[*other] != table[slot]);
            table[other.unwrap_or(next[slot])]
        })
        .collect()
}

/// Mixes a number so that each input bit affects every output bit (SplitMix64's finalizer, Steele
/// et al. 2014).
pub(super) fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Walk of a member through all slots in its own order, from `at` in steps of `stride`.
struct SlotWalk {
    at: usize,
    stride: usize,
    weight: u32,
    credit: u32,
}

impl SlotWalk {
    fn new(member: &Weighted, heaviest: u32, slots: usize) -> SlotWalk {
        // The key is fixed, since every director of a farm must compute the same table.
        let digest =
            SipHasher24::new_with_keys(0x6576_656e_6572, 0x6d61_676c_6576).hash(&member.seed.to_le_bytes());
        let (low, high) = (digest as u32 as usize, (digest >> 32) as usize);
        let weight = u32::from(member.weight);
        SlotWalk {
            at: low % slots,
            stride: high % (slots.max(2) - 1) + 1,
            weight,
            // With this credit each member takes a slot in the first round, so that the lightest
            // member is not left out.
            credit: heaviest - weight,
        }
    }

    /// Returns true if the member takes a slot in this round. The heaviest member takes one in each
    /// round, the others in proportion to their weight.
    fn has_turn(&mut self, heaviest: u32) -> bool {
        self.credit += self.weight;
        let turn = self.credit >= heaviest;
        if turn {
            self.credit -= heaviest;
        }
        turn
    }

    /// Takes the next free slot of the walk. At least one slot must be free.
    fn claim_slot(&mut self, taken: &mut [u64], slots: usize) -> usize {
        loop {
            let at = self.at;
            self.at += self.stride;
            if self.at >= slots {
                self.at -= slots;
            }
            let (word, bit) = (at / 64, 1 << (at % 64));
            if taken[word] & bit == 0 {
                taken[word] |= bit;
                return at;
            }
        }
    }
}

fn is_prime(n: usize) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::path::tables::HASH_SLOTS;
    use proptest::prelude::*;
    use std::println;

    /// Returns members with these weights, and slots from 1.
    pub(in super::super) fn members(weights: &[u16], seed: u64) -> Vec<Weighted> {
        (1u16..)
            .zip(weights)
            .map(|(slot, &weight)| Weighted { slot, weight, seed: seed.wrapping_add(u64::from(slot)) })
            .collect()
    }

    fn moved(a: &[u16], b: &[u16]) -> usize {
        a.iter().zip(b).filter(|(a, b)| a != b).count()
    }

    #[test]
    fn empty_members_give_no_table() {
        assert!(maglev(&[], HASH_SLOTS).is_empty());
        assert!(maglev(&members(&[0, 0], 0), HASH_SLOTS).is_empty());
    }

    #[test]
    fn single_server_fills_the_table() {
        assert!(maglev(&members(&[7], 0), HASH_SLOTS).iter().all(|&slot| slot == 1));
    }

    #[test]
    fn the_lightest_is_not_left_out() {
        let mut weights = std::vec![u16::MAX; 255];
        weights.push(1);
        let table = maglev(&members(&weights, 9), HASH_SLOTS);
        assert!(table.contains(&256));
    }

    /// Checks the documented bound: a change of one of N servers of equal weight moves at most 2/N
    /// of the slots.
    #[test]
    fn a_change_of_one_server_moves_at_most_twice_its_share() {
        let mut worst = 0.0f64;
        for n in 3..=64usize {
            let all = members(&std::vec![1; n], n as u64 * 1_000);
            let full = maglev(&all, HASH_SLOTS);
            for out in [0, n / 2, n - 1] {
                let mut fewer = all.clone();
                fewer.remove(out);
                // Removes one of N servers. In the other direction, this is one server added to N -
                // 1. The bound is that for the larger number of servers.
                let share = moved(&full, &maglev(&fewer, HASH_SLOTS)) as f64 / HASH_SLOTS as f64;
                worst = worst.max(share * n as f64);
                assert!(share <= 2.0 / n as f64, "{n} servers: {share} moved");
            }
        }
        println!("one of N in or out, N = 3..=64: at most {worst:.3}/N of the slots moved");
    }

    #[test]
    fn single_server_is_no_second_choice() {
        assert!(second_candidates(&[]).is_empty());
        assert!(second_candidates(&maglev(&members(&[7], 0), HASH_SLOTS)).is_empty());
    }

    /// While the directors of a farm are upgraded one by one, old and new ones must select the same
    /// server for a client.
    #[test]
    fn a_table_of_the_same_servers_is_the_same_in_every_version() {
        let table = maglev(&members(&[1, 2, 3, 10], 77), HASH_SLOTS);
        let second = second_candidates(&table);
        let digest = |slots: &[u16]| {
            let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
            SipHasher24::new_with_keys(0, 0).hash(&bytes)
        };
        assert_eq!(
            (digest(&table), digest(&second)),
            (12_887_882_394_500_329_217, 16_850_788_826_199_573_689)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn the_second_candidate_is_another_and_weights_hold(
            weights in prop::collection::vec(1u16..=10, 2..24), seed: u64
        ) {
            let members = members(&weights, seed);
            let table = maglev(&members, HASH_SLOTS);
            let second = second_candidates(&table);
            prop_assert_eq!(second.len(), table.len());
            prop_assert!(table.iter().zip(second.iter()).all(|(first, second)| first != second));
            // Probability that another server is the first candidate, times the probability of this
            // member among the rest.
            let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            for member in &members {
                let others = weights.iter().zip(&members).filter(|(_, other)| other.slot != member.slot);
                let part = |&weight: &u16| f64::from(weight) / total * f64::from(member.weight) / (total - f64::from(weight));
                let due = HASH_SLOTS as f64 * others.map(|(weight, _)| part(weight)).sum::<f64>();
                let share = second.iter().filter(|&&slot| slot == member.slot).count() as f64;
                prop_assert!((share - due).abs() < 0.15 * due + 100.0, "{share} slots, due {due}");
            }
        }

        #[test]
        fn shares_follow_weights(weights in prop::collection::vec(1u16..=10, 1..24), seed: u64) {
            let members = members(&weights, seed);
            let table = maglev(&members, HASH_SLOTS);
            prop_assert_eq!(table.len(), HASH_SLOTS);
            prop_assert!(!table.contains(&0));
            let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            for member in &members {
                let share = table.iter().filter(|&&s| s == member.slot).count() as f64;
                let due = HASH_SLOTS as f64 * f64::from(member.weight) / total;
                prop_assert!((share / due - 1.0).abs() < 0.02, "{share} slots, due {due}");
            }
        }

        #[test]
        fn the_order_of_members_does_not_matter(
            (sorted, shuffled) in prop::collection::vec(0u16..=5, 1..16)
                .prop_map(|weights| members(&weights, 1))
                .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle()))
        ) {
            prop_assert_eq!(maglev(&sorted, HASH_SLOTS), maglev(&shuffled, HASH_SLOTS));
        }

        #[test]
        fn a_drained_server_leaves_the_others_mostly_where_they_were(
            weights in prop::collection::vec(1u16..=4, 3..20), out: prop::sample::Index
        ) {
            let before = members(&weights, 77);
            let mut after = before.clone();
            let out = out.index(after.len());
            after[out].weight = 0;
            let (old, new) = (maglev(&before, HASH_SLOTS), maglev(&after, HASH_SLOTS));
            let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            let own = f64::from(weights[out]) / total;
            let astray = old.iter().zip(&new).filter(|(o, n)| **o != before[out].slot && o != n).count();
            prop_assert!(astray as f64 / HASH_SLOTS as f64 <= own, "{astray} slots astray, share {own}");
        }
    }
}
