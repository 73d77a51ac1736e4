//! Policy by latency times sessions (Finagle's peak-EWMA). A rise in latency counts at once, and a
//! fall counts gradually.

use alloc::format;
use alloc::string::String;

use super::two::by_load;
use super::{Policy, Weighing};
use crate::pool::signals::{Signal, Signals};

/// Minimum latency in microseconds. Shorter latencies count as this value, since they vary by
/// chance.
const FLOOR: u64 = 1_000;

/// Selects of two servers the one with the smaller product of latency and sessions.
pub(super) static PEAK_EWMA: Policy = by_load(
    "peak-ewma",
    "of two servers that the flow's hash names, the one with less latency (of its probes) for its sessions; for servers that slow down",
    &Weighing { needs: &[Signal::Latency], load, describe, complete: None },
);

fn load(signals: &Signals) -> Option<u64> {
    signals.latency_us.map(|latency_us| latency_us.max(FLOOR))
}

fn describe(signals: &Signals) -> Option<String> {
    signals.latency_us.map(|us| format!("latency {:.1} ms", us as f64 / 1e3))
}
