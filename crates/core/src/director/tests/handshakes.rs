//! Stalled new connections, and ejection of servers for them.

use super::*;
use crate::director::{SessionWalk, StalledSessions};
use crate::pool::ServerState;

fn serving(servers: &[(&str, u8)], passive_checks: bool) -> World {
    let mut farm = farm(servers);
    farm.services[0].passive_checks = passive_checks;
    let mut world = World::new(start(farm));
    world.pass(0);
    for (server, _) in servers {
        world.learn(Input::Probed { server: name(server), result: Ok(1) });
    }
    world.orders.clear();
    world
}

/// Passes the result of a walk to the director. Each server has 40 more new connections, and each
/// server in `stalling` has 30 more stalled ones.
fn walk(world: &mut World, round: u64, stalling: &[&str]) {
    let mut walk = SessionWalk::default();
    for (slot, server) in world.director.plan().servers.clone() {
        walk.connections.insert(slot, 40 * round);
        if stalling.contains(&&*server.server) {
            let mut sessions = StalledSessions::default();
            (0..30).for_each(|client| sessions.add([10, 0, client, 1].into()));
            walk.stalled.insert(slot, sessions);
        }
    }
    world.now_ms += 10_000;
    world.learn(Input::Walked(Box::new(walk)));
}

fn states(world: &World) -> Vec<ServerState> {
    world.director.snapshot().servers().map(|server| server.state).collect()
}

const FOUR: [(&str, u8); 4] = [("a", 11), ("b", 12), ("c", 13), ("d", 14)];

#[test]
fn stalling_server_is_told_once_and_stays_in_service_unless_it_is_asked_for() {
    let mut world = serving(&FOUR, false);
    (0..3).for_each(|round| walk(&mut world, round, &["b"]));
    assert_eq!(states(&world), [ServerState::Up; 4]);
    let told: Vec<String> = world.events();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("30 of 40 new connections never continued"), "{told:?}");
    let b = world.director.snapshot().server(&name("b")).unwrap().handshakes.clone();
    assert!(b.suspicion.is_some() && b.stalled_total == 60, "{b:?}");
    (3..10).for_each(|round| walk(&mut world, round, &[]));
    assert_eq!(world.events().len(), 2, "{:?}", world.events());
}

#[test]
fn stalling_server_is_ejected_for_a_time_by_passive_checks() {
    let mut world = serving(&FOUR, true);
    (0..2).for_each(|round| walk(&mut world, round, &["b"]));
    assert_eq!(world.ring(), ["a", "c", "d"]);
    let b = world.director.snapshot().server(&name("b")).unwrap().clone();
    assert_eq!(b.state, ServerState::Down);
    assert!(b.probe_error.unwrap().contains("never continued"), "the reason is shown");
    for _ in 0..10 {
        world.now_ms += 1_000;
        world.learn(Input::Probed { server: name("b"), result: Ok(1) });
        assert_eq!(world.ring(), ["a", "c", "d"], "probes don't bring it back yet");
    }
    world.now_ms += 20_000;
    (0..2).for_each(|_| world.learn(Input::Probed { server: name("b"), result: Ok(1) }));
    assert_eq!(world.ring(), ["a", "b", "c", "d"]);
}

#[test]
fn passive_checks_take_a_third_of_the_servers_at_most() {
    let mut two = serving(&FOUR[..2], true);
    (0..3).for_each(|round| walk(&mut two, round, &["b"]));
    assert_eq!(two.ring(), ["a", "b"], "of two none");
    let mut world = serving(&FOUR, true);
    // The two servers stall in different rounds, so that each of them differs from the rest.
    (0..2).for_each(|round| walk(&mut world, round, &["b"]));
    (2..4).for_each(|round| walk(&mut world, round, &["c"]));
    assert_eq!(world.ring(), ["a", "c", "d"], "of four one");
    for server in ["a", "d"] {
        (0..3)
            .for_each(|_| world.learn(Input::Probed { server: name(server), result: Err(Failure::Timeout) }));
    }
    (4..6).for_each(|round| walk(&mut world, round, &["c"]));
    assert_eq!(world.ring(), ["c"], "the last that works stays");
}
