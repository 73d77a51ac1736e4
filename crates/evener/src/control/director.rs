//! The director's state: what the file says, who answers, who is healthy, and what the engine was told.
//!
//! Everything is decided in core; this holds the pieces together and carries each conclusion to the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evener_core::farm::{HealthKind, Method, Service};
use evener_core::health::{Failure, Health, State, Status};
use evener_core::membership::{Member, Membership, Notice};
use evener_core::peers::Peers;
use evener_core::plan::{self, MemberState, Plan, PlanError, ServerName, ServiceState, Slots, identity};
use evener_core::sessions::{SessionKey, Value};
use evener_core::tables::Tables;
use evener_core::wire::Mac;
use evener_dataplane::{Engine, EngineError};

use super::every_host;
use super::handoff::Handing;
use super::hosts::Hosts;
use super::settings::is_reverse_path_strict;
use super::telling::Telling;
use super::totals::Totals;
use super::watch::Told;
use super::ways::{Ways, why_not_itself};
use crate::config::Config;
use crate::network::Network;
use crate::probe::{Hop, Target, Way};
use crate::record::Names;

/// A probe that is due.
#[derive(Clone, Debug)]
pub(super) struct Due {
    /// Whose.
    pub(super) server: ServerName,
    /// Where to.
    pub(super) target: Target,
    /// What to do, and how long it may take.
    pub(super) settings: evener_core::farm::Health,
}

/// What went wrong while a conclusion was carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectError {
    /// The farm can't be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The farm as the director sees it.
pub(super) struct Director {
    pub(super) config: Config,
    pub(super) engine: Box<dyn Engine>,
    pub(super) network: Network,
    pub(super) interfaces: BTreeMap<u32, Mac>,
    pub(super) membership: Membership,
    pub(super) healths: BTreeMap<ServerName, Health>,
    pub(super) ways: Ways,
    /// Servers that a probe can be sent to: whose MAC is known, or who are this host.
    reachable: BTreeSet<ServerName>,
    pub(super) drained: BTreeSet<ServerName>,
    /// The other hosts, where every one decides.
    pub(super) hosts: Option<Hosts>,
    pub(super) handing: Handing,
    pub(super) telling: Telling,
    pub(super) totals: Totals,
    pub(super) told: Told,
    pub(super) plan: Plan,
    slots: Slots,
    swept: usize,
}

/// What the director has learned of servers and other hosts.
struct Known {
    membership: Membership,
    healths: BTreeMap<ServerName, Health>,
    reachable: BTreeSet<ServerName>,
    peers: Option<Peers>,
}

impl Director {
    /// Begins with what the engine already runs, if it adopted something.
    pub(super) fn new(
        config: Config,
        engine: Box<dyn Engine>,
        network: Network,
        interfaces: BTreeMap<u32, Mac>,
        drained: BTreeSet<ServerName>,
        hosts: Option<Hosts>,
        now_ms: u64,
    ) -> Self {
        let ways = Ways::default();
        let surroundings = ways.surroundings(&config, &network, &interfaces);
        let mut membership = Membership::new(&config.services, surroundings, now_ms);
        let mut slots = Slots::default();
        let mut healths = BTreeMap::new();
        let running = engine.running().cloned().unwrap_or_default();
        slots.adopt(&running);
        for known in plan::known(&running, &config.services) {
            membership.resume(&known, now_ms);
            let up = running
                .servers
                .values()
                .any(|s| s.identity == identity(&known.service, &known.server) && s.up);
            let service = config.services.iter().find(|service| service.name == known.service);
            if let Some(service) = service.filter(|_| up) {
                let name = ServerName { service: known.service, server: known.server };
                let seed = identity(&name.service, &name.server);
                healths.insert(name, Health::resumed(&service.health, seed));
            }
        }
        let mut director = Director {
            config,
            network,
            interfaces,
            membership,
            healths,
            ways,
            reachable: BTreeSet::new(),
            drained,
            hosts,
            handing: Handing::default(),
            telling: Telling::default(),
            totals: Totals::default(),
            told: Told::default(),
            // Rings that run are what the next ones are held against.
            plan: Plan { tables: running.clone(), ..Plan::default() },
            slots,
            swept: 0,
            engine,
        };
        director.resume_hosts(&running, now_ms);
        director.say_own();
        director
    }

    /// Plans anew and has the engine go by that.
    ///
    /// # Errors
    /// When the engine refuses; what was in force stays, here as there, and the next call tries again.
    pub(super) fn replan(&mut self) -> Result<(), DirectError> {
        let interfaces: Vec<_> = self.interfaces.iter().map(|(ifindex, mac)| (*ifindex, *mac)).collect();
        let mut slots = self.slots.clone();
        let plan =
            plan::plan(&self.states(), &interfaces, &self.planned_hosts(), &mut slots, Some(&self.plan))?;
        let (before, tables) = (Arc::clone(self.engine.tables()), Arc::new(plan.tables.clone()));
        if let Err(error) = self.engine.apply(&tables) {
            // Numbers that the engine has given away are taken.
            self.slots.adopt(self.engine.tables());
            return Err(error.into());
        }
        self.slots = slots;
        self.tell_changes(&plan);
        self.plan = plan;
        self.tell_names(Names::of(&self.plan, tables));
        self.forget_removed(&before);
        Ok(())
    }

    /// Sessions of servers and VIPs that were there before and are gone go too; then their numbers are free again.
    fn forget_removed(&mut self, before: &Tables) {
        let now = self.engine.tables();
        if before.servers.keys().all(|slot| now.servers.contains_key(slot))
            && before.vips.keys().all(|key| now.vips.contains_key(key))
        {
            self.totals.note(&self.plan, false);
            return;
        }
        let buckets = self.engine.memory().sessions.buckets();
        self.sweep(0..buckets);
        self.engine.memory().ports.sweep(self.engine.now(), self.is_known());
        let retired: Vec<u16> = self.slots.retired().collect();
        let counters = self.counters();
        for (slot, server) in retired.iter().filter_map(|slot| Some((slot, before.servers.get(slot)?))) {
            self.totals.add(server.identity, counters.servers.get(slot).copied().unwrap_or_default());
        }
        self.totals.note(&self.plan, !retired.is_empty());
        for slot in retired {
            match self.engine.reset_server(slot) {
                Ok(()) => self.slots.released(slot),
                // Its number stays taken until the next server goes.
                Err(error) => {
                    tracing::warn!(%error, "the counters of a server that is gone can't be cleared")
                }
            }
        }
    }

    /// Sweeps the next tenth of the table: called once a second, it keeps the counts of active sessions
    /// true to within ten seconds.
    pub(super) fn sweep_some(&mut self) {
        let buckets = self.engine.memory().sessions.buckets();
        let end = (self.swept + buckets.div_ceil(10)).min(buckets);
        self.forget_kept_back();
        self.sweep(self.swept..end);
        self.swept = if end == buckets { 0 } else { end };
    }

    fn sweep(&self, range: std::ops::Range<usize>) {
        let freed = self.engine.memory().sessions.sweep(range, self.engine.now(), self.is_known());
        tracing::trace!(freed, "swept");
    }

    /// Whether both ends of a session are still in force.
    fn is_known(&self) -> impl Fn(SessionKey, Value) -> bool {
        let tables = self.engine.tables();
        let vips: BTreeSet<u16> = tables.vips.values().map(|vip| vip.id).collect();
        let is_anybodys = self.keeps_back();
        move |key, value| {
            vips.contains(&key.vip) && tables.servers.contains_key(&value.server()) && is_anybodys(key, value)
        }
    }

    pub(super) fn states(&self) -> Vec<ServiceState<'_>> {
        let state = |service| ServiceState { service, members: self.member_states(service) };
        self.config.services.iter().map(state).collect()
    }

    pub(super) fn member_states(&self, service: &Service) -> Vec<MemberState> {
        let hosts = self.hosts.as_ref().filter(|_| service.is_on_every_host());
        let known = hosts.map(|hosts| (hosts, hosts.peers.hosts()));
        let members = self.membership.members(&service.name).into_iter();
        members
            .map(|member| {
                if let Some((hosts, known)) = &known {
                    return self.host_state(hosts, known, service, member);
                }
                let name = ServerName { service: service.name.clone(), server: member.name.clone() };
                let health = match self.why_not_here(service, &member) {
                    Some(_) => Some(Status { state: State::Down, ..Status::UNKNOWN }),
                    None => self.healths.get(&name).map(Health::status),
                };
                MemberState {
                    health: health.unwrap_or_else(|| Health::new(&service.health, 0).status()),
                    admin_draining: self.drained.contains(&name),
                    share: None,
                    member,
                }
            })
            .collect()
    }

    /// Gives every server a health, and forgets that of those who are gone. One that has yet to be found is not
    /// probed: that nobody knows where it is says enough.
    pub(super) fn match_healths(&mut self) {
        let mut healths = BTreeMap::new();
        self.reachable.clear();
        for service in &self.config.services {
            for member in self.membership.members(&service.name) {
                let name = ServerName { service: service.name.clone(), server: member.name.clone() };
                if can_be_probed(service, &member) && self.why_not_here(service, &member).is_none() {
                    self.reachable.insert(name.clone());
                }
                let seed = identity(&name.service, &name.server);
                let known = self.healths.remove(&name);
                let health = known.unwrap_or_else(|| Health::new(&service.health, seed));
                healths.insert(name, health);
            }
        }
        self.healths = healths;
    }

    /// Logs what happened to the membership, and follows it if it changed.
    ///
    /// # Errors
    /// As [`Director::replan`].
    pub(super) fn notice(&mut self, notices: &[Notice]) -> Result<(), DirectError> {
        self.log(notices);
        if notices.iter().any(|notice| notice.event.changes_servers()) {
            self.match_healths();
            self.replan()?;
        }
        Ok(())
    }

    /// Goes on with another configuration that was checked, in this network, on these interfaces.
    ///
    /// # Errors
    /// As [`Director::replan`]; all is then as it was.
    pub(super) fn reconfigure(
        &mut self,
        config: Config,
        network: Network,
        interfaces: BTreeMap<u32, Mac>,
        now_ms: u64,
    ) -> Result<(), DirectError> {
        let before = self.known();
        let config = std::mem::replace(&mut self.config, config);
        let network = std::mem::replace(&mut self.network, network);
        let interfaces = std::mem::replace(&mut self.interfaces, interfaces);
        let host_notices = self.reconfigure_hosts(now_ms);
        let surroundings = self.ways.surroundings(&self.config, &self.network, &self.interfaces);
        let mut notices = self.membership.surroundings(surroundings, now_ms);
        notices.extend(self.membership.reconfigure(&self.config.services, now_ms));
        for (name, health) in &mut self.healths {
            if let Some(service) = self.config.services.iter().find(|service| service.name == name.service) {
                health.reconfigure(now_ms, &service.health);
            }
        }
        self.match_healths();
        if let Err(error) = self.replan() {
            (self.config, self.network, self.interfaces) = (config, network, interfaces);
            self.know(before);
            return Err(error);
        }
        every_host::log(&host_notices);
        self.log(&notices);
        Ok(())
    }

    /// What was learned of servers and hosts: all that another configuration changes.
    fn known(&self) -> Known {
        Known {
            membership: self.membership.clone(),
            healths: self.healths.clone(),
            reachable: self.reachable.clone(),
            peers: self.hosts.as_ref().map(|hosts| hosts.peers.clone()),
        }
    }

    fn know(&mut self, known: Known) {
        let Known { membership, healths, reachable, peers } = known;
        (self.membership, self.healths, self.reachable) = (membership, healths, reachable);
        if let Some((hosts, peers)) = self.hosts.as_mut().zip(peers) {
            hosts.peers = peers;
        }
    }

    /// Follows what is known of the network.
    ///
    /// # Errors
    /// As [`Director::replan`].
    pub(super) fn look_around(&mut self, now_ms: u64) -> Result<(), DirectError> {
        let surroundings = self.ways.surroundings(&self.config, &self.network, &self.interfaces);
        let notices = self.membership.surroundings(surroundings, now_ms);
        self.log(&notices);
        self.match_healths();
        self.replan()
    }

    /// Says what about this host's own addresses and settings is likely a mistake.
    pub(super) fn warn_of_host(&self) {
        if self.config.services.iter().any(|service| service.method == Method::Nat) {
            let names = self.interfaces.keys().filter_map(|ifindex| self.network.interfaces.get(ifindex));
            for name in names.map(|interface| &interface.name).filter(|name| is_reverse_path_strict(name)) {
                tracing::warn!(
                    interface = name,
                    "its reverse path filter is strict: what nat servers send through this host is dropped where the \
                     way to them leads through another interface"
                );
            }
        }
        for service in &self.config.services {
            let mut here = service.servers.iter().filter(|server| self.network.is_local(server.address));
            let unable = here.find_map(|server| {
                Some((&server.name, why_not_itself(service, &server.name, &self.network)?))
            });
            if let Some((server, reason)) = unable {
                tracing::warn!(service = service.name, server, "no client is sent there: {reason}");
            }
        }
    }

    /// Probes that are due now; each counts as begun.
    ///
    /// # Errors
    /// As [`Director::replan`].
    pub(super) fn due_probes(&mut self, now_ms: u64) -> Result<Vec<Due>, DirectError> {
        let due = self.probed_servers().filter(|(_, health)| health.next_probe_at() <= now_ms);
        let due: Vec<ServerName> = due.map(|(name, _)| name.clone()).collect();
        let mut probes = Vec::new();
        for name in due {
            let target = self.target(&name);
            if let Some(health) = self.healths.get_mut(&name) {
                health.started(now_ms);
            }
            let service = self.config.services.iter().find(|service| service.name == name.service);
            match (target, service) {
                (Some(target), Some(service)) => {
                    probes.push(Due { server: name, target, settings: service.health.clone() });
                }
                (_, service) => self.probed(&name, Err(not_found(service)), now_ms)?,
            }
        }
        Ok(probes)
    }

    /// When the next probe is due.
    pub(super) fn next_probe_at(&self) -> u64 {
        self.probed_servers().map(|(_, health)| health.next_probe_at()).min().unwrap_or(u64::MAX)
    }

    /// Why a member that is this host itself can't answer clients.
    pub(super) fn why_not_here(&self, service: &Service, member: &Member) -> Option<String> {
        member.local.then(|| why_not_itself(service, &member.name, &self.network))?
    }

    fn probed_servers(&self) -> impl Iterator<Item = (&ServerName, &Health)> {
        self.healths.iter().filter(|(name, _)| self.reachable.contains(name))
    }

    fn target(&self, name: &ServerName) -> Option<Target> {
        let service = self.config.services.iter().find(|service| service.name == name.service)?;
        let member =
            self.membership.members(&name.service).into_iter().find(|member| member.name == name.server)?;
        service.addresses.iter().find_map(|address| {
            let destination = SocketAddr::new(address.ip(), service.health.port.unwrap_or(address.port()));
            let way = self.probe_way(service, &member, destination)?;
            Some(Target { destination, way, handed_over: self.handed_over(service) })
        })
    }

    /// How a probe gets to a server, the way that clients' traffic takes.
    fn probe_way(&self, service: &Service, member: &Member, destination: SocketAddr) -> Option<Way> {
        let vip = destination.ip();
        if service.method == Method::Nat && !member.local {
            let port = service.health.port.or(service.server_port(&member.name))?;
            return Some(Way::Direct { to: SocketAddr::new(member.address?, port) });
        }
        if let Some(way) = self.handed_to_itself(service, member, vip) {
            return Some(way);
        }
        if member.local {
            // This host as a server answers on the service address if it has it, else on its own.
            let own = member.address.filter(|_| !self.network.is_local(vip)).unwrap_or(vip);
            return Some(Way::Local { to: SocketAddr::new(own, destination.port()) });
        }
        let (mac, ifindex) = (member.mac?, member.ifindex?);
        let hop = Hop { ifindex, mac, own_mac: *self.interfaces.get(&ifindex)? };
        let beyond = service.goes_by_link() && member.hop.is_some_and(|hop| !hop.on_link);
        if service.method == Method::Tunnel || beyond {
            let (to, from) = (member.address?, member.hop?.tunnel);
            let source = if from.is_ipv4() == vip.is_ipv4() {
                Some(from)
            } else {
                self.network.source_for(ifindex, vip)
            };
            let encapsulation = service.encapsulation;
            return Some(Way::Tunnel { hop, source: source?, encapsulation, from, to });
        }
        // A server answers the director's own address; without one on that interface any will be routed. ARP
        // probes ask for the server's own address, which may be of the other family.
        let asked = service.health.kind == HealthKind::Arp;
        let fits = |address: &IpAddr| asked || address.is_ipv4() == vip.is_ipv4();
        let towards = member.address.filter(fits).unwrap_or(vip);
        let source = self.network.source_for(ifindex, towards)?;
        Some(Way::Link { hop, source, server: member.address })
    }

    /// How connections are handed to this host itself for a probe, where every host decides: by the loopback interface.
    fn handed_to_itself(&self, service: &Service, member: &Member, vip: IpAddr) -> Option<Way> {
        if service.method != Method::Handoff || !service.is_on_every_host() || !member.local {
            return None;
        }
        let (&ifindex, _) = self.network.interfaces.iter().find(|(_, found)| found.loopback)?;
        let own = member.address.filter(|own| own.is_ipv4() == vip.is_ipv4());
        let mut links = self.interfaces.keys();
        let source = own.or_else(|| links.find_map(|link| self.network.source_for(*link, vip)))?;
        let hop = Hop { ifindex, mac: Mac::default(), own_mac: Mac::default() };
        Some(Way::Link { hop, source, server: member.address })
    }

    /// Takes in a probe's result: latency in microseconds, or why there is none.
    ///
    /// # Errors
    /// As [`Director::replan`].
    pub(super) fn probed(
        &mut self,
        name: &ServerName,
        result: Result<u64, Failure>,
        now_ms: u64,
    ) -> Result<(), DirectError> {
        let Some(transition) = self.healths.get_mut(name).and_then(|health| health.result(now_ms, result))
        else {
            return Ok(());
        };
        let to = format!("{:?}", transition.to).to_lowercase();
        match transition.reason {
            Some(reason) => {
                tracing::warn!(service = name.service, server = name.server, %reason, "server is {to}");
            }
            None => tracing::info!(service = name.service, server = name.server, "server is {to}"),
        }
        self.say_own();
        self.replan()
    }

    /// Whether every service has a server that takes sessions.
    pub(super) fn is_serving(&self) -> bool {
        !self.plan.services.is_empty()
            && self.plan.services.values().all(|service| !service.ring_members.is_empty())
    }

    /// Whether every server that was found was probed once, so that the first connections are shared by all.
    pub(super) fn is_settled(&self) -> bool {
        self.probed_servers().all(|(_, health)| health.status().state != State::Unknown)
    }

    /// The service addresses that this host answers ARP or neighbour discovery for, now.
    pub(super) fn announced(&self) -> BTreeSet<IpAddr> {
        announced(self.config.services.iter().filter(|service| !service.is_on_every_host()))
            .chain(self.answered_for())
            .collect()
    }

    /// The service addresses that this director would answer for with this file, on these interfaces, and doesn't now.
    pub(super) fn newly_announced(
        &self,
        config: &Config,
        interfaces: &BTreeMap<u32, Mac>,
    ) -> BTreeSet<(u32, IpAddr)> {
        let now = self.engine.tables();
        let addresses: BTreeSet<IpAddr> =
            announced(config.services.iter().filter(|service| !service.is_on_every_host())).collect();
        let everywhere =
            interfaces.keys().flat_map(|ifindex| addresses.iter().map(|address| (*ifindex, *address)));
        everywhere
            .filter(|(ifindex, address)| !(now.interfaces.contains_key(ifindex) && now.announces(*address)))
            .collect()
    }

    /// Those that it may have to answer for, too.
    pub(super) fn announceable(&self) -> BTreeSet<IpAddr> {
        announced(self.config.services.iter()).collect()
    }
}

fn announced<'a>(services: impl Iterator<Item = &'a Service>) -> impl Iterator<Item = IpAddr> {
    let announced = services.filter(|service| service.announce);
    announced.flat_map(|service| &service.addresses).map(|address| address.ip())
}

/// Whether neighbour discovery matters to the farm: for service addresses, or servers on the link.
pub(super) fn has_ipv6(config: &Config) -> bool {
    let addresses = config.services.iter().flat_map(|service| &service.addresses).map(SocketAddr::ip);
    let servers = config.services.iter().flat_map(|service| &service.servers).map(|server| server.address);
    addresses.chain(servers).any(|address| address.is_ipv6())
}

/// Whether a probe can be sent: to this host, or to one whose whereabouts are known. Hosts that decide for themselves
/// ask nobody else.
fn can_be_probed(service: &Service, member: &Member) -> bool {
    member.local || member.mac.is_some() && !service.is_on_every_host()
}

/// Why a server can't be probed.
fn not_found(service: Option<&Service>) -> Failure {
    let ipv4 = |service: &Service| service.addresses.first().is_none_or(SocketAddr::is_ipv4);
    match service {
        Some(service) if service.method != Method::L2 => Failure::NoWay,
        Some(service) if !ipv4(service) => Failure::NoNeighbour,
        _ => Failure::NoArp,
    }
}
