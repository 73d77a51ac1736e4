//! Bandwidth of the paths to clients, from the delivery rates of real replies. No extra byte is
//! sent.
//!
//! The paper's load-balancing agent sent trains of packets and waited for echoes, for up to half an
//! hour (its section 4). On a busy server no trains are needed, since TCP measures the delivery
//! rate of each path.

use std::collections::VecDeque;
use std::time::Duration;

/// Age up to which samples count.
const KEPT: Duration = Duration::from_secs(60);

/// Rates of the last minute, in bytes per second.
#[derive(Debug, Default)]
pub(super) struct Bandwidth {
    looks: VecDeque<BandwidthSample>,
}

#[derive(Clone, Copy, Debug)]
struct BandwidthSample {
    at: Duration,
    middle: u64,
    fastest: u64,
}

/// Bandwidths in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathBandwidth {
    /// Rate to a client: the median over the clients, and the median over time.
    pub(super) available: u64,
    /// Rate to the fastest client. The upper quarter of the samples is ignored: acknowledgments in
    /// a burst make a path look faster.
    pub(super) bottleneck: u64,
}

impl Bandwidth {
    /// Adds the rates of the clients that receive data now. `at` is the time since the first
    /// sample.
    pub(super) fn add_sample(&mut self, mut rates: Vec<u64>, at: Duration) {
        rates.sort_unstable();
        if let (Some(middle), Some(fastest)) = (rates.get(rates.len() / 2), rates.last()) {
            self.looks.push_back(BandwidthSample { at, middle: *middle, fastest: *fastest });
        }
        while self.looks.front().is_some_and(|look| at.saturating_sub(look.at) > KEPT) {
            self.looks.pop_front();
        }
    }

    /// Returns the bandwidths, if any data was sent lately.
    pub(super) fn paths(&self) -> Option<PathBandwidth> {
        let sorted = |of: fn(&BandwidthSample) -> u64| {
            let mut rates: Vec<u64> = self.looks.iter().map(of).collect();
            rates.sort_unstable();
            rates
        };
        // Of two consecutive samples, the lower one counts. The first may include a shaper's saved
        // tokens.
        let last = self.looks.len().checked_sub(1)?;
        let available = *sorted(|look| look.middle).get(last / 2)?;
        let bottleneck = *sorted(|look| look.fastest).get(last * 3 / 4)?;
        Some(PathBandwidth {
            available: available.saturating_mul(8),
            bottleneck: bottleneck.saturating_mul(8),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn known(looks: &[&[u64]]) -> Option<PathBandwidth> {
        let mut bandwidth = Bandwidth::default();
        for (at, rates) in (0..).zip(looks) {
            bandwidth.add_sample(rates.to_vec(), Duration::from_secs(at));
        }
        bandwidth.paths()
    }

    #[test]
    fn the_middle_of_clients_and_the_fastest() {
        assert_eq!(known(&[&[], &[]]), None);
        assert_eq!(known(&[&[500]]), Some(PathBandwidth { available: 4_000, bottleneck: 4_000 }));
        assert_eq!(known(&[&[900, 100, 200]]), Some(PathBandwidth { available: 1_600, bottleneck: 7_200 }));
    }

    #[test]
    fn outlying_bandwidth_sample_is_ignored() {
        assert_eq!(
            known(&[&[9_000], &[476]]),
            Some(PathBandwidth { available: 8 * 476, bottleneck: 8 * 476 })
        );
        let looks: [&[u64]; 6] = [&[478], &[474], &[9_000], &[476], &[3], &[475]];
        assert_eq!(known(&looks), Some(PathBandwidth { available: 8 * 475, bottleneck: 8 * 476 }));
    }

    #[test]
    fn old_bandwidth_samples_expire() {
        let mut bandwidth = Bandwidth::default();
        bandwidth.add_sample(vec![1_000], Duration::ZERO);
        bandwidth.add_sample(vec![], Duration::from_secs(60));
        assert!(bandwidth.paths().is_some());
        bandwidth.add_sample(vec![], Duration::from_secs(61));
        assert_eq!(bandwidth.paths(), None);
    }
}
