//! The part of its weight that a member gets, learned from its reports. The part is always relative
//! to the largest part, which is the whole weight.
//!
//! A report is 10 (r + m): requests per second, and runnable processes (section 3.4 of the paper).
//! Selecting the member with the smallest sum leaves slow members overloaded: r follows from the
//! requests dispatched to a member, so only m shows overload. Therefore r is subtracted, using this
//! director's own counts. The part of a member falls while its queue is longer than the queues of
//! others, and rises while it is shorter. The part changes slowly, since reports are old on
//! arrival, and stops changing once queues are equal.
//!
//! Requests dispatched since the report are not counted, since they have ended or the next report
//! includes them.

use crate::pool::shares::{LEAST_PERMILLE, PERMILLE};

/// Time constant of request rates, in milliseconds. Agents use the same constant.
const RATE_MS: u64 = 5_000;
/// Time constant of the cost of a request, in milliseconds.
const COST_MS: u64 = 10_000;
/// Minimum request rate for an estimate of the cost: one request in two seconds, in thousandths per
/// second.
const RATE_MIN: u64 = 500;
/// Change of the part's logarithm per second, in thousandths of the difference between the queues'
/// logarithms.
const STEP_PERMILLE: i64 = 50;
/// Maximum time since the previous report for which a report changes parts, in milliseconds.
const SECOND_MS: u64 = 1_000;
/// Load of one request, in thousandths. It is added to each queue, so that smaller differences
/// hardly count.
const ONE: u64 = 1_000;
/// Base-2 logarithm of the smallest part, in thousandths: a part of about 3 %.
const EXPONENT_MIN: i64 = -5_062;

/// Facts that the reports of one member have shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Learned {
    /// Request rate in thousandths per second, not yet divided by `rate_known`.
    rate: u64,
    /// Part of [`RATE_MS`] that `rate` covers, in thousandths.
    rate_known: u64,
    /// Time of the last update of `rate` in milliseconds, and the number of requests since.
    rated_ms: Option<u64>,
    unrated: u64,
    /// Load that one request per second adds to r + m, in thousandths.
    cost: Option<u64>,
    /// Last report: r + m in thousandths, and the rate of dispatched requests at that time.
    work: u64,
    reported_rate: u64,
    reported_ms: Option<u64>,
    /// Time before the last report for which the part has not changed yet, in milliseconds. It
    /// stays if there is no other member to compare with.
    unmoved_ms: u64,
    /// Base-2 logarithm of the part, in thousandths; 0 is the whole weight.
    exponent: i64,
}

impl Learned {
    /// Counts `times` requests that were dispatched to the member.
    pub(super) fn given(&mut self, now_ms: u64, times: u64) {
        let Some(since_ms) = self.rated_ms else {
            (self.rated_ms, self.unrated) = (Some(now_ms), 0);
            return;
        };
        self.unrated = self.unrated.saturating_add(times);
        let passed_ms = now_ms.saturating_sub(since_ms);
        if passed_ms == 0 {
            return;
        }
        // The old rate has weight 1 / (1 + t / T), where t is the interval and T is `RATE_MS`. This
        // mean is stable for any interval.
        let (whole, given) = (RATE_MS.saturating_add(passed_ms), self.unrated.saturating_mul(1_000_000));
        self.rate = self.rate.saturating_mul(RATE_MS).saturating_add(given) / whole;
        self.rate_known =
            (self.rate_known * RATE_MS).saturating_add(PERMILLE.saturating_mul(passed_ms)) / whole;
        (self.rated_ms, self.unrated) = (Some(now_ms), 0);
    }

    /// Request rate, in thousandths per second.
    fn rate(&self) -> u64 {
        self.rate.saturating_mul(PERMILLE) / self.rate_known.max(1)
    }

    /// Applies a report, in thousandths of the paper's unit.
    fn report(&mut self, now_ms: u64, load: u64, report_ms: u64) {
        let passed_ms = self.reported_ms.map_or(report_ms, |at_ms| now_ms.saturating_sub(at_ms));
        let rate = self.rate();
        (self.reported_ms, self.work, self.reported_rate) = (Some(now_ms), load / 10, rate);
        if rate >= RATE_MIN {
            let cost = self.work.saturating_mul(ONE) / rate;
            let whole = COST_MS.saturating_add(passed_ms);
            let mean = |before: u64| {
                (before.saturating_mul(COST_MS)).saturating_add(cost.saturating_mul(passed_ms)) / whole
            };
            self.cost = Some(self.cost.map_or(cost, mean));
        }
        self.unmoved_ms = passed_ms.min(SECOND_MS);
    }

    /// Returns log2 of the member's queue, in thousandths. `cost` is the load that one request per
    /// second adds to r + m without queueing.
    fn waiting(&self, cost: u64) -> i64 {
        let requests = cost.saturating_mul(self.reported_rate) / ONE;
        logarithm(self.work.saturating_sub(requests).saturating_add(ONE))
    }

    /// Part of the weight that the member gets, in thousandths.
    pub(super) fn permille(&self) -> u64 {
        power(self.exponent).clamp(LEAST_PERMILLE, PERMILLE)
    }
}

/// A member with a current report, whose queue is compared with those of the others.
pub(super) struct Reporter<'a> {
    pub(super) weight: u16,
    pub(super) learned: &'a mut Learned,
    /// True for the member whose report is being applied.
    pub(super) is_new: bool,
}

/// Applies a report of one of the `reporters`. By its reports no member gains more than
/// `gain_percent` of its fair share.
pub(super) fn learn(
    reporters: &mut [Reporter<'_>],
    now_ms: u64,
    load: u64,
    report_ms: u64,
    gain_percent: u64,
) {
    let Some(one) = reporters.iter_mut().find(|one| one.is_new) else { return };
    one.learned.report(now_ms, load, report_ms);
    let least = least_cost(reporters);
    let others = i64::try_from(reporters.len()).unwrap_or(i64::MAX);
    if others > 1 {
        let mean = reporters.iter().map(|one| one.learned.waiting(least)).sum::<i64>() / others;
        for one in reporters.iter_mut() {
            let passed_ms = core::mem::take(&mut one.learned.unmoved_ms);
            one.learned.exponent += moved(mean - one.learned.waiting(least), passed_ms);
        }
    }
    bound(reporters, gain_percent);
}

/// Returns the load that one request per second adds to r + m without queueing. It is the smallest
/// cost of all members. If the cost is known for half of the members or fewer, all of these may be
/// overloaded, so the result is the load of one request.
fn least_cost(reporters: &[Reporter<'_>]) -> u64 {
    let known = || reporters.iter().filter_map(|one| one.learned.cost);
    known().min().filter(|_| 2 * known().count() > reporters.len()).unwrap_or(ONE)
}

/// Returns the change of log2 of a member's part, in thousandths. `difference` is log2 of the mean
/// queue minus log2 of the member's own queue. A queue far longer than the mean is growing, so the
/// part falls faster than it rises.
fn moved(difference: i64, passed_ms: u64) -> i64 {
    let passed_ms = i64::try_from(passed_ms).unwrap_or_default();
    let faster = if difference < 0 { 1_000 + difference * difference / 2_000 } else { 1_000 };
    difference * faster / 1_000 * STEP_PERMILLE * passed_ms / 1_000_000
}

/// Limits parts to the allowed gain, and scales them so that the largest part is the whole weight.
fn bound(reporters: &mut [Reporter<'_>], gain_percent: u64) {
    let largest = |reporters: &[Reporter<'_>]| {
        reporters.iter().map(|one| one.learned.exponent).max().unwrap_or_default()
    };
    let whole = largest(reporters);
    let parts: alloc::vec::Vec<(u16, u64)> = reporters
        .iter()
        .map(|one| (one.weight, power(one.learned.exponent - whole).clamp(LEAST_PERMILLE, PERMILLE)))
        .collect();
    let most =
        whole + logarithm(crate::pool::shares::most_permille(&parts, gain_percent)) - logarithm(PERMILLE);
    for one in reporters.iter_mut() {
        one.learned.exponent = one.learned.exponent.min(most);
    }
    let whole = largest(reporters);
    for one in reporters.iter_mut() {
        one.learned.exponent = (one.learned.exponent - whole).max(EXPONENT_MIN);
    }
}

/// Returns log2 in thousandths, interpolated linearly between powers of two.
fn logarithm(number: u64) -> i64 {
    let number = number.max(1);
    let whole = number.ilog2();
    let rest = (u128::from(number - (1 << whole)) * 1_000) >> whole;
    i64::from(whole) * 1_000 + i64::try_from(rest).unwrap_or_default()
}

/// Returns a thousand times two to the power of `exponent` / 1000, where `exponent` is at most 0.
/// This is the inverse of [`logarithm`].
fn power(exponent: i64) -> u64 {
    let below = exponent.min(0).unsigned_abs();
    let (halvings, rest) = (below.div_ceil(1_000), (1_000 - below % 1_000) % 1_000);
    u32::try_from(halvings)
        .ok()
        .and_then(|halvings| (PERMILLE + rest).checked_shr(halvings))
        .unwrap_or_default()
}
