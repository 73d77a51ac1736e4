//! The director keeps the state of the farm and decides when it changes.
//!
//! [`Director`] is a state machine: facts go in with the time ([`Input`]), orders come out
//! ([`Output`]). The caller carries the orders out in sequence. Some orders ask for a result, which
//! the caller returns as a later fact. The director does no IO and reads no clock, so whole farms
//! of directors run in a test.
//!
//! A *generation* is one complete set of tables, which is planned as a whole. Applying it takes
//! time, so it is a single order ([`Change`]) that any thread can carry out. At most one such order
//! is in progress. Its answer is a later fact ([`Applied`]). Tables are in force once the answer
//! confirms them, and only then does the director switch to a reloaded farm. If the engine refuses
//! a change that is not a reload, the director retries it later.
//!
//! Sequence of calls: [`Director::new`] once; then for each fact [`Director::handle`], and after it
//! [`Director::poll_output`] until it returns `None`; [`Input::Time`] at [`Director::next_at`], and
//! at once after `new`.
//!
//! ```
//! use std::collections::{BTreeMap, BTreeSet};
//! use std::sync::Arc;
//!
//! use evener_core::director::{Director, Input, Moment, Output, Start};
//! use evener_core::farm::network::Network;
//! use evener_core::farm::{Farm, PeerOptions, example};
//! use evener_core::path::seed::Seed;
//! use evener_core::pool::policy::Fills;
//!
//! let server = example::server("web1", "192.0.2.11".parse()?);
//! let service = example::service("web", "192.0.2.100:80".parse()?, vec![server]);
//! let farm = Farm {
//!     interfaces: Vec::new(),
//!     directors: Vec::new(),
//!     peers: PeerOptions { port: 9181, interval_ms: 500, silence_ms: 3_000 },
//!     services: vec![service],
//!     groups: Vec::new(),
//!     names: Vec::new(),
//! };
//! let start = Start {
//!     farm,
//!     network: Network::default(),
//!     links: BTreeMap::new(),
//!     host: None,
//!     seed: Seed(1, 2),
//!     running: None,
//!     operator: BTreeMap::new(),
//!     groups: BTreeMap::new(),
//! };
//! let (now, mut tables) = (Moment::default(), Arc::default());
//! let mut director = Director::new(start, now);
//! director.handle(now, Input::Time { active: BTreeMap::new() });
//! while let Some(output) = director.poll_output() {
//!     // A real caller carries out all other orders, too.
//!     if let Output::Apply(change) = output {
//!         let planned = change.plan(&mut Fills::default());
//!         if let Ok(Some(new)) = planned.tables() {
//!             tables = Arc::clone(new);
//!         }
//!         let applied = planned.answer(Arc::clone(&tables), None);
//!         director.handle(now, Input::Applied(Box::new(applied)));
//!     }
//! }
//! assert_eq!((director.snapshot().generation, tables.vips.len()), (1, 1));
//! # Ok::<(), std::net::AddrParseError>(())
//! ```

mod change;
mod consumers;
mod event;
mod every_host;
mod groups;
mod handshakes;
mod hosts;
mod input;
mod moment;
mod name;
mod names;
mod next_hops;
mod operator;
mod order;
mod output;
mod pools;
mod probe;
mod readiness;
mod scores;
mod signals;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
pub mod transfer;
mod watch;

pub use event::{Event, Level, LinkState};
pub use groups::{GroupSnapshot, MemberFact};
pub use handshakes::{Handshakes, STALLED_AFTER_MS, SessionWalk, StalledSessions, Suspicion};
pub use hosts::{Identity, IdentityError, generation};
pub use input::Input;
pub use moment::Moment;
pub use name::{EVENTS, EventSubject};
pub use names::{NameFact, NameOrder};
pub use next_hops::{tunnel_source, why_not_itself};
pub use operator::{Drainable, NotDrainable, OperatorStates, ServerOwner};
pub use order::{Applied, Change, Planned};
pub use output::{Adjacency, LoadQuery, Output, Probe, ProbePath, Target};
pub use readiness::ServiceReadiness;
pub use snapshot::{HostSnapshot, Reloads, ServerSnapshot, ServiceSnapshot, Snapshot};

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::farm::membership::{DiscoveryRound, Membership, NeighbourReply, RestoredServer, ServiceNotice};
use crate::farm::network::Network;
use crate::farm::plan::{self, MemberState, Plan, ServerName, Slots, identity};
use crate::farm::{Announce, Farm, Service};
use crate::net::wire::Mac;
use crate::node::peers::KnownHost;
use crate::node::secret::Key;
use crate::path::seed::Seed;
use crate::path::tables::Tables;
use crate::pool::health::{HealthState, HealthStatus};
use crate::pool::{FULL_WEIGHT, Fact, PoolServer};
use change::{PendingChange, Reload};
use consumers::READY_AFTER_MS;
use groups::Groups;
use handshakes::HandshakeWatch;
use hosts::LocalHost;
use names::Names;
use next_hops::Paths;
use pools::{DesiredServer, Pools};
use probe::can_be_probed;
use scores::Scores;
use watch::MissingServers;

/// Initial state of a director.
#[derive(Clone, Debug)]
pub struct Start {
    pub farm: Farm,
    /// Network configuration of this host.
    pub network: Network,
    /// Interfaces that the engine uses, with their MAC addresses.
    pub links: BTreeMap<u32, Mac>,
    /// Operator's states saved by an earlier director.
    pub operator: OperatorStates,
    /// For an every-host farm: this host's identity, the key of datagrams, and a number that is
    /// random for each start.
    pub host: Option<(Identity, Key, u64)>,
    /// Secret for the hash of flows.
    pub seed: Seed,
    /// Tables of a data plane that outlived an earlier director.
    pub running: Option<Tables>,
    /// Saved members of groups, by group.
    pub groups: BTreeMap<String, String>,
}

/// State machine that controls a farm.
#[derive(Clone, Debug)]
pub struct Director {
    farm: Arc<Farm>,
    network: Arc<Network>,
    links: BTreeMap<u32, Mac>,
    membership: Membership,
    pools: Pools,
    operator: OperatorStates,
    paths: Paths,
    /// Other hosts of an every-host farm.
    hosts: Option<LocalHost>,
    lease_holds: bool,
    /// Unix time at time 0 of the director's clock, in milliseconds.
    unix_zero_ms: u64,
    seed: Seed,
    missing_servers: MissingServers,
    plan: Arc<Plan>,
    /// Slots of the servers. Empty while a change is in progress, since the change owns them.
    slots: Slots,
    /// Slots released while a change was in progress.
    released: Vec<u16>,
    in_force: Arc<Tables>,
    /// Number of ordered changes.
    ordered: u64,
    /// Generation last applied to the engine, and generation of `plan`.
    generation: u64,
    generation_in_force: u64,
    replan_wanted: bool,
    /// Earliest time of the next plan, in milliseconds. An operator's order sets it to now.
    gather_until_ms: u64,
    /// Time to retry a change that the engine refused, in milliseconds.
    retry_at_ms: u64,
    /// Links that no earlier generation contains.
    newcomers: BTreeSet<u32>,
    reloads_waiting: VecDeque<Reload>,
    applying: Option<PendingChange>,
    /// Outputs that wait for tables. The first `until_answer` of them wait for the change in
    /// progress, the others for a later one.
    held_back: VecDeque<Output>,
    until_answer: usize,
    reloads: Reloads,
    /// Last snapshot, and true if something has changed since.
    snapshot: Arc<Snapshot>,
    has_changed: bool,
    /// Active sessions by slot, and the time of their count in milliseconds.
    active: BTreeMap<u16, u64>,
    counted_ms: u64,
    handshakes: HandshakeWatch,
    scores: Scores,
    groups: Groups,
    names: Names,
    /// Time at which the director becomes ready at the latest, in milliseconds; `u64::MAX` once it
    /// is ready.
    ready_at_ms: u64,
    outputs: VecDeque<Output>,
}

impl Director {
    /// Starts from the running data plane, if there is one. The first input puts the farm in force.
    pub fn new(start: Start, now: Moment) -> Director {
        let Start { farm, network, links, operator, host, seed, running, groups } = start;
        let running = Arc::new(running.unwrap_or_default());
        let paths = Paths::default();
        let surroundings = paths.surroundings(&farm, &network, &links);
        let mut director = Director {
            membership: Membership::new(&farm.services, surroundings, now.ms),
            pools: Pools::default(),
            operator,
            paths,
            hosts: host
                .map(|(own, key, incarnation)| LocalHost::new(&farm, own.name, key, incarnation, now.ms)),
            lease_holds: now.lease_holds,
            unix_zero_ms: now.unix_ms.saturating_sub(now.ms),
            seed,
            missing_servers: MissingServers::default(),
            // The next plan is compared with the rings of the running data plane.
            plan: Arc::new(Plan { tables: Arc::clone(&running), ..Plan::default() }),
            slots: Slots::default(),
            released: Vec::new(),
            in_force: Arc::default(),
            ordered: 0,
            generation: 0,
            generation_in_force: 0,
            replan_wanted: true,
            gather_until_ms: 0,
            retry_at_ms: u64::MAX,
            newcomers: BTreeSet::new(),
            reloads_waiting: VecDeque::new(),
            applying: None,
            held_back: VecDeque::new(),
            until_answer: 0,
            reloads: Reloads::default(),
            snapshot: Arc::default(),
            has_changed: true,
            active: BTreeMap::new(),
            counted_ms: 0,
            handshakes: HandshakeWatch::default(),
            scores: Scores::default(),
            groups: Groups::new(seed),
            names: Names::new(seed),
            ready_at_ms: now.ms.saturating_add(READY_AFTER_MS),
            outputs: VecDeque::new(),
            farm: Arc::new(farm),
            network: Arc::new(network),
            links,
        };
        director.pools.reload(&director.farm.services, now.ms);
        director.adopt(&running, now.ms);
        director.in_force = running;
        if !director.in_force.vips.is_empty() {
            // An earlier daemon may have died before the sessions of removed servers ended:
            // sessions whose slots belong to no server are ended now.
            let before = Arc::clone(&director.in_force);
            director.outputs.push_back(Output::Forget { before, retired: Vec::new() });
        }
        director.send_own_report();
        director.groups.reload(now, &director.farm.groups, &groups, &director.operator);
        director.names.reload(&director.farm, &director.operator, now);
        director.snapshot = Arc::new(director.take_snapshot(None, now.ms));
        director.follow_consumers(now);
        director
    }

    /// Adopts the servers in the tables of a running data plane.
    fn adopt(&mut self, running: &Tables, now_ms: u64) {
        self.slots.adopt(running);
        let mut known = plan::known(running, &self.farm.services);
        known.iter_mut().for_each(|known| self.complete(known));
        known.iter().for_each(|known| self.membership.resume(known, now_ms));
        self.match_servers(now_ms);
        for known in known {
            let named = identity(&known.service, &known.server);
            if running.servers.values().any(|server| server.identity == named && server.up) {
                let name = ServerName { service: known.service, server: known.server };
                self.pools.change(&name, PoolServer::resume);
            }
        }
        self.resume_hosts(running, now_ms);
    }

    /// Adds the next hop to a server restored from tables, which contain only its link and MAC
    /// address.
    fn complete(&self, known: &mut RestoredServer) {
        let service = self.farm.services.iter().find(|service| service.name == known.service);
        let servers = service.into_iter().flat_map(|service| &service.servers);
        let listed = servers.into_iter().find(|server| server.name == known.server);
        if let Some(server) = listed.filter(|_| known.hop.is_none()) {
            let hop = self.paths.hop(&self.farm, &self.network, server.address, Some(known.place.mac));
            known.hop = hop.filter(|hop| hop.place == known.place);
        }
    }

    /// Applies a fact. The resulting orders wait in [`Director::poll_output`].
    pub fn handle(&mut self, now: Moment, input: Input) {
        let mut first = self.outputs.len();
        self.lease_holds = now.lease_holds;
        self.unix_zero_ms = now.unix_ms.saturating_sub(now.ms);
        match input {
            Input::Time { active } => {
                self.counted(active, now.ms);
                self.time(now);
                self.groups.time(now);
                self.names.time(now);
            }
            Input::Frame { ifindex, bytes } => self.receive_neighbour_frame(ifindex, &bytes, now.ms),
            Input::Datagram { from, bytes } => self.receive_host_datagram(from, &bytes, now.ms),
            Input::Probed { server, result } => self.learn(&server, Fact::Probed(result), now.ms),
            Input::Reported { server, result } => self.learn(&server, Fact::Reported(result), now.ms),
            Input::Member { group, member, fact } => self.groups.apply_fact(now, &group, member, fact),
            Input::Name { name, fact } => self.names.apply_fact(&name, fact, now),
            Input::Path { address, found } => self.names.path_probed(address, found, now),
            Input::Network(network) => self.surroundings(*network, now.ms),
            Input::PathMtu { from, to, mtu } => self.path_mtu(from, to, mtu, now.ms),
            Input::Reload { farm, network, links, groups } => {
                let (farm, network) = (Arc::from(farm), Arc::from(network));
                let known = Arc::clone(&self.network);
                self.reloads_waiting.push_back(Reload { farm, network, known, links, groups });
            }
            Input::ReloadRefused { error } => self.refused_reload(error),
            Input::SetOperatorState { server, state } => self.set_operator_state(server, state, now),
            Input::Applied(applied) => {
                self.applied(*applied, now);
                // Outputs so far are sent without waiting for tables.
                first = self.outputs.len();
            }
            Input::Released { slot } => self.released(slot),
            Input::Walked(walk) => self.walked(&walk, now.ms),
            Input::Leave => {
                // A leaving host doesn't wait for tables.
                self.outputs.append(&mut self.held_back);
                self.leave(now.ms);
                (first, self.until_answer) = (self.outputs.len(), 0);
            }
        }
        self.order_change(first, now.ms);
        if let Some(hosts) = &mut self.hosts {
            hosts.peers.wait_for_tables(self.applying.is_some());
        }
        self.hold_back(first);
        // A change that needs new tables appears in the snapshot only once those tables are in
        // force.
        if self.applying.is_some() || !self.replan_wanted {
            self.show(None, now.ms);
        }
        self.follow_consumers(now);
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Time of the next [`Input::Time`], in milliseconds.
    pub fn next_at(&self) -> u64 {
        let round = self.membership.next_round_at().unwrap_or(u64::MAX);
        let may_plan = self.replan_wanted && self.applying.is_none();
        let plan_at_ms = if may_plan { self.gather_until_ms } else { u64::MAX };
        let others = [
            self.pools.next_at(),
            self.next_report_at(),
            self.missing_servers.look_at_ms,
            self.retry_at_ms,
            plan_at_ms,
            self.scores.compare_at_ms,
            self.groups.next_at(),
            self.names.next_at(),
            self.ready_at_ms.saturating_add(1),
        ];
        others.into_iter().fold(round, u64::min)
    }

    fn time(&mut self, now: Moment) {
        let now_ms = now.ms;
        self.report(now_ms);
        if self.membership.next_round_at().is_some_and(|at| at <= now_ms) {
            let DiscoveryRound { requests, notices } = self.membership.round(now_ms);
            for target in requests {
                let sources =
                    self.links.keys().map(|ifindex| (*ifindex, self.network.source_for(*ifindex, target)));
                let requests = sources.filter_map(|(ifindex, sender)| {
                    sender.map(|sender| Output::Solicit { ifindex, sender: Some(sender), target })
                });
                self.outputs.extend(requests);
            }
            self.notice(notices, now_ms);
        }
        self.run_due_checks(now);
        self.compare_due(now_ms);
        self.check_missing(now_ms);
        if self.retry_at_ms <= now_ms {
            self.retry_at_ms = u64::MAX;
            self.replan_wanted = true;
        }
    }

    fn receive_neighbour_frame(&mut self, ifindex: u32, frame: &[u8], now_ms: u64) {
        if let Ok(Some(answer)) = NeighbourReply::read(ifindex, frame) {
            self.answered(answer, now_ms);
        }
        let notices = self.membership.frame(now_ms, ifindex, frame);
        self.notice(notices, now_ms);
    }

    /// Publishes changes of the membership, and replans if servers changed.
    fn notice(&mut self, notices: Vec<ServiceNotice>, now_ms: u64) {
        if notices.iter().any(|notice| notice.event.changes_servers()) {
            self.match_servers(now_ms);
            self.replan_wanted = true;
        }
        self.report_membership(notices);
    }

    /// Applies a changed network configuration. If the file names no interfaces, the engine also
    /// uses an interface that came up.
    fn surroundings(&mut self, network: Network, now_ms: u64) {
        self.report_link_changes(&network);
        self.report_moved_addresses(&network);
        let moved = self.network.interfaces != network.interfaces;
        // An interface that is down stays in use. An interface that was removed may return with
        // another index or MAC address.
        let kept =
            self.links.keys().filter_map(|ifindex| Some((*ifindex, network.interfaces.get(ifindex)?.mac)));
        let kept: BTreeMap<u32, Mac> = kept.collect();
        let picked = network.pick_interfaces(&self.farm.interfaces, &self.farm.services);
        self.links = picked.unwrap_or_default();
        self.links.extend(&kept);
        let are_to_come = core::mem::take(&mut self.newcomers);
        let is_new = |ifindex: &&u32| are_to_come.contains(ifindex) || !kept.contains_key(ifindex);
        self.newcomers = self.links.keys().filter(is_new).copied().collect();
        self.network = Arc::new(network);
        self.forget_path_mtus(now_ms);
        self.update_membership(now_ms);
        self.resolve_next_hops(now_ms);
        if moved {
            // The announcement updates hosts whose ARP entry for an announced address is gone or
            // has another MAC address.
            self.announce(self.announced());
        }
    }

    /// Applies the current network configuration to the membership.
    fn update_membership(&mut self, now_ms: u64) {
        let surroundings = self.paths.surroundings(&self.farm, &self.network, &self.links);
        let notices = self.membership.surroundings(surroundings, now_ms);
        self.report_membership(notices);
        self.match_servers(now_ms);
        self.replan_wanted = true;
    }

    /// Returns the members of all services, in the order of the farm.
    fn members(&self, known: &[KnownHost]) -> Vec<Vec<MemberState>> {
        self.farm.services.iter().map(|service| self.member_states(service, known)).collect()
    }

    /// Returns the members of a service with their state. `known` has all hosts of an every-host
    /// farm.
    fn member_states(&self, service: &Service, known: &[KnownHost]) -> Vec<MemberState> {
        let hosts = self.hosts.as_ref().filter(|_| service.is_on_every_host());
        let members = self.membership.members(&service.name).into_iter();
        members
            .map(|member| {
                if let Some(hosts) = hosts {
                    return self.host_state(hosts, known, service, member);
                }
                let name = ServerName { service: service.name.clone(), server: member.name.clone() };
                let server = self.pools.server(&name);
                let health = match self.why_not_here(service, &member) {
                    Some(_) => Some(HealthStatus { state: HealthState::Down, ..HealthStatus::UNKNOWN }),
                    None => server.map(|server| server.health().status()),
                };
                MemberState {
                    health: health.unwrap_or(HealthStatus::UNKNOWN),
                    admin_draining: server.is_some_and(|server| server.operator_state().is_drained()),
                    refuses: server.is_some_and(PoolServer::refuses),
                    is_full: false,
                    share: None,
                    tenths: server.map_or(FULL_WEIGHT, PoolServer::tenths),
                    member,
                }
            })
            .collect()
    }

    /// Updates the pools from the membership. A server without a MAC address or next hop is not
    /// probed; the server is reported as not found.
    fn match_servers(&mut self, now_ms: u64) {
        for service in &self.farm.services {
            let members = self.membership.members(&service.name).into_iter();
            let wanted = members.map(|member| DesiredServer {
                is_reachable: can_be_probed(service, &member)
                    && self.why_not_here(service, &member).is_none(),
                name: member.name,
            });
            let wanted: Vec<DesiredServer> = wanted.collect();
            self.pools.follow(&service.name, &wanted, &self.operator, self.generation_in_force > 0, now_ms);
        }
    }

    /// Returns the service addresses that this host answers ARP or neighbour discovery for.
    pub fn announced(&self) -> BTreeSet<IpAddr> {
        let own = announced(self.farm.services.iter().filter(|service| !service.is_on_every_host()));
        own.chain(self.answered_for()).collect()
    }

    fn announce(&mut self, addresses: BTreeSet<IpAddr>) {
        if !addresses.is_empty() {
            self.outputs.push_back(Output::Announce(addresses));
        }
    }

    /// Returns the service addresses that this host does not answer ARP for now, but would with
    /// this farm on these links. The caller checks them for conflicts first. Addresses of
    /// `every-host` services are claimed later, by their own protocol.
    pub fn newly_announced(&self, farm: &Farm, links: &BTreeMap<u32, Mac>) -> BTreeSet<(u32, IpAddr)> {
        let now = &self.in_force;
        let addresses: BTreeSet<IpAddr> =
            announced(farm.services.iter().filter(|service| !service.is_on_every_host())).collect();
        let everywhere =
            links.keys().flat_map(|ifindex| addresses.iter().map(|address| (*ifindex, *address)));
        everywhere
            .filter(|(ifindex, address)| !(now.interfaces.contains_key(ifindex) && now.announces(*address)))
            .collect()
    }

    /// Returns the service addresses that this host may have to answer ARP for, now or later.
    pub fn announceable(&self) -> BTreeSet<IpAddr> {
        announced(self.farm.services.iter()).collect()
    }

    /// True if every service has a server that takes sessions.
    pub fn is_serving(&self, now: Moment) -> bool {
        let has_all = self.farm.services.is_empty() || !self.plan.services.is_empty();
        let mut services = self.plan.services.values();
        has_all && services.all(|service| !service.ring_members.is_empty()) && self.groups.are_serving(now)
    }

    /// True if every server that can be probed has a probe result. From then on new sessions are
    /// spread over all working servers.
    pub fn is_settled(&self) -> bool {
        self.pools.are_settled() && self.groups.are_settled() && self.names.are_settled()
    }

    /// The farm in force. Before the first generation, the farm that is being put in force.
    pub fn farm(&self) -> &Farm {
        &self.farm
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Interfaces that the engine uses, with their MAC addresses.
    pub fn links(&self) -> &BTreeMap<u32, Mac> {
        &self.links
    }

    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Plan of the tables in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn emit(&mut self, event: Event) {
        self.has_changed = true;
        self.outputs.push_back(Output::Event(event));
    }

    fn emit_all(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.emit(event));
    }
}

fn announced<'a>(services: impl Iterator<Item = &'a Service>) -> impl Iterator<Item = IpAddr> {
    let announced = services.filter(|service| service.announce == Announce::Director);
    announced.flat_map(|service| &service.addresses).map(|address| address.ip())
}
