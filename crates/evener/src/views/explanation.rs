//! Explains the server of a flow, by core's own decisions.

mod request;

use std::net::{IpAddr, SocketAddr};

use evener_core::farm::choose::{
    ChoiceReason, ChosenServer, ConnectionRequest, NoServerReason, RequestContent,
};
use evener_core::farm::network::is_link_local;
use evener_core::farm::plan::ServerName;
use evener_core::path::affinity::AffinityClient;
use evener_core::path::sessions::{SessionKey, ms};
use evener_core::path::tables::{Forwarding, NO_SERVER, ServerEntry, Vip, VipKey};
use evener_core::pool::ServerState;
use serde::{Deserialize, Serialize};

use super::overrides::overrides;
use super::{cause, groups};
use crate::board::PublishedState;
use crate::board::request::{ExplainSubject, FlowQuery};

/// Server of a flow or a request, with the reasons.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Service, if the address belongs to one.
    pub service: Option<String>,
    /// Server, if there is one.
    pub server: Option<String>,
    /// Sentences, in the order of the decision.
    pub reasons: Vec<String>,
    /// True if the choice depends on something unknown: the request, or the client.
    #[serde(default)]
    pub pending: bool,
    /// Route of the request, if the explanation is for a request.
    #[serde(default)]
    pub request: Option<DispatchExplanation>,
}

/// Route of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchExplanation {
    /// Number of the matched route, from 1 in the order of the file. `None` if no route matches, so
    /// that all servers may get the request.
    pub route: Option<u64>,
    /// Pattern of the route, in words.
    pub pattern: Option<String>,
    /// Names of the servers that may get the request.
    pub servers: Vec<String>,
    /// True if the data plane punts the request to the daemon.
    pub punted: bool,
}

impl PublishedState {
    /// Explains the server of a flow or a request.
    pub(crate) fn explain(&self, subject: &ExplainSubject) -> Explanation {
        if let Some(explanation) = groups::explain(&self.groups(), subject) {
            return explanation;
        }
        let (mut explanation, flow) = match subject {
            ExplainSubject::Flow(flow) => (self.explain_flow(flow), Some(flow)),
            ExplainSubject::Request { request, flow, service } => {
                (self.explain_request(request, flow.as_ref(), service.as_deref()), flow.as_ref())
            }
        };
        if let Some(flow) = flow.filter(|_| explanation.service.is_some()) {
            explanation.reasons.extend(self.unseen(flow.client.ip()));
        }
        explanation
    }

    fn explain_flow(&self, flow: &FlowQuery) -> Explanation {
        let key = VipKey { address: flow.vip.ip(), port: flow.vip.port(), protocol: flow.protocol };
        let Some(vip) = self.snapshot.plan.tables.vips.get(&key) else {
            let reasons = vec![format!(
                "no service has {} {}: the packet goes up the director's own stack",
                flow.protocol, flow.vip
            )];
            return Explanation { reasons, ..Explanation::default() };
        };
        let service = self.snapshot.plan.services.get(&vip.service);
        let mut reasons =
            vec![format!("{} {} is service {}", flow.protocol, flow.vip, service.map_or("?", |s| &s.name))];
        let slot = self.explain_choice(flow, vip, &mut reasons);
        let server = slot.and_then(|slot| self.server_name(slot));
        reasons.extend(slot.map(|slot| self.explain_state(slot)).unwrap_or_default());
        if let Some(entry) = slot.and_then(|slot| self.snapshot.plan.tables.servers.get(&slot)) {
            reasons.extend(self.explain_way(Some(flow), entry));
        }
        Explanation {
            service: service.map(|service| service.name.clone()),
            server,
            reasons,
            pending: slot.is_none(),
            request: None,
        }
    }

    /// Explains the weight of a server that gets a flow, and its state if it isn't up.
    fn explain_state(&self, slot: u16) -> Vec<String> {
        let name = self.snapshot.plan.servers.get(&slot);
        let Some(server) = name.and_then(|name| self.snapshot.server(name)) else { return Vec::new() };
        let ServerName { service, server: name } = &server.name;
        let changes = overrides(self, service, Some(name));
        let changed = changes.iter().find(|change| change.key == "weight");
        let service = self.snapshot.farm.service(service);
        let weight = service.map(|service| cause::weight(service, server, changed, 0));
        let reason = server.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let state = server.state.name();
        let state = (server.state != ServerState::Up).then(|| format!("but {name} is {state}{reason}"));
        weight.into_iter().chain(state).collect()
    }

    fn explain_way(&self, flow: Option<&FlowQuery>, entry: &ServerEntry) -> Vec<String> {
        if entry.local {
            return vec!["that server is this host: the packet goes up its own stack".to_owned()];
        }
        let name =
            self.snapshot.network.interfaces.get(&entry.ifindex).map_or("?", |interface| &interface.name);
        let frames = format!("frames go to {} on {name}", entry.mac);
        let rewritten = match entry.forwarding {
            Forwarding::Link => None,
            Forwarding::Nat { to, own, source_nat: true, .. } => {
                Some(format!("it is rewritten to go from {own}, with a port of its own, to {to}"))
            }
            Forwarding::Nat { to, .. } => Some(format!("it is rewritten to go to {to}")),
            Forwarding::Tunnel { encapsulation, from, to, mtu, mark: _ } => Some(format!(
                "it is put into a packet from {from} to {to} ({encapsulation}), which may be {mtu} bytes long"
            )),
        };
        rewritten
            .into_iter()
            .chain([frames])
            .chain(flow.and_then(|flow| only_on_link(flow, entry, name)))
            .collect()
    }

    /// Returns the server's slot. `None` if the choice is still open.
    fn explain_choice(&self, flow: &FlowQuery, vip: &Vip, reasons: &mut Vec<String>) -> Option<u16> {
        if let Some(slot) = self.explain_session(flow, vip, reasons) {
            return Some(slot)
                .filter(|_| vip.handoff.is_none() || self.snapshot.plan.servers.contains_key(&slot));
        }
        if vip.handoff.is_some() {
            reasons.push(
                "there is no session: the choice waits for what the client asks for; --request foretells it"
                    .to_owned(),
            );
            return None;
        }
        let (memory, now) = (self.readings.memory(), self.readings.now());
        let client = AffinityClient::of(vip, flow.client.ip(), memory.sessions, memory.seed, now);
        if let Some((client, entry)) = client.and_then(|client| Some((client, client.value()?))) {
            let slot = client.server(&self.snapshot.plan.tables, memory.counts);
            let name = self.server_name(entry.server()).unwrap_or_else(|| "a removed server".to_owned());
            let left = ms(entry.expires().wrapping_sub(now)) / 1000;
            reasons.push(match slot {
                Some(_) => format!(
                    "there is no session: affinity sends the client to {name}, for {left} more seconds"
                ),
                None => format!("affinity would send the client to {name}, which accepts no new session now"),
            });
            if slot.is_some() {
                return slot;
            }
        }
        reasons.push("there is no session: a new one would be chosen by the policy".to_owned());
        let (slot, why) = self.peek(vip, Some(flow.client), RequestContent::Unread)?;
        reasons.push(why);
        Some(slot)
    }

    /// Returns the slot of a flow's session, if there is one.
    fn explain_session(&self, flow: &FlowQuery, vip: &Vip, reasons: &mut Vec<String>) -> Option<u16> {
        let memory = self.readings.memory();
        let key = self.session_key(flow, vip);
        let now = self.readings.now();
        let value = memory.sessions.find(key, key.hash(memory.seed), now)?.value;
        let server = match self.server_name(value.server()) {
            Some(name) => format!("its server is {name}"),
            None if vip.handoff.is_some() => {
                "this host's own process reads what the client asks for".to_owned()
            }
            None => "its server is gone".to_owned(),
        };
        reasons.push(format!(
            "there is a session, {}, for {} more seconds: {server}",
            value.state().name(),
            ms(value.expires().wrapping_sub(now)) / 1000,
        ));
        Some(value.server())
    }

    fn session_key(&self, flow: &FlowQuery, vip: &Vip) -> SessionKey {
        SessionKey { client: flow.client.ip(), port: flow.client.port(), vip: vip.id }
    }

    fn server_name(&self, slot: u16) -> Option<String> {
        self.snapshot.plan.servers.get(&slot).map(|name| name.server.clone())
    }

    /// Returns the policy's choice with the reason. `None` if it depends on something unknown.
    fn peek(
        &self,
        vip: &Vip,
        client: Option<SocketAddr>,
        content: RequestContent<'_>,
    ) -> Option<(u16, String)> {
        let plan = &self.snapshot.plan;
        let policy = plan.services.get(&vip.service).map_or("?", |service| service.policy);
        let request = ConnectionRequest { client, content, named: None };
        match plan.peek(&self.readings.memory(), vip, &request) {
            Ok(ChosenServer { server, name, why, .. }) => {
                let name = &name.server;
                let why = match why {
                    ChoiceReason::Hash { slot } => match client.zip(vip.affinity) {
                        Some((client, affinity)) => {
                            let network = affinity.client(client.ip());
                            format!(
                                "slot {slot} of the hash table is {name}, for all connections of {network}"
                            )
                        }
                        None => format!("slot {slot} of the hash table is {name}"),
                    },
                    ChoiceReason::Turn => format!("the position in the ring is {name}"),
                    ChoiceReason::Least => format!("{name} has the fewest sessions for its weight"),
                    ChoiceReason::Two { slot } => {
                        format!(
                            "{name} is the better of the two servers of slot {slot} of the hash table by sessions, weight and load"
                        )
                    }
                    ChoiceReason::Named => format!("{name} is named already"),
                };
                Some((server, format!("{policy}: {why}")))
            }
            Err(NoServerReason::NoServer) => {
                Some((NO_SERVER, format!("{policy}: no server accepts new sessions")))
            }
            Err(NoServerReason::Unread | NoServerReason::Unnamed) => None,
        }
    }

    /// Explains why packets of a client may never arrive, by this host's routes: no interface
    /// towards the client belongs to the director.
    fn unseen(&self, client: IpAddr) -> Option<String> {
        if self.snapshot.network.is_local(client) || is_link_local(client) {
            return None;
        }
        let Some(hop) = self.snapshot.network.next_hop(client) else {
            return Some(format!("but no route of this host leads to {client}"));
        };
        let taken = self.snapshot.plan.tables.interfaces.contains_key(&hop.ifindex);
        (!taken).then(|| {
            let name = self.snapshot.network.interfaces.get(&hop.ifindex).map_or("?", |interface| &interface.name);
            format!(
                "but by this host's routes {client} is reached by {name}, from which Evener receives no packets"
            )
        })
    }
}

/// Explains the limits of `nat` for a client with a link-local address, which may be on another
/// link than the server.
fn only_on_link(flow: &FlowQuery, entry: &ServerEntry, name: &str) -> Option<String> {
    let Forwarding::Nat { source_nat: false, .. } = entry.forwarding else { return None };
    matches!(flow.client.ip(), IpAddr::V6(client) if client.is_unicast_link_local()).then(|| {
        format!("the client is answered if it is on {name}; elsewhere its packets are dropped (link_local): source_nat = true serves it there")
    })
}
