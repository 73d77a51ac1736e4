use super::*;
use crate::farm::membership::{LinkAddress, ServerRoute};

/// Returns a farm with two servers that are reached through tunnels: one behind a router, one on a
/// link.
fn tunnels(directors: &[&str]) -> Farm {
    let mut farm = farm(&[("far", 9), ("near", 11)]);
    let service = &mut farm.services[0];
    service.method = farm::Method::Tunnel;
    service.servers[0].address = ip("203.0.113.9");
    service.servers[1].address = ip("198.51.100.11");
    Farm { directors: directors.iter().map(|address| ip(address)).collect(), ..farm }
}

#[test]
fn probe_paths_use_gateways_with_known_mac() {
    let around = Paths::default().surroundings(&tunnels(&["192.0.2.2"]), &network(), &BTreeMap::new());
    let place = LinkAddress { mac: Mac([2, 0, 0, 0, 1, 1]), ifindex: 2 };
    let hop = ServerRoute { place, own: ip("192.0.2.2"), tunnel: ip("192.0.2.2"), mtu: 1500, on_link: false };
    assert_eq!(around.hops, [(ip("203.0.113.9"), hop)].into(), "of the other no MAC is known");
}

#[test]
fn tunnels_come_from_an_address_that_the_farm_lists() {
    let own = ip("192.0.2.2");
    let source = |directors: &[&str]| tunnel_source(&tunnels(directors), &network(), own);
    assert_eq!(source(&["198.51.100.2", "192.0.2.2"]), own);
    assert_eq!(source(&["192.0.2.9", "198.51.100.2"]), ip("198.51.100.2"));
    assert_eq!(source(&["192.0.2.9", "2001:db8::2"]), own, "no other of its family is here");
}

#[test]
fn lower_path_mtu_applies_until_expiry() {
    let mut world = World::new(start(tunnels(&["192.0.2.2"])));
    world.pass(0);
    let mtu_of = |world: &World| {
        let around = world.director.paths.surroundings(&tunnels(&[]), &network(), &BTreeMap::new());
        around.hops[&ip("203.0.113.9")].mtu
    };
    let learned = |from: &str, to: &str, mtu| Input::PathMtu { from: ip(from), to: ip(to), mtu };
    world.learn(learned("192.0.2.9", "203.0.113.9", 600));
    world.learn(learned("192.0.2.2", "203.0.113.10", 600));
    assert_eq!(mtu_of(&world), 1_500, "of no tunnel of ours");
    world.learn(learned("192.0.2.2", "203.0.113.9", 9_000));
    assert_eq!(mtu_of(&world), 1_500);
    world.learn(learned("192.0.2.2", "203.0.113.9", 1_280));
    assert_eq!(mtu_of(&world), 1_280);
    world.now_ms += 10 * 60 * 1_000;
    world.learn(Input::Network(Box::new(network())));
    assert_eq!(mtu_of(&world), 1_500);
}

#[test]
fn next_hop_requests_are_rate_limited() {
    let mut world = World::new(start(tunnels(&["192.0.2.2"])));
    world.pass(0);
    let requested = |world: &mut World| -> BTreeSet<IpAddr> {
        let orders = core::mem::take(&mut world.orders).into_iter();
        let requested = orders.filter_map(|order| match order {
            Output::Resolve { address, .. } => Some(address),
            _ => None,
        });
        requested.collect()
    };
    let (gateway, near) = (ip("192.0.2.1"), ip("198.51.100.11"));
    assert_eq!(requested(&mut world), BTreeSet::from([gateway, near]));
    world.learn(Input::Network(Box::new(network())));
    assert_eq!(requested(&mut world), BTreeSet::new());
    world.now_ms += 1_000;
    world.learn(Input::Network(Box::new(network())));
    assert_eq!(requested(&mut world), BTreeSet::from([near]), "the other is known");
    world.now_ms += 9_000;
    world.learn(Input::Network(Box::new(network())));
    assert_eq!(requested(&mut world), BTreeSet::from([gateway, near]));
}

#[test]
fn source_address_to_server_is_kept_while_configured() {
    let mut farm = farm(&[("far", 9)]);
    let service = &mut farm.services[0];
    service.method = farm::Method::Nat;
    service.source_nat = true;
    service.servers[0] = example::server("far", ip("203.0.113.9"));
    let mut world = World::new(start(farm));
    world.pass(0);
    let own = |world: &World| match world.in_force.servers.values().next().unwrap().forwarding {
        crate::path::tables::Forwarding::Nat { own, .. } => own,
        other => panic!("{other:?}"),
    };
    assert_eq!(own(&world), ip("192.0.2.2"));
    let mut changed = network();
    let addresses = &mut changed.interfaces.get_mut(&2).unwrap().addresses;
    addresses.insert(0, (ip("192.0.2.3"), 24));
    world.learn(Input::Network(Box::new(changed.clone())));
    world.pass(1_000);
    assert_eq!(own(&world), ip("192.0.2.2"), "sessions have it");
    changed.interfaces.get_mut(&2).unwrap().addresses.retain(|(address, _)| *address != ip("192.0.2.2"));
    world.learn(Input::Network(Box::new(changed)));
    world.pass(1_000);
    assert_eq!(own(&world), ip("192.0.2.3"));
}

#[test]
fn restart_keeps_the_way_to_a_server_whose_mac_the_kernel_has_forgotten() {
    for method in [farm::Method::Handoff, farm::Method::Tunnel, farm::Method::Nat] {
        let mut farm = farm(&[("a", 11)]);
        (farm.services[0].method, farm.services[0].servers[0].mac) = (method, None);
        let mut known = network();
        known.neighbours.insert((2, ip("192.0.2.11")), Mac([2, 0, 0, 0, 1, 11]));
        let mut first = World::new(Start { network: known, ..start(farm.clone()) });
        first.pass(0);
        first.learn(Input::Probed { server: name("a"), result: Ok(1) });
        let running = Some((*first.in_force).clone());
        let mut world = World::new(Start { running, ..start(farm) });
        world.pass(0);
        assert_eq!(world.ring(), ["a"], "{method:?}");
        assert_eq!(world.in_force.servers, first.in_force.servers, "{method:?}");
    }
}
