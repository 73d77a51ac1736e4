//! When servers are probed.

use super::*;

fn probed(world: &World) -> usize {
    world.orders.iter().filter(|order| matches!(order, Output::Probe(_))).count()
}

#[test]
fn servers_are_probed_at_their_time_after_a_refused_reload_too() {
    let mut world = World::serving(&[("a", 11), ("b", 12)]);
    let mut unprobed = farm(&[("a", 11), ("b", 12)]);
    unprobed.services[0].health.kind = HealthKind::None;
    world.refusal = Some("no room".into());
    world.reload(unprobed.clone());
    world.pass(999);
    assert_eq!(probed(&world), 0);
    assert_eq!(world.director.next_at(), world.now_ms + 1);
    world.pass(1);
    assert_eq!(probed(&world), 2);
    world.pass(5_000);
    assert_eq!(probed(&world), 2, "none begins while one is under way");
    world.learn(Input::Probed { server: name("a"), result: Ok(1) });
    assert!(world.director.next_at() <= world.now_ms);
    world.pass(0);
    assert_eq!(probed(&world), 3);
    world.reload(unprobed);
    world.learn(Input::Probed { server: name("b"), result: Ok(1) });
    world.pass(5_000);
    assert_eq!(probed(&world), 3, "servers of this service are not probed any more");
}
