//! Computes the data plane's tables from the state of the farm.

mod forwarding;
mod handoff;
mod members;
mod rings;
mod slots;
#[cfg(test)]
mod tests;
mod weight_scale;

pub use slots::Slots;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher24;

use handoff::CompiledRoutes;
use members::{chosen, configured, shares, working};
use rings::{OwnPlace, RingPolicy};
use weight_scale::Scale;

use crate::farm;
use crate::farm::Announce;
use crate::farm::membership::{LinkAddress, Member, RestoredServer, ServerRoute};
use crate::net::wire::Mac;
use crate::path::ports::HOLD_MS;
use crate::path::seed::Seed;
use crate::path::sessions::ticks;
use crate::path::tables::{
    Affinity, BEHIND_MAX, Forwarding, IdleTicks, NO_SERVER, ReplyOrigin, SERVICE_SERVERS_MAX, ServerEntry,
    Tables, Vip, VipKey,
};
use crate::pool::health;
use crate::pool::policy::{self, Fills, PacketPolicy, Weighted};
use crate::pool::serving::{Candidate, Condition};

/// Maximum number of VIPs of a farm: addresses, each with port and protocol.
pub const VIPS_MAX: usize = 64;

/// A service with the current state of its servers.
#[derive(Clone, Debug)]
pub struct ServiceState<'a> {
    /// Settings of the service.
    pub service: &'a farm::Service,
    pub members: Vec<MemberState>,
}

/// A server with everything that decides if it takes new sessions.
#[derive(Clone, Debug)]
pub struct MemberState {
    pub member: Member,
    pub health: health::HealthStatus,
    /// True if the operator drains the server.
    pub admin_draining: bool,
    /// True if the server's report refuses new sessions.
    pub refuses: bool,
    /// True if the server, another host or this one, has as many connections as it may have.
    pub is_full: bool,
    /// Share of the load that reaches this host; `None` if the policy computes no shares, so that
    /// the weight counts.
    pub share: Option<u16>,
    /// Tenths of the weight that are in force: [`crate::pool::FULL_WEIGHT`] unless slow start or a
    /// report reduces them.
    pub tenths: u16,
}

/// Input of a plan that concerns this host alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// Service addresses of an every-host farm that this host answers ARP for.
    pub owned: BTreeSet<IpAddr>,
    /// MAC addresses of the other hosts of an every-host farm.
    pub macs: BTreeSet<Mac>,
    /// True if a process on this host reads punted packets, for services that hand off connections.
    pub reads_punted: bool,
    /// Secret for the hash of requests.
    pub seed: Seed,
}

impl MemberState {
    /// True unless the server is full, or the operator or weight 0 drains it. The server may have
    /// failed or refuse sessions.
    fn is_wanted(&self) -> bool {
        !self.admin_draining && !self.is_full && self.member.weight > 0
    }

    /// Returns the input of the serving rule.
    fn candidate(&self) -> Candidate {
        let condition = if !self.is_wanted() {
            Condition::Unwanted
        } else if self.has_failed() {
            Condition::Failed { since_ms: self.failed_since_ms() }
        } else if !self.is_able() {
            Condition::Unknown
        } else if self.refuses {
            Condition::Refusing
        } else {
            Condition::Working
        };
        Candidate { backup: self.member.backup, condition }
    }

    /// True if the server is up and not silent. It may be drained or refuse new sessions.
    fn is_able(&self) -> bool {
        self.health.state == health::HealthState::Up && !self.member.draining
    }

    fn has_failed(&self) -> bool {
        self.health.state == health::HealthState::Down || self.member.draining
    }

    /// Time in milliseconds at which a server failed or became silent.
    fn failed_since_ms(&self) -> Option<u64> {
        let down = (self.health.state == health::HealthState::Down).then_some(self.health.since_ms);
        let silent = self.member.draining.then_some(self.member.since_ms);
        let since_ms = [down, silent].into_iter().flatten().min();
        since_ms.filter(|_| self.health.was_up)
    }
}

/// Tables, and the names of what their numbers stand for.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// Tables for the engine.
    pub tables: Arc<Tables>,
    pub services: BTreeMap<u16, PlannedService>,
    /// Sets of servers that routes name, by the number of their ring.
    pub pools: BTreeMap<u16, PlannedService>,
    pub servers: BTreeMap<u16, ServerName>,
    /// Servers without a slot, because the farm is full.
    pub left_out: Vec<ServerName>,
}

/// A service in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedService {
    pub name: String,
    /// Policy that filled the ring.
    pub policy: &'static str,
    pub ring_members: Vec<Weighted>,
    /// Members of the ring with their shares of the load that reaches this host.
    pub shares: Vec<Weighted>,
    /// Base of the hash table: the members and all servers that may replace them, with configured
    /// weights.
    configured: Vec<Weighted>,
    /// Servers of the base that get flows without a session: those that work, even if drained.
    working: Vec<Weighted>,
    /// True if too few servers work, so that the ring contains failed or refusing servers.
    pub degraded: bool,
    /// Slot of this host, and last hops to the other hosts, for an `every-host` service.
    standing: Option<OwnPlace>,
    /// Input of the compiled routes, for a service with handoff.
    compiled: Option<CompiledRoutes>,
}

/// Name of a server with its service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerName {
    /// Name of the service.
    pub service: String,
    /// Name of the server, unique within its service.
    pub server: String,
}

/// Reason why a farm has no valid plan. A farm from a checked file has a valid plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Two services have the same address, port and protocol.
    #[error("services {first} and {second} both have {protocol} {address}",
        protocol = .key.protocol, address = SocketAddr::new(.key.address, .key.port))]
    SharedVip {
        /// VIP that two services share.
        key: VipKey,
        first: String,
        second: String,
    },
    /// More VIPs than [`VIPS_MAX`].
    #[error("the farm has {0} service addresses; the maximum is {VIPS_MAX}")]
    TooManyVips(usize),
    /// Two services have the same name.
    #[error("two services are called {0}")]
    SharedName(String),
    /// An address and port of a server serves more than [`BEHIND_MAX`] service addresses.
    #[error(
        "{protocol} {address} serves {count} service addresses by method nat; the maximum is {BEHIND_MAX}: use another port of the server for some of them", protocol = .key.protocol,
        address = SocketAddr::new(.key.address, .key.port)
    )]
    TooManyBehind {
        /// Endpoint of the server.
        key: VipKey,
        count: usize,
    },
    /// No policy has this name.
    #[error("service {service}: there is no policy {policy}")]
    UnknownPolicy {
        service: String,
        /// Unknown name of the policy.
        policy: String,
    },
}

/// Identity of the entry for packets to a host that must not forward them again. No server has this
/// identity, since a server's name contains no slash.
fn last_identity(service: &str, server: &str) -> u64 {
    digest_of(&[service, "/", server, "/last"])
}

/// Identity of a server across restarts and reloads: a digest of the names of its service and
/// server.
pub fn identity(service: &str, server: &str) -> u64 {
    digest_of(&[service, "/", server])
}

/// Digest of a text. It is the same after restarts and on every host.
pub fn digest(text: &str) -> u64 {
    digest_of(&[text])
}

/// Digest of the concatenated parts.
fn digest_of(parts: &[&str]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(0x6576_656e_6572, 0x7365_7276_6572);
    parts.iter().for_each(|part| hasher.write(part.as_bytes()));
    hasher.finish()
}

/// Computes the tables for these services. The engine accepts packets on these interfaces.
///
/// The result depends on the arguments alone. New servers and VIPs get numbers in `slots`, which is
/// unchanged on an error. `previous` is the plan in force. Its rings are reused if their members
/// are unchanged, and for `every-host` services it supplies second chances. `fills` is a cache of
/// filled rings.
pub fn plan(
    services: &[ServiceState<'_>],
    interfaces: &[(u32, Mac)],
    hosts: &Hosts,
    slots: &mut Slots,
    fills: &mut Fills,
    previous: Option<&Plan>,
) -> Result<Plan, PlanError> {
    let policies = check(services)?;
    let numbers = slots.number_services(services.iter().map(|state| state.service));
    slots.retain_pools(numbers.iter().copied().zip(services.iter().map(|state| state.service)));
    let tables = Tables { interfaces: interfaces.iter().copied().collect(), ..Tables::default() };
    let mut planner = Planner { slots, fills, hosts, previous, tables, plan: Plan::default() };
    for ((state, number), packets) in services.iter().zip(numbers).zip(policies) {
        planner.service(state, number, packets);
    }
    planner.recognise_peers(services);
    let Planner { slots, tables, plan, .. } = planner;
    slots.retain(&tables);
    Ok(Plan { tables: Arc::new(tables), ..plan })
}

/// Checks the services before any number is assigned. Returns the services' policies.
fn check(services: &[ServiceState<'_>]) -> Result<Vec<&'static PacketPolicy>, PlanError> {
    let mut policies = Vec::new();
    let mut names = BTreeSet::new();
    let mut vips: BTreeMap<VipKey, &str> = BTreeMap::new();
    for ServiceState { service, .. } in services {
        if !names.insert(&service.name) {
            return Err(PlanError::SharedName(service.name.clone()));
        }
        policies.push(policy_of(service)?);
        for key in service.vip_keys() {
            if let Some(first) = vips.insert(key, &service.name) {
                return Err(PlanError::SharedVip { key, first: first.into(), second: service.name.clone() });
            }
        }
    }
    if vips.len() > VIPS_MAX {
        return Err(PlanError::TooManyVips(vips.len()));
    }
    let crowded = vips_behind(services.iter().map(|state| state.service));
    match crowded.into_iter().find(|(_, count)| *count > BEHIND_MAX) {
        Some((key, count)) => Err(PlanError::TooManyBehind { key, count }),
        None => Ok(policies),
    }
}

/// Returns the number of VIPs that each address and port of a `nat` server serves.
fn vips_behind<'a>(services: impl Iterator<Item = &'a farm::Service>) -> BTreeMap<VipKey, usize> {
    let mut behind = BTreeMap::new();
    for service in services.filter(|service| service.method.translates()) {
        for server in &service.servers {
            if let Some(to) = forwarding::endpoint(service, &server.name, server.address) {
                let key = VipKey { address: to.ip(), port: to.port(), protocol: service.protocol };
                *behind.entry(key).or_default() += service.addresses.len();
            }
        }
    }
    behind
}

/// Returns the servers in a running data plane's tables, which
/// [`crate::farm::membership::Membership::resume`] restores.
pub fn known(tables: &Tables, services: &[farm::Service]) -> Vec<RestoredServer> {
    let mut known = Vec::new();
    for server in tables.servers.values().filter(|server| !server.local) {
        let place = LinkAddress { mac: server.mac, ifindex: server.ifindex };
        let hop = match server.forwarding {
            Forwarding::Link => None,
            Forwarding::Nat { own, mtu, .. } => {
                Some(ServerRoute { place, own, tunnel: own, mtu, on_link: false })
            }
            Forwarding::Tunnel { from, mtu, .. } => {
                Some(ServerRoute { place, own: from, tunnel: from, mtu, on_link: false })
            }
        };
        let mac = server.mac.to_string();
        for service in services {
            let listed = service.servers.iter().map(|listed| &listed.name);
            let name = listed.chain([&mac]).find(|name| identity(&service.name, name) == server.identity);
            known.extend(name.map(|name| RestoredServer {
                service: service.name.clone(),
                server: name.clone(),
                place,
                hop,
            }));
        }
    }
    known
}

struct Planner<'a> {
    slots: &'a mut Slots,
    fills: &'a mut Fills,
    hosts: &'a Hosts,
    previous: Option<&'a Plan>,
    tables: Tables,
    /// The plan without its tables.
    plan: Plan,
}

/// A server with its slot.
struct WeightedServer<'a> {
    state: &'a MemberState,
    slot_weight: Weighted,
}

impl Planner<'_> {
    fn service(&mut self, state: &ServiceState<'_>, number: u16, packets: &'static PacketPolicy) {
        let service = state.service;
        let policy = service.policy;
        let servers = self.assign_slots(state);
        let (chosen, degraded) = chosen(service, &servers);
        for slot in chosen.iter().map(|member| member.slot) {
            if let Some(entry) = self.tables.servers.get_mut(&slot) {
                // Servers in a ring count as up, even if all servers have failed at once.
                entry.up = true;
            }
        }
        let shares = if packets.sharing.is_some() { shares(&servers, &chosen) } else { chosen.clone() };
        let standing = self.standing(service, &servers);
        let configured = configured(state, &servers, &chosen, |_| true);
        let working = working(service, &configured, &servers, &chosen);
        let members = RingPolicy {
            policy,
            packets,
            configured: &configured,
            working: &working,
            chosen: &chosen,
            shares: &shares,
        };
        let ring = rings::ring(self.previous, self.fills, number, &members, standing.as_ref());
        self.tables.rings.insert(number, ring);
        let own = standing.as_ref().map_or(NO_SERVER, |standing| standing.own);
        let handoff = service.method.hands_over().then(|| self.hand_off(state, number, &servers, &members));
        let (compiled, handoff) = handoff.unzip();
        for key in service.vip_keys() {
            let vip = Vip {
                id: self.slots.vip_id(key),
                service: number,
                announce: service.announce == Announce::Director
                    && (own == NO_SERVER || self.hosts.owned.contains(&key.address)),
                pick: packets.pick,
                idle: idle_ticks(service),
                own,
                stateless: service.stateless,
                affinity: affinity(service, key.address),
                handoff: handoff.map(|own| handoff::terms(state, key.address.is_ipv6(), own)),
            };
            self.tables.vips.insert(key, vip);
            self.add_reply_origins(vip.id, key, &servers);
        }
        let name = service.name.clone();
        let planned = PlannedService {
            name,
            policy,
            ring_members: chosen,
            configured,
            working,
            shares,
            degraded,
            standing,
            compiled,
        };
        self.plan.services.insert(number, planned);
        self.weigh(&service.name, &servers);
    }

    /// Sets the weights of those servers of a service that are in rings.
    fn weigh(&mut self, service: &str, servers: &[WeightedServer<'_>]) {
        let rings = self.plan.services.values().chain(self.plan.pools.values());
        let members = rings.filter(|ring| ring.name == service).flat_map(|ring| &ring.ring_members);
        let serving: BTreeSet<u16> = members.map(|member| member.slot).collect();
        for Weighted { slot, weight, .. } in servers.iter().map(|server| server.slot_weight) {
            if let Some(entry) = self.tables.servers.get_mut(&slot).filter(|_| serving.contains(&slot)) {
                entry.weight = weight;
            }
        }
    }

    /// Records that packets from the addresses and ports of these servers may be replies of this
    /// VIP.
    fn add_reply_origins(&mut self, vip: u16, key: VipKey, servers: &[WeightedServer<'_>]) {
        let tables = &mut self.tables;
        for server in servers.iter().map(|servers| servers.slot_weight.slot) {
            let Some(&ServerEntry { forwarding: Forwarding::Nat { to, .. }, .. }) =
                tables.servers.get(&server)
            else {
                continue;
            };
            let endpoint = VipKey { address: to.ip(), port: to.port(), protocol: key.protocol };
            let behind = tables.endpoints.entry(endpoint).or_default();
            behind.push(ReplyOrigin { vip, server });
            behind.sort_unstable();
        }
    }

    /// Assigns a slot and an entry to each server that packets can be forwarded to.
    fn assign_slots<'a>(&mut self, state: &'a ServiceState<'_>) -> Vec<WeightedServer<'a>> {
        let (mut servers, scale) = (Vec::new(), Scale::of(&state.members));
        for member in &state.members {
            let way =
                self.destination(&member.member).zip(forwarding::forwarding(state.service, &member.member));
            let Some(((mac, ifindex), way)) = way else {
                continue;
            };
            let Member { name: server, local, .. } = &member.member;
            let weight = scale.weight(member);
            let name = ServerName { service: state.service.name.clone(), server: server.clone() };
            let identity = identity(&name.service, server);
            let has_capacity = servers.len() < SERVICE_SERVERS_MAX;
            let Some(slot) = has_capacity.then(|| self.slots.server(identity)).flatten() else {
                self.plan.left_out.push(name);
                continue;
            };
            let up = !member.has_failed();
            let entry = ServerEntry { identity, mac, ifindex, weight: 0, up, local: *local, forwarding: way };
            self.tables.servers.insert(slot, entry);
            self.plan.servers.insert(slot, name);
            servers.push(WeightedServer {
                state: member,
                slot_weight: Weighted { slot, weight, seed: identity },
            });
        }
        servers.sort_unstable_by_key(|servers| servers.slot_weight.slot);
        servers
    }

    /// Returns the MAC address and interface of a server's frames. `None` if the MAC address is
    /// unknown, or the engine does not use the interface.
    fn destination(&self, member: &Member) -> Option<(Mac, u32)> {
        if member.local {
            return Some((Mac::default(), 0));
        }
        let ifindex = member.ifindex?;
        let reached = self.tables.interfaces.contains_key(&ifindex);
        member.mac.filter(|_| reached).map(|mac| (mac, ifindex))
    }

    /// Returns the slot of this host and the last hops to the other hosts. `None` if the service is
    /// not `every-host`, or this host is none of its servers. Every other host gets a second entry,
    /// for packets that it must not forward again. This includes hosts that have not reported,
    /// since they may still serve sessions.
    fn standing(&mut self, service: &farm::Service, servers: &[WeightedServer<'_>]) -> Option<OwnPlace> {
        let own = servers.iter().find(|servers| servers.state.member.local);
        let own = own.filter(|_| service.is_on_every_host())?.slot_weight.slot;
        let mut last_hops = BTreeMap::new();
        // With handoff, only the host that accepted a connection knows the connection's server, so
        // no other host's ring can find it.
        let others = servers.iter().filter(|_| !service.method.hands_over());
        for WeightedServer { state: MemberState { member, .. }, slot_weight } in others {
            let way = forwarding::last(member).filter(|_| !member.local);
            let Some((way, (mac, ifindex))) = way.zip(self.destination(member)) else {
                continue;
            };
            let identity = last_identity(&service.name, &member.name);
            if let Some(slot) = self.slots.server(identity) {
                let entry = ServerEntry {
                    identity,
                    mac,
                    ifindex,
                    weight: 1,
                    up: true,
                    local: false,
                    forwarding: way,
                };
                self.tables.servers.insert(slot, entry);
                last_hops.insert(slot_weight.slot, slot);
            }
        }
        Some(OwnPlace { own, last_hops })
    }

    /// Records the MAC addresses from which other hosts forward packets on the link. They are the
    /// known ones in `hosts`, and those of servers on the link.
    fn recognise_peers(&mut self, services: &[ServiceState<'_>]) {
        let passes_on =
            |state: &&ServiceState<'_>| state.service.is_on_every_host() && state.service.goes_by_link();
        for member in
            services.iter().filter(passes_on).flat_map(|state| &state.members).map(|state| &state.member)
        {
            self.tables.peers.extend(&self.hosts.macs);
            let on_link = !member.local && member.hop.is_some_and(|hop| hop.on_link);
            self.tables.peers.extend(member.mac.filter(|_| on_link));
        }
    }
}

fn policy_of(service: &farm::Service) -> Result<&'static PacketPolicy, PlanError> {
    policy::for_packets(service.policy).ok_or_else(|| PlanError::UnknownPolicy {
        service: service.name.clone(),
        policy: service.policy.into(),
    })
}

/// Returns the affinity of the clients of a service address.
fn affinity(service: &farm::Service, address: IpAddr) -> Option<Affinity> {
    service.affinity.map(|affinity| {
        let [four, six] = affinity.prefix_lens;
        let prefix_len = if address.is_ipv6() { six } else { four };
        Affinity::new(digest(&service.name) as u16, prefix_len, affinity.time_ms)
    })
}

fn idle_ticks(service: &farm::Service) -> IdleTicks {
    let timeouts = &service.timeouts;
    // A session owns its source-NAT port. The port must not be freed before the server forgets the
    // connection.
    let borrows_ports = service.method.translates() && service.source_nat;
    let least_ms = if borrows_ports { HOLD_MS } else { 0 };
    IdleTicks {
        syn: ticks(timeouts.syn_ms),
        tcp: ticks(timeouts.tcp_ms),
        half_closed: ticks(timeouts.half_closed_ms.max(least_ms)),
        closing: ticks(timeouts.closing_ms.max(least_ms)),
        udp: ticks(timeouts.udp_ms),
        udp_new: ticks(timeouts.udp_ms.min(timeouts.syn_ms)),
    }
}
