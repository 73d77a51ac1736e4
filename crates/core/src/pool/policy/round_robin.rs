//! Smooth weighted round robin: the entries of a heavy server are spread over the ring and not
//! bunched (LSMAC, section 3.3, with weights; smoothing as in nginx).

use alloc::vec::Vec;

use super::{Choice, NamePolicy, PacketPolicy, Policy, RedirectPolicy, Selection, Weighted};
use crate::path::tables::{ORDER_MAX, Pick};

/// Selects servers in turn, in proportion to weight.
pub(super) static ROUND_ROBIN: Policy = Policy {
    name: "round-robin",
    about: "servers in turn, in proportion to weight, evenly spread; for requests of similar cost",
    needs: &[],
    packets: Some(PacketPolicy { pick: Pick::Cursor, order: in_turn, weighing: None, sharing: None }),
    redirect: Some(RedirectPolicy { choice: Choice::Turn, weighing: None }),
    names: Some(NamePolicy { draw: Selection::RoundRobin, weighing: None }),
};

/// Returns the ring: the slots of servers in turn, at most [`ORDER_MAX`] entries.
pub fn in_turn(members: &[Weighted]) -> Vec<u16> {
    let members: Vec<Weighted> = members.iter().copied().filter(|m| m.weight > 0).take(ORDER_MAX).collect();
    smooth(&members, &turns(&members))
}

/// Returns the number of entries of each member in the ring. It is the weight divided by the
/// weights' greatest common divisor, scaled down to fit [`ORDER_MAX`], and at least 1.
fn turns(members: &[Weighted]) -> Vec<usize> {
    let divisor = members.iter().fold(0, |d, m| gcd(d, usize::from(m.weight))).max(1);
    let weights: Vec<usize> = members.iter().map(|m| usize::from(m.weight) / divisor).collect();
    let lap: usize = weights.iter().sum();
    if lap <= ORDER_MAX {
        return weights;
    }
    // One entry is reserved for each member, so that rounding up to 1 never makes the ring too
    // long.
    let spare = ORDER_MAX - members.len();
    weights.iter().map(|weight| (weight * spare / lap).max(1)).collect()
}

/// Orders the entries of the ring. In each step every member gains its number of entries as credit.
/// The member with the most credit is selected and pays the length of the ring. Of members with
/// equal credit the first is selected.
fn smooth(members: &[Weighted], turns: &[usize]) -> Vec<u16> {
    let lap: usize = turns.iter().sum();
    let mut credits = alloc::vec![0i64; members.len()];
    let mut order = Vec::with_capacity(lap);
    for _ in 0..lap {
        let mut richest = 0;
        for (at, turns) in turns.iter().enumerate() {
            credits[at] += *turns as i64;
            if credits[at] > credits[richest] {
                richest = at;
            }
        }
        credits[richest] -= lap as i64;
        order.push(members[richest].slot);
    }
    order
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(weights: &[u16]) -> Vec<u16> {
        let members: Vec<Weighted> =
            (1..).zip(weights).map(|(slot, &weight)| Weighted { slot, weight, seed: 0 }).collect();
        in_turn(&members)
    }

    fn count(order: &[u16], slot: u16) -> usize {
        order.iter().filter(|&&s| s == slot).count()
    }

    #[test]
    fn a_heavy_server_does_not_take_its_turns_in_a_bunch() {
        assert_eq!(order(&[5, 1, 1]), [1, 1, 2, 1, 3, 1, 1]);
        assert_eq!(order(&[1, 1, 1]), [1, 2, 3]);
        assert_eq!(order(&[2, 1]), [1, 2, 1]);
        // The third server has 15 of 31 entries, so three of its entries may be adjacent, but not
        // four.
        let order = order(&[4, 4, 15, 4, 4]);
        assert!(
            order.windows(3).any(|three| three == [3; 3]) && !order.windows(4).any(|four| four == [3; 4])
        );
    }

    #[test]
    fn only_the_ratio_of_weights_matters() {
        assert_eq!(order(&[500, 100, 100]), order(&[5, 1, 1]));
        assert_eq!(order(&[60_000, 60_000]), [1, 2]);
    }

    #[test]
    fn round_robin_of_no_members_or_zero_weight_is_empty() {
        assert!(order(&[]).is_empty());
        assert!(order(&[0, 0]).is_empty());
        assert_eq!(order(&[0, 3]), [2]);
    }

    #[test]
    fn long_round_is_scaled_down_and_keeps_every_member() {
        let mut weights = std::vec![65_535; 255];
        weights.push(1);
        let order = order(&weights);
        assert!(order.len() <= ORDER_MAX);
        assert_eq!(count(&order, 256), 1);
        assert_eq!(count(&order, 1), count(&order, 255));
    }

    proptest! {
        #[test]
        fn shares_are_exact_and_turns_are_spread(weights in prop::collection::vec(1u16..=20, 1..12)) {
            let order = order(&weights);
            let lap: usize = order.len();
            let total: usize = weights.iter().map(|&w| usize::from(w)).sum();
            for (slot, &weight) in (1..).zip(&weights) {
                prop_assert_eq!(count(&order, slot) * total, usize::from(weight) * lap);
                // After any number of entries, the entries of a server differ from its fair number
                // by less than the number of servers.
                let mut had = 0usize;
                for (step, &at) in order.iter().enumerate() {
                    had += usize::from(at == slot);
                    let due = (step + 1) as f64 * f64::from(weight) / total as f64;
                    prop_assert!((had as f64 - due).abs() < weights.len() as f64);
                }
                // A server with at most half of all entries never has more than three in a row.
                if usize::from(weight) * 2 <= total && weights.len() > 1 {
                    prop_assert!(order.windows(4).all(|four| four.iter().any(|&s| s != slot)));
                }
            }
        }
    }
}
