//! Detection of stalled handshakes: new TCP sessions with SYNs only, counted by server.
//!
//! A session stalls when its last SYN is [`STALLED_AFTER_MS`] old. Each walk of the session tables
//! counts the sessions that have stalled since the previous walk. The stall rate is the number of
//! stalled sessions divided by that of new sessions. A server is suspected if its stall rate is
//! well above that of the service's other servers, and a service if its rate is well above that of
//! the other services. A firewall that admits only the director, or a wrong return route, stalls
//! the clients of one server. A SYN flood stalls sessions of all servers of a service alike, so no
//! single server is suspected.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::{Director, Event};
use crate::farm::Method;
use crate::farm::plan::ServerName;
use crate::pool::health::Failure;

/// Time since the last SYN after which a session with SYNs only counts as stalled, in milliseconds.
pub const STALLED_AFTER_MS: u64 = 5_000;
/// Window of the statistics, in milliseconds.
const WINDOW_MS: u64 = 60_000;
/// Minimum number of client networks (IPv4 /24 or IPv6 /56) and of stalled sessions for a
/// suspicion. The other servers or services together need at least as many new sessions. Otherwise
/// there is no comparison.
const NETWORKS_MIN: usize = 20;
/// Maximum number of networks distinguished per server and walk.
const NETWORKS_MAX: usize = 64;
/// Minimum ratio for a suspicion: the stall rate of a server or service, divided by the stall rate
/// of the others.
const TIMES: u64 = 3;
/// Minimum stall rate for a suspicion, in percent.
const SHARE_MIN_PERCENT: u64 = 10;

/// Stalled sessions of one server in one walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StalledSessions {
    /// Sessions that have stalled since the previous walk.
    pub count: u64,
    networks: BTreeSet<u64>,
}

impl StalledSessions {
    /// Counts a stalled session of this client.
    pub fn add(&mut self, client: IpAddr) {
        self.count += 1;
        if self.networks.len() < NETWORKS_MAX {
            self.networks.insert(network_of(client));
        }
    }
}

/// Returns the client's network as a number.
fn network_of(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(client) => u64::from(client.to_bits() >> 8),
        // The top bit keeps IPv6 networks distinct from IPv4 networks.
        IpAddr::V6(client) => 1 << 63 | (client.to_bits() >> 72) as u64,
    }
}

/// Result of a walk through all session tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionWalk {
    /// Stalled sessions by the server's slot.
    pub stalled: BTreeMap<u16, StalledSessions>,
    /// New sessions by the server's slot, since the slot's counter was cleared.
    pub connections: BTreeMap<u16, u64>,
}

/// New connections of a server within the last minute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshakes {
    /// Number of new connections.
    pub new: u64,
    /// Number of new connections that stalled.
    pub stalled: u64,
    /// Number of client networks of the stalled connections. One walk distinguishes at most 64.
    pub networks: usize,
    /// Stalled connections since the start of the server's statistics. The statistics restart when
    /// the server leaves the plan or is ejected.
    pub stalled_total: u64,
    /// Suspicion; `None` unless the server or its whole service stalls much more often than the
    /// others.
    pub suspicion: Option<Suspicion>,
}

/// Part of a farm that is suspected to stall connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// A single server of a service.
    Server,
    /// All servers of a service.
    Service,
}

impl Handshakes {
    /// Returns the text of a suspicion for logs and failures, without the server's name.
    pub fn sentence(&self, method: Method) -> String {
        let what = if method == Method::Nat { "got no answer from the server" } else { "never continued" };
        alloc::format!("{} of {} new connections {what}", self.stalled, self.new)
    }

    fn add(&mut self, other: &Handshakes) {
        self.new += other.new;
        self.stalled += other.stalled;
        self.networks += other.networks;
    }

    /// True if this server or service stalls significantly more often than the rest.
    fn differs_from(&self, rest: &Handshakes) -> bool {
        let is_enough = self.networks >= NETWORKS_MIN && self.stalled >= NETWORKS_MIN as u64;
        let is_much = self.stalled * 100 >= self.new * SHARE_MIN_PERCENT;
        // With too few new connections, the stall rate of the rest is unknown.
        let is_known = rest.new >= NETWORKS_MIN as u64;
        // self.stalled / self.new >= TIMES * rest.stalled / rest.new
        is_enough && is_much && is_known && self.stalled * rest.new >= TIMES * rest.stalled * self.new
    }
}

#[derive(Clone, Debug)]
struct PastWalk {
    at_ms: u64,
    new: u64,
    stalled: u64,
    networks: BTreeSet<u64>,
}

/// Statistics of one server.
#[derive(Clone, Debug, Default)]
struct ServerMemory {
    slot: u16,
    connections: u64,
    walks: VecDeque<PastWalk>,
    seen: Handshakes,
}

/// Statistics of all servers.
#[derive(Clone, Debug, Default)]
pub(super) struct HandshakeWatch {
    servers: BTreeMap<ServerName, ServerMemory>,
}

impl HandshakeWatch {
    pub(super) fn of(&self, name: &ServerName) -> Handshakes {
        self.servers.get(name).map(|memory| memory.seen.clone()).unwrap_or_default()
    }

    /// Adds the result of a walk. `names` contains the server of each slot.
    fn walked(&mut self, walk: &SessionWalk, names: &BTreeMap<u16, ServerName>, now_ms: u64) {
        let present: BTreeSet<&ServerName> = names.values().collect();
        self.servers.retain(|name, _| present.contains(name));
        for (slot, name) in names {
            let connections = walk.connections.get(slot).copied().unwrap_or_default();
            // The first walk only stores the server's counter, since the counter includes sessions
            // of unknown age.
            let Some(memory) = self.servers.get_mut(name) else {
                let first = ServerMemory { slot: *slot, connections, ..ServerMemory::default() };
                self.servers.insert(name.clone(), first);
                continue;
            };
            if memory.slot != *slot || connections < memory.connections {
                // The server has another slot, or its counter was cleared: restart the count at the
                // current value.
                (memory.slot, memory.connections) = (*slot, connections);
            }
            let stalled = walk.stalled.get(slot).cloned().unwrap_or_default();
            memory.add(connections - memory.connections, stalled, now_ms);
            memory.connections = connections;
        }
        self.judge();
    }

    /// Compares each server with the others of its service, and each service with the other
    /// services.
    fn judge(&mut self) {
        let mut services: BTreeMap<&str, Handshakes> = BTreeMap::new();
        let mut all = Handshakes::default();
        for (name, memory) in &self.servers {
            services.entry(&name.service).or_default().add(&memory.seen);
            all.add(&memory.seen);
        }
        let without = |whole: &Handshakes, part: &Handshakes| Handshakes {
            new: whole.new - part.new,
            stalled: whole.stalled - part.stalled,
            ..Handshakes::default()
        };
        let suspicions: Vec<(ServerName, Option<Suspicion>)> = self
            .servers
            .iter()
            .map(|(name, memory)| {
                let service = services.get(name.service.as_str()).cloned().unwrap_or_default();
                let found = match () {
                    () if memory.seen.differs_from(&without(&service, &memory.seen)) => {
                        Some(Suspicion::Server)
                    }
                    () if service.differs_from(&without(&all, &service)) => Some(Suspicion::Service),
                    () => None,
                };
                (name.clone(), found)
            })
            .collect();
        for (name, found) in suspicions {
            if let Some(memory) = self.servers.get_mut(&name) {
                memory.seen.suspicion = found;
            }
        }
    }
}

impl ServerMemory {
    fn add(&mut self, new: u64, stalled: StalledSessions, now_ms: u64) {
        let StalledSessions { count, networks } = stalled;
        self.walks.push_back(PastWalk { at_ms: now_ms, new, stalled: count, networks });
        while self.walks.front().is_some_and(|walk| walk.at_ms + WINDOW_MS <= now_ms) {
            self.walks.pop_front();
        }
        let networks: BTreeSet<u64> = self.walks.iter().flat_map(|walk| &walk.networks).copied().collect();
        let sum = |of: fn(&PastWalk) -> u64| self.walks.iter().map(of).sum::<u64>();
        let new = sum(|walk| walk.new);
        self.seen = Handshakes {
            new,
            // If the client sends another SYN after its session was counted, the session may be
            // counted again. So the sum may exceed the number of new connections.
            stalled: sum(|walk| walk.stalled).min(new),
            networks: networks.len(),
            stalled_total: self.seen.stalled_total + count,
            suspicion: None,
        };
    }
}

impl Director {
    /// Applies the result of a walk of the session tables.
    pub(super) fn walked(&mut self, walk: &SessionWalk, now_ms: u64) {
        let before: BTreeMap<ServerName, Handshakes> = self
            .handshakes
            .servers
            .iter()
            .map(|(name, memory)| (name.clone(), memory.seen.clone()))
            .collect();
        self.handshakes.walked(walk, &self.plan.servers, now_ms);
        let mut events = Vec::new();
        for (name, memory) in &self.handshakes.servers {
            let was = before.get(name).cloned().unwrap_or_default();
            self.has_changed |= was != memory.seen;
            let method = self.farm.services.iter().find(|service| service.name == name.service);
            let Some(method) = method.map(|service| service.method) else { continue };
            match (was.suspicion, memory.seen.suspicion) {
                (None, Some(_)) => {
                    events.push(Event::Stalling { server: name.clone(), text: memory.seen.sentence(method) })
                }
                (Some(_), None) => events.push(Event::StallEnded { server: name.clone() }),
                _ => {}
            }
        }
        self.emit_all(events);
        self.eject_stalling(now_ms);
    }

    /// Ejects suspected servers of services with passive checks: at most a third of a service's
    /// servers, and never the last working one.
    fn eject_stalling(&mut self, now_ms: u64) {
        let farm = alloc::sync::Arc::clone(&self.farm);
        for service in farm.services.iter().filter(|service| service.passive_checks) {
            let members = self.membership.members(&service.name);
            let name = |server: &str| ServerName { service: service.name.clone(), server: server.into() };
            let is_up = |server: &ServerName| self.pools.server(server).is_some_and(|server| server.is_up());
            let names: Vec<ServerName> = members.iter().map(|member| name(&member.name)).collect();
            let mut up = names.iter().filter(|name| is_up(name)).count();
            let mut ejected = names.iter().filter(|name| self.pools.is_ejected(name, now_ms)).count();
            for server in names.iter().filter(|name| is_up(name)).cloned().collect::<Vec<_>>() {
                let seen = self.handshakes.of(&server);
                let is_one_too_many = (ejected + 1) * 3 > names.len() || up < 2;
                if seen.suspicion != Some(Suspicion::Server) || is_one_too_many {
                    continue;
                }
                let failure = Failure::Other(seen.sentence(service.method));
                if let Some(change) =
                    self.pools.change(&server, |server| server.eject(failure, now_ms)).flatten()
                {
                    (ejected, up) = (ejected + 1, up - 1);
                    // After the ejection the statistics restart with new connections only.
                    self.handshakes.servers.remove(&server);
                    self.follow_change(&server, change);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn names(servers: &[(&str, &str)]) -> BTreeMap<u16, ServerName> {
        let name = |(service, server): &(&str, &str)| ServerName {
            service: (*service).into(),
            server: (*server).into(),
        };
        (1..).zip(servers.iter().map(name)).collect()
    }

    /// Returns the suspicion of each server after a number of walks, 10 seconds apart. A walk
    /// contains three numbers for each server: new connections, stalled connections and client
    /// networks.
    fn suspicions(servers: &[(&str, &str)], walks: &[&[(u64, u64, u64)]]) -> Vec<Option<Suspicion>> {
        let names = names(servers);
        let mut watch = HandshakeWatch::default();
        let mut walk = SessionWalk::default();
        watch.walked(&walk, &names, 0);
        for (at, counts) in (1..).zip(walks) {
            walk.stalled.clear();
            for (slot, (new, stalled, networks)) in (1..).zip(counts.iter()) {
                *walk.connections.entry(slot).or_default() += new;
                let sessions = walk.stalled.entry(slot).or_default();
                for number in 0..*stalled {
                    let network = number % (*networks).max(1);
                    sessions.add(IpAddr::from([10, 0, network as u8, number as u8]));
                }
            }
            watch.walked(&walk, &names, at * 10_000);
        }
        names.values().map(|name| watch.of(name).suspicion).collect()
    }

    const WEB: [(&str, &str); 3] = [("web", "a"), ("web", "b"), ("web", "c")];

    #[test]
    fn a_server_that_differs_from_the_others_is_suspected() {
        let one = [&[(94, 31, 24), (90, 0, 0), (88, 1, 1)][..]];
        assert_eq!(suspicions(&WEB, &one), [Some(Suspicion::Server), None, None]);
        let over_walks = [&[(20, 7, 7), (20, 0, 0), (20, 0, 0)][..], &[(20, 20, 24), (20, 0, 0), (20, 0, 0)]];
        assert_eq!(suspicions(&WEB, &over_walks)[0], Some(Suspicion::Server));
    }

    #[test]
    fn a_flood_over_all_servers_and_few_networks_suspect_nobody() {
        let flood = [&[(900, 880, 64), (1_000, 985, 64), (950, 930, 64)][..]];
        assert_eq!(suspicions(&WEB, &flood), [None; 3]);
        let one_network = [&[(94, 31, 19), (90, 0, 0), (88, 0, 0)][..]];
        assert_eq!(suspicions(&WEB, &one_network), [None; 3]);
        let little = [&[(1_000, 30, 30), (1_000, 0, 0), (1_000, 0, 0)][..]];
        assert_eq!(suspicions(&WEB, &little), [None; 3], "3 percent");
        let twice = [&[(100, 60, 30), (100, 30, 30), (100, 30, 30)][..]];
        assert_eq!(suspicions(&WEB, &twice), [None; 3]);
        let alone = [&[(94, 94, 40)][..]];
        assert_eq!(suspicions(&WEB[..1], &alone), [None], "nothing to compare with");
    }

    #[test]
    fn a_service_is_held_against_the_others() {
        let servers = [("web", "a"), ("web", "b"), ("mail", "m")];
        let whole = [&[(50, 40, 30), (50, 41, 30), (200, 2, 2)][..]];
        assert_eq!(suspicions(&servers, &whole), [Some(Suspicion::Service), Some(Suspicion::Service), None]);
    }

    #[test]
    fn what_stalled_a_minute_ago_is_forgotten() {
        let quiet: &[(u64, u64, u64)] = &[(30, 0, 0), (30, 0, 0), (30, 0, 0)];
        let first: &[(u64, u64, u64)] = &[(40, 40, 40), (30, 0, 0), (30, 0, 0)];
        let mut walks = alloc::vec![first];
        walks.extend([quiet; 5]);
        assert_eq!(suspicions(&WEB, &walks)[0], Some(Suspicion::Server));
        walks.push(quiet);
        assert_eq!(suspicions(&WEB, &walks)[0], None);
    }

    #[test]
    fn clients_of_a_network_are_one() {
        let of = |text: &str| network_of(text.parse().unwrap_or(IpAddr::from([0; 4])));
        assert_eq!(of("192.0.2.1"), of("192.0.2.200"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:ff::1"));
        assert_ne!(of("2001:db8:0:100::1"), of("2001:db8:0:ff::1"));
        let sentence = Handshakes { new: 94, stalled: 31, ..Handshakes::default() }.sentence(Method::L2);
        assert_eq!(sentence, format!("31 of 94 new connections {}", "never continued"));
    }
}
