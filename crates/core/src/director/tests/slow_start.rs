//! Slow start of servers that come back.

use super::*;

const WHOLE_MS: u64 = 10_000;

fn slow(servers: &[(&str, u8)]) -> Farm {
    let mut farm = farm(servers);
    farm.services[0].slow_start_ms = WHOLE_MS;
    farm
}

impl World {
    /// Returns the number of entries of each server in the ring, by name.
    pub(super) fn turns(&self) -> Vec<(String, usize)> {
        let plan = self.director.plan();
        let order = &self.in_force.rings.values().next().unwrap().order;
        let turns = |slot: &u16| order.iter().filter(|one| *one == slot).count();
        let mut named: Vec<_> =
            plan.servers.iter().map(|(slot, name)| (name.server.clone(), turns(slot))).collect();
        named.sort();
        named
    }

    fn probed(&mut self, server: &str, works: bool) {
        self.learn(Input::Probed {
            server: name(server),
            result: works.then_some(1).ok_or(Failure::Timeout),
        });
    }
}

fn turns(a: usize, b: usize) -> Vec<(String, usize)> {
    vec![("a".into(), a), ("b".into(), b)]
}

#[test]
fn returning_server_rises_by_tenths() {
    let mut world = World::new(start(slow(&[("a", 11), ("b", 12)])));
    world.pass(0);
    world.probed("a", true);
    world.probed("b", true);
    assert_eq!(world.turns(), turns(1, 1), "at the start nobody is cold");
    world.probed("b", false);
    world.pass(500);
    world.probed("b", true);
    world.pass(1);
    assert_eq!(world.turns(), turns(10, 1));
    for tenths in 1..10 {
        world.pass(WHOLE_MS / 10);
        assert_eq!(world.turns(), turns(10 / gcd(tenths), tenths / gcd(tenths)), "{tenths}");
        assert!(world.director.next_at() <= world.now_ms + WHOLE_MS / 10);
    }
    world.pass(WHOLE_MS / 10);
    assert_eq!(world.turns(), turns(1, 1));
    // A server that fails during its slow start begins a new slow start.
    world.probed("b", false);
    world.pass(500);
    world.probed("b", true);
    world.pass(WHOLE_MS / 2);
    assert_eq!(world.turns(), turns(2, 1));
    world.probed("b", false);
    world.pass(1);
    assert_eq!(world.turns(), turns(1, 0));
    world.probed("b", true);
    world.pass(1);
    assert_eq!(world.turns(), turns(10, 1));
}

#[test]
fn returning_server_without_slow_start_has_full_weight() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    world.probed("b", false);
    assert_eq!(world.turns(), turns(1, 0));
    world.probed("b", true);
    assert_eq!((world.turns(), world.applied), (turns(1, 1), 2));
    world.reload(farm(&[("a", 11), ("b", 12), ("c", 13)]));
    world.probed("c", true);
    assert!(world.turns().iter().all(|(_, turns)| *turns == 1), "{:?}", world.turns());
}

fn gcd(tenths: usize) -> usize {
    (1..=tenths).rev().find(|by| 10 % by == 0 && tenths.is_multiple_of(*by)).unwrap()
}

#[test]
fn joining_server_rises_until_reload_disables_slow_start() {
    let mut world = World::new(start(slow(&[("a", 11)])));
    world.pass(0);
    world.probed("a", true);
    world.reload(slow(&[("a", 11), ("b", 12)]));
    world.probed("b", true);
    world.pass(1);
    assert_eq!(world.turns(), turns(10, 1));
    world.refusal = Some("no such interface".into());
    world.reload(farm(&[("a", 11), ("b", 12)]));
    world.pass(RETRY_MS);
    assert_eq!(world.turns(), turns(2, 1), "it goes on where that is refused");
    world.reload(farm(&[("a", 11), ("b", 12)]));
    assert_eq!(world.turns(), turns(1, 1));
}
