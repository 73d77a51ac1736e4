//! How many answers a network gets that hasn't shown where it is: a source address may be forged, and its owner would get what he never
//! asked for (response rate limiting).

use alloc::boxed::Box;
use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher13;

use crate::path::sessions::Seed;

/// Networks that are told apart, as many as there are places; more of them share.
const PLACES: usize = 1 << 14;
/// What is known of a client by its address: an IPv4 /24, an IPv6 /56.
const PREFIX4: u32 = 24;
const PREFIX6: u32 = 56;

/// How often a network is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Answers in a second, on average; 0 for as many as are asked for.
    pub per_second: u32,
    /// And at once.
    pub burst: u32,
}

/// What each network has left. Of one thread: the kernel gives each of them another part of the clients.
#[derive(Debug)]
pub struct Allowance {
    limit: Limit,
    key: Seed,
    /// Answers left, and when that was so in milliseconds, by a network's hash.
    left: Box<[(u32, u32)]>,
}

impl Allowance {
    /// By a limit.
    pub fn new(limit: Limit, key: Seed) -> Allowance {
        Allowance { limit, key, left: alloc::vec![(limit.burst, 0); PLACES].into() }
    }

    /// Goes on by another one.
    pub fn follow(&mut self, limit: Limit) {
        if self.limit != limit {
            *self = Allowance::new(limit, self.key);
        }
    }

    /// Takes one of a client's answers; whether it had one left.
    pub fn take(&mut self, client: IpAddr, now_ms: u32) -> bool {
        let Limit { per_second, burst } = self.limit;
        if per_second == 0 {
            return true;
        }
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        match client.to_canonical() {
            IpAddr::V4(client) => hasher.write_u32(client.to_bits() >> (32 - PREFIX4)),
            IpAddr::V6(client) => hasher.write_u64((client.to_bits() >> (128 - PREFIX6)) as u64),
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
