//! A farm while it runs: its hosts, the link between them, and time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use evener_core::director::{Input, Output, Probe};
use evener_core::farm::group::{self, Group, Members};
use evener_core::farm::plan::ServerName;
use evener_core::net::wire::Mac;
use evener_core::pool::health::Failure;

use crate::check::{self, Broken, Promise};
use crate::coverage::Coverage;
use crate::farms::{self, Kind, LINK, PROBE_TIMEOUT_MS, SERVERS, SERVERS_MAX, VIPS};
use crate::forgery::Forgery;
use crate::handoff::{self, Clocks};
use crate::history::{Line, What};
use crate::hosts::Hosts;
use crate::mutation::Mutation;
use crate::node::Node;
use crate::random::Random;
use crate::router::{self, Router};
use crate::step::{CLIENTS, RECORDED, Step};
use crate::web::{self, Web};

/// Something on its way to a node.
struct Parcel {
    due_ms: u64,
    /// That which is sent first arrives first, of those due at once.
    number: u64,
    to: usize,
    from: Option<usize>,
    what: Input,
    /// Since when the daemon lives that it is for.
    since_ms: u64,
}

/// The last connection of a client.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) node: usize,
    pub(crate) vip: IpAddr,
    pub(crate) port: u16,
    pub(crate) server: ServerName,
    pub(crate) slot: u16,
    /// Whether its server has left the file since, even for a while.
    pub(crate) lost: bool,
    pub(crate) began_ms: u64,
    /// When its last packet came.
    pub(crate) last_ms: u64,
}

/// The farm and all around it.
pub(crate) struct World {
    pub(crate) kind: Kind,
    mutation: Option<Mutation>,
    pub(crate) now_ms: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) connections: BTreeMap<usize, Connection>,
    pub(crate) history: Vec<Line>,
    pub(crate) facts: usize,
    /// Whether each server's service works, and whether it answers ARP.
    pub(crate) works: [bool; SERVERS_MAX],
    /// Since when it is as it is.
    pub(crate) works_since_ms: [u64; SERVERS_MAX],
    pub(crate) answers: [bool; SERVERS_MAX],
    /// Bit i: the side of node i.
    pub(crate) sides: u8,
    /// Bit `to * SERVERS + from`: node `to` doesn't hear node `from`.
    pub(crate) deaf: u16,
    pub(crate) loss: u8,
    pub(crate) watched: check::Watched,
    pub(crate) router: Router,
    pub(crate) hosts: Hosts,
    pub(crate) clocks: Clocks,
    parcels: Vec<Parcel>,
    sent: u64,
    /// Datagrams that somebody has listened to, of so many.
    recorded: Vec<Input>,
    posted: usize,
    /// The last one that a director has heard: whose, and since when that lives.
    heard: Option<(usize, u64, Input)>,
    pub(crate) random: Random,
    ports: u16,
    incarnation: u64,
    pub(crate) web: Web,
    pub(crate) coverage: Coverage,
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Option<Mutation>) -> World {
        let (kind, coverage) = (Kind::of(seed), Coverage::default());
        let node = |number| Node::new(kind, number, mutation, coverage.clone());
        let mut world = World {
            kind,
            mutation,
            now_ms: 10_000,
            nodes: (0..kind.nodes()).map(node).collect(),
            connections: BTreeMap::new(),
            history: Vec::new(),
            facts: 0,
            works: [true; SERVERS_MAX],
            works_since_ms: [0; SERVERS_MAX],
            answers: [true; SERVERS_MAX],
            sides: 0,
            deaf: 0,
            loss: 0,
            watched: check::Watched::default(),
            router: Router::default(),
            hosts: Hosts::default(),
            clocks: Clocks::new(kind.nodes() + kind.servers(), mutation == Some(Mutation::ClockUnheard)),
            parcels: Vec::new(),
            sent: 0,
            recorded: Vec::new(),
            posted: 0,
            heard: None,
            random: Random::new(!seed),
            ports: 1_024,
            incarnation: 0,
            web: Web::default(),
            coverage: coverage.clone(),
        };
        world.say(What::Begun(kind));
        (0..world.nodes.len()).for_each(|node| world.start(node));
        world
    }

    pub(crate) fn say(&mut self, what: What) {
        self.history.push(Line { at_ms: self.now_ms, what });
    }

    /// Does what a step says, and all that comes of it at once.
    pub(crate) fn take(&mut self, step: &Step) -> Result<(), Broken> {
        let (nodes, servers) = (self.nodes.len(), self.kind.servers());
        if !matches!(step, Step::Wait(_)) {
            self.say(What::Done(*step));
        }
        if step.is_of_all() {
            self.web.disturb(self.now_ms);
        }
        match *step {
            Step::Wait(ms) => return self.pass(ms),
            Step::Connect(client) => return check::connect(self, client % CLIENTS),
            Step::Send(client) => return check::send(self, client % CLIENTS),
            Step::Fail(server) => self.work(server % servers, false),
            Step::Work(server) => self.work(server % servers, true),
            Step::Silence(server) => self.answer(server % servers, false),
            Step::Answer(server) => self.answer(server % servers, true),
            Step::Drain(node, server) => self.drain(node % nodes, server, true),
            Step::Undrain(node, server) => self.drain(node % nodes, server, false),
            Step::Suspend(node, server) => self.suspend(node % nodes, server, true),
            Step::Resume(node, server) => self.suspend(node % nodes, server, false),
            Step::Reload(node, file) => {
                let (node, now_ms) = (node % nodes, self.now_ms);
                let orders = self.nodes[node].reload(now_ms, file);
                self.facts += 1;
                self.carry_out(node, orders);
            }
            Step::Refuse(node, at) => self.nodes[node % nodes].engine.refuse_at = Some(at),
            Step::Kill(node) => self.kill(node % nodes),
            Step::Leave(node) => self.leave(node % nodes),
            Step::Crash(node) => self.crash(node % nodes),
            Step::Start(node) => self.start(node % nodes),
            Step::Unplug(node) => self.plug(node % nodes, false),
            Step::Plug(node) => self.plug(node % nodes, true),
            Step::Split(sides) => self.part(sides),
            Step::Join => {
                self.part(0);
                self.deaf = 0;
            }
            Step::Clock(host, days) => {
                self.clocks.set(host, i64::from(days) * handoff::DAY_MS);
                web::set_clock(self, host, days.into());
            }
            Step::Deafen(to, from) => self.deaf |= 1 << (to % nodes * SERVERS + from % nodes),
            Step::Die(node, after) => self.nodes[node % nodes].dies_after = Some(after),
            Step::Visit(client) => web::visit(self, client % CLIENTS)?,
            Step::Agent(server, how) => web::act(self, server, how),
            Step::Report(server, how) => web::set_reports(self, server % servers, how),
            Step::DrainOf(consumer, server) => web::drain(self, consumer, server, true),
            Step::UndrainOf(consumer, server) => web::drain(self, consumer, server, false),
            Step::SuspendOf(consumer, server) => web::suspend(self, consumer, server, true),
            Step::ResumeOf(consumer, server) => web::suspend(self, consumer, server, false),
            Step::Rank(how) => web::set_ranks(self, how),
            Step::Message(how, server) => web::forge(self, how, server)?,
            Step::Storm(count) => web::storm(self, count),
            Step::Forgery(how, at) => self.forge(Forgery::ALL[how % Forgery::ALL.len()], at)?,
            Step::Lose(percent) => self.loss = percent,
            Step::Replay(what, to) => {
                let len = self.recorded.len().max(1);
                if let Some(recorded) = self.recorded.get(what % len).cloned() {
                    self.hosts.relay(to % nodes, self.now_ms);
                    self.send(to % nodes, None, 1, recorded);
                }
            }
            Step::Forge(what, to, at) => {
                let len = self.recorded.len().max(1);
                if let Some(Input::Datagram { from, mut bytes }) = self.recorded.get(what % len).cloned() {
                    let at = at % bytes.len().max(1);
                    bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = byte.wrapping_add(1));
                    self.send(to % nodes, None, 1, Input::Datagram { from, bytes });
                }
            }
            Step::Restart => (0..nodes).for_each(|node| {
                self.kill(node);
                self.start(node);
            }),
            Step::Leap(node, days) => {
                self.nodes[node % nodes].leap(days);
                // Its sessions have ended.
                self.connections
                    .retain(|_, connection| connection.node != node % nodes || self.kind == Kind::EveryHost);
            }
        }
        check::all(self)
    }

    /// Whether this defect is in the farm.
    pub(crate) fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// How often an engine refused tables.
    pub(crate) fn refusals(&self) -> usize {
        self.nodes.iter().map(|node| node.engine.refusals).sum()
    }

    /// Cuts the network in two. Announcements on the other side don't reach the router, which asks
    /// anew then.
    pub(crate) fn part(&mut self, sides: u8) {
        (self.sides, self.router) = (sides, Router::default());
    }

    fn answer(&mut self, server: usize, answers: bool) {
        self.answers[server] = answers;
        self.web.disturb_server(server, self.now_ms);
    }

    pub(crate) fn work(&mut self, server: usize, works: bool) {
        if self.works[server] != works {
            (self.works[server], self.works_since_ms[server]) = (works, self.now_ms);
        }
    }

    fn drain(&mut self, node: usize, server: usize, drain: bool) {
        let name = self.drainable(node, server);
        if !drain && self.nodes[node].suspended.contains(&name) {
            return;
        }
        let drained = &mut self.nodes[node].drained;
        let changed = if drain { drained.insert(name.clone()) } else { drained.remove(&name) };
        if changed {
            self.nodes[node].wanted_since_ms = self.nodes[node].drained.is_empty().then_some(self.now_ms);
            self.tell(node, Input::Drain { server: name, drain });
        }
    }

    /// The server that a node's operator means: hosts drain themselves.
    fn drainable(&self, node: usize, server: usize) -> ServerName {
        let server = if self.kind == Kind::EveryHost { node } else { server % self.kind.servers() };
        ServerName { service: farms::service(0), server: farms::name(server) }
    }

    /// Maintenance begins, or ends.
    fn suspend(&mut self, node: usize, server: usize, is_suspended: bool) {
        let name = self.drainable(node, server);
        let suspended = &mut self.nodes[node].suspended;
        if if is_suspended { suspended.insert(name.clone()) } else { suspended.remove(&name) } {
            let number = farms::number(&name.server).unwrap_or_default();
            self.web.disturb_server(number, self.now_ms);
            self.tell(node, Input::Suspend { server: name, is_suspended });
        }
        self.drain(node, server, is_suspended);
    }

    pub(crate) fn kill(&mut self, node: usize) {
        if self.kind == Kind::Web {
            web::remember_members(self);
        }
        self.nodes[node].kill(self.now_ms);
    }

    pub(crate) fn crash(&mut self, node: usize) {
        let mut fresh = Node::new(self.kind, node, self.mutation, self.coverage.clone());
        let old = &mut self.nodes[node];
        (fresh.file, fresh.has_carrier) = (old.file, old.has_carrier);
        (fresh.engine.refuse_at, fresh.engine.refusals) = (old.engine.refuse_at, old.engine.refusals);
        fresh.drained = std::mem::take(&mut old.drained);
        fresh.suspended = std::mem::take(&mut old.suspended);
        (fresh.wanted_since_ms, fresh.since_ms) = (old.wanted_since_ms, self.now_ms);
        fresh.drained_of_consumers = std::mem::take(&mut old.drained_of_consumers);
        (fresh.record, fresh.wall_off_ms) = (old.record.take(), old.wall_off_ms);
        self.hosts.forget(node);
        self.nodes[node] = fresh;
        self.connections.retain(|_, connection| connection.node != node || self.kind == Kind::EveryHost);
    }

    /// A daemon leaves, and takes its data plane along a moment later.
    pub(crate) fn leave(&mut self, node: usize) {
        let orders = self.nodes[node].leave(self.now_ms);
        self.carry_out(node, orders);
    }

    pub(crate) fn start(&mut self, node: usize) {
        if self.nodes[node].director.is_none() {
            if self.mutation != Some(Mutation::SameLife) {
                self.incarnation += 1;
            }
            let (now_ms, incarnation) = (self.now_ms, self.incarnation);
            self.web.begin(now_ms);
            if self.nodes[node].start(now_ms, incarnation) {
                self.hosts.begin_lease(node);
            }
            web::compare_members(self);
            let orders = self.nodes[node].time(now_ms);
            self.carry_out(node, orders);
        }
    }

    pub(crate) fn plug(&mut self, node: usize, has_carrier: bool) {
        self.nodes[node].has_carrier = has_carrier;
        let network = self.nodes[node].network();
        self.tell(node, network);
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, ms: u64) -> Result<(), Broken> {
        let until_ms = self.now_ms + ms;
        loop {
            let parcel = self.parcels.iter().map(|parcel| parcel.due_ms).min();
            let wake = self.nodes.iter().filter_map(Node::next_at).chain(self.web.next_at()).min();
            let work = self.nodes.iter().filter_map(Node::works_at).min();
            let leaves = self.nodes.iter().filter_map(Node::leaves_at).min();
            let next = parcel
                .into_iter()
                .chain(work)
                .chain(wake)
                .chain(leaves)
                .min()
                .filter(|next| *next <= until_ms);
            let Some(next) = next else { break };
            self.now_ms = self.now_ms.max(next);
            let due = self.parcels.iter().enumerate().filter(|(_, parcel)| parcel.due_ms <= self.now_ms);
            let first = due.min_by_key(|(_, parcel)| (parcel.due_ms, parcel.number)).map(|(at, _)| at);
            if let Some(first) = first {
                let Parcel { to, from, what, since_ms, .. } = self.parcels.swap_remove(first);
                // Questions of a daemon end with it, and the next one has other numbers for
                // members.
                let is_own = matches!(what, Input::Member { .. } | Input::Name { .. });
                if is_own && self.nodes[to].since_ms != since_ms {
                    continue;
                }
                // A kernel says how its network is now, whatever it was when the news began.
                let what = if let Input::Network(_) = what { self.nodes[to].network() } else { what };
                let by_link = matches!(what, Input::Frame { .. } | Input::Datagram { .. });
                let arrives = from.is_none_or(|from| self.hears(to, from)) && self.nodes[to].has_carrier;
                if arrives || !by_link {
                    let is_heard = self.nodes[to].director.is_some();
                    if let Input::Datagram { .. } = what
                        && is_heard
                    {
                        self.heard = Some((to, self.nodes[to].since_ms, what.clone()));
                        from.into_iter().for_each(|from| self.hosts.heard(to, from));
                    }
                    match what {
                        Input::Datagram { .. } if from.is_none() => self.judge(to, what),
                        what => self.tell(to, what),
                    }
                }
            } else if let Some(node) =
                self.nodes.iter().position(|node| node.works_at().is_some_and(|at| at <= self.now_ms))
            {
                self.go_on(node);
            } else if let Some(node) =
                self.nodes.iter().position(|node| node.leaves_at().is_some_and(|at| at <= self.now_ms))
            {
                self.crash(node);
            } else {
                web::go_on(self);
                self.wake()?;
            }
            check::all(self)?;
        }
        self.now_ms = until_ms;
        Ok(())
    }

    /// Tells the nodes the time that want to know it.
    fn wake(&mut self) -> Result<(), Broken> {
        let now_ms = self.now_ms;
        for node in 0..self.nodes.len() {
            if self.nodes[node].next_at().is_some_and(|at| at <= now_ms) {
                self.facts += 1;
                if !self.nodes[node].suspended.is_empty() {
                    self.coverage.checked(Promise::Disturbed);
                }
                let orders = self.nodes[node].time(now_ms);
                self.carry_out(node, orders);
                check::moves_on(self, node)?;
            }
        }
        Ok(())
    }

    /// Has a group's message do what it says.
    pub(crate) fn message<T>(
        &mut self,
        node: usize,
        group: &str,
        message: impl FnOnce(group::ClockReading, &Group, &mut Members) -> Result<T, T>,
    ) -> Option<T> {
        self.facts += 1;
        let (answer, orders) = self.nodes[node].message(self.now_ms, group, message);
        self.carry_out(node, orders);
        answer
    }

    pub(crate) fn tell(&mut self, node: usize, input: Input) {
        if self.nodes[node].director.is_some() {
            self.facts += 1;
        }
        let orders = self.nodes[node].tell(self.now_ms, input);
        self.carry_out(node, orders);
    }

    /// The same of a datagram that isn't what it seems: for what it was found.
    fn judge(&mut self, node: usize, input: Input) {
        let before = self.nodes[node].shown.datagrams.clone();
        self.tell(node, input);
        for (name, count) in &*self.nodes[node].shown.datagrams {
            if before.get(name) < Some(count) {
                self.coverage.forged(name);
            }
        }
    }

    /// Whether two nodes hear each other.
    pub(crate) fn reach(&self, a: usize, b: usize) -> bool {
        self.hears(a, b) && self.hears(b, a)
    }

    /// Whether what one node sends gets to another.
    pub(crate) fn hears(&self, to: usize, from: usize) -> bool {
        let plugged = |node: usize| self.nodes[node].has_carrier;
        let is_deaf = self.deaf >> (to * SERVERS + from) & 1 == 1;
        to == from
            || plugged(to) && plugged(from) && self.sides >> to & 1 == self.sides >> from & 1 && !is_deaf
    }

    /// How the network is cut in two, and who doesn't hear whom.
    pub(crate) fn parted(&self) -> (u8, u16) {
        (self.sides, self.deaf)
    }

    /// A director is told something that is not what it seems: of most of that nothing may come.
    fn forge(&mut self, forgery: Forgery, at: usize) -> Result<(), Broken> {
        let Some((to, since_ms, Input::Datagram { from, bytes })) = self.heard.clone() else { return Ok(()) };
        if self.nodes[to].director.is_none() || self.nodes[to].since_ms != since_ms {
            return Ok(());
        }
        self.finish(to);
        // A refused change may be tried again with each input.
        let waits = self.nodes[to].refused;
        let before = Arc::clone(&self.nodes[to].engine.tables);
        self.judge(to, Input::Datagram { from, bytes: forgery.make(&bytes, at) });
        self.finish(to);
        if forgery.is_nothing() && !waits {
            self.coverage.checked(Promise::Believed);
        }
        if forgery.is_nothing() && !waits && self.nodes[to].engine.tables != before {
            return Err(Promise::Believed.broken(format!("{forgery:?} by node {to}")));
        }
        Ok(())
    }

    pub(crate) fn send(&mut self, to: usize, from: Option<usize>, delay_ms: u64, what: Input) {
        self.sent += 1;
        let due_ms = self.now_ms + delay_ms;
        let since_ms = self.nodes[to].since_ms;
        self.parcels.push(Parcel { due_ms, number: self.sent, to, from, what, since_ms });
    }

    pub(crate) fn below(&mut self, bound: usize) -> u64 {
        self.random.below(bound) as u64
    }

    /// Does what a node's director has ordered.
    pub(crate) fn carry_out(&mut self, node: usize, orders: Vec<Output>) {
        let mut is_at_once = false;
        for order in orders {
            match order {
                Output::Send { to, datagram } => self.post(node, to, datagram),
                Output::Solicit { target, .. } => self.ask(node, target),
                Output::Resolve { address, .. } => self.resolve(node, address),
                Output::Probe(probe) => self.probe(node, &probe),
                Output::Event(event) => self.say(What::Event(node, event)),
                order @ (Output::Group { .. }
                | Output::Name(_)
                | Output::LoadQuery(_)
                | Output::Score(_)
                | Output::Limit(_)) => {
                    web::carry_out(self, order);
                }
                Output::Apply(change) => {
                    let delay_ms = self.takes_ms();
                    self.nodes[node].order(change, self.now_ms + delay_ms);
                    is_at_once = delay_ms == 0;
                }
                Output::Announce(addresses) => {
                    if router::reaches(self, node) {
                        addresses.into_iter().for_each(|address| self.router.learn(address, node));
                    }
                }
                // The data plane's others are done by the node.
                Output::Ready { .. } | Output::Forget { .. } | Output::Lease { .. } => {}
            }
        }
        // All that it has ordered comes before what becomes of the change.
        if is_at_once {
            self.go_on(node);
        }
    }

    /// How long a step of a change takes: mostly no time, sometimes long.
    fn takes_ms(&mut self) -> u64 {
        match self.below(8) {
            0 => self.below(400),
            1 | 2 => self.below(30),
            _ => 0,
        }
    }

    /// A node goes on with the change that is on its way.
    fn go_on(&mut self, node: usize) {
        let then_ms = self.now_ms + self.takes_ms();
        self.coverage.checked(Promise::Half);
        let orders = self.nodes[node].go_on(self.now_ms, then_ms);
        self.carry_out(node, orders);
        if self.nodes[node].works_at().is_some_and(|at| at <= self.now_ms) {
            self.go_on(node);
        }
    }

    /// A node comes to an end with all changes that are on their way.
    fn finish(&mut self, node: usize) {
        while self.nodes[node].works_at().is_some() {
            self.go_on(node);
        }
    }

    /// A datagram to another host: lost, late, twice, and recorded.
    fn post(&mut self, from: usize, to: IpAddr, datagram: Vec<u8>) {
        let Some(to) = (0..self.nodes.len()).find(|node| farms::node(self.kind, *node).0 == to) else {
            return;
        };
        let what = Input::Datagram { from: (farms::node(self.kind, from).0, 7).into(), bytes: datagram };
        // Each of all has the same chance.
        self.posted += 1;
        let at =
            if self.recorded.len() < RECORDED { self.recorded.len() } else { self.random.below(self.posted) };
        if at == self.recorded.len() {
            self.recorded.push(what.clone());
        } else if let Some(place) = self.recorded.get_mut(at) {
            *place = what.clone();
        }
        let copies = if self.below(10) == 0 { 2 } else { 1 };
        for _ in 0..copies {
            if self.below(100) < u64::from(self.loss) {
                continue;
            }
            let delay_ms = if self.below(8) == 0 { self.below(800) } else { self.below(20) };
            self.send(to, Some(from), delay_ms, what.clone());
        }
    }

    /// The owner of an address answers.
    fn ask(&mut self, node: usize, target: IpAddr) {
        let servers = 0..self.kind.servers();
        let servers = servers.filter(|server| self.kind != Kind::EveryHost && self.answers[*server]);
        let servers = servers.map(farms::server).filter(|(address, _)| *address == target);
        let mut owners: Vec<(Option<usize>, Mac)> = servers.map(|(_, mac)| (None, mac)).collect();
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if self.reach(node, other) && self.nodes[other].answers(target, self.now_ms) {
                owners.push((Some(other), farms::node(self.kind, other).1));
            }
        }
        for (from, mac) in owners {
            let delay_ms = match self.kind {
                // One order of servers, and so of slots, has one hash table for all farms.
                Kind::Web => u64::from(mac.0[5]),
                _ => self.below(5),
            };
            let bytes = arp_reply(mac, target, farms::node(self.kind, node));
            self.send(node, from, delay_ms, Input::Frame { ifindex: LINK, bytes });
        }
    }

    /// The kernel finds out the MAC of a host on the link.
    fn resolve(&mut self, node: usize, address: IpAddr) {
        let mut servers = 0..self.kind.servers();
        let Some(server) = servers.find(|server| farms::server(*server).0 == address) else { return };
        let there = match self.kind {
            Kind::EveryHost => self.reach(node, server),
            _ => self.is_reached(node, server),
        };
        let known = self.nodes[node].neighbours.contains_key(&address);
        if there && !known {
            self.nodes[node].neighbours.insert(address, farms::server(server).1);
            let network = self.nodes[node].network();
            let delay_ms = self.below(10);
            self.send(node, None, delay_ms, network);
        }
    }

    fn probe(&mut self, node: usize, probe: &Probe) {
        self.probes(node, &probe.server);
        let server = farms::number(&probe.server.server).unwrap_or_default();
        let (delay_ms, result) = self.probe_result(node, Some(server));
        self.send(node, None, delay_ms, Input::Probed { server: probe.server.clone(), result });
    }

    /// A node probes a server, which may be in maintenance.
    pub(crate) fn probes(&mut self, node: usize, server: &ServerName) {
        if self.nodes[node].suspended.contains(server) {
            self.watched.disturbed = Some(format!("{} of {} by node {node}", server.server, server.service));
        }
    }

    /// How long a node's probe takes, and what comes of it; `None` is an address without a server.
    pub(crate) fn probe_result(&mut self, node: usize, server: Option<usize>) -> (u64, Result<u64, Failure>) {
        match server.is_some_and(|server| self.answers_probe(node, server)) {
            true => (self.below(20), Ok(1_000)),
            false => (PROBE_TIMEOUT_MS, Err(Failure::Timeout)),
        }
    }

    /// Whether a server works, and a node can reach it.
    pub(crate) fn answers_probe(&self, node: usize, server: usize) -> bool {
        self.works[server] && (self.kind == Kind::EveryHost || self.is_reached(node, server))
    }

    /// Whether messages between a node and a server arrive, where servers are hosts of their own.
    pub(crate) fn is_reached(&self, node: usize, server: usize) -> bool {
        self.answers[server] && self.nodes[node].has_carrier
    }

    /// A port that no connection has had for long.
    pub(crate) fn port(&mut self) -> u16 {
        self.ports = self.ports.wrapping_add(1).max(1_024);
        self.ports
    }

    /// The service address that a client takes.
    pub(crate) fn vip(&mut self) -> IpAddr {
        VIPS[self.random.below(VIPS.len())]
    }
}

/// The answer of who has an address (RFC 826).
fn arp_reply(mac: Mac, address: IpAddr, (asker, asker_mac): (IpAddr, Mac)) -> Vec<u8> {
    let octets = |address| match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => [0; 4],
    };
    let ethernet = [&asker_mac.0[..], &mac.0, &[0x08, 0x06]].concat();
    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    [&ethernet[..], &head, &mac.0, &octets(address), &asker_mac.0, &octets(asker)].concat()
}
