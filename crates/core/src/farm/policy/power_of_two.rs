//! The power of two choices: of two servers that the flow's hash names, the one with less to do (Mitzenmacher 2001).
//!
//! The longest queue of n servers grows as log log n, where one random choice has it grow as log n / log log n. Two servers are compared
//! however many there are, and each flow's two are the same on every director and after any restart.

use alloc::vec::Vec;

use super::{Policy, Weighted};
use crate::path::tables::Pick;

/// The one of two servers with fewer active sessions for its weight.
pub struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power-of-two"
    }

    fn about(&self) -> &'static str {
        "of two servers that the flow's hash names, the one with fewer active sessions for its weight; for any number of servers"
    }

    fn pick(&self) -> Pick {
        Pick::Two
    }

    /// None: the candidates stand in the hash table, and beside it.
    fn order(&self, _: &[Weighted]) -> Vec<u16> {
        Vec::new()
    }
}
