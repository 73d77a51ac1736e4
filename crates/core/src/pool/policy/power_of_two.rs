//! The power of two choices: of two servers that the flow's hash names, the one with less to do
//! (Mitzenmacher 2001).
//!
//! The longest queue of n servers grows as log log n, where one random choice has it grow as log n
//! / log log n. Two servers are compared however many there are, and each flow's two are the same
//! on every director and after any restart.

use super::two::TWO;
use super::{Choice, Policy, RedirectPolicy};
use crate::pool::signals::Signal;

/// The one of two servers with fewer active sessions for its weight. A group, which sees none,
/// counts whom it sent where.
pub(super) static POWER_OF_TWO: Policy = Policy {
    name: "power-of-two",
    about: "of two servers that the flow's hash names, the one with fewer active sessions for its weight; for any number of servers",
    needs: &[Signal::Active],
    packets: Some(TWO),
    redirect: Some(RedirectPolicy { choice: Choice::Two, weighing: None }),
    names: None,
};
