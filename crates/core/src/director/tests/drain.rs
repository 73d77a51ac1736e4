//! The servers that an operator may drain, and those that are refused with the reason.

use super::*;

fn drainable(world: &World, server: &str) -> Result<Drainable, NotDrainable> {
    world.director.drainable(&name(server))
}

#[test]
fn a_server_of_a_service_is_drained_by_its_name() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let found = |is_drained| Ok(Drainable { name: name("a"), owner: ServerOwner::Service, is_drained });
    assert_eq!(drainable(&world, "a"), found(false));
    world.learn(Input::Drain { server: name("a"), drain: true });
    assert_eq!(drainable(&world, "a"), found(true));
    let servers = vec!["a".into(), "b".into()];
    assert_eq!(drainable(&world, "c"), Err(NotDrainable::NoServer(ServerOwner::Service, servers)));
    let other = ServerName { service: "other".into(), server: "a".into() };
    assert_eq!(world.director.drainable(&other), Err(NotDrainable::NoOwner));
}

#[test]
fn a_server_that_is_drained_keeps_its_sessions_over_a_restart_and_stays_drained() {
    let first = World::serving(&[("a", 11), ("b", 12)]);
    let running = Some((*first.in_force).clone());
    let drained = BTreeSet::from([name("b")]);
    let mut world = World::new(Start { running, drained, ..start(farm(&[("a", 11), ("b", 12)])) });
    world.pass(0);
    assert_eq!(world.ring(), ["a"]);
    assert!(world.director.plan().servers.values().any(|server| *server == name("b")));
    assert_eq!(drainable(&world, "b").map(|found| found.is_drained), Ok(true));
}

#[test]
fn repeated_drain_is_not_logged() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    world.learn(Input::Drain { server: name("a"), drain: false });
    assert_eq!(world.events(), [""; 0]);
    for _ in 0..2 {
        world.learn(Input::Drain { server: name("a"), drain: true });
    }
    assert_eq!(world.events().len(), 1);
}

#[test]
fn another_host_is_not_drained_from_here() {
    let at = Moment { ms: 1_000, ..Moment::default() };
    let director = every_host::host_at(0, every_host::every_host(), None, at);
    let found = director.drainable(&name("a")).map(|found| found.is_drained);
    assert_eq!(found, Ok(false));
    assert_eq!(director.drainable(&name("b")), Err(NotDrainable::OtherHost));
}
