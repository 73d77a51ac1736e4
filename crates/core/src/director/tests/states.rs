//! State of a server in snapshots, for all combinations of facts about the server.

use super::*;
use crate::farm::plan::MemberState;
use crate::pool::ServerState::{self, Down, Draining, Maintenance, Up};
use crate::pool::health::{HealthState, HealthStatus};

/// Name of a fact about a server, and the function that applies the fact to the server's state.
type Fact = (&'static str, fn(&mut MemberState));

/// Network facts about a server.
const MEMBERSHIPS: [Fact; 4] = [
    ("there", |_| {}),
    ("silent", |state| state.member.draining = true),
    ("not found", |state| state.member.mac = None),
    ("link gone", |state| state.member.ifindex = Some(77)),
];

/// Facts about the operator's state, the weight and the server's report.
const WISHES: [Fact; 4] = [
    ("ready", |_| {}),
    ("drained", |state| state.admin_draining = true),
    ("weight 0", |state| state.member.weight = 0),
    ("refuses", |state| state.refuses = true),
];

const HEALTH: [HealthState; 3] = [HealthState::Up, HealthState::Unknown, HealthState::Down];

/// Expected states for each of [`WISHES`], by health in the order of [`HEALTH`], if the server is
/// reachable. Otherwise the server is down.
const THERE: [[ServerState; 3]; 4] =
    [[Up, Down, Down], [Draining, Draining, Down], [Draining, Draining, Down], [Draining, Draining, Down]];

#[test]
fn server_that_can_take_no_sessions_is_down_whatever_it_is_to_do() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    // A refusal by a report counts only while other servers take sessions.
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Drain });
    let shown = |world: &World, set: [fn(&mut MemberState); 2], health| {
        let director = &world.director;
        let service = director.farm().service("web").unwrap();
        let mut state = MemberState {
            member: director.membership.member("web", "a").unwrap(),
            health: HealthStatus { state: health, since_ms: 0, was_up: true },
            admin_draining: false,
            refuses: false,
            is_full: false,
            share: None,
            tenths: 10,
        };
        set.iter().for_each(|set| set(&mut state));
        director.state_of(&name("a"), service, &state, &[])
    };
    let every = || {
        MEMBERSHIPS.into_iter().flat_map(|membership| {
            let wishes = WISHES.into_iter().zip(THERE).map(move |(wish, states)| (membership, wish, states));
            wishes.flat_map(|(membership, wish, states)| {
                HEALTH.into_iter().zip(states).map(move |(health, there)| (membership, wish, health, there))
            })
        })
    };
    for ((membership, network), (wish, wants), health, there) in every() {
        let (state, reason) = shown(&world, [network, wants], health);
        let expected = if membership == "there" { there } else { Down };
        assert_eq!(state, expected, "{membership}, {wish}, {health:?}: {reason:?}");
        let has_reason = state != Up && (there, health) != (Down, HealthState::Down);
        assert!(reason.is_some() || !has_reason, "{membership}, {wish}, {health:?}: {reason:?}");
    }
    world.learn(Input::SetOperatorState { server: name("a"), state: OperatorState::Maintenance });
    for ((membership, network), (wish, wants), health, _) in every() {
        let (state, reason) = shown(&world, [network, wants], health);
        assert_eq!((state, reason.is_some()), (Maintenance, true), "{membership}, {wish}, {health:?}");
    }
}
