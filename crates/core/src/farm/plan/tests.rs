use super::*;
use crate::farm::membership::ServerOrigin;
use crate::farm::{Discover, Method, Placement, Server, example};
use crate::net::{Encapsulation, Protocol};
use crate::path::tables::{Delta, HASH_SLOTS, Pick, Ring, SERVER_SLOTS, VIP_IDS};
use crate::pool::{FULL_WEIGHT, HealthKind};
use alloc::format;
use proptest::prelude::*;
use std::sync::Arc;
use std::vec;

mod every_host;
mod forwarding;
mod handoff;

const ETH: u32 = 3;
const INTERFACES: &[(u32, Mac)] = &[(ETH, Mac([2, 0, 0, 0, 0, 0xd1]))];

fn service(name: &str, port: u16) -> farm::Service {
    farm::Service {
        discover: Some(Discover::Arp),
        announce: farm::Announce::Never,
        ..example::service(name, SocketAddr::new(IpAddr::from([192, 0, 2, 100]), port), vec![])
    }
}

fn up(name: &str) -> MemberState {
    let last = name.bytes().last().unwrap();
    MemberState {
        member: Member {
            name: name.into(),
            address: None,
            mac: Some(Mac([2, 0, 0, 0, 0, last])),
            ifindex: Some(ETH),
            hop: None,
            weight: 1,
            backup: false,
            local: false,
            draining: false,
            source: ServerOrigin::Discovered,
            since_ms: 0,
            last_seen_ms: None,
        },
        health: health::HealthStatus { state: health::HealthState::Up, since_ms: 0, was_up: true },
        admin_draining: false,
        refuses: false,
        is_full: false,
        share: None,
        tenths: FULL_WEIGHT,
    }
}

fn down(name: &str, since_ms: u64) -> MemberState {
    let mut member = up(name);
    member.health = health::HealthStatus { state: health::HealthState::Down, since_ms, was_up: true };
    member
}

fn unknown(name: &str) -> MemberState {
    let mut member = up(name);
    member.health = health::HealthStatus { state: health::HealthState::Unknown, since_ms: 0, was_up: false };
    member
}

fn change(mut member: MemberState, change: impl FnOnce(&mut MemberState)) -> MemberState {
    change(&mut member);
    member
}

/// Computes the plan of a dedicated director.
fn plan(
    services: &[ServiceState<'_>],
    interfaces: &[(u32, Mac)],
    slots: &mut Slots,
    previous: Option<&Plan>,
) -> Result<Plan, PlanError> {
    super::plan(services, interfaces, &Hosts::default(), slots, &mut Fills::default(), previous)
}

/// Computes the plan of one service with fresh numbers. The servers a, b, c ... have the slots 1,
/// 2, 3 ...
fn plan_one(members: Vec<MemberState>) -> Plan {
    plan_service(&service("web", 80), members)
}

fn plan_service(service: &farm::Service, members: Vec<MemberState>) -> Plan {
    plan(&[ServiceState { service, members }], INTERFACES, &mut Slots::default(), None).unwrap()
}

fn order(plan: &Plan) -> Vec<u16> {
    plan.tables.rings[&0].order.clone()
}

fn degraded(plan: &Plan) -> bool {
    plan.services[&0].degraded
}

#[test]
fn a_farm_becomes_tables() {
    let plan = plan_one(vec![up("a"), change(up("b"), |b| b.member.weight = 2)]);
    let tables = &plan.tables;
    let key = VipKey { address: IpAddr::from([192, 0, 2, 100]), port: 80, protocol: Protocol::Tcp };
    let vip = tables.vips[&key];
    assert_eq!((vip.id, vip.service, vip.announce, vip.pick), (1, 0, false, Pick::Cursor));
    assert_eq!(vip.idle, idle_ticks(&service("web", 80)));
    assert!(vip.idle.syn < vip.idle.udp && vip.idle.udp < vip.idle.tcp);
    assert_eq!(order(&plan), [2, 1, 2]);
    assert_eq!(tables.rings[&0].hash.len(), HASH_SLOTS);
    let entry = ServerEntry {
        identity: identity("web", "a"),
        mac: Mac([2, 0, 0, 0, 0, b'a']),
        ifindex: ETH,
        weight: 1,
        up: true,
        local: false,
        forwarding: Forwarding::Link,
    };
    assert_eq!(tables.servers[&1], entry);
    assert!(tables.endpoints.is_empty());
    assert_eq!(tables.interfaces, INTERFACES.iter().copied().collect());
    assert_eq!(plan.servers[&2], ServerName { service: "web".into(), server: "b".into() });
    assert_eq!(plan.services[&0].name, "web");
}

#[test]
fn drained_server_keeps_its_sessions() {
    let plan = plan_one(vec![
        up("a"),
        down("b", 9),
        unknown("c"),
        change(up("d"), |d| d.admin_draining = true),
        change(up("e"), |e| e.member.weight = 0),
        change(up("f"), |f| f.member.draining = true),
    ]);
    assert_eq!(order(&plan), [1]);
    let up: Vec<bool> = plan.tables.servers.values().map(|server| server.up).collect();
    assert_eq!(up, [true, false, true, true, true, false], "b and f have failed; draining is not failing");
    assert!(plan.tables.rings[&0].hash.iter().all(|slot| *slot == 1));
    assert!(!degraded(&plan));
}

#[test]
fn a_server_that_frames_cannot_be_sent_to_is_not_in_the_tables() {
    let unreached = change(up("b"), |b| b.member.ifindex = Some(99));
    let not_found = change(up("c"), |c| (c.member.mac, c.member.ifindex) = (None, None));
    let here = change(up("d"), |d| {
        (d.member.mac, d.member.ifindex, d.member.local) = (None, None, true);
    });
    let plan = plan_one(vec![up("a"), unreached, not_found, here]);
    assert_eq!(order(&plan), [1, 2]);
    assert!(plan.tables.servers[&2].local);
    assert_eq!(plan.servers[&2].server, "d");
}

#[test]
fn a_service_without_servers_has_an_empty_ring() {
    for members in [vec![], vec![unknown("a")]] {
        let plan = plan_one(members);
        assert_eq!(*plan.tables.rings[&0], Ring::default());
        assert!(!degraded(&plan));
    }
}

#[test]
fn servers_that_fail_at_once_stay_in_the_ring() {
    let plan = plan_one(vec![down("a", 100_000), down("b", 106_000), down("c", 20_000)]);
    assert_eq!(order(&plan), [1, 2], "c was gone long before");
    assert!(degraded(&plan) && plan.tables.servers[&2].up);
    let plan = plan_one(vec![down("a", 100_000), up("b")]);
    assert_eq!((order(&plan), degraded(&plan)), (vec![2], false));
}

#[test]
fn servers_that_probes_saw_fail_one_after_the_other_have_not_failed_at_once() {
    let mut listed = service("web", 80);
    listed.discover = None;
    (listed.health.interval_ms, listed.health.timeout_ms, listed.health.fall) = (500, 250, 1);
    let order_of = |service: &farm::Service, apart_ms: u64| {
        order(&plan_service(service, vec![down("a", 100_000), down("b", 100_000 + apart_ms)]))
    };
    assert_eq!(order_of(&listed, 1_000), [1, 2], "two probes and what one may take");
    assert_eq!(order_of(&listed, 3_000), [2]);
    let discovered = farm::Service { discover: Some(Discover::Arp), ..listed.clone() };
    assert_eq!(order_of(&discovered, 3_000), [1, 2], "silence is noticed by rounds");
    let mut unprobed = listed;
    unprobed.health.kind = HealthKind::None;
    assert_eq!(order_of(&unprobed, 3_000), [1, 2]);
}

#[test]
fn last_working_set_excludes_drained_and_never_up() {
    let plan = plan_one(vec![
        down("a", 100_000),
        change(down("b", 100_000), |b| b.admin_draining = true),
        change(down("c", 100_000), |c| c.member.weight = 0),
        change(down("d", 100_000), |d| d.health.was_up = false),
        unknown("e"),
    ]);
    assert_eq!(order(&plan), [1]);
}

#[test]
fn silence_of_all_servers_is_a_failure_at_once_too() {
    let silent = |name| {
        change(up(name), |m| {
            (m.member.draining, m.member.since_ms) = (true, 50_000);
        })
    };
    assert_eq!(order(&plan_one(vec![silent("a"), silent("b")])), [1, 2]);
}

#[test]
fn an_empty_farm_where_that_is_wanted() {
    let strict = farm::Service { keep_last: false, ..service("web", 80) };
    let plan = plan_service(&strict, vec![down("a", 1), down("b", 1)]);
    assert!(order(&plan).is_empty() && !degraded(&plan));
}

#[test]
fn numbers_stay_through_changes_of_the_farm() {
    let (web, mail) = (service("web", 80), service("mail", 25));
    let mut slots = Slots::default();
    let mut make = |services: Vec<(&farm::Service, Vec<MemberState>)>| {
        let states: Vec<ServiceState<'_>> =
            services.into_iter().map(|(service, members)| ServiceState { service, members }).collect();
        plan(&states, INTERFACES, &mut slots, None).unwrap()
    };
    let first = make(vec![(&web, vec![up("a"), up("b")]), (&mail, vec![up("a")])]);
    let second = make(vec![(&mail, vec![up("a")]), (&web, vec![up("b"), up("a")])]);
    assert!(Delta::between(&first.tables, &second.tables).is_empty());
    let third = make(vec![(&mail, vec![up("a")])]);
    assert_eq!(third.servers.keys().copied().collect::<Vec<_>>(), [3]);
    assert_eq!(third.services.keys().copied().collect::<Vec<_>>(), [1]);
    let key = mail.vip_keys().next().unwrap();
    assert_eq!(first.tables.vips[&key], third.tables.vips[&key]);
}

#[test]
fn flows_without_a_session_go_by_the_base_of_servers_that_work() {
    let drained = |name| change(up(name), |one| one.admin_draining = true);
    let rising = |name| change(up(name), |one| one.tenths = 1);
    let of_all = Arc::clone(&plan_one(vec![up("a"), up("b"), up("c")]).tables.rings[&0]);
    assert!(of_all.previous.is_empty(), "it is the table in force");
    for one in [drained("b"), rising("b"), change(up("b"), |one| one.refuses = true)] {
        let ring = Arc::clone(&plan_one(vec![up("a"), one, up("c")]).tables.rings[&0]);
        assert_eq!(ring.previous, of_all.hash);
        assert_ne!(ring.hash, of_all.hash);
    }
    let all_drained = plan_one(vec![drained("a"), drained("b"), drained("c")]);
    let ring = &all_drained.tables.rings[&0];
    assert!(ring.hash.is_empty() && ring.previous == of_all.hash);
    let one_failed = plan_one(vec![up("a"), drained("b"), down("c", 5)]);
    let ring = &one_failed.tables.rings[&0];
    assert!(ring.hash.iter().all(|slot| *slot == 1));
    let kept = |(slot, of_all): (&u16, &u16)| slot == of_all || *of_all == 3 && *slot != 3;
    assert!(ring.previous.iter().zip(&*of_all.hash).all(kept));
    assert!(ring.previous.contains(&2) && !ring.previous.contains(&3));
}

#[test]
fn taking_up_again_ends_the_table_of_older_flows() {
    let web = service("web", 80);
    let (mut slots, mut previous) = (Slots::default(), None);
    let drained = || change(up("b"), |one| one.admin_draining = true);
    for (second, is_empty) in [(up("b"), true), (drained(), false), (drained(), false), (up("b"), true)] {
        let state = ServiceState { service: &web, members: vec![up("a"), second] };
        let plan = plan(&[state], INTERFACES, &mut slots, previous.as_ref()).unwrap();
        assert_eq!(plan.tables.rings[&0].previous.is_empty(), is_empty);
        previous = Some(plan);
    }
}

#[test]
fn slot_is_not_reused_while_sessions_hold_it() {
    let web = service("web", 80);
    let mut slots = Slots::default();
    let mut previous: Option<Plan> = None;
    let mut make = |slots: &mut Slots, members| {
        let state = ServiceState { service: &web, members };
        let plan = plan(&[state], INTERFACES, slots, previous.as_ref()).unwrap();
        previous = Some(plan.clone());
        plan.servers.iter().map(|(slot, name)| (*slot, name.server.clone())).collect::<Vec<_>>()
    };
    let at = |slot: u16, name: &str| (slot, String::from(name));
    assert_eq!(make(&mut slots, vec![up("a"), up("b")]), [at(1, "a"), at(2, "b")]);
    assert_eq!(make(&mut slots, vec![up("b"), up("c")]), [at(2, "b"), at(3, "c")]);
    assert_eq!(slots.retired().collect::<Vec<_>>(), [1]);
    assert_eq!(make(&mut slots, vec![up("a"), up("b")]), [at(1, "a"), at(2, "b")], "back in time");
    make(&mut slots, vec![up("b")]);
    slots.released(1);
    slots.released(2);
    assert_eq!(slots.retired().collect::<Vec<_>>(), [3], "2 is in use, whatever is said of it");
    assert_eq!(make(&mut slots, vec![up("b"), up("d")]), [at(1, "d"), at(2, "b")]);
}

#[test]
fn a_vip_number_freed_is_not_given_out_next() {
    let mut slots = Slots::default();
    let mut last = 0;
    for port in 1..=600 {
        let service = service("web", port);
        let state = ServiceState { service: &service, members: vec![] };
        let plan = plan(&[state], INTERFACES, &mut slots, None).unwrap();
        let id = plan.tables.vips.values().next().unwrap().id;
        assert!(id != last && id != 0 && usize::from(id) < VIP_IDS);
        last = id;
    }
}

#[test]
fn a_restarted_control_plane_comes_to_the_tables_that_run() {
    let mut web = service("web", 80);
    web.servers = vec![Server {
        name: "b".into(),
        address: [192, 0, 2, 12].into(),
        port: None,
        mac: None,
        weight: 1,
        backup: false,
        max_connections: 0,
        health_address: None,
        publish: vec![],
    }];
    let mail = service("mail", 25);
    let found = change(up("02:00:00:00:00:61"), |m| m.member.mac = Some(Mac([2, 0, 0, 0, 0, 0x61])));
    let state = |service, members| ServiceState { service, members };
    let mut slots = Slots::default();
    plan(&[state(&web, vec![up("x")])], INTERFACES, &mut slots, None).unwrap();
    let before = [state(&mail, vec![up("m")]), state(&web, vec![up("b"), found.clone()])];
    let running = plan(&before, INTERFACES, &mut slots, None).unwrap().tables;

    let known: Vec<(String, String)> =
        known(&running, &[web.clone(), mail.clone()]).into_iter().map(|k| (k.service, k.server)).collect();
    assert_eq!(known, [("web".into(), "b".into()), ("web".into(), "02:00:00:00:00:61".into())]);

    let mut adopted = Slots::default();
    adopted.adopt(&running);
    let dns = service("dns", 53);
    let after = [state(&dns, vec![up("n")]), state(&web, vec![found, up("b")]), state(&mail, vec![up("m")])];
    let new = plan(&after, INTERFACES, &mut adopted, None).unwrap().tables;
    let delta = Delta::between(&running, &new);
    assert_eq!((delta.vips.len(), delta.servers.len(), delta.rings.len()), (1, 1, 1), "only dns is new");
    assert!(delta.servers_removed.is_empty() && delta.vips_removed.is_empty());
}

#[test]
fn running_tables_are_adopted_if_consistent() {
    let mut running = Tables::clone(&plan_one(vec![up("a")]).tables);
    let entry = running.servers[&1];
    let key = |port| VipKey { address: [192, 0, 2, 9].into(), port, protocol: Protocol::Udp };
    let vip = *running.vips.values().next().unwrap();
    for slot in [0, 7, SERVER_SLOTS as u16, u16::MAX] {
        running.servers.insert(slot, entry);
    }
    for (port, id) in [(1, 0), (2, 1), (3, VIP_IDS as u16), (4, u16::MAX)] {
        running.vips.insert(key(port), Vip { id, service: u16::MAX, ..vip });
    }
    let mut slots = Slots::default();
    slots.adopt(&running);
    assert_eq!(slots.server(entry.identity), Some(1));
    assert_eq!(slots.server(5), Some(2));
    assert!((1..=5).all(|port| usize::from(slots.vip_id(key(port))) < VIP_IDS));
}

#[test]
fn a_ring_is_made_anew_only_when_its_members_change() {
    let web = service("web", 80);
    let mut slots = Slots::default();
    let mut make = |members, previous: Option<&Plan>| {
        plan(&[ServiceState { service: &web, members }], INTERFACES, &mut slots, previous).unwrap()
    };
    let first = make(vec![up("a"), up("b"), down("c", 1)], None);
    let moved = change(up("a"), |a| a.member.mac = Some(Mac([2; 6])));
    let same = make(vec![moved, up("b"), down("c", 1)], Some(&first));
    assert!(Arc::ptr_eq(&first.tables.rings[&0], &same.tables.rings[&0]));
    let other = make(vec![up("a"), up("b"), up("c")], Some(&same));
    assert!(!Arc::ptr_eq(&same.tables.rings[&0], &other.tables.rings[&0]));
}

#[test]
fn a_farm_with_too_many_servers_leaves_some_out() {
    let members = (0..300).map(|n| change(up("a"), |a| a.member.name = format!("s{n}"))).collect();
    let plan = plan_one(members);
    assert_eq!(plan.tables.servers.len(), SERVICE_SERVERS_MAX);
    assert_eq!(plan.left_out.len(), 300 - SERVICE_SERVERS_MAX);
}

#[test]
fn failed_plan_changes_no_slots() {
    let mut slots = Slots::default();
    let mut refuse = |services: &[farm::Service]| {
        let states: Vec<ServiceState<'_>> =
            services.iter().map(|service| ServiceState { service, members: vec![up("a")] }).collect();
        let error = plan(&states, INTERFACES, &mut slots, None).unwrap_err();
        assert_eq!(slots, Slots::default());
        error.to_string()
    };
    assert_eq!(
        refuse(&[service("web", 80), service("shop", 80)]),
        "services web and shop both have tcp 192.0.2.100:80"
    );
    assert_eq!(refuse(&[service("web", 80), service("web", 81)]), "two services are called web");
    let odd = farm::Service { policy: "fastest", ..service("web", 80) };
    assert_eq!(refuse(&[odd]), "service web: there is no policy fastest");
    let many: Vec<_> = (1..=65).map(|port| service(&format!("s{port}"), port)).collect();
    assert_eq!(refuse(&many), "the farm has 65 service addresses; the maximum is 64");
}

fn any_member() -> impl Strategy<Value = MemberState> {
    let state = prop::sample::select(vec![
        health::HealthState::Unknown,
        health::HealthState::Up,
        health::HealthState::Down,
    ]);
    (state, 0u64..50_000, any::<bool>(), 0u16..4, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(state, since_ms, was_up, weight, draining, admin_draining, found)| {
            change(up("a"), |m| {
                m.health = health::HealthStatus { state, since_ms, was_up };
                m.member.weight = weight;
                m.member.draining = draining;
                m.admin_draining = admin_draining;
                m.member.mac = m.member.mac.filter(|_| found);
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the history of the farm, rings contain only servers that may get sessions, no
    /// number changes its meaning, and equal states have equal tables.
    #[test]
    fn any_history(
        policy in prop::sample::select(policy::names_for_packets().collect::<Vec<_>>()),
        history in prop::collection::vec(prop::collection::btree_map(0u8..6, any_member(), 0..6), 1..6),
    ) {
        let web = farm::Service { policy, ..service("web", 80) };
        let mut slots = Slots::default();
        let mut previous: Option<Plan> = None;
        let mut meaning: BTreeMap<u16, ServerName> = BTreeMap::new();
        for farm in history {
            let members: Vec<MemberState> = farm
                .into_iter()
                .map(|(n, m)| change(m, |m| m.member.name = format!("s{n}")))
                .collect();
            let state = [ServiceState { service: &web, members }];
            let new = plan(&state, INTERFACES, &mut slots, previous.as_ref()).unwrap();
            let ring = &new.tables.rings[&0];
            let in_hash: BTreeSet<u16> = ring.hash.iter().copied().collect();
            let in_order: BTreeSet<u16> = ring.order.iter().copied().collect();
            let pick = policy::for_packets(policy).unwrap().pick;
            prop_assert!(matches!(pick, Pick::Hash | Pick::Two) || in_order == in_hash);
            let in_second: BTreeSet<u16> = ring.second.iter().copied().collect();
            prop_assert_eq!(pick == Pick::Two && in_hash.len() > 1, in_second == in_hash && !in_hash.is_empty());
            for slot in &in_hash {
                prop_assert!(new.tables.servers[slot].up && new.tables.servers[slot].weight > 0);
            }
            for (slot, name) in &new.servers {
                prop_assert_eq!(meaning.entry(*slot).or_insert_with(|| name.clone()), name);
            }
            let again = plan(&state, INTERFACES, &mut slots.clone(), None).unwrap();
            prop_assert_eq!(&again, &new);
            previous = Some(new);
        }
    }
}

#[test]
fn backup_is_in_the_ring_while_no_other_server_can_serve() {
    let backup = |name: &str| change(up(name), |one| one.member.backup = true);
    let plan = plan_one(vec![up("a"), backup("b"), up("c")]);
    assert_eq!(order(&plan), [1, 3]);
    assert_eq!((plan.tables.servers[&2].weight, plan.tables.servers[&2].up), (0, true));
    let drained = change(up("c"), |one| one.admin_draining = true);
    let plan = plan_one(vec![down("a", 5), backup("b"), drained]);
    assert_eq!((order(&plan), degraded(&plan)), (vec![2], false));
    assert_eq!(plan.tables.servers[&2].weight, 1);
}

#[test]
fn failed_servers_are_in_the_ring_below_the_panic_threshold_and_drained_ones_are_not() {
    let half = farm::Service { panic_percent: 50, ..service("web", 80) };
    let drained = || change(down("d", 9), |one| one.admin_draining = true);
    let few = plan_service(&half, vec![up("a"), down("b", 5), down("c", 90_000), drained()]);
    assert_eq!((order(&few), degraded(&few)), (vec![1, 2, 3], true));
    assert!(few.tables.servers[&2].up, "packets of its sessions that begin go there");
    let enough = plan_service(&half, vec![up("a"), down("b", 5), up("c"), drained()]);
    assert_eq!((order(&enough), degraded(&enough)), (vec![1, 3], false));
}
