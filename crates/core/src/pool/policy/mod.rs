//! Who is chosen for a new session: one file per policy, and one line in [`POLICIES`].
//!
//! A policy runs when the farm changes, not when a packet comes: it lays the usable servers out in a
//! table, and says by which of the few ways of [`Pick`] the data plane draws from it. One that goes by what servers have to do says which
//! [`Signal`]s it needs, and one by load makes shares of what is known of servers ([`Sharing`]). Who knows which is a table of its own
//! ([`Consumer`]).

mod consumers;
mod expected_delay;
mod fills;
mod hash;
mod least_connections;
mod least_load;
mod overflow;
mod peak_ewma;
mod power_of_two;
mod round_robin;
pub mod score;
mod two;
mod utilisation;

pub use consumers::Consumer;
pub use fills::Fills;
pub use hash::{Hash, maglev, second_candidates};
pub use least_connections::LeastConnections;
pub use overflow::Overflow;
pub use round_robin::RoundRobin;
pub use two::Weighing;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::Debug;

use crate::path::tables::Pick;
use crate::pool::signals::{Candidate, Signal};

/// The largest share.
pub const SHARE_MAX: u16 = 1_000;

/// Every policy of those who send packets on, in the order in which people are told of them. [`Consumer`] says who takes which.
pub static POLICIES: &[&dyn Policy] = &[
    &power_of_two::POWER_OF_TWO,
    &RoundRobin,
    &Hash,
    &LeastConnections,
    &Overflow,
    &peak_ewma::PEAK_EWMA,
    &utilisation::UTILISATION,
    &expected_delay::EXPECTED_DELAY,
    &least_load::LEAST_LOAD,
];

/// A way to share new sessions among servers.
pub trait Policy: Sync {
    /// Its name in configuration, views and metrics.
    fn name(&self) -> &'static str;
    /// One line for the documentation.
    fn about(&self) -> &'static str;
    /// How the data plane draws from the tables.
    fn pick(&self) -> Pick;
    /// The ring to draw from in order, as slots; at most [`crate::path::tables::ORDER_MAX`]. Members of
    /// weight 0 are not in it.
    fn order(&self, members: &[Weighted]) -> Vec<u16>;
    /// What has to be known of servers for it.
    fn needs(&self) -> &'static [Signal] {
        &[]
    }
    /// By what [`Pick::Two`] weighs servers' sessions ([`score`]), if the policy goes by load.
    fn weighing(&self) -> Option<&Weighing> {
        None
    }
    /// By what shares [`Policy::order`] goes instead of weights, if it goes by what is known of servers. Of each service anew.
    fn sharing(&self) -> Option<Box<dyn Sharing>> {
        None
    }
}

/// How new sessions are shared out by what is known of servers. It may remember what it came to, so that it doesn't waver.
pub trait Sharing: Debug + Send + Sync {
    /// The share of each server, in their order; 0 to [`SHARE_MAX`]. Unless nobody has a weight, not all are 0.
    fn share_out(&mut self, servers: &[Candidate]) -> Vec<u16>;
    /// The same once more, with what it remembers.
    fn boxed(&self) -> Box<dyn Sharing>;
}

impl Clone for Box<dyn Sharing> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

/// A server that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighted {
    /// Its number in the tables.
    pub slot: u16,
    /// Its share relative to the others; 0 is never chosen.
    pub weight: u16,
    /// What its place in hash tables comes from: its identity, so that restarts and other directors
    /// arrive at the same table.
    pub seed: u64,
}

/// The policy of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.iter().copied().find(|policy| policy.name() == name)
}

/// The names of all policies.
pub fn names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|policy| policy.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::tables::ORDER_MAX;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    #[test]
    fn every_policy_is_found_by_its_own_name() {
        for policy in POLICIES {
            let found = by_name(policy.name()).unwrap();
            assert_eq!(found.about(), policy.about());
            assert!(policy.weighing().is_none() || policy.pick() == Pick::Two && !policy.needs().is_empty());
        }
        assert!(by_name("fastest").is_none());
        assert_eq!(names().collect::<BTreeSet<_>>().len(), POLICIES.len());
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
            for policy in POLICIES {
                let order = policy.order(&members);
                prop_assert!(order.len() <= ORDER_MAX);
                if !matches!(policy.pick(), Pick::Hash | Pick::Two) {
                    prop_assert_eq!(order.into_iter().collect::<BTreeSet<_>>(), with_weight.clone());
                }
            }
        }
    }
}
