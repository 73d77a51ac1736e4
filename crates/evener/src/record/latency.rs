//! Histogram of the duration of decisions.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::DecisionLatency;

/// Upper bounds in nanoseconds, from the duration of a decision in the kernel to that of a slow
/// client's request.
const BOUNDS: [u64; 10] =
    [1_000, 2_500, 5_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];

/// Number of decisions per bucket, not cumulative.
#[derive(Default)]
pub(super) struct LatencyHistogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl LatencyHistogram {
    pub(super) fn add(&self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let place = BOUNDS.partition_point(|bound| *bound < nanos);
        if let Some(place) = self.buckets.get(place) {
            place.fetch_add(1, Relaxed);
        }
        self.nanos.fetch_add(nanos, Relaxed);
    }

    pub(super) fn show(&self) -> DecisionLatency {
        let bounds = BOUNDS.iter().map(|bound| Some(*bound as f64 / 1e9)).chain([None]);
        let buckets: Vec<_> = bounds.zip(self.buckets.iter().map(|count| count.load(Relaxed))).collect();
        DecisionLatency {
            count: buckets.iter().map(|(_, count)| count).sum(),
            seconds: self.nanos.load(Relaxed) as f64 / 1e9,
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_counted_once() {
        let histogram = LatencyHistogram::default();
        [0, 1_000, 1_001, 2_000_000, 60_000_000_000]
            .map(Duration::from_nanos)
            .into_iter()
            .for_each(|time| histogram.add(time));
        let shown = histogram.show();
        assert_eq!((shown.count, shown.seconds), (5, 60.002_002_001));
        let places: Vec<_> = shown.buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(places, [(Some(1e-6), 2), (Some(2.5e-6), 1), (Some(0.01), 1), (None, 1)]);
    }
}
