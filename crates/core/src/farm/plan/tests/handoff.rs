//! Services with handoff: routes, the rings of their servers, and punted requests.

use super::*;
use crate::path::content::{HostPattern, PathPattern, RequestClass, RequestKey, RouteMatch};
use crate::path::mark::ForwardCount;
use crate::path::tables::SERVICES_MAX;

fn near(name: &str, on_link: bool) -> MemberState {
    change(up(name), |m| {
        let place = LinkAddress { mac: m.member.mac.unwrap(), ifindex: ETH };
        let own = [192, 0, 2, 2].into();
        m.member.address = Some([198, 51, 100, 9].into());
        m.member.hop = Some(ServerRoute { place, own, tunnel: own, mtu: 1_500, on_link });
    })
}

fn route(host: Option<&str>, path: Option<&str>, servers: &[&str]) -> farm::Route {
    farm::Route {
        host: host.map(|host| HostPattern::parse(host).unwrap()),
        path: path.map(|path| PathPattern::parse(path).unwrap()),
        methods: vec![],
        servers: servers.iter().map(|name| (*name).into()).collect(),
    }
}

fn web(routes: Vec<farm::Route>) -> farm::Service {
    farm::Service { method: Method::Handoff, discover: None, routes: routes.into(), ..service("web", 80) }
}

fn planned(
    service: &farm::Service,
    members: Vec<MemberState>,
    slots: &mut Slots,
    before: Option<&Plan>,
) -> Plan {
    let hosts = Hosts { reads_punted: true, ..Hosts::default() };
    super::super::plan(
        &[ServiceState { service, members }],
        INTERFACES,
        &hosts,
        slots,
        &mut Fills::default(),
        before,
    )
    .unwrap()
}

/// Returns the slots of the servers that serve a path.
fn serve(plan: &Plan, path: &str) -> Vec<u16> {
    let punted =
        RequestKey { class: RequestClass::Get, host: b"a.example", path: path.as_bytes(), method: b"GET" };
    match plan.tables.routes[&0].find(&punted) {
        RouteMatch::Ring { ring, .. } => plan.tables.rings[&ring].order.clone(),
        RouteMatch::Punt => panic!("{path} is asked"),
    }
}

#[test]
fn routes_have_rings_of_their_servers_and_equal_sets_share_one() {
    let routes = vec![
        route(None, Some("/img/*"), &["c"]),
        route(None, Some("/css/*"), &["c"]),
        route(Some("a.example"), Some("/x"), &["b", "a"]),
    ];
    let service = web(routes);
    let members = || ["a", "b", "c"].map(|name| near(name, true)).to_vec();
    let mut slots = Slots::default();
    let plan = planned(&service, members(), &mut slots, None);
    assert_eq!(serve(&plan, "/img/a"), [3]);
    assert_eq!(serve(&plan, "/css/a"), [3]);
    assert_eq!(serve(&plan, "/x"), [1, 2]);
    assert_eq!(serve(&plan, "/"), [1, 2, 3]);
    assert_eq!(plan.tables.rings.len(), 3);
    let again = planned(&service, members(), &mut slots, Some(&plan));
    assert!(Delta::between(&plan.tables, &again.tables).is_empty());
    assert!(Arc::ptr_eq(&plan.tables.routes[&0], &again.tables.routes[&0]));
}

#[test]
fn route_with_failed_servers_is_empty_and_others_stay() {
    let service = web(vec![route(None, Some("/img/*"), &["b"])]);
    let plan = planned(
        &service,
        vec![near("a", true), change(near("b", true), |m| m.health = down("b", 1).health)],
        &mut Slots::default(),
        None,
    );
    assert_eq!(serve(&plan, "/img/a"), [0u16; 0]);
    assert_eq!(serve(&plan, "/"), [1]);
}

#[test]
fn off_link_servers_use_tunnel_and_mss_fits() {
    let service = web(vec![]);
    let mss = |members: Vec<MemberState>| {
        let plan = planned(&service, members, &mut Slots::default(), None);
        plan.tables.vips.values().next().unwrap().handoff.unwrap().mss
    };
    assert_eq!(mss(vec![near("a", true)]), 1_460);
    assert_eq!(mss(vec![near("a", true), near("b", false)]), 1_440);
    let plan = planned(&service, vec![near("b", false)], &mut Slots::default(), None);
    assert!(matches!(plan.tables.servers[&1].forwarding, Forwarding::Tunnel { mark: None, .. }));
}

#[test]
fn punt_slot_is_local_and_blackhole_slot_forwards_nothing() {
    let plan = planned(&web(vec![]), vec![near("a", true)], &mut Slots::default(), None);
    let handoff = plan.tables.vips.values().next().unwrap().handoff.unwrap();
    assert!(plan.tables.servers[&handoff.punt].local);
    let held = plan.tables.servers[&handoff.held];
    assert!(!held.local && !plan.tables.interfaces.contains_key(&held.ifindex));
    assert!(!plan.servers.contains_key(&handoff.punt), "no view shows it as a server");
    let nobody = plan_service(&web(vec![]), vec![near("a", true)]);
    let handoff = nobody.tables.vips.values().next().unwrap().handoff.unwrap();
    assert_eq!((handoff.punt, handoff.held), (NO_SERVER, NO_SERVER));
}

#[test]
fn every_host_serves_punts_and_forwards_once() {
    let routes = vec![route(None, Some("/img/*"), &["a"])];
    let service = farm::Service { placement: Placement::EveryHost, policy: "overflow", ..web(routes) };
    let members = |share: u16| {
        let own = change(near("a", true), |m| (m.member.local, m.share) = (true, Some(share)));
        vec![own, change(near("b", true), |m| m.share = Some(3))]
    };
    let mut slots = Slots::default();
    let before = planned(&service, vec![near("b", true)], &mut slots, None);
    let plan = planned(&service, members(0), &mut slots, Some(&before));
    let vip = plan.tables.vips.values().next().unwrap();
    assert!(plan.tables.servers[&vip.own].local && !plan.tables.servers[&vip.own].is_punt());
    assert!(plan.tables.servers[&vip.handoff.unwrap().punt].is_punt());
    assert!(!plan.tables.servers[&vip.handoff.unwrap().held].is_punt());
    let is_last = |server: &ServerEntry| {
        matches!(server.forwarding, Forwarding::Tunnel { mark: Some(ForwardCount::Twice), .. })
    };
    assert!(!plan.tables.servers.values().any(is_last));
    assert!(plan.tables.rings.values().all(|ring| ring.previous.is_empty()));
    // Shares also apply to the hosts of a route, unless none of these hosts has a share.
    let other = *plan.servers.iter().find(|(_, name)| name.server == "b").unwrap().0;
    assert!(serve(&plan, "/").iter().all(|slot| *slot == other));
    assert_eq!(serve(&plan, "/img/a"), [vip.own]);
}

/// A ring without a number gets one once a number is free. From then on its route leads to the
/// ring.
#[test]
fn a_route_follows_its_ring() {
    let routed = web(vec![route(None, None, &["b"])]);
    let others: Vec<farm::Service> =
        (1..SERVICES_MAX as u16).map(|number| service(&format!("other{number}"), 80 + number)).collect();
    let members = || vec![near("a", true), near("b", true)];
    let state = ServiceState { service: &routed, members: members() };
    let mut slots = Slots::default();
    let full = others.iter().map(|service| ServiceState { service, members: vec![] });
    let full: Vec<ServiceState<'_>> = [state].into_iter().chain(full).collect();
    let before = plan(&full, INTERFACES, &mut slots, None).unwrap();
    let key = RequestKey { class: RequestClass::Get, host: b"a.example", path: b"/", method: b"GET" };
    let (_, ring) = before.tables.routes[&0].find_all(&key);
    assert!(!before.tables.rings.contains_key(&ring), "there is no room");
    let alone = [ServiceState { service: &routed, members: members() }];
    let after = plan(&alone, INTERFACES, &mut slots, Some(&before)).unwrap();
    let served: Vec<&str> =
        serve(&after, "/").iter().map(|slot| after.servers[slot].server.as_str()).collect();
    assert_eq!(served, ["b"]);
}

#[test]
fn backup_of_a_route_serves_while_no_other_of_it_can() {
    let service = web(vec![route(None, Some("/img/*"), &["b", "c"])]);
    let backup = |name| change(near(name, true), |m| m.member.backup = true);
    let failed = |name| change(near(name, true), |m| m.health = down("b", 1).health);
    let plan = |members| planned(&service, members, &mut Slots::default(), None);
    let well = plan(vec![near("a", true), near("b", true), backup("c")]);
    assert_eq!((serve(&well, "/img/a"), serve(&well, "/")), (vec![2], vec![1, 2]));
    assert_eq!(well.tables.servers[&3].weight, 0);
    let ill = plan(vec![near("a", true), failed("b"), backup("c")]);
    assert_eq!((serve(&ill, "/img/a"), serve(&ill, "/")), (vec![3], vec![1]));
    assert_eq!(ill.tables.servers[&3].weight, 1);
}
