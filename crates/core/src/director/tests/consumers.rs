//! Groups and names of a farm that also has services.

use super::*;
use crate::dns::{
    AddressPool, AddressesFrom, BalancedName, EmptyPool, Name, NameSettings, OwnServer, ServerList,
};
use crate::farm::group::{
    Group, GroupMember, Joiner, MEMBERS_MAX, MemberOrder, MemberRefusal, MessageOrigin, example as groups,
};
use crate::net::http::Url;
use crate::pool::Period;
use crate::pool::{self, ServerState, policy};

pub(super) fn balanced(text: &str, from: AddressesFrom) -> Arc<BalancedName> {
    let policy = policy::by_name("random").unwrap();
    let settings = NameSettings {
        name: Name::parse(text).unwrap(),
        ttl_s: 5,
        top: 4,
        draw: policy.names.unwrap().draw,
        empty_pool: EmptyPool::All,
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

/// Returns a name whose addresses are those of the servers of service `web`.
pub(super) fn of_web(text: &str) -> Arc<BalancedName> {
    balanced(text, AddressesFrom::Services { names: vec!["web".into()], own: false })
}

/// Returns a name with its own list of servers.
pub(super) fn of_its_own(text: &str, addresses: &[&str]) -> Arc<BalancedName> {
    let server = |address: &&str| OwnServer {
        name: None,
        address: address.parse().unwrap(),
        weight: 1,
        backup: false,
        health_address: None,
    };
    let health = farm(&[]).services.remove(0).health;
    let settings = pool::PoolSettings { check: Arc::new(health), report: None, slow_start_ms: 0 };
    let servers = addresses.iter().map(server).collect();
    balanced(text, AddressesFrom::Servers(ServerList { servers, settings: Arc::new(settings) }))
}

pub(super) fn group(members: &[&str]) -> Arc<Group> {
    let member = |host: &&str| GroupMember {
        name: (*host).into(),
        url: Url::parse(&alloc::format!("http://{host}")).unwrap(),
        weight: 1,
        backup: false,
        health_address: None,
        anonymous: false,
        control: None,
    };
    let mut group = Group { members: members.iter().map(member).collect(), ..groups::group() };
    group.health.kind = HealthKind::Tcp;
    Arc::new(group)
}

pub(super) fn with(names: Vec<Arc<BalancedName>>, groups: Vec<Arc<Group>>) -> Farm {
    Farm { names, groups, ..farm(&[("a", 11), ("b", 12)]) }
}

impl World {
    pub(super) fn begin(farm: Farm) -> World {
        let mut world = World::new(start(farm));
        world.pass(0);
        for server in ["a", "b"] {
            world.learn(Input::Probed { server: name(server), result: Ok(1) });
        }
        world
    }

    /// Returns the states of a name's servers, by address.
    pub(super) fn addresses(&self, number: usize) -> Vec<(String, ServerState)> {
        let seen = self.director.snapshot().names.get(number).unwrap();
        seen.addresses.iter().map(|one| (one.address.to_string(), one.state)).collect()
    }

    /// Returns the address pools that were ordered since `orders` was cleared, with the numbers of
    /// their names.
    pub(super) fn answers(&self) -> Vec<(usize, Arc<AddressPool>)> {
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

    pub(super) fn own(&mut self, number: usize, server: usize, works: bool) {
        let name = Arc::clone(&self.director.farm().names[number]);
        let result = works.then_some(5).ok_or(Failure::Refused);
        self.learn(Input::Name { name, fact: NameFact::Server(server, Fact::Probed(result)) });
    }

    pub(super) fn join(&mut self, lines: &[&str]) -> Result<(), MemberRefusal> {
        let joiners: Vec<Joiner> = lines.iter().map(|line| Joiner::parse(line).unwrap()).collect();
        let now = Moment { ms: self.now_ms, ..Moment::default() };
        let joined = self.director.message(now, "shop", |now, _, members| {
            let from = joiners[0].url.address();
            members
                .join(now, &MessageOrigin { from, ..MessageOrigin::default() }, &joiners)
                .map(|_| Ok(()))
                .map_err(Err)
        });
        self.pass(0);
        joined.unwrap()
    }

    pub(super) fn members(&self) -> Vec<(String, ServerState)> {
        let seen = &self.director.snapshot().groups[0];
        seen.members.iter().map(|member| (member.name.clone(), member.state)).collect()
    }
}

pub(super) fn is_ready(order: &Output) -> bool {
    matches!(order, Output::Ready { .. })
}

pub(super) fn up(address: &str) -> (String, ServerState) {
    (address.into(), ServerState::Up)
}

#[test]
fn a_name_is_answered_with_the_servers_of_its_service_as_they_are_in_force() {
    let mut world = World::begin(with(vec![of_web("www.example.com")], vec![]));
    assert!(world.orders.iter().any(is_ready));
    assert_eq!(world.addresses(0), [up("192.0.2.11"), up("192.0.2.12")]);
    world.orders.clear();
    world.learn(Input::Probed { server: name("b"), result: Err(Failure::Refused) });
    assert_eq!(world.addresses(0), [up("192.0.2.11"), ("192.0.2.12".into(), ServerState::Down)]);
    assert_eq!(world.answers().len(), 1);
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    assert_eq!(world.addresses(0)[0].1, ServerState::Draining);
    // The engine refuses the reload, so snapshots and address pools stay those of the farm in
    // force.
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
    world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Drain });
    assert_eq!(world.answers().len(), 10, "what is drained once is drained for all");
}

#[test]
fn own_servers_of_name_are_probed_and_kept_over_reload() {
    let own = of_its_own("www.example.com", &["192.0.2.21:80", "192.0.2.22:80"]);
    let mut world = World::begin(with(vec![own], vec![]));
    assert!(!world.orders.iter().any(is_ready), "nobody knows yet how its servers are");
    let probes = world.orders.iter().filter(|order| matches!(order, Output::Name(NameOrder::Probe(..))));
    assert_eq!(probes.count(), 2);
    world.own(0, 0, true);
    world.own(0, 1, false);
    assert!(world.orders.iter().any(is_ready));
    assert_eq!(world.addresses(0), [up("192.0.2.21"), ("192.0.2.22".into(), ServerState::Down)]);
    assert!(world.events().contains(&"www.example.com: 192.0.2.22: down: connection refused".into()));
    let old = Arc::clone(&world.director.farm().names[0]);
    world.reload(with(vec![of_its_own("www.example.com", &["192.0.2.22:80", "192.0.2.23:80"])], vec![]));
    let down = |address: &str| (address.to_string(), ServerState::Down);
    assert_eq!(world.addresses(0), [down("192.0.2.22"), down("192.0.2.23")]);
    // The results are for the old list: its first server is no longer listed, and its second server
    // is now the first.
    for (place, address) in [(0, down("192.0.2.22")), (1, up("192.0.2.22"))] {
        let fact = NameFact::Server(place, Fact::Probed(Ok(5)));
        world.learn(Input::Name { name: Arc::clone(&old), fact });
        assert_eq!(world.addresses(0)[0], address);
    }
}

#[test]
fn farm_without_probe_results_is_ready_after_timeout() {
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
    let probed = |order: &Output| matches!(order, Output::Group { order: MemberOrder::Probe { .. }, .. });
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
    world.learn(Input::SetOperatorState {
        server: ServerName { service: "shop".into(), server: "http://192.0.2.31".into() },
        state: OperatorState::Drain,
    });
    assert_eq!(world.members()[0].1, ServerState::Draining);
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
            Err(MemberRefusal::Full) => full += 1,
            Err(other) => panic!("{other}"),
        }
        world.orders.clear();
    }
    assert_eq!((joined, full), (MEMBERS_MAX, 10_000 - MEMBERS_MAX));
    assert_eq!(world.members().len(), MEMBERS_MAX);
}

#[test]
fn facts_about_removed_servers_are_ignored() {
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
fn service_keeps_server_drained_over_reload() {
    let mut world = World::begin(with(vec![of_web("www.example.com")], vec![]));
    world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Drain });
    world.reload(farm(&[("a", 11)]));
    assert!(world.director.operator_states().contains_key(&name("b")), "it may come again");
    world.reload(with(vec![of_web("www.example.com")], vec![]));
    world.learn(Input::Probed { server: name("b"), result: Ok(1) });
    assert_eq!(world.addresses(0), [up("192.0.2.11"), ("192.0.2.12".into(), ServerState::Draining)]);
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
