//! Running farm: its hosts, the link between them, and the time.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evener_core::director::{Input, Output, Probe};
use evener_core::farm::group::{Group, Members};
use evener_core::farm::plan::ServerName;
use evener_core::pool::ClockReading;
use evener_core::pool::health::Failure;

use crate::check::{self, Broken, Promise};
use crate::coverage::{self, Coverage};
use crate::farms::{self, Kind, PROBE_TIMEOUT_MS, SERVERS, SERVERS_MAX, VIPS};
use crate::forgery::{self, Forgery, Recording};
use crate::handoff::{self, Clocks};
use crate::history::{Line, What};
use crate::hosts::Hosts;
use crate::mutation::Mutation;
use crate::node::Node;
use crate::random::Random;
use crate::rest;
use crate::router::{self, Router};
use crate::step::{CLIENTS, OperatorOrder, Step};
use crate::web::{self, Web};

/// Input in flight to a node.
struct Parcel {
    due_ms: u64,
    /// Order of sending; inputs due at the same time arrive in this order.
    number: u64,
    to: usize,
    from: Option<usize>,
    what: Input,
    /// Start time of the daemon that the input is for.
    since_ms: u64,
}

/// Before one in this many events, directors get the current time without having asked for it.
const NUDGED: usize = 32;

/// Last connection of a client.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) node: usize,
    pub(crate) vip: IpAddr,
    pub(crate) port: u16,
    pub(crate) server: ServerName,
    pub(crate) slot: u16,
    /// True if the server has left the file since, even for a while.
    pub(crate) lost: bool,
    pub(crate) began_ms: u64,
    /// Time of the connection's last packet.
    pub(crate) last_ms: u64,
}

/// Farm and its surroundings.
pub(crate) struct World {
    pub(crate) kind: Kind,
    mutation: Option<Mutation>,
    pub(crate) now_ms: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) connections: BTreeMap<usize, Connection>,
    pub(crate) history: Vec<Line>,
    pub(crate) facts: usize,
    /// True if a server's service works; `answers` is true if the server answers ARP.
    pub(crate) works: [bool; SERVERS_MAX],
    /// Time of the last change of `works`.
    pub(crate) works_since_ms: [u64; SERVERS_MAX],
    pub(crate) answers: [bool; SERVERS_MAX],
    pub(crate) answers_since_ms: [u64; SERVERS_MAX],
    /// Bit i: partition of node i.
    pub(crate) sides: u8,
    /// Bit `to * SERVERS + from`: node `to` does not receive datagrams of node `from`.
    pub(crate) deaf: u16,
    pub(crate) loss: u8,
    pub(crate) watched: check::Watched,
    pub(crate) router: Router,
    pub(crate) hosts: Hosts,
    pub(crate) clocks: Clocks,
    parcels: Vec<Parcel>,
    sent: u64,
    pub(crate) recording: Recording,
    /// Servers whose next probe fails although they work.
    hiccups: [bool; SERVERS_MAX],
    /// Duration of the next changes in milliseconds.
    slow_ms: u64,
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
            answers_since_ms: [0; SERVERS_MAX],
            sides: 0,
            deaf: 0,
            loss: 0,
            watched: check::Watched::default(),
            router: Router::default(),
            hosts: Hosts::default(),
            clocks: Clocks::new(kind.nodes() + kind.servers(), mutation == Some(Mutation::ClockUnheard)),
            parcels: Vec::new(),
            sent: 0,
            recording: Recording::default(),
            hiccups: [false; SERVERS_MAX],
            slow_ms: 0,
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

    /// Carries out a step, and then checks the promises.
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
            Step::Drain(node, server) => self.order(node % nodes, server, OperatorOrder::Drain),
            Step::Undrain(node, server) => self.order(node % nodes, server, OperatorOrder::Undrain),
            Step::Suspend(node, server) => self.order(node % nodes, server, OperatorOrder::Suspend),
            Step::Resume(node, server) => self.order(node % nodes, server, OperatorOrder::Resume),
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
            Step::DrainOf(consumer, server) => web::order(self, consumer, server, OperatorOrder::Drain),
            Step::UndrainOf(consumer, server) => web::order(self, consumer, server, OperatorOrder::Undrain),
            Step::SuspendOf(consumer, server) => web::order(self, consumer, server, OperatorOrder::Suspend),
            Step::ResumeOf(consumer, server) => web::order(self, consumer, server, OperatorOrder::Resume),
            Step::Rank(how) => web::set_ranks(self, how),
            Step::Message(how, server) => web::forge(self, how, server)?,
            Step::Storm(count) => web::storm(self, count),
            Step::Forgery(how, at) => forgery::forge(self, Forgery::ALL[how % Forgery::ALL.len()], at)?,
            Step::Lose(percent) => self.loss = percent,
            Step::Replay(what, to) => forgery::replay(self, what, to % nodes),
            Step::Forge(what, to, at) => forgery::change(self, what, to % nodes, at),
            Step::Claim(node, service) => forgery::claim(self, node % nodes, service)?,
            Step::Hiccup(server) => self.hiccups[server % servers] = true,
            Step::Slow(ms) => self.slow_ms = ms,
            Step::Busy(node, ms) => self.nodes[node % nodes].busy_until_ms = self.now_ms + ms,
            Step::Look => rest::look(self, false)?,
            Step::Restart => (0..nodes).for_each(|node| {
                self.kill(node);
                self.start(node);
            }),
            Step::Leap(node, days) => {
                self.nodes[node % nodes].leap(days);
                // The leap of the clock has ended the node's sessions.
                self.connections
                    .retain(|_, connection| connection.node != node % nodes || self.kind == Kind::EveryHost);
            }
        }
        check::all(self)
    }

    /// True if the farm has this defect.
    pub(crate) fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Number of changes that engines refused.
    pub(crate) fn refusals(&self) -> usize {
        self.nodes.iter().map(|node| node.engine.refusals).sum()
    }

    /// Ends delays and pending single failures.
    pub(crate) fn end_delays(&mut self) {
        (self.hiccups, self.slow_ms) = ([false; SERVERS_MAX], 0);
        self.nodes.iter_mut().for_each(|node| node.busy_until_ms = 0);
    }

    /// Partitions the network. The router misses announcements of the other partition, so its cache
    /// is cleared.
    pub(crate) fn part(&mut self, sides: u8) {
        (self.sides, self.router) = (sides, Router::default());
    }

    pub(crate) fn answer(&mut self, server: usize, answers: bool) {
        if self.answers[server] != answers {
            (self.answers[server], self.answers_since_ms[server]) = (answers, self.now_ms);
        }
        self.web.disturb_server(server, self.now_ms);
    }

    pub(crate) fn work(&mut self, server: usize, works: bool) {
        if self.works[server] != works {
            (self.works[server], self.works_since_ms[server]) = (works, self.now_ms);
        }
    }

    /// Returns the server that an operator's step refers to. In every-host placement a host drains
    /// itself.
    fn drainable(&self, node: usize, server: usize) -> ServerName {
        let servers = self.kind.servers();
        match self.kind {
            Kind::EveryHost => farms::server_name(0, node),
            // The second service is optional.
            Kind::Web => farms::server_name(0, server % servers),
            _ => farms::server_name(server / servers % VIPS.len(), server % servers),
        }
    }

    /// Gives an operator's order about a server of a service.
    fn order(&mut self, node: usize, server: usize, order: OperatorOrder) {
        let name = self.drainable(node, server);
        let is_maintenance = matches!(order, OperatorOrder::Suspend | OperatorOrder::Resume);
        if self.give_order(node, &name, order) && is_maintenance {
            let number = farms::number(&name.server).unwrap_or_default();
            self.web.disturb_server(number, self.now_ms);
        }
    }

    /// Gives a node an operator's order. Returns true if it changes the state.
    pub(crate) fn give_order(&mut self, node: usize, server: &ServerName, order: OperatorOrder) -> bool {
        let is_news = self.nodes[node].take_order(server, order, self.now_ms);
        if is_news {
            let state = self.nodes[node].operator.get(server).copied().unwrap_or_default();
            self.tell(node, Input::SetOperatorState { server: server.clone(), state });
        }
        is_news
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
        fresh.operator = std::mem::take(&mut old.operator);
        (fresh.wanted_since_ms, fresh.since_ms) = (old.wanted_since_ms, self.now_ms);
        (fresh.record, fresh.wall_off_ms) = (old.record.take(), old.wall_off_ms);
        self.hosts.forget(node);
        self.nodes[node] = fresh;
        self.connections.retain(|_, connection| connection.node != node || self.kind == Kind::EveryHost);
    }

    /// Makes a daemon leave; its data plane ends a moment later.
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
        let plugged = &mut self.nodes[node];
        plugged.has_carrier = has_carrier;
        if !has_carrier {
            plugged.neighbours.clear();
        }
        let network = self.nodes[node].network();
        self.tell(node, network);
    }

    /// Lets time pass, and handles the events that become due.
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
            if self.below(NUDGED) == 0 {
                self.nudge()?;
            }
            let due = self.parcels.iter().enumerate().filter(|(_, parcel)| parcel.due_ms <= self.now_ms);
            let first = due.min_by_key(|(_, parcel)| (parcel.due_ms, parcel.number)).map(|(at, _)| at);
            if let Some(first) = first {
                let parcel = self.parcels.swap_remove(first);
                let busy_until_ms = self.nodes[parcel.to].busy_until_ms;
                if busy_until_ms > self.now_ms {
                    self.parcels.push(Parcel { due_ms: busy_until_ms, ..parcel });
                    continue;
                }
                let Parcel { to, from, what, since_ms, .. } = parcel;
                // Answers to a daemon's queries end with the daemon: its successor numbers members
                // differently.
                let is_own = matches!(what, Input::Member { .. } | Input::Name { .. });
                if is_own && self.nodes[to].since_ms != since_ms {
                    continue;
                }
                // The network is read at delivery, as from a kernel.
                let what = if let Input::Network(_) = what { self.nodes[to].network() } else { what };
                let by_link = matches!(what, Input::Frame { .. } | Input::Datagram { .. });
                let arrives = from.is_none_or(|from| self.hears(to, from)) && self.nodes[to].has_carrier;
                if arrives || !by_link {
                    let is_heard = self.nodes[to].director.is_some();
                    if let Input::Datagram { .. } = what
                        && is_heard
                    {
                        self.recording.hear(to, self.nodes[to].since_ms, &what);
                        from.into_iter().for_each(|from| self.hosts.heard(to, from));
                    }
                    match what {
                        Input::Datagram { .. } if from.is_none() => forgery::judge(self, to, what),
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

    /// Gives the time to nodes that did not ask for it, and checks that nothing happens.
    fn nudge(&mut self) -> Result<(), Broken> {
        for number in 0..self.nodes.len() {
            let node = &mut self.nodes[number];
            let (now_ms, before) = (self.now_ms, node.next_at());
            if node.busy_until_ms > now_ms || before.is_none_or(|at_ms| at_ms <= now_ms) {
                continue;
            }
            self.coverage.checked(Promise::Hasty);
            let orders = node.time(now_ms);
            // The daemon may also die at this moment.
            let is_hasty = !orders.is_empty() || node.director.is_some() && node.next_at() != before;
            let named: Vec<_> = orders.iter().map(coverage::name_of_output).collect();
            let what = format!("node {number}, {named:?}, next at {:?} and not {before:?}", node.next_at());
            self.carry_out(number, orders);
            if is_hasty {
                return Err(Promise::Hasty.broken(what));
            }
        }
        Ok(())
    }

    /// Gives the time to nodes that asked for it.
    fn wake(&mut self) -> Result<(), Broken> {
        let now_ms = self.now_ms;
        for node in 0..self.nodes.len() {
            if self.nodes[node].next_at().is_some_and(|at| at <= now_ms) {
                self.facts += 1;
                if self.nodes[node].operator.values().any(|state| state.is_suspended()) {
                    self.coverage.checked(Promise::Disturbed);
                }
                let orders = self.nodes[node].time(now_ms);
                self.carry_out(node, orders);
                check::moves_on(self, node)?;
            }
        }
        Ok(())
    }

    /// Delivers a message to a group.
    pub(crate) fn message<T>(
        &mut self,
        node: usize,
        group: &str,
        message: impl FnOnce(ClockReading, &Group, &mut Members) -> Result<T, T>,
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

    pub(crate) fn send(&mut self, to: usize, from: Option<usize>, delay_ms: u64, what: Input) {
        self.sent += 1;
        let due_ms = self.now_ms + delay_ms;
        let since_ms = self.nodes[to].since_ms;
        self.parcels.push(Parcel { due_ms, number: self.sent, to, from, what, since_ms });
    }

    pub(crate) fn below(&mut self, bound: usize) -> u64 {
        self.random.below(bound) as u64
    }

    /// Carries out a director's outputs.
    pub(crate) fn carry_out(&mut self, node: usize, orders: Vec<Output>) {
        let mut is_at_once = false;
        for order in orders {
            match order {
                Output::Send { to, datagram } => self.post(node, to, datagram),
                Output::Solicit { target, .. } => self.ask(node, target),
                Output::Resolve { address, .. } => self.resolve(node, address),
                Output::Probe(probe) => self.probe(node, &probe),
                Output::Event(event) => self.say(What::Event(node, event)),
                order
                @ (Output::Group { .. } | Output::Name(_) | Output::LoadQuery(_) | Output::Score(_)) => {
                    web::carry_out(self, order)
                }
                Output::Limit(limits) => self.nodes[node].engine.memory().counts.limit(&limits),
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
                // The node has carried out the other outputs for the data plane.
                Output::Ready { .. } | Output::Forget { .. } | Output::Lease { .. } => {}
            }
        }
        // All outputs are carried out before the next stage of the change.
        if is_at_once {
            self.go_on(node);
        }
    }

    /// Returns the duration of a stage of a change: mostly zero, sometimes long.
    fn takes_ms(&mut self) -> u64 {
        if self.slow_ms > 0 {
            return self.slow_ms;
        }
        match self.below(8) {
            0 => self.below(400),
            1 | 2 => self.below(30),
            _ => 0,
        }
    }

    /// Runs the next stage of a node's change.
    fn go_on(&mut self, node: usize) {
        let then_ms = self.now_ms + self.takes_ms();
        self.coverage.checked(Promise::Half);
        let orders = self.nodes[node].go_on(self.now_ms, then_ms);
        self.carry_out(node, orders);
        if self.nodes[node].works_at().is_some_and(|at| at <= self.now_ms) {
            self.go_on(node);
        }
    }

    /// Completes all running changes of a node.
    pub(crate) fn finish(&mut self, node: usize) {
        while self.nodes[node].works_at().is_some() {
            self.go_on(node);
        }
    }

    fn probe(&mut self, node: usize, probe: &Probe) {
        self.probes(node, &probe.server);
        let server = farms::number(&probe.server.server).unwrap_or_default();
        let (delay_ms, result) = self.probe_result(node, Some(server));
        self.send(node, None, delay_ms, Input::Probed { server: probe.server.clone(), result });
    }

    /// Records a violation if a node probes a server in maintenance.
    pub(crate) fn probes(&mut self, node: usize, server: &ServerName) {
        if self.nodes[node].operator.get(server).is_some_and(|state| state.is_suspended()) {
            self.watched.disturbed = Some(format!("{} of {} by node {node}", server.server, server.service));
        }
    }

    /// Returns delay and result of a node's probe; `None` for an address without a server.
    pub(crate) fn probe_result(&mut self, node: usize, server: Option<usize>) -> (u64, Result<u64, Failure>) {
        if let Some(server) = server.filter(|server| self.hiccups[*server]) {
            self.hiccups[server] = false;
            self.web.disturb_server(server, self.now_ms);
            return (PROBE_TIMEOUT_MS, Err(Failure::Timeout));
        }
        match server.is_some_and(|server| self.answers_probe(node, server)) {
            true => (self.below(20), Ok(1_000)),
            false => (PROBE_TIMEOUT_MS, Err(Failure::Timeout)),
        }
    }

    /// True if a server works and is reachable from a node.
    pub(crate) fn answers_probe(&self, node: usize, server: usize) -> bool {
        self.works[server] && (self.kind == Kind::EveryHost || self.is_reached(node, server))
    }

    /// True if messages between a node and a server arrive. Only for servers that are separate
    /// hosts.
    pub(crate) fn is_reached(&self, node: usize, server: usize) -> bool {
        self.answers[server] && self.nodes[node].has_carrier
    }

    /// Returns a port that no recent connection has used.
    pub(crate) fn port(&mut self) -> u16 {
        self.ports = self.ports.wrapping_add(1).max(1_024);
        self.ports
    }

    /// Returns a random service address for a client.
    pub(crate) fn vip(&mut self) -> IpAddr {
        let service = self.random.below(VIPS.len());
        self.nodes[0].file().vip(service)
    }
}
