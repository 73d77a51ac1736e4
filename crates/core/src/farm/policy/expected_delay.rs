//! Expected delay times sessions: how long a server takes to send what it has to (the load-balancing agent's delay = B / speed).

use alloc::vec::Vec;

use super::{Measure, Policy, Weighted};
use crate::farm::signals::{Signal, Signals};
use crate::path::tables::Pick;

/// What is sent within ten milliseconds delays nobody, in microseconds.
const FLOOR: u64 = 10_000;

/// Of two servers the one with less to send, for how fast it does, times sessions.
pub struct ExpectedDelay;

impl Policy for ExpectedDelay {
    fn name(&self) -> &'static str {
        "expected-delay"
    }

    fn about(&self) -> &'static str {
        "of two servers that the flow's hash names, the one that reports less time to send what it has to, for its sessions; for large replies"
    }

    fn pick(&self) -> Pick {
        Pick::Two
    }

    fn order(&self, _: &[Weighted]) -> Vec<u16> {
        Vec::new()
    }

    fn needs(&self) -> &'static [Signal] {
        &[Signal::Load]
    }

    fn measure(&self) -> Option<Measure> {
        Some(load)
    }
}

fn load(signals: &Signals) -> Option<u64> {
    signals.report.delay_us.map(|delay_us| delay_us.max(FLOOR))
}
