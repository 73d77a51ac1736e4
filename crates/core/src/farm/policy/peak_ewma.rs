//! Latency times sessions (Finagle's peak-EWMA): who answers late is spared, at once, and tried again little by little.

use alloc::vec::Vec;

use super::{Measure, Policy, Weighted};
use crate::farm::signals::{Signal, Signals};
use crate::path::tables::Pick;

/// Less than a millisecond is the network's chance, in microseconds.
const FLOOR: u64 = 1_000;

/// Of two servers the one with less latency times sessions.
pub struct PeakEwma;

impl Policy for PeakEwma {
    fn name(&self) -> &'static str {
        "peak-ewma"
    }

    fn about(&self) -> &'static str {
        "of two servers that the flow's hash names, the one with less latency (of its probes) for its sessions; for servers that slow down"
    }

    fn pick(&self) -> Pick {
        Pick::Two
    }

    fn order(&self, _: &[Weighted]) -> Vec<u16> {
        Vec::new()
    }

    fn needs(&self) -> &'static [Signal] {
        &[Signal::Latency]
    }

    fn measure(&self) -> Option<Measure> {
        Some(load)
    }
}

fn load(signals: &Signals) -> Option<u64> {
    signals.latency_us.map(|latency_us| latency_us.max(FLOOR))
}
