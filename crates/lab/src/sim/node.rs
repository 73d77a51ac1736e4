//! A host that decides: its daemon, which may be dead, its data plane, which may outlive that, and what its operator wants.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use evener_core::director::{Director, Identity, Input, Moment, Output, Start};
use evener_core::peers::Key;
use evener_core::plan::ServerName;
use evener_core::sessions::{Seed, ticks};
use evener_core::wire::Mac;

use super::engine::Engine;
use super::farms::{self, Kind, LINK};

/// A host that decides.
pub(super) struct Node {
    kind: Kind,
    number: usize,
    /// How far its clock is ahead, in milliseconds.
    ahead_ms: u64,
    pub(super) director: Option<Director>,
    pub(super) engine: Engine,
    pub(super) has_carrier: bool,
    /// What its kernel has resolved.
    pub(super) neighbours: BTreeMap<IpAddr, Mac>,
    /// The servers in its file, by bits, and what the operator has drained: on disk.
    pub(super) file: u8,
    pub(super) drained: BTreeSet<ServerName>,
    /// Names of the servers that slots stood for when they were put in force.
    pub(super) names: BTreeMap<u16, ServerName>,
    /// Whether the last tables were refused.
    pub(super) refused: bool,
}

impl Node {
    pub(super) fn new(kind: Kind, number: usize) -> Node {
        Node {
            kind,
            number,
            ahead_ms: [0, 1 << 40, 12_345_678, 999][number % 4],
            director: None,
            engine: Engine::new(),
            has_carrier: true,
            neighbours: BTreeMap::new(),
            file: u8::MAX,
            drained: BTreeSet::new(),
            names: BTreeMap::new(),
            refused: false,
        }
    }

    /// Its data plane's clock.
    pub(super) fn ticks(&self, now_ms: u64) -> u32 {
        // They wrap after 52 days, as the engines' do.
        ((u128::from(now_ms + self.ahead_ms) * 1_000_000) >> 20) as u32
    }

    fn moment(&self, now_ms: u64) -> Moment {
        let lease_holds = self.engine.memory().lease.holds(self.ticks(now_ms));
        Moment { ms: now_ms + self.ahead_ms, lease_holds }
    }

    /// When its daemon wants to be told the time.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.director.as_ref().map(|director| director.next_at().saturating_sub(self.ahead_ms))
    }

    /// Starts its daemon, over what runs.
    pub(super) fn start(&mut self, now_ms: u64, incarnation: u64) {
        let farm = farms::farm(self.kind, self.file);
        let network = farms::network(self.kind, self.number, self.has_carrier, &self.neighbours);
        let (address, mac) = farms::node(self.kind, self.number);
        let among_hosts = self.kind == Kind::EveryHost;
        let identity = Identity { name: farms::name(self.number), address };
        let running = !self.engine.tables.vips.is_empty();
        let lease = self.engine.memory().lease;
        if !among_hosts {
            lease.set(None);
        }
        let lease_holds = lease.until().is_some() && lease.holds(self.ticks(now_ms));
        let start = Start {
            farm,
            network,
            links: BTreeMap::from([(LINK, mac)]),
            drained: self.drained.clone(),
            host: among_hosts.then_some((identity, Key([7; 32]), incarnation)),
            seed: Seed(1, 2),
            running: running.then(|| (*self.engine.tables).clone()),
        };
        let now = Moment { ms: now_ms + self.ahead_ms, lease_holds };
        self.director = Some(Director::new(start, now));
    }

    /// Tells its daemon a fact; what others have to do about that.
    pub(super) fn tell(&mut self, now_ms: u64, input: Input) -> Vec<Output> {
        let mut orders = Vec::new();
        let (now, ticks_now) = (self.moment(now_ms), self.ticks(now_ms));
        let Some(director) = &mut self.director else { return orders };
        director.handle(now, input);
        loop {
            let now = self.moment(now_ms);
            let Some(director) = &mut self.director else { return orders };
            match director.poll_output() {
                None => return orders,
                Some(Output::Apply { generation, tables }) => {
                    let done = self.engine.apply(&tables);
                    self.refused = done.is_err();
                    let in_force = Arc::clone(&self.engine.tables);
                    director.handle(now, Input::Applied { generation, in_force, error: done.err() });
                    if !self.refused {
                        self.names.clone_from(&director.plan().servers);
                    }
                }
                Some(Output::Forget { retired, .. }) => {
                    let (memory, tables) = (self.engine.memory(), &self.engine.tables);
                    let ids: BTreeSet<u16> = tables.vips.values().map(|vip| vip.id).collect();
                    memory.sessions.sweep(0..memory.sessions.buckets(), ticks_now, |key, value| {
                        ids.contains(&key.vip) && tables.servers.contains_key(&value.server())
                    });
                    for slot in retired {
                        director.handle(now, Input::Released { slot });
                    }
                }
                Some(Output::Lease { ms }) => {
                    let until = ticks_now.wrapping_add(ticks(ms));
                    self.engine.memory().lease.set(Some(until));
                }
                Some(order) => orders.push(order),
            }
        }
    }

    /// The time, with the load that its data plane has counted.
    pub(super) fn time(&mut self, now_ms: u64) -> Vec<Output> {
        let slots = self.director.as_ref().map(Director::own_slots).unwrap_or_default();
        let active = self.engine.memory().counts.active;
        let counts = slots.iter().filter_map(|slot| active.get(usize::from(*slot)));
        let own_sessions = counts.map(|count| count.load(std::sync::atomic::Ordering::Relaxed)).sum();
        self.tell(now_ms, Input::Time { own_sessions })
    }

    /// What its kernel knows now.
    pub(super) fn network(&self) -> Input {
        let network = farms::network(self.kind, self.number, self.has_carrier, &self.neighbours);
        Input::Network(Box::new(network))
    }

    /// Has its operator load another file.
    pub(super) fn reload(&mut self, now_ms: u64, file: u8) -> Vec<Output> {
        let farm = Box::new(farms::farm(self.kind, file));
        let network = farms::network(self.kind, self.number, self.has_carrier, &self.neighbours);
        let links = BTreeMap::from([(LINK, farms::node(self.kind, self.number).1)]);
        let orders = self.tell(now_ms, Input::Reload { farm, network: Box::new(network), links });
        if self.director.is_none() || !self.refused {
            self.file = file;
        }
        orders
    }

    /// Whether it answers ARP for an address.
    pub(super) fn answers(&self, address: IpAddr, now_ms: u64) -> bool {
        self.has_carrier && self.engine.answers(address, self.ticks(now_ms))
    }
}
