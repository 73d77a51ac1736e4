//! Weighs servers by their queued bytes and their network paths, after the load-balancing agent of
//! Chow and Semwal (*Web Load Balancing Through More Accurate Server Report*, section 2.5).
//!
//! The paper's weight is (1 + bits per second) / (1 + seconds), and is useless as a measure: a
//! faster line outweighs any delay, and the weight hardly changes when the last 10 Mbit/s of a 100
//! Mbit/s line are used up. [`CORRECTED`] is the time for which a client waits. The client waits
//! for the server's queue to drain, and for its own reply at the path's available bandwidth.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{NamePolicy, Policy, Selection, Weighing};
use crate::pool::signals::{Signal, Signals};

/// Name of the policy by expected delay.
pub const POLICY: &str = "expected-delay";

/// Reply size of the paper's experiments, in bytes: the mean of WebStone's list of files.
const REPLY_BYTES: u64 = 19_773;
/// Minimum wait in microseconds. Shorter waits count as this value, since they do not matter to a
/// client.
const FLOOR_US: u64 = 10_000;

/// Weighs a server by the time that a client waits for a reply of mean size.
pub static CORRECTED: Weighing = Weighing { needs: &[Signal::Load], load: wait_us, describe, complete: None };

/// Policy of a name that follows the paper exactly. It selects the server with the largest weight
/// by equation 2.6.
pub static PAPER: Policy = Policy {
    name: POLICY,
    about: "the server with the largest weight by its delay and the path to it",
    needs: &[Signal::Load],
    packets: None,
    redirect: None,
    names: Some(NamePolicy {
        draw: Selection::Failover,
        weighing: Some(&Weighing {
            needs: &[Signal::Load],
            load: inverse_weight,
            describe: describe_paper,
            complete: Some(complete),
        }),
    }),
};

fn wait_us(signals: &Signals) -> Option<u64> {
    let delay_us = signals.report.delay_us?;
    let on_the_way = |bps: u64| REPLY_BYTES * 8 * 1_000_000 / bps.max(1);
    // A path without a recent measurement has no traffic, so it adds no wait.
    let on_the_way_us = signals.report.available_bps.map_or(0, on_the_way);
    Some(delay_us.saturating_add(on_the_way_us).max(FLOOR_US))
}

/// Fills in unknown bandwidths with the largest known one. Only clients' traffic measures a path.
/// So with a lower default, a server with an unmeasured path would never get clients. If no
/// bandwidth is known, the delay alone decides.
fn complete(servers: &mut [Signals]) {
    let largest = |of: fn(&Signals) -> Option<u64>| servers.iter().filter_map(of).max();
    let bottleneck_bps = largest(|server| server.report.bottleneck_bps);
    let available_bps = largest(|server| server.report.available_bps);
    for server in servers {
        server.report.bottleneck_bps = server.report.bottleneck_bps.or(bottleneck_bps);
        server.report.available_bps = server.report.available_bps.or(available_bps);
    }
}

/// Returns the inverse of the paper's weight = (1 + bottleneck + available) / ((1 + delay) *
/// 10000), in bits per second and seconds. It is the inverse since a larger load is worse.
fn inverse_weight(signals: &Signals) -> Option<u64> {
    const UNIT: u128 = 1_000_000_000_000;
    let delay_us = u128::from(signals.report.delay_us?);
    let bandwidth = |bps: Option<u64>| u128::from(bps.unwrap_or_default());
    let bandwidths = 1 + bandwidth(signals.report.bottleneck_bps) + bandwidth(signals.report.available_bps);
    let inverse = (1_000_000 + delay_us) * 10_000 * UNIT / (1_000_000 * bandwidths);
    Some(u64::try_from(inverse).unwrap_or(u64::MAX).max(1))
}

fn describe(signals: &Signals) -> Option<String> {
    describe_with(signals, signals.report.available_bps.is_none().then_some("taken for free"))
}

fn describe_paper(signals: &Signals) -> Option<String> {
    let is_unknown = signals.report.available_bps.is_none() || signals.report.bottleneck_bps.is_none();
    describe_with(signals, is_unknown.then_some("taken for the largest"))
}

/// Describes the delay and the bandwidth of the path; `unknown` is the text for an unmeasured path.
fn describe_with(signals: &Signals, unknown: Option<&str>) -> Option<String> {
    let delay = format!("reported delay {:.2} s", signals.report.delay_us? as f64 / 1e6);
    let free = signals.report.available_bps.map(|bps| format!("{:.2} Mbit/s free", bps as f64 / 1e6));
    let unknown = unknown.map(|counts_as| format!("path unknown: {counts_as}"));
    let parts: Vec<String> = [Some(delay), free, unknown].into_iter().flatten().collect();
    Some(parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::report::{BANDWIDTH_MAX, DELAY_MAX, Report};
    use proptest::prelude::*;

    fn signals(delay_us: u64, bottleneck_bps: Option<u64>, available_bps: Option<u64>) -> Signals {
        let report = Report { delay_us: Some(delay_us), bottleneck_bps, available_bps, ..Report::default() };
        Signals { report, ..Signals::default() }
    }

    #[test]
    fn a_client_waits_for_others_and_for_its_own_reply() {
        let waits = |delay_us, available| wait_us(&signals(delay_us, None, available));
        assert_eq!(waits(500_000, Some(1_581_840)), Some(600_000));
        assert_eq!(waits(500_000, None), Some(500_000));
        assert_eq!(waits(0, Some(1_000_000_000)), Some(FLOOR_US));
        assert_eq!(waits(0, Some(0)), Some(158_184_000_000), "a path that carries nothing");
        assert_eq!(wait_us(&Signals::default()), None);
    }

    /// The paper's example has the weight (1 + 100e6 + 60e6) / (3 * 10000) = 5333.3. A line of 4
    /// Mbit/s adds 4e6 / 10000 = 400.
    #[test]
    fn rank_matches_paper_example() {
        let weight = |delay_us, bottleneck, available| {
            let inverse = inverse_weight(&signals(delay_us, Some(bottleneck), Some(available))).unwrap();
            1e12 / inverse as f64
        };
        assert!((weight(2_000_000, 100_000_000, 60_000_000) - 5_333.3).abs() < 1.0);
        assert!((weight(0, 2_000_000, 2_000_000) - 400.0).abs() < 0.1);
        assert!(
            inverse_weight(&signals(0, None, None))
                > inverse_weight(&signals(DELAY_MAX, Some(1 << 40), None))
        );
        assert_eq!(inverse_weight(&Signals::default()), None);
    }

    fn completed<const N: usize>(mut servers: [Signals; N]) -> [Option<u64>; N] {
        complete(&mut servers);
        servers.map(|server| inverse_weight(&server))
    }

    #[test]
    fn an_unknown_path_counts_as_the_largest_of_the_name() {
        let [idle, fast, slow] = completed([
            signals(0, None, None),
            signals(0, Some(100_000_000), Some(4_000_000)),
            signals(0, Some(4_000_000), Some(60_000_000)),
        ]);
        assert_eq!(idle, inverse_weight(&signals(0, Some(100_000_000), Some(60_000_000))), "each by itself");
        assert!(idle < fast && idle < slow, "the larger the worse");
    }

    #[test]
    fn delays_decide_where_no_path_is_known() {
        let [first, same, late] =
            completed([signals(0, None, None), signals(0, None, None), signals(9, None, None)]);
        assert!(first == same && same < late);
    }

    #[test]
    fn an_unknown_path_is_named_in_words() {
        let describe = |available| describe_paper(&signals(0, available, available)).unwrap();
        assert_eq!(describe(None), "reported delay 0.00 s, path unknown: taken for the largest");
        assert_eq!(describe(Some(4_000_000)), "reported delay 0.00 s, 4.00 Mbit/s free");
        let free = super::describe(&signals(0, None, None)).unwrap();
        assert_eq!(free, "reported delay 0.00 s, path unknown: taken for free");
    }

    proptest! {
        #[test]
        fn an_unknown_path_is_no_worse_than_a_known_one(
            delay in 0..=DELAY_MAX, known in proptest::collection::vec((0..=BANDWIDTH_MAX, 0..=BANDWIDTH_MAX), 0..5)
        ) {
            let known = known.into_iter().map(|(bottleneck, free)| signals(delay, Some(bottleneck), Some(free)));
            let mut servers: Vec<Signals> = known.chain([signals(delay, None, None)]).collect();
            let before = servers.clone();
            complete(&mut servers);
            let loads: Vec<Option<u64>> = servers.iter().map(inverse_weight).collect();
            prop_assert!(loads.iter().all(|load| load >= loads.last().unwrap()));
            prop_assert_eq!(&servers[..before.len() - 1], &before[..before.len() - 1], "what is known stays");
        }

        #[test]
        fn rank_never_improves_with_worse_path(
            delay in 0..=DELAY_MAX, more in 0..=DELAY_MAX, free in 0..=BANDWIDTH_MAX, less in 0..=BANDWIDTH_MAX
        ) {
            for load in [wait_us, inverse_weight] {
                let of = |delay, free| load(&signals(delay, Some(free), Some(free))).unwrap();
                prop_assert!(of(delay, free) > 0);
                prop_assert!(of(delay.max(more), free.min(less)) >= of(delay, free));
            }
        }
    }
}
