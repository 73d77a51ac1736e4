//! State of a server, with its reason in a sentence.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use core::net::IpAddr;

use super::Director;
use crate::farm::membership::Member;
use crate::farm::plan::{MemberState, ServerName};
use crate::farm::{Method, Service};
use crate::node::peers::KnownHost;
use crate::pool::health::HealthState;
use crate::pool::{PoolServer, ServerState};

impl Director {
    /// Returns the state of a server, and the reason if it isn't up.
    pub(super) fn state_of(
        &self,
        name: &ServerName,
        service: &Service,
        state: &MemberState,
        known: &[KnownHost],
    ) -> (ServerState, Option<String>) {
        let suspended = self.pools.server(name).filter(|server| server.operator_state().is_suspended());
        let (health, failure) = self.health_of(name, service, state, known);
        let drained = self.why_drained(name, state);
        let shown = ServerState::shown(suspended.is_some(), health, drained.is_some());
        let reason = match shown {
            ServerState::Maintenance => suspended.and_then(PoolServer::operator_reason).map(str::to_owned),
            ServerState::Down => failure,
            ServerState::Draining => drained.map(str::to_owned),
            ServerState::Up | ServerState::Silent => None,
        };
        (shown, reason)
    }

    /// Returns the health of a server, and the reason if it isn't up. A server that can't be
    /// reached is down.
    fn health_of(
        &self,
        name: &ServerName,
        service: &Service,
        state: &MemberState,
        known: &[KnownHost],
    ) -> (HealthState, Option<String>) {
        if let Some(reason) = self.why_unreachable(service, &state.member) {
            return (HealthState::Down, Some(reason));
        }
        let health = state.health.state;
        let reason = match health {
            HealthState::Up => None,
            _ if self.other_host(name).is_some() => Some(why_not_up(name, known)),
            HealthState::Unknown => Some("not probed yet".to_owned()),
            HealthState::Down => {
                let failure = self.pools.server(name).and_then(|server| server.health().last_failure());
                failure.map(|(_, failure)| failure.to_string())
            }
        };
        (health, reason)
    }

    fn why_unreachable(&self, service: &Service, member: &Member) -> Option<String> {
        if let Some(reason) = self.why_not_here(service, member) {
            return Some(reason);
        }
        if member.draining {
            return Some("silent: it no longer answers".to_owned());
        }
        if !member.local && member.mac.is_none() {
            return Some(self.why_not_found(service.method, member.address));
        }
        let is_gone = member.ifindex.is_some_and(|ifindex| !self.links.contains_key(&ifindex));
        is_gone
            .then(|| "the interface that leads to it is gone, or not one of [engine] interfaces".to_owned())
    }

    /// Reason why a server takes no new sessions, if any.
    fn why_drained(&self, name: &ServerName, state: &MemberState) -> Option<&'static str> {
        // If all servers refuse new sessions, refusals are ignored, and the tables contain servers
        // that refuse.
        let by_itself = state.refuses && !self.is_chosen(name);
        let by_operator = state.admin_draining.then_some("drained by the operator");
        let by_report = || by_itself.then_some("drained by its own report");
        let by_limit = || state.is_full.then_some("it has its max_connections");
        by_operator
            .or_else(by_limit)
            .or_else(by_report)
            .or((state.member.weight == 0).then_some("its weight is 0"))
    }

    /// True if the tables in force give new sessions to the server.
    fn is_chosen(&self, name: &ServerName) -> bool {
        let slot = self.plan.servers.iter().find(|(_, server)| *server == name).map(|(slot, _)| *slot);
        let mut services = self.plan.services.values().filter(|planned| planned.name == name.service);
        services.any(|planned| planned.ring_members.iter().any(|member| Some(member.slot) == slot))
    }

    pub(super) fn why_not_found(&self, method: Method, address: Option<IpAddr>) -> String {
        let Some(address) = address else {
            return "no answer".to_owned();
        };
        if method.needs_link_layer() {
            return match self.network.route_to(address) {
                None => format!("no interface here is on the LAN of {address}"),
                Some(_) => silent(address).to_owned(),
            };
        }
        let Some(hop) = self.network.next_hop(address) else {
            return format!("no route leads to {address}");
        };
        let next = hop.gateway.unwrap_or(address);
        format!("{} from {next}", silent(next))
    }
}

/// Reason why another host gets no new sessions, from its reports.
fn why_not_up(name: &ServerName, known: &[KnownHost]) -> String {
    let Some(host) = known.iter().find(|host| host.name == name.server) else {
        return "it is no host of this farm".to_owned();
    };
    if let Some(refusal) = host.refused {
        return refusal.to_string();
    }
    let why = match (host.alive, host.ready, host.received_ms) {
        (true, ..) if host.generation_differs => "it runs another configuration, so its reports are ignored",
        (true, true, _) => "it reports that its own server fails",
        (true, false, _) => "it reports that it takes no part",
        (false, _, Some(_)) => "silent: no more reports of it arrive",
        (false, _, None) => "no report of it has arrived yet",
    };
    why.to_owned()
}

fn silent(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "no ARP answer" } else { "no neighbour advertisement" }
}
