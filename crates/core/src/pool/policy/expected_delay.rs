//! Policy by expected delay times sessions. The expected delay is the time that a server needs to
//! send its queued bytes (the load-balancing agent's delay = B / speed).

use alloc::format;
use alloc::string::String;

use super::two::by_load;
use super::{NamePolicy, Policy, Selection, Weighing, rank};
use crate::pool::signals::{Signal, Signals};

/// Minimum delay in microseconds. Shorter delays count as this value, since they do not matter to a
/// client.
const FLOOR: u64 = 10_000;

/// Selects of two servers the one with the smaller product of delay and sessions.
pub(super) static EXPECTED_DELAY: Policy = Policy {
    // Names also consider network paths, which services do not measure.
    names: Some(NamePolicy { draw: Selection::Random, weighing: Some(&rank::CORRECTED) }),
    ..by_load(
        rank::POLICY,
        "of the two servers that the flow's hash selects, the one that needs less time to send its pending bytes, by its report; for large replies",
        &Weighing { needs: &[Signal::Load], load, describe, complete: None },
    )
};

fn load(signals: &Signals) -> Option<u64> {
    signals.report.delay_us.map(|delay_us| delay_us.max(FLOOR))
}

fn describe(signals: &Signals) -> Option<String> {
    signals.report.delay_us.map(|us| format!("reported delay {:.2} s", us as f64 / 1e6))
}
