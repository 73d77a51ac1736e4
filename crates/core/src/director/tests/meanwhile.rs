//! Facts that arrive while a change is in progress. The director applies them at once, and the next
//! change contains them.

use super::*;
use crate::farm::network::Network;
use crate::pool::ServerState;
use alloc::format;

/// Returns a director of two servers, whose engine answers only when the test lets it.
fn slow() -> World {
    World { is_slow: true, ..World::serving(&[("a", 11), ("b", 12)]) }
}

/// Starts a change: a drain of `b`, or the reload of a farm with `b` and `c`.
fn begin(world: &mut World, reloads: bool) {
    match reloads {
        true => world.reload(farm(&[("b", 12), ("c", 13)])),
        false => world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Drain }),
    }
    assert!(world.on_its_way.is_some() && world.director.awaited().is_some());
}

/// Lets the engine answer until no change is in progress.
fn finish(world: &mut World) {
    while world.on_its_way.is_some() {
        world.answer();
    }
    assert_eq!(world.director.awaited(), None);
    assert_eq!(world.director.plan().tables, world.in_force);
    assert_eq!(world.director.snapshot().plan.tables, world.in_force);
}

fn described(world: &World) -> Vec<&str> {
    world.director.farm().services[0].servers.iter().map(|server| server.name.as_str()).collect()
}

#[test]
fn facts_during_a_change_enter_the_next_change() {
    let mut world = slow();
    begin(&mut world, false);
    let (first, shown) = (world.director.awaited(), Arc::clone(world.director.snapshot()));
    world.learn(Input::Probed { server: name("a"), result: Err(Failure::Refused) });
    assert_ne!(world.director.awaited(), first, "it is not in the one that is on its way");
    assert_eq!(world.events(), [""; 0], "neither is told before it is in force");
    world.answer();
    assert_eq!(world.ring(), ["a"]);
    assert_eq!(world.events().len(), 1, "{:?}", world.events());
    let now = Arc::clone(world.director.snapshot());
    assert_ne!(now.generation, shown.generation, "what is in force is shown at once");
    let states = |server| now.server(&name(server)).unwrap().state;
    assert_eq!([states("a"), states("b")], [ServerState::Up, ServerState::Draining], "and nothing else");
    finish(&mut world);
    assert_eq!(world.director.snapshot().server(&name("a")).unwrap().state, ServerState::Down);
    assert_eq!(world.events().len(), 3, "{:?}", world.events());
}

#[test]
fn pending_change_schedules_no_timer() {
    let mut world = slow();
    begin(&mut world, false);
    world.learn(Input::Probed { server: name("a"), result: Err(Failure::Refused) });
    world.pass(0);
    assert!(world.director.next_at() > world.now_ms);
    for _ in 0..10 {
        world.pass(1_000);
    }
    let probed = world.orders.iter().filter(|order| matches!(order, Output::Probe(_))).count();
    assert_eq!(probed, 2, "servers are looked after");
    finish(&mut world);
}

#[test]
fn reload_keeps_facts_learned_during_its_change() {
    for refusal in [None, Some("no room")] {
        let mut world = slow();
        world.refusal = refusal.map(String::from);
        begin(&mut world, true);
        assert_eq!(described(&world), ["a", "b"], "it is followed once it is in force");
        world.learn(Input::Probed { server: name("b"), result: Err(Failure::Refused) });
        world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
        let mut broken = network();
        broken.interfaces.get_mut(&2).unwrap().carrier = false;
        world.learn(Input::Network(Box::new(broken.clone())));
        world.answer();
        finish(&mut world);
        assert_eq!(described(&world), if refusal.is_none() { ["b", "c"] } else { ["a", "b"] });
        assert_eq!(*world.director.network(), broken);
        assert!(world.director.operator_states().contains_key(&name("a")));
        let snapshot = world.director.snapshot();
        assert!(!snapshot.reloads.pending);
        assert_eq!(snapshot.server(&name("b")).unwrap().state, ServerState::Down);
        // Facts after the change are planned as usual.
        world.learn(Input::Probed { server: name("b"), result: Ok(1) });
        finish(&mut world);
        assert_eq!(world.ring(), ["b"]);
    }
}

#[test]
fn second_reload_follows_failed_or_applied_first() {
    for refusal in [None, Some("no room")] {
        let mut world = slow();
        world.refusal = refusal.map(String::from);
        begin(&mut world, true);
        let first = world.director.awaited();
        world.reload(farm(&[("a", 11), ("d", 14)]));
        let second = world.director.awaited();
        assert!(first < second && world.director.snapshot().reloads.pending);
        world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
        world.answer();
        assert_eq!(described(&world), if refusal.is_none() { ["b", "c"] } else { ["a", "b"] });
        assert!(world.on_its_way.is_some() && world.director.snapshot().reloads.pending);
        assert_eq!(world.director.awaited(), second);
        finish(&mut world);
        assert_eq!(described(&world), ["a", "d"]);
        let reloads = &world.director.snapshot().reloads;
        assert_eq!((reloads.done, reloads.refused), if refusal.is_none() { (2, 0) } else { (1, 1) });
        assert_eq!(world.director.snapshot().server(&name("a")).unwrap().state, ServerState::Draining);
        assert_eq!(world.ring(), [""; 0]);
    }
}

#[test]
fn refused_change_is_retried_after_pending_one() {
    let mut world = slow();
    world.refusal = Some("no room".into());
    begin(&mut world, false);
    world.pass(RETRY_MS);
    assert_eq!(world.applied, 0);
    world.answer();
    assert_eq!((world.ring(), world.on_its_way.is_some()), (vec!["a".into(), "b".into()], false));
    // A new fact is planned without waiting for the retry.
    world.learn(Input::Probed { server: name("a"), result: Err(Failure::Refused) });
    finish(&mut world);
    assert_eq!(world.ring(), ["a"], "the last that worked: b is drained");
    world.refusal = Some("no room".into());
    world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Ready });
    world.answer();
    assert_eq!(world.ring(), ["a"]);
    world.pass(RETRY_MS);
    finish(&mut world);
    assert_eq!(world.ring(), ["b"]);
}

/// If the engine fails half-way, it has neither the old tables nor the new ones. The engine returns
/// its actual tables, and the next change starts from them.
#[test]
fn tables_of_engine_count_after_failed_change() {
    for reloads in [false, true] {
        let mut world = slow();
        begin(&mut world, reloads);
        let half = Tables { rings: BTreeMap::new(), ..Tables::clone(&world.in_force) };
        let planned = world.on_its_way.take().unwrap().plan(&mut world.fills);
        world.in_force = Arc::new(half);
        let answer = planned.answer(Arc::clone(&world.in_force), Some("the kernel is gone".into()));
        world.learn(Input::Applied(Box::new(answer)));
        assert!(world.on_its_way.is_none() && world.director.next_at() <= world.now_ms + RETRY_MS);
        world.pass(RETRY_MS);
        assert!(world.on_its_way.is_some(), "even what was in force before is to be so again");
        finish(&mut world);
        assert!(!world.in_force.rings.is_empty());
    }
}

#[test]
fn the_number_of_a_server_that_comes_back_meanwhile_stays_its_own() {
    let mut world = slow();
    world.reload(farm(&[("b", 12)]));
    world.answer();
    let forgotten = world.orders.iter().find_map(|order| match order {
        Output::Forget { retired, .. } => Some(retired.clone()),
        _ => None,
    });
    let slot = forgotten.unwrap()[0];
    for refusal in [Some("no room".to_string()), None] {
        world.reload(farm(&[("a", 11), ("b", 12)]));
        world.refusal = refusal;
        world.learn(Input::Released { slot });
        finish(&mut world);
    }
    assert_eq!(world.director.plan().servers.get(&slot), Some(&name("a")));
    world.learn(Input::Released { slot });
    world.reload(farm(&[("a", 11), ("b", 12), ("c", 13)]));
    finish(&mut world);
    assert_eq!(world.director.plan().servers.get(&slot), Some(&name("a")), "it is nobody else's");
}

/// The sessions of removed servers must end before the next tables are applied.
#[test]
fn removed_sessions_are_released_before_next_change() {
    let mut world = slow();
    world.reload(farm(&[("b", 12)]));
    world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Drain });
    world.orders.clear();
    world.answer();
    let at = |is: fn(&Output) -> bool| world.orders.iter().position(is).unwrap();
    assert!(
        at(|order| matches!(order, Output::Forget { .. })) < at(|order| matches!(order, Output::Apply(_)))
    );
}

#[test]
fn a_link_that_comes_meanwhile_is_tried_and_refused_by_itself() {
    let mut world = slow();
    begin(&mut world, false);
    // The network lists another interface that is up, which is new to the director. Repeating the
    // input has no effect.
    world.learn(Input::Network(Box::new(network())));
    world.learn(Input::Network(Box::new(network())));
    world.answer();
    assert_eq!(world.ring(), ["a"]);
    world.refusal = Some("no programs there".into());
    finish(&mut world);
    assert_eq!(world.director.links(), &links());
    assert_eq!(
        world.events().last().map(String::as_str),
        Some("failed to receive packets from eth1: no programs there")
    );
}

#[test]
fn leaving_host_waits_for_no_tables() {
    let mut world = slow();
    begin(&mut world, false);
    world.learn(Input::Leave);
    assert_eq!(world.events().len(), 1, "{:?}", world.events());
    finish(&mut world);
    assert_eq!(world.ring(), ["a"]);
}

/// A refused reload changes neither the network nor the links. Later changes use the network and
/// the links in force.
#[test]
fn a_refused_reload_leaves_the_network_and_links_as_they_were() {
    let mut world = slow();
    let before = (world.director.network().clone(), links());
    let elsewhere = BTreeMap::from([(3, Mac([2, 0, 0, 0, 0, 3]))]);
    let farm = Box::new(farm(&[("b", 12), ("c", 13)]));
    let network = Box::new(Network { routes: Vec::new(), neighbours: BTreeMap::new(), ..network() });
    world.refusal = Some("no room".into());
    world.learn(Input::Reload { farm, network, links: elsewhere, groups: BTreeMap::new() });
    for _ in 0..2 {
        assert_eq!((world.director.network().clone(), world.director.links().clone()), before);
        finish(&mut world);
    }
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    finish(&mut world);
    assert_eq!(world.in_force.interfaces, links(), "packets come by the links that they came by");
    assert_eq!(world.ring(), ["b"]);
}

#[test]
fn network_learned_while_a_reload_waits_is_not_forgotten_with_the_reload() {
    for is_on_its_way in [false, true] {
        let mut world = slow();
        if !is_on_its_way {
            // The reload waits until another change has ended.
            begin(&mut world, true);
        }
        world.reload(farm(&[("a", 11), ("b", 12)]));
        let mut unplugged = network();
        unplugged.interfaces.get_mut(&2).unwrap().carrier = false;
        world.learn(Input::Network(Box::new(unplugged.clone())));
        finish(&mut world);
        assert_eq!(world.director.network(), &unplugged, "{is_on_its_way}");
    }
}

/// The service keeps its servers, so without an order the sessions of the removed address would
/// stay. These sessions must end, since the VIP number of the address is reused.
#[test]
fn sessions_of_an_address_that_a_service_loses_are_forgotten() {
    let with = |addresses: &[&str]| {
        let mut farm = farm(&[("a", 11), ("b", 12)]);
        farm.services[0].addresses = addresses.iter().map(|at| SocketAddr::new(ip(at), 80)).collect();
        farm
    };
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    world.reload(with(&["192.0.2.99", "192.0.2.98"]));
    world.orders.clear();
    world.reload(with(&["192.0.2.99"]));
    let forgotten = world.orders.iter().filter_map(|order| match order {
        Output::Forget { before, retired } => Some((before.vips.len(), retired.len())),
        _ => None,
    });
    assert_eq!(forgotten.collect::<Vec<_>>(), [(2, 0)], "{:?}", world.orders);
}

/// In a large farm, facts that arrive at nearly the same time share one generation, so a timer must
/// start the plan.
#[test]
fn tables_that_are_gathered_are_made_when_their_time_comes() {
    let names: Vec<String> = (0..200).map(|number| format!("s{number}")).collect();
    let servers: Vec<(&str, u8)> =
        names.iter().zip(1..).map(|(name, number)| (name.as_str(), number)).collect();
    let mut large = farm(&servers);
    large.services[0].servers_max = 256;
    large.services[0].health.kind = HealthKind::None;
    let mut world = World::new(start(large));
    world.pass(0);
    let (applied, now_ms) = (world.applied, world.now_ms);
    let without_mac = |name: &str| ServerName { service: "web".into(), server: name.into() };
    world.learn(Input::SetOperatorState { server: without_mac("s1"), state: OperatorState::Drain });
    world.learn(Input::Network(Box::new(Network { routes: Vec::new(), ..network() })));
    assert_eq!(world.applied, applied + 1, "the operator's order isn't put off");
    assert!(world.director.awaited().is_some(), "the rest is gathered");
    while world.director.awaited().is_some() {
        let at_ms = world.director.next_at();
        assert!(at_ms <= now_ms + 10, "{at_ms} is long after {now_ms}");
        world.now_ms = world.now_ms.max(at_ms);
        world.pass(0);
    }
}
