//! From what is known of the farm to the tables that packets meet.

mod forwarding;
mod handoff;
mod members;
mod rings;
mod slots;
#[cfg(test)]
mod tests;
mod weight_scale;

pub use slots::{SERVICES_MAX, Slots};

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
use crate::farm::membership::{LinkAddress, Member, RestoredServer, ServerRoute};
use crate::net::wire::Mac;
use crate::path::ports::HOLD_MS;
use crate::path::seed::Seed;
use crate::path::sessions::ticks;
use crate::path::tables::{
    BEHIND_MAX, Forwarding, IdleTicks, NO_SERVER, ReplyOrigin, SERVICE_SERVERS_MAX, ServerEntry, Tables, Vip,
    VipKey,
};
use crate::pool::health;
use crate::pool::policy::{self, Fills, PacketPolicy, Weighted};
use crate::pool::serving::{Candidate, Condition};

/// The most VIPs of a farm: addresses, each with a port and a protocol.
pub const VIPS_MAX: usize = 64;

/// A service and who its servers are at the moment.
#[derive(Clone, Debug)]
pub struct ServiceState<'a> {
    /// As the operator describes it.
    pub service: &'a farm::Service,
    /// Its servers.
    pub members: Vec<MemberState>,
}

/// A server and all that decides whether it takes new sessions.
#[derive(Clone, Debug)]
pub struct MemberState {
    /// From [`crate::farm::membership`].
    pub member: Member,
    /// From [`crate::pool::health`].
    pub health: health::HealthStatus,
    /// Whether the operator drains it.
    pub admin_draining: bool,
    /// Whether it wants no new sessions, by its own report.
    pub refuses: bool,
    /// Its share of what this host is asked for, where the policy goes by load; else its weight.
    pub share: Option<u16>,
    /// How much of its weight it has by now, in tenths: [`crate::pool::WHOLE`] but for a while
    /// after it came back.
    pub tenths: u16,
}

/// The part of a plan for this host among others, where every host decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// The service addresses that this host answers for.
    pub owned: BTreeSet<IpAddr>,
    /// The MACs that other hosts send with.
    pub macs: BTreeSet<Mac>,
    /// Whether a process here reads what the data plane doesn't decide, where connections are
    /// handed over.
    pub reads_punted: bool,
    /// A secret for the hash of what clients ask for.
    pub seed: Seed,
}

impl MemberState {
    /// Whether it is wanted for new sessions, working and willing or not: neither the operator nor
    /// its weight drains it.
    fn is_wanted(&self) -> bool {
        !self.admin_draining && self.member.weight > 0
    }

    /// As the rule of who serves has it.
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

    /// Whether it could take new sessions, if it wanted to.
    fn is_able(&self) -> bool {
        self.health.state == health::HealthState::Up && !self.member.draining
    }

    fn has_failed(&self) -> bool {
        self.health.state == health::HealthState::Down || self.member.draining
    }

    /// Since when a server that once worked does not, in milliseconds.
    fn failed_since_ms(&self) -> Option<u64> {
        let down = (self.health.state == health::HealthState::Down).then_some(self.health.since_ms);
        let silent = self.member.draining.then_some(self.member.since_ms);
        let since_ms = [down, silent].into_iter().flatten().min();
        since_ms.filter(|_| self.health.was_up)
    }
}

/// The tables, and what they mean.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// For the engine.
    pub tables: Arc<Tables>,
    /// The services, by their number.
    pub services: BTreeMap<u16, PlannedService>,
    /// The servers that routes name together, by the number of their ring.
    pub pools: BTreeMap<u16, PlannedService>,
    /// The servers, by their slot.
    pub servers: BTreeMap<u16, ServerName>,
    /// Servers that no room was left for: the farm is full.
    pub left_out: Vec<ServerName>,
}

/// A service in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedService {
    /// Its name.
    pub name: String,
    /// The policy that filled its ring.
    pub policy: &'static str,
    /// The members of its ring.
    pub ring_members: Vec<Weighted>,
    /// The same with their shares of what this host is asked for.
    pub shares: Vec<Weighted>,
    /// All that could serve in the stead of its members, and they themselves, at their configured
    /// weights: the base of its hash table.
    configured: Vec<Weighted>,
    /// The servers of the base that work, drained ones included: flows without a session are
    /// theirs.
    working: Vec<Weighted>,
    /// Whether too few of its servers work, so that the ring has some that failed, or refuse.
    pub degraded: bool,
    /// This host among them, where every host decides.
    standing: Option<OwnPlace>,
    /// The source of its routes, where connections are handed over.
    compiled: Option<CompiledRoutes>,
}

/// A server's name and its service's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerName {
    /// The service's.
    pub service: String,
    /// The server's, unique within its service.
    pub server: String,
}

/// Why there is no plan. A checked configuration meets none of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Two services have the same address, port and protocol.
    #[error("services {first} and {second} both have {protocol} {address}",
        protocol = .key.protocol, address = SocketAddr::new(.key.address, .key.port))]
    SharedVip {
        /// The key that they share.
        key: VipKey,
        /// One service.
        first: String,
        /// The other.
        second: String,
    },
    /// More VIPs than [`VIPS_MAX`].
    #[error("the farm has {0} service addresses; the most is {VIPS_MAX}")]
    TooManyVips(usize),
    /// Two services have the same name.
    #[error("two services are called {0}")]
    SharedName(String),
    /// More service addresses than [`BEHIND_MAX`] on one server endpoint.
    #[error(
        "{protocol} {address} serves {count} service addresses by method nat; the most is {BEHIND_MAX}: give the \
         server another port for some of them", protocol = .key.protocol,
        address = SocketAddr::new(.key.address, .key.port)
    )]
    TooManyBehind {
        /// The server's endpoint.
        key: VipKey,
        /// How many VIPs.
        count: usize,
    },
    /// No policy has this name.
    #[error("service {service} asks for the policy {policy}, which there isn't")]
    UnknownPolicy {
        /// The service.
        service: String,
        /// The name.
        policy: String,
    },
}

/// The name of the way to a host that is the last one that a packet takes; no server is called so.
fn last_identity(service: &str, server: &str) -> u64 {
    digest_of(&[service, "/", server, "/last"])
}

/// The identity of a server through restarts and reloads: a digest of its names.
pub fn identity(service: &str, server: &str) -> u64 {
    digest_of(&[service, "/", server])
}

/// A number that stands for a text: the same after restarts, and on every host.
pub fn digest(text: &str) -> u64 {
    digest_of(&[text])
}

/// The same of a text in parts.
fn digest_of(parts: &[&str]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(0x6576_656e_6572, 0x7365_7276_6572);
    parts.iter().for_each(|part| hasher.write(part.as_bytes()));
    hasher.finish()
}

/// Makes the tables for these services, with packets taken from these interfaces.
///
/// The result depends on the arguments alone. `slots` gains what is new; on an error it is left as
/// it was. `previous` is what was in force: rings whose members did not change are taken from it,
/// and where every host decides it is remembered for who isn't known any more. `fills` makes no
/// difference but to the time it takes.
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

/// Finds what no plan can be made of, before anything is numbered; gives how the services' policies
/// are carried out.
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

/// How many VIPs each endpoint of the listed servers stands behind.
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

/// Which servers of a running data plane are whose, for
/// [`crate::farm::membership::Membership::resume`].
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
    /// All but the tables.
    plan: Plan,
}

/// A server that has its slot.
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
                // Servers that all failed at once are given the benefit of the doubt.
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
                announce: service.announce && (own == NO_SERVER || self.hosts.owned.contains(&key.address)),
                pick: packets.pick,
                idle: idle_ticks(service),
                own,
                stateless: service.stateless,
                handoff: handoff.map(|own| handoff::terms(state, key.address.is_ipv6(), own)),
            };
            self.tables.vips.insert(key, vip);
            self.stand_behind(vip.id, key, &servers);
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

    /// Gives servers that rings have their weights.
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

    /// Notes that packets from these servers' own endpoints may be answers of this VIP.
    fn stand_behind(&mut self, vip: u16, key: VipKey, servers: &[WeightedServer<'_>]) {
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

    /// Gives every server that packets can be sent to its slot and entry, by slot.
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

    /// Where a server's frames go, if that is known and an interface of ours leads there.
    fn destination(&self, member: &Member) -> Option<(Mac, u32)> {
        if member.local {
            return Some((Mac::default(), 0));
        }
        let ifindex = member.ifindex?;
        let reached = self.tables.interfaces.contains_key(&ifindex);
        member.mac.filter(|_| reached).map(|mac| (mac, ifindex))
    }

    /// Where this host stands among the servers, if every host decides and this is one of them.
    /// Every other host gets an entry more: the way to it that is a packet's last. One whose daemon
    /// is silent may still serve what it has.
    fn standing(&mut self, service: &farm::Service, servers: &[WeightedServer<'_>]) -> Option<OwnPlace> {
        let own = servers.iter().find(|servers| servers.state.member.local);
        let own = own.filter(|_| service.is_on_every_host())?.slot_weight.slot;
        let mut last_ways = BTreeMap::new();
        // A connection that was handed over is known by the host that did: a ring that goes by hash
        // names none.
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
                last_ways.insert(slot_weight.slot, slot);
            }
        }
        Some(OwnPlace { own, last_ways })
    }

    /// Notes by which MACs other hosts are known that pass packets on by the link: those that they
    /// name, and those that the link does.
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

fn idle_ticks(service: &farm::Service) -> IdleTicks {
    let timeouts = &service.timeouts;
    // A session goes with its port, and takes it along no sooner than the server lets go of the
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
