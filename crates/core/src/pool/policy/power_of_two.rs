//! The power of two choices: of two servers that the flow's hash names, the one with less to do (Mitzenmacher 2001).
//!
//! The longest queue of n servers grows as log log n, where one random choice has it grow as log n / log log n. Two servers are compared
//! however many there are, and each flow's two are the same on every director and after any restart.

use super::two::Two;

/// The one of two servers with fewer active sessions for its weight.
pub(super) static POWER_OF_TWO: Two = Two {
    name: "power-of-two",
    about: "of two servers that the flow's hash names, the one with fewer active sessions for its weight; for any number of servers",
    weighing: None,
};
