//! How many answers go to clients that haven't shown where they are: a source address may be
//! forged, and its owner would get what he never asked for (response rate limiting). Each network
//! has its own limit, and all of them together have one, since a flood may forge addresses of any
//! number of networks.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::hash::Hasher;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher13;

use crate::net::prefix::client_network;
use crate::path::seed::Seed;

/// Networks that are told apart, as many as there are places; more of them share.
const PLACES: usize = 1 << 14;
/// How far one thread's look at the clock may be behind another's, in milliseconds.
const BEHIND_MS: u32 = 10_000;

/// How many answers go out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// To one network in a second, on average; 0 for as many as are asked for.
    pub per_second: u32,
    /// And at once.
    pub burst: u32,
    /// To all networks in a second, and at once; 0 for as many as are asked for.
    pub total_per_second: u32,
}

/// Why a client gets no whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitExceeded {
    /// Its network has had its part.
    Network,
    /// All networks together have had theirs.
    Total,
}

/// The budget that all networks together have left, for all threads.
#[derive(Debug)]
pub struct SharedBudget {
    /// Answers left, in thousandths, and when that was so, in milliseconds that wrap.
    word: AtomicU64,
}

/// More than ever is left, before the first answer is taken.
const UNTOUCHED: u64 = u32::MAX as u64;

impl Default for SharedBudget {
    fn default() -> Self {
        SharedBudget { word: AtomicU64::new(UNTOUCHED << 32) }
    }
}

impl SharedBudget {
    /// Takes an answer; whether there was one left.
    fn try_spend(&self, per_second: u32, now_ms: u32) -> bool {
        if per_second == 0 {
            return true;
        }
        // A thousandth of an answer in a millisecond for each answer in a second: nothing is lost
        // by rounding.
        let burst = u64::from(per_second.min(u32::MAX / 1_000)) * 1_000;
        let taken = self.word.fetch_update(Relaxed, Relaxed, |word| {
            let (left, at_ms) = (word >> 32, word as u32);
            // Another thread may have noted a later moment.
            let elapsed_ms = now_ms.wrapping_sub(at_ms);
            let is_behind = elapsed_ms > u32::MAX - BEHIND_MS && left != UNTOUCHED;
            let (elapsed_ms, at_ms) = if is_behind { (0, at_ms) } else { (elapsed_ms, now_ms) };
            let left = (left + u64::from(elapsed_ms) * u64::from(per_second)).min(burst);
            Some(left.checked_sub(1_000)? << 32 | u64::from(at_ms))
        });
        taken.is_ok()
    }
}

/// The budget that each network has left. Of one thread: the kernel gives each of them another part
/// of the clients.
#[derive(Debug)]
pub struct RateBucket {
    limit: Limit,
    key: Seed,
    /// Answers left, and when that was so in milliseconds, by a network's hash.
    left: Box<[(u32, u32)]>,
    total: Arc<SharedBudget>,
}

impl RateBucket {
    /// By a limit, whose total is shared.
    pub fn new(limit: Limit, key: Seed, total: Arc<SharedBudget>) -> RateBucket {
        RateBucket { limit, key, left: alloc::vec![(limit.burst, 0); PLACES].into(), total }
    }

    /// Goes on by another one.
    pub fn follow(&mut self, limit: Limit) {
        if self.limit != limit {
            *self = RateBucket::new(limit, self.key, Arc::clone(&self.total));
        }
    }

    /// Takes one of a client's answers.
    ///
    /// # Errors
    /// When none is left.
    pub fn spend(&mut self, client: IpAddr, now_ms: u32) -> Result<(), LimitExceeded> {
        if !self.take_of_network(client, now_ms) {
            return Err(LimitExceeded::Network);
        }
        // A query beyond its own network's budget takes nothing from others.
        self.total.try_spend(self.limit.total_per_second, now_ms).then_some(()).ok_or(LimitExceeded::Total)
    }

    fn take_of_network(&mut self, client: IpAddr, now_ms: u32) -> bool {
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

    /// How many of so many are had.
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
                // A clock that is looked at more often than an answer comes loses none.
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
