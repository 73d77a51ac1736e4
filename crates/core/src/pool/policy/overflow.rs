//! Overflow: a host serves the sessions that reach it while its load is near or below the farm's
//! average.
//!
//! "A better policy that is still quite practical would be for each server host to only redirect
//! requests that arrive when the host is loaded above the system average" (Distributed Packet
//! Rewriting, section 4.1).

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{PacketPolicy, Policy, SHARE_MAX, Sharing, in_turn};
use crate::path::tables::Pick;
use crate::pool::signals::{Candidate, Signal};

/// Percentage of the average load above which a host becomes overloaded. The margin exceeds the
/// random variation of a few hundred sessions.
const ABOVE_FROM_PERCENT: u128 = 125;
/// Percentage of the average load below which a host is no longer overloaded. The gap between the
/// two percentages prevents flapping.
const ABOVE_UNTIL_PERCENT: u128 = 105;
/// Minimum number of sessions above the average for an overload. With very few sessions, one more
/// is a large part of the load but only chance.
const ABOVE_FROM_SESSIONS: u128 = 2;

/// Makes a host serve the sessions that reach it, unless its load is above the average.
pub(super) static OVERFLOW: Policy = Policy {
    name: "overflow",
    about: "a host keeps what comes to it, and passes on only while it is loaded above the average; with every-host",
    needs: &[Signal::Reported],
    packets: Some(PacketPolicy {
        pick: Pick::Cursor,
        order: in_turn,
        weighing: None,
        sharing: Some(|| Box::<OverflowState>::default()),
    }),
    redirect: None,
    names: None,
};

/// State for hysteresis: `above` is true if this host was overloaded at the last update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct OverflowState {
    above: bool,
}

/// Load and weight of all hosts together.
#[derive(Clone, Copy)]
struct FarmTotals {
    load: u128,
    weight: u128,
}

impl OverflowState {
    fn is_now_above(self, own: &Candidate, total: FarmTotals) -> bool {
        // Both sides are multiplied by both weights, to avoid rounding.
        let load = load(own) * total.weight;
        let average = total.load * u128::from(own.weight);
        if self.above {
            load * 100 >= average * ABOVE_UNTIL_PERCENT && load > average
        } else {
            load * 100 > average * ABOVE_FROM_PERCENT && load >= average + ABOVE_FROM_SESSIONS * total.weight
        }
    }
}

impl Sharing for OverflowState {
    /// While this host is not overloaded, only this host gets a share. Otherwise the hosts below
    /// the average share its new sessions, by weight and spare capacity.
    fn share_out(&mut self, hosts: &[Candidate]) -> Vec<u16> {
        let counted = hosts.iter().filter(|host| host.weight > 0);
        let total = counted.fold(FarmTotals { load: 0, weight: 0 }, |sum, host| FarmTotals {
            load: sum.load + load(host),
            weight: sum.weight + u128::from(host.weight),
        });
        let own = hosts.iter().find(|host| host.own && host.weight > 0);
        self.above = own.is_some_and(|own| self.is_now_above(own, total));
        if own.is_some() && !self.above {
            return hosts.iter().map(|host| if host.own { SHARE_MAX } else { 0 }).collect();
        }
        let below: Vec<u128> = hosts.iter().map(|host| total.spare(host)).collect();
        if below.iter().any(|spare| *spare > 0) {
            return scaled(&below);
        }
        // If this host has no weight and no other host is below the average, the shares are the
        // weights.
        scaled(&hosts.iter().map(|host| u128::from(host.weight)).collect::<Vec<_>>())
    }

    fn boxed(&self) -> Box<dyn Sharing> {
        Box::new(*self)
    }
}

/// Number of sessions that a host has reported; 0 before its first report.
fn load(host: &Candidate) -> u128 {
    host.signals.reported.unwrap_or_default().into()
}

impl FarmTotals {
    /// How far a host is below the average, in sessions times total weight; 0 at or above the
    /// average.
    fn spare(self, host: &Candidate) -> u128 {
        (self.load * u128::from(host.weight)).saturating_sub(load(host) * self.weight)
    }
}

/// Scales parts so that the largest is [`SHARE_MAX`]; parts above 0 stay above 0.
fn scaled(parts: &[u128]) -> Vec<u16> {
    let max = parts.iter().copied().max().unwrap_or_default().max(1);
    let share = |part: u128| (part * u128::from(SHARE_MAX) / max) as u16;
    parts.iter().map(|&part| if part == 0 { 0 } else { share(part).max(1) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::signals::Signals;
    use proptest::prelude::*;

    fn host(weight: u16, load: u32) -> Candidate {
        let signals = Signals { reported: Some(load.into()), ..Signals::default() };
        Candidate { own: false, weight, signals }
    }

    /// Returns the share of this host, followed by the shares of the other hosts.
    fn shares(balance: &mut OverflowState, own: Candidate, others: &[Candidate]) -> Vec<u16> {
        let own = Candidate { own: true, ..own };
        balance.share_out(&[&[own], others].concat())
    }

    #[test]
    fn host_overflows_only_well_above_average() {
        let mut balance = OverflowState::default();
        let others = [host(1, 100), host(1, 100)];
        assert_eq!(shares(&mut balance, host(1, 100), &others), [1000, 0, 0]);
        assert_eq!(shares(&mut balance, host(1, 140), &others), [1000, 0, 0], "140 is 1.24 of 113");
        assert_eq!(shares(&mut balance, host(1, 150), &others), [0, 1000, 1000]);
        assert_eq!(shares(&mut balance, host(1, 110), &others), [0, 1000, 1000], "still 1.06");
        assert_eq!(shares(&mut balance, host(1, 105), &others), [1000, 0, 0]);
        assert_eq!(shares(&mut balance, host(1, 1), &[host(1, 0)]), [1000, 0], "one session is no load");
    }

    #[test]
    fn a_host_passes_sessions_on_from_a_quarter_above_the_average_and_two_sessions() {
        let is_above = |above, own, others: &[u32]| {
            let others: Vec<Candidate> = others.iter().map(|load| host(1, *load)).collect();
            let mut balance = OverflowState { above };
            shares(&mut balance, host(1, own), &others)[0] == 0
        };
        assert!(!is_above(false, 125, &[75, 100]), "a quarter above, and no more");
        assert!(is_above(false, 126, &[75, 99]));
        assert!(!is_above(false, 3, &[0]) && is_above(false, 4, &[0]), "two sessions above the average");
        assert!(is_above(true, 105, &[95, 100]) && !is_above(true, 104, &[96, 100]));
        assert!(!is_above(true, 0, &[0, 0]), "nobody has anything to do");
        // A host of twice the weight keeps twice the load.
        let mut balance = OverflowState::default();
        assert_eq!(shares(&mut balance, host(2, 200), &[host(1, 100)]), [1000, 0]);
        assert_eq!(shares(&mut balance, host(2, 300), &[host(1, 30)]), [0, 1000]);
    }

    #[test]
    fn shares_go_by_weight_and_by_how_far_a_host_is_below() {
        let mut balance = OverflowState::default();
        // There are 600 sessions for a total weight of 6, so the average is 100 per weight.
        let others = [host(2, 100), host(1, 50), host(2, 250)];
        assert_eq!(shares(&mut balance, host(1, 200), &others), [0, 1000, 500, 0]);
    }

    #[test]
    fn a_pure_rewriter_passes_everything_on() {
        let mut balance = OverflowState::default();
        assert_eq!(shares(&mut balance, host(0, 7), &[host(2, 0), host(1, 0)]), [0, 1000, 500]);
        assert_eq!(shares(&mut balance, host(0, 7), &[host(1, 30), host(1, 10)]), [0, 0, 1000]);
        assert_eq!(shares(&mut balance, host(0, 7), &[]), [0]);
        assert_eq!(shares(&mut balance, host(3, 7), &[]), [1000]);
        assert_eq!(shares(&mut balance, host(3, 700), &[host(0, 0)]), [1000, 0]);
    }

    /// In each round, 30 sessions arrive at the first of three hosts, and one of 40 sessions ends.
    /// Hosts know each other's loads one round late.
    #[test]
    fn host_with_all_arrivals_shares_them_out() {
        let mut balance = OverflowState::default();
        let (mut loads, mut known, mut sums) = ([0u32; 3], [0u32; 3], [0u64; 3]);
        for round in 0..2_000 {
            let shares = shares(&mut balance, host(1, known[0]), &[host(1, known[1]), host(1, known[2])]);
            known = loads;
            let total: u32 = shares.iter().map(|&share| u32::from(share)).sum();
            for (load, share) in loads.iter_mut().zip(shares) {
                *load = *load * 39 / 40 + 30 * u32::from(share) / total;
            }
            if round >= 200 {
                let average = loads.iter().sum::<u32>() / 3;
                // The arrivals of two rounds come before their load is known.
                let near = |&load: &u32| load * 100 >= average * 75 && load <= average * 125 / 100 + 60;
                assert!(loads.iter().all(near), "round {round}: {loads:?}");
                loads.iter().zip(&mut sums).for_each(|(load, sum)| *sum += u64::from(*load));
            }
        }
        let average = sums.iter().sum::<u64>() / 3;
        assert!(sums.iter().all(|sum| sum.abs_diff(average) * 100 <= average * 20), "{sums:?}");
    }

    fn hosts() -> impl Strategy<Value = Vec<Candidate>> {
        let weight = prop_oneof![0u16..4, any::<u16>()];
        let load = prop_oneof![0u32..100, any::<u32>()];
        prop::collection::vec((weight, load).prop_map(|(weight, load)| host(weight, load)), 1..20)
    }

    proptest! {
        #[test]
        fn overflow_always_chooses_one_host_consistently(hosts in hosts(), above: bool) {
            let mut balance = OverflowState { above };
            let first = shares(&mut balance, hosts[0], &hosts[1..]);
            prop_assert_eq!(first.len(), hosts.len());
            prop_assert!(first.iter().all(|&share| share <= SHARE_MAX));
            let able = hosts.iter().any(|host| host.weight > 0);
            prop_assert_eq!(first.iter().any(|&share| share > 0), able);
            prop_assert!(hosts.iter().zip(&first).all(|(host, &share)| host.weight > 0 || share == 0));
            for _ in 0..3 {
                prop_assert_eq!(&shares(&mut balance, hosts[0], &hosts[1..]), &first, "no wavering");
            }
        }

        #[test]
        fn overloaded_host_gives_only_to_underloaded(hosts in hosts()) {
            let mut balance = OverflowState::default();
            let shares = shares(&mut balance, hosts[0], &hosts[1..]);
            let sum: u128 = hosts.iter().filter(|h| h.weight > 0).map(load).sum();
            let weight: u128 = hosts.iter().map(|h| u128::from(h.weight)).sum();
            if balance.above {
                for (host, &share) in hosts.iter().zip(&shares) {
                    let below = load(host) * weight < sum * u128::from(host.weight);
                    prop_assert_eq!(share > 0, below && host.weight > 0);
                }
            }
        }
    }
}
