//! Ownership of service addresses. The owner of an address answers ARP and neighbour discovery for
//! it.
//!
//! The rightful owner of an address is the host that publishes the address, while that host is
//! present. Otherwise the rightful owner is the present host with the highest random weight (Thaler
//! and Ravishankar, "Using name-based mappings to increase hit rates", 1998). Hosts that see each
//! other agree on the owner without negotiation, and if a host fails, only its addresses move. The
//! rightful owner claims addresses without an owner. If another host owns the address, that host
//! keeps the address for a while and then releases it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use siphasher::sip::SipHasher24;

use super::{Publishable, digest};

/// Time to wait for an answer to a probe of an address, in milliseconds. RFC 5227 waits longer,
/// since its probes are for unknown hosts. Here hosts' reports show most conflicts.
const PROBE_INTERVAL_MS: u64 = 300;
/// Number of probes before an address is claimed.
const PROBE_COUNT: u8 = 2;

/// A host as a possible owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostCandidate<'a> {
    pub(super) name: &'a str,
    /// True for this host.
    pub(super) own: bool,
    /// True if the host sends datagrams. A host with another configuration may own addresses
    /// without taking part.
    pub(super) is_alive: bool,
    /// Time since which the host is present, in milliseconds; `None` if it is not present.
    pub(super) present_since_ms: Option<u64>,
    /// Addresses that the host owns according to its report; `None` if its configuration differs.
    pub(super) claims: Option<&'a BTreeSet<IpAddr>>,
}

impl HostCandidate<'_> {
    fn claims(&self, address: IpAddr) -> bool {
        self.claims.is_some_and(|claims| claims.contains(&address))
    }
}

/// State of this host's claim of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimStage {
    /// This host doesn't own the address, and claims it at the earliest at `until_ms`.
    Idle { until_ms: u64 },
    /// This host has probed the address `times` times, the last time at `at_ms`.
    Probing { at_ms: u64, times: u8 },
    /// This host owns the address.
    Owned(OwnedAddress),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct OwnedAddress {
    /// True if the address must be announced.
    announce: bool,
    /// True if another host claims the address, and has probably announced it.
    rival: bool,
    /// True if the conflict was reported to the operator.
    reported: bool,
}

const IDLE: ClaimStage = ClaimStage::Idle { until_ms: 0 };

#[derive(Clone, Debug, Default)]
pub(super) struct OwnershipActions {
    pub(super) probes: Vec<IpAddr>,
    pub(super) claimed: Vec<IpAddr>,
    /// Addresses among `claimed` that this host did not own before.
    pub(super) gained: Vec<IpAddr>,
}

/// Effect of another host's reply for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConflictOutcome {
    Nothing,
    /// This host was claiming the address. `news` is true for the first conflict.
    ClaimDeferred {
        news: bool,
    },
    /// This host owns the address. `news` is true for the first conflict.
    Twice {
        news: bool,
    },
}

/// State of all service addresses that hosts own, as seen by this host.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressOwnership {
    stages: BTreeMap<IpAddr, ClaimStage>,
    owned: BTreeSet<IpAddr>,
    /// Addresses that this host claims once no other host answers ARP for them.
    put_off: BTreeSet<IpAddr>,
    /// Other hosts that were alive at the last check. The value is true if the host's claims were
    /// known.
    present: BTreeMap<String, bool>,
}

impl AddressOwnership {
    pub(super) fn owned(&self) -> &BTreeSet<IpAddr> {
        &self.owned
    }

    pub(super) fn put_off(&self) -> &BTreeSet<IpAddr> {
        &self.put_off
    }

    /// Replaces the addresses. Returns the owned addresses that were removed.
    pub(super) fn reconfigure(&mut self, addresses: &[Publishable]) -> Vec<IpAddr> {
        let kept: BTreeSet<IpAddr> = addresses.iter().map(|one| one.address).collect();
        let lost = self.owned.difference(&kept).copied().collect();
        self.stages.retain(|address, _| kept.contains(address));
        self.owned.retain(|address| kept.contains(address));
        lost
    }

    /// Resumes ownership after a restart of the daemon. The address is announced again.
    pub(super) fn resume(&mut self, address: IpAddr) {
        self.owned.insert(address);
        self.stages
            .insert(address, ClaimStage::Owned(OwnedAddress { announce: true, ..OwnedAddress::default() }));
    }

    /// Cancels all unfinished claims.
    pub(super) fn forget_claims(&mut self) {
        self.stages.retain(|_, stage| matches!(stage, ClaimStage::Owned(_)));
    }

    /// Gives up all owned addresses and unfinished claims.
    pub(super) fn leave(&mut self) {
        self.stages.clear();
        self.owned.clear();
    }

    /// Applies another host's ARP or neighbour discovery reply for an address.
    pub(super) fn answered(&mut self, address: IpAddr, retry_at_ms: u64) -> ConflictOutcome {
        match self.stages.get_mut(&address) {
            Some(ClaimStage::Owned(owned)) => {
                ConflictOutcome::Twice { news: !core::mem::replace(&mut owned.reported, true) }
            }
            Some(stage @ ClaimStage::Probing { .. }) => {
                *stage = ClaimStage::Idle { until_ms: retry_at_ms };
                ConflictOutcome::ClaimDeferred { news: self.put_off.insert(address) }
            }
            _ => ConflictOutcome::Nothing,
        }
    }

    /// Time of the next step of a claim, in milliseconds.
    pub(super) fn next_at(&self) -> Option<u64> {
        let due = |stage: &ClaimStage| match stage {
            ClaimStage::Probing { at_ms, .. } => Some(at_ms + PROBE_INTERVAL_MS),
            _ => None,
        };
        self.stages.values().filter_map(due).min()
    }

    /// Releases addresses that other hosts should own. Returns the released addresses with their
    /// new owners.
    pub(super) fn release(
        &mut self,
        now_ms: u64,
        addresses: &[Publishable],
        hosts: &[HostCandidate<'_>],
        silence_ms: u64,
    ) -> Vec<(IpAddr, String)> {
        let mut released = Vec::new();
        let returned = self.returned(hosts);
        for one in addresses {
            let Some(ClaimStage::Owned(owned)) = self.stages.get_mut(&one.address) else { continue };
            // Hosts that claim the same address see each other's claims. All hosts except the best
            // one release the address at once.
            let claimants = hosts.iter().filter(|host| host.own || host.claims(one.address));
            let best = best(one, claimants);
            let contested = hosts.iter().any(|host| !host.own && host.claims(one.address));
            // After a conflict, neighbours may still have the other host's announcement, so the
            // address is announced again. A host that was away may also have owned and released the
            // address before this host received its report.
            owned.announce |= (owned.rival || returned) && !contested;
            owned.rival = contested;
            let heir = match best.filter(|host| !host.own) {
                Some(host) => Some(host),
                None => rightful(one, hosts).filter(|host| {
                    let long = host.present_since_ms.is_some_and(|since| now_ms >= since + silence_ms);
                    !host.own && host.claims.is_some() && long
                }),
            };
            if let Some(heir) = heir {
                self.stages.insert(one.address, IDLE);
                self.owned.remove(&one.address);
                released.push((one.address, heir.name.into()));
            }
        }
        released
    }

    /// Records a restart of another host. That host may have announced its earlier addresses, and
    /// released them before this host received its report.
    pub(super) fn begins_anew(&mut self, host: &str) {
        self.present.remove(host);
    }

    /// True if another host may have announced an owned address without this host's knowledge. This
    /// is so if the other host was absent before, or its claims were unknown until now.
    fn returned(&mut self, hosts: &[HostCandidate<'_>]) -> bool {
        let others = hosts.iter().filter(|host| !host.own && host.is_alive);
        let present = others.map(|host| (host.name.into(), host.claims.is_some())).collect();
        let before = core::mem::replace(&mut self.present, present);
        let was_believed = |host: &String| before.get(host).copied().unwrap_or(false);
        let is_new = |host: &String, is_believed: bool| {
            !before.contains_key(host) || is_believed && !was_believed(host)
        };
        let is_gone = |host: &String| !self.present.contains_key(host) && !was_believed(host);
        self.present.iter().any(|(host, is_believed)| is_new(host, *is_believed))
            || before.keys().any(is_gone)
    }

    /// Continues the claims of addresses that this host should own, if no other host claims or
    /// answers for them.
    pub(super) fn advance(
        &mut self,
        now_ms: u64,
        addresses: &[Publishable],
        hosts: &[HostCandidate<'_>],
    ) -> OwnershipActions {
        let mut step = OwnershipActions::default();
        for one in addresses {
            let stage = self.stages.entry(one.address).or_insert(IDLE);
            if let ClaimStage::Owned(owned) = stage {
                if core::mem::take(&mut owned.announce) {
                    step.claimed.push(one.address);
                }
                continue;
            }
            let mine = rightful(one, hosts).is_some_and(|host| host.own);
            if !mine || hosts.iter().any(|host| host.claims(one.address)) {
                self.put_off.remove(&one.address);
                *stage = IDLE;
                continue;
            }
            let times = match *stage {
                ClaimStage::Idle { until_ms } if now_ms >= until_ms => 0,
                ClaimStage::Probing { at_ms, times } if now_ms >= at_ms + PROBE_INTERVAL_MS => times,
                _ => continue,
            };
            if times < PROBE_COUNT {
                *stage = ClaimStage::Probing { at_ms: now_ms, times: times + 1 };
                step.probes.push(one.address);
            } else {
                *stage = ClaimStage::Owned(OwnedAddress::default());
                self.owned.insert(one.address);
                self.put_off.remove(&one.address);
                step.claimed.push(one.address);
                step.gained.push(one.address);
            }
        }
        step
    }
}

/// Returns the rightful owner of an address among the present hosts.
fn rightful<'a>(address: &Publishable, hosts: &'a [HostCandidate<'a>]) -> Option<&'a HostCandidate<'a>> {
    best(address, hosts.iter())
}

/// Returns the best owner among those of these hosts that are present: the publisher, else the host
/// with the highest weight.
fn best<'a>(
    address: &Publishable,
    hosts: impl Iterator<Item = &'a HostCandidate<'a>>,
) -> Option<&'a HostCandidate<'a>> {
    let present = hosts.filter(|host| host.present_since_ms.is_some());
    present.max_by_key(|host| rank(address, host.name))
}

/// Returns the key by which owners are compared; the greatest is the best. The publisher comes
/// first. The other hosts are compared by a random weight, which all hosts compute alike.
fn rank(address: &Publishable, host: &str) -> (bool, u64, u64) {
    let bits = match address.address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let digest = digest(host);
    let weight = SipHasher24::new_with_keys(bits.to_bits() as u64, (bits.to_bits() >> 64) as u64)
        .hash(&digest.to_be_bytes());
    (address.publisher.as_deref() == Some(host), weight, digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    const SILENCE_MS: u64 = 3_000;

    fn address(publisher: Option<&str>) -> Publishable {
        Publishable { address: [192, 0, 2, 100].into(), publisher: publisher.map(String::from) }
    }

    fn host(name: &str, own: bool) -> HostCandidate<'_> {
        HostCandidate { name, own, is_alive: true, present_since_ms: Some(0), claims: None }
    }

    /// Advances the claim of an address until this host owns it or sends no more probes. Returns
    /// the number of probes.
    fn claim(owner: &mut AddressOwnership, one: &Publishable, hosts: &[HostCandidate<'_>]) -> usize {
        let mut probes = 0;
        for now_ms in (0..2_000).step_by(100) {
            let step = owner.advance(now_ms, core::slice::from_ref(one), hosts);
            probes += step.probes.len();
        }
        probes
    }

    #[test]
    fn address_is_probed_twice_then_claimed() {
        let (one, mut owner) = (address(Some("a")), AddressOwnership::default());
        assert_eq!(claim(&mut owner, &one, &[host("a", true), host("b", false)]), 2);
        assert!(owner.owned().contains(&one.address));
        let mut other = AddressOwnership::default();
        assert_eq!(claim(&mut other, &one, &[host("a", false), host("b", true)]), 0, "not the publisher");
    }

    #[test]
    fn address_owned_by_other_host_is_not_claimed() {
        let one = address(Some("a"));
        let claims = BTreeSet::from([one.address]);
        let b = HostCandidate { claims: Some(&claims), ..host("b", false) };
        let mut owner = AddressOwnership::default();
        assert_eq!(claim(&mut owner, &one, &[host("a", true), b]), 0);
        assert_eq!(claim(&mut owner, &one, &[host("a", true), HostCandidate { claims: None, ..b }]), 2);
    }

    #[test]
    fn an_answer_puts_a_claim_off() {
        let (one, mut owner) = (address(None), AddressOwnership::default());
        let hosts = [host("a", true)];
        let list = core::slice::from_ref(&one);
        assert_eq!(owner.advance(0, list, &hosts).probes, [one.address]);
        assert_eq!(owner.next_at(), Some(PROBE_INTERVAL_MS));
        assert_eq!(owner.answered(one.address, 3_000), ConflictOutcome::ClaimDeferred { news: true });
        assert_eq!(owner.answered(one.address, 3_000), ConflictOutcome::Nothing);
        assert!(owner.advance(2_999, list, &hosts).probes.is_empty());
        assert_eq!(owner.advance(3_000, list, &hosts).probes, [one.address]);
        assert!(owner.advance(3_299, list, &hosts).probes.is_empty());
        assert_eq!(owner.advance(3_300, list, &hosts).probes, [one.address]);
        assert_eq!(owner.advance(3_600, list, &hosts).gained, [one.address]);
        assert_eq!(owner.answered(one.address, 9_000), ConflictOutcome::Twice { news: true });
        assert_eq!(owner.answered(one.address, 9_000), ConflictOutcome::Twice { news: false });
    }

    #[test]
    fn address_is_released_gently_or_at_once_on_owner_claim() {
        let one = address(Some("a"));
        let list = core::slice::from_ref(&one);
        let (claims, nothing) = (BTreeSet::from([one.address]), BTreeSet::new());
        let at = |now_ms, since, claims| {
            let mut owner = AddressOwnership::default();
            owner.resume(one.address);
            let a = HostCandidate { present_since_ms: since, claims, ..host("a", false) };
            owner.release(now_ms, list, &[a, host("b", true)], SILENCE_MS).len()
        };
        assert_eq!(at(9_000, Some(6_001), Some(&nothing)), 0);
        assert_eq!(at(9_000, Some(6_000), Some(&nothing)), 1);
        assert_eq!(at(9_000, Some(6_000), None), 0, "it runs another configuration and would not take it");
        assert_eq!(at(9_000, Some(8_999), Some(&claims)), 1);
        assert_eq!(at(9_000, None, Some(&claims)), 0, "it isn't there");
    }

    #[test]
    fn address_conflict_leaves_one_owner_that_reannounces() {
        for publisher in [None, Some("a"), Some("b"), Some("c")] {
            let one = address(publisher);
            let list = core::slice::from_ref(&one);
            let claims = BTreeSet::from([one.address]);
            let mut owners = [AddressOwnership::default(), AddressOwnership::default()];
            let mut kept = 0;
            for (at, owner) in owners.iter_mut().enumerate() {
                owner.resume(one.address);
                let hosts = ["a", "b"].map(|name| {
                    let own = (name == "a") == (at == 0);
                    HostCandidate { claims: (!own).then_some(&claims), ..host(name, own) }
                });
                assert_eq!(owner.advance(0, list, &hosts).claimed.len(), 1, "announced after a restart");
                owner.release(1, list, &hosts, SILENCE_MS);
                if owner.owned().contains(&one.address) {
                    kept += 1;
                    let alone = hosts.map(|host| HostCandidate { claims: None, ..host });
                    assert!(owner.advance(2, list, &alone).claimed.is_empty());
                    owner.release(3, list, &alone, SILENCE_MS);
                    assert_eq!(owner.advance(4, list, &alone).claimed, [one.address]);
                }
            }
            assert_eq!(kept, 1, "{publisher:?}");
        }
    }

    #[test]
    fn addresses_of_returned_host_are_reannounced() {
        let one = address(Some("a"));
        let list = core::slice::from_ref(&one);
        let mut owner = AddressOwnership::default();
        owner.resume(one.address);
        let (here, away) =
            (host("b", false), HostCandidate { is_alive: false, present_since_ms: None, ..host("b", false) });
        let mut announced = |now_ms, b| {
            let hosts = [host("a", true), b];
            owner.release(now_ms, list, &hosts, SILENCE_MS);
            owner.advance(now_ms, list, &hosts).claimed.len()
        };
        let nothing = BTreeSet::new();
        let believed = HostCandidate { claims: Some(&nothing), ..here };
        let seen = [believed, believed, away, away, believed, believed].map(|b| announced(0, b));
        assert_eq!(seen, [1, 0, 0, 0, 1, 0]);
        // The claims of a host with another configuration are unknown.
        let seen = [away, here, here, believed, here, here, away, away].map(|b| announced(0, b));
        assert_eq!(seen, [0, 1, 0, 1, 0, 0, 1, 0]);
        // The claims of a host that has always had another configuration, and never took part, are
        // unknown, too.
        let other = HostCandidate { present_since_ms: None, ..here };
        let seen = [other, other, away, away].map(|b| announced(0, b));
        assert_eq!(seen, [1, 0, 1, 0]);
    }

    #[test]
    fn addresses_of_restarted_host_are_reannounced() {
        let (one, nothing) = (address(Some("a")), BTreeSet::new());
        let list = core::slice::from_ref(&one);
        let mut owner = AddressOwnership::default();
        owner.resume(one.address);
        let hosts = [host("a", true), HostCandidate { claims: Some(&nothing), ..host("b", false) }];
        let mut announced = |begins_anew| {
            if begins_anew {
                owner.begins_anew("b");
            }
            owner.release(0, list, &hosts, SILENCE_MS);
            owner.advance(0, list, &hosts).claimed.len()
        };
        assert_eq!([false, false, true, false].map(&mut announced), [1, 0, 1, 0]);
    }

    #[test]
    fn the_weights_share_addresses_out_and_only_a_lost_hosts_addresses_move() {
        let names: Vec<String> = (0..5).map(|i| format!("web{i}")).collect();
        let hosts: Vec<HostCandidate<'_>> = names.iter().map(|name| host(name, false)).collect();
        let mut had = BTreeMap::<&str, usize>::new();
        for last in 0..200 {
            let one = Publishable { address: [192, 0, 2, last].into(), publisher: None };
            let all = rightful(&one, &hosts).unwrap().name;
            *had.entry(all).or_default() += 1;
            let fewer = rightful(&one, &hosts[1..]).unwrap().name;
            assert!(fewer == all || all == "web0");
        }
        assert_eq!(had.len(), 5);
        assert!(had.values().all(|&count| (20..=60).contains(&count)), "{had:?}");
    }
}
