//! A director's snapshot shows the complete state in force, even while a change is in progress.

use super::*;
use crate::pool::ServerState;
use crate::pool::signals::Signals;

/// Returns the parts of a snapshot that a reload changes.
fn summary(snapshot: &Snapshot) -> (Vec<String>, Vec<String>, u64) {
    let described = snapshot.farm.services[0].servers.iter().map(|server| server.name.clone());
    let seen = snapshot.servers().map(|server| server.name.server.clone());
    // All parts of the snapshot belong to the same farm.
    let planned: BTreeSet<_> = snapshot.plan.servers.values().map(|name| name.server.clone()).collect();
    let slots = snapshot.servers().filter(|server| server.slot.is_some());
    assert_eq!(slots.map(|server| server.name.server.clone()).collect::<BTreeSet<_>>(), planned);
    (described.collect(), seen.collect(), snapshot.generation)
}

#[test]
fn snapshot_during_reload_shows_applied_farm() {
    for refusal in [None, Some("no room")] {
        let mut world = World::serving(&[("a", 11), ("b", 12)]);
        let before = Arc::clone(world.director.snapshot());
        assert_eq!(summary(&before).1, ["a", "b"]);
        (world.is_slow, world.refusal) = (true, refusal.map(String::from));
        world.reload(farm(&[("b", 12), ("c", 13)]));
        let meanwhile = Arc::clone(world.director.snapshot());
        assert!(meanwhile.reloads.pending && !before.reloads.pending, "that it is on its way");
        assert_eq!(summary(&meanwhile), summary(&before), "and nothing else");
        assert_eq!(meanwhile.plan.tables, world.in_force);
        world.answer();
        let after = Arc::clone(world.director.snapshot());
        assert_eq!(after.plan.tables, world.in_force);
        match refusal {
            None => {
                assert_eq!(summary(&after).1, ["b", "c"]);
                assert_eq!(after.reloads, Reloads { done: 1, ..Reloads::default() });
                assert_eq!((after.generation, after.wanted), (before.generation + 1, before.generation + 1));
            }
            Some(error) => {
                assert_eq!(summary(&after), summary(&before));
                let reloads = Reloads { refused: 1, error: Some(error.into()), ..Reloads::default() };
                assert_eq!(after.reloads, reloads);
                assert_eq!(after.wanted, before.wanted, "nothing is tried again");
            }
        }
        assert_eq!(summary(&before).1, ["a", "b"], "what was shown doesn't change");
    }
}

#[test]
fn snapshot_after_refusal_shows_applied_and_wanted_generation() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let before = world.director.snapshot().generation;
    world.refusal = Some("no room".into());
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    let shown = Arc::clone(world.director.snapshot());
    assert_eq!((shown.generation, shown.wanted), (before, before + 1));
    assert_eq!(shown.plan.tables, world.in_force);
    assert_eq!(shown.server(&name("a")).map(|server| server.state), Some(ServerState::Draining));
    world.pass(RETRY_MS);
    let shown = world.director.snapshot();
    assert_eq!(shown.generation, shown.wanted);
    assert_eq!(shown.plan.tables, world.in_force);
}

#[test]
fn fact_without_table_change_makes_no_generation() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    world.learn(Input::Network(Box::new(network())));
    let before = Arc::clone(world.director.snapshot());
    let applied = world.applied;
    world.learn(Input::Network(Box::new(network())));
    assert_eq!((world.applied, world.director.snapshot().generation), (applied, before.generation));
    // A refused change is not retried if it is no longer wanted.
    world.refusal = Some("no room".into());
    for state in [OperatorState::Drain, OperatorState::Ready] {
        world.learn(Input::SetOperatorState { server: name("a"), state });
        assert_eq!(world.applied, applied + 1);
    }
    let shown = Arc::clone(world.director.snapshot());
    assert_eq!((shown.generation, shown.wanted), (before.generation, before.generation));
    assert_eq!(shown.server(&name("a")).map(|server| server.state), Some(ServerState::Up));
    world.pass(RETRY_MS);
    assert_eq!(world.applied, applied + 1);
}

#[test]
fn reload_that_never_reached_engine_is_reported() {
    let mut world = World::serving(&[("a", 11)]);
    let before = Arc::clone(world.director.snapshot());
    world.learn(Input::ReloadRefused { error: "the file has errors".into() });
    let shown = Arc::clone(world.director.snapshot());
    assert_eq!(shown.reloads.error.as_deref(), Some("the file has errors"));
    assert_eq!((summary(&shown), shown.reloads.refused), (summary(&before), 1));
    let mut twice = farm(&[("a", 11)]);
    twice.services.push(twice.services[0].clone());
    world.reload(twice);
    assert_eq!(
        (summary(world.director.snapshot()), world.director.snapshot().reloads.refused),
        (summary(&before), 2)
    );
    world.reload(farm(&[("a", 11)]));
    let reloads = Reloads { done: 1, refused: 2, ..Reloads::default() };
    assert_eq!(world.director.snapshot().reloads, reloads, "the last one is in force");
}

#[test]
fn snapshot_is_rebuilt_only_after_changes() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    world.pass(1_000);
    let before = Arc::clone(world.director.snapshot());
    let received = Input::Frame { ifindex: 2, bytes: vec![0; 60] };
    world.learn(received);
    world.learn(Input::Probed { server: name("a"), result: Ok(7) });
    assert!(Arc::ptr_eq(&before, world.director.snapshot()), "nothing is otherwise");
    world.learn(Input::Probed { server: name("a"), result: Err(Failure::Refused) });
    let shown = Arc::clone(world.director.snapshot());
    let server = shown.server(&name("a")).unwrap();
    assert_eq!((server.state, server.reason.as_deref()), (ServerState::Down, Some("connection refused")));
    assert_eq!((server.probe_failures, server.signals.latency_us), (1, Some(7)));
    assert_eq!(before.server(&name("a")).map(|server| server.state), Some(ServerState::Up));
    // If only counters change, the snapshot is updated once a second.
    world.learn(Input::Probed { server: name("b"), result: Ok(9) });
    world.pass(1_000);
    assert_eq!(world.director.snapshot().server(&name("b")).unwrap().signals.latency_us, Some(9));
}

#[test]
fn snapshot_of_server_includes_its_signals() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let due: Vec<u16> = world.director.due_counts(world.now_ms).collect();
    assert_eq!(due, [1, 2]);
    world.learn(Input::Time { active: due.into_iter().zip([5, 0]).collect() });
    assert_eq!(world.director.due_counts(world.now_ms).count(), 0, "they were counted just now");
    assert_eq!(world.director.due_counts(world.now_ms + 1_000).count(), 2);
    world.learn(Input::SetOperatorState { server: name("b"), state: OperatorState::Drain });
    let snapshot = world.director.snapshot();
    let signals = |server| snapshot.server(&name(server)).unwrap().signals;
    let seen = |active| Signals { active: Some(active), latency_us: Some(1), ..Signals::default() };
    assert_eq!([signals("a"), signals("b")], [seen(5), seen(0)]);
}

#[test]
fn sessions_are_counted_once_a_second_and_no_count_is_lost_meanwhile() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let active = |world: &World| world.director.snapshot().server(&name("a")).unwrap().signals.active;
    world.now_ms += 1_000;
    world.learn(Input::Time { active: [(1, 5), (2, 0)].into() });
    world.pass(999);
    assert_eq!(world.director.due_counts(world.now_ms).count(), 0);
    world.pass(1);
    assert_eq!((active(&world), world.director.due_counts(world.now_ms).count()), (Some(5), 2));
    world.learn(Input::Time { active: [(1, 0), (2, 0)].into() });
    world.pass(1_000);
    assert_eq!(active(&world), Some(0));
}

#[test]
fn failed_server_is_shown_with_last_failure_and_change_count() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let shown = |world: &World| {
        let server = world.director.snapshot().server(&name("a")).unwrap().clone();
        (server.state, server.probe_error, server.probe_failures, server.state_changes)
    };
    assert_eq!(shown(&world), (ServerState::Up, None, 0, 1));
    world.learn(Input::Probed { server: name("a"), result: Err(Failure::Refused) });
    world.learn(Input::Probed { server: name("a"), result: Err(Failure::Timeout) });
    world.pass(1_000);
    assert_eq!(shown(&world), (ServerState::Down, Some("timed out".into()), 2, 2));
    world.learn(Input::Probed { server: name("a"), result: Ok(1) });
    assert_eq!(shown(&world), (ServerState::Up, None, 2, 3), "what is over is not shown");
}
