//! Candidates: addresses that the answers of a name may contain, with their current state. They
//! belong to servers of services, to members of groups, or to a service itself as one of several
//! sites.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::director::Snapshot;
use crate::dns::AddressCounts;
use crate::farm::Service;
use crate::farm::group::MemberSnapshot;
use crate::pool::report::Report;
use crate::pool::serving::{Candidate, Condition, STANDS_BY, ServingRule, serving};
use crate::pool::shares::PoolMember;
use crate::pool::signals::Signals;
use crate::pool::{FULL_WEIGHT, ServerState};

/// An address that answers may contain, with the current state of its server.
#[derive(Clone, Debug)]
pub(super) struct AddressCandidate {
    pub(super) server: Option<Arc<str>>,
    pub(super) address: IpAddr,
    pub(super) state: ServerState,
    /// True if answers contain the address only while no server works that is not a backup.
    pub(super) backup: bool,
    /// True for a backup that is not needed now.
    pub(super) stands_by: bool,
    pub(super) known: PoolMember,
    /// Reason why the server isn't up; `None` if it is up.
    pub(super) reason: Option<String>,
    /// Age of the last path probe's result in milliseconds; `None` if the signals contain no such
    /// result.
    pub(super) probed_ms: Option<u64>,
    /// Counters of the address, if its server is listed for this name alone. For servers of
    /// services, [`super::running::ServiceAddressCounts`] has a counter per name.
    pub(super) counts: Option<Arc<AddressCounts>>,
}

impl AddressCandidate {
    /// Returns the candidate for a server of a service or a member of a group.
    fn of_service(
        server: &str,
        address: IpAddr,
        state: ServerState,
        backup: bool,
        known: PoolMember,
        reason: Option<String>,
    ) -> AddressCandidate {
        AddressCandidate {
            server: Some(server.into()),
            address,
            state,
            backup,
            stands_by: false,
            known,
            reason,
            probed_ms: None,
            counts: None,
        }
    }

    /// True if answers may contain the address. Weight 0 excludes an address.
    pub(super) fn lives(&self) -> bool {
        self.state == ServerState::Up && self.known.weight > 0 && !self.stands_by
    }

    /// True if nothing has changed since an earlier candidate: `self` is as of `now_ms`, `before`
    /// as of `then_ms`. A report whose age alone differs counts as unchanged.
    fn is_as(&self, now_ms: u64, before: &AddressCandidate, then_ms: u64) -> bool {
        let reported =
            |one: &AddressCandidate, at_ms: u64| Some(at_ms.saturating_sub(one.known.signals.age_ms?));
        let ageless = |one: &AddressCandidate| Signals { age_ms: None, ..one.known.signals };
        let rest = |one: &AddressCandidate| {
            (one.address, one.state, one.stands_by, one.known.weight, one.known.tenths)
        };
        rest(self) == rest(before)
            && (&self.server, &self.reason) == (&before.server, &before.reason)
            && ageless(self) == ageless(before)
            && reported(self, now_ms) == reported(before, then_ms)
    }
}

/// A service or group that supplies addresses to names.
#[derive(Clone, Debug)]
pub(super) struct WatchedService {
    pub(super) service: String,
    /// True if the names use the service's own addresses instead of its servers' addresses.
    pub(super) own: bool,
    /// True if one of the names selects addresses by load.
    pub(super) by_load: bool,
    /// Numbers of the names that use the service.
    pub(super) names: Vec<usize>,
    pub(super) candidates: Vec<AddressCandidate>,
    /// Time at which the candidates were computed, in milliseconds.
    at_ms: u64,
}

impl WatchedService {
    pub(super) fn new(service: String, own: bool, by_load: bool) -> WatchedService {
        WatchedService { service, own, by_load, names: Vec::new(), candidates: Vec::new(), at_ms: 0 }
    }

    /// Updates the candidates. Returns true if a change concerns the names that use them.
    pub(super) fn update(&mut self, snapshot: &Snapshot) -> bool {
        let (mut candidates, at_ms) = of_service(&self.service, self.own, snapshot);
        if !self.by_load {
            for AddressCandidate { known, .. } in &mut candidates {
                let Signals { report, age_ms, .. } = known.signals;
                known.signals = Signals { report, age_ms, ..Signals::default() };
            }
        }
        let same = candidates.len() == self.candidates.len()
            && candidates.iter().zip(&self.candidates).all(|(new, old)| new.is_as(at_ms, old, self.at_ms));
        (self.candidates, self.at_ms) = (candidates, at_ms);
        !same
    }
}

/// Returns the candidates of a service or group, with the time of their state in milliseconds.
fn of_service(name: &str, own: bool, snapshot: &Snapshot) -> (Vec<AddressCandidate>, u64) {
    if let Some(seen) = snapshot.groups.iter().find(|seen| seen.group.name == name) {
        let mut members: Vec<AddressCandidate> = seen.members.iter().filter_map(of_member).collect();
        stand_by(&mut members);
        let addresses = seen.group.addresses.iter().map(|at| at.ip());
        return (if own { site(name, addresses, &members) } else { members }, seen.at_ms);
    }
    let seen = snapshot.services.iter().find(|seen| seen.name == name);
    let Some((service, seen)) = snapshot.farm.service(name).zip(seen) else {
        return (Vec::new(), snapshot.at_ms);
    };
    let servers = seen.servers.iter().flat_map(|server| {
        let known =
            PoolMember { weight: server.member.weight, tenths: server.tenths, signals: server.signals };
        let name = &server.name.server;
        let candidate = |address| {
            let (state, backup) = (server.state, server.member.backup);
            AddressCandidate::of_service(name, address, state, backup, known, server.reason.clone())
        };
        published(service, name, server.address).into_iter().map(candidate).collect::<Vec<_>>()
    });
    let mut servers: Vec<AddressCandidate> = servers.collect();
    stand_by(&mut servers);
    let addresses = service.addresses.iter().map(|at| at.ip());
    (if own { site(name, addresses, &servers) } else { servers }, snapshot.at_ms)
}

/// Sets [`AddressCandidate::stands_by`] for the backups of a service or name while they are not
/// needed.
pub(super) fn stand_by(candidates: &mut [AddressCandidate]) {
    let condition = |one: &AddressCandidate| match one.state {
        ServerState::Up if one.known.weight > 0 => Condition::Working,
        ServerState::Down => Condition::Failed { since_ms: None },
        _ => Condition::Unwanted,
    };
    let all = candidates.iter().map(|one| Candidate { backup: one.backup, condition: condition(one) });
    let all: Vec<Candidate> = all.collect();
    let serving = serving(ServingRule::default(), &all);
    for ((candidate, one), serves) in candidates.iter_mut().zip(&all).zip(serving.serves) {
        candidate.stands_by = one.condition == Condition::Working && !serves;
        if candidate.stands_by {
            candidate.reason = Some(STANDS_BY.to_owned());
        }
    }
}

/// Returns the addresses at which clients reach a server: the server's own address, or in an
/// every-host farm the addresses that the server publishes.
fn published(service: &Service, server: &str, own: Option<IpAddr>) -> Vec<IpAddr> {
    let listed = service.servers.iter().find(|listed| listed.name == server);
    match listed.filter(|_| service.is_on_every_host()) {
        Some(listed) => listed.publish.clone(),
        None => own.into_iter().collect(),
    }
}

/// Returns a service's own addresses as candidates. The addresses work while at least one server of
/// the service works. Their weight is the sum of the working servers' weights, and their load is
/// the mean load of these servers.
fn site(
    name: &str,
    addresses: impl Iterator<Item = IpAddr>,
    servers: &[AddressCandidate],
) -> Vec<AddressCandidate> {
    let alive = || servers.iter().filter(|server| server.lives());
    let weight = alive().map(|server| u32::from(server.known.weight)).sum::<u32>();
    let state = if weight > 0 { ServerState::Up } else { ServerState::Down };
    let known = PoolMember {
        weight: u16::try_from(weight.max(1)).unwrap_or(u16::MAX),
        tenths: FULL_WEIGHT,
        signals: mean(&alive().map(|server| server.known.signals).collect::<Vec<_>>()),
    };
    let reason = (weight == 0).then(|| "none of its servers lives".to_owned());
    let mut addresses: Vec<IpAddr> = addresses.collect();
    addresses.dedup();
    let candidate =
        |address| AddressCandidate::of_service(name, address, state, false, known, reason.clone());
    addresses.into_iter().map(candidate).collect()
}

/// Returns the mean of each signal, over the servers for which the signal is known.
fn mean(servers: &[Signals]) -> Signals {
    let mean = |of: fn(&Signals) -> Option<u64>| {
        let known: Vec<u128> = servers.iter().filter_map(of).map(u128::from).collect();
        let sum: u128 = known.iter().sum();
        u64::try_from(sum.checked_div(known.len() as u128)?).ok()
    };
    Signals {
        latency_us: mean(|server| server.latency_us),
        report: Report {
            utilisation_permille: mean(|server| server.report.utilisation_permille),
            load_milli: mean(|server| server.report.load_milli),
            delay_us: mean(|server| server.report.delay_us),
            available_bps: mean(|server| server.report.available_bps),
            bottleneck_bps: mean(|server| server.report.bottleneck_bps),
            ..Report::default()
        },
        age_ms: servers.iter().filter_map(|server| server.age_ms).max(),
        ..Signals::default()
    }
}

/// Returns the candidate for a member of a group. `None` if the member's URL contains a host name
/// instead of an address, since clients resolve that name themselves.
fn of_member(member: &MemberSnapshot) -> Option<AddressCandidate> {
    let signals = Signals {
        latency_us: member.latency_us,
        report: Report { load_milli: member.reported, ..Report::default() },
        age_ms: member.age_ms,
        ..Signals::default()
    };
    let tenths = u16::try_from(member.weight_percent.div_ceil(10)).unwrap_or(FULL_WEIGHT);
    let known = PoolMember { weight: member.joiner.weight, tenths, signals };
    let failed = member.last_failure.as_ref().filter(|_| member.state == ServerState::Down);
    let reason = failed.map(|(_, failure)| failure.to_string());
    Some(AddressCandidate::of_service(
        &member.name,
        member.joiner.url.address()?,
        member.state,
        member.backup,
        known,
        reason,
    ))
}
