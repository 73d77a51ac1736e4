//! Schedule, targets and paths of probes.

use super::*;

fn probed(world: &World) -> usize {
    world.orders.iter().filter(|order| matches!(order, Output::Probe(_))).count()
}

#[test]
fn servers_are_probed_at_their_time_after_a_refused_reload_too() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let mut unprobed = farm(&[("a", 11), ("b", 12)]);
    unprobed.services[0].health.kind = HealthKind::None;
    world.refusal = Some("no room".into());
    world.reload(unprobed.clone());
    world.pass(999);
    assert_eq!(probed(&world), 0);
    assert_eq!(world.director.next_at(), world.now_ms + 1);
    world.pass(1);
    assert_eq!(probed(&world), 2);
    world.pass(5_000);
    assert_eq!(probed(&world), 2, "none begins while one is under way");
    world.learn(Input::Probed { server: name("a"), result: Ok(1) });
    assert!(world.director.next_at() <= world.now_ms);
    world.pass(0);
    assert_eq!(probed(&world), 3);
    world.reload(unprobed);
    world.learn(Input::Probed { server: name("b"), result: Ok(1) });
    world.pass(5_000);
    assert_eq!(probed(&world), 3, "servers of this service are not probed any more");
}

/// Returns the destination and the path of the probe of server `a`.
fn target(farm: Farm) -> Option<(SocketAddr, ProbePath)> {
    let mut world = World::new(start(farm));
    world.pass(0);
    let probe = world.orders.into_iter().find_map(|order| match order {
        Output::Probe(probe) if probe.server == name("a") => Some(probe),
        _ => None,
    });
    probe.map(|probe| (probe.target.destination, probe.target.way))
}

/// Returns a farm with one service at `vip` and its only server at the address `server`.
fn one(method: farm::Method, server: &str, vip: &str) -> Farm {
    let mut farm = farm(&[("a", 11)]);
    let service = &mut farm.services[0];
    service.method = method;
    service.addresses = vec![SocketAddr::new(ip(vip), 80)];
    service.servers[0].address = ip(server);
    farm
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(address), port)
}

fn hop() -> Adjacency {
    Adjacency { ifindex: 2, mac: Mac([2, 0, 0, 0, 1, 11]), own_mac: links()[&2] }
}

#[test]
fn a_server_on_the_link_is_probed_there_at_the_service_address() {
    let link = |source: &str, server: &str| ProbePath::Link {
        hop: hop(),
        source: ip(source),
        server: Some(ip(server)),
    };
    let l2 = || one(farm::Method::L2, "192.0.2.11", "192.0.2.99");
    assert_eq!(target(l2()), Some((at("192.0.2.99", 80), link("192.0.2.2", "192.0.2.11"))));
    let mut other_port = l2();
    other_port.services[0].health.port = Some(8_080);
    assert_eq!(target(other_port), Some((at("192.0.2.99", 8_080), link("192.0.2.2", "192.0.2.11"))));
    // The source address has the family of the probed address.
    let mut ipv6 = one(farm::Method::L2, "192.0.2.11", "2001:db8::99");
    assert_eq!(target(ipv6.clone()), Some((at("2001:db8::99", 80), link("2001:db8::2", "192.0.2.11"))));
    ipv6.services[0].health.kind = HealthKind::Arp;
    assert_eq!(target(ipv6), Some((at("2001:db8::99", 80), link("192.0.2.2", "192.0.2.11"))));
    let mut lost = l2();
    lost.services[0].servers[0].mac = None;
    assert_eq!(target(lost), None, "nobody knows where it is");
}

#[test]
fn nat_server_is_probed_at_own_address_and_port() {
    let direct = |port| Some((at("192.0.2.99", 80), ProbePath::Direct { to: at("192.0.2.11", port) }));
    let mut nat = one(farm::Method::Nat, "192.0.2.11", "192.0.2.99");
    assert_eq!(target(nat.clone()), direct(80));
    nat.services[0].servers[0].port = Some(8_000);
    assert_eq!(target(nat.clone()), direct(8_000));
    nat.services[0].health.port = Some(9_000);
    let probed = ProbePath::Direct { to: at("192.0.2.11", 9_000) };
    assert_eq!(target(nat.clone()), Some((at("192.0.2.99", 9_000), probed)));
    nat.services[0].servers[0].health_address = Some(ip("10.9.0.11"));
    let probed = ProbePath::Direct { to: at("10.9.0.11", 9_000) };
    assert_eq!(target(nat), Some((at("192.0.2.99", 9_000), probed)));
}

#[test]
fn director_as_server_is_probed_at_service_address() {
    let local = |vip: &str, to: &str| Some((at(vip, 80), ProbePath::Local { to: at(to, 80) }));
    let itself = |method, vip| target(one(method, "192.0.2.2", vip));
    for method in [farm::Method::L2, farm::Method::Handoff] {
        assert_eq!(itself(method, "192.0.2.100"), local("192.0.2.100", "192.0.2.100"), "it has that address");
        assert_eq!(itself(method, "192.0.2.99"), local("192.0.2.99", "192.0.2.2"), "it hasn't");
    }
    assert_eq!(itself(farm::Method::Nat, "192.0.2.100"), local("192.0.2.100", "192.0.2.100"));
    let mut handed_over = one(farm::Method::Handoff, "192.0.2.2", "192.0.2.100");
    handed_over.services[0].placement = farm::Placement::EveryHost;
    let hop = Adjacency { ifindex: 1, mac: Mac::default(), own_mac: Mac::default() };
    let handed = ProbePath::Link { hop, source: ip("192.0.2.2"), server: Some(ip("192.0.2.2")) };
    assert_eq!(target(handed_over), Some((at("192.0.2.100", 80), handed)), "connections are handed to it");
}

#[test]
fn tunnel_server_is_probed_through_the_tunnel() {
    let through = |vip: &str, source: &str| {
        let hop = Adjacency { mac: Mac([2, 0, 0, 0, 1, 1]), ..hop() };
        let (from, to) = (ip("192.0.2.2"), ip("203.0.113.9"));
        let encapsulation = crate::net::Encapsulation::Ipip;
        Some((at(vip, 80), ProbePath::Tunnel { hop, source: ip(source), encapsulation, from, to }))
    };
    let far = |method, vip| target(one(method, "203.0.113.9", vip));
    assert_eq!(far(farm::Method::Tunnel, "192.0.2.99"), through("192.0.2.99", "192.0.2.2"));
    assert_eq!(far(farm::Method::Tunnel, "2001:db8::99"), through("2001:db8::99", "2001:db8::2"));
    assert_eq!(far(farm::Method::Handoff, "192.0.2.99"), through("192.0.2.99", "192.0.2.2"));
    let near = one(farm::Method::Handoff, "192.0.2.11", "192.0.2.99");
    let link = ProbePath::Link { hop: hop(), source: ip("192.0.2.2"), server: Some(ip("192.0.2.11")) };
    assert_eq!(target(near), Some((at("192.0.2.99", 80), link)), "one on the link needs none");
}

#[test]
fn a_server_that_can_not_be_found_is_down_with_the_reason() {
    let reason = |farm: Farm| {
        let mut world = World::new(start(farm));
        world.pass(0);
        let seen = world.director.snapshot().server(&name("a")).unwrap().clone();
        assert_eq!(seen.state, crate::pool::ServerState::Down);
        seen.reason.unwrap()
    };
    let without_mac = |method, server, vip| {
        let mut farm = one(method, server, vip);
        farm.services[0].servers[0].mac = None;
        farm
    };
    let l2 = farm::Method::L2;
    assert_eq!(reason(without_mac(l2, "192.0.2.12", "192.0.2.99")), "no ARP answer");
    assert_eq!(reason(without_mac(l2, "2001:db8::12", "2001:db8::99")), "no neighbour advertisement");
    assert_eq!(
        reason(without_mac(l2, "203.0.113.12", "192.0.2.99")),
        "no interface here is on the LAN of 203.0.113.12"
    );
    let nat = farm::Method::Nat;
    assert_eq!(reason(without_mac(nat, "192.0.2.12", "192.0.2.99")), "no ARP answer from 192.0.2.12");
    assert_eq!(reason(without_mac(nat, "2001:db8:7::1", "2001:db8::99")), "no route leads to 2001:db8:7::1");
    let mut itself = one(nat, "192.0.2.2", "192.0.2.99");
    assert!(reason(itself.clone()).ends_with("`ip addr add 192.0.2.99/32 dev lo`"));
    itself.services[0].addresses[0] = at("2001:db8::99", 80);
    assert!(reason(itself.clone()).ends_with("`ip addr add 2001:db8::99/128 dev lo`"));
    itself.services[0].servers[0].port = Some(8_080);
    assert!(reason(itself).ends_with("it must serve on the service's port"));
    assert_eq!(reason(one(l2, "192.0.2.11", "192.0.2.99")), "not probed yet");
}
