//! The farm as it is at one moment, for whoever looks at it.
//!
//! A snapshot never changes: the director makes another one when something has. While tables are on
//! their way to the engine it keeps the last one, so what it shows is in force, with all that
//! belongs to it, and never half of a change.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::Director;
use super::groups::GroupSnapshot;
use super::handshakes::Handshakes;
use super::signals::SlotsByIdentity;
use crate::dns::{NameSnapshot, SharedList};
use crate::farm::membership::{Member, ReplyRefusal};
use crate::farm::network::Network;
use crate::farm::plan::{MemberState, Plan, ServerName};
use crate::farm::{self, Farm};
use crate::node::peers::KnownHost;
use crate::pool::health::{self, Health};
use crate::pool::reports::ReportsSnapshot;
use crate::pool::signals::Signals;
use crate::pool::{CheckHistory, PoolServer, ServerState};

/// A farm at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When it was made, in milliseconds. Counters and ages are as of then.
    pub at_ms: u64,
    /// The generation of tables that is in force; 0 before there is one.
    pub generation: u64,
    /// The one that is to be: greater where the engine has refused a change that is tried again.
    pub wanted: u64,
    /// The results of reloads.
    pub reloads: Reloads,
    /// The farm as its operator describes it.
    pub farm: Arc<Farm>,
    /// The network around this host.
    pub network: Arc<Network>,
    /// The meaning of the tables in force.
    pub plan: Arc<Plan>,
    /// The services, in the order of the farm.
    pub services: Arc<[ServiceSnapshot]>,
    /// The groups, by name.
    pub groups: Arc<[Arc<GroupSnapshot>]>,
    /// The names, in the order of the farm; none before queries are answered.
    pub names: Arc<SharedList<NameSnapshot>>,
    /// All hosts, where every one decides.
    pub hosts: Arc<[HostSnapshot]>,
    /// Answers to ARP and neighbour discovery that were not believed, by reason.
    pub refused: Arc<BTreeMap<&'static str, u64>>,
    /// The results of datagrams between hosts, by name, where every one decides; else empty.
    pub datagrams: Arc<BTreeMap<&'static str, u64>>,
}

/// The results of reloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloads {
    /// Whether one waits for the engine's answer. The rest of the snapshot is still that of the
    /// farm before.
    pub pending: bool,
    /// How many are in force, or were.
    pub done: u64,
    /// How many changed nothing.
    pub refused: u64,
    /// Why the last one changed nothing, if it did not.
    pub error: Option<String>,
}

/// A service's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSnapshot {
    /// Its name.
    pub name: String,
    /// Whether too few of its servers work, so that some serve that failed, or refuse.
    pub degraded: bool,
    /// Its servers, in order of name.
    pub servers: Vec<ServerSnapshot>,
}

/// A server's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSnapshot {
    /// Its name and its service's.
    pub name: ServerName,
    /// The member.
    pub member: Member,
    /// Its own address, as far as anybody knows it.
    pub address: Option<IpAddr>,
    /// Its number in the tables in force.
    pub slot: Option<u16>,
    /// How it is.
    pub state: ServerState,
    /// Why it isn't up, in words.
    pub reason: Option<String>,
    /// How much of its weight it has by now, in tenths.
    pub tenths: u16,
    /// The signals of its load.
    pub signals: Signals,
    /// Its score in the tables in force.
    pub score: u8,
    /// The state of its reports, if it is asked for them.
    pub reports: ReportsSnapshot,
    /// Why the last probe failed, while the server isn't up.
    pub probe_error: Option<String>,
    /// Probes that failed.
    pub probe_failures: u64,
    /// How often probes found it up or down, when it was not so before.
    pub state_changes: u64,
    /// The last results of its probes.
    pub checks: CheckHistory,
    /// When it became as it is, or when the daemon began to know it, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Its new connections within the last minute.
    pub handshakes: Handshakes,
}

/// A host's part, where every one decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSnapshot {
    /// The host as it is known.
    pub host: KnownHost,
    /// The services that its own server is up for.
    pub up: Vec<String>,
    /// The services that its operator drains it for.
    pub draining: Vec<String>,
    /// Addresses that are this host's to own, but that somebody else answers for; none of other
    /// hosts.
    pub put_off: BTreeSet<IpAddr>,
}

impl Snapshot {
    /// All servers, by service in the order of the farm.
    pub fn servers(&self) -> impl Iterator<Item = &ServerSnapshot> {
        self.services.iter().flat_map(|service| &service.servers)
    }

    /// A server.
    pub fn server(&self, name: &ServerName) -> Option<&ServerSnapshot> {
        let service = self.services.iter().find(|service| service.name == name.service)?;
        service.servers.iter().find(|server| server.name == *name)
    }

    /// The server of a slot by the tables in force.
    pub fn slot(&self, slot: u16) -> Option<&ServerName> {
        self.plan.servers.get(&slot)
    }
}

/// The context in which all servers are looked at.
struct SnapshotContext<'s> {
    slots: SlotsByIdentity,
    hosts: Vec<KnownHost>,
    /// The state of each server in the snapshot before, and since when.
    before: BTreeMap<&'s ServerName, (ServerState, u64)>,
    now_ms: u64,
}

impl Director {
    /// The farm at this moment; the same as before where nothing has changed since.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Makes another snapshot if something has changed, and nothing is on its way. The members of
    /// all services are those, or as they are now.
    pub(super) fn show(&mut self, members: Option<Vec<Vec<MemberState>>>, now_ms: u64) {
        if self.applying.is_some() {
            if self.is_reloading() && !self.snapshot.reloads.pending {
                Arc::make_mut(&mut self.snapshot).reloads.pending = true;
            }
        } else if self.has_changed {
            self.has_changed = false;
            self.snapshot = Arc::new(self.take_snapshot(members, now_ms));
        }
    }

    pub(super) fn take_snapshot(&self, members: Option<Vec<Vec<MemberState>>>, now_ms: u64) -> Snapshot {
        let before =
            self.snapshot.servers().map(|server| (&server.name, (server.state, server.since_unix_ms)));
        let (before, slots, hosts) = (before.collect(), self.slots_by_identity(), self.known_hosts());
        let seen = SnapshotContext { slots, hosts, before, now_ms };
        let members = members.unwrap_or_else(|| self.members(&seen.hosts));
        let services = self.farm.services.iter().zip(members);
        Snapshot {
            at_ms: now_ms,
            generation: self.generation_in_force,
            wanted: if self.retry_at_ms == u64::MAX { self.generation_in_force } else { self.generation },
            reloads: self.reloads.clone(),
            farm: Arc::clone(&self.farm),
            network: Arc::clone(&self.network),
            plan: Arc::clone(&self.plan),
            services: services.map(|(service, members)| self.see_service(service, members, &seen)).collect(),
            groups: Arc::clone(&self.snapshot.groups),
            names: Arc::clone(&self.snapshot.names),
            hosts: self.see_hosts(seen.hosts),
            refused: Arc::new(self.see_refused()),
            datagrams: Arc::new(self.hosts.as_ref().map(|hosts| hosts.peers.counted()).unwrap_or_default()),
        }
    }

    fn see_service(
        &self,
        service: &farm::Service,
        members: Vec<MemberState>,
        seen: &SnapshotContext<'_>,
    ) -> ServiceSnapshot {
        let planned = self.plan.services.values().find(|planned| planned.name == service.name);
        ServiceSnapshot {
            name: service.name.clone(),
            degraded: planned.is_some_and(|planned| planned.degraded),
            servers: members.into_iter().map(|state| self.see_server(service, state, seen)).collect(),
        }
    }

    fn see_server(
        &self,
        service: &farm::Service,
        state: MemberState,
        seen: &SnapshotContext<'_>,
    ) -> ServerSnapshot {
        let name = ServerName { service: service.name.clone(), server: state.member.name.clone() };
        let server = self.pools.server(&name);
        let health = server.map(PoolServer::health);
        let (how, reason) = self.state_of(&name, service, &state, &seen.hosts);
        let failed = health.filter(|_| state.health.state != health::HealthState::Up);
        let slot = seen.slots.of(&name);
        ServerSnapshot {
            slot,
            address: state.member.address.or_else(|| self.known_address(&state.member)),
            state: how,
            reason,
            tenths: state.tenths,
            signals: self.signals(&name, server, slot, &seen.hosts, seen.now_ms),
            score: slot.map_or(0, |slot| self.scores.score(slot)),
            reports: server.and_then(PoolServer::reports).unwrap_or_default(),
            probe_error: failed.and_then(Health::last_failure).map(|(_, failure)| failure.to_string()),
            probe_failures: health.map_or(0, Health::failures),
            state_changes: health.map_or(0, Health::changes),
            checks: health.map(Health::checks).unwrap_or_default(),
            since_unix_ms: match seen.before.get(&name) {
                Some((before, since)) if *before == how => *since,
                _ => self.unix_zero_ms.saturating_add(seen.now_ms),
            },
            handshakes: self.handshakes.of(&name),
            member: state.member,
            name,
        }
    }

    /// The own address of a server that was discovered by its MAC address, if the host's neighbour
    /// table has it.
    pub(super) fn known_address(&self, member: &Member) -> Option<IpAddr> {
        let (mac, ifindex) = (member.mac?, member.ifindex?);
        let services = || self.farm.services.iter().flat_map(|service| &service.addresses);
        let is_service = |address: &IpAddr| services().any(|vip| vip.ip() == *address);
        let mut there = self.network.neighbours.iter().filter(|(_, known)| **known == mac);
        there
            .find(|((link, address), _)| *link == ifindex && !is_service(address))
            .map(|((_, address), _)| *address)
    }

    fn see_hosts(&self, known: Vec<KnownHost>) -> Arc<[HostSnapshot]> {
        let Some(hosts) = &self.hosts else { return Arc::default() };
        let seen = known.into_iter().map(|host| HostSnapshot {
            up: self.services_of(host.up),
            draining: self.services_of(host.draining),
            put_off: if host.own { hosts.peers.put_off().clone() } else { BTreeSet::new() },
            host,
        });
        seen.collect()
    }

    fn see_refused(&self) -> BTreeMap<&'static str, u64> {
        let mut refused = BTreeMap::new();
        let services = self.farm.services.iter().map(|service| Some(service.name.as_str()));
        for service in services.chain([None]) {
            for (refusal, count) in self.membership.refused(service).iter() {
                *refused.entry(ReplyRefusal::name(refusal)).or_default() += count;
            }
        }
        refused
    }
}
