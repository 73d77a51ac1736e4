//! Whose addresses a name may be answered with, as they are now: of services' servers, of groups' members, and of services as sites.

use std::net::IpAddr;

use evener_core::director::{ServerState, Snapshot};
use evener_core::dns::Known;
use evener_core::farm::Service;
use evener_core::farm::group::{MemberState, State};
use evener_core::farm::report::Report;
use evener_core::farm::signals::Signals;

use crate::redirect::ShownGroup;

/// A server that may be given, as it is now.
pub(super) struct Candidate {
    pub(super) server: String,
    pub(super) address: IpAddr,
    pub(super) state: &'static str,
    pub(super) lives: bool,
    pub(super) known: Known,
    /// Why it isn't up.
    pub(super) reason: Option<String>,
}

/// Those of a service of the file.
pub(super) fn of_service(
    name: &str,
    own: bool,
    snapshot: &Snapshot,
    groups: &[ShownGroup],
) -> Vec<Candidate> {
    if let Some(shown) = groups.iter().find(|shown| shown.group.name == name) {
        let members: Vec<Candidate> = shown.members.iter().filter_map(of_member).collect();
        return if own {
            site(name, shown.group.addresses.iter().map(|at| at.ip()), &members)
        } else {
            members
        };
    }
    let Some(service) = snapshot.farm.service(name) else { return Vec::new() };
    let Some(seen) = snapshot.services.iter().find(|seen| seen.name == name) else { return Vec::new() };
    let servers: Vec<Candidate> = seen
        .servers
        .iter()
        .flat_map(|server| {
            let known =
                Known { weight: server.member.weight, tenths: server.tenths, signals: server.signals };
            published(service, &server.name.server, server.address).into_iter().map(move |address| {
                Candidate {
                    server: server.name.server.clone(),
                    address,
                    state: server.state.name(),
                    lives: server.state == ServerState::Up,
                    known,
                    reason: server.reason.clone(),
                }
            })
        })
        .collect();
    if own { site(name, service.addresses.iter().map(|at| at.ip()), &servers) } else { servers }
}

/// By which addresses clients come to a server: its own, or where every host decides those that it answers for.
fn published(service: &Service, server: &str, own: Option<IpAddr>) -> Vec<IpAddr> {
    let listed = service.servers.iter().find(|listed| listed.name == server);
    match listed.filter(|_| service.is_on_every_host()) {
        Some(listed) => listed.publish.clone(),
        None => own.into_iter().collect(),
    }
}

/// A service's own addresses, which live as long as one of its servers does, have all their weight, and are as loaded as the mean of them.
fn site(name: &str, addresses: impl Iterator<Item = IpAddr>, servers: &[Candidate]) -> Vec<Candidate> {
    let alive = || servers.iter().filter(|server| server.lives);
    let weight = alive().map(|server| u32::from(server.known.weight)).sum::<u32>();
    let lives = weight > 0;
    let mut addresses: Vec<IpAddr> = addresses.collect();
    addresses.dedup();
    let candidate = |address| Candidate {
        server: name.to_owned(),
        address,
        state: if lives { ServerState::Up.name() } else { ServerState::Down.name() },
        lives,
        known: Known {
            weight: u16::try_from(weight.max(1)).unwrap_or(u16::MAX),
            tenths: 10,
            signals: mean(&alive().map(|server| server.known.signals).collect::<Vec<_>>()),
        },
        reason: (!lives).then(|| "none of its servers lives".to_owned()),
    };
    addresses.into_iter().map(candidate).collect()
}

/// The load of several servers, by those of them of whom it is known.
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

/// A member that has an address: a name in its URL is resolved by its clients.
pub(super) fn of_member(member: &MemberState) -> Option<Candidate> {
    let address = member.joiner.url.address()?;
    let signals = Signals {
        latency_us: member.latency_us,
        report: Report { load_milli: member.reported, ..Report::default() },
        age_ms: member.age_ms,
        ..Signals::default()
    };
    let failed = member.last_failure.as_ref().filter(|_| member.state == State::Down);
    Some(Candidate {
        server: member.name.clone(),
        address,
        state: member.state.name(),
        lives: member.state == State::Up && member.joiner.weight > 0,
        known: Known {
            weight: member.joiner.weight,
            tenths: u16::try_from(member.weight_percent.div_ceil(10)).unwrap_or(10),
            signals,
        },
        reason: failed.map(|(_, failure)| failure.to_string()),
    })
}
