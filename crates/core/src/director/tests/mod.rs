//! One director. The test takes the part of the engine, of the prober and of the network.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::change::RETRY_MS;
use super::*;
use crate::farm::network::tests::{director as network, ip};
use crate::farm::{self, Server, example};
use crate::path::tables::Tables;
use crate::pool::health::Failure;
use crate::pool::policy::Fills;
use crate::pool::{HealthKind, OperatorState};

mod consumers;
mod events;
mod every_host;
mod handshakes;
mod hosts;
mod meanwhile;
mod names;
mod operator;
mod paths;
mod probes;
mod reports;
mod services;
mod slow_start;
mod snapshot;
mod states;

/// A director with its simulated engine.
struct World {
    director: Director,
    now_ms: u64,
    in_force: Arc<Tables>,
    /// Error with which the engine refuses the next generation; `None` if it applies the
    /// generation.
    refusal: Option<String>,
    /// True if the engine answers only when the test calls [`World::answer`].
    is_slow: bool,
    on_its_way: Option<Change>,
    fills: Fills,
    /// Number of generations that the engine has applied.
    applied: usize,
    /// All orders since the test last cleared the list.
    orders: Vec<Output>,
}

fn farm(servers: &[(&str, u8)]) -> Farm {
    let server = |(name, number): &(&str, u8)| Server {
        mac: Some(Mac([2, 0, 0, 0, 1, *number])),
        ..example::server(name, IpAddr::from([192, 0, 2, *number]))
    };
    let health = example::check(HealthKind::Tcp);
    let service = Service {
        health,
        ..example::service("web", SocketAddr::new(ip("192.0.2.99"), 80), servers.iter().map(server).collect())
    };
    Farm { services: vec![service], ..Farm::default() }
}

fn links() -> BTreeMap<u32, Mac> {
    BTreeMap::from([(2, Mac([2, 0, 0, 0, 0, 2]))])
}

fn start(farm: Farm) -> Start {
    Start {
        farm,
        network: network(),
        links: links(),
        operator: OperatorStates::new(),
        host: None,
        seed: Seed::default(),
        running: None,
        groups: BTreeMap::new(),
    }
}

fn name(server: &str) -> ServerName {
    ServerName { service: "web".into(), server: server.into() }
}

impl World {
    /// Returns a director whose farm is in force and whose servers have all passed one probe.
    fn serving(servers: &[(&str, u8)]) -> World {
        let mut world = World::new(start(farm(servers)));
        world.pass(0);
        for (server, _) in servers {
            world.learn(Input::Probed { server: name(server), result: Ok(1) });
        }
        world.orders.clear();
        world.applied = 0;
        world
    }

    fn new(start: Start) -> World {
        let now_ms = 1_000;
        World {
            director: Director::new(start, Moment { ms: now_ms, lease_holds: true, ..Moment::default() }),
            now_ms,
            in_force: Arc::default(),
            refusal: None,
            is_slow: false,
            on_its_way: None,
            fills: Fills::default(),
            applied: 0,
            orders: Vec::new(),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.learn(Input::Time { active: BTreeMap::new() });
    }

    fn learn(&mut self, input: Input) {
        let now = Moment { ms: self.now_ms, lease_holds: true, ..Moment::default() };
        self.director.handle(now, input);
        while let Some(order) = self.director.poll_output() {
            if let Output::Apply(change) = &order {
                assert!(self.on_its_way.is_none(), "one at a time");
                self.on_its_way = Some(Change::clone(change));
            }
            self.orders.push(order);
            if !self.is_slow && self.on_its_way.is_some() {
                self.answer();
            }
        }
    }

    /// Lets the engine apply the change in progress, and passes the answer to the director.
    fn answer(&mut self) {
        let planned = self.on_its_way.take().unwrap().plan(&mut self.fills);
        let mut refusal = self.refusal.take();
        match planned.tables() {
            Ok(Some(tables)) if refusal.is_none() => self.in_force = Arc::clone(tables),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => self.refusal = refusal.take(),
        }
        self.applied += usize::from(planned.tables().is_ok_and(|tables| tables.is_some()));
        let answer = planned.answer(Arc::clone(&self.in_force), refusal);
        self.learn(Input::Applied(Box::new(answer)));
    }

    fn reload(&mut self, farm: Farm) {
        let (farm, network) = (Box::new(farm), Box::new(network()));
        self.learn(Input::Reload { farm, network, links: links(), groups: BTreeMap::new() });
    }

    /// Returns the servers in the ring, sorted by name.
    fn ring(&self) -> Vec<String> {
        let services = self.director.plan().services.values();
        services
            .flat_map(|service| &service.ring_members)
            .filter_map(|one| self.director.plan().servers.get(&one.slot).map(|name| name.server.clone()))
            .collect()
    }

    fn events(&self) -> Vec<String> {
        let events = self.orders.iter().filter_map(|order| match order {
            Output::Event(event) => Some(event.to_string()),
            _ => None,
        });
        events.collect()
    }
}

#[test]
fn a_farm_is_put_in_force_and_its_servers_are_probed() {
    let mut world = World::new(start(farm(&[("a", 11), ("b", 12)])));
    world.pass(0);
    let mut orders = world.orders.iter().filter(|order| !matches!(order, Output::Name(_)));
    assert!(matches!(orders.next(), Some(Output::Apply(_))), "{:?}", world.orders);
    let probed = world.orders.iter().filter(|order| matches!(order, Output::Probe(_))).count();
    let announced = |order: &Output| matches!(order, Output::Announce(addresses) if addresses.contains(&ip("192.0.2.99")));
    assert!(probed == 2 && world.orders.iter().any(announced), "{:?}", world.orders);
    assert!(!world.director.is_settled() && world.ring().is_empty());
    world.learn(Input::Probed { server: name("a"), result: Ok(1) });
    assert_eq!(world.ring(), ["a"]);
    world.learn(Input::Probed { server: name("b"), result: Err(Failure::Timeout) });
    assert!(
        world.director.is_settled()
            && world.director.is_serving(Moment { ms: world.now_ms, ..Moment::default() })
    );
    assert_eq!(world.ring(), ["a"]);
}

#[test]
fn tables_are_applied_before_announcements() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    assert!(matches!(world.orders[0], Output::Apply(_)), "{:?}", world.orders);
    assert_eq!(world.events(), ["drained by the operator: it keeps its sessions and gets no new ones"]);
    assert_eq!(world.ring(), ["b"]);
}

#[test]
fn refused_change_is_retried_without_new_facts() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    world.refusal = Some("no room".into());
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    assert_eq!((world.ring(), world.applied), (vec!["a".into(), "b".into()], 1), "what was in force is");
    assert!(
        world.events()[1].starts_with("no room; the previous tables stay in force"),
        "{:?}",
        world.events()
    );
    assert!(world.director.next_at() <= world.now_ms + RETRY_MS);
    world.pass(RETRY_MS - 1);
    assert_eq!(world.applied, 1);
    world.pass(1);
    assert_eq!((world.ring(), world.applied), (vec!["b".into()], 2));
}

#[test]
fn refused_reload_changes_no_state() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let before = (*world.in_force).clone();
    world.refusal = Some("no such interface".into());
    world.reload(farm(&[("b", 12), ("c", 13)]));
    assert_eq!(
        (world.ring(), world.director.farm()),
        (vec!["a".into(), "b".into()], &farm(&[("a", 11), ("b", 12)]))
    );
    assert_eq!(world.events(), [""; 0]);
    world.pass(RETRY_MS);
    world.learn(Input::Network(Box::new(network())));
    assert_eq!(world.in_force.servers, before.servers, "what comes after it is of the farm that is in force");
    world.reload(farm(&[("b", 12), ("c", 13)]));
    assert_eq!(world.ring(), ["b"], "c has yet to be probed");
}

#[test]
fn a_reload_that_no_tables_can_be_made_of_is_taken_back() {
    let mut world = World::serving(&[("a", 11)]);
    let mut twice = farm(&[("a", 11)]);
    twice.services.push(twice.services[0].clone());
    world.reload(twice);
    assert!(matches!(world.orders[..], [Output::Apply(_)]), "{:?}", world.orders);
    assert_eq!((world.director.farm(), world.ring()), (&farm(&[("a", 11)]), vec!["a".into()]));
}

#[test]
fn the_number_of_a_server_that_is_gone_waits_for_its_last_session() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let slot = *world.director.plan().servers.iter().find(|(_, of)| **of == name("a")).unwrap().0;
    world.reload(farm(&[("b", 12)]));
    let forgotten = world.orders.iter().find_map(|order| match order {
        Output::Forget { before, retired } => Some((before.servers.len(), retired.clone())),
        _ => None,
    });
    assert_eq!(forgotten, Some((2, vec![slot])));
    world.reload(farm(&[("b", 12), ("c", 13)]));
    assert_ne!(world.director.plan().servers.get(&slot), Some(&name("c")));
    world.reload(farm(&[("b", 12)]));
    world.learn(Input::Released { slot });
    world.reload(farm(&[("b", 12), ("d", 14)]));
    assert_eq!(world.director.plan().servers.get(&slot), Some(&name("d")));
}

#[test]
fn restored_servers_serve_until_probes_fail() {
    let first = World::serving(&[("a", 11), ("b", 12)]);
    let running = Some((*first.in_force).clone());
    let mut world = World::new(Start { running, ..start(farm(&[("a", 11), ("b", 12), ("c", 13)])) });
    world.pass(0);
    assert_eq!(world.ring(), ["a", "b"]);
    assert!(first.in_force.servers.iter().all(|(slot, server)| {
        world.in_force.servers.get(slot).is_some_and(|now| now.identity == server.identity)
    }));
    world.learn(Input::Probed { server: name("a"), result: Err(Failure::Refused) });
    assert_eq!(world.ring(), ["b"]);
}

#[test]
fn unresolved_server_is_reported_once() {
    let mut lost = farm(&[("a", 11), ("b", 12)]);
    lost.services[0].servers[1].mac = None;
    let mut world = World::new(start(lost));
    for _ in 0..10 {
        world.pass(1_000);
    }
    let reports =
        world.events().iter().filter(|event| event.contains("can't be found: no ARP answer")).count();
    assert_eq!(reports, 1, "{:?}", world.events());
}

#[test]
fn failed_and_restored_links_are_reported() {
    let mut world = World::serving(&[("a", 11)]);
    // The network lists another interface that is up, which is new to the director.
    world.learn(Input::Network(Box::new(network())));
    assert_eq!(world.events(), ["packets are received from this interface too"]);
    world.orders.clear();
    let mut broken = network();
    broken.interfaces.get_mut(&2).unwrap().carrier = false;
    world.learn(Input::Network(Box::new(broken)));
    world.learn(Input::Network(Box::new(network())));
    assert_eq!(
        world.events(),
        ["the interface has no carrier: look at the cable, or its other end", "the interface works again"]
    );
}

#[test]
fn refused_link_blocks_no_other_change() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    for _ in 0..2 {
        world.refusal = Some("no programs there".into());
        world.learn(Input::Network(Box::new(network())));
        assert_eq!(world.director.links(), &links());
    }
    assert_eq!(world.events(), ["failed to receive packets from eth1: no programs there"], "once");
    assert_eq!(world.in_force.interfaces, links());
    world.learn(Input::Network(Box::new(network())));
    assert_eq!(
        world.events().last().map(String::as_str),
        Some("packets are received from this interface too")
    );
    assert!(world.in_force.interfaces.contains_key(&3));
}
