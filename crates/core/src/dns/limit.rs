//! Response rate limiting for clients without a valid cookie. Their source address may be forged,
//! and then the owner of the address gets unwanted answers. Each network has a limit. All networks
//! together have a second limit, since a flood may forge addresses of any number of networks.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::hash::Hasher;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher13;

use crate::net::prefix::client_network;
use crate::path::seed::Seed;

/// Number of buckets for networks. Networks with the same hash share a bucket.
const PLACES: usize = 1 << 14;
/// Maximum difference between two threads' clock readings, in milliseconds.
const BEHIND_MS: u32 = 10_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Average rate per network, in answers per second; 0 for no limit.
    pub per_second: u32,
    /// Burst per network, in answers.
    pub burst: u32,
    /// Rate and burst of all networks together, in answers per second; 0 for no limit.
    pub total_per_second: u32,
}

/// Limit that a client exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitExceeded {
    /// Limit of the client's network.
    Network,
    /// Limit of all networks together.
    Total,
}

/// Remaining budget of all networks together, shared by all threads.
#[derive(Debug)]
pub struct SharedBudget {
    /// Remaining answers in thousandths, and the time of the last update in milliseconds, modulo
    /// 2^32.
    word: AtomicU64,
}

/// Value of a budget that was never used. It is larger than any real budget.
const UNTOUCHED: u64 = u32::MAX as u64;

impl Default for SharedBudget {
    fn default() -> Self {
        SharedBudget { word: AtomicU64::new(UNTOUCHED << 32) }
    }
}

impl SharedBudget {
    /// Takes one answer from the budget. Returns true if the budget was not empty.
    fn try_spend(&self, per_second: u32, now_ms: u32) -> bool {
        if per_second == 0 {
            return true;
        }
        // The budget gains the rate as thousandths of an answer per millisecond, so rounding loses
        // nothing.
        let burst = u64::from(per_second.min(u32::MAX / 1_000)) * 1_000;
        let taken = self.word.fetch_update(Relaxed, Relaxed, |word| {
            let (left, at_ms) = (word >> 32, word as u32);
            // Another thread may have stored a later time.
            let elapsed_ms = now_ms.wrapping_sub(at_ms);
            let is_behind = elapsed_ms > u32::MAX - BEHIND_MS && left != UNTOUCHED;
            let (elapsed_ms, at_ms) = if is_behind { (0, at_ms) } else { (elapsed_ms, now_ms) };
            let left = (left + u64::from(elapsed_ms) * u64::from(per_second)).min(burst);
            Some(left.checked_sub(1_000)? << 32 | u64::from(at_ms))
        });
        taken.is_ok()
    }
}

/// Remaining budgets of networks, for one thread. The kernel distributes clients among threads.
#[derive(Debug)]
pub struct RateBucket {
    limit: Limit,
    key: Seed,
    /// Remaining answers and time of the last update in milliseconds, by hash of the network.
    left: Box<[(u32, u32)]>,
    total: Arc<SharedBudget>,
}

impl RateBucket {
    /// Returns full buckets with these limits and a shared total.
    pub fn new(limit: Limit, key: Seed, total: Arc<SharedBudget>) -> RateBucket {
        RateBucket { limit, key, left: alloc::vec![(limit.burst, 0); PLACES].into(), total }
    }

    /// Applies other limits from now on.
    pub fn follow(&mut self, limit: Limit) {
        if self.limit != limit {
            *self = RateBucket::new(limit, self.key, Arc::clone(&self.total));
        }
    }

    /// Takes one answer from a client's budget.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub fn spend(&mut self, client: IpAddr, now_ms: u32) -> Result<(), LimitExceeded> {
        if !self.spend_network(client, now_ms) {
            return Err(LimitExceeded::Network);
        }
        // A query over its network's limit does not use the shared budget.
        self.total.try_spend(self.limit.total_per_second, now_ms).then_some(()).ok_or(LimitExceeded::Total)
    }

    fn spend_network(&mut self, client: IpAddr, now_ms: u32) -> bool {
        let Limit { per_second, burst, .. } = self.limit;
        if per_second == 0 {
            return true;
        }
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        match client_network(client) {
            IpAddr::V4(network) => hasher.write_u32(network.to_bits()),
            IpAddr::V6(network) => hasher.write_u128(network.to_bits()),
        }
        let place = hasher.finish() as usize % PLACES;
        let Some((left, at_ms)) = self.left.get_mut(place) else { return true };
        let gained = u64::from(now_ms.wrapping_sub(*at_ms)) * u64::from(per_second) / 1_000;
        if gained > 0 {
            *left = (u64::from(*left) + gained).min(u64::from(burst)) as u32;
            *at_ms = now_ms;
        }
        let has_one = *left > 0;
        *left = left.saturating_sub(1);
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `count` answers the budget allows.
    fn spend_many(total: &SharedBudget, per_second: u32, now_ms: u32, count: u32) -> u32 {
        (0..count).map(|_| u32::from(total.try_spend(per_second, now_ms))).sum()
    }

    #[test]
    fn limiter_allows_burst_and_rate_per_second() {
        for begin_ms in [0, 5_000, u32::MAX - 1_700] {
            let at = |ms: u32| begin_ms.wrapping_add(ms);
            for per_second in [1, 30, 1_500, 1_000_000] {
                let total = SharedBudget::default();
                assert_eq!(spend_many(&total, per_second, at(0), per_second + 10), per_second);
                // If an update gains less than one answer, the fraction is not lost.
                let later: u32 =
                    (1..=3_000).map(|ms| spend_many(&total, per_second, at(ms), per_second / 900 + 1)).sum();
                assert!((3 * per_second - 1..=3 * per_second).contains(&later), "{per_second}: {later}");
            }
        }
    }

    #[test]
    fn thread_with_late_clock_gains_no_tokens() {
        let total = SharedBudget::default();
        assert_eq!(spend_many(&total, 10, 5_000, 20), 10);
        assert_eq!(spend_many(&total, 10, 4_999, 20), 0);
        assert_eq!(spend_many(&total, 10, 5_100, 20), 1);
    }

    #[test]
    fn zero_limit_never_limits() {
        assert_eq!(spend_many(&SharedBudget::default(), 0, 5, 10_000), 10_000);
    }
}
