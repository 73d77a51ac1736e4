//! Servers' reports of their load, and their effects.

use super::*;
use crate::pool::Period;
use crate::pool::ServerState;
use crate::pool::report::{AdminState, BadReport, Report};
use crate::pool::{ReportKind, Reporting};

fn farm_with_reports(policy: &'static str) -> Farm {
    let mut farm = farm(&[("a", 11), ("b", 12)]);
    farm.services[0].policy = policy;
    farm.services[0].report = Some(Reporting {
        kind: ReportKind::AgentCheck,
        port: 9_184,
        interval: Period::always(2_000),
        timeout_ms: 500,
    });
    farm
}

fn says(percent: u16) -> Report {
    Report { percent: Some(percent), ..Report::default() }
}

fn uses(permille: u64) -> Report {
    Report { utilisation_permille: Some(permille), ..Report::default() }
}

impl World {
    fn asking(policy: &'static str) -> World {
        let mut world = World::new(start(farm_with_reports(policy)));
        world.pass(0);
        for server in ["a", "b"] {
            world.learn(Input::Probed { server: name(server), result: Ok(1) });
        }
        world
    }

    fn reported(&mut self, server: &str, result: Result<Report, BadReport>) {
        self.learn(Input::Reported { server: name(server), result });
        self.pass(0);
    }

    /// Returns the scores that were ordered since the last call, by the server's name.
    fn scores(&mut self) -> Vec<(String, u8)> {
        let names = &self.director.plan().servers;
        let mut named = Vec::new();
        for order in self.orders.drain(..) {
            let Output::Score(scores) = order else { continue };
            named.extend(scores.into_iter().map(|(slot, score)| (names[&slot].server.clone(), score.load)));
        }
        named.sort();
        named
    }

    fn score(&self, server: &str) -> u8 {
        self.director.snapshot().server(&name(server)).unwrap().score
    }
}

#[test]
fn server_is_queried_at_own_address_once_per_interval() {
    let mut world = World::asking("round-robin");
    world.orders.clear();
    for _ in 0..40 {
        world.pass(100);
    }
    let questions = world.orders.iter().filter_map(|order| match order {
        Output::LoadQuery(question) => Some(question.to.to_string()),
        _ => None,
    });
    let mut queried: Vec<String> = questions.collect();
    queried.sort();
    assert_eq!(queried, ["192.0.2.11:9184", "192.0.2.11:9184", "192.0.2.12:9184", "192.0.2.12:9184"]);
    world.orders.clear();
    world.reload(farm(&[("a", 11), ("b", 12)]));
    world.pass(10_000);
    assert!(
        !world.orders.iter().any(|order| matches!(order, Output::LoadQuery(_))),
        "nobody is asked any more"
    );
}

#[test]
fn fresh_report_sets_requested_weight() {
    let mut world = World::asking("round-robin");
    world.reported("b", Ok(says(52)));
    assert_eq!(world.turns(), [("a".into(), 2), ("b".into(), 1)]);
    world.reported("b", Ok(Report { claim: Some(AdminState::Drain), ..says(52) }));
    assert_eq!(world.ring(), ["a"]);
    let seen = world.director.snapshot().server(&name("b")).unwrap().clone();
    assert_eq!(
        (seen.state, seen.reason.as_deref()),
        (ServerState::Draining, Some("drained by its own report"))
    );
    world.reported("b", Ok(says(0)));
    assert_eq!(world.ring(), ["a"], "0 % is nothing, too");
    world.reported("b", Err(BadReport::Absurd));
    assert_eq!(world.ring(), ["a"], "what isn't believed changes nothing");
    for _ in 0..13 {
        world.reported("b", Err(BadReport::Silent));
        world.pass(1_000);
    }
    assert_eq!(world.turns(), [("a".into(), 1), ("b".into(), 1)], "an old report neither");
    let bad = &world.director.snapshot().server(&name("b")).unwrap().reports.bad;
    assert_eq!(bad[&BadReport::Absurd], 1);
    assert_eq!(bad[&BadReport::Silent], 13);
}

#[test]
fn reports_alone_never_empty_a_service() {
    let refuses = || Ok(Report { claim: Some(AdminState::Drain), ..Report::default() });
    let mut world = World::asking("round-robin");
    world.reported("a", refuses());
    assert_eq!(world.ring(), ["b"]);
    world.reported("b", refuses());
    assert_eq!(world.ring(), ["a", "b"], "nobody is better than the others");
    assert!(world.director.snapshot().services[0].degraded);
    let state = |world: &World, server| world.director.snapshot().server(&name(server)).unwrap().state;
    assert_eq!((state(&world, "a"), state(&world, "b")), (ServerState::Up, ServerState::Up));
    world.learn(Input::Probed { server: name("b"), result: Err(Failure::Refused) });
    world.pass(0);
    assert_eq!(world.ring(), ["a"], "who works and refuses is better than who has failed");
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    assert!(!world.ring().iter().any(|server| *server == "a"), "an operator's word counts");
}

#[test]
fn a_report_never_makes_a_server_up() {
    let mut world = World::asking("round-robin");
    world.learn(Input::Probed { server: name("b"), result: Err(Failure::Refused) });
    world.reported("b", Ok(Report { claim: Some(AdminState::Ready), ..says(100) }));
    assert_eq!(world.ring(), ["a"]);
}

#[test]
fn scores_follow_reports_and_no_table_is_made_for_them() {
    let mut world = World::asking("utilisation");
    assert_eq!(world.scores(), [("a".into(), 0), ("b".into(), 0)], "whatever an earlier director told");
    let generation = world.director.snapshot().generation;
    world.reported("a", Ok(uses(300)));
    world.pass(1_000);
    assert!(world.scores().is_empty(), "there is nothing to compare with");
    world.reported("b", Ok(uses(600)));
    world.pass(1_000);
    assert_eq!(world.scores(), [("a".into(), 0), ("b".into(), 16)], "and what the one with less may gain");
    assert_eq!(world.score("b"), 16);
    world.pass(1_000);
    assert!(world.scores().is_empty());
    world.reported("b", Ok(uses(5)));
    world.pass(1_000);
    assert!((10..16).contains(&world.score("b")), "it falls slowly: {}", world.score("b"));
    assert_eq!(world.director.snapshot().generation, generation);
    world.reload(farm(&[("a", 11), ("b", 12)]));
    assert_eq!((world.score("a"), world.score("b")), (0, 0), "round robin has no use for them");
}

/// The server's last score may reach the data plane after the data plane has cleared the server's
/// slot.
#[test]
fn score_of_removed_server_is_dropped() {
    let mut world = World::asking("utilisation");
    let slot = *world.director.plan().servers.iter().find(|(_, of)| **of == name("b")).unwrap().0;
    world.reported("a", Ok(uses(300)));
    let (mut without, order_count) = (farm_with_reports("utilisation"), world.orders.len());
    without.services[0].servers.pop();
    world.is_slow = true;
    world.reload(without);
    world.reported("b", Ok(uses(600)));
    world.pass(1_000);
    world.answer();
    let scores = world.orders[order_count..].iter().filter_map(|order| match order {
        Output::Score(scores) => scores.iter().find(|(of, _)| *of == slot).map(|(_, score)| score.load),
        _ => None,
    });
    assert_eq!(scores.collect::<Vec<_>>(), [16, 0]);
}

#[test]
fn reports_that_fail_are_logged_once_and_so_is_the_next_that_is_believed() {
    let mut world = World::asking("round-robin");
    world.orders.clear();
    for result in
        [Ok(says(100)), Err(BadReport::Silent), Err(BadReport::Absurd), Ok(says(100)), Ok(says(100))]
    {
        world.reported("b", result);
    }
    assert_eq!(world.events(), ["its load isn't known: no report came", "its load reports are valid again"]);
}

#[test]
fn a_server_that_refuses_new_sessions_and_takes_them_again_is_logged() {
    let mut world = World::asking("round-robin");
    world.orders.clear();
    for percent in [0, 0, 40, 100] {
        world.reported("b", Ok(says(percent)));
    }
    assert_eq!(
        world.events(),
        [
            "drained by its own report: it keeps its sessions and gets no new ones",
            "its own report ended the drain: it gets new sessions again"
        ]
    );
}

#[test]
fn a_server_that_wants_part_of_its_weight_gets_that_to_the_nearest_tenth() {
    let mut world = World::asking("round-robin");
    for (percent, turns) in
        [(100, (1, 1)), (94, (10, 9)), (95, (1, 1)), (45, (2, 1)), (44, (5, 2)), (4, (10, 1))]
    {
        world.reported("b", Ok(says(percent)));
        assert_eq!(world.turns(), [("a".into(), turns.0), ("b".into(), turns.1)], "{percent} %");
    }
}

#[test]
fn report_gain_bounds_share_of_a_server() {
    for (percent, gain) in [(100, 0), (150, 127), (10_000, u8::MAX)] {
        let mut farm = farm_with_reports("utilisation");
        farm.services[0].report_gain_percent = percent;
        let mut world = World::new(start(farm));
        world.pass(0);
        for (server, permille) in [("a", 300), ("b", 600)] {
            world.learn(Input::Probed { server: name(server), result: Ok(1) });
            world.reported(server, Ok(uses(permille)));
        }
        world.pass(1_000);
        let names = &world.director.plan().servers;
        let gains = world.orders.iter().filter_map(|order| match order {
            Output::Score(scores) => Some(scores),
            _ => None,
        });
        let of_a = gains.flatten().rfind(|(slot, _)| names[slot] == name("a")).map(|(_, score)| score.gain);
        assert_eq!(of_a, Some(gain), "{percent} %");
    }
}

#[test]
fn limits_of_sessions_are_given_when_they_change_and_lifted_with_the_server() {
    let limited = |limit| {
        let mut farm = farm(&[("a", 11), ("b", 12)]);
        farm.services[0].servers[1].max_connections = limit;
        farm
    };
    let mut world = World::new(start(limited(7)));
    let limits = |world: &mut World| -> Vec<(u16, u32)> {
        world.pass(0);
        let limits = world.orders.drain(..).filter_map(|order| match order {
            Output::Limit(limits) => Some(limits),
            _ => None,
        });
        limits.flatten().collect()
    };
    for server in ["a", "b"] {
        world.learn(Input::Probed { server: name(server), result: Ok(1) });
    }
    let slot = |world: &World, server| {
        *world.director.plan().servers.iter().find(|(_, of)| **of == name(server)).unwrap().0
    };
    let (a, b) = (slot(&world, "a"), slot(&world, "b"));
    let first = limits(&mut world);
    assert!(first.contains(&(a, 0)) && first.contains(&(b, 7)), "{first:?}");
    world.reload(limited(7));
    assert_eq!(limits(&mut world), [], "nothing has changed");
    world.reload(limited(9));
    assert_eq!(limits(&mut world), [(b, 9)]);
    let mut without = limited(9);
    without.services[0].servers.pop();
    world.reload(without);
    assert_eq!(limits(&mut world), [(b, 0)]);
}
