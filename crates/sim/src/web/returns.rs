//! After all faults a server fails for long and comes back: nobody is sent to it meanwhile, and
//! then little by little.

use super::model::SLOW_START_MS;
use super::{Consumer, DIRECTOR, check, client};
use crate::check::{Broken, Promise};
use crate::farms::{self, SERVERS};
use crate::world::World;

/// So long it is gone, in milliseconds.
const GONE_MS: u64 = 8_000;
/// So often clients come while it begins, and so long they are apart, in milliseconds.
const VISITS: usize = 40;
const APART_MS: u64 = 25;

/// Plays that, and looks at what clients are given.
pub(crate) fn returns(world: &mut World) -> Result<(), Broken> {
    let server = world.below(SERVERS) as usize;
    let name = farms::name(server);
    // Drained for anybody, it is no example of one that comes back.
    let node = &world.nodes[DIRECTOR];
    let is_drained =
        |server: usize| Consumer::Group.server_name(server).is_some_and(|name| node.has_drained(&name));
    if is_drained(server) || (0..SERVERS).filter(|other| !is_drained(*other)).count() < 2 {
        return Ok(());
    }
    // By its reports it may have less than others.
    let whole = visits(world, server)?;
    world.work(server, false);
    world.pass(GONE_MS)?;
    let wrong = visits(world, server)?;
    if wrong > 0 {
        return Err(Promise::Failed.broken(format!("{name} by the group, {wrong} times")));
    }
    world.work(server, true);
    // Until somebody notices, it is given nothing.
    for _ in 0..GONE_MS {
        if client::members(world).is_some_and(|members| members.contains(&server)) {
            break;
        }
        world.pass(10)?;
    }
    let early = visits(world, server)?;
    world.pass(SLOW_START_MS)?;
    let late = visits(world, server)?;
    // In the first quarter of the time it has a sixth of its share, on the average, and then the
    // whole. Of a few nothing can be said.
    if whole >= VISITS / 10 {
        world.coverage.checked(Promise::Hurried);
    }
    if whole >= VISITS / 10 && (early * 2 > whole + 2 || late * 2 < whole) {
        return Err(Promise::Hurried
            .broken(format!("{name} had {early} of {whole} visits at once, and {late} later")));
    }
    world.pass(check::KNOWN_MS + 1_000)
}

/// How many clients are sent there, of some that come one after the other.
fn visits(world: &mut World, server: usize) -> Result<usize, Broken> {
    let mut count = 0;
    for client in 0..VISITS {
        count += usize::from(client::come(world, client)? == Some(server));
        world.pass(APART_MS)?;
    }
    Ok(count)
}
