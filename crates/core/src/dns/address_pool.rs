//! Address pool of a name: the addresses with the state of their servers, and the selection for an
//! answer.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use siphasher::sip::SipHasher13;

use super::counts::AddressCounts;
use super::name::Name;
use crate::pool::policy::{Selection, Weighted, in_turn};

/// Maximum number of addresses in an answer.
pub(super) const TOP_MAX: usize = 16;

/// Answer while no server works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmptyPool {
    /// Answer with all addresses, since the servers may work for clients.
    All,
    Refuse,
    Fixed(Vec<IpAddr>),
}

/// Settings of a balanced name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameSettings {
    pub name: Name,
    /// TTL of an answer, in seconds.
    pub ttl_s: u32,
    /// Maximum number of addresses in an answer.
    pub top: usize,
    /// Selection of the first address.
    pub draw: Selection,
    /// Answer while no server works.
    pub empty_pool: EmptyPool,
}

/// An address of the pool.
#[derive(Clone, Debug)]
pub struct Address {
    pub address: IpAddr,
    /// Share of answers relative to the other addresses. An address with share 0 is never selected.
    pub share: u16,
    /// True if the last probe of this address passed.
    pub healthy: bool,
    /// Counters of the address.
    pub counts: Arc<AddressCounts>,
}

/// Addresses of one IP version.
#[derive(Debug)]
struct AddressSet {
    addresses: Box<[Address]>,
    /// Ring of indexes of addresses, for [`Selection::RoundRobin`].
    round: Box<[u16]>,
    /// Cursor in the ring. IPv4 and IPv6 have separate cursors. With a common cursor, a client that
    /// queries both types would get only every other address.
    turn: AtomicU64,
}

/// Address pool of a name, with the current state of the servers.
#[derive(Debug)]
pub struct AddressPool {
    pub(super) settings: Arc<NameSettings>,
    four: AddressSet,
    six: AddressSet,
    /// True if no server works.
    pub(super) all_down: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ClientNetwork {
    pub(super) network: IpAddr,
    /// Random number for the selection.
    pub(super) draw: u64,
}

impl AddressPool {
    /// Returns a pool of these addresses. The cursors for IPv4 and IPv6 start at `turns`.
    pub fn new(
        settings: impl Into<Arc<NameSettings>>,
        addresses: &[Address],
        turns: [u64; 2],
    ) -> AddressPool {
        let settings = settings.into();
        let takes = |address: &&Address| address.healthy && address.share > 0;
        let mut given: Vec<Address> = addresses.iter().filter(takes).cloned().collect();
        let all_down = given.is_empty();
        if all_down {
            given = match &settings.empty_pool {
                EmptyPool::All => {
                    addresses.iter().map(|one| Address { share: one.share.max(1), ..one.clone() }).collect()
                }
                EmptyPool::Refuse => Vec::new(),
                EmptyPool::Fixed(fixed) => fixed
                    .iter()
                    .map(|address| Address {
                        address: *address,
                        share: 1,
                        healthy: false,
                        counts: Arc::default(),
                    })
                    .collect(),
            };
        }
        let (four, six) = given.into_iter().partition(|one: &Address| one.address.is_ipv4());
        AddressPool {
            four: AddressSet::new(four, settings.draw, turns[0]),
            six: AddressSet::new(six, settings.draw, turns[1]),
            all_down,
            settings,
        }
    }

    /// Returns the cursors for IPv4 and IPv6.
    pub fn turns(&self) -> [u64; 2] {
        [&self.four, &self.six].map(|set| set.turn.load(Relaxed))
    }

    /// True if answers depend on the client's network.
    pub(super) fn goes_by_client(&self) -> bool {
        self.settings.draw == Selection::SourceHash
    }

    /// True if queries are answered with an error.
    pub(super) fn refuses(&self) -> bool {
        self.all_down && self.settings.empty_pool == EmptyPool::Refuse
    }

    /// Selects the addresses of an answer, and counts the first address.
    pub(super) fn draw(&self, is_ipv4: bool, client: ClientNetwork, mut each: impl FnMut(&Address)) {
        let set = self.set(is_ipv4);
        let turn = set.turn.fetch_add(u64::from(self.settings.draw == Selection::RoundRobin), Relaxed);
        let mut is_first = true;
        self.for_each_selected(set, client, turn, |address| {
            if core::mem::take(&mut is_first) {
                address.counts.give();
            }
            each(address);
        });
    }

    /// Passes the addresses of the next answer to `each`, without advancing the cursor.
    pub(super) fn hint(&self, is_ipv4: bool, client: ClientNetwork, each: impl FnMut(&Address)) {
        let set = self.set(is_ipv4);
        self.for_each_selected(set, client, set.turn.load(Relaxed), each);
    }

    fn set(&self, is_ipv4: bool) -> &AddressSet {
        if is_ipv4 { &self.four } else { &self.six }
    }

    fn for_each_selected(
        &self,
        set: &AddressSet,
        client: ClientNetwork,
        turn: u64,
        each: impl FnMut(&Address),
    ) {
        let mut places = [0; TOP_MAX];
        let wanted = self.settings.top.min(set.addresses.len()).min(TOP_MAX);
        let places = &mut places[..wanted];
        let count = match self.settings.draw {
            Selection::RoundRobin => set.next_in_turn(turn, places),
            Selection::Random => set.at_random(client.draw, places),
            Selection::SourceHash => set.nearest(client.network, places),
            Selection::Failover => {
                places.iter_mut().zip(0..).for_each(|(place, at)| *place = at);
                places.len()
            }
        };
        places.iter().take(count).filter_map(|place| set.addresses.get(usize::from(*place))).for_each(each);
    }
}

/// Each selection method writes the indexes of different addresses to `places`, the first choice
/// first, and returns their number.
impl AddressSet {
    fn new(addresses: Vec<Address>, draw: Selection, turn: u64) -> AddressSet {
        let weighted = || -> Vec<Weighted> {
            let slots = (0u16..).zip(&addresses);
            slots.map(|(slot, one)| Weighted { slot, weight: one.share, seed: 0 }).collect()
        };
        let round = if draw == Selection::RoundRobin { in_turn(&weighted()).into() } else { Box::default() };
        AddressSet { addresses: addresses.into(), round, turn: AtomicU64::new(turn) }
    }

    fn next_in_turn(&self, turn: u64, places: &mut [u16]) -> usize {
        let len = self.round.len();
        let Some(begin) = turn.checked_rem(len as u64) else { return 0 };
        let (behind, ahead) = self.round.split_at(begin as usize);
        let mut count = 0;
        for place in ahead.iter().chain(behind) {
            if count == places.len() {
                break;
            }
            if !places[..count].contains(place) {
                places[count] = *place;
                count += 1;
            }
        }
        count
    }

    /// Selects at random by share, without replacement.
    fn at_random(&self, mut draw: u64, places: &mut [u16]) -> usize {
        let mut left: u64 = self.addresses.iter().map(|one| u64::from(one.share)).sum();
        for count in 0..places.len() {
            let Some(mut at) = draw.checked_rem(left) else { return count };
            for (place, share) in (0..).zip(self.addresses.iter().map(|one| u64::from(one.share))) {
                if places[..count].contains(&place) {
                    continue;
                }
                if at < share {
                    places[count] = place;
                    left -= share;
                    break;
                }
                at -= share;
            }
            draw = mix(draw);
        }
        places.len()
    }

    /// Selects the addresses with the least `-ln(u) / share`, where `u` is a hash of client and
    /// address between 0 and 1: weighted rendezvous hashing (Thaler and Ravishankar, *A Name-Based
    /// Mapping Scheme for Rendezvous*; Schindelhauer and Schomaker, *Weighted Distributed Hash
    /// Tables*). This needs no table. Every host selects the same address, and an added or removed
    /// server moves only its own clients.
    fn nearest(&self, network: IpAddr, places: &mut [u16]) -> usize {
        let client = hash_of(network);
        let mut costs = [f64::INFINITY; TOP_MAX];
        let mut count = 0;
        for (place, one) in (0..).zip(&*self.addresses) {
            let number = mix(client ^ mixed(one.address));
            // `u` has the upper 53 bits, which a double represents exactly, and is never 0.
            let between = ((number >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            let cost = -libm::log(between) / f64::from(one.share);
            let at = costs[..count].partition_point(|other| *other <= cost);
            if at < places.len() {
                count = (count + 1).min(places.len());
                places[at..count].rotate_right(1);
                costs[at..count].rotate_right(1);
                (places[at], costs[at]) = (place, cost);
            }
        }
        count
    }
}

/// Returns a hash of the address, which is the same on every host.
fn hash_of(address: IpAddr) -> u64 {
    let mut hasher = SipHasher13::new();
    match address.to_canonical() {
        IpAddr::V4(address) => hasher.write(&address.octets()),
        IpAddr::V6(address) => hasher.write(&address.octets()),
    }
    hasher.finish()
}

/// Returns a number in which each bit depends on all bits of the address.
fn mixed(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => mix(u64::from(address.to_bits())),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            mix(mix((bits >> 64) as u64) ^ bits as u64)
        }
    }
}

/// Output function of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use core::net::Ipv4Addr;

    fn address(last: u8, share: u16) -> Address {
        Address {
            address: Ipv4Addr::new(192, 0, 2, last).into(),
            share,
            healthy: true,
            counts: Arc::default(),
        }
    }

    fn nearest(addresses: &[Address], client: u32) -> IpAddr {
        let set = AddressSet::new(addresses.to_vec(), Selection::SourceHash, 0);
        let mut places = [0; 1];
        assert_eq!(set.nearest(Ipv4Addr::from_bits(client << 8).into(), &mut places), 1);
        set.addresses[usize::from(places[0])].address
    }

    #[test]
    fn clients_keep_to_their_servers_when_others_come_and_go() {
        let all: Vec<Address> = (1..=8).map(|last| address(last, 1)).collect();
        for client in 0..2_000 {
            let before = nearest(&all, client);
            let mut reversed: Vec<Address> = all.iter().rev().cloned().collect();
            assert_eq!(nearest(&reversed, client), before, "the order of the file doesn't matter");
            reversed.retain(|one| one.address != all[0].address);
            let after = nearest(&reversed, client);
            assert!(before == after || before == all[0].address, "only clients of the one that went move");
        }
    }

    #[test]
    fn clients_are_spread_by_share() {
        let all = [address(1, 3), address(2, 1)];
        let first = (0..4_000).filter(|client| nearest(&all, *client) == all[0].address).count();
        assert!((2_850..3_150).contains(&first), "{first}");
    }

    #[test]
    fn larger_share_gains_clients_and_loses_none() {
        let (before, after) = ([address(1, 1), address(2, 1)], [address(1, 2), address(2, 1)]);
        for client in 0..2_000 {
            if nearest(&before, client) == before[0].address {
                assert_eq!(nearest(&after, client), before[0].address);
            }
        }
    }

    #[test]
    fn answer_addresses_are_distinct() {
        let set = AddressSet::new((1..=20).map(|last| address(last, 1)).collect(), Selection::SourceHash, 0);
        for number in 0..200 {
            let (mut near, mut random) = ([0; TOP_MAX], [0; TOP_MAX]);
            let client = Ipv4Addr::from_bits(number << 8).into();
            assert_eq!(set.nearest(client, &mut near), TOP_MAX);
            assert_eq!(set.at_random(mix(number.into()), &mut random), TOP_MAX);
            for places in [near, random] {
                assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), TOP_MAX, "{places:?}");
            }
        }
    }
}
