//! Node: host with a director. Contains its daemon, which may be dead, its data plane, which may
//! outlive the daemon, and its operator's orders.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::director::{
    Applied, Change, Director, Identity, Input, Moment, OperatorStates, Output, Snapshot, Start,
};
use evener_core::farm::Farm;
use evener_core::farm::group::{Group, Members};
use evener_core::farm::plan::ServerName;
use evener_core::net::Protocol;
use evener_core::net::wire::Mac;
use evener_core::path::seed::Seed;
use evener_core::path::sessions::ticks;
use evener_core::path::tables::VipKey;
use evener_core::pool::ClockReading;
use evener_core::pool::OperatorState;
use evener_core::pool::policy::Fills;
use evener_core::server::{self, Offer};

use crate::check::Broken;
use crate::coverage::Coverage;
use crate::engine::{Engine, MARK_KEY};
use crate::farms::{self, Kind, LINK, SERVERS, VIPS};
use crate::forgery;
use crate::handoff::BEGUN_MS;
use crate::mutation::Mutation;
use crate::step::OperatorOrder;
use crate::streaks::Streaks;
use crate::web;

/// Time for which a leaving daemon waits for a running change, in milliseconds.
const HANDOVER_MS: u64 = 500;
/// Maximum number of cached hash tables per thread, of 128 KiB each.
const KEPT: usize = 512;

thread_local! {
    /// Cache of hash tables. A table depends only on its members, so all farms of a thread share
    /// the cache.
    static FILLS: RefCell<Fills> = const { RefCell::new(Fills::keeping(KEPT)) };
}

/// Change that a daemon has ordered.
struct Work {
    /// Time of the next stage, in milliseconds.
    due_ms: u64,
    stage: Stage,
    /// Snapshot that was shown when the change was ordered.
    shown: Arc<Snapshot>,
}

enum Stage {
    Ordered(Box<Change>),
    Answered(Box<Applied>),
}

pub(crate) struct Node {
    kind: Kind,
    number: usize,
    mutation: Option<Mutation>,
    pub(crate) coverage: Coverage,
    /// Offset of the node's clock in milliseconds.
    pub(crate) ahead_ms: u64,
    pub(crate) director: Option<Director>,
    pub(crate) engine: Engine,
    /// Time of the daemon's last start or end.
    pub(crate) since_ms: u64,
    pub(crate) has_carrier: bool,
    /// Neighbours in the node's kernel.
    pub(crate) neighbours: BTreeMap<IpAddr, Mac>,
    /// File on disk: bits of the servers.
    pub(crate) file: u8,
    /// Files that were in force since the promises were last checked.
    pub(crate) files_had: Vec<u8>,
    /// Files that come into force with the answer to a change of this number.
    files: VecDeque<(u64, u8)>,
    work: Option<Work>,
    /// Record of the group's members, on disk.
    pub(crate) record: Option<String>,
    /// Operator states of servers, on disk.
    pub(crate) operator: OperatorStates,
    /// Offset of the wall clock in milliseconds.
    pub(crate) wall_off_ms: i64,
    /// State of the node as a server. First, the time since when its operator lets it take
    /// connections. Then the sockets in its kernel by client and port, and the tunnels that it
    /// accepts.
    pub(crate) wanted_since_ms: Option<u64>,
    pub(crate) sockets: BTreeSet<(usize, u16)>,
    pub(crate) tunnels: server::Tables,
    /// Time when a leaving daemon ends.
    leaves_at: Option<u64>,
    /// Servers that the data plane selects for new connections, by service, as bits.
    pub(crate) rings: [u32; VIPS.len()],
    /// Server of each slot, as of the last change.
    pub(crate) names: BTreeMap<u16, ServerName>,
    /// True if the engine refused the last tables.
    pub(crate) refused: bool,
    /// True if the refused change was partly applied.
    pub(crate) is_half: bool,
    /// Time of the last change given to the engine.
    pub(crate) asked_ms: u64,
    /// Number of outputs until the daemon dies.
    pub(crate) dies_after: Option<usize>,
    /// Snapshot that the host shows.
    pub(crate) shown: Arc<Snapshot>,
    /// Part of a snapshot that was shown during a change although it was not in force.
    pub(crate) half_shown: Option<&'static str>,
    /// Servers in the first service's last non-empty ring, as bits.
    pub(crate) last_good: u32,
    /// Failed probes in a row, as its director has received them.
    streaks: Streaks,
    /// Violation: a server failed too early.
    pub(crate) early: Option<Broken>,
    /// Time until which the daemon is busy and receives no inputs.
    pub(crate) busy_until_ms: u64,
    /// True if the daemon got an input since the promises were last checked.
    pub(crate) news: bool,
    next_at: Option<u64>,
}

impl Node {
    pub(crate) fn new(kind: Kind, number: usize, mutation: Option<Mutation>, coverage: Coverage) -> Node {
        let mut engine = Engine::new();
        engine.forgets_ends = mutation == Some(Mutation::LeaseHoldsAgain);
        engine.ignores_routes = mutation == Some(Mutation::RoutesIgnored);
        Node {
            kind,
            number,
            mutation,
            coverage,
            ahead_ms: [0, 1 << 40, 12_345_678, 999][number % 4],
            director: None,
            engine,
            since_ms: 0,
            has_carrier: true,
            neighbours: BTreeMap::new(),
            file: u8::MAX,
            files_had: Vec::new(),
            files: VecDeque::new(),
            work: None,
            record: None,
            operator: OperatorStates::new(),
            wall_off_ms: 0,
            wanted_since_ms: Some(0),
            sockets: BTreeSet::new(),
            tunnels: tunnels(kind, number),
            leaves_at: None,
            rings: [0; VIPS.len()],
            names: BTreeMap::new(),
            refused: false,
            is_half: false,
            asked_ms: 0,
            dies_after: None,
            shown: Arc::default(),
            half_shown: None,
            last_good: 0,
            streaks: Streaks::default(),
            early: None,
            busy_until_ms: 0,
            news: true,
            next_at: None,
        }
    }

    /// Current time of the data plane's clock, in ticks.
    pub(crate) fn ticks(&self, now_ms: u64) -> u32 {
        // Ticks wrap after 52 days, as in the engines.
        ((u128::from(now_ms + self.ahead_ms) * 1_000_000) >> 20) as u32
    }

    fn moment(&self, now_ms: u64) -> Moment {
        let lease_holds = self.engine.lease_holds(self.ticks(now_ms));
        let unix_ms = (BEGUN_MS + now_ms).saturating_add_signed(self.wall_off_ms);
        let second_of_day = (unix_ms / 1_000 % 86_400) as u32;
        Moment { ms: now_ms + self.ahead_ms, unix_ms, second_of_day, lease_holds }
    }

    /// Time when the daemon wants to be woken.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.next_at.filter(|_| self.takes_part()).map(|at_ms| at_ms.max(self.busy_until_ms))
    }

    /// True if the daemon runs and is not leaving.
    pub(crate) fn takes_part(&self) -> bool {
        self.director.is_some() && self.leaves_at.is_none()
    }

    /// Time when a leaving daemon ends.
    pub(crate) fn leaves_at(&self) -> Option<u64> {
        self.leaves_at
    }

    /// True if another file is about to come into force.
    pub(crate) fn is_reloading(&self) -> bool {
        !self.files.is_empty()
    }

    /// True if a change is pending, also for a retry.
    pub(crate) fn waits(&self) -> bool {
        self.shown.wanted != self.shown.generation || !self.is_settled()
    }

    /// True if this host, as a server, has a service address.
    pub(crate) fn serves(&self, vip: IpAddr) -> bool {
        self.engine.tables.vips.keys().any(|key| key.address == vip)
    }

    /// Returns the list of servers in the node's file.
    pub(crate) fn list(&self) -> u8 {
        self.file & ((1 << SERVERS) - 1)
    }

    /// True if all files that were in force since the promises were last checked contain the server
    /// and the address.
    pub(crate) fn lists(&self, name: &ServerName, vip: IpAddr) -> bool {
        self.files_had.iter().chain([&self.file]).all(|bits| {
            let file = farms::File { kind: self.kind, bits: *bits };
            let has_service = self.kind != Kind::Web || web::has_service(*bits, &name.service);
            let has_vip = (0..VIPS.len()).any(|service| file.vip(service) == vip);
            let has_server = farms::number(&name.server).is_some_and(|server| farms::lists(*bits, server));
            has_service && has_vip && has_server
        })
    }

    /// Returns the operator's file.
    pub(crate) fn file(&self) -> farms::File {
        farms::File { kind: self.kind, bits: self.file }
    }

    /// True if the daemon runs and all inputs are in force.
    pub(crate) fn is_sure(&self) -> bool {
        let is_at_rest = self.is_settled() && !self.is_reloading() && self.works_at().is_none();
        self.takes_part() && is_at_rest && !self.refused && self.shown.generation > 0
    }

    /// Servers in the operator's file, as bits.
    pub(crate) fn listed(&self) -> u32 {
        (0..self.kind.servers())
            .filter(|server| farms::lists(self.file, *server))
            .fold(0, |all, server| all | 1 << server)
    }

    /// Makes the daemon leave the farm. It ends a little later.
    pub(crate) fn leave(&mut self, now_ms: u64) -> Vec<Output> {
        if !self.takes_part() {
            return Vec::new();
        }
        (self.leaves_at, self.since_ms) = (Some(now_ms + HANDOVER_MS), now_ms);
        self.tell(now_ms, Input::Leave)
    }

    /// Starts the daemon and adopts the running data plane. Returns true if the host gets its
    /// initial lease.
    pub(crate) fn start(&mut self, now_ms: u64, incarnation: u64) -> bool {
        let farm = self.farm(self.file);
        let network = farms::network(self.kind, self.number, self.has_carrier, &self.neighbours);
        let (address, mac) = farms::node(self.kind, self.number);
        let among_hosts = self.kind == Kind::EveryHost;
        let identity = Identity { name: farms::name(self.number), address };
        let running = !self.engine.tables.vips.is_empty() && !self.has(Mutation::AdoptsNothing);
        self.since_ms = now_ms;
        self.streaks.clear();
        let lease = self.engine.memory().lease;
        let now = self.ticks(now_ms);
        let begins_lease = among_hosts && lease.until().is_none();
        let lease_holds = lease.until().is_some() && self.engine.lease_holds(now);
        if !among_hosts {
            lease.set(None);
        } else if begins_lease {
            lease.set(Some(now.wrapping_add(ticks(farm.lease_ms()))));
        }
        let start = Start {
            farm,
            network,
            links: BTreeMap::from([(LINK, mac)]),
            operator: self.operator.clone(),
            host: among_hosts.then_some((identity, farms::KEY, incarnation)),
            seed: Seed(1, 2),
            running: running.then(|| (*self.engine.tables).clone()),
            groups: self.kept_groups(),
        };
        let now = Moment { lease_holds, ..self.moment(now_ms) };
        let director = Director::new(start, now);
        self.shown = Arc::clone(director.snapshot());
        self.director = Some(director);
        self.look();
        begins_lease
    }

    /// Gives the daemon an input. Returns the outputs for the world, among them ordered changes.
    pub(crate) fn tell(&mut self, now_ms: u64, input: Input) -> Vec<Output> {
        let orders = self.handle(now_ms, input);
        self.look();
        orders
    }

    /// Delivers a message to a group. Returns the answer, and the outputs for the world.
    pub(crate) fn message<T>(
        &mut self,
        now_ms: u64,
        group: &str,
        message: impl FnOnce(ClockReading, &Group, &mut Members) -> Result<T, T>,
    ) -> (Option<T>, Vec<Output>) {
        let now = self.moment(now_ms);
        let Some(director) = self.director.as_mut().filter(|_| self.leaves_at.is_none()) else {
            return (None, Vec::new());
        };
        let answer = director.message(now, group, message);
        let orders = self.collect(now_ms);
        self.look();
        (answer, orders)
    }

    /// True if the operator has drained the server.
    pub(crate) fn has_drained(&self, server: &ServerName) -> bool {
        self.operator.contains_key(server)
    }

    /// Applies an operator's order. Returns true if it changes the state.
    pub(crate) fn take_order(&mut self, server: &ServerName, order: OperatorOrder, now_ms: u64) -> bool {
        let before = self.operator.get(server).copied().unwrap_or_default();
        let state = order.after(before);
        if state == OperatorState::Ready {
            self.operator.remove(server);
        } else {
            self.operator.insert(server.clone(), state);
        }
        if before.is_drained() != state.is_drained() {
            self.wanted_since_ms = self.operator.is_empty().then_some(now_ms);
        }
        before != state
    }

    /// Records of the group's members on disk.
    fn kept_groups(&self) -> BTreeMap<String, String> {
        self.record.iter().map(|record| (web::GROUP.to_owned(), record.clone())).collect()
    }

    /// Starts an ordered change.
    pub(crate) fn order(&mut self, change: Box<Change>, due_ms: u64) {
        if let Some(director) = &self.director {
            let shown = Arc::clone(director.snapshot());
            self.work = Some(Work { due_ms, stage: Stage::Ordered(change), shown });
        }
    }

    /// Time of the running change's next stage.
    pub(crate) fn works_at(&self) -> Option<u64> {
        self.work.as_ref().map(|work| work.due_ms)
    }

    /// True if the data plane may have changed without the director's knowledge yet.
    pub(crate) fn is_answering(&self) -> bool {
        self.work.as_ref().is_some_and(|work| matches!(work.stage, Stage::Answered(_)))
    }

    /// True if no change is awaited: all inputs are in force or were refused.
    pub(crate) fn is_settled(&self) -> bool {
        self.director.as_ref().is_none_or(|director| director.awaited().is_none())
    }

    /// Runs the next stage of a change: the engine applies it, or the director gets the answer. The
    /// stage after that is due at `then_ms`.
    pub(crate) fn go_on(&mut self, now_ms: u64, then_ms: u64) -> Vec<Output> {
        let Some(Work { stage, shown, .. }) = self.work.take() else { return Vec::new() };
        self.look_halfway(&shown);
        match stage {
            Stage::Ordered(change) => {
                if !self.dies(now_ms) {
                    self.asked_ms = now_ms;
                    let answer = self.carry_out(*change);
                    if !self.dies(now_ms) {
                        self.work =
                            Some(Work { due_ms: then_ms, stage: Stage::Answered(Box::new(answer)), shown });
                    }
                }
                self.look();
                Vec::new()
            }
            Stage::Answered(answer) => {
                let number = answer.number;
                let orders = self.tell(now_ms, Input::Applied(answer));
                if self.files.front().is_some_and(|(reload, _)| *reload <= number) {
                    self.files_had.push(self.file);
                    self.streaks.reload();
                    let reloaded = self.files.pop_front().filter(|_| !self.refused);
                    self.file = reloaded.map_or(self.file, |(_, file)| file);
                    self.last_good &= self.listed();
                }
                orders
            }
        }
    }

    fn look(&mut self) {
        let next_at = self.director.as_ref().map(Director::next_at);
        (self.news, self.next_at) = (true, next_at.map(|at| at.saturating_sub(self.ahead_ms)));
        if self.refused && self.has(Mutation::SleepsOn) {
            self.next_at = None;
        }
    }

    fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// True if a mutation suppresses this input.
    fn misses(&self, input: &Input) -> bool {
        match input {
            Input::SetOperatorState { .. } => self.has(Mutation::DrainUnheard),
            Input::Probed { result, .. } => result.is_err() && self.has(Mutation::FailureUntold),
            _ => false,
        }
    }

    fn handle(&mut self, now_ms: u64, input: Input) -> Vec<Output> {
        let input = match input {
            Input::Datagram { from, bytes } if self.has(Mutation::BelievesStrangers) => {
                Input::Datagram { from, bytes: forgery::sealed(&bytes) }
            }
            input => input,
        };
        let mut now = self.moment(now_ms);
        let is_over = self.leaves_at.is_some() && !matches!(input, Input::Leave | Input::Applied(_));
        if is_over || self.misses(&input) {
            return Vec::new();
        }
        if self.has(Mutation::LateClock) {
            now.ms -= 1;
        }
        let Some(director) = &mut self.director else { return Vec::new() };
        self.coverage.count_input(&input);
        self.streaks.told(&input, &self.shown);
        director.handle(now, input);
        self.collect(now_ms)
    }

    /// Collects the director's outputs and carries out those for the data plane.
    fn collect(&mut self, now_ms: u64) -> Vec<Output> {
        let (mut orders, ticks_now) = (Vec::new(), self.ticks(now_ms));
        loop {
            let now = self.moment(now_ms);
            if self.dies(now_ms) {
                return orders;
            }
            let Some(director) = &mut self.director else { return orders };
            let output = director.poll_output();
            output.iter().for_each(|output| self.coverage.count_output(output));
            match output {
                None => {
                    self.shown = Arc::clone(director.snapshot());
                    return orders;
                }
                Some(Output::Forget { retired, .. }) => {
                    let [sweeps_all, sweeps_nothing] =
                        [Mutation::SweepsAll, Mutation::SweepsNothing].map(|one| self.mutation == Some(one));
                    let (memory, tables) = (self.engine.memory(), &self.engine.tables);
                    let ids: BTreeSet<u16> = tables.vips.values().map(|vip| vip.id).collect();
                    memory.sessions.sweep(0..memory.sessions.buckets(), ticks_now, |key, value| {
                        ids.contains(&key.vip) && tables.servers.contains_key(&value.server()) && !sweeps_all
                            || sweeps_nothing
                    });
                    for slot in retired {
                        let released = Input::Released { slot };
                        self.coverage.count_input(&released);
                        director.handle(now, released);
                    }
                }
                Some(Output::Lease { ms }) => {
                    let until = ticks_now.wrapping_add(ticks(ms));
                    let until = Some(until).filter(|_| self.mutation != Some(Mutation::LeaseEndless));
                    self.engine.memory().lease.set(until);
                }
                Some(order) => {
                    if let Output::Event(event) = &order
                        && let Err(early) = self.streaks.happened(event, &self.coverage)
                    {
                        self.early = Some(early);
                    }
                    orders.push(order);
                }
            }
        }
    }

    /// True if the daemon dies now, between two outputs.
    fn dies(&mut self, now_ms: u64) -> bool {
        let dies = self.dies_after.take_if(|left| *left == 0).is_some();
        if dies {
            self.kill(now_ms);
        }
        self.dies_after = self.dies_after.map(|left| left - 1);
        dies
    }

    /// Takes a snapshot during a change: it must equal the one before, except for a pending reload.
    fn look_halfway(&mut self, before: &Snapshot) {
        let Some(director) = &self.director else { return };
        let mut half = Snapshot::clone(director.snapshot());
        if self.mutation == Some(Mutation::ShowsHalf)
            && let Some((_, file)) = self.files.front()
        {
            half.farm = Arc::new(self.farm(*file));
        }
        self.half_shown = match () {
            () if !Arc::ptr_eq(&half.plan, &before.plan) => Some("tables"),
            () if !Arc::ptr_eq(&half.farm, &before.farm) && *half.farm != *before.farm => Some("a farm"),
            () if half.generation != before.generation => Some("a generation"),
            () if half.services != before.services => Some("servers"),
            () if half.hosts != before.hosts => Some("hosts"),
            () => None,
        };
    }

    /// Plans a change and applies its tables. Returns the tables in force, and the error if the
    /// change failed.
    fn carry_out(&mut self, change: Change) -> Applied {
        let planned = FILLS.with_borrow_mut(|fills| change.plan(fills));
        let before = Arc::clone(&self.engine.tables);
        let tables = planned.tables().ok().flatten().map(Arc::clone);
        let error = tables.as_ref().and_then(|tables| self.engine.apply(tables).err());
        self.refused = error.is_some();
        self.is_half = self.refused && (self.is_half || self.engine.tables != before);
        let wanted = tables.unwrap_or_else(|| Arc::clone(&before));
        self.names = farms::names(&self.engine.tables);
        self.rings = VIPS.map(|vip| self.ring(vip));
        if !self.refused {
            let ring = self.ring(VIPS[0]);
            self.last_good = if ring == 0 { self.last_good } else { ring };
        } else {
            // Servers that the engine lost in a partial change can't stay.
            self.last_good &= self.ring(VIPS[0]);
        }
        match self.mutation.filter(|_| self.refused) {
            Some(Mutation::KeepsRefused) => {
                self.engine.tables = wanted;
                planned.answer(before, error)
            }
            Some(Mutation::BelievesOrders) => planned.answer(wanted, None),
            _ => planned.answer(Arc::clone(&self.engine.tables), error),
        }
    }

    /// Kills the daemon; the data plane runs on.
    pub(crate) fn kill(&mut self, now_ms: u64) {
        // The next daemon starts from the engine's tables.
        self.busy_until_ms = 0;
        (self.refused, self.is_half, self.work, self.leaves_at) = (false, false, None, None);
        // The next daemon reads the last file that the operator has written.
        self.files_had.push(self.file);
        self.file = self.files.drain(..).next_back().map_or(self.file, |(_, file)| file);
        self.last_good &= self.listed();
        if self.director.take().is_some() {
            self.since_ms = now_ms;
        }
    }

    /// Moves the clock of data plane and daemon forward.
    pub(crate) fn leap(&mut self, days: u64) {
        self.ahead_ms += days * 86_400_000;
        self.look();
    }

    /// Gives the daemon the time and the data plane's session counts.
    pub(crate) fn time(&mut self, now_ms: u64) -> Vec<Output> {
        let (counts, now) = (self.engine.memory().counts.active, self.moment(now_ms));
        let count = |slot: u16| Some((slot, counts.get(usize::from(slot))?.load(Relaxed)));
        let due = self.director.iter().flat_map(|director| director.due_counts(now.ms));
        let active = due.filter_map(count).collect();
        self.tell(now_ms, Input::Time { active })
    }

    /// Returns the network as the kernel describes it now.
    pub(crate) fn network(&self) -> Input {
        let network = farms::network(self.kind, self.number, self.has_carrier, &self.neighbours);
        Input::Network(Box::new(network))
    }

    pub(crate) fn reload(&mut self, now_ms: u64, file: u8) -> Vec<Output> {
        let farm = Box::new(self.farm(file));
        let network = farms::network(self.kind, self.number, self.has_carrier, &self.neighbours);
        let links = BTreeMap::from([(LINK, farms::node(self.kind, self.number).1)]);
        let reload = Input::Reload { farm, network: Box::new(network), links, groups: self.kept_groups() };
        let orders = self.tell(now_ms, reload);
        match self.director.as_ref().and_then(Director::awaited) {
            Some(number) => self.files.push_back((number, file)),
            None => {
                self.streaks.reload();
                self.files_had.push(self.file);
                self.file = file;
            }
        }
        orders
    }

    /// Returns the farm of a file.
    fn farm(&self, file: u8) -> Farm {
        let mut farm = farms::farm(self.kind, file);
        if self.has(Mutation::KeepsNone) {
            farm.services.iter_mut().for_each(|service| service.keep_last = false);
        }
        if self.has(Mutation::StartsAtOnce) {
            web::start_at_once(&mut farm);
        }
        farm
    }
}

/// Returns the tables for decapsulation: hosts accept tunnel packets of other hosts, with marks.
fn tunnels(kind: Kind, number: usize) -> server::Tables {
    let offer = Offer { is_marked: true, ..Offer::default() };
    let key = |vip| VipKey { address: vip, port: 80, protocol: Protocol::Tcp };
    server::Tables {
        addresses: BTreeSet::from([farms::node(kind, number).0]),
        directors: (0..kind.nodes()).map(|node| farms::node(kind, node).0).collect(),
        services: VIPS.iter().map(|vip| (key(*vip), offer)).collect(),
        marks: Some(MARK_KEY),
    }
}
