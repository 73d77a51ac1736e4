//! After all faults, a server fails for long and recovers. Checks that the server gets no clients
//! while it fails, and few clients at first after its recovery.

use super::model::SLOW_START_MS;
use super::{Consumer, DIRECTOR, check, client};
use crate::check::{Broken, Promise};
use crate::farms::{self, SERVERS};
use crate::world::World;

/// Time for which the server is gone, in milliseconds.
const GONE_MS: u64 = 8_000;
/// Number of clients during the slow start, and the time between two of them, in milliseconds.
const VISITS: usize = 40;
const APART_MS: u64 = 25;

/// Makes a server fail and recover, and checks its clients.
pub(crate) fn returns(world: &mut World) -> Result<(), Broken> {
    let server = world.below(SERVERS) as usize;
    let name = farms::name(server);
    // A server drained for the group would get no clients after its return.
    let node = &world.nodes[DIRECTOR];
    let is_drained =
        |server: usize| Consumer::Group.server_name(server).is_some_and(|name| node.has_drained(&name));
    if is_drained(server) || (0..SERVERS).filter(|other| !is_drained(*other)).count() < 2 {
        return Ok(());
    }
    // Its reports may give the server a smaller share than others.
    let whole = visits(world, server)?;
    world.work(server, false);
    world.pass(GONE_MS)?;
    let wrong = visits(world, server)?;
    if wrong > 0 {
        return Err(Promise::Failed.broken(format!("{name} by the group, {wrong} times")));
    }
    world.work(server, true);
    // Waits until the server's return is detected.
    for _ in 0..GONE_MS {
        if client::members(world).is_some_and(|members| members.contains(&server)) {
            break;
        }
        world.pass(10)?;
    }
    let early = visits(world, server)?;
    world.pass(SLOW_START_MS)?;
    let late = visits(world, server)?;
    // In the first quarter of the slow start, the average share is a sixth of the full share. Small
    // counts are inconclusive.
    if whole >= VISITS / 10 {
        world.coverage.checked(Promise::Hurried);
    }
    if whole >= VISITS / 10 && (early * 2 > whole + 2 || late * 2 < whole) {
        return Err(Promise::Hurried
            .broken(format!("{name} had {early} of {whole} visits at once, and {late} later")));
    }
    world.pass(check::KNOWN_MS + 1_000)
}

/// Returns how many of [`VISITS`] successive clients get this server.
fn visits(world: &mut World, server: usize) -> Result<usize, Broken> {
    let mut count = 0;
    for client in 0..VISITS {
        count += usize::from(client::come(world, client)? == Some(server));
        world.pass(APART_MS)?;
    }
    Ok(count)
}
