//! State of the farm at one time, for status output and metrics.
//!
//! Snapshots are immutable; the director replaces them when something changes. While the engine
//! applies tables the last snapshot stays, so a snapshot always matches tables in force.

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
use crate::node::peers::{HostedServer, KnownHost};
use crate::pool::health::{self, Health};
use crate::pool::reports::ReportsSnapshot;
use crate::pool::signals::Signals;
use crate::pool::{CheckHistory, PoolServer, ServerState};

/// State of a farm at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Time of the snapshot in milliseconds. Counters and ages refer to it.
    pub at_ms: u64,
    /// Generation of the tables in force; 0 before the first generation.
    pub generation: u64,
    /// Generation that should be in force; greater than `generation` while a refused change waits
    /// for its retry.
    pub wanted: u64,
    /// Results of all reloads until now.
    pub reloads: Reloads,
    pub farm: Arc<Farm>,
    pub network: Arc<Network>,
    /// Plan of the tables in force.
    pub plan: Arc<Plan>,
    /// Services in the order of the farm.
    pub services: Arc<[ServiceSnapshot]>,
    /// Groups sorted by name.
    pub groups: Arc<[Arc<GroupSnapshot>]>,
    /// Names in the order of the farm; empty before queries are answered.
    pub names: Arc<SharedList<NameSnapshot>>,
    /// All hosts of an every-host farm.
    pub hosts: Arc<[HostSnapshot]>,
    /// Rejected answers to ARP and neighbour discovery, by reason.
    pub refused: Arc<BTreeMap<&'static str, u64>>,
    /// Datagrams between hosts by result; empty without `every-host`.
    pub datagrams: Arc<BTreeMap<&'static str, u64>>,
}

/// Counters of reloads, and the last refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloads {
    /// True while a reload waits for the engine. The snapshot still shows the previous farm.
    pub pending: bool,
    /// Number of reloads put in force.
    pub done: u64,
    /// Number of refused reloads.
    pub refused: u64,
    /// Reason of the last refusal, if the last reload was refused.
    pub error: Option<String>,
}

/// State of a service at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSnapshot {
    pub name: String,
    /// True if too few servers of the service work, so servers that failed or refuse new sessions
    /// get new sessions, too.
    pub degraded: bool,
    /// Servers sorted by name.
    pub servers: Vec<ServerSnapshot>,
}

/// State of a server at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSnapshot {
    pub name: ServerName,
    pub member: Member,
    /// Own address of the server, if known.
    pub address: Option<IpAddr>,
    /// Slot in the tables in force.
    pub slot: Option<u16>,
    pub state: ServerState,
    /// Reason in words why the server isn't up; `None` if it is up.
    pub reason: Option<String>,
    /// Tenths of the configured weight that remain after slow start and reports.
    pub tenths: u16,
    pub signals: Signals,
    /// Report of another host of an every-host farm on its server. `None` for other servers, and
    /// before the first report.
    pub hosted: Option<HostedServer>,
    /// Score in the tables in force.
    pub score: u8,
    /// State of the server's reports; empty if reports are not configured.
    pub reports: ReportsSnapshot,
    /// Failure of the last probe, while the server isn't up.
    pub probe_error: Option<String>,
    /// Number of failed probes.
    pub probe_failures: u64,
    /// Number of changes between up and down by probes.
    pub state_changes: u64,
    pub checks: CheckHistory,
    /// Time since which the server has its state, in milliseconds since 1970. For a server without
    /// a change of state: the time at which the daemon first saw the server.
    pub since_unix_ms: u64,
    /// New connections within the last minute.
    pub handshakes: Handshakes,
}

/// State of a host of an every-host farm at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSnapshot {
    pub host: KnownHost,
    /// Services for which the host is up.
    pub up: Vec<String>,
    /// Services for which the host is drained.
    pub draining: Vec<String>,
    /// Addresses that this host should own but another host answers for; empty for other hosts.
    pub put_off: BTreeSet<IpAddr>,
}

impl Snapshot {
    /// Returns the servers of all services, in the order of the farm.
    pub fn servers(&self) -> impl Iterator<Item = &ServerSnapshot> {
        self.services.iter().flat_map(|service| &service.servers)
    }

    pub fn server(&self, name: &ServerName) -> Option<&ServerSnapshot> {
        let service = self.services.iter().find(|service| service.name == name.service)?;
        service.servers.iter().find(|server| server.name == *name)
    }

    /// Returns the server that has this slot in the tables in force.
    pub fn slot(&self, slot: u16) -> Option<&ServerName> {
        self.plan.servers.get(&slot)
    }
}

/// Common input for all servers of a snapshot.
struct SnapshotContext<'s> {
    slots: SlotsByIdentity,
    hosts: Vec<KnownHost>,
    /// State of each server in the previous snapshot, and its time.
    before: BTreeMap<&'s ServerName, (ServerState, u64)>,
    now_ms: u64,
}

impl Director {
    /// Returns the last snapshot.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Replaces the snapshot if something has changed and no change is in progress. `members` are
    /// the members of all services; `None` stands for the current ones.
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
            hosted: self.other_host(&name).and_then(|_| self.hosted_server(&seen.hosts, &name)).copied(),
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

    /// Returns the own address of a server that was discovered by its MAC address; `None` if this
    /// host's neighbour table lacks it.
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
            up: self.services_of(&host, |server| server.is_up),
            draining: self.services_of(&host, |server| server.is_drained),
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
