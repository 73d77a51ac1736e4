//! Policies select servers. Each policy has one file, and one line in [`POLICIES`].
//!
//! A [`Policy`] is a row with a column for each kind of consumer. The column for packets has the
//! layout of the data plane's tables, and how the data plane selects from them
//! ([`crate::path::tables::Pick`]). The columns for groups and names say how a server is drawn. A
//! policy that depends on load lists the [`Signal`](super::signals::Signal)s that it needs. A
//! policy with [`Sharing`] computes servers' shares from the signals. [`Consumer`] lists the
//! signals that each consumer knows.

mod consumers;
mod expected_delay;
mod failover;
mod fills;
mod hash;
mod least_connections;
mod least_load;
mod overflow;
mod peak_ewma;
mod power_of_two;
mod random;
pub mod rank;
mod refill;
mod round_robin;
mod row;
pub mod score;
mod two;
mod utilisation;

pub use consumers::Consumer;
pub use failover::FAILOVER;
pub use fills::Fills;
pub use hash::{maglev, second_candidates};
pub use refill::refilled;
pub use round_robin::in_turn;
pub use row::{
    Choice, NamePolicy, PacketPolicy, Policy, RedirectPolicy, SHARE_MAX, Selection, Sharing, Weighing,
    Weighted,
};

/// All policies, in the order of the documentation. [`Consumer`] decides which of them a consumer
/// supports.
pub static POLICIES: &[&Policy] = &[
    &power_of_two::POWER_OF_TWO,
    &random::RANDOM,
    &failover::FAILOVER,
    &round_robin::ROUND_ROBIN,
    &hash::HASH,
    &least_connections::LEAST_CONNECTIONS,
    &overflow::OVERFLOW,
    &peak_ewma::PEAK_EWMA,
    &utilisation::UTILISATION,
    &expected_delay::EXPECTED_DELAY,
    &least_load::LEAST_LOAD,
];

/// Returns the policy with this name.
pub fn by_name(name: &str) -> Option<&'static Policy> {
    POLICIES.iter().copied().find(|policy| policy.name == name)
}

/// Returns the packet column of the policy with this name, if it supports packets.
pub fn for_packets(name: &str) -> Option<&'static PacketPolicy> {
    by_name(name)?.packets.as_ref()
}

/// Returns the names of the policies that support packets.
pub fn names_for_packets() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().filter(|policy| policy.packets.is_some()).map(|policy| policy.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::tables::{ORDER_MAX, Pick};
    use crate::pool::report::Report;
    use crate::pool::signals::Signals;
    use alloc::collections::BTreeSet;
    use alloc::string::String;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn every_policy_is_found_by_its_own_name() {
        for policy in POLICIES {
            assert_eq!(by_name(policy.name), Some(*policy));
            assert!(!policy.about.is_empty());
            let weighing = policy.packets.and_then(|packets| packets.weighing);
            assert!(weighing.is_none_or(|weighing| weighing.needs == policy.needs), "{policy:?}");
            let pick = policy.packets.map(|packets| packets.pick);
            assert!(weighing.is_none() || pick == Some(Pick::Two) && !policy.needs.is_empty(), "{policy:?}");
        }
        assert!(by_name("fastest").is_none() && for_packets("failover").is_none());
    }

    /// Returns the load of a server by a policy, and the description of the load.
    fn weighed(policy: &str, signals: Signals) -> (Option<u64>, Option<String>) {
        let weighing = for_packets(policy).unwrap().weighing.unwrap();
        ((weighing.load)(&signals), (weighing.describe)(&signals))
    }

    #[test]
    fn load_is_shown_with_unit_and_tiny_loads_weigh_alike() {
        let reports = |report| Signals { report, ..Signals::default() };
        let probed = |us| Signals { latency_us: Some(us), ..Signals::default() };
        let delay = |us| reports(Report { delay_us: Some(us), ..Report::default() });
        let load = |milli| reports(Report { load_milli: Some(milli), ..Report::default() });
        let uses = |permille| reports(Report { utilisation_permille: Some(permille), ..Report::default() });
        for (policy, signals, weight, text) in [
            ("peak-ewma", probed(2_500), 2_500, "latency 2.5 ms"),
            ("peak-ewma", probed(200), 1_000, "latency 0.2 ms"),
            ("expected-delay", delay(2_500_000), 2_500_000, "reported delay 2.50 s"),
            ("expected-delay", delay(3), 10_000, "reported delay 0.00 s"),
            ("least-load", load(34_500), 34_500, "reported load 34.5"),
            ("least-load", load(0), 10_000, "reported load 0.0"),
            ("utilisation", uses(750), 750, "reported 0.75"),
            ("utilisation", uses(20), 100, "reported 0.02"),
        ] {
            assert_eq!(weighed(policy, signals), (Some(weight), Some(text.into())), "{policy}");
            assert_eq!(weighed(policy, Signals::default()), (None, None), "{policy}: nothing is known");
        }
    }

    proptest! {
        #[test]
        fn a_ring_holds_every_server_with_a_weight_and_no_other(
            weights in prop::collection::vec(prop_oneof![Just(0u16), 1u16..10, any::<u16>()], 0..64)
        ) {
            let members: Vec<Weighted> = (1..)
                .zip(&weights)
                .map(|(slot, &weight)| Weighted { slot, weight, seed: u64::from(slot) })
                .collect();
            let with_weight: BTreeSet<u16> =
                members.iter().filter(|m| m.weight > 0).map(|m| m.slot).collect();
            for packets in POLICIES.iter().filter_map(|policy| policy.packets) {
                let order = (packets.order)(&members);
                prop_assert!(order.len() <= ORDER_MAX);
                prop_assert_eq!(order.into_iter().collect::<BTreeSet<_>>(), with_weight.clone());
            }
        }
    }
}
