//! Least connections: the server with the fewest active sessions for its weight.

use alloc::vec::Vec;

use super::{Policy, Weighted};
use crate::path::tables::{ORDER_MAX, Pick};
use crate::pool::signals::Signal;

/// The server with the fewest active sessions for its weight.
pub struct LeastConnections;

impl Policy for LeastConnections {
    fn name(&self) -> &'static str {
        "least-connections"
    }

    fn about(&self) -> &'static str {
        "the server with the fewest active sessions for its weight; for sessions of uneven length"
    }

    fn pick(&self) -> Pick {
        Pick::Least
    }

    /// Each server once: the data plane compares them all.
    fn order(&self, members: &[Weighted]) -> Vec<u16> {
        members.iter().filter(|m| m.weight > 0).map(|m| m.slot).take(ORDER_MAX).collect()
    }

    fn needs(&self) -> &'static [Signal] {
        &[Signal::Active]
    }
}
