//! Balanced names of a farm: the addresses of their answers, and checks of servers listed for a
//! name.
//!
//! A farm may have hundreds of thousands of names, so an event of one name must cause no work for
//! other names.

mod candidate;
mod own;
mod ranking;
mod running;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::event::Event;
use super::groups::GroupSnapshot;
use super::moment::Moment;
use super::operator::OperatorStates;
use super::snapshot::{ServiceSnapshot, Snapshot};
use crate::dns::{
    self, AddressPool, AddressesFrom, BalancedName, MeasuredPath, NameSnapshot, OwnServer, PathChange,
    PathOrder, PathProber, PathProbing, ServerList, SharedList,
};
use crate::farm::plan::{ServerName, identity};
use crate::farm::{Farm, Service};
use crate::path::seed::Seed;
use crate::pool::signals::Signals;
use crate::pool::{Effect, Fact, LOAD_PORT, OperatorState, ReportKind, Reporting, ServerChange};
use candidate::WatchedService;
use own::OwnServers;
use running::{AddressSource, NameState};

/// An order to the caller for one name or for all names.
#[derive(Clone, Debug)]
pub enum NameOrder {
    /// The names of a reloaded farm are in force.
    Reloaded,
    /// Probe the server at this index of a name's own list, and return the result as
    /// [`NameFact::Server`].
    Probe(Arc<BalancedName>, usize),
    /// Query the load of the server at this index of a name's own list, and return the result as
    /// [`NameFact::Server`].
    QueryLoad(Arc<BalancedName>, usize),
    /// Read the file that ranks a name's addresses, and return the result as [`NameFact::Ranks`].
    ReadRanks(Arc<BalancedName>, usize),
    /// Probe a path, and return the result as [`super::Input::Path`].
    ProbePath(PathOrder),
    /// Answer queries from these address pools from now on. There is one pool per name, in the
    /// order of the farm.
    AnswerAll(Vec<Arc<AddressPool>>),
    /// Replace the address pools of the names with these numbers.
    Answer(Vec<(usize, Arc<AddressPool>)>),
}

#[derive(Clone, Debug)]
pub enum NameFact {
    /// Result of a check of a server. The index refers to the name's own list at the time of the
    /// order.
    Server(usize, Fact),
    /// Text of a file of ranks, or the error.
    Ranks(Result<String, String>),
}

type ServersInForce = (Arc<[ServiceSnapshot]>, Arc<[Arc<GroupSnapshot>]>);

#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Names in the order of the farm. The index is the name's number.
    running: Vec<NameState>,
    /// Numbers of the names, sorted by name.
    by_name: Vec<usize>,
    /// Services and groups that supply addresses to names.
    followed: Vec<WatchedService>,
    /// Time of the next work of each name in milliseconds, with the name's number.
    due: BTreeSet<(u64, usize)>,
    /// Numbers of the names whose answers must be recomputed. If `is_new` is true, all names must
    /// be.
    dirty: Vec<usize>,
    is_new: bool,
    has_started: bool,
    /// Number of servers in the names' own lists that have no probe result yet.
    unknown: usize,
    paths: PathProber,
    key: Seed,
    /// Services and groups of the snapshot at the last update.
    seen: Option<ServersInForce>,
    orders: VecDeque<NameOrder>,
    events: Vec<Event>,
}

impl Names {
    /// Returns an empty set. `key` is the secret for random choices.
    pub(super) fn new(key: Seed) -> Names {
        Names {
            running: Vec::new(),
            by_name: Vec::new(),
            followed: Vec::new(),
            due: BTreeSet::new(),
            dirty: Vec::new(),
            is_new: true,
            has_started: false,
            unknown: 0,
            paths: PathProber::default(),
            key,
            seen: None,
            orders: VecDeque::new(),
            events: Vec::new(),
        }
    }

    /// Applies the names of a reloaded farm. Servers that the new farm still lists keep their
    /// state.
    pub(super) fn reload(&mut self, farm: &Farm, operator: &OperatorStates, now: Moment) {
        let before = core::mem::take(&mut self.running).into_iter();
        let mut before: BTreeMap<dns::Name, NameState> =
            before.map(|running| (running.name.settings.name.clone(), running)).collect();
        self.followed = Vec::new();
        self.running = Vec::with_capacity(farm.names.len());
        let mut places = BTreeMap::new();
        for (number, name) in farm.names.iter().enumerate() {
            let known = before.remove(&name.settings.name).map(NameState::into_parts);
            let (known, kept) = known.map(|(name, servers, kept)| ((name, servers), kept)).unzip();
            let servers = match &name.from {
                AddressesFrom::Servers(list) => {
                    AddressSource::Own(self.own_servers(name, list, known, operator, now.ms))
                }
                AddressesFrom::Services { names, own } => {
                    let counts = match known {
                        Some((_, AddressSource::Services { counts, .. })) => counts,
                        _ => Vec::new(),
                    };
                    let by_load = name.weighing().is_some();
                    let followed = names.iter().map(|service| {
                        self.follow_service(number, (service.clone(), *own, by_load), &mut places)
                    });
                    AddressSource::Services { followed: followed.collect(), counts }
                }
            };
            self.running.push(NameState::new(name, kept, servers, now.ms));
        }
        self.by_name = (0..self.running.len()).collect();
        let name = |number: &usize| self.running.get(*number).map(|running| &running.name.settings.name);
        self.by_name.sort_by(|one, other| name(one).cmp(&name(other)));
        self.unknown = self.running.iter().map(NameState::unknown).sum();
        (self.seen, self.is_new) = (None, true);
        self.orders.push_back(NameOrder::Reloaded);
        self.dirty.clear();
        self.due.clear();
        self.paths.follow(farm.names.iter().flat_map(|name| wanted_paths(farm, name)), now.clocks());
        (0..self.running.len()).for_each(|number| self.settle(number, now));
    }

    /// Returns the servers of a name's own list. Servers that the farm already had before keep
    /// their state.
    fn own_servers(
        &self,
        name: &BalancedName,
        list: &ServerList,
        known: Option<(Arc<BalancedName>, AddressSource)>,
        operator: &OperatorStates,
        now_ms: u64,
    ) -> OwnServers {
        let named = name.settings.name.to_string();
        let seed = identity(&named, "") ^ self.key.0;
        let mut servers = match known {
            Some((before, AddressSource::Own(servers))) => {
                servers.follow(before.list().unwrap_or(list), list, seed, now_ms)
            }
            _ => OwnServers::new(list, seed, now_ms),
        };
        if !operator.is_empty() {
            for (place, server) in list.servers.iter().enumerate() {
                let server = ServerName { service: named.clone(), server: server.name().into_owned() };
                let state = operator.get(&server).copied().unwrap_or_default();
                servers.0.change(&place, |server| server.set_operator_state(state, now_ms));
            }
        }
        servers
    }

    /// Returns the index in `followed` of a service that a name uses, and adds the service if it is
    /// missing there.
    fn follow_service(
        &mut self,
        number: usize,
        key: (String, bool, bool),
        places: &mut BTreeMap<(String, bool, bool), usize>,
    ) -> usize {
        let place = *places.entry(key).or_insert_with_key(|(service, own, by_load)| {
            self.followed.push(WatchedService::new(service.clone(), *own, *by_load));
            self.followed.len() - 1
        });
        if let Some(followed) = self.followed.get_mut(place) {
            followed.names.push(number);
        }
        place
    }

    /// Starts answering queries. The director calls this once all servers were probed, or once the
    /// maximum time has passed.
    pub(super) fn begin(&mut self) {
        self.has_started = true;
    }

    fn number(&self, name: &dns::Name) -> Option<usize> {
        let of = |number: &usize| self.running.get(*number).map(|running| &running.name.settings.name);
        let at = self.by_name.binary_search_by(|number| of(number).cmp(&Some(name))).ok()?;
        self.by_name.get(at).copied()
    }

    /// Returns the name with this spelling.
    pub(super) fn find(&self, name: &str) -> Option<&Arc<BalancedName>> {
        let number = self.number(&dns::Name::parse(name).ok()?)?;
        self.running.get(number).map(|running| &running.name)
    }

    /// Applies the result of an order. `name` is the name at the time of the order: after a reload
    /// the name may have other servers, or may be gone.
    pub(super) fn apply_fact(&mut self, name: &BalancedName, fact: NameFact, now: Moment) {
        let Some(number) = self.number(&name.settings.name) else { return };
        match fact {
            NameFact::Server(server, fact) => self.answered(name, number, server, fact, now),
            NameFact::Ranks(read) => self.ranks_read(number, read, now),
        }
        self.schedule(number);
    }

    fn answered(&mut self, name: &BalancedName, number: usize, server: usize, fact: Fact, now: Moment) {
        let Some(running) = self.running.get_mut(number) else { return };
        let known = Arc::clone(&running.name);
        let own_server = name.list().and_then(|list| list.servers.get(server));
        let (Some(own_server), Some(list), AddressSource::Own(servers)) =
            (own_server, known.list(), &mut running.servers)
        else {
            return;
        };
        let Some(place) = list.place_of(server, own_server.address) else { return };
        let counts = matches!(fact, Fact::Probed(Ok(_))) && goes_by_latency(&known);
        let before = servers.unknown();
        let change = servers.apply_fact(place, fact, now.ms).unwrap_or_default();
        self.unknown = (self.unknown + servers.unknown()).saturating_sub(before);
        if counts {
            self.mark(number);
        }
        self.follow_change(number, &known, place, change);
    }

    fn ranks_read(&mut self, number: usize, read: Result<String, String>, now: Moment) {
        let Some(running) = self.running.get_mut(number) else { return };
        let change = running.take_ranks(&self.followed, now, read);
        if let Some(error) = change.turned {
            let (name, from) = (running.name.settings.name.to_string(), running.name.rank_from.clone());
            self.events.push(Event::Ranks { name, from: from.unwrap_or_default(), error });
        }
        if change.is_news {
            self.mark(number);
        }
    }

    /// Applies the result of a path probe. If the path has changed, recomputes the names that use
    /// the path.
    pub(super) fn path_probed(&mut self, address: IpAddr, found: Result<MeasuredPath, String>, now: Moment) {
        let PathChange { is_news, turned } = self.paths.probed(address, found, now.ms);
        if let Some(error) = turned {
            self.events.push(Event::Path { address, error });
        }
        if is_news {
            let probes = |number: &usize| self.running.get(*number).is_some_and(|one| one.probes(address));
            let numbers: Vec<usize> = (0..self.running.len()).filter(probes).collect();
            numbers.into_iter().for_each(|number| self.mark(number));
        }
    }

    /// Does the due work of all names.
    pub(super) fn time(&mut self, now: Moment) {
        self.orders.extend(self.paths.poll(now.clocks()).map(NameOrder::ProbePath));
        while let Some((_, number)) = self.due.first().copied().filter(|(at_ms, _)| *at_ms <= now.ms) {
            self.settle(number, now);
        }
    }

    /// Time of the next work, in milliseconds.
    pub(super) fn next_at(&self) -> u64 {
        let due_ms = self.due.first().map_or(u64::MAX, |(at_ms, _)| *at_ms);
        due_ms.min(self.paths.next_at())
    }

    /// True if every server has a probe result.
    pub(super) fn are_settled(&self) -> bool {
        self.unknown == 0
    }

    /// Does the due work of one name.
    fn settle(&mut self, number: usize, now: Moment) {
        let Some(running) = self.running.get_mut(number) else { return };
        let name = Arc::clone(&running.name);
        let is_due = running.is_due(now.ms);
        if running.begins_to_read(now.ms) {
            self.orders.push_back(NameOrder::ReadRanks(Arc::clone(&name), number));
        }
        let due = match &mut running.servers {
            AddressSource::Own(servers) => servers.0.poll(now.clocks()),
            AddressSource::Services { .. } => Vec::new(),
        };
        if is_due {
            self.mark(number);
        }
        for (place, due) in due {
            if due.probe {
                self.orders.push_back(NameOrder::Probe(Arc::clone(&name), place));
            }
            if due.query {
                self.orders.push_back(NameOrder::QueryLoad(Arc::clone(&name), place));
            }
            self.follow_change(number, &name, place, due.change);
        }
        self.schedule(number);
    }

    /// Publishes the events of a server's change. If the change concerns the name's answers, marks
    /// the name as dirty.
    fn follow_change(&mut self, number: usize, name: &BalancedName, place: usize, change: ServerChange) {
        if change.effect != Effect::None {
            self.mark(number);
        }
        let Some(server) = name.list().and_then(|list| list.servers.get(place)) else { return };
        let event = |event| Event::of_member(server_name(name, server), event);
        self.events.extend(change.events.into_iter().filter_map(event));
    }

    /// Marks a name as dirty, so that its answers are recomputed at the next call of
    /// [`Names::follow`].
    fn mark(&mut self, number: usize) {
        if let Some(running) = self.running.get_mut(number).filter(|running| !running.is_dirty) {
            running.is_dirty = true;
            self.dirty.push(number);
        }
    }

    /// Updates the time of a name's next work in the schedule.
    fn schedule(&mut self, number: usize) {
        let Some(running) = self.running.get_mut(number) else { return };
        let due_ms = running.next_at();
        let before = core::mem::replace(&mut running.due_ms, due_ms);
        if before != due_ms {
            self.due.remove(&(before, number));
        }
        if due_ms != u64::MAX {
            self.due.insert((due_ms, number));
        }
    }

    /// Applies the operator's state to a server of a name's own list.
    pub(super) fn set_operator_state(&mut self, server: &ServerName, state: OperatorState, now_ms: u64) {
        let number = dns::Name::parse(&server.service).ok().and_then(|name| self.number(&name));
        let running = number.and_then(|number| Some((number, self.running.get_mut(number)?)));
        let Some((number, NameState { name, servers: AddressSource::Own(servers), .. })) = running else {
            return;
        };
        let mut list = name.list().into_iter().flat_map(|list| &list.servers);
        let Some(place) = list.position(|listed| listed.name() == server.server) else { return };
        let (unknown, name) = (servers.unknown(), Arc::clone(name));
        let change = servers.0.change(&place, |server| server.set_operator_state(state, now_ms));
        self.unknown = (self.unknown + servers.unknown()).saturating_sub(unknown);
        self.follow_change(number, &name, place, change.unwrap_or_default());
        self.schedule(number);
    }

    /// True if a working server has one of the name's addresses.
    pub(super) fn has_living(&self, name: &str, now_ms: u64) -> bool {
        let number = dns::Name::parse(name).ok().and_then(|name| self.number(&name));
        let running = number.and_then(|number| self.running.get(number));
        running.is_some_and(|running| running.has_living(&self.followed, now_ms))
    }

    pub(super) fn poll_order(&mut self) -> Option<NameOrder> {
        self.orders.pop_front()
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.events)
    }

    /// Recomputes the answers of dirty names. Returns the new list of snapshots if a snapshot
    /// changed.
    pub(super) fn follow(&mut self, farm: &Snapshot, now: Moment) -> Option<Arc<SharedList<NameSnapshot>>> {
        // Before [`Names::begin`] no query is answered, so recomputing a name after each probe
        // result would be wasted work.
        if !self.has_started {
            return None;
        }
        self.look_at_services(farm);
        if core::mem::take(&mut self.is_new) {
            self.dirty.clear();
            let all = 0..self.running.len();
            let looks = all.filter_map(|number| self.refresh(number, now));
            let (balanced, seen): (Vec<_>, Vec<_>) = looks.unzip();
            self.orders.push_back(NameOrder::AnswerAll(balanced));
            return Some(Arc::new(seen.into_iter().collect()));
        }
        if self.dirty.is_empty() {
            return None;
        }
        let (mut answers, mut seen) = (Vec::new(), Vec::new());
        for number in core::mem::take(&mut self.dirty) {
            if let Some((balanced, snapshot)) = self.refresh(number, now) {
                answers.push((number, balanced));
                seen.push((number, snapshot));
            }
        }
        self.orders.push_back(NameOrder::Answer(answers));
        Some(Arc::new(farm.names.with(seen)))
    }

    fn refresh(&mut self, number: usize, now: Moment) -> Option<(Arc<AddressPool>, Arc<NameSnapshot>)> {
        let running = self.running.get_mut(number)?;
        running.is_dirty = false;
        let looks = running.rank(&self.followed, &self.paths, now);
        self.schedule(number);
        Some(looks)
    }

    /// Marks the names as dirty whose services changed.
    fn look_at_services(&mut self, farm: &Snapshot) {
        let is_seen = |(services, groups): &ServersInForce| {
            Arc::ptr_eq(services, &farm.services) && Arc::ptr_eq(groups, &farm.groups)
        };
        if self.followed.is_empty() || self.seen.as_ref().is_some_and(is_seen) {
            return;
        }
        let followed = self.followed.iter_mut();
        let changed = followed.filter_map(|one| one.update(farm).then(|| one.names.clone()));
        let changed: Vec<usize> = changed.flatten().collect();
        changed.into_iter().for_each(|number| self.mark(number));
        self.seen = Some((Arc::clone(&farm.services), Arc::clone(&farm.groups)));
    }
}

fn server_name(name: &BalancedName, server: &OwnServer) -> ServerName {
    ServerName { service: name.settings.name.to_string(), server: server.name().into_owned() }
}

/// True if a name selects addresses by the latency of probes.
fn goes_by_latency(name: &BalancedName) -> bool {
    let signals = Signals { latency_us: Some(1), ..Signals::default() };
    name.weighing().is_some_and(|weighing| (weighing.load)(&signals).is_some())
}

/// Returns the paths that must be probed for a name: to the name's own servers and to the servers
/// of its services. Each path has the port of the server's agent.
fn wanted_paths(farm: &Farm, name: &BalancedName) -> Vec<(IpAddr, u16, PathProbing)> {
    let Some(probing) = &name.probe else { return Vec::new() };
    let mut wanted = Vec::new();
    match &name.from {
        AddressesFrom::Servers(list) => {
            let port = agent_port(list.settings.report.as_deref());
            wanted.extend(list.servers.iter().map(|server| (server.address.ip(), port, probing.clone())));
        }
        AddressesFrom::Services { names, .. } => {
            let is_named = |service: &str| names.iter().any(|name| name == service);
            for service in farm.services.iter().filter(|service| is_named(&service.name)) {
                let Service { servers, report, .. } = service;
                let port = agent_port(report.as_ref());
                wanted.extend(servers.iter().map(|server| (server.address, port, probing.clone())));
            }
            let members =
                farm.groups.iter().filter(|group| is_named(&group.name)).flat_map(|one| &one.members);
            let members = members.filter_map(|member| member.url.address());
            wanted.extend(members.map(|address| (address, LOAD_PORT, probing.clone())));
        }
    }
    wanted
}

/// Returns the port of a server's agent: the port of HTTP reports if they are configured, else the
/// default port.
fn agent_port(report: Option<&Reporting>) -> u16 {
    report.filter(|report| matches!(report.kind, ReportKind::Http(_))).map_or(LOAD_PORT, |report| report.port)
}
