//! Servers listed for one name alone, with their current state.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::candidate::{AddressCandidate, stand_by};
use crate::dns::{AddressCounts, OwnServer, ServerList};
use crate::pool::shares::PoolMember;
use crate::pool::{Fact, Pool, PoolEntry, PoolServer, ServerChange, ServerState};

/// Servers of a name's own list, by their index in the list. The caller passes the list to each
/// method.
#[derive(Clone, Debug)]
pub(super) struct OwnServers(pub(super) Pool<usize, CountedServer>);

/// A server with the counters of its address. All threads that answer queries share the counters.
#[derive(Clone, Debug)]
pub(super) struct CountedServer {
    server: PoolServer,
    counts: Arc<AddressCounts>,
}

impl PoolEntry for CountedServer {
    fn server(&self) -> &PoolServer {
        &self.server
    }

    fn server_mut(&mut self) -> &mut PoolServer {
        &mut self.server
    }
}

impl OwnServers {
    /// Returns all servers of a list, with no probe result yet. `seed` differs from name to name
    /// and spreads the probes over time.
    pub(super) fn new(list: &ServerList, seed: u64, now_ms: u64) -> OwnServers {
        OwnServers::of(list, |place, _| CountedServer {
            server: PoolServer::new(&list.settings, seed_of(seed, place), now_ms, false),
            counts: Arc::default(),
        })
    }

    fn of(list: &ServerList, mut server: impl FnMut(usize, SocketAddr) -> CountedServer) -> OwnServers {
        let servers = list.servers.iter().enumerate();
        OwnServers(servers.map(|(place, listed)| (place, server(place, listed.address))).collect())
    }

    /// Replaces the list. A server whose address is in both lists keeps its state.
    #[must_use]
    pub(super) fn follow(self, before: &ServerList, list: &ServerList, seed: u64, now_ms: u64) -> OwnServers {
        let mut known: BTreeMap<SocketAddr, Vec<CountedServer>> = BTreeMap::new();
        for (counted, listed) in self.0.into_values().zip(&before.servers).rev() {
            known.entry(listed.address).or_default().push(counted);
        }
        OwnServers::of(list, |place, address| {
            let seed = seed_of(seed, place);
            match known.get_mut(&address).and_then(Vec::pop) {
                Some(mut counted) => {
                    counted.server.reconfigure(&list.settings, seed, now_ms);
                    counted
                }
                None => CountedServer {
                    server: PoolServer::new(&list.settings, seed, now_ms, true),
                    counts: Arc::default(),
                },
            }
        })
    }

    pub(super) fn apply_fact(&mut self, place: usize, fact: Fact, now_ms: u64) -> Option<ServerChange> {
        let is_probe = matches!(fact, Fact::Probed(_));
        let change = self.0.apply_fact(&place, fact, now_ms);
        if is_probe && let Some(counted) = self.0.get(&place) {
            counted.counts.set_checks(counted.server.health().checks());
        }
        change
    }

    /// Number of servers without any probe result.
    pub(super) fn unknown(&self) -> usize {
        self.0.values().filter(|counted| counted.server.is_unknown()).count()
    }

    /// Returns all servers as candidates, in the order of the list.
    pub(super) fn candidates(&self, list: &ServerList, now_ms: u64) -> Vec<AddressCandidate> {
        let all = || self.0.values().zip(&list.servers);
        // Refusals are ignored if all servers refuse, so that reports alone can't leave a name
        // without servers.
        let takes = |(CountedServer { server, .. }, listed): (&CountedServer, &OwnServer)| {
            is_wanted(server, listed) && !server.refuses()
        };
        let may_refuse = all().any(takes);
        let candidate = |(CountedServer { server, counts }, listed): (&CountedServer, &OwnServer)| {
            let refuses = may_refuse && is_wanted(server, listed) && server.refuses();
            let state = server.state(listed.weight, refuses);
            let failed = server.health().last_failure().filter(|_| state == ServerState::Down);
            let reason = failed.map(|(_, failure)| failure.to_string());
            let (tenths, signals) = (server.tenths(), server.signals(now_ms));
            AddressCandidate {
                server: listed.name.clone(),
                address: listed.address.ip(),
                state,
                backup: listed.backup,
                stands_by: false,
                known: PoolMember { weight: listed.weight, tenths, signals },
                reason: match server.operator_reason() {
                    Some(by_operator) => Some(by_operator.to_owned()),
                    None if refuses => Some("drained by its own report".to_owned()),
                    None => reason,
                },
                probed_ms: None,
                counts: Some(Arc::clone(counts)),
            }
        };
        let mut candidates: Vec<AddressCandidate> = all().map(candidate).collect();
        stand_by(&mut candidates);
        candidates
    }
}

/// True if the server works and the operator has not drained it.
fn is_wanted(server: &PoolServer, listed: &OwnServer) -> bool {
    server.state(listed.weight, false) == ServerState::Up
}

fn seed_of(seed: u64, place: usize) -> u64 {
    seed.wrapping_add((place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::farm::example;
    use crate::pool::health::{self, Failure, Transition};
    use crate::pool::report::Report;
    use crate::pool::{ClockReading, Period};
    use crate::pool::{Effect, HealthKind, OperatorState, PoolSettings, ReportKind, Reporting, ServerEvent};
    use alloc::vec;

    fn list(addresses: &[&str], kind: HealthKind) -> ServerList {
        let server = |address: &&str| OwnServer {
            name: None,
            address: address.parse().unwrap(),
            weight: 1,
            backup: false,
            health_address: None,
        };
        ServerList {
            servers: addresses.iter().map(server).collect(),
            settings: Arc::new(PoolSettings {
                check: Arc::new(example::check(kind)),
                report: None,
                slow_start_ms: 0,
            }),
        }
    }

    fn states(states: &OwnServers, list: &ServerList, now_ms: u64) -> Vec<&'static str> {
        states.candidates(list, now_ms).iter().map(|one| one.state.name()).collect()
    }

    fn set_state(servers: &mut OwnServers, place: usize, state: OperatorState) -> Option<ServerChange> {
        servers.0.change(&place, |server| server.set_operator_state(state, 0))
    }

    #[test]
    fn servers_are_probed_when_they_are_due_and_follow_their_answers() {
        let list = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::Tcp);
        let mut servers = OwnServers::new(&list, 7, 0);
        assert_eq!((servers.0.next_at(), servers.unknown()), (0, 2));
        assert!(servers.0.poll(ClockReading::at(0)).iter().all(|(_, due)| due.probe && !due.query));
        assert_eq!(servers.0.next_at(), u64::MAX, "nothing is due while probes are under way");
        let up = servers.apply_fact(0, Fact::Probed(Ok(5)), 3).unwrap();
        assert_eq!((up.effect, up.events.len()), (Effect::Weight, 1));
        assert!(matches!(&up.events[0], ServerEvent::Health(Transition { to: health::HealthState::Up, .. })));
        let down = servers.apply_fact(1, Fact::Probed(Err(Failure::Refused)), 4).unwrap();
        let reason = Some(Failure::Refused);
        assert!(matches!(&down.events[..], [ServerEvent::Health(transition)] if transition.reason == reason));
        assert_eq!((states(&servers, &list, 5), servers.unknown()), (vec!["up", "down"], 0));
        assert_eq!(servers.0.next_at(), 1_000);
        let checks: Vec<_> = servers.0.values().map(|counted| counted.counts.checks().to_string()).collect();
        assert_eq!(checks, [".", "x"]);
        assert_eq!(servers.apply_fact(9, Fact::Probed(Ok(5)), 5), None);
    }

    #[test]
    fn servers_that_are_not_probed_are_up_and_never_due() {
        let list = list(&["192.0.2.1:80"], HealthKind::None);
        let servers = OwnServers::new(&list, 7, 0);
        assert_eq!((servers.0.next_at(), servers.unknown()), (u64::MAX, 0));
        assert_eq!(states(&servers, &list, 0), ["up"]);
    }

    #[test]
    fn reload_keeps_state_of_remaining_addresses() {
        let before = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::Tcp);
        let mut servers = OwnServers::new(&before, 7, 0);
        servers.0.poll(ClockReading::at(0));
        servers.apply_fact(1, Fact::Probed(Ok(5)), 3);
        let after = list(&["192.0.2.2:80", "192.0.2.3:80"], HealthKind::Tcp);
        let servers = servers.follow(&before, &after, 7, 10);
        assert_eq!((states(&servers, &after, 10), servers.unknown()), (vec!["up", "down"], 1));
        assert_eq!(after.place_of(1, "192.0.2.2:80".parse().unwrap()), Some(0));
        assert_eq!(after.place_of(0, "192.0.2.1:80".parse().unwrap()), None);
    }

    #[test]
    fn drained_server_drains_until_undrained() {
        let list = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::None);
        let mut servers = OwnServers::new(&list, 7, 0);
        let drained =
            |drained| ServerChange { effect: Effect::Weight, events: vec![ServerEvent::Drained(drained)] };
        assert_eq!(set_state(&mut servers, 0, OperatorState::Drain), Some(drained(true)));
        let repeated = set_state(&mut servers, 0, OperatorState::Drain);
        assert_eq!(repeated, Some(ServerChange::default()));
        assert_eq!(set_state(&mut servers, 9, OperatorState::Drain), None);
        assert_eq!(states(&servers, &list, 0), ["draining", "up"]);
        assert_eq!(set_state(&mut servers, 0, OperatorState::Ready), Some(drained(false)));
        assert_eq!(states(&servers, &list, 0), ["up", "up"]);
    }

    #[test]
    fn reports_drain_a_server_as_long_as_another_takes_clients() {
        let kind = ReportKind::AgentCheck;
        let report = Reporting { kind, port: 9, interval: Period::always(1_000), timeout_ms: 100 };
        let mut list = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::None);
        Arc::make_mut(&mut list.settings).report = Some(Arc::new(report));
        let mut servers = OwnServers::new(&list, 7, 0);
        let refusal = || Fact::Reported(Ok(Report { percent: Some(0), ..Report::default() }));
        let change = servers.apply_fact(0, refusal(), 1).unwrap();
        let refused = ServerChange { effect: Effect::Weight, events: vec![ServerEvent::Refuses(true)] };
        assert_eq!(change, refused);
        assert_eq!(states(&servers, &list, 1), ["draining", "up"]);
        servers.apply_fact(1, refusal(), 1);
        assert_eq!(states(&servers, &list, 1), ["up", "up"]);
        set_state(&mut servers, 1, OperatorState::Drain);
        assert_eq!(states(&servers, &list, 1), ["up", "draining"]);
        assert_eq!(
            servers.0.poll(ClockReading::at(1_000)).iter().filter(|(_, due)| due.query).count(),
            2,
            "both are asked again"
        );
    }

    #[test]
    fn a_server_that_comes_later_has_its_share_by_tenths() {
        let mut before = list(&["192.0.2.1:80"], HealthKind::Tcp);
        Arc::make_mut(&mut before.settings).slow_start_ms = 1_000;
        let servers = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::Tcp).servers;
        let after = ServerList { servers, settings: Arc::clone(&before.settings) };
        let mut servers = OwnServers::new(&before, 7, 0);
        servers.0.poll(ClockReading::at(0));
        servers.apply_fact(0, Fact::Probed(Ok(5)), 1);
        let mut servers = servers.follow(&before, &after, 7, 1);
        servers.0.poll(ClockReading::at(1));
        servers.apply_fact(1, Fact::Probed(Ok(5)), 1);
        let tenths = |servers: &OwnServers| -> Vec<u16> {
            servers.candidates(&after, 0).iter().map(|one| one.known.tenths).collect()
        };
        assert_eq!((tenths(&servers), servers.0.next_at()), (vec![10, 1], 201));
        assert!(
            servers
                .0
                .poll(ClockReading::at(501))
                .iter()
                .any(|(place, due)| *place == 1 && due.change.effect == Effect::Weight)
        );
        assert_eq!(tenths(&servers), [10, 5]);
        servers.0.poll(ClockReading::at(1_001));
        assert_eq!(tenths(&servers), [10, 10]);
        assert_ne!(servers.0.next_at(), 1_101, "it has its whole share");
    }

    #[test]
    fn backup_lives_while_no_other_server_does() {
        let mut list = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::None);
        list.servers[1].backup = true;
        let mut servers = OwnServers::new(&list, 7, 0);
        let lives = |servers: &OwnServers| -> Vec<bool> {
            servers.candidates(&list, 0).iter().map(AddressCandidate::lives).collect()
        };
        assert_eq!(lives(&servers), [true, false]);
        set_state(&mut servers, 0, OperatorState::Drain);
        assert_eq!(lives(&servers), [false, true]);
    }
}
