//! The server groups' load, 10 (r + m), times sessions. The paper chooses the least loaded of all by its last report, to which all run until the next.

use alloc::vec::Vec;

use super::{Measure, Policy, Weighted};
use crate::farm::signals::{Signal, Signals};
use crate::path::tables::Pick;

/// One process that runs, in thousandths of the paper's unit.
const FLOOR: u64 = 10_000;

/// Of two servers the one with less reported load times sessions.
pub struct LeastLoad;

impl Policy for LeastLoad {
    fn name(&self) -> &'static str {
        "least-load"
    }

    fn about(&self) -> &'static str {
        "of two servers that the flow's hash names, the one with less reported load, requests in a second and run queue, for its sessions"
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
    signals.report.load_milli.map(|load_milli| load_milli.max(FLOOR))
}
