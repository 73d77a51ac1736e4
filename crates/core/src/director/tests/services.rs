//! Events of whole services and of links, and warnings for an operator who drains a server.

use super::*;
use crate::farm::network::Network;
use crate::net::wire::arp_request;

fn fail(world: &mut World, server: &str) {
    world.learn(Input::Probed { server: name(server), result: Err(Failure::Refused) });
}

#[test]
fn draining_the_last_server_is_warned_of_and_logged() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    assert_eq!(world.director.without_servers("web"), None);
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    assert_eq!(world.director.without_servers("web"), None, "another takes new sessions");
    world.orders.clear();
    world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Drain });
    let without = "no other server accepts new sessions, so new connections are dropped";
    assert_eq!(world.director.without_servers("web"), Some(without));
    assert_eq!(world.events().last().unwrap(), "no server accepts new sessions: new connections are dropped");
    world.orders.clear();
    world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Ready });
    assert_eq!(world.director.without_servers("web"), None);
    assert_eq!(world.events().last().unwrap(), "servers accept new sessions again");
    assert_eq!(world.director.without_servers("other"), None, "there is no such service");
}

#[test]
fn service_without_working_servers_keeps_the_last_and_is_degraded() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    fail(&mut world, "a");
    world.pass(60_000);
    assert!(!world.director.snapshot().services[0].degraded);
    world.orders.clear();
    fail(&mut world, "b");
    assert_eq!(world.ring(), ["b"]);
    assert!(world.director.snapshot().services[0].degraded);
    let kept = "too few others work or want new sessions, which go to some that fail or refuse too";
    assert_eq!(world.director.without_servers("web"), Some(kept));
    assert!(
        world.events().iter().any(|event| event.starts_with("too few servers work")),
        "{:?}",
        world.events()
    );
    world.orders.clear();
    world.learn(Input::Probed { server: name("a"), result: Ok(1) });
    assert_eq!(world.ring(), ["a"]);
    assert_eq!(world.events(), ["server is up", "servers work again"]);
    world.orders.clear();
    fail(&mut world, "b");
    assert_eq!(world.events(), [""; 0], "nothing is otherwise");
}

#[test]
fn a_server_that_is_found_again_is_logged_once() {
    let mut lost = farm(&[("a", 11)]);
    lost.services[0].servers[0].mac = None;
    let mut world = World::new(Start {
        network: Network { neighbours: BTreeMap::new(), ..network() },
        ..start(lost.clone())
    });
    for _ in 0..3 {
        assert!(!world.events().iter().any(|event| event.contains("can't be found")), "it has a moment");
        world.pass(1_000);
    }
    assert!(world.events().contains(&"server can't be found: no ARP answer".into()), "{:?}", world.events());
    world.orders.clear();
    world.reload(farm(&[("a", 11)]));
    for _ in 0..3 {
        world.pass(1_000);
    }
    let found = world.events().iter().filter(|event| *event == "server is found").count();
    assert_eq!(found, 1, "{:?}", world.events());
    // A server removed from the file is not reported as not found.
    world.reload(lost);
    for _ in 0..4 {
        world.pass(1_000);
    }
    world.orders.clear();
    world.reload(farm(&[("b", 12)]));
    world.pass(1_000);
    assert!(!world.events().contains(&"server is found".into()), "{:?}", world.events());
}

#[test]
fn links_that_go_or_are_switched_off_are_logged() {
    let mut world = World::serving(&[("a", 11)]);
    world.learn(Input::Network(Box::new(network())));
    world.orders.clear();
    let change = |world: &mut World, of: &dyn Fn(&mut Network)| {
        let mut network = network();
        of(&mut network);
        world.orders.clear();
        world.learn(Input::Network(Box::new(network)));
        world.events()
    };
    let off = |network: &mut Network| network.interfaces.get_mut(&2).unwrap().up = false;
    assert_eq!(change(&mut world, &off), ["the interface is switched off"]);
    assert_eq!(change(&mut world, &|_| ()), ["the interface works again"]);
    assert_eq!(change(&mut world, &|_| ()), [""; 0]);
    let gone = |network: &mut Network| drop(network.interfaces.remove(&2));
    assert_eq!(change(&mut world, &gone)[0], "the interface is gone");
    // Interfaces that the engine doesn't use cause no event.
    let loopback = |network: &mut Network| network.interfaces.get_mut(&1).unwrap().up = false;
    assert_eq!(change(&mut world, &|_| ()).iter().filter(|event| event.contains("switched")).count(), 0);
    assert!(!change(&mut world, &loopback).contains(&"the interface is switched off".into()));
}

#[test]
fn a_server_of_weight_zero_is_shown_as_draining() {
    let mut farm = farm(&[("a", 11), ("b", 12)]);
    farm.services[0].servers[0].weight = 0;
    let mut world = World::new(start(farm));
    world.pass(0);
    for server in ["a", "b"] {
        world.learn(Input::Probed { server: name(server), result: Ok(1) });
    }
    let seen = world.director.snapshot().server(&name("a")).unwrap();
    assert_eq!(
        (seen.state, seen.reason.as_deref()),
        (crate::pool::ServerState::Draining, Some("its weight is 0"))
    );
    assert_eq!(world.ring(), ["b"]);
}

/// Returns an ARP reply with this MAC for the service's address.
fn arp_reply(mac: Mac) -> Input {
    let vip = "192.0.2.99".parse().unwrap();
    let mut bytes = arp_request(mac, vip, vip).to_vec();
    bytes[21] = 2;
    Input::Frame { ifindex: 2, bytes }
}

#[test]
fn a_server_that_is_discovered_is_shown_by_its_own_address_where_that_is_known() {
    let mut farm = farm(&[]);
    farm.services[0].discover = Some(farm::Discover::Arp);
    let (found, unknown) = (Mac([2, 0, 0, 0, 1, 11]), Mac([2, 0, 0, 0, 1, 12]));
    let mut network = network();
    // An entry with the same MAC address on another link belongs to another machine. An entry for
    // the service's address names no server, since all servers have that address.
    network.neighbours.insert((3, ip("192.0.2.7")), unknown);
    network.neighbours.insert((2, ip("192.0.2.99")), unknown);
    let mut world = World::new(Start { network, ..start(farm) });
    world.pass(0);
    world.learn(arp_reply(found));
    world.learn(arp_reply(unknown));
    let seen = Arc::clone(world.director.snapshot());
    let addresses: Vec<_> = seen.servers().map(|server| (server.member.mac, server.address)).collect();
    assert_eq!(addresses, [(Some(found), Some(ip("192.0.2.11"))), (Some(unknown), None)]);
}

#[test]
fn answers_to_arp_that_are_not_believed_are_counted_by_reason() {
    let mut farm = farm(&[]);
    farm.services[0].discover = Some(farm::Discover::Arp);
    let mut world = World::new(start(farm));
    world.pass(0);
    assert!(world.director.snapshot().refused.values().all(|count| *count == 0));
    for _ in 0..3 {
        world.learn(arp_reply(links()[&2]));
    }
    world.pass(1_000);
    let refused: u64 = world.director.snapshot().refused.values().sum();
    assert_eq!(refused, 3, "{:?}", world.director.snapshot().refused);
    assert_eq!(world.director.snapshot().servers().count(), 0);
}
