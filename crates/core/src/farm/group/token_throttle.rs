//! Rate limit for wrong tokens, per network of clients. Addresses that have shown a valid token are
//! counted individually.
//!
//! A wrong token uses one of a network's tries. A network regains one try per second. The state of
//! a network is the time when it has all tries again. So networks can be sorted by used tries. If
//! the table is full, the network with the fewest used tries is evicted. So an attacker can clear a
//! network's state only by using as many tries from all other networks.

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;

use crate::net::prefix::client_network;

/// Number of tries of a network, and time to regain a try in milliseconds.
const TRIES: u64 = 10;
const TRY_MS: u64 = 1_000;
/// Value of Retry-After for a throttled client, in seconds (RFC 6585, section 4).
pub const RETRY_AFTER_S: u64 = TRY_MS / 1_000;
/// Time for which an address with a valid token is counted individually, in milliseconds.
const KNOWN_MS: u64 = 3_600_000;
/// Maximum number of sources whose tries are counted, and of addresses that have shown a valid
/// token.
const SOURCES_MAX: usize = 16_384;
const KNOWN_MAX: usize = 4_096;

/// State of the rate limit.
#[derive(Clone, Debug)]
pub struct TokenThrottle {
    /// Time at which each source has all tries again, in milliseconds.
    tries: Expiring<ThrottleKey>,
    /// Addresses that have shown a valid token, until this time in milliseconds.
    known: Expiring<IpAddr>,
}

/// Source of counted tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ThrottleKey {
    Network(IpAddr),
    /// An address that has shown a valid token, but may guess the tokens of other members.
    Address(IpAddr),
}

impl Default for TokenThrottle {
    fn default() -> Self {
        TokenThrottle { tries: Expiring::new(SOURCES_MAX), known: Expiring::new(KNOWN_MAX) }
    }
}

impl TokenThrottle {
    /// True if a client's token may be checked now.
    pub fn may_look_up(&self, now_ms: u64, client: IpAddr) -> bool {
        let whole_ms = self.tries.until_ms(&self.source(now_ms, client));
        whole_ms.saturating_sub(now_ms) <= (TRIES - 1) * TRY_MS
    }

    /// Records the result of a check.
    pub fn looked_up(&mut self, now_ms: u64, client: IpAddr, is_right: bool) {
        if is_right {
            self.known.set(client.to_canonical(), now_ms.saturating_add(KNOWN_MS));
            return;
        }
        let source = self.source(now_ms, client);
        let whole_ms = self.tries.until_ms(&source).max(now_ms);
        self.tries.set(source, whole_ms.saturating_add(TRY_MS));
    }

    fn source(&self, now_ms: u64, client: IpAddr) -> ThrottleKey {
        let address = client.to_canonical();
        match self.known.until_ms(&address) > now_ms {
            true => ThrottleKey::Address(address),
            false => ThrottleKey::Network(client_network(address)),
        }
    }
}

/// Map of keys to expiry times with at most `max` entries. The entry that expires first is evicted.
#[derive(Clone, Debug)]
struct Expiring<K> {
    max: usize,
    times_ms: BTreeMap<K, u64>,
    order: BTreeSet<(u64, K)>,
}

impl<K: Copy + Ord> Expiring<K> {
    fn new(max: usize) -> Expiring<K> {
        Expiring { max, times_ms: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// Expiry time of a key; 0 if the map lacks the key.
    fn until_ms(&self, key: &K) -> u64 {
        self.times_ms.get(key).copied().unwrap_or_default()
    }

    fn set(&mut self, key: K, until_ms: u64) {
        if let Some(before_ms) = self.times_ms.insert(key, until_ms) {
            self.order.remove(&(before_ms, key));
        } else if self.times_ms.len() > self.max
            && let Some((_, first)) = self.order.pop_first()
        {
            self.times_ms.remove(&first);
        }
        self.order.insert((until_ms, key));
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;

    const A: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(203, 0, 113, 7));
    const SAME_NETWORK_AS_A: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(203, 0, 113, 8));
    const ELSEWHERE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(198, 51, 100, 7));

    /// Returns a client in the network with this number.
    fn of_network(number: u128) -> IpAddr {
        Ipv6Addr::from(0x2001_0db8 << 96 | number << 72 | 1).into()
    }

    /// Sends `count` wrong tokens at once, and returns how many of them are checked.
    fn guess(throttle: &mut TokenThrottle, now_ms: u64, client: IpAddr, count: usize) -> usize {
        let looked_up = (0..count).filter(|_| {
            let may = throttle.may_look_up(now_ms, client);
            if may {
                throttle.looked_up(now_ms, client, false);
            }
            may
        });
        looked_up.count()
    }

    #[test]
    fn after_ten_wrong_ones_a_network_has_one_look_up_a_second() {
        let mut throttle = TokenThrottle::default();
        assert_eq!(guess(&mut throttle, 5_000, A, 100), 10);
        assert_eq!(guess(&mut throttle, 5_999, SAME_NETWORK_AS_A, 100), 0, "the network is one");
        let each_second: usize = (6..106).map(|second| guess(&mut throttle, second * 1_000, A, 100)).sum();
        assert_eq!(each_second, 100);
        assert_eq!(guess(&mut throttle, 105_000, ELSEWHERE, 100), 10, "others have theirs");
    }

    #[test]
    fn an_address_that_has_shown_a_right_token_is_not_counted_with_its_network() {
        let mut throttle = TokenThrottle::default();
        throttle.looked_up(1_000, A, true);
        guess(&mut throttle, 2_000, SAME_NETWORK_AS_A, 100);
        assert!(!throttle.may_look_up(2_000, SAME_NETWORK_AS_A) && throttle.may_look_up(2_000, A));
        // An address that has shown a valid token is limited, too.
        assert_eq!(guess(&mut throttle, 2_000, A, 100), 10);
        // An hour later the address counts as part of its network again.
        guess(&mut throttle, KNOWN_MS + 1_000, SAME_NETWORK_AS_A, 100);
        assert!(!throttle.may_look_up(KNOWN_MS + 1_000, A));
    }

    #[test]
    fn correct_tokens_use_no_tries() {
        let mut throttle = TokenThrottle::default();
        for _ in 0..1_000 {
            assert!(throttle.may_look_up(7, A));
            throttle.looked_up(7, A, true);
        }
    }

    #[test]
    fn networks_of_ipv6_are_56_bits_and_ipv4_is_itself_in_either_form() {
        let mut throttle = TokenThrottle::default();
        let mapped = IpAddr::V6("::ffff:203.0.113.9".parse().unwrap_or(Ipv6Addr::UNSPECIFIED));
        guess(&mut throttle, 1, A, 100);
        assert!(!throttle.may_look_up(1, mapped));
        let [one, same, other] = [0, 1 << 64 | 5, 1 << 72].map(|more| Ipv6Addr::from(0x20 << 120 | more));
        guess(&mut throttle, 1, one.into(), 100);
        assert!(!throttle.may_look_up(1, same.into()) && throttle.may_look_up(1, other.into()));
    }

    #[test]
    fn many_networks_neither_clear_a_brake_nor_keep_others_out() {
        let mut throttle = TokenThrottle::default();
        assert_eq!(guess(&mut throttle, 0, A, 10), 10);
        throttle.looked_up(0, ELSEWHERE, true);
        // The attacker uses nine wrong tokens in each of five times as many networks as the table
        // can hold.
        for number in 0..5 * SOURCES_MAX as u128 {
            guess(&mut throttle, 0, of_network(number), 9);
        }
        assert!(!throttle.may_look_up(0, A));
        assert!(throttle.may_look_up(0, ELSEWHERE) && throttle.may_look_up(0, of_network(1 << 40)));
        assert_eq!(throttle.tries.times_ms.len(), SOURCES_MAX);
        assert_eq!(throttle.tries.order.len(), SOURCES_MAX);
    }

    #[test]
    fn addresses_that_are_known_are_bounded() {
        let mut throttle = TokenThrottle::default();
        for number in 0..=KNOWN_MAX as u128 {
            throttle.looked_up(number as u64, of_network(number), true);
        }
        assert_eq!(throttle.known.times_ms.len(), KNOWN_MAX);
        assert_eq!(throttle.known.until_ms(&of_network(0)), 0, "the oldest gives way");
    }
}
