//! How a server is, in a word and a sentence.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use core::net::IpAddr;

use super::Director;
use crate::farm::Method;
use crate::health;
use crate::plan::{MemberState, ServerName};

impl Director {
    /// A server's state in a word: `up`, `down` or `draining`; and why it isn't up.
    pub fn state_of(
        &self,
        name: &ServerName,
        method: Method,
        state: &MemberState,
    ) -> (&'static str, Option<String>) {
        let member = &state.member;
        let service = self.farm.service(&name.service);
        if let Some(reason) = service.and_then(|service| self.why_not_here(service, member)) {
            return ("down", Some(reason));
        }
        if state.admin_draining {
            return ("draining", Some("drained by the operator".to_owned()));
        }
        if member.weight == 0 {
            return ("draining", Some("its weight is 0".to_owned()));
        }
        if member.draining {
            return ("draining", Some("silent: it no longer answers".to_owned()));
        }
        if !member.local && member.mac.is_none() {
            return ("down", Some(self.why_not_found(method, member.address)));
        }
        if member.ifindex.is_some_and(|ifindex| !self.links.contains_key(&ifindex)) {
            let why = "the interface that leads to it is gone, or not one of [engine] interfaces";
            return ("down", Some(why.to_owned()));
        }
        match state.health.state {
            health::State::Up => ("up", None),
            _ if self.other_host(name).is_some() => ("down", Some(self.why_not_up(name).to_owned())),
            health::State::Unknown => ("down", Some("not probed yet".to_owned())),
            health::State::Down => {
                let failure = self.healths.get(name).and_then(|health| health.last_failure());
                ("down", failure.map(|(_, failure)| failure.to_string()))
            }
        }
    }

    /// Why another host gets no new sessions, by what it says or doesn't.
    fn why_not_up(&self, name: &ServerName) -> &'static str {
        let host = self.hosts.as_ref().and_then(|hosts| hosts.state(&name.server));
        if host.as_ref().is_some_and(|host| host.alive && host.generation_differs) {
            return "it runs another configuration, and what it says is not heeded";
        }
        match host.map(|host| (host.alive, host.ready, host.heard_ms)) {
            Some((true, true, _)) => "it says that its own server fails",
            Some((true, false, _)) => "it says that it takes no part",
            Some((false, _, Some(_))) => "silent: it is not heard any more",
            _ => "it was never heard",
        }
    }

    pub(super) fn why_not_found(&self, method: Method, address: Option<IpAddr>) -> String {
        let Some(address) = address else {
            return "no answer".to_owned();
        };
        match (method, self.network.next_hop(address)) {
            (Method::L2, _) if self.network.route_to(address).is_none() => {
                format!("no interface here is on the LAN of {address}")
            }
            (Method::L2, _) => silent(address).to_owned(),
            (_, None) => format!("no route leads to {address}"),
            (_, Some(hop)) => {
                let next = hop.gateway.unwrap_or(address);
                format!("{} from {next}", silent(next))
            }
        }
    }
}

fn silent(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "no ARP answer" } else { "no neighbour advertisement" }
}
