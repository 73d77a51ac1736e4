//! States that the operator sets, and the reasons why a server can't be drained.

use super::consumers::{group, of_its_own, with};
use super::*;
use crate::pool::ServerState;

fn drainable(world: &World, server: &str) -> Result<Drainable, NotDrainable> {
    world.director.drainable(&name(server))
}

#[test]
fn a_server_of_a_service_is_drained_by_its_name() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let found = Drainable { name: name("a"), owner: ServerOwner::Service };
    assert_eq!(drainable(&world, "a"), Ok(found));
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    assert_eq!(world.director.operator_states().get(&name("a")), Some(&OperatorState::Drain));
    let servers = vec!["a".into(), "b".into()];
    assert_eq!(drainable(&world, "c"), Err(NotDrainable::NoServer(ServerOwner::Service, servers)));
    let other = ServerName { service: "other".into(), server: "a".into() };
    assert_eq!(world.director.drainable(&other), Err(NotDrainable::NoOwner));
}

#[test]
fn a_server_that_is_drained_keeps_its_sessions_over_a_restart_and_stays_drained() {
    let first = World::serving(&[("a", 11), ("b", 12)]);
    let running = Some((*first.in_force).clone());
    let operator = OperatorStates::from([(name("b"), OperatorState::Drain)]);
    let mut world = World::new(Start { running, operator, ..start(farm(&[("a", 11), ("b", 12)])) });
    world.pass(0);
    assert_eq!(world.ring(), ["a"]);
    assert!(world.director.plan().servers.values().any(|server| *server == name("b")));
    assert_eq!(world.director.operator_states().get(&name("b")), Some(&OperatorState::Drain));
}

#[test]
fn repeated_drain_is_not_logged() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Ready });
    assert_eq!(world.events(), [""; 0]);
    for _ in 0..2 {
        world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    }
    assert_eq!(world.events().len(), 1);
}

#[test]
fn another_host_is_not_drained_from_here() {
    let at = Moment { ms: 1_000, ..Moment::default() };
    let director = every_host::host_at(0, every_host::every_host(), None, at);
    assert!(director.drainable(&name("a")).is_ok());
    assert_eq!(director.drainable(&name("b")), Err(NotDrainable::OtherHost));
}

#[test]
fn server_in_maintenance_is_drained_first_and_in_use_again_at_once() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    for state in [OperatorState::Maintenance, OperatorState::Drain, OperatorState::Ready] {
        world.learn(Input::SetOperatorState { server: name("a"), state });
    }
    let said = [
        "drained by the operator: it keeps its sessions and gets no new ones",
        "the operator's order: in maintenance: neither probed nor asked for its load",
        "the operator's order: maintenance is over; its next probe decides",
        "the operator ended the drain or maintenance: it gets new sessions again",
    ];
    assert_eq!(world.events(), said);
    assert!(world.director.operator_states().is_empty());
}

#[test]
fn member_that_was_drained_before_it_came_comes_drained() {
    let mut world = World::begin(with(vec![], vec![group(&[])]));
    let server = ServerName { service: "shop".into(), server: "http://192.0.2.31".into() };
    world.learn(Input::SetOperatorState { server, state: OperatorState::Drain });
    world.join(&["http://192.0.2.31"]).unwrap();
    assert_eq!(world.members(), [("http://192.0.2.31".into(), ServerState::Draining)]);
}

#[test]
fn directors_are_ready_without_servers_of_names_in_maintenance() {
    let own = of_its_own("www.example.com", &["192.0.2.21:80"]);
    let mut world = World::begin(with(vec![own], vec![]));
    let server = ServerName { service: "www.example.com".into(), server: "192.0.2.21".into() };
    world.orders.clear();
    world.learn(Input::SetOperatorState { server, state: OperatorState::Maintenance });
    world.pass(1);
    assert!(world.orders.iter().any(|order| matches!(order, Output::Ready { .. })), "{:?}", world.orders);
}
