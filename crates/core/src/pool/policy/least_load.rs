//! Policy by the load of server groups, 10 (r + m), times sessions. The paper selects the server
//! with the least reported load, and this server then gets all clients until the next report.

use alloc::format;
use alloc::string::String;

use super::two::by_load;
use super::{Choice, Policy, RedirectPolicy, Weighing};
use crate::pool::signals::{Signal, Signals};

/// Minimum load, in thousandths of the paper's unit. Smaller loads count as this value, which is
/// one runnable process.
const FLOOR: u64 = 10_000;

/// Selects of two servers the one with the smaller product of reported load and sessions. In a
/// group, members send their reports unprompted, and [`Choice::Head`] uses them.
pub(super) static LEAST_LOAD: Policy = Policy {
    redirect: Some(RedirectPolicy { choice: Choice::Head, weighing: None }),
    ..by_load(
        "least-load",
        "of two servers that the flow's hash names, the one with less reported load, requests in a second and run queue, for its sessions",
        &Weighing { needs: &[Signal::Load], load, describe, complete: None },
    )
};

fn load(signals: &Signals) -> Option<u64> {
    signals.report.load_milli.map(|load_milli| load_milli.max(FLOOR))
}

fn describe(signals: &Signals) -> Option<String> {
    signals.report.load_milli.map(|milli| format!("reported load {:.1}", milli as f64 / 1e3))
}
