//! The part of its weight that a member is given, learned from its reports.
//!
//! A report is 10 (r + m): requests in a second, and processes that can run (section 3.4 of the
//! paper). To choose the least sum leaves slow members overloaded: what a member answers in a
//! second follows from what it is given, so that of r + m only m says that it is given too much. So
//! r is taken out, by what was given here, and the part of a member falls as long as more waits
//! there than elsewhere, and rises as long as less does. It moves slowly, since a report is old
//! before it comes, and has fallen or risen enough where no member's queue is longer than others'.
//!
//! The load of a single request is not counted here at all: it has ended, or the next report holds
//! it.

use crate::pool::shares::{LEAST_PERMILLE, PERMILLE};

/// Rates are means over about so long, in milliseconds: as agents measure them.
const RATE_MS: u64 = 5_000;
/// Of a request, what it costs is a mean over about so long, in milliseconds.
const COST_MS: u64 = 10_000;
/// Less often than in two seconds once, a member's requests say nothing of what one costs, in
/// thousandths in a second.
const RATE_MIN: u64 = 500;
/// A report moves the part by so much of how its queue differs from others', in thousandths for
/// each second since the one before it, of which one counts.
const STEP_PERMILLE: i64 = 50;
/// A report stands for so much time at the most, in milliseconds: what was before is long gone.
const SECOND_MS: u64 = 1_000;
/// One request that waits more or less is no difference, in thousandths.
const ONE: u64 = 1_000;
/// The base-2 logarithm of the least part, in thousandths.
const EXPONENT_MIN: i64 = -5_062;

/// The state learned of one member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Learned {
    /// Its requests in a second, in thousandths, as far as they are known.
    rate: u64,
    /// How much of that is known: thousandths of a mean over the whole of [`RATE_MS`].
    rate_known: u64,
    /// Since when there is no rate of what was given, and that.
    rated_ms: Option<u64>,
    unrated: u64,
    /// The load that a request adds to r + m, in thousandths.
    cost: Option<u64>,
    /// Of the last report, in thousandths: r + m, and what it was given in a second then.
    work: u64,
    reported_rate: u64,
    reported_ms: Option<u64>,
    /// How much of the time before that isn't made a move of yet, in milliseconds: a first report
    /// has nobody to be compared with.
    unmoved_ms: u64,
    /// log2 of its part, in thousandths; 0 is the largest.
    exponent: i64,
}

impl Learned {
    /// Counts what it was given up to now.
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
        // A mean that forgets as 1 / (1 + t / T), with which no time is too long for it.
        let (whole, given) = (RATE_MS.saturating_add(passed_ms), self.unrated.saturating_mul(1_000_000));
        self.rate = self.rate.saturating_mul(RATE_MS).saturating_add(given) / whole;
        self.rate_known =
            (self.rate_known * RATE_MS).saturating_add(PERMILLE.saturating_mul(passed_ms)) / whole;
        (self.rated_ms, self.unrated) = (Some(now_ms), 0);
    }

    /// Its requests in a second, in thousandths.
    fn rate(&self) -> u64 {
        self.rate.saturating_mul(PERMILLE) / self.rate_known.max(1)
    }

    /// Takes what it reports, in thousandths of the paper's unit.
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

    /// log2 of what waits in it or is answered now, in thousandths, where a request that doesn't
    /// wait adds so much to r + m.
    fn waiting(&self, cost: u64) -> i64 {
        let requests = cost.saturating_mul(self.reported_rate) / ONE;
        logarithm(self.work.saturating_sub(requests).saturating_add(ONE))
    }

    /// Its part of its weight, in thousandths.
    pub(super) fn permille(&self) -> u64 {
        power(self.exponent).clamp(LEAST_PERMILLE, PERMILLE)
    }
}

/// A member, for the others: those whose reports count.
pub(super) struct Reporter<'a> {
    pub(super) weight: u16,
    pub(super) learned: &'a mut Learned,
    /// Whether this report is its own.
    pub(super) is_new: bool,
}

/// Takes a report of one of the `reporters`. By what it reports nobody is given more than
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

/// The load that a request adds to r + m where none waits: where it adds the least. Requests that
/// clients make of members by themselves are in there as well. Where that isn't known of most
/// members, the one that it is known of may be the loaded one: a request is a request then.
fn least_cost(reporters: &[Reporter<'_>]) -> u64 {
    let known = || reporters.iter().filter_map(|one| one.learned.cost);
    known().min().filter(|_| 2 * known().count() > reporters.len()).unwrap_or(ONE)
}

/// By how much log2 of a part moves, where others' queues are so many times as long as its own
/// (log2), in thousandths. A queue that is far longer than others' is getting longer, and waits for
/// no second report; one that is short can wait.
fn moved(difference: i64, passed_ms: u64) -> i64 {
    let passed_ms = i64::try_from(passed_ms).unwrap_or_default();
    let faster = if difference < 0 { 1_000 + difference * difference / 2_000 } else { 1_000 };
    difference * faster / 1_000 * STEP_PERMILLE * passed_ms / 1_000_000
}

/// Holds parts within what a report may gain, so that none runs away, and has the largest be the
/// whole.
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

/// log2 in thousandths, by straight lines between powers of two.
fn logarithm(number: u64) -> i64 {
    let number = number.max(1);
    let whole = number.ilog2();
    let rest = (u128::from(number - (1 << whole)) * 1_000) >> whole;
    i64::from(whole) * 1_000 + i64::try_from(rest).unwrap_or_default()
}

/// A thousand times two to the power of so many thousandths, none of them above 0: the inverse of
/// [`logarithm`].
fn power(exponent: i64) -> u64 {
    let below = exponent.min(0).unsigned_abs();
    let (halvings, rest) = (below.div_ceil(1_000), (1_000 - below % 1_000) % 1_000);
    u32::try_from(halvings)
        .ok()
        .and_then(|halvings| (PERMILLE + rest).checked_shr(halvings))
        .unwrap_or_default()
}
