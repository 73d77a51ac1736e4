//! Expected delay times sessions: how long a server takes to send what it has to (the
//! load-balancing agent's delay = B / speed).

use alloc::format;
use alloc::string::String;

use super::two::by_load;
use super::{NamePolicy, Policy, Selection, Weighing, rank};
use crate::pool::signals::{Signal, Signals};

/// A reply sent within ten milliseconds delays no client, in microseconds.
const FLOOR: u64 = 10_000;

/// Of two servers the one with less to send, for how fast it does, times sessions.
pub(super) static EXPECTED_DELAY: Policy = Policy {
    // Names lead over paths that services know nothing of.
    names: Some(NamePolicy { draw: Selection::Random, weighing: Some(&rank::CORRECTED) }),
    ..by_load(
        rank::POLICY,
        "of two servers that the flow's hash names, the one that reports less time to send what it has to, for its sessions; for large replies",
        &Weighing { needs: &[Signal::Load], load, describe, complete: None },
    )
};

fn load(signals: &Signals) -> Option<u64> {
    signals.report.delay_us.map(|delay_us| delay_us.max(FLOOR))
}

fn describe(signals: &Signals) -> Option<String> {
    signals.report.delay_us.map(|us| format!("reported delay {:.2} s", us as f64 / 1e6))
}
