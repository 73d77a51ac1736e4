//! Servers that are reached by routes: methods `nat` and `tunnel`.

use super::*;

fn hop(last: u8, mtu: u16) -> ServerRoute {
    ServerRoute { place: place(last), own: DIRECTOR, tunnel: DIRECTOR, mtu, on_link: false }
}

fn routed(method: Method) -> Service {
    Service {
        method,
        discover: None,
        announce: Announce::Director,
        servers: vec![listed(11), listed(12)],
        ..service()
    }
}

#[test]
fn routed_servers_are_located_by_routes() {
    for method in [Method::Nat, Method::Tunnel] {
        let reached = |hops: &[(u8, ServerRoute)]| LocalNetwork {
            hops: hops.iter().map(|(host, hop)| (own_address(*host), *hop)).collect(),
            ..around()
        };
        // The next hop of one server is a router, and the next hop of the other server is
        // unresolved.
        let first = reached(&[(11, hop(0xfe, 1_500))]);
        let mut membership = Membership::new(&[routed(method)], first, 0);
        assert_eq!(membership.next_round_at(), None, "nobody is asked");
        let member = |membership: &Membership, at: usize| membership.members("web")[at].clone();
        assert_eq!(member(&membership, 0).mac, Some(mac(0xfe)));
        assert_eq!(member(&membership, 0).hop, Some(hop(0xfe, 1_500)));
        assert_eq!((member(&membership, 1).mac, member(&membership, 1).hop), (None, None));

        let second = reached(&[(11, hop(0xfe, 1_280)), (12, hop(12, 1_500))]);
        let found = MembershipEvent::Joined { server: "web12".into(), place: place(12) };
        assert_eq!(events(membership.surroundings(second, 1)), [found]);
        assert_eq!(member(&membership, 0).hop, Some(hop(0xfe, 1_280)));

        let third = reached(&[(11, hop(0xfd, 1_280))]);
        let moved = MembershipEvent::Rerouted { server: "web11".into(), from: place(0xfe), to: place(0xfd) };
        assert_eq!(events(membership.surroundings(third, 2)), [moved]);
        assert_eq!(member(&membership, 1).mac, Some(mac(12)), "unresolved for a while");

        // An ARP reply for the address of web12 is ignored: web12 is reached by a route.
        let foreign = NeighbourReply { place: place(9), address: own_address(12) };
        assert_eq!(membership.answer(3, foreign), []);
        for at in 0..10 {
            assert_eq!(membership.round(4 + at * 10_000), DiscoveryRound::default());
        }
        assert!(membership.members("web").iter().all(|member| !member.draining));
        assert_eq!(member(&membership, 1).mac, Some(mac(12)));
    }
}

#[test]
fn a_routed_server_that_is_this_host_has_no_way() {
    let here = Server { address: DIRECTOR, ..listed(2) };
    let service = Service { servers: vec![here], ..routed(Method::Tunnel) };
    let hops = [(DIRECTOR, hop(2, 1_500))].into();
    let membership = Membership::new(&[service], LocalNetwork { hops, ..around() }, 0);
    let member = &membership.members("web")[0];
    assert_eq!((member.local, member.mac, member.hop), (true, None, None));
}

#[test]
fn a_change_of_method_finds_servers_anew() {
    let hops: BTreeMap<IpAddr, ServerRoute> = [(own_address(11), hop(0xfe, 1_500))].into();
    let mut membership = Membership::new(&[routed(Method::Nat)], LocalNetwork { hops, ..around() }, 0);
    membership.reconfigure(&[routed(Method::L2)], 1);
    assert_eq!(membership.members("web")[0].mac, None);
    assert_eq!(membership.round(1).requests, [own_address(11), own_address(12)]);
    membership.reconfigure(&[routed(Method::Tunnel)], 2);
    assert_eq!(membership.members("web")[0].mac, Some(mac(0xfe)));
}

#[test]
fn a_restart_knows_the_ways_that_packets_take() {
    let mut membership = Membership::new(&[routed(Method::Nat)], around(), 0);
    let hop = hop(0xfe, 1_400);
    let known =
        RestoredServer { service: "web".into(), server: "web11".into(), place: hop.place, hop: Some(hop) };
    membership.resume(&known, 0);
    assert_eq!(membership.members("web")[0].hop, Some(hop), "even by a router");
    assert_eq!(events(membership.surroundings(around(), 1)), []);
    assert_eq!(membership.members("web")[0].hop, Some(hop));
}
