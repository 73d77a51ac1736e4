//! Executes the director's orders and reports their results to the director.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evener_core::director::{Director, Identity, Input, LoadQuery, Moment, Output, Probe, why_not_itself};
use evener_core::node::group::GroupMessage;
use evener_core::path::affinity::AffinityClient;
use evener_core::path::sessions::{SessionKey, Value, ticks};
use evener_core::path::tables::{Tables, Vip};
use evener_dataplane::{Counters, Engine, EngineError};
use tokio::sync::mpsc;

use super::changing::EngineControl;
use super::groups::GroupControl;
use super::handoff::HandoffControl;
use super::hosts::HostSocket;
use super::names::NameControl;
use super::publisher::SnapshotPublisher;
use super::session_walk::SessionUpkeep;
use super::totals::ServiceTotals;
use super::trace_control::TraceControl;
use super::{IDLE_ENGINE, clocks, now_ms};
use crate::board::PublishedState;
use crate::board::request::{GroupReply, GroupSender};
use crate::config::Config;
use crate::events::{Bus, DaemonEvent};
use crate::io::neighbours::Neighbours;
use crate::io::network::resolve;
use crate::io::probe::probe;
use crate::io::report;
use crate::io::sysctl::{ChangedSysctls, is_reverse_path_strict};
use crate::redirect::{GroupSockets, MemberMessage};

/// Name of the engine that uses the kernel's routes.
pub(super) const KERNEL_ENGINE: &str = "xdp";

/// Pause if there are no session tables.
const FIT_NEVER: Duration = Duration::from_secs(86_400);

/// The director, and all tools that execute its orders.
pub(super) struct Executor {
    pub(super) director: Director,
    /// File that the director's farm is from.
    pub(super) config: Arc<Config>,
    pub(super) engine: EngineControl,
    pub(super) neighbours: Neighbours,
    pub(super) settings: ChangedSysctls,
    /// Socket to other hosts, in an every-host farm.
    pub(super) hosts: Option<HostSocket>,
    pub(super) groups: GroupControl,
    pub(super) names: NameControl,
    /// Set when the director has become ready, until the caller reads it. True if each service has
    /// a server.
    ready: Option<bool>,
    pub(super) handing: HandoffControl,
    pub(super) trace: TraceControl,
    pub(super) totals: ServiceTotals,
    pub(super) facts: mpsc::Sender<Input>,
    pub(super) bus: Bus,
    pub(super) showing: SnapshotPublisher,
    sessions: SessionUpkeep,
}

/// Tools that execute orders.
pub(super) struct Tools {
    pub(super) engine: Box<dyn Engine>,
    pub(super) neighbours: Neighbours,
    pub(super) settings: ChangedSysctls,
    pub(super) hosts: Option<HostSocket>,
    pub(super) groups: GroupControl,
    pub(super) names: NameControl,
    pub(super) totals: ServiceTotals,
    pub(super) facts: mpsc::Sender<Input>,
}

impl Executor {
    pub(super) fn new(director: Director, config: Config, state: PublishedState, tools: Tools) -> Self {
        let Tools { engine, neighbours, settings, hosts, groups, names, totals, facts } = tools;
        Executor {
            director,
            config: Arc::new(config),
            engine: EngineControl::new(engine),
            neighbours,
            settings,
            hosts,
            groups,
            names,
            ready: None,
            handing: HandoffControl::default(),
            trace: TraceControl::new(Arc::clone(&state.recorder)),
            totals,
            facts,
            bus: state.bus.clone(),
            showing: SnapshotPublisher::begin(state),
            sessions: SessionUpkeep::default(),
        }
    }

    /// Passes an input to the director and executes its orders.
    pub(super) fn handle_fact(&mut self, input: Input) {
        self.director.handle(self.moment(), input);
        self.follow_orders();
        self.show();
    }

    /// Returns once, when the director has become ready, whether each service has a server.
    pub(super) fn take_ready(&mut self) -> Option<bool> {
        self.ready.take()
    }

    /// Starts to serve the groups of the file in force.
    pub(super) fn follow_groups(&mut self, opened: Option<GroupSockets>) {
        self.groups.follow(&self.config, opened);
        let now = self.moment();
        self.groups.cut(&mut self.director, now, &self.config);
        self.follow_orders();
    }

    /// Executes the director's pending orders.
    pub(super) fn follow_orders(&mut self) {
        while let Some(output) = self.director.poll_output() {
            self.execute(output);
        }
    }

    /// Passes the time to the director, with the session counts that are due.
    pub(super) fn time(&mut self) {
        let counts = self.engine.plane.memory().counts.active;
        let count = |slot: u16| Some((slot, counts.get(usize::from(slot))?.load(Relaxed)));
        let active = self.director.due_counts(now_ms()).filter_map(count).collect();
        self.handle_fact(Input::Time { active });
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { lease_holds: self.engine.plane.memory().lease.holds(self.engine.plane.now()), ..clocks() }
    }

    /// Handles a group member's message.
    pub(super) fn answer_member(&mut self, message: MemberMessage) {
        let now = self.moment();
        self.groups.answer(&mut self.director, now, message);
        self.follow_orders();
        self.show();
    }

    /// Like [`Executor::answer_member`], for a message through the admin interface.
    pub(super) fn answer_group(
        &mut self,
        group: &str,
        sender: &GroupSender,
        message: GroupMessage,
    ) -> GroupReply {
        let now = self.moment();
        let answer = self.groups.ordered(&mut self.director, now, group, sender, message);
        self.follow_orders();
        self.show();
        answer
    }

    fn execute(&mut self, output: Output) {
        match output {
            Output::Apply(change) => self.engine.begin(*change),
            Output::Forget { before, retired } => self.forget(&before, &retired),
            Output::Lease { ms } => {
                let until = self.engine.plane.now().wrapping_add(ticks(ms));
                self.engine.plane.memory().lease.set(Some(until));
            }
            Output::Send { to, datagram } => {
                if let Some(hosts) = &self.hosts {
                    hosts.send(to, &datagram);
                }
            }
            Output::Solicit { ifindex, sender, target } => self.neighbours.request(ifindex, sender, target),
            Output::Announce(addresses) => {
                // The interface's MAC address may have changed, and must then be announced.
                self.listen();
                self.neighbours.announce(&addresses);
            }
            Output::Resolve { ifindex, address } => {
                if let Err(error) = resolve(ifindex, address) {
                    tracing::debug!(%address, %error, "the kernel failed to resolve a next hop");
                }
            }
            Output::Probe(probe) => self.start_probe(probe),
            Output::LoadQuery(query) => self.query_load(query),
            Output::Score(scores) => self.engine.plane.score(&scores),
            Output::Limit(limits) => self.engine.plane.limit(&limits),
            Output::Name(order) => self.names.execute(order, self.director.snapshot()),
            Output::Ready { serving } => self.ready = Some(serving),
            Output::Group { group, order } => self.groups.execute(&self.config, &group, order),
            Output::Event(event) => self.bus.publish(DaemonEvent::Farm(event)),
        }
    }

    /// Ends the sessions of removed servers and service addresses. Adds the counters of removed
    /// servers to their services' totals.
    fn forget(&mut self, before: &Tables, retired: &[u16]) {
        if let Some(is_known) = self.is_known() {
            let (memory, now) = (self.engine.plane.memory(), self.engine.plane.now());
            memory.sessions.sweep(0..memory.sessions.buckets(), now, &is_known);
            memory.ports.sweep(now, is_known);
        }
        let counters = self.counters();
        for (slot, server) in retired.iter().filter_map(|slot| Some((slot, before.servers.get(slot)?))) {
            self.totals.add(server.identity, counters.servers.get(slot).copied().unwrap_or_default());
        }
        // Before the first plan, only the previous daemon's record maps removed servers to
        // services.
        if !retired.is_empty() {
            self.totals.note_plan(self.director.plan(), true);
        }
        // Published before any counter is cleared: see `SnapshotStore::moment`.
        let gone = self.totals.gone();
        self.publish(|state| state.gone = gone);
        for &slot in retired {
            match self.engine.here().map_or(Ok(()), |engine| engine.reset_server(slot)) {
                Ok(()) => self.director.handle(self.moment(), Input::Released { slot }),
                // The slot stays in use until the next server is removed.
                Err(error) => {
                    tracing::warn!(%error, "failed to clear the counters of a removed server")
                }
            }
        }
    }

    /// Walks the next tenth of the session tables. Called once a second, which keeps the counts of
    /// active sessions correct within ten seconds. Does nothing while tables change: sessions of a
    /// server that is being added would be removed.
    pub(super) fn walk_sessions(&mut self) {
        self.handing.segment_buffer.get_mut().forget_old(now_ms());
        self.engine.plane.memory().guesses.forget_old(self.engine.plane.now());
        let mut walker = std::mem::take(&mut self.sessions.walker);
        let walk = self.engine.tables().zip(self.is_known()).and_then(|(tables, is_known)| {
            let syn_idle = tables.vips.values().map(|vip| (vip.id, vip.idle.syn)).collect();
            let with_entries = tables.vips.values().filter(|vip| vip.entry_numbers().is_some());
            let with_entries: BTreeMap<u16, &Vip> = with_entries.map(|vip| (vip.id, vip)).collect();
            let (memory, now) = (self.engine.plane.memory(), self.engine.plane.now());
            walker.step(&memory.sessions, now, &syn_idle, |key, value| {
                let is_known = is_known(key, value);
                if is_known
                    && value.state().is_assured()
                    && let Some(vip) = with_entries.get(&key.vip)
                    && let Some(client) =
                        AffinityClient::of(vip, key.client, memory.sessions, memory.seed, now)
                {
                    client.refresh();
                }
                is_known
            })
        });
        self.sessions.walker = walker;
        if let Some(mut walk) = walk {
            let counted = self.counters().servers.into_iter();
            walk.connections = counted.map(|(slot, counted)| (slot, counted.connections)).collect();
            self.handle_fact(Input::Walked(Box::new(walk)));
        }
    }

    /// Resizes the session tables by one step, to fit their number of sessions. Returns the pause
    /// before the next step.
    pub(super) fn fit_sessions(&mut self) -> Duration {
        if self.is_idle() {
            return FIT_NEVER;
        }
        self.sessions.fit(&*self.engine.plane, &self.config.engine)
    }

    /// Returns a predicate that is true if a session's VIP and server are still in force, and if an
    /// affinity entry's service and server are.
    fn is_known(&self) -> Option<impl Fn(SessionKey, Value) -> bool> {
        let tables = self.engine.tables()?;
        let vips: BTreeSet<u16> = tables.vips.values().map(|vip| vip.id).collect();
        let entries: BTreeSet<(u16, u16)> = tables.vips.values().filter_map(Vip::entry_numbers).collect();
        let is_owned = self.is_not_orphan(tables);
        Some(move |key: SessionKey, value: Value| {
            let is_in_force = vips.contains(&key.vip) || entries.contains(&(key.vip, key.port));
            is_in_force && tables.servers.contains_key(&value.server()) && is_owned(key, value)
        })
    }

    fn start_probe(&self, due: Probe) {
        let facts = self.facts.clone();
        let keys = due.handed_over.then(|| self.engine.plane.memory().cookies.at(self.engine.plane.now()));
        tokio::spawn(async move {
            let timeout = Duration::from_millis(due.settings.timeout_ms);
            let result = probe(&due.target, keys.as_ref(), &due.settings.kind, timeout).await;
            // The receiver is gone only when the daemon ends.
            let _ = facts.send(Input::Probed { server: due.server, result }).await;
        });
    }

    fn query_load(&self, query: LoadQuery) {
        let facts = self.facts.clone();
        tokio::spawn(async move {
            let result = report::fetch(query.to, &query.settings).await;
            let _ = facts.send(Input::Reported { server: query.server, result }).await;
        });
    }

    pub(super) fn counters(&self) -> Counters {
        self.engine.plane.counters().unwrap_or_else(|error: EngineError| {
            tracing::warn!(%error, "failed to read the counters");
            Counters::default()
        })
    }

    /// Adapts this host to the director's interfaces and servers: listens to neighbours on the
    /// interfaces, and lets the kernel forward the packets of the farm.
    pub(super) fn follow_network(&mut self) {
        if self.is_idle() {
            return;
        }
        self.listen();
        self.neighbours.join_groups(&self.director.announceable());
        self.restore();
    }

    /// Listens to neighbours on the director's interfaces.
    fn listen(&mut self) {
        let (links, farm) = (self.director.links(), self.director.farm());
        if let Err((ifindex, error)) = self.neighbours.listen(links, farm.has_ipv6()) {
            let found = self.director.network().interfaces.get(&ifindex);
            let name = found.map_or("?", |interface| &interface.name);
            tracing::warn!(interface = name, %error, "ARP and neighbour discovery don't work on this interface");
        }
    }

    /// True if no service of the file forwards packets. Interfaces and neighbours are then
    /// irrelevant.
    pub(super) fn is_idle(&self) -> bool {
        self.engine.kind == IDLE_ENGINE
    }

    /// Returns the names of the director's interfaces.
    pub(super) fn link_names(&self) -> impl Iterator<Item = &str> {
        let interfaces = &self.director.network().interfaces;
        let found = self.director.links().keys().filter_map(|ifindex| interfaces.get(ifindex));
        found.map(|interface| interface.name.as_str())
    }

    /// Returns this host's identity, in an every-host farm.
    pub(super) fn identity(&self) -> Option<&Identity> {
        self.hosts.as_ref().map(|hosts| &hosts.identity)
    }

    /// Warns about likely mistakes in this host's own addresses and settings.
    pub(super) fn warn_of_host(&self) {
        let (farm, network) = (self.director.farm(), self.director.network());
        if farm.services.iter().any(|service| service.method.translates()) {
            for name in self.link_names().filter(|name| is_reverse_path_strict(name)) {
                tracing::warn!(
                    interface = name,
                    "the reverse path filter of this interface is strict: the kernel drops replies of nat servers if the route back to them uses another interface"
                );
            }
        }
        for service in &farm.services {
            let mut here = service.servers.iter().filter(|server| network.is_local(server.address));
            let unable =
                here.find_map(|server| Some((&server.name, why_not_itself(service, &server.name, network)?)));
            if let Some((server, reason)) = unable {
                tracing::warn!(
                    service = service.name,
                    server,
                    "no client is redirected to this member: {reason}"
                );
            }
        }
    }
}
