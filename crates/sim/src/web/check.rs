//! Promises to clients of every consumer. A client gets a server that can't or shouldn't serve only
//! if no other server can and should serve. Each server that can and should serve gets clients.

use super::model::{File, LISTED, NAMES, OF_SERVICE, TURNS};
use super::{Consumer, DIRECTOR, Ranks, Reports, client};
use crate::check::{Broken, Promise};
use crate::farms::{self, SERVERS, VIPS};
use crate::world::World;

/// Time after the last event of a server until every consumer knows its state, in milliseconds. It
/// includes the lifetime of reports when later ones fail.
pub(super) const KNOWN_MS: u64 = 13_000;

/// Fitness of a server for new clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fitness {
    Fit,
    Unfit,
    /// Uncertain after a recent event.
    Unsure,
}

/// Returns the true fitness of a server for a consumer, whatever the consumer knows.
fn fitness(world: &World, consumer: Consumer, server: usize) -> Fitness {
    let node = &world.nodes[DIRECTOR];
    let (web, file) = (&world.web, File(node.file));
    let since_ms = [web.changed_ms[server], web.farm_ms, world.works_since_ms[server], node.since_ms];
    let is_known = since_ms.iter().all(|since_ms| world.now_ms.saturating_sub(*since_ms) > KNOWN_MS);
    if !is_known || node.refused || !node.is_settled() || node.is_reloading() || !node.takes_part() {
        return Fitness::Unsure;
    }
    let is_listed = match consumer {
        Consumer::Packets => file.lists(server),
        Consumer::Group if !file.has_group() => return Fitness::Unsure,
        Consumer::Group => is_member(world, file, server),
        Consumer::Name(_) if consumer.is_of_service() => file.lists(server),
        Consumer::Name(_) if !file.has_own() => return Fitness::Unsure,
        Consumer::Name(_) => file.lists(server),
    };
    let of = if consumer.is_of_service() && !file.is_of_second() { Consumer::Packets } else { consumer };
    let is_drained = of.server_name(server).is_some_and(|name| node.has_drained(&name));
    // Members of the group report by themselves and are not queried. The servers of the last name
    // are not queried either.
    let refuses =
        ![Consumer::Group, Consumer::Name(2)].contains(&of) && web.reports[server] == Reports::Refuses;
    let works = world.answers_probe(DIRECTOR, server);
    if works && is_listed && !is_drained && !refuses { Fitness::Fit } else { Fitness::Unfit }
}

/// True if a server is a member of the group: by the file unless it has left, or by joining.
fn is_member(world: &World, file: File, server: usize) -> bool {
    let agent = &world.web.agents[server];
    let is_listed = server < LISTED && file.lists(server) && !agent.has_left;
    is_listed || agent.membership.as_ref().is_some_and(|membership| membership.is_member())
}

/// Checks a server that a consumer has selected for a client.
pub(super) fn given(world: &World, consumer: Consumer, server: usize) -> Result<(), Broken> {
    let has_fit = || (0..SERVERS).any(|other| fitness(world, consumer, other) == Fitness::Fit);
    if (0..SERVERS).any(|other| fitness(world, consumer, other) == Fitness::Unfit) && has_fit() {
        world.coverage.checked(Promise::Failed);
    }
    if fitness(world, consumer, server) == Fitness::Unfit && has_fit() {
        return Err(Promise::Failed.broken(format!("{} by {consumer:?}", farms::name(server))));
    }
    Ok(())
}

/// Checks that each fit server gets clients.
pub(super) fn nobody_is_left_out(world: &mut World) -> Result<(), Broken> {
    in_turn(world)?;
    for consumer in Consumer::ALL {
        let Some(given) = servers_of(world, consumer) else { continue };
        let left_out = (0..SERVERS)
            .find(|server| fitness(world, consumer, *server) == Fitness::Fit && !given.contains(server));
        if (0..SERVERS).any(|server| fitness(world, consumer, server) == Fitness::Fit) {
            world.coverage.checked(Promise::Left);
        }
        match consumer {
            // This name answers with one address, the best.
            Consumer::Name(2) => ranked_first(world, &given)?,
            _ => {
                if let Some(server) = left_out {
                    return Err(
                        Promise::Left.broken(format!("{} by {consumer:?}: {given:?}", farms::name(server)))
                    );
                }
            }
        }
    }
    Ok(())
}

/// Returns the servers that a consumer selects; `None` without a running daemon.
fn servers_of(world: &mut World, consumer: Consumer) -> Option<Vec<usize>> {
    world.nodes[DIRECTOR].director.as_ref()?;
    match consumer {
        Consumer::Packets => {
            let ring = world.nodes[DIRECTOR].rings[0];
            Some((0..SERVERS).filter(|server| ring >> server & 1 == 1).collect())
        }
        Consumer::Group => Some(client::members(world).unwrap_or_default()),
        Consumer::Name(number) => {
            world.web.answers.as_ref()?;
            Some(client::answered_with(world, number))
        }
    }
}

/// Checks that the name with round robin puts each server first equally often.
fn in_turn(world: &mut World) -> Result<(), Broken> {
    const ROUNDS: usize = 3;
    let consumer = Consumer::Name(TURNS);
    let fit: Vec<usize> =
        (0..SERVERS).filter(|server| fitness(world, consumer, *server) == Fitness::Fit).collect();
    let is_sure = (0..SERVERS).all(|server| fitness(world, consumer, server) != Fitness::Unsure);
    // Servers with other reports may get another part of their weight.
    let is_idle = |server: &usize| world.web.reports[*server] == Reports::Idle;
    if !is_sure || !fit.iter().all(is_idle) || world.web.answers.is_none() {
        return Ok(());
    }
    let mut counts = [0; SERVERS];
    for _ in 0..ROUNDS * fit.len() {
        if let Some(first) = client::answered_with(world, TURNS).first() {
            counts[*first] += 1;
        }
    }
    world.coverage.checked(Promise::Share);
    match fit.iter().find(|server| counts[**server] != ROUNDS) {
        Some(server) => Err(Promise::Share.broken(format!(
            "{} comes first {} times of {ROUNDS}, in turn with {fit:?}: {counts:?}",
            farms::name(*server),
            counts[*server]
        ))),
        None => Ok(()),
    }
}

/// Checks that the name with ranks answers with the first fit server by rank.
fn ranked_first(world: &World, given: &[usize]) -> Result<(), Broken> {
    let best = match world.web.ranks {
        Ranks::From(best) => best,
        Ranks::Good => 0,
        // Earlier ranks count for some time, and afterwards none.
        Ranks::Unread | Ranks::Cut | Ranks::Stranger => return Ok(()),
    };
    let consumer = Consumer::Name(2);
    let in_order = || (0..SERVERS).map(|rank| (rank + best) % SERVERS);
    // The fitness of all servers with a better rank must be certain.
    let first = in_order().find(|server| fitness(world, consumer, *server) != Fitness::Unfit);
    let Some(first) = first.filter(|first| fitness(world, consumer, *first) == Fitness::Fit) else {
        return Ok(());
    };
    if given != [first] {
        let name = NAMES[2];
        return Err(Promise::Left
            .broken(format!("{} is the best for {name}, and {given:?} are given", farms::name(first))));
    }
    Ok(())
}

/// Checks that groups and names equal the groups and names of the file in force.
pub(crate) fn in_force(world: &mut World) -> Result<(), Broken> {
    // A server that the file doesn't list is forgotten when it leaves, and is new when listed
    // again.
    let file = File(world.nodes[DIRECTOR].file);
    let agents = world.web.agents.iter_mut().enumerate();
    agents
        .filter(|(server, _)| file.has_group() && !file.lists(*server))
        .for_each(|(_, agent)| agent.has_left = false);
    if let Some(url) = &world.web.forgotten {
        return Err(Promise::Forgotten.broken(format!("{url} by node {DIRECTOR}")));
    }
    let node = &world.nodes[DIRECTOR];
    let (file, shown) = (File(node.file), &node.shown);
    let is_sure = node.takes_part() && node.is_settled() && !node.refused && !node.is_reloading();
    if !is_sure || shown.generation == 0 {
        return Ok(());
    }
    let names = OF_SERVICE.len() + if file.has_own() { 2 } else { 0 };
    if shown.groups.len() != usize::from(file.has_group()) || ![0, names].contains(&shown.names.len()) {
        let (groups, names) = (shown.groups.len(), shown.names.len());
        return Err(Promise::Told.broken(format!("{groups} groups and {names} names by file {:08b}", file.0)));
    }
    if shown.services.len() != VIPS.len() - usize::from(!file.has_second()) {
        return Err(Promise::Told.broken(format!(
            "{} services by file {:08b}",
            shown.services.len(),
            file.0
        )));
    }
    Ok(())
}

/// Checks that every server serves and every name has an answer at the end.
pub(crate) fn settled(world: &mut World) -> Result<(), Broken> {
    let is_unsure = (0..SERVERS).find(|server| fitness(world, Consumer::Packets, *server) == Fitness::Unsure);
    if let Some(server) = is_unsure {
        return Err(Promise::Unhealed.broken(format!("something still happens to {}", farms::name(server))));
    }
    for (number, name) in NAMES.iter().enumerate() {
        if client::answered_with(world, number).is_empty() {
            return Err(Promise::Unhealed.broken(format!("{name} has no answer")));
        }
    }
    (0..SERVERS).try_for_each(|client| client::visit(world, client))
}
