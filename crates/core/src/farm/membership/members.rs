//! The servers of one service.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;

use super::binding::{Binding, LinkAddress};
use super::event::{MembershipEvent, Removal, ReplyRefusal};
use super::neighbour_reply::NeighbourReply;
use super::record::ServerRecord;
use super::refusal_log::{RefusalCounts, RefusalLog};
use super::surroundings::LocalNetwork;
use super::{Member, RestoredServer, ServerOrigin};
use crate::farm::{self, Allow, Announce};
use crate::net::wire::Mac;
use crate::path::tables::SERVICE_SERVERS_MAX;

/// Interval between the first two rounds, in milliseconds. It is short, so that an answer that is
/// lost at the start is soon requested again.
const SECOND_ROUND_MS: u64 = 1_000;

/// The servers of one service, by name.
#[derive(Clone, Debug)]
pub(super) struct ServiceMembers {
    service: farm::Service,
    records: BTreeMap<String, ServerRecord>,
    /// Hosts that answer for the addresses on the `allow` list, by address.
    allowed: BTreeMap<IpAddr, Binding>,
    /// Hosts that answered for the service address before all listed and allowed hosts were
    /// resolved.
    waiting: BTreeMap<Mac, NeighbourReply>,
    server_refusals: RefusalLog,
    rounds_sent: u32,
    next_round_ms: u64,
}

impl ServiceMembers {
    pub(super) fn new(service: &farm::Service, around: &LocalNetwork, now_ms: u64) -> ServiceMembers {
        let mut members = ServiceMembers {
            service: service.clone(),
            records: BTreeMap::new(),
            allowed: BTreeMap::new(),
            waiting: BTreeMap::new(),
            server_refusals: RefusalLog::default(),
            rounds_sent: 0,
            next_round_ms: now_ms,
        };
        members.configure(around, now_ms);
        members
    }

    pub(super) fn reconfigure(
        &mut self,
        service: &farm::Service,
        around: &LocalNetwork,
        now_ms: u64,
    ) -> Vec<MembershipEvent> {
        if self.service == *service {
            return Vec::new();
        }
        self.service = service.clone();
        self.configure(around, now_ms)
    }

    /// Applies the service's settings and starts new rounds. Servers that the settings still allow
    /// stay.
    fn configure(&mut self, around: &LocalNetwork, now_ms: u64) -> Vec<MembershipEvent> {
        let mut old = core::mem::take(&mut self.records);
        for server in &self.service.servers {
            let known = old.remove(&server.name);
            let record = match known {
                Some(mut record) if record.is_listed_as(server, self.service.is_routed()) => {
                    (record.weight, record.backup) = (server.weight, server.backup);
                    record
                }
                _ => ServerRecord::listed(server, self.service.is_routed(), around, now_ms),
            };
            self.records.insert(record.name.clone(), record);
        }
        let mut events = Vec::new();
        for (server, record) in old {
            if record.source == ServerOrigin::Discovered && self.discovers() {
                self.records.insert(server, record);
            } else {
                events.push(MembershipEvent::Removed { server, why: Removal::Configuration });
            }
        }
        let mut known = core::mem::take(&mut self.allowed);
        let addresses = self.service.allow.iter().filter_map(|allow| match allow {
            Allow::Address(address) => Some(*address),
            Allow::Mac(_) => None,
        });
        self.allowed = addresses.map(|a| (a, known.remove(&a).unwrap_or_default())).collect();
        self.server_refusals.set_max(self.service.servers_max.saturating_mul(4));
        self.start_round(now_ms);
        events.extend(self.remove_disallowed());
        events
    }

    pub(super) fn resume(&mut self, known: &RestoredServer, around: &LocalNetwork, now_ms: u64) {
        let RestoredServer { server: name, place, .. } = known;
        let record = self.records.get_mut(name);
        // The place of a server behind a router has the router's MAC address.
        let misplaced =
            around.excludes(place.mac) && !record.as_ref().is_some_and(|record| record.is_routed());
        if misplaced || !around.interfaces.contains_key(&place.ifindex) {
            return;
        }
        if let Some(record) = record {
            record.resume(known);
        } else if self.discovers() && *name == place.mac.to_string() && !self.is_full() {
            self.records.insert(name.clone(), ServerRecord::discovered(*place, now_ms));
        }
    }

    pub(super) fn surroundings_changed(
        &mut self,
        around: &LocalNetwork,
        now_ms: u64,
    ) -> Vec<MembershipEvent> {
        self.waiting.retain(|mac, _| !around.excludes(*mac));
        let events = self.records.values_mut().flat_map(|record| record.surroundings_changed(around, now_ms));
        let events = events.collect();
        self.records.retain(|_, record| record.source == ServerOrigin::Listed || !record.is_missing());
        events
    }

    /// Restarts the rounds, for instance after a change of the director's interfaces.
    pub(super) fn start_round(&mut self, now_ms: u64) {
        self.rounds_sent = 0;
        self.next_round_ms = now_ms;
    }

    /// True if the service needs answers for this address.
    pub(super) fn is_concerned(&self, address: IpAddr) -> bool {
        self.has_address(address)
            || self.allowed.contains_key(&address)
            || self.records.values().any(|record| record.address == Some(address))
    }

    /// True if the service has this address.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.service.addresses.iter().any(|service| service.ip() == address)
    }

    /// Applies an answer that [`LocalNetwork::judge`] accepted.
    pub(super) fn note_reply(&mut self, now_ms: u64, reply: &NeighbourReply) -> Vec<MembershipEvent> {
        let mut events = Vec::new();
        if let Some(binding) = self.allowed.get_mut(&reply.address) {
            binding.note_reply(reply.place);
        }
        let own: Vec<String> = self.names(|record| record.address_to_resolve() == Some(reply.address));
        for name in own {
            events.extend(self.note_listed(&name, reply, now_ms));
        }
        if self.has_address(reply.address) {
            events.extend(self.note_discovered(reply, now_ms));
        }
        if !self.waiting.is_empty() && !self.is_unresolved() {
            events.extend(self.admit_waiting(now_ms));
        }
        events
    }

    /// Applies an answer for a listed server's own address.
    fn note_listed(&mut self, name: &str, reply: &NeighbourReply, now_ms: u64) -> Vec<MembershipEvent> {
        let Some(record) = self.records.get_mut(name) else {
            return Vec::new();
        };
        if record.fixed.is_some_and(|fixed| fixed != reply.place.mac) {
            return self.server_refusals.refuse(*reply, ReplyRefusal::NotAllowed).into_iter().collect();
        }
        let mut events: Vec<MembershipEvent> = record.note_reply(reply.place, now_ms).into_iter().collect();
        events.extend(self.merge(name));
        events
    }

    /// Applies an answer for a service address (LSMAC, section 3.1).
    fn note_discovered(&mut self, reply: &NeighbourReply, now_ms: u64) -> Vec<MembershipEvent> {
        if !self.discovers() {
            // In an every-host farm, an answer of another host for a service address that it owns
            // is no conflict.
            let conflicting = self.service.announce == Announce::Director && !self.service.is_on_every_host();
            return conflicting
                .then(|| self.server_refusals.refuse(*reply, ReplyRefusal::Announced))
                .flatten()
                .into_iter()
                .collect();
        }
        let LinkAddress { mac, .. } = reply.place;
        let known = self.names(|record| record.has_mac(mac));
        if !known.is_empty() {
            let same_reply =
                known.iter().filter_map(|name| self.records.get_mut(name)?.note_reply(reply.place, now_ms));
            return same_reply.collect();
        }
        let has_capacity = self.waiting.len() < self.service.servers_max.saturating_mul(4);
        if self.rounds_sent <= 1 && self.is_unresolved() && has_capacity {
            self.waiting.insert(mac, *reply);
            return Vec::new();
        }
        self.admit(*reply, now_ms).into_iter().collect()
    }

    /// Adds a discovered server, if it is allowed.
    fn admit(&mut self, reply: NeighbourReply, now_ms: u64) -> Option<MembershipEvent> {
        let place = reply.place;
        if self.records.values().any(|record| record.has_mac(place.mac)) {
            return None;
        }
        if !self.is_allowed(place.mac) {
            return self.server_refusals.refuse(reply, ReplyRefusal::NotAllowed);
        }
        let mut record = ServerRecord::discovered(place, now_ms);
        if self.is_full() || self.records.contains_key(&record.name) {
            return self.server_refusals.refuse(reply, ReplyRefusal::Full);
        }
        self.server_refusals.forget(place.mac);
        record.note_reply(place, now_ms);
        let event = MembershipEvent::Joined { server: record.name.clone(), place };
        self.records.insert(record.name.clone(), record);
        Some(event)
    }

    fn admit_waiting(&mut self, now_ms: u64) -> Vec<MembershipEvent> {
        let waiting = core::mem::take(&mut self.waiting);
        waiting.into_values().filter_map(|reply| self.admit(reply, now_ms)).collect()
    }

    /// Removes a discovered server whose MAC address turns out to be a listed server's.
    fn merge(&mut self, listed: &str) -> Option<MembershipEvent> {
        let place = self.records.get(listed)?.place()?;
        let name = place.mac.to_string();
        let twin = self.records.get(&name)?;
        if twin.source == ServerOrigin::Listed {
            return None;
        }
        self.records.remove(&name);
        Some(MembershipEvent::Removed { server: name, why: Removal::Listed(listed.into()) })
    }

    pub(super) fn next_round_at(&self) -> Option<u64> {
        // Servers that are found by routes are not resolved in rounds. The check comes first, since
        // there may be many of them.
        let listed_unanswered = || {
            !self.service.is_routed()
                && self.records.values().any(|record| record.address_to_resolve().is_some())
        };
        let sends_round = self.discovers() || listed_unanswered();
        sends_round.then_some(self.next_round_ms)
    }

    /// Ends a round and starts the next round. Adds the addresses that must be requested to
    /// `requests`.
    pub(super) fn round(&mut self, now_ms: u64, requests: &mut BTreeSet<IpAddr>) -> Vec<MembershipEvent> {
        let events = if self.rounds_sent > 0 { self.end_round(now_ms) } else { Vec::new() };
        self.rounds_sent = self.rounds_sent.saturating_add(1);
        let interval = self.service.discover_interval_ms;
        let wait = if self.rounds_sent == 1 { interval.min(SECOND_ROUND_MS) } else { interval };
        self.next_round_ms = now_ms.saturating_add(wait.max(1));
        if self.discovers() {
            requests.extend(self.service.addresses.iter().map(|address| address.ip()));
        }
        requests.extend(self.records.values().filter_map(ServerRecord::address_to_resolve));
        requests.extend(self.allowed.keys());
        events
    }

    fn end_round(&mut self, now_ms: u64) -> Vec<MembershipEvent> {
        let rounds = self.service.discover_rounds.max(1);
        let mut events = self.admit_waiting(now_ms);
        for binding in self.allowed.values_mut() {
            binding.end_round(rounds);
        }
        events.extend(self.records.values_mut().filter_map(|record| record.end_round(rounds, now_ms)));
        for name in self.names(|record| record.source == ServerOrigin::Listed) {
            events.extend(self.merge(&name));
        }
        // If all servers are silent at once, the likely cause is the director's own link.
        if !self.service.keep_last || self.records.values().any(ServerRecord::is_present) {
            for server in self.names(|record| record.is_gone(rounds)) {
                self.records.remove(&server);
                events.push(MembershipEvent::Removed { server, why: Removal::Silent });
            }
        }
        events.extend(self.remove_disallowed());
        events
    }

    /// Removes discovered servers that the `allow` list no longer names. Does nothing until all
    /// addresses of the list are resolved.
    fn remove_disallowed(&mut self) -> Vec<MembershipEvent> {
        if self.allowed.values().any(|binding| binding.place().is_none()) {
            return Vec::new();
        }
        let discovered = |record: &ServerRecord| record.source == ServerOrigin::Discovered;
        let barred = self.names(|record| {
            discovered(record) && !record.place().is_some_and(|place| self.is_allowed(place.mac))
        });
        let remove = |server: String| {
            self.records.remove(&server);
            MembershipEvent::Removed { server, why: Removal::Configuration }
        };
        barred.into_iter().map(remove).collect()
    }

    pub(super) fn members(&self) -> Vec<Member> {
        self.records.values().map(ServerRecord::member).collect()
    }

    pub(super) fn member(&self, server: &str) -> Option<Member> {
        self.records.get(server).map(ServerRecord::member)
    }

    pub(super) fn refused(&self) -> RefusalCounts {
        self.server_refusals.refused()
    }

    fn discovers(&self) -> bool {
        self.service.discover.is_some()
    }

    fn is_full(&self) -> bool {
        self.records.len() >= self.service.servers_max.min(SERVICE_SERVERS_MAX)
    }

    fn is_allowed(&self, mac: Mac) -> bool {
        let holds =
            |address| self.allowed.get(address).and_then(Binding::place).is_some_and(|p| p.mac == mac);
        self.service.allow.is_empty()
            || self.service.allow.iter().any(|allow| match allow {
                Allow::Mac(allowed) => *allowed == mac,
                Allow::Address(address) => holds(address),
            })
    }

    /// True if a listed or allowed host is not resolved yet.
    fn is_unresolved(&self) -> bool {
        self.records.values().any(ServerRecord::is_missing)
            || self.allowed.values().any(|binding| binding.place().is_none())
    }

    fn names(&self, which: impl Fn(&ServerRecord) -> bool) -> Vec<String> {
        self.records.values().filter(|record| which(record)).map(|record| record.name.clone()).collect()
    }
}
