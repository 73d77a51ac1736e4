//! Balanced names of a farm that also has services: the addresses in answers, and the changes that
//! update the answers.

use super::consumers::{balanced, group, of_its_own, of_web, up, with};
use super::*;
use crate::dns::{AddressesFrom, BalancedName};
use crate::farm::group::MemberOrder;
use crate::pool::Period;
use crate::pool::{self, ServerState, policy};

#[test]
fn a_name_has_a_living_server_until_all_of_them_fail() {
    let mut world = World::begin(with(vec![of_web("www.example.com")], vec![]));
    let now = Moment { ms: world.now_ms, ..Moment::default() };
    let lives = |world: &World, name: &str| world.director.has_living(name, now);
    assert!(lives(&world, "www.example.com") && !lives(&world, "other.example.com"));
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    assert!(lives(&world, "www.example.com"));
    world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Drain });
    assert!(!lives(&world, "www.example.com"));
}

#[test]
fn ranks_of_a_name_without_a_period_are_read_every_five_seconds() {
    let mut ranked = of_web("www.example.com");
    Arc::make_mut(&mut ranked).rank_from = Some("ranks".into());
    let mut world = World::begin(with(vec![Arc::clone(&ranked)], vec![]));
    let reads = |world: &World| {
        let read = |order: &&Output| matches!(order, Output::Name(NameOrder::ReadRanks(..)));
        world.orders.iter().filter(read).count()
    };
    assert_eq!(reads(&world), 1);
    world.pass(60_000);
    assert_eq!(reads(&world), 1, "they are still being read");
    let text = "www.example.com 192.0.2.12 1\nwww.example.com 192.0.2.11 2\n";
    world.learn(Input::Name { name: ranked, fact: NameFact::Ranks(Ok(text.into())) });
    assert_eq!(world.addresses(0), [up("192.0.2.12"), up("192.0.2.11")], "the best comes first");
    world.pass(4_999);
    assert_eq!(reads(&world), 1);
    world.pass(1);
    assert_eq!(reads(&world), 2);
}

/// Returns a farm with a name that has the service's own addresses, weighed by the load of the
/// service's servers.
fn site() -> Farm {
    let mut site =
        balanced("www.example.com", AddressesFrom::Services { names: vec!["web".into()], own: true });
    Arc::make_mut(&mut site).policy = policy::by_name("expected-delay").unwrap();
    let mut farm = with(vec![site], vec![]);
    farm.services[0].servers[0].weight = 3;
    let kind = pool::ReportKind::AgentCheck;
    farm.services[0].report =
        Some(pool::Reporting { kind, port: 9_184, interval: Period::always(2_000), timeout_ms: 500 });
    farm
}

#[test]
fn a_site_has_the_weight_of_its_living_servers_and_the_mean_of_their_loads() {
    use pool::report::Report;
    let mut world = World::begin(site());
    let report = |unit: u64| Report {
        utilisation_permille: Some(unit),
        load_milli: Some(unit * 2),
        delay_us: Some(unit * 3),
        available_bps: Some(unit * 4),
        bottleneck_bps: Some(unit * 5),
        ..Report::default()
    };
    for (server, unit) in [("a", 100), ("b", 300)] {
        world.learn(Input::Reported { server: name(server), result: Ok(report(unit)) });
    }
    world.pass(1_000);
    let seen = |world: &World| {
        let seen = world.director.snapshot().names.get(0).unwrap();
        let [site] = &*seen.addresses else { panic!("{:?}", seen.addresses) };
        assert_eq!(site.address, ip("192.0.2.99"));
        let load = site.load.as_ref().unwrap();
        (site.state, site.weight, load.report, load.age_ms)
    };
    assert_eq!(seen(&world), (ServerState::Up, 4, report(200), Some(1_000)));
    world.learn(Input::Probed { server: name("b"), result: Err(Failure::Refused) });
    assert_eq!(seen(&world).0, ServerState::Up);
    assert_eq!((seen(&world).1, seen(&world).2), (3, report(100)), "who fails counts no more");
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    let down = world.director.snapshot().names.get(0).unwrap().addresses[0].clone();
    assert_eq!((down.state, down.reason.as_deref()), (ServerState::Down, Some("none of its servers lives")));
}

#[test]
fn servers_of_names_and_members_of_groups_are_drained_by_their_names() {
    let own = of_its_own("www.example.com", &["192.0.2.21:80", "192.0.2.22:80"]);
    let mut world = World::begin(with(vec![own, of_web("web.example.com")], vec![group(&["192.0.2.31"])]));
    let named = |service: &str, server: &str| ServerName { service: service.into(), server: server.into() };
    world.pass(READY_AFTER_MS + 1);
    let drainable = |world: &World, service, server| world.director.drainable(&named(service, server));
    for (service, server, owner, others) in [
        ("www.example.com", "192.0.2.21", ServerOwner::Name, &["192.0.2.21", "192.0.2.22"][..]),
        ("shop", "192.0.2.31", ServerOwner::Group, &["192.0.2.31"]),
    ] {
        let found = Drainable { name: named(service, server), owner };
        assert_eq!(drainable(&world, service, server), Ok(found));
        world.learn(Input::SetOperatorState { server: named(service, server), state: OperatorState::Drain });
        let others = others.iter().map(|other| String::from(*other)).collect();
        assert_eq!(drainable(&world, service, "other"), Err(NotDrainable::NoServer(owner, others)));
    }
    assert_eq!(drainable(&world, "web.example.com", "a"), Err(NotDrainable::OfServices));
    assert_eq!(drainable(&world, "other.example.com", "a"), Err(NotDrainable::NoOwner));
    assert_eq!(world.addresses(0)[0], ("192.0.2.21".into(), ServerState::Draining));
    assert!(world.events().contains(&"www.example.com: 192.0.2.21: drained".into()), "{:?}", world.events());
    world.learn(Input::SetOperatorState {
        server: named("www.example.com", "192.0.2.21"),
        state: OperatorState::Ready,
    });
    assert!(world.events().contains(&"www.example.com: 192.0.2.21: no longer drained".into()));
    assert_eq!(world.director.operator_states().len(), 1, "the member's");
}

#[test]
fn own_server_of_a_name_stays_drained_while_unlisted() {
    let own = |addresses: &[&str]| with(vec![of_its_own("www.example.com", addresses)], vec![]);
    let mut world = World::begin(own(&["192.0.2.21:80", "192.0.2.22:80"]));
    world.pass(READY_AFTER_MS + 1);
    let server = ServerName { service: "www.example.com".into(), server: "192.0.2.22".into() };
    world.learn(Input::SetOperatorState { server: server.clone(), state: OperatorState::Drain });
    world.reload(own(&["192.0.2.21:80"]));
    world.reload(own(&["192.0.2.21:80", "192.0.2.22:80"]));
    world.own(0, 1, true);
    assert_eq!(world.addresses(0)[1], ("192.0.2.22".into(), ServerState::Draining));
    assert!(world.director.operator_states().contains_key(&server));
}

#[test]
fn director_that_begins_probes_no_server_in_maintenance() {
    let own = of_its_own("www.example.com", &["192.0.2.21:80", "192.0.2.22:80"]);
    let farm = with(vec![own], vec![group(&["192.0.2.31", "192.0.2.32"])]);
    let named = |service: &str, server: &str| ServerName { service: service.into(), server: server.into() };
    let servers = [named("www.example.com", "192.0.2.21"), named("shop", "192.0.2.31"), name("a")];
    let operator = servers.map(|server| (server, OperatorState::Maintenance)).into();
    let mut world = World::new(Start { operator, ..start(farm) });
    world.pass(0);
    world.pass(10_000);
    let probes: Vec<String> = world
        .orders
        .iter()
        .filter_map(|order| match order {
            Output::Probe(probe) => Some(probe.server.server.clone()),
            Output::Name(NameOrder::Probe(_, place)) => Some(alloc::format!("name {place}")),
            Output::Group { order: MemberOrder::Probe { url, .. }, .. } => Some(url.as_str().into()),
            _ => None,
        })
        .collect();
    for (server, is_probed) in [
        ("a", false),
        ("b", true),
        ("name 0", false),
        ("name 1", true),
        ("http://192.0.2.31", false),
        ("http://192.0.2.32", true),
    ] {
        assert_eq!(probes.iter().any(|probe| probe == server), is_probed, "{server}: {probes:?}");
    }
}

#[test]
fn paths_to_the_servers_of_a_name_are_probed_and_change_its_answers() {
    use crate::dns::{MeasuredPath, PathMode, PathProbing};
    let probed = |mut name: Arc<BalancedName>| {
        let settings = Arc::make_mut(&mut name);
        settings.probe = Some(PathProbing { mode: PathMode::Udp, interval: Period::always(1_000) });
        settings.policy = policy::by_name("expected-delay").unwrap();
        name
    };
    let names =
        vec![probed(of_its_own("www.example.com", &["192.0.2.21:80"])), probed(of_web("web.example.com"))];
    let mut farm = with(names, vec![]);
    let kind = pool::ReportKind::Http("/load".into());
    farm.services[0].report =
        Some(pool::Reporting { kind, port: 9_200, interval: Period::always(2_000), timeout_ms: 500 });
    let mut world = World::begin(farm);
    world.own(0, 0, true);
    let mut asked = BTreeMap::new();
    for _ in 0..4 {
        for order in core::mem::take(&mut world.orders) {
            let Output::Name(NameOrder::ProbePath(order)) = order else { continue };
            asked.insert(order.to.ip(), order.to.port());
            let path = MeasuredPath { bottleneck_bps: 4_000_000, available_bps: Some(2_000_000) };
            world.learn(Input::Path { address: order.to.ip(), found: Ok(path) });
        }
        world.pass(0);
    }
    let expected = [("192.0.2.11", 9_200), ("192.0.2.12", 9_200), ("192.0.2.21", pool::LOAD_PORT)];
    assert_eq!(asked, expected.map(|(address, port)| (ip(address), port)).into(), "each at its agent's port");
    for number in [0, 1] {
        let seen = world.director.snapshot().names.get(number).unwrap();
        for address in &seen.addresses {
            let load = address.load.as_ref().unwrap();
            assert_eq!((load.report.available_bps, load.probed_ms), (Some(2_000_000), Some(0)), "{number}");
        }
    }
    let failed = |why: &str| Input::Path { address: ip("192.0.2.21"), found: Err(why.into()) };
    world.orders.clear();
    world.learn(failed("nobody answers"));
    world.learn(failed("nobody answers"));
    assert_eq!(world.events(), ["failed to probe the path to 192.0.2.21: nobody answers; retrying"]);
}

#[test]
fn latency_policy_follows_each_probe_and_random_policy_only_state_changes() {
    for (policy, follows) in [("peak-ewma", true), ("random", false), ("least-load", false)] {
        let mut own = of_its_own("www.example.com", &["192.0.2.21:80", "192.0.2.22:80"]);
        Arc::make_mut(&mut own).policy = policy::by_name(policy).unwrap();
        let mut world = World::begin(with(vec![Arc::clone(&own)], vec![]));
        world.own(0, 0, true);
        world.own(0, 1, true);
        world.orders.clear();
        let fact = NameFact::Server(1, Fact::Probed(Ok(40_000)));
        world.learn(Input::Name { name: own, fact });
        assert_eq!(world.answers().len(), usize::from(follows), "{policy}");
        let seen = world.director.snapshot().names.get(0).unwrap();
        let shares: Vec<u16> = seen.addresses.iter().map(|one| one.share).collect();
        assert_eq!(shares[0] > shares[1], follows, "{policy}: {shares:?}");
    }
}

#[test]
fn servers_of_a_name_that_are_not_probed_yet_are_waited_for() {
    let own = of_its_own("www.example.com", &["192.0.2.21:80", "192.0.2.22:80"]);
    let mut world = World::begin(with(vec![own], vec![]));
    assert!(!world.director.is_settled());
    world.own(0, 0, true);
    assert!(!world.director.is_settled());
    world.own(0, 0, true);
    assert!(!world.director.is_settled(), "one that is known already is not another one");
    world.own(0, 1, false);
    assert!(world.director.is_settled());
}

#[test]
fn change_of_one_name_leaves_other_answers() {
    let names = vec![
        of_its_own("a.example.com", &["192.0.2.21:80"]),
        of_its_own("b.example.com", &["192.0.2.22:80"]),
    ];
    let mut world = World::begin(with(names, vec![]));
    world.own(0, 0, true);
    world.own(1, 0, true);
    world.orders.clear();
    world.own(1, 0, false);
    let answered: Vec<usize> = world.answers().into_iter().map(|(number, _)| number).collect();
    assert_eq!(answered, [1]);
    assert_eq!((world.addresses(0)[0].1, world.addresses(1)[0].1), (ServerState::Up, ServerState::Down));
    let at_ms = world.director.next_at();
    assert!(at_ms > world.now_ms && at_ms <= world.now_ms + 1_000, "servers are probed on");
}

#[test]
fn shares_of_a_name_are_made_anew_once_in_its_period() {
    let mut own = of_its_own("www.example.com", &["192.0.2.21:80", "192.0.2.22:80"]);
    Arc::make_mut(&mut own).policy = policy::by_name("peak-ewma").unwrap();
    Arc::make_mut(&mut own).period = Period::always(20_000);
    let mut world = World::begin(with(vec![Arc::clone(&own)], vec![]));
    world.own(0, 0, true);
    world.own(0, 1, true);
    let begun_ms = world.now_ms;
    let shares = |world: &World| -> Vec<u16> {
        let seen = world.director.snapshot().names.get(0).unwrap();
        seen.addresses.iter().map(|one| one.share).collect()
    };
    world.learn(Input::Name { name: own, fact: NameFact::Server(1, Fact::Probed(Ok(40_000))) });
    let before = shares(&world);
    assert_eq!(before[0], before[1], "loads count as they were");
    world.pass(19_999);
    assert_eq!(shares(&world), before);
    world.now_ms = begun_ms + 20_000;
    world.pass(0);
    assert!(shares(&world)[0] > shares(&world)[1], "{:?}", shares(&world));
}

#[test]
fn reload_that_moves_a_server_in_the_list_keeps_its_state() {
    let own = |addresses: &[&str]| with(vec![of_its_own("www.example.com", addresses)], vec![]);
    let mut world = World::begin(own(&["192.0.2.21:80", "192.0.2.22:80"]));
    world.own(0, 0, true);
    world.own(0, 1, true);
    let given = |world: &World, place: usize| {
        Arc::clone(&world.director.snapshot().names.get(0).unwrap().addresses[place].counts)
    };
    let before = given(&world, 1);
    world.reload(own(&["192.0.2.22:80", "192.0.2.23:80"]));
    assert_eq!(world.addresses(0), [up("192.0.2.22"), ("192.0.2.23".into(), ServerState::Down)]);
    assert!(Arc::ptr_eq(&before, &given(&world, 0)), "and how often it was given");
    assert!(!Arc::ptr_eq(&before, &given(&world, 1)));
}

#[test]
fn how_often_a_service_s_server_was_given_for_a_name_is_counted_on_over_a_reload() {
    let mut world = World::begin(with(vec![of_web("a.example.com"), of_web("b.example.com")], vec![]));
    let given = |world: &World, number: usize, place: usize| {
        Arc::clone(&world.director.snapshot().names.get(number).unwrap().addresses[place].counts)
    };
    let before = [given(&world, 0, 0), given(&world, 0, 1), given(&world, 1, 0)];
    assert!(!Arc::ptr_eq(&before[0], &before[1]) && !Arc::ptr_eq(&before[0], &before[2]), "each has its own");
    world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Drain });
    world.reload(with(vec![of_web("b.example.com"), of_web("a.example.com")], vec![]));
    let after = [given(&world, 1, 0), given(&world, 1, 1), given(&world, 0, 0)];
    assert!(before.iter().zip(&after).all(|(before, after)| Arc::ptr_eq(before, after)));
}

#[test]
fn a_name_of_a_group_has_the_addresses_of_its_members_with_their_weights() {
    let from = |own| AddressesFrom::Services { names: vec!["shop".into()], own };
    let names = vec![balanced("shop.example.com", from(false)), balanced("site.example.com", from(true))];
    let mut listed = group(&["192.0.2.31", "192.0.2.32", "shop.internal"]);
    let settings = Arc::make_mut(&mut listed);
    settings.members[1].weight = 5;
    let sites: Vec<String> = settings.addresses.iter().map(|at| at.ip().to_string()).collect();
    let mut world = World::begin(with(names, vec![listed]));
    for (member, result) in [(0, Ok(5)), (1, Ok(5)), (2, Ok(5))] {
        let fact = MemberFact::Server(Fact::Probed(result));
        world.learn(Input::Member { group: "shop".into(), member, fact });
    }
    assert_eq!(world.addresses(0), [up("192.0.2.31"), up("192.0.2.32")], "clients resolve the third's name");
    let weights = |world: &World, number| -> Vec<u16> {
        let seen = world.director.snapshot().names.get(number).unwrap();
        seen.addresses.iter().map(|one| one.weight).collect()
    };
    assert_eq!(weights(&world, 0), [1, 5]);
    let seen: Vec<String> = world.addresses(1).into_iter().map(|(address, _)| address).collect();
    assert_eq!((seen, weights(&world, 1).iter().all(|weight| *weight == 6)), (sites, true));
    for _ in 0..3 {
        let fact = MemberFact::Server(Fact::Probed(Err(Failure::Refused)));
        world.learn(Input::Member { group: "shop".into(), member: 1, fact });
    }
    let seen = world.director.snapshot().names.get(0).unwrap().addresses[1].clone();
    assert_eq!((seen.state, seen.reason.as_deref()), (ServerState::Down, Some("connection refused")));
}

#[test]
fn a_report_that_only_grows_older_is_no_reason_to_answer_otherwise() {
    let mut farm = with(vec![of_web("www.example.com")], vec![]);
    let kind = pool::ReportKind::AgentCheck;
    farm.services[0].report =
        Some(pool::Reporting { kind, port: 9_184, interval: Period::always(2_000), timeout_ms: 500 });
    Arc::make_mut(&mut farm.names[0]).policy = policy::by_name("utilisation").unwrap();
    let mut world = World::begin(farm);
    let uses = |permille| pool::report::Report { utilisation_permille: Some(permille), ..Default::default() };
    let report = |world: &mut World, permille| {
        world.learn(Input::Reported { server: name("a"), result: Ok(uses(permille)) });
        world.learn(Input::Reported { server: name("b"), result: Ok(uses(200)) });
        world.orders.clear();
        world.pass(1_000);
        world.answers().len()
    };
    assert_eq!(report(&mut world, 200), 1);
    for _ in 0..3 {
        world.orders.clear();
        world.pass(1_000);
        assert_eq!(world.answers().len(), 0);
    }
    assert_eq!(report(&mut world, 800), 1);
    let seen = world.director.snapshot().names.get(0).unwrap();
    assert!(seen.addresses[0].share < seen.addresses[1].share, "{:?}", seen.addresses);
}

#[test]
fn a_name_that_ranks_as_the_paper_does_gives_the_best_server_first() {
    let mut farm = with(vec![of_web("www.example.com")], vec![]);
    let kind = pool::ReportKind::Http("/load".into());
    farm.services[0].report =
        Some(pool::Reporting { kind, port: 9_184, interval: Period::always(2_000), timeout_ms: 500 });
    let settings = Arc::make_mut(&mut farm.names[0]);
    settings.policy = &policy::rank::PAPER;
    Arc::make_mut(&mut settings.settings).draw = policy::rank::PAPER.names.unwrap().draw;
    let mut world = World::begin(farm);
    let mut order = |a: (u64, Option<u64>), b: (u64, Option<u64>)| {
        for (server, (delay_us, bps)) in [("a", a), ("b", b)] {
            let report = pool::report::Report {
                delay_us: Some(delay_us),
                bottleneck_bps: bps,
                available_bps: bps,
                ..Default::default()
            };
            world.learn(Input::Reported { server: name(server), result: Ok(report) });
        }
        world.pass(1_000);
        world.addresses(0)
    };
    let (a, b) = (up("192.0.2.11"), up("192.0.2.12"));
    assert_eq!(order((0, Some(4_000_000)), (0, Some(9_000_000))), [b.clone(), a.clone()]);
    assert_eq!(order((0, Some(9_000_000)), (0, Some(4_000_000))), [a.clone(), b.clone()]);
    assert_eq!(order((9_000_000, Some(9_000_000)), (0, Some(4_000_000))), [b.clone(), a.clone()]);
    assert_eq!(order((0, Some(9_000_000)), (0, None)), [b, a], "only clients make a path known");
}
