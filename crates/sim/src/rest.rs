//! Checks of a director's services some time after the last event: the servers in each ring, their
//! shares, and no sessions of removed servers.

use std::collections::BTreeMap;

use evener_core::path::tables::Ring;

use crate::check::{Broken, Promise};
use crate::farms::{self, Kind, VIPS};
use crate::handoff;
use crate::node::Node;
use crate::world::World;

/// Time after the last event until the state of a server is known, in milliseconds: two probes or
/// ARP rounds, and a margin.
const KNOWN_MS: u64 = 10_000;
/// Servers whose failures are this far apart, in milliseconds, did not fail at once, whatever the
/// delay of detection.
const APART_MS: u64 = 8_000;

/// Servers of a service, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Servers {
    main: u32,
    backups: u32,
}

impl Servers {
    fn of(service: usize, file: farms::File, is_one: impl Fn(usize) -> bool) -> Servers {
        let (mut servers, count) = (Servers::default(), file.kind.servers());
        for server in (0..count).filter(|server| is_one(*server)) {
            match service == 0 && file.is_backup(server) {
                true => servers.backups |= 1 << server,
                false => servers.main |= 1 << server,
            }
        }
        servers
    }

    fn all(self) -> u32 {
        self.main | self.backups
    }
}

/// Returns the names of servers given as bits.
fn names(bits: u32) -> String {
    let of = (0..32).filter(|server| bits >> server & 1 == 1).map(farms::name);
    of.collect::<Vec<_>>().join(" ")
}

/// Checks all directors. With `is_due` the state of every service must be known.
pub(crate) fn look(world: &mut World, is_due: bool) -> Result<(), Broken> {
    if [Kind::EveryHost, Kind::Web].contains(&world.kind) {
        return Ok(());
    }
    let are_known = directors(world, is_due)?;
    if world.kind == Kind::Handoff && are_known { handoff::serves(world) } else { Ok(()) }
}

/// Checks the rings of all directors. Returns true if the state of all rings was known.
fn directors(world: &World, is_due: bool) -> Result<bool, Broken> {
    let mut are_known = true;
    for (number, node) in world.nodes.iter().enumerate() {
        let is_known = |since_ms: u64| world.now_ms.saturating_sub(since_ms) > KNOWN_MS;
        if !node.is_sure() || !is_known(node.since_ms) || !is_known(world.web.last_of_all()) {
            are_known = false;
            continue;
        }
        nothing_is_left(world, number)?;
        for service in 0..VIPS.len() {
            let listed = |server: &usize| farms::lists(node.file, *server);
            let changed = |server| world.web.last_of(server).max(world.works_since_ms[server]);
            if (0..world.kind.servers()).filter(listed).all(|server| is_known(changed(server))) {
                serves_as_it_should(world, number, service)?;
            } else if is_due {
                return Err(Promise::Unhealed.broken(format!("servers of node {number} still change")));
            } else {
                are_known = false;
            }
        }
    }
    Ok(are_known)
}

/// Checks that a service's ring has exactly the servers that should serve, with their shares.
fn serves_as_it_should(world: &World, number: usize, service: usize) -> Result<(), Broken> {
    let node = &world.nodes[number];
    let (file, ring) = (node.file(), node.ring(node.file().vip(service)));
    let name = |server| farms::server_name(service, server);
    let is_wanted = |server| farms::lists(node.file, server) && !node.has_drained(&name(server));
    let works = |server| is_wanted(server) && world.answers_probe(number, server);
    let (wanted, working) = (Servers::of(service, file, is_wanted), Servers::of(service, file, works));
    let of = format!("service {service} of node {number}");
    world.coverage.checked(Promise::Left);
    if let Some(server) = (0..world.kind.servers()).find(|server| (ring & !wanted.all()) >> server & 1 == 1) {
        return Err(Promise::Unfit.broken(format!("{} in {of}", farms::name(server))));
    }
    let threshold = if service == 1 { u32::from(file.panic_percent()) } else { 0 };
    if working.all() == 0 {
        // While probes are ignored, all servers serve.
        return if threshold == 0 { kept(world, number, ring, &of) } else { Ok(()) };
    }
    let (working, wanted) = match working.main {
        0 => (working.backups, wanted.backups),
        main => (main, wanted.main),
    };
    let is_panic = working.count_ones() * 100 < wanted.count_ones() * threshold;
    let due = if is_panic { wanted } else { working };
    // Whether a server without a known MAC works is unknown, and packets can't be sent to it.
    let silent = (0..world.kind.servers()).filter(|server| !world.is_reached(number, *server));
    let silent = silent.fold(0, |all, server| all | 1 << server);
    let is_unsure = threshold > 0 && silent & wanted != 0;
    if !is_unsure && ring != due {
        return Err(Promise::Left.broken(format!("{of} has {}, and not {}", names(ring), names(due))));
    }
    shared(node, service, &of)
}

/// Checks that only the last working servers stay while all servers fail.
fn kept(world: &World, number: usize, ring: u32, of: &str) -> Result<(), Broken> {
    let since_ms = |server: usize| {
        let silent_ms = if world.answers[server] { u64::MAX } else { world.answers_since_ms[server] };
        let failed_ms = if world.works[server] { u64::MAX } else { world.works_since_ms[server] };
        silent_ms.min(failed_ms).max(world.nodes[number].since_ms)
    };
    let in_ring = (0..world.kind.servers()).filter(|server| ring >> server & 1 == 1);
    let times: Vec<u64> = in_ring.map(since_ms).collect();
    let (first, last) = (times.iter().min(), times.iter().max());
    world.coverage.checked(Promise::Emptied);
    match first.zip(last) {
        Some((first, last)) if last - first > APART_MS => {
            Err(Promise::Emptied.broken(format!("{of} has {}, which failed long apart", names(ring))))
        }
        _ => Ok(()),
    }
}

/// Checks each server's share of a ring: exact for the order, approximate for the hash table.
fn shared(node: &Node, service: usize, of: &str) -> Result<(), Broken> {
    let file = node.file();
    let Some(ring) = node.table(file.vip(service)) else { return Ok(()) };
    let weight = |slot: u16| {
        let server = node.names.get(&slot).and_then(|name| farms::number(&name.server));
        server.map_or(0, |server| u64::from(file.weight(server)))
    };
    let Ring { order, hash, .. } = &**ring;
    for (table, is_exact) in [(&order[..], true), (&hash[..], false)] {
        let mut counts = BTreeMap::<u16, u64>::new();
        table.iter().for_each(|slot| *counts.entry(*slot).or_default() += 1);
        let (all, whole) = (table.len() as u64, counts.keys().map(|slot| weight(*slot)).sum::<u64>());
        node.coverage.checked(Promise::Share);
        for (slot, count) in &counts {
            let due = all * weight(*slot);
            let off = due.abs_diff(count * whole);
            // Hash slots of servers that don't serve go to others at random: a tolerance of six
            // standard deviations.
            let may = if is_exact { 0 } else { whole * (36 * due / whole.max(1)).isqrt() };
            if off > may {
                let what = if is_exact { "turns" } else { "slots" };
                return Err(Promise::Share.broken(format!("{count} of {all} {what} for {slot} in {of}")));
            }
        }
    }
    Ok(())
}

/// Checks that no session remains of a removed server or address.
fn nothing_is_left(world: &World, number: usize) -> Result<(), Broken> {
    let node = &world.nodes[number];
    let tables = &node.engine.tables;
    world.coverage.checked(Promise::Outlasts);
    let is_known = |vip: u16, slot: u16| {
        tables.vips.values().any(|one| one.id == vip) && tables.servers.contains_key(&slot)
    };
    let memory = node.engine.memory();
    let mut sessions = memory.sessions.list(node.ticks(world.now_ms));
    match sessions.find(|session| !is_known(session.key.vip, session.value.server())) {
        Some(session) => Err(Promise::Outlasts.broken(format!(
            "of {} with slot {} by node {number}",
            session.key.client,
            session.value.server()
        ))),
        None => Ok(()),
    }
}

/// Makes a server of a director with slow start fail and recover, and checks that it first gets a
/// part of its share.
pub(crate) fn returns(world: &mut World) -> Result<(), Broken> {
    const GONE_MS: u64 = 8_000;
    let (number, server) = (0, world.below(farms::SERVERS) as usize);
    let is_drained = |server| world.nodes[number].has_drained(&farms::server_name(0, server));
    if is_drained(server) || (0..farms::SERVERS).filter(|other| !is_drained(*other)).count() < 2 {
        return Ok(());
    }
    let turns = |world: &World| {
        let node = &world.nodes[number];
        let order = node.table(VIPS[0]).map(|ring| ring.order.clone()).unwrap_or_default();
        let name = farms::name(server);
        let of_server = |slot: &&u16| node.names.get(slot).is_some_and(|one| one.server == name);
        (order.iter().filter(of_server).count(), order.len())
    };
    let (whole, of_whole) = turns(world);
    world.work(server, false);
    world.pass(GONE_MS)?;
    world.work(server, true);
    for _ in 0..GONE_MS / 10 {
        if turns(world).0 > 0 {
            break;
        }
        world.pass(10)?;
    }
    let (early, of_early) = turns(world);
    world.coverage.checked(Promise::Hurried);
    if early == 0 || early * of_whole * 2 > whole * of_early {
        return Err(Promise::Hurried.broken(format!(
            "{} had {early} of {of_early} turns at once, and {whole} of {of_whole} before",
            farms::name(server)
        )));
    }
    world.pass(KNOWN_MS + 1_000)?;
    look(world, true)
}

/// Checks that a new connection goes to no full server while another one has room.
pub(crate) fn has_room(world: &World, number: usize, service: usize, slot: u16) -> Result<(), Broken> {
    let node = &world.nodes[number];
    let limit = u64::from(node.file().connections_max());
    if !node.is_sure() || service != 1 || limit == 0 {
        return Ok(());
    }
    let Some(ring) = node.table(node.file().vip(service)) else { return Ok(()) };
    world.coverage.checked(Promise::Crowded);
    // The connection itself is already counted.
    let has_room = |other: &u16| *other != slot && node.engine.active(*other) < limit;
    if node.engine.active(slot) > limit && ring.order.iter().any(has_room) {
        return Err(Promise::Crowded.broken(format!("slot {slot} by node {number}")));
    }
    Ok(())
}
