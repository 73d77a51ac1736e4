//! Random selection by weight, independent of earlier choices.

use super::{Choice, NamePolicy, Policy, RedirectPolicy, Selection};

/// Selects a random server, anew for each client.
pub(super) static RANDOM: Policy = Policy {
    name: "random",
    about: "any server at random, in proportion to weight; for clients that share resolvers",
    needs: &[],
    packets: None,
    redirect: Some(RedirectPolicy { choice: Choice::Random, weighing: None }),
    names: Some(NamePolicy { draw: Selection::Random, weighing: None }),
};
