//! Groups and names beside services: one farm, whose servers are known once.

use super::*;
use crate::dns::{
    AddressesOf, Balanced, BalancedName, Name, NoneAlive, OwnServer, Period, ServerList, Settings,
};
use crate::farm::group::{
    Group, GroupMember, Joiner, MEMBERS_MAX, Order, Origin, Refused, example as groups,
};
use crate::net::http::Url;
use crate::pool::{self, State, policy};

fn balanced(text: &str, from: AddressesOf) -> Arc<BalancedName> {
    let policy = policy::by_name("random").unwrap();
    let settings = Settings {
        name: Name::parse(text).unwrap(),
        ttl_s: 5,
        top: 4,
        draw: policy.names.unwrap().draw,
        none_alive: NoneAlive::All,
    };
    Arc::new(BalancedName {
        settings: Arc::new(settings),
        policy,
        period: Period::always(0),
        report_gain_percent: 150,
        rank_from: None,
        probe: None,
        from,
    })
}

/// A name with the servers of the service.
fn of_web(text: &str) -> Arc<BalancedName> {
    balanced(text, AddressesOf::Services { names: vec!["web".into()], own: false })
}

/// A name with servers of its own.
fn of_its_own(text: &str, addresses: &[&str]) -> Arc<BalancedName> {
    let server = |address: &&str| OwnServer { name: None, address: address.parse().unwrap(), weight: 1 };
    let health = farm(&[]).services.remove(0).health;
    let settings = pool::Settings { check: Arc::new(health), report: None, slow_start_ms: 0 };
    let servers = addresses.iter().map(server).collect();
    balanced(text, AddressesOf::Servers(ServerList { servers, settings: Arc::new(settings) }))
}

fn group(members: &[&str]) -> Arc<Group> {
    let member = |host: &&str| GroupMember {
        name: (*host).into(),
        url: Url::parse(&alloc::format!("http://{host}")).unwrap(),
        weight: 1,
        anonymous: false,
        control: None,
    };
    let mut group = Group { members: members.iter().map(member).collect(), ..groups::group() };
    group.health.kind = HealthKind::Tcp;
    Arc::new(group)
}

fn with(names: Vec<Arc<BalancedName>>, groups: Vec<Arc<Group>>) -> Farm {
    Farm { names, groups, ..farm(&[("a", 11), ("b", 12)]) }
}

impl World {
    fn begin(farm: Farm) -> World {
        let mut world = World::new(start(farm));
        world.pass(0);
        for server in ["a", "b"] {
            world.learn(Input::Probed { server: name(server), result: Ok(1) });
        }
        world
    }

    /// How the servers of a name are, by their addresses.
    fn addresses(&self, number: usize) -> Vec<(String, State)> {
        let seen = self.director.snapshot().names.get(number).unwrap();
        seen.addresses.iter().map(|one| (one.address.to_string(), one.state)).collect()
    }

    /// The answers that were ordered since orders were cleared.
    fn answers(&self) -> Vec<(usize, Arc<Balanced>)> {
        let mut answers = Vec::new();
        for order in &self.orders {
            match order {
                Output::Name(NameOrder::AnswerAll(all)) => {
                    answers = all.iter().cloned().enumerate().collect()
                }
                Output::Name(NameOrder::Answer(some)) => answers.extend(some.iter().cloned()),
                _ => {}
            }
        }
        answers
    }

    fn own(&mut self, number: usize, server: usize, works: bool) {
        let name = Arc::clone(&self.director.farm().names[number]);
        let result = works.then_some(5).ok_or(Failure::Refused);
        self.learn(Input::Name { name, fact: NameFact::Server(server, Fact::Probed(result)) });
    }

    fn join(&mut self, lines: &[&str]) -> Result<(), Refused> {
        let joiners: Vec<Joiner> = lines.iter().map(|line| Joiner::parse(line).unwrap()).collect();
        let now = Moment { ms: self.now_ms, ..Moment::default() };
        let joined = self.director.message(now, "shop", |now, _, members| {
            let from = joiners[0].url.address();
            members.join(now, &Origin { from, ..Origin::default() }, &joiners).map(|_| Ok(())).map_err(Err)
        });
        self.pass(0);
        joined.unwrap()
    }

    fn members(&self) -> Vec<(String, State)> {
        let seen = &self.director.snapshot().groups[0];
        seen.members.iter().map(|member| (member.name.clone(), member.state)).collect()
    }
}

fn is_ready(order: &Output) -> bool {
    matches!(order, Output::Ready { .. })
}

fn up(address: &str) -> (String, State) {
    (address.into(), State::Up)
}

#[test]
fn a_name_is_answered_with_the_servers_of_its_service_as_they_are_in_force() {
    let mut world = World::begin(with(vec![of_web("www.example.com")], vec![]));
    assert!(world.orders.iter().any(is_ready));
    assert_eq!(world.addresses(0), [up("192.0.2.11"), up("192.0.2.12")]);
    world.orders.clear();
    world.learn(Input::Probed { server: name("b"), result: Err(Failure::Refused) });
    assert_eq!(world.addresses(0), [up("192.0.2.11"), ("192.0.2.12".into(), State::Down)]);
    assert_eq!(world.answers().len(), 1);
    world.learn(Input::Drain { server: name("a"), drain: true });
    assert_eq!(world.addresses(0)[0].1, State::Draining);
    // The engine refuses: what is shown and answered stays what is in force.
    world.orders.clear();
    world.refusal = Some("no room".into());
    world.reload(with(vec![of_web("other.example.com")], vec![]));
    assert!(world.answers().is_empty());
    assert!(world.director.name("www.example.com").is_some());
    world.reload(with(vec![of_web("other.example.com")], vec![]));
    assert!(world.director.name("www.example.com").is_none() && world.answers().len() == 1);
}

#[test]
fn ten_names_with_the_servers_of_a_service_have_each_probed_once() {
    let names = (0..10).map(|number| of_web(&alloc::format!("n{number}.example.com"))).collect();
    let mut world = World::begin(with(names, vec![]));
    let probes =
        |world: &World| world.orders.iter().filter(|order| matches!(order, Output::Probe(_))).count();
    assert_eq!(probes(&world), 2);
    assert!(!world.orders.iter().any(|order| matches!(order, Output::Name(NameOrder::Probe(..)))));
    world.orders.clear();
    world.learn(Input::Drain { server: name("b"), drain: true });
    assert_eq!(world.answers().len(), 10, "what is drained once is drained for all");
}

#[test]
fn servers_of_a_name_alone_are_probed_for_it_and_known_over_a_reload() {
    let own = of_its_own("www.example.com", &["192.0.2.21:80", "192.0.2.22:80"]);
    let mut world = World::begin(with(vec![own], vec![]));
    assert!(!world.orders.iter().any(is_ready), "nobody knows yet how its servers are");
    let probes = world.orders.iter().filter(|order| matches!(order, Output::Name(NameOrder::Probe(..))));
    assert_eq!(probes.count(), 2);
    world.own(0, 0, true);
    world.own(0, 1, false);
    assert!(world.orders.iter().any(is_ready));
    assert_eq!(world.addresses(0), [up("192.0.2.21"), ("192.0.2.22".into(), State::Down)]);
    assert!(world.events().contains(&"www.example.com: 192.0.2.22: down: connection refused".into()));
    let old = Arc::clone(&world.director.farm().names[0]);
    world.reload(with(vec![of_its_own("www.example.com", &["192.0.2.22:80", "192.0.2.23:80"])], vec![]));
    let down = |address: &str| (address.to_string(), State::Down);
    assert_eq!(world.addresses(0), [down("192.0.2.22"), down("192.0.2.23")]);
    // An answer of the first, which is none any more, and then of the second, which has moved up.
    for (place, address) in [(0, down("192.0.2.22")), (1, up("192.0.2.22"))] {
        let fact = NameFact::Server(place, Fact::Probed(Ok(5)));
        world.learn(Input::Name { name: Arc::clone(&old), fact });
        assert_eq!(world.addresses(0)[0], address);
    }
}

#[test]
fn a_farm_whose_servers_nobody_knows_is_ready_after_a_while_and_no_sooner() {
    let mut world = World::new(start(with(vec![of_web("www.example.com")], vec![group(&[])])));
    world.pass(READY_AFTER_MS);
    assert!(!world.orders.iter().any(is_ready));
    assert!(world.director.next_at() <= world.now_ms + 1);
    world.pass(1);
    let ready = world.orders.iter().find(|order| is_ready(order));
    assert!(matches!(ready, Some(Output::Ready { serving: false })), "{ready:?}");
    world.orders.clear();
    world.pass(10_000);
    assert!(!world.orders.iter().any(is_ready), "it is said once");
}

#[test]
fn a_member_that_is_listed_and_joins_is_one_and_stays_one_over_reloads() {
    let mut world = World::begin(with(vec![], vec![group(&["192.0.2.31"])]));
    world.join(&["http://192.0.2.31 weight=3"]).unwrap();
    assert_eq!(world.members().len(), 1);
    let probed = |order: &Output| matches!(order, Output::Group { order: Order::Probe { .. }, .. });
    assert_eq!(world.orders.iter().filter(|order| probed(order)).count(), 1);
    world.learn(Input::Member {
        group: "shop".into(),
        member: 0,
        fact: MemberFact::Server(Fact::Probed(Ok(5))),
    });
    assert_eq!(world.members(), [up("192.0.2.31")]);
    world.refusal = Some("no room".into());
    world.reload(with(vec![], vec![]));
    assert_eq!(world.members(), [up("192.0.2.31")], "a refused reload takes no group");
    world.reload(with(vec![], vec![group(&[])]));
    assert_eq!(world.members(), [up("http://192.0.2.31")], "it has joined, and reports");
    world.learn(Input::Drain {
        server: ServerName { service: "shop".into(), server: "http://192.0.2.31".into() },
        drain: true,
    });
    assert_eq!(world.members()[0].1, State::Draining);
    world.reload(with(vec![], vec![]));
    assert!(world.director.snapshot().groups.is_empty());
}

#[test]
fn a_storm_of_joins_fills_the_group_and_is_refused_then() {
    let mut world = World::begin(with(vec![], vec![group(&[])]));
    let (mut joined, mut full) = (0, 0);
    for number in 0..10_000_u32 {
        let line = alloc::format!("http://10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
        match world.join(&[&line]) {
            Ok(()) => joined += 1,
            Err(Refused::Full) => full += 1,
            Err(other) => panic!("{other}"),
        }
        world.orders.clear();
    }
    assert_eq!((joined, full), (MEMBERS_MAX, 10_000 - MEMBERS_MAX));
    assert_eq!(world.members().len(), MEMBERS_MAX);
}

#[test]
fn facts_of_what_was_just_removed_change_nothing() {
    let own = of_its_own("www.example.com", &["192.0.2.21:80"]);
    let mut world = World::begin(with(vec![own], vec![group(&["192.0.2.31"])]));
    let old = Arc::clone(&world.director.farm().names[0]);
    world.reload(farm(&[("a", 11)]));
    world.orders.clear();
    let before = Arc::clone(&world.director.snapshot().names);
    let fact = || Fact::Probed(Err(Failure::Refused));
    for fact in [NameFact::Server(0, fact()), NameFact::Ranks(Err("gone".into()))] {
        world.learn(Input::Name { name: Arc::clone(&old), fact });
    }
    world.learn(Input::Member { group: "shop".into(), member: 0, fact: MemberFact::Server(fact()) });
    world.learn(Input::Path { address: ip("192.0.2.21"), found: Err("gone".into()) });
    world.learn(Input::Probed { server: name("b"), result: Err(Failure::Refused) });
    world.learn(Input::Reported { server: name("b"), result: Err(pool::report::BadReport::Silent) });
    assert!(world.events().is_empty(), "{:?}", world.events());
    assert!(Arc::ptr_eq(&before, &world.director.snapshot().names));
    assert_eq!(world.ring(), ["a"]);
}

#[test]
fn a_service_that_drains_a_server_over_a_reload_keeps_it_drained() {
    let mut world = World::begin(with(vec![of_web("www.example.com")], vec![]));
    world.learn(Input::Drain { server: name("b"), drain: true });
    world.reload(farm(&[("a", 11)]));
    assert!(world.director.drained().contains(&name("b")), "it may come again");
    world.reload(with(vec![of_web("www.example.com")], vec![]));
    world.learn(Input::Probed { server: name("b"), result: Ok(1) });
    assert_eq!(world.addresses(0), [up("192.0.2.11"), ("192.0.2.12".into(), State::Draining)]);
    assert_eq!(world.ring(), ["a"]);
}

#[test]
fn a_farm_is_not_ready_before_the_members_of_its_groups_were_probed() {
    let mut world = World::begin(with(vec![], vec![group(&["192.0.2.31"])]));
    assert!(!world.director.is_settled() && !world.orders.iter().any(is_ready));
    let fact = MemberFact::Server(Fact::Probed(Ok(5)));
    world.learn(Input::Member { group: "shop".into(), member: 0, fact });
    assert!(world.director.is_settled() && world.orders.iter().any(is_ready));
}

#[test]
fn a_name_has_a_living_server_until_all_of_them_fail() {
    let mut world = World::begin(with(vec![of_web("www.example.com")], vec![]));
    let now = Moment { ms: world.now_ms, ..Moment::default() };
    let lives = |world: &World, name: &str| world.director.has_living(name, now);
    assert!(lives(&world, "www.example.com") && !lives(&world, "other.example.com"));
    world.learn(Input::Drain { server: name("a"), drain: true });
    assert!(lives(&world, "www.example.com"));
    world.learn(Input::Drain { server: name("b"), drain: true });
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

/// A name with the service's own addresses, by the load of its servers.
fn site() -> Farm {
    let mut site =
        balanced("www.example.com", AddressesOf::Services { names: vec!["web".into()], own: true });
    Arc::make_mut(&mut site).policy = policy::by_name("expected-delay").unwrap();
    let mut farm = with(vec![site], vec![]);
    farm.services[0].servers[0].weight = 3;
    let kind = pool::ReportKind::AgentCheck;
    farm.services[0].report =
        Some(pool::Reporting { kind, port: 9_184, interval_ms: 2_000, timeout_ms: 500 });
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
    assert_eq!(seen(&world), (State::Up, 4, report(200), Some(1_000)));
    world.learn(Input::Probed { server: name("b"), result: Err(Failure::Refused) });
    assert_eq!(seen(&world).0, State::Up);
    assert_eq!((seen(&world).1, seen(&world).2), (3, report(100)), "who fails counts no more");
    world.learn(Input::Drain { server: name("a"), drain: true });
    let down = world.director.snapshot().names.get(0).unwrap().addresses[0].clone();
    assert_eq!((down.state, down.reason.as_deref()), (State::Down, Some("none of its servers lives")));
}

#[test]
fn servers_of_names_and_members_of_groups_are_drained_by_their_names() {
    let own = of_its_own("www.example.com", &["192.0.2.21:80", "192.0.2.22:80"]);
    let mut world = World::begin(with(vec![own, of_web("web.example.com")], vec![group(&["192.0.2.31"])]));
    let named = |service: &str, server: &str| ServerName { service: service.into(), server: server.into() };
    world.pass(READY_AFTER_MS + 1);
    let drainable = |world: &World, service, server| world.director.drainable(&named(service, server));
    for (service, server, owner, others) in [
        ("www.example.com", "192.0.2.21", Owner::Name, &["192.0.2.21", "192.0.2.22"][..]),
        ("shop", "192.0.2.31", Owner::Group, &["192.0.2.31"]),
    ] {
        let found = |is_drained| Ok(Drainable { name: named(service, server), owner, is_drained });
        assert_eq!(drainable(&world, service, server), found(false));
        world.learn(Input::Drain { server: named(service, server), drain: true });
        assert_eq!(drainable(&world, service, server), found(true));
        let others = others.iter().map(|other| String::from(*other)).collect();
        assert_eq!(drainable(&world, service, "other"), Err(NotDrainable::NoServer(owner, others)));
    }
    assert_eq!(drainable(&world, "web.example.com", "a"), Err(NotDrainable::OfServices));
    assert_eq!(drainable(&world, "other.example.com", "a"), Err(NotDrainable::NoOwner));
    assert_eq!(world.addresses(0)[0], ("192.0.2.21".into(), State::Draining));
    assert!(world.events().contains(&"www.example.com: 192.0.2.21: drained".into()), "{:?}", world.events());
    world.learn(Input::Drain { server: named("www.example.com", "192.0.2.21"), drain: false });
    assert!(world.events().contains(&"www.example.com: 192.0.2.21: no longer drained".into()));
    assert!(world.director.drained_of_names().is_empty());
}

#[test]
fn a_name_s_own_server_stays_drained_while_it_is_not_listed() {
    let own = |addresses: &[&str]| with(vec![of_its_own("www.example.com", addresses)], vec![]);
    let mut world = World::begin(own(&["192.0.2.21:80", "192.0.2.22:80"]));
    world.pass(READY_AFTER_MS + 1);
    let server = ServerName { service: "www.example.com".into(), server: "192.0.2.22".into() };
    world.learn(Input::Drain { server: server.clone(), drain: true });
    world.reload(own(&["192.0.2.21:80"]));
    world.reload(own(&["192.0.2.21:80", "192.0.2.22:80"]));
    world.own(0, 1, true);
    assert_eq!(world.addresses(0)[1], ("192.0.2.22".into(), State::Draining));
    assert!(world.director.drained_of_names().contains(&server));
}

#[test]
fn paths_to_the_servers_of_a_name_are_probed_and_change_its_answers() {
    use crate::dns::{MeasuredPath, PathMode, PathProbing};
    let probed = |mut name: Arc<BalancedName>| {
        let settings = Arc::make_mut(&mut name);
        settings.probe = Some(PathProbing { mode: PathMode::Udp, interval_ms: 1_000 });
        settings.policy = policy::by_name("expected-delay").unwrap();
        name
    };
    let names =
        vec![probed(of_its_own("www.example.com", &["192.0.2.21:80"])), probed(of_web("web.example.com"))];
    let mut farm = with(names, vec![]);
    let kind = pool::ReportKind::Http("/load".into());
    farm.services[0].report =
        Some(pool::Reporting { kind, port: 9_200, interval_ms: 2_000, timeout_ms: 500 });
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
    assert_eq!(world.events(), ["the path to 192.0.2.21 can't be probed: nobody answers; it is tried again"]);
}

#[test]
fn a_name_by_latency_follows_each_probe_and_one_by_chance_follows_none_that_changes_nothing() {
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
fn what_changes_for_one_name_is_answered_for_that_name_alone() {
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
    assert_eq!((world.addresses(0)[0].1, world.addresses(1)[0].1), (State::Up, State::Down));
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
