//! The power of two choices: of two servers that the flow's hash names, the one with less to do
//! (Mitzenmacher 2001).
//!
//! The longest queue of n servers grows as log log n, compared with log n / log log n for one
//! random choice. A flow always has the same two candidates, on every director and after any
//! restart.

use super::two::TWO;
use super::{Choice, Policy, RedirectPolicy};
use crate::pool::signals::Signal;

/// Selects of two servers the one with fewer active sessions for its weight. A group does not see
/// sessions and counts its redirects instead.
pub(super) static POWER_OF_TWO: Policy = Policy {
    name: "power-of-two",
    about: "of two servers that the flow's hash names, the one with fewer active sessions for its weight; for any number of servers",
    needs: &[Signal::Active],
    packets: Some(TWO),
    redirect: Some(RedirectPolicy { choice: Choice::Two, weighing: None }),
    names: None,
};
