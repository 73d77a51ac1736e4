//! Servers found by routes: methods `nat` and `tunnel`.

use super::*;

fn address(last: u8) -> IpAddr {
    IpAddr::from([198, 51, 100, last])
}

fn hop() -> ServerRoute {
    let place = LinkAddress { mac: Mac([2, 0, 0, 0, 0, 0xfe]), ifindex: ETH };
    ServerRoute {
        place,
        own: [192, 0, 2, 2].into(),
        tunnel: [192, 0, 2, 3].into(),
        mtu: 1_400,
        on_link: false,
    }
}

/// Returns a listed server behind a router. The last byte of its address is the last letter of its
/// name.
fn far(name: &str) -> MemberState {
    change(up(name), |m| {
        m.member.address = Some(address(*name.as_bytes().last().unwrap()));
        m.member.source = ServerOrigin::Listed;
        (m.member.mac, m.member.hop) = (Some(hop().place.mac), Some(hop()));
    })
}

fn routed(name: &str, port: u16, method: Method, servers: &[(&str, Option<u16>)]) -> farm::Service {
    let server = |(name, port): &(&str, Option<u16>)| Server {
        name: (*name).into(),
        address: address(*name.as_bytes().last().unwrap()),
        port: *port,
        mac: None,
        weight: 1,
        backup: false,
        max_connections: 0,
        health_address: None,
        publish: vec![],
    };
    let servers = servers.iter().map(server).collect();
    farm::Service { method, discover: None, servers, ..service(name, port) }
}

fn ways(plan: &Plan) -> Vec<Forwarding> {
    plan.tables.servers.values().map(|server| server.forwarding).collect()
}

#[test]
fn nat_servers_are_reached_at_their_own_endpoints() {
    let mut web = routed("web", 80, Method::Nat, &[("a", Some(8080)), ("b", None)]);
    let at = |last, port| SocketAddr::new(address(last), port);
    let to = |to, source_nat| Forwarding::Nat { to, own: hop().own, source_nat, mtu: 1_400 };
    let plan = plan_service(&web, vec![far("a"), far("b")]);
    assert_eq!(ways(&plan), [to(at(b'a', 8080), false), to(at(b'b', 80), false)]);
    web.source_nat = true;
    web.addresses.push(SocketAddr::new([192, 0, 2, 101].into(), 81));
    let plan = plan_service(&web, vec![far("a"), far("b")]);
    assert_eq!(ways(&plan), [to(at(b'a', 8080), true), to(at(b'b', 80), true)], "the first address's port");
    let closing: Vec<u32> = plan.tables.vips.values().map(|vip| vip.idle.closing).collect();
    assert_eq!(closing, [ticks(60_000); 2]);
    let key = VipKey { address: address(b'b'), port: 80, protocol: Protocol::Tcp };
    assert_eq!(
        plan.tables.endpoints[&key],
        [ReplyOrigin { vip: 1, server: 2 }, ReplyOrigin { vip: 2, server: 2 }]
    );
    assert_eq!(plan.tables.endpoints.len(), 2);
}

#[test]
fn one_endpoint_may_stand_behind_several_services() {
    let web = routed("web", 80, Method::Nat, &[("a", Some(8080))]);
    let shop = routed("shop", 81, Method::Nat, &[("x", Some(8080))]);
    let shop =
        farm::Service { servers: vec![Server { address: address(b'a'), ..shop.servers[0].clone() }], ..shop };
    let x = change(far("x"), |m| m.member.address = Some(address(b'a')));
    let states = [
        ServiceState { service: &web, members: vec![far("a")] },
        ServiceState { service: &shop, members: vec![x] },
    ];
    let plan = plan(&states, INTERFACES, &mut Slots::default(), None).unwrap();
    let behind: Vec<_> = plan.tables.endpoints.values().cloned().collect();
    assert_eq!(behind, [vec![ReplyOrigin { vip: 1, server: 1 }, ReplyOrigin { vip: 2, server: 2 }]]);
    let gone = Delta::between(&plan.tables, &plan_one(vec![]).tables);
    assert_eq!(gone.endpoints_removed.len(), 1);
}

#[test]
fn too_many_addresses_before_one_endpoint_are_refused() {
    let services: Vec<_> =
        (0..9).map(|n| routed(&std::format!("s{n}"), 80 + n, Method::Nat, &[("a", Some(8080))])).collect();
    let make = |services: &[farm::Service]| {
        let states: Vec<_> =
            services.iter().map(|service| ServiceState { service, members: vec![] }).collect();
        plan(&states, INTERFACES, &mut Slots::default(), None)
    };
    assert!(make(&services[..8]).is_ok());
    assert_eq!(
        make(&services).unwrap_err().to_string(),
        "tcp 198.51.100.97:8080 serves 9 service addresses by method nat; the maximum is 8: use another port \
         of the server for some of them"
    );
}

#[test]
fn tunnels_go_from_the_address_that_servers_accept() {
    let mut web = routed("web", 80, Method::Tunnel, &[("a", None)]);
    web.addresses.push("[2001:db8::100]:80".parse().unwrap());
    let way = |encapsulation, mtu| Forwarding::Tunnel {
        encapsulation,
        from: hop().tunnel,
        to: address(b'a'),
        mtu,
        mark: None,
    };
    let plan = plan_service(&web, vec![far("a")]);
    assert_eq!(ways(&plan), [way(Encapsulation::Ipip, 1_400)]);
    assert!(plan.tables.endpoints.is_empty());
    (web.encapsulation, web.tunnel_mtu) = (Encapsulation::Gue, Some(1_300));
    assert_eq!(ways(&plan_service(&web, vec![far("a")])), [way(Encapsulation::Gue, 1_300)]);
}

#[test]
fn unreachable_servers_are_left_out() {
    let local = || change(far("a"), |m| (m.member.local, m.member.hop) = (true, None));
    let unresolved = || change(far("b"), |m| (m.member.mac, m.member.hop) = (None, None));
    let listed: &[(&str, Option<u16>)] = &[("a", None), ("b", None), ("c", None)];
    let nat = plan_service(&routed("web", 80, Method::Nat, listed), vec![unresolved(), far("c")]);
    assert_eq!(nat.servers.values().map(|name| name.server.as_str()).collect::<Vec<_>>(), ["c"]);
    let tunnel = plan_service(&routed("web", 80, Method::Tunnel, listed), vec![local(), unresolved()]);
    assert_eq!(ways(&tunnel), [Forwarding::Link], "this host's own stack has it");
    assert!(tunnel.tables.servers[&1].local);
    let other_family = farm::Service {
        addresses: vec!["[2001:db8::100]:80".parse().unwrap()],
        ..routed("web", 80, Method::Nat, listed)
    };
    assert!(plan_service(&other_family, vec![far("c")]).servers.is_empty());
}

#[test]
fn a_director_serves_by_nat_on_the_ports_of_the_service() {
    let local = || change(far("a"), |m| (m.member.local, m.member.hop) = (true, None));
    let names = |plan: &Plan| plan.servers.values().map(|name| name.server.clone()).collect::<Vec<_>>();
    for source_nat in [false, true] {
        let listed: &[(&str, Option<u16>)] = &[("a", None), ("c", Some(8080))];
        let mut web = farm::Service { source_nat, ..routed("web", 80, Method::Nat, listed) };
        let plan = plan_service(&web, vec![local(), far("c")]);
        assert_eq!((names(&plan), ways(&plan)[0]), (vec!["a".into(), "c".into()], Forwarding::Link));
        assert!(plan.tables.servers[&1].local && !plan.tables.servers[&2].local);
        assert_eq!(plan.tables.endpoints.len(), 1, "what it sends itself is nobody's answer");
        web.addresses.push(SocketAddr::new([192, 0, 2, 101].into(), 81));
        assert_eq!(names(&plan_service(&web, vec![local(), far("c")])), ["c"], "not on both ports");
        let other_port = routed("web", 80, Method::Nat, &[("a", Some(8080))]);
        assert!(plan_service(&other_port, vec![local()]).servers.is_empty());
    }
}

#[test]
fn ways_that_run_are_known_again() {
    let nat = routed("web", 80, Method::Nat, &[("a", None)]);
    let tunnel = routed("mail", 25, Method::Tunnel, &[("b", None)]);
    let states = [
        ServiceState { service: &nat, members: vec![far("a")] },
        ServiceState { service: &tunnel, members: vec![far("b")] },
    ];
    let running = plan(&states, INTERFACES, &mut Slots::default(), None).unwrap().tables;
    let hops: Vec<ServerRoute> =
        known(&running, &[nat.clone(), tunnel.clone()]).into_iter().map(|known| known.hop.unwrap()).collect();
    let ServerRoute { own, tunnel: from, .. } = hop();
    assert_eq!(hops, [ServerRoute { tunnel: own, ..hop() }, ServerRoute { own: from, ..hop() }]);
}
