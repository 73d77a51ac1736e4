//! Events about missing servers, services without servers, and links.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;

use super::{Director, Event, LinkState};
use crate::farm::Announce;
use crate::farm::membership::ServiceNotice;
use crate::farm::network::Network;
use crate::farm::plan::{Plan, ServerName};

/// Number of checks, one a second, before a server without a MAC address is reported. A server's
/// first reply takes a moment.
const LOOKS: u32 = 3;
/// Interval of the checks, in milliseconds.
const LOOK_MS: u64 = 1_000;

/// Servers, services and links that are being watched, or were reported as missing.
#[derive(Clone, Debug, Default)]
pub(super) struct MissingServers {
    /// Unresolved servers, with the number of failed checks.
    missing: BTreeMap<ServerName, u32>,
    /// Services that had servers in their rings, and have none now.
    without: BTreeSet<String>,
    /// Interfaces that the engine failed to attach to.
    unattached: BTreeSet<u32>,
    /// Time of the next check, in milliseconds.
    pub(super) look_at_ms: u64,
}

impl Director {
    /// Checks once a second for unresolved servers and next hops.
    pub(super) fn check_missing(&mut self, now_ms: u64) {
        if self.missing_servers.look_at_ms <= now_ms {
            self.missing_servers.look_at_ms = now_ms.saturating_add(LOOK_MS);
            self.resolve_next_hops(now_ms);
            self.report_missing_servers();
            // Session counts and latencies change without an event, so the snapshot is renewed.
            self.has_changed = true;
        }
    }

    /// Reports each unresolved server once.
    fn report_missing_servers(&mut self) {
        let mut missing = BTreeMap::new();
        let mut events = Vec::new();
        for service in &self.farm.services {
            let members = self.membership.members(&service.name).into_iter();
            for member in members.filter(|member| !member.local && member.mac.is_none()) {
                let why = self.why_not_found(service.method, member.address);
                let server = ServerName { service: service.name.clone(), server: member.name };
                let looks =
                    self.missing_servers.missing.get(&server).map_or(1, |looks| looks.saturating_add(1));
                if looks == LOOKS {
                    events.push(Event::NotFound { server: server.clone(), why });
                }
                missing.insert(server, looks);
            }
        }
        let reported =
            self.missing_servers.missing.iter().filter(|(_, looks)| **looks >= LOOKS).map(|(name, _)| name);
        for server in reported.filter(|name| !missing.contains_key(*name)) {
            if self.membership.member(&server.service, &server.server).is_some() {
                events.push(Event::Found { server: server.clone() });
            }
        }
        self.missing_servers.missing = missing;
        self.emit_all(events);
    }

    /// Reports services that lost or regained all servers, or became degraded or recovered, by a
    /// new plan.
    pub(super) fn report_changes(&mut self, plan: &Plan) {
        let mut events = Vec::new();
        for (number, planned) in &plan.services {
            let was = self.plan.services.get(number).filter(|was| was.name == planned.name);
            let had = was.is_some_and(|was| !was.ring_members.is_empty());
            let service = planned.name.clone();
            if had && planned.ring_members.is_empty() {
                self.missing_servers.without.insert(service.clone());
                events.push(Event::NoServers { service });
            } else if !planned.ring_members.is_empty() && self.missing_servers.without.remove(&service) {
                events.push(Event::ServersAgain { service });
            }
            let service = planned.name.clone();
            match (was.is_some_and(|was| was.degraded), planned.degraded) {
                (false, true) => events.push(Event::Degraded { service }),
                // A service also stops being degraded if its last server was drained or removed
                // from the file. That is no recovery.
                (true, false) if !planned.ring_members.is_empty() => {
                    events.push(Event::Recovered { service })
                }
                _ => {}
            }
        }
        self.missing_servers
            .without
            .retain(|name| plan.services.values().any(|service| service.name == *name));
        let were: BTreeSet<&ServerName> = self.plan.left_out.iter().collect();
        let left_out = plan.left_out.iter().filter(|name| !were.contains(name));
        events.extend(left_out.map(|server| Event::SlotsExhausted { server: server.clone() }));
        self.emit_all(events);
    }

    /// Returns a warning for an operator who has just drained a server, if the service has no
    /// server left or is degraded.
    pub fn without_servers(&self, service: &str) -> Option<&'static str> {
        let planned = self.plan.services.values().find(|planned| planned.name == service)?;
        match (planned.ring_members.is_empty(), planned.degraded) {
            (true, _) => Some("no other server accepts new sessions, so new connections are dropped"),
            (_, true) => {
                Some("too few others work or want new sessions, which go to some that fail or refuse too")
            }
            _ => None,
        }
    }

    /// Reports changes of the interfaces that the engine uses.
    pub(super) fn report_link_changes(&mut self, network: &Network) {
        let known = self.network.interfaces.iter().filter(|(ifindex, _)| self.links.contains_key(ifindex));
        let mut events = Vec::new();
        for (ifindex, was) in known {
            let now = network.interfaces.get(ifindex).map_or(Some(LinkState::Gone), |is| {
                match ((was.up, is.up), (was.carrier, is.carrier)) {
                    ((true, false), _) => Some(LinkState::Down),
                    (_, (true, false)) => Some(LinkState::NoCarrier),
                    ((false, true), (_, true)) | ((true, true), (false, true)) => Some(LinkState::Up),
                    _ => None,
                }
            });
            events.extend(now.map(|now| Event::Link { interface: was.name.clone(), now }));
        }
        self.emit_all(events);
    }

    /// Returns the service addresses that another program moves between hosts, with their services.
    fn moved_addresses(&self) -> impl Iterator<Item = (String, IpAddr)> {
        let services = self.farm.services.iter().filter(|service| service.announce == Announce::Host);
        services.flat_map(|service| {
            let addresses: BTreeSet<IpAddr> = service.addresses.iter().map(|at| at.ip()).collect();
            addresses.into_iter().map(|address| (service.name.clone(), address))
        })
    }

    /// Returns the service addresses that another program has given to this host.
    pub fn held_addresses(&self) -> Vec<IpAddr> {
        let here = self.moved_addresses().filter(|(_, address)| self.network.is_local(*address));
        here.map(|(_, address)| address).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Reports service addresses that another program has given to this host or taken away.
    pub(super) fn report_moved_addresses(&mut self, network: &Network) {
        let addresses = self.moved_addresses();
        let (was, is) = (|address| self.network.is_local(address), |address| network.is_local(address));
        let moved = addresses.filter(|(_, address)| was(*address) != is(*address));
        let events: Vec<_> = moved
            .map(|(service, address)| Event::AddressMoved { service, address, here: is(address) })
            .collect();
        self.emit_all(events);
    }

    /// Reports the links to which the engine has attached.
    pub(super) fn report_attached(&mut self, newcomers: &BTreeSet<u32>) {
        self.missing_servers.unattached.retain(|ifindex| !newcomers.contains(ifindex));
        let names = newcomers.iter().filter_map(|ifindex| self.network.interfaces.get(ifindex));
        let events: Vec<_> = names.map(|link| Event::Attached { interface: link.name.clone() }).collect();
        self.emit_all(events);
    }

    /// Reports each link that the engine failed to attach to once.
    pub(super) fn report_unattached(&mut self, newcomers: &BTreeSet<u32>, error: &str) {
        let news = newcomers.iter().filter(|ifindex| !self.missing_servers.unattached.contains(ifindex));
        let found = news.filter_map(|ifindex| self.network.interfaces.get(ifindex));
        let events: Vec<_> = found
            .map(|link| Event::AttachFailed { interface: link.name.clone(), error: error.to_string() })
            .collect();
        self.missing_servers.unattached.extend(newcomers);
        self.emit_all(events);
    }

    pub(super) fn report_membership(&mut self, notices: Vec<ServiceNotice>) {
        for notice in notices {
            let text =
                notice.sentence(|ifindex| Some(self.network.interfaces.get(&ifindex)?.name.to_string()));
            self.emit(Event::Membership { notice, text });
        }
    }
}
