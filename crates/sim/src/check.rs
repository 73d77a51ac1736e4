//! Promises: invariants that a simulated farm keeps after every event.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::{ptr, slice};

use evener_core::farm::plan::{PlannedService, ServerName};
use evener_core::net::wire::{TCP_ACK, TCP_SYN};
use evener_core::path::decide::Verdict;
use evener_core::path::sessions::SessionKey;

use crate::farms::{self, Kind, LINK, SERVERS_MAX, SILENCE_MS, VIPS};
use crate::handoff;
use crate::hosts;
use crate::node::Node;
use crate::rest;
use crate::router;
use crate::segment::Segment;
use crate::web;
use crate::world::{Connection, World};

/// Minimum lifetime of a session without packets, in milliseconds: less than the timeout of a
/// session's first packet.
const IDLE_MS: u64 = 25_000;
/// Time after which a refused change must have been retried, in milliseconds: the pause before a
/// retry, and a margin.
const RETRY_MS: u64 = 6_000;
/// Time after which a failed server must get no new connections, in milliseconds: two probes, and a
/// margin.
const NOTICE_MS: u64 = 10_000;

/// Defines the enum of promises. Each has a short name and a sentence for violations.
macro_rules! promises {
    ($($(#[$about:meta])* $name:ident: $word:literal, $sentence:literal;)*) => {
        /// Invariant of every simulated farm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Promise {
            $($(#[$about])* $name,)*
        }

        impl Promise {
            pub const ALL: &[Promise] = &[$(Promise::$name),*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Promise::$name => $word,)*
                }
            }

            fn sentence(self) -> &'static str {
                match self {
                    $(Promise::$name => $sentence,)*
                }
            }
        }
    };
}

promises! {
    /// A host forwards no new connections to a host that should get none.
    Unfit: "unfit", "a host that should get nothing new is in a ring";
    /// A working host gets new connections from all hosts that receive its reports.
    Left: "left out", "a host that works is in no ring";
    /// Each address has an owner that clients send to.
    Ownerless: "ownerless", "an address is without an owner";
    /// Few hosts forward a packet.
    Circles: "circles", "a packet met too many hosts";
    /// The state in views is the state in force.
    Told: "told", "what is told is not in force";
    /// Views show the old state until new tables are in force.
    Half: "half", "half of a change was shown";
    /// A refused change is retried.
    NotTried: "not tried", "what was refused was not tried again";
    /// A forged datagram has no effect.
    Believed: "believed", "what nobody should have believed was heeded";
    /// If all servers fail at once, the last working servers stay in the ring.
    Emptied: "emptied", "what was last good did not stay";
    /// A drained server gets no new connections.
    Drained: "drained", "a drained server got a new connection";
    /// A server that has failed for long gets no new connections while others work.
    Failed: "failed", "a server that fails got a new connection";
    /// A connection stays with its server as long as the server exists.
    Moved: "moved", "a connection moved";
    /// Two hosts that receive each other's reports don't both own an address for long.
    Twice: "twice", "an address was owned twice";
    /// A data plane stops answering ARP for a shared address some time after its daemon has died.
    Outlived: "outlived", "an address was answered for by the dead";
    /// A director never asks to be woken at a time that has passed.
    Spins: "spins", "no end of waking";
    /// A server gets only requests that its routes allow.
    Forbidden: "forbidden", "a server got what its routes don't give it";
    /// A server accepts connections handed off to it while all clocks are right.
    Refused: "refused", "a server took no connection";
    /// A restart keeps all members of a group.
    Forgotten: "forgotten", "a restart forgot a member";
    /// A server that recovers gets its full share only after its slow start.
    Hurried: "hurried", "a server did not start slowly";
    /// A server fails after the configured number of failed probes, and not earlier.
    Early: "early", "a server failed too early";
    /// Each server gets its share of new connections, by weight.
    Share: "share", "a server had another share";
    /// No session remains of a removed server or address.
    Outlasts: "outlasts", "a session outlasted what it is of";
    /// A server at its session limit gets no new session while another server has room.
    Crowded: "crowded", "a full server got a new connection";
    /// A director does nothing before the time that it has asked to be woken at.
    Hasty: "hasty", "something was done before its time";
    /// A server in maintenance is not probed.
    Disturbed: "disturbed", "a server in maintenance was probed";
    /// Some time after the last fault a farm serves all requests again.
    Unhealed: "unhealed", "all faults are over, but not what they did";
}

impl Promise {
    /// Returns a violation of this promise with details.
    pub(crate) fn broken(self, what: String) -> Broken {
        Broken { promise: self, what }
    }
}

/// Violated promise, with details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    promise: Promise,
    what: String,
}

impl Broken {
    /// Short name of the promise.
    pub fn kind(&self) -> &'static str {
        self.promise.name()
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise.sentence(), self.what)
    }
}

/// States that may last only for a limited time.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// Time since when two nodes both own an address although they receive each other's reports.
    twice_since: BTreeMap<(usize, usize, IpAddr), u64>,
    /// Probe of a server in maintenance, with the prober.
    pub(crate) disturbed: Option<String>,
}

/// Bit set of the nodes that answer ARP for a service address.
#[derive(Clone, Copy)]
struct Owners(u8);

impl Owners {
    fn of(world: &World, vip: IpAddr) -> Owners {
        let answers = world.nodes.iter().map(|node| node.answers(vip, world.now_ms));
        Owners((0..).zip(answers).fold(0, |bits, (node, answers)| bits | u8::from(answers) << node))
    }

    fn has(self, node: usize) -> bool {
        self.0 >> node & 1 == 1
    }

    fn are_several(self) -> bool {
        self.0.count_ones() > 1
    }
}

/// Checks the promises that hold at every moment.
pub(crate) fn all(world: &mut World) -> Result<(), Broken> {
    if let Some(what) = world.watched.disturbed.take() {
        return Err(Promise::Disturbed.broken(what));
    }
    let coverage = world.coverage.clone();
    for (number, node) in world.nodes.iter_mut().enumerate() {
        if let Some(broken) = node.early.take() {
            return Err(broken);
        }
        if let Some(what) = node.half_shown {
            return Err(Promise::Half.broken(format!("{what} by node {number}")));
        }
        let waits = node.director.is_some() && node.shown.wanted != node.shown.generation;
        if waits && node.refused {
            coverage.checked(Promise::NotTried);
        }
        if waits && node.works_at().is_none() && world.now_ms - node.asked_ms > RETRY_MS {
            return Err(Promise::NotTried.broken(format!("by node {number}")));
        }
        if !node.news {
            continue;
        }
        node.news = false;
        if world.kind != Kind::EveryHost && node.is_settled() && !node.refused {
            if node.last_good & node.listed() != 0 && keeps_any(node) {
                coverage.checked(Promise::Emptied);
            }
            keeps_last(node)?;
        }
        // A server that has left the file, even for a while, loses its connections.
        let of_node = |one: &&mut Connection| one.node == number && world.kind != Kind::EveryHost;
        let is_kept = node.is_settled() && !node.is_half && !node.is_reloading();
        for one in world.connections.values_mut().filter(of_node) {
            let was_lost = one.lost;
            let is_listed = node.lists(&one.server, one.vip);
            one.lost |= node.names.get(&one.slot) != Some(&one.server) || !is_listed;
            let server = farms::number(&one.server.server).unwrap_or_default();
            if one.lost && !was_lost && is_kept && is_listed && world.answers[server] {
                return Err(Promise::Moved.broken(format!(
                    "{} is in the file, and has no connections any more",
                    one.server.server
                )));
            }
        }
        node.files_had.clear();
        let Some(director) = node.director.as_ref().filter(|_| !node.is_answering()) else { continue };
        // After a partly applied change the engine's tables equal no plan for a short time.
        let begins = node.shown.generation == 0 && node.engine.tables.vips.is_empty();
        if !node.is_half && !begins {
            coverage.checked(Promise::Told);
        }
        if !node.is_half && !begins && node.engine.tables != director.plan().tables {
            return Err(Promise::Told.broken(format!("the tables of node {number}")));
        }
        let shown = director.snapshot();
        if begins {
            continue;
        }
        let carrier = director.network().interfaces.get(&LINK).map(|link| link.carrier);
        if node.is_sure() && carrier != Some(node.has_carrier) {
            return Err(Promise::Told.broken(format!("the cable of node {number}")));
        }
        let has_farm = ptr::eq(director.farm(), &*shown.farm) || *director.farm() == *shown.farm;
        if !node.is_half && (node.engine.tables != shown.plan.tables || !has_farm) {
            return Err(Promise::Told.broken(format!("the snapshot of node {number}")));
        }
    }
    if world.kind == Kind::Web {
        return web::in_force(world);
    }
    if world.kind != Kind::EveryHost {
        return Ok(());
    }
    let owners = VIPS.map(|vip| Owners::of(world, vip));
    silent_when_dead(world, &owners)?;
    owned_once(world, &owners)?;
    hosts::all(world)
}

/// True if a node has a degraded service, which keeps its failed servers.
fn keeps_any(node: &Node) -> bool {
    let services = node.director.iter().flat_map(|director| director.plan().services.values());
    services.filter(|service| service.degraded).count() > 0
}

/// Checks that the ring of the first service is not empty: the last working servers must stay.
fn keeps_last(node: &mut Node) -> Result<(), Broken> {
    let ring = node.ring(VIPS[0]);
    if ring == 0 {
        let were_good = (0..SERVERS_MAX).filter(|server| (node.listed() & node.last_good) >> server & 1 == 1);
        let mut wanted = were_good.filter(|server| !node.has_drained(&farms::server_name(0, *server)));
        if let Some(server) = wanted.next().map(farms::name) {
            return Err(Promise::Emptied.broken(format!("{server} was the last, and nobody is")));
        }
    }
    // Removed servers need not stay, even if the engine refused the removal. Servers that a
    // restarted daemon does not consider up need not stay either.
    node.last_good = ring & node.listed() & node.up();
    Ok(())
}

/// Checks that a host whose daemon has been dead for the takeover time no longer answers ARP.
fn silent_when_dead(world: &World, owners: &[Owners; VIPS.len()]) -> Result<(), Broken> {
    for (number, node) in world.nodes.iter().enumerate() {
        let is_dead = node.director.is_none() && world.now_ms - node.since_ms > SILENCE_MS;
        if is_dead {
            world.coverage.checked(Promise::Outlived);
        }
        if is_dead && let Some((vip, _)) = VIPS.iter().zip(owners).find(|(_, owners)| owners.has(number)) {
            return Err(Promise::Outlived.broken(format!("{vip} by node {number}")));
        }
    }
    Ok(())
}

/// Checks that two nodes own an address at once only until each receives the other's report.
fn owned_once(world: &mut World, owners: &[Owners; VIPS.len()]) -> Result<(), Broken> {
    let mut twice = BTreeMap::new();
    for (vip, owners) in VIPS.into_iter().zip(owners).filter(|(_, owners)| owners.are_several()) {
        for a in 0..world.nodes.len() {
            for b in a + 1..world.nodes.len() {
                // Hosts with different files ignore each other's reports, so both keep addresses
                // that both have claimed.
                let alike = world.nodes[a].file == world.nodes[b].file
                    && !world.nodes[a].waits()
                    && !world.nodes[b].waits();
                if owners.has(a) && owners.has(b) && alike && world.loss == 0 && world.reach(a, b) {
                    let since = world.watched.twice_since.get(&(a, b, vip)).copied();
                    twice.insert((a, b, vip), since.unwrap_or(world.now_ms));
                }
            }
        }
    }
    let long = twice.iter().find(|(_, since)| world.now_ms - **since > 2 * SILENCE_MS);
    if let Some(((a, b, vip), _)) = long {
        return Err(Promise::Twice.broken(format!("nodes {a} and {b} answer for {vip}")));
    }
    if !twice.is_empty() {
        world.coverage.checked(Promise::Twice);
    }
    world.watched.twice_since = twice;
    Ok(())
}

/// Checks that a director asks to be woken later than the time it was just given.
pub(crate) fn moves_on(world: &World, node: usize) -> Result<(), Broken> {
    world.coverage.checked(Promise::Spins);
    match world.nodes[node].next_at() {
        Some(at) if at <= world.now_ms => {
            Err(Promise::Spins.broken(format!("node {node} waits for {at} at {}", world.now_ms)))
        }
        _ => Ok(()),
    }
}

/// Opens a connection of a client, at the owner of a service address.
pub(crate) fn connect(world: &mut World, client: usize) -> Result<(), Broken> {
    if world.kind == Kind::Handoff {
        return handoff::connect(world, client);
    }
    let (vip, port) = (world.vip(), world.port());
    world.connections.remove(&client);
    if world.kind == Kind::EveryHost && vip == VIPS[0] {
        return router::connect(world, client, port);
    }
    let owner = (0..world.nodes.len()).find(|node| world.nodes[*node].answers(vip, world.now_ms));
    let Some(number) = owner else { return Ok(()) };
    let node = &world.nodes[number];
    let frame = segment(world.kind, number, client, port, vip, TCP_SYN);
    let decision = node.engine.decide(LINK, &frame, node.ticks(world.now_ms));
    let Some(server) = node.names.get(&decision.server()).filter(|_| served(decision.verdict)) else {
        return Ok(());
    };
    may_begin(world, number, server)?;
    let service = VIPS.iter().position(|one| *one == vip).unwrap_or(1);
    rest::has_room(world, number, service, decision.server())?;
    let (server, slot, last_ms) = (server.clone(), decision.server(), world.now_ms);
    let (lost, began_ms) = (false, world.now_ms);
    let connection = Connection { node: number, vip, port, server, slot, last_ms, lost, began_ms };
    world.connections.insert(client, connection);
    Ok(())
}

/// Checks that a node may select a server for a new connection.
pub(crate) fn may_begin(world: &World, number: usize, server: &ServerName) -> Result<(), Broken> {
    let node = &world.nodes[number];
    let is_drained = node.takes_part() && node.is_settled() && node.has_drained(server);
    if !node.operator.is_empty() && world.kind != Kind::EveryHost {
        world.coverage.checked(Promise::Drained);
    }
    // In every-host placement, a node without other servers serves the connection itself.
    if is_drained && !node.refused && world.kind != Kind::EveryHost {
        return Err(Promise::Drained.broken(format!("{} at node {number}", server.server)));
    }
    if world.works.contains(&false) && world.kind != Kind::EveryHost {
        world.coverage.checked(Promise::Failed);
    }
    if has_failed(world, node, server) {
        return Err(Promise::Failed.broken(format!("{} at node {number}", server.server)));
    }
    Ok(())
}

/// True if a failed server must get no new connections: its service has other working servers, and
/// the director had time to probe and to apply the change.
fn has_failed(world: &World, node: &Node, server: &ServerName) -> bool {
    // A director that is about to answer has not yet reported which server stays as the last one.
    let may_know = world.kind != Kind::EveryHost && !node.is_answering();
    let Some(director) = node.director.as_ref().filter(|_| may_know && node.takes_part()) else {
        return false;
    };
    let is_last = |planned: &&PlannedService| planned.name == server.service && planned.degraded;
    let number = farms::number(&server.server).unwrap_or_default();
    let since_ms = world.works_since_ms[number].max(node.since_ms);
    !world.works[number]
        && world.now_ms - since_ms > NOTICE_MS
        && !node.refused
        && director.plan().services.values().find(is_last).is_none()
}

/// Sends a segment of a client's connection to the node that owns it.
pub(crate) fn send(world: &mut World, client: usize) -> Result<(), Broken> {
    let Some(connection) = world.connections.get(&client).cloned() else { return Ok(()) };
    let Connection { node: number, vip, port, server, slot, last_ms, lost, .. } = connection;
    if world.kind == Kind::EveryHost && vip == VIPS[0] {
        return router::send(world, client);
    }
    let node = &world.nodes[number];
    if node.table(vip).is_none() {
        // The service has moved to another address.
        world.connections.remove(&client);
        return Ok(());
    }
    let frame = segment(world.kind, number, client, port, vip, TCP_ACK);
    let decision = node.engine.decide(LINK, &frame, node.ticks(world.now_ms));
    if let Some(other) = strayed(world, node, client, port).filter(|other| *other != server) {
        return Err(
            Promise::Moved.broken(format!("client {client}, from {} to {}", server.server, other.server))
        );
    }
    // Sessions of one packet expire early.
    let is_old = world.now_ms - last_ms > IDLE_MS;
    if lost || decision.is_new_session() || is_old {
        world.connections.remove(&client);
    } else if world.kind != Kind::EveryHost {
        world.coverage.checked(Promise::Moved);
        if served(decision.verdict) && decision.server() != slot {
            return Err(
                Promise::Moved.broken(format!("client {client}, from {} at node {number}", server.server))
            );
        }
    }
    if let Some(connection) = world.connections.get_mut(&client) {
        connection.last_ms = world.now_ms;
    }
    Ok(())
}

/// Returns the server that the session of a connection refers to now.
fn strayed(world: &World, node: &Node, client: usize, port: u16) -> Option<ServerName> {
    let (memory, now) = (node.engine.memory(), node.ticks(world.now_ms));
    let is_its = |key: &SessionKey| key.client == farms::client(client) && key.port == port;
    let found = memory.sessions.list(now).find(|session| is_its(&session.key));
    found.and_then(|session| node.names.get(&session.value.server()).cloned())
}

fn served(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Forward { .. } | Verdict::Pass | Verdict::HostStack { .. })
}

/// Checks some time after the last fault that all wanted servers are in the rings and each address
/// has one owner.
pub(crate) fn settled(world: &mut World) -> Result<(), Broken> {
    let unhealed = |what: String| Err(Promise::Unhealed.broken(what));
    for (number, node) in world.nodes.iter().enumerate() {
        let Some(director) = &node.director else { return unhealed(format!("node {number} is dead")) };
        if node.refused {
            return unhealed(format!("what node {number} was refused was not tried again"));
        }
        for service in director.plan().services.values() {
            let mut got: Vec<&str> = service
                .ring_members
                .iter()
                .filter_map(|one| director.plan().servers.get(&one.slot))
                .map(|name| name.server.as_str())
                .collect();
            got.sort_unstable();
            // In every-host placement each node drains itself, and all other nodes apply its state.
            let heeded = if world.kind == Kind::EveryHost { &world.nodes[..] } else { slice::from_ref(node) };
            let is_drained = |server: &String| {
                let mut drained = heeded.iter().flat_map(|node| node.operator.keys());
                drained.any(|name| name.service == service.name && name.server == *server)
            };
            let mut wanted: Vec<String> =
                (0..world.kind.servers()).map(farms::name).filter(|server| !is_drained(server)).collect();
            wanted.sort_unstable();
            if got != wanted && !wanted.is_empty() {
                return unhealed(format!("{} of node {number} has {got:?} and not {wanted:?}", service.name));
            }
        }
    }
    if world.kind == Kind::Handoff {
        return handoff::serves(world);
    }
    for vip in VIPS {
        let owners = world.nodes.iter().filter(|node| node.answers(vip, world.now_ms)).count();
        if owners != 1 {
            return unhealed(format!("{vip} has {owners} owners"));
        }
    }
    Ok(())
}

pub(crate) fn segment(kind: Kind, node: usize, client: usize, port: u16, vip: IpAddr, flags: u8) -> Vec<u8> {
    Segment { flags, sequence: (flags & TCP_ACK).into(), acknowledgment: 0, data: &[] }
        .frame(kind, node, client, port, vip)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::step::Step;
    use std::sync::Arc;

    /// Returns a director with four working servers.
    fn serving() -> World {
        let mut world = World::new(2, None);
        world.take(&Step::Wait(5_000)).unwrap();
        world
    }

    #[test]
    fn engine_with_false_report_of_tables_is_found() {
        let mut world = serving();
        world.nodes[0].engine.tables = Arc::default();
        world.nodes[0].last_good = 0;
        world.nodes[0].news = true;
        assert_eq!(all(&mut world).unwrap_err().kind(), "told");
    }

    #[test]
    fn drained_server_in_a_ring_is_found() {
        let mut world = serving();
        let before = Arc::clone(&world.nodes[0].engine.tables);
        world.take(&Step::Drain(0, 0)).unwrap();
        world.take(&Step::Wait(1_000)).unwrap();
        world.nodes[0].engine.tables = before;
        // Round robin selects each of the four servers in turn.
        let found = (0..32).find_map(|client| connect(&mut world, client).err());
        assert_eq!(found.map(|broken| broken.kind()), Some("drained"));
    }

    #[test]
    fn connection_without_its_session_is_found() {
        let mut world = serving();
        (0..8).for_each(|client| connect(&mut world, client).unwrap());
        let (tables, names) = (Arc::clone(&world.nodes[0].engine.tables), world.nodes[0].names.clone());
        world.nodes[0].engine = crate::engine::Engine::new();
        world.nodes[0].engine.tables = tables;
        world.nodes[0].names = names;
        world.nodes[0].engine.memory().counts.cursors.iter().for_each(|cursor| {
            cursor.store(1, std::sync::atomic::Ordering::Relaxed);
        });
        let found = (0..8).find_map(|client| send(&mut world, client).err());
        assert_eq!(found.map(|broken| broken.kind()), Some("moved"));
    }

    #[test]
    fn server_missing_after_all_faults_is_found() {
        let mut world = serving();
        assert_eq!(settled(&mut world), Ok(()));
        world.take(&Step::Fail(1)).unwrap();
        world.take(&Step::Wait(5_000)).unwrap();
        assert_eq!(settled(&mut world).unwrap_err().kind(), "unhealed");
    }

    /// Four kinds of datagrams have no effect: with a changed byte, cut at a byte, replayed, or
    /// from another farm.
    #[test]
    fn changed_or_cut_datagram_is_refused_at_each_byte() {
        let mut world = World::new(6, None);
        world.take(&Step::Wait(5_000)).unwrap();
        for how in 0..4 {
            for at in 0..256 {
                world.take(&Step::Forgery(how, at)).unwrap();
            }
        }
        let refused = world.nodes.iter().filter_map(|node| node.shown.datagrams.get("forged"));
        let all: u64 = refused.sum();
        assert!(all >= 2 * 128, "{all} were found forged");
    }

    #[test]
    fn emptied_ring_is_found() {
        let mut world = serving();
        assert_eq!(world.nodes[0].last_good, 0b1111);
        world.nodes[0].engine.tables = Arc::default();
        assert_eq!(keeps_last(&mut world.nodes[0]).unwrap_err().kind(), "emptied");
    }

    /// The host can't renew its lease. A lease that starts without a cable must still expire.
    #[test]
    fn host_started_without_a_cable_falls_silent_when_its_daemon_dies() {
        let mut world = World::new(6, None);
        let steps = [Step::Unplug(2), Step::Crash(2), Step::Start(2), Step::Wait(5_000), Step::Plug(2)];
        for step in steps.into_iter().chain([Step::Kill(2), Step::Wait(5_000)]) {
            world.take(&step).unwrap();
        }
        world.nodes[2].engine.memory().lease.set(None);
        assert!(
            world.nodes[2].director.is_none()
                && VIPS.iter().any(|vip| world.nodes[2].answers(*vip, world.now_ms))
        );
    }
}
