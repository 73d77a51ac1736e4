//! Handoff of connections: directors side by side behind a router, and servers that create sockets
//! from first segments. The hosts exchange no messages: the SYN cookie in the segment authorizes
//! the connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::LazyLock;

use evener_core::farm::choose::{ChoiceReason, ConnectionRequest, RequestContent};
use evener_core::farm::{Route, RouteList};
use evener_core::net::Protocol;
use evener_core::net::wire::{TCP_ACK, TCP_SYN};
use evener_core::path::content::{PathPattern, RequestClass, RequestKey};
use evener_core::path::cookie::{FourTuple, Keys, Schedule};
use evener_core::path::decide::Verdict;
use evener_core::path::seed::Seed;
use evener_core::path::tables::VipKey;
use evener_core::server::{Arrived, Expectation, Host, Made, Offer, Outcome, Socket, Tables};

use crate::check::{self, Broken, Promise};
use crate::farms::{self, LINK, VIPS};
use crate::segment::Segment;
use crate::world::{Connection, World};

struct Wanted {
    path: &'static str,
    /// Path of the request's route; `None` without a route.
    route: Option<&'static str>,
    /// Servers that may answer: with files whose routes are not moved, and with files whose routes
    /// are moved.
    servers: [&'static [usize]; 2],
}

/// All kinds of requests.
const WANTED: [Wanted; 3] = [
    Wanted { path: "/a/page", route: Some("/a/*"), servers: [&[0, 1], &[2]] },
    Wanted { path: "/b/page", route: Some("/b/*"), servers: [&[2], &[0, 1, 3]] },
    Wanted { path: "/", route: None, servers: [&[0, 1, 2, 3]; 2] },
];
/// Duration of an epoch of SYN cookies, in milliseconds.
const EPOCH_MS: u64 = 64_000;
/// Time of day at which a farm starts, in milliseconds after 1970.
pub(crate) const BEGUN_MS: u64 = 1_700_000_000_000;
pub(crate) const DAY_MS: i64 = 86_400_000;
/// Initial sequence number of clients.
const ISN: u32 = 77;
/// Number of connections that check whether a farm serves: every pair of directors, and every kind
/// of request.
const LOOKED: usize = 12;

/// Tables of a server's programs.
static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let key = VipKey { address: VIPS[0], port: 80, protocol: Protocol::Tcp };
    let offer = Offer { listener: Some(80), ..Offer::default() };
    Tables { services: BTreeMap::from([(key, offer)]), ..Tables::default() }
});

/// Routes of the first service.
pub(crate) fn routes(is_moved: bool) -> RouteList {
    let route = |wanted: &Wanted| {
        let path = PathPattern::parse(wanted.route?).ok()?;
        let servers =
            wanted.servers[usize::from(is_moved)].iter().map(|server| farms::name(*server)).collect();
        Some(Route { host: None, path: Some(path), methods: Vec::new(), servers })
    };
    WANTED.iter().filter_map(route).collect::<Vec<_>>().into()
}

/// Wall clocks of directors, followed by those of servers.
#[derive(Debug)]
pub(crate) struct Clocks {
    /// Offset of each clock in milliseconds.
    off_ms: Vec<i64>,
    /// Offset of each clock when its host last derived keys.
    heard_ms: Vec<i64>,
    /// Defect for a mutation: hosts read their clocks only at the start.
    is_deaf: bool,
}

impl Clocks {
    pub(crate) fn new(hosts: usize, is_deaf: bool) -> Clocks {
        Clocks { off_ms: vec![0; hosts], heard_ms: vec![0; hosts], is_deaf }
    }

    /// Sets a host's clock. The host notices the change soon.
    pub(crate) fn set(&mut self, host: usize, off_ms: i64) {
        let hosts = self.off_ms.len();
        self.off_ms[host % hosts] = off_ms;
        if !self.is_deaf || off_ms != 0 {
            self.heard_ms[host % hosts] = off_ms;
        }
    }

    /// Sets all clocks right.
    pub(crate) fn set_right(&mut self) {
        (0..self.off_ms.len()).for_each(|host| self.set(host, 0));
    }

    /// True if all clocks have the same offset.
    fn agree(&self) -> bool {
        self.off_ms.iter().all(|off_ms| *off_ms == self.off_ms[0])
    }

    fn schedule(&self, host: usize, now_ms: u64, now: u32) -> Schedule {
        let unix_ms = (BEGUN_MS + now_ms).saturating_add_signed(self.heard_ms[host]);
        Schedule::new(Seed(5, 6), EPOCH_MS, unix_ms, now)
    }
}

struct Stack {
    works: bool,
}

impl Host for Stack {
    fn socket(&self, _: SocketAddr, _: SocketAddr) -> Socket {
        if self.works { Socket::Listener } else { Socket::None }
    }

    fn expected(&self, _: &FourTuple) -> Option<Expectation> {
        None
    }

    fn made(&self, _: &FourTuple) -> Option<Made> {
        None
    }
}

/// Opens a connection of a client and sends its request. The director that answers the SYN may
/// differ from the one that reads the request.
pub(crate) fn connect(world: &mut World, client: usize) -> Result<(), Broken> {
    let (nodes, port) = (world.nodes.len(), world.port());
    let by = (client % nodes, usize::from(port) / nodes % nodes);
    let wanted = usize::from(port) % WANTED.len();
    open(world, client, port, by, wanted).map(|_| ())
}

/// Checks some time after the last event that every request is served for which a working server is
/// allowed.
pub(crate) fn serves(world: &mut World) -> Result<(), Broken> {
    let nodes = world.nodes.len();
    for number in 0..LOOKED {
        let (port, wanted) = (world.port(), number % WANTED.len());
        let by = (number % nodes, number / nodes % nodes);
        let path = WANTED[wanted].path;
        let node = &world.nodes[by.1];
        let is_fit = |server: &usize| {
            let is_wanted = !node.has_drained(&farms::server_name(0, *server));
            farms::lists(node.file, *server) && is_wanted && world.answers_probe(by.1, *server)
        };
        let is_due = agree(world, [by.0, by.1]) && may_have(world, by.1, wanted).iter().any(is_fit);
        if is_due && !open(world, number, port, by, wanted)? {
            return Err(
                Promise::Unhealed.broken(format!("{path} is not served by nodes {} and {}", by.0, by.1))
            );
        }
    }
    Ok(())
}

/// Opens a connection: one director answers the SYN, another reads the request. Returns true if the
/// client got a connection.
fn open(
    world: &mut World,
    client: usize,
    port: u16,
    (greeter, reader): (usize, usize),
    wanted: usize,
) -> Result<bool, Broken> {
    world.connections.remove(&client);
    if [greeter, reader].iter().any(|node| !world.nodes[*node].has_carrier) {
        return Ok(false);
    }
    renew(world);
    let Some(number) = greet(world, greeter, client, port) else { return Ok(false) };
    let path = WANTED[wanted].path;
    let data = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    let first = Segment {
        flags: TCP_ACK,
        sequence: ISN + 1,
        acknowledgment: number.wrapping_add(1),
        data: data.as_bytes(),
    };
    let node = &world.nodes[reader];
    let now = node.ticks(world.now_ms);
    let (decision, frame) =
        node.engine.decide_frame(LINK, &first.frame(world.kind, reader, client, port, VIPS[0]), now);
    let Verdict::Forward { .. } = decision.verdict else { return Ok(false) };
    let Some(server) = node.names.get(&decision.server()).cloned() else { return Ok(false) };
    let at = farms::number(&server.server).unwrap_or_default();
    world.coverage.checked(Promise::Forbidden);
    if !may_have(world, reader, wanted).contains(&at) && !node.refused {
        return Err(Promise::Forbidden.broken(format!("{path} went to {} by node {reader}", server.server)));
    }
    named(world, reader, wanted, decision.server())?;
    check::may_begin(world, reader, &server)?;
    let keys = keys_of_server(world, at);
    let Some(arrived) = Arrived::read(&TABLES, &frame) else { return Ok(false) };
    match arrived.outcome(&keys, &Stack { works: world.works[at] }) {
        Outcome::Connection(..) => world.coverage.checked(Promise::Refused),
        Outcome::Nothing(reason) if world.works[at] && agree(world, [greeter, reader]) => {
            return Err(Promise::Refused.broken(format!("{} by node {reader}: {reason:?}", server.server)));
        }
        _ => return Ok(false),
    }
    let (slot, last_ms) = (decision.server(), world.now_ms);
    let (lost, began_ms) = (false, world.now_ms);
    let connection = Connection { node: reader, vip: VIPS[0], port, server, slot, last_ms, lost, began_ms };
    world.connections.insert(client, connection);
    Ok(true)
}

/// Returns the servers that may answer a request according to the director's file. If either of two
/// files may be in force, returns the servers of both.
fn may_have(world: &World, number: usize, wanted: usize) -> Vec<usize> {
    let node = &world.nodes[number];
    let is_moved = node.file().is_moved();
    let sets = WANTED[wanted].servers.iter().zip([false, true]);
    let of_file = |is_other: &bool| !node.is_sure() || *is_other == is_moved;
    let found = sets.filter(|(_, is_other)| of_file(is_other)).flat_map(|(servers, _)| *servers);
    found.copied().collect()
}

/// Checks that a server named by a request is selected if the routes allow it, and only then. Each
/// server is named once, besides the data plane's choice.
fn named(world: &World, number: usize, wanted: usize, chosen: u16) -> Result<(), Broken> {
    let node = &world.nodes[number];
    let Some(director) = node.director.as_ref().filter(|_| node.is_sure()) else { return Ok(()) };
    let key = VipKey { address: VIPS[0], port: 80, protocol: Protocol::Tcp };
    let (plan, path) = (director.plan(), WANTED[wanted].path);
    let Some(vip) = plan.tables.vips.get(&key) else { return Ok(()) };
    let content =
        RequestKey { class: RequestClass::Get, host: b"shop.example", path: path.as_bytes(), method: b"GET" };
    for named in node.names.keys().copied() {
        let content = RequestContent::Key(content);
        let request = ConnectionRequest { client: None, content, named: Some(named) };
        let Ok(found) = plan.choose(&node.engine.memory(), vip, &request) else { continue };
        let at = farms::number(&found.name.server).unwrap_or_default();
        let is_followed = found.server == named && found.why == ChoiceReason::Named;
        if !may_have(world, number, wanted).contains(&at) || named == chosen && !is_followed {
            return Err(Promise::Forbidden.broken(format!(
                "{path} went to {} by node {number} when {named} was named, in the stead of {chosen}",
                found.name.server
            )));
        }
    }
    Ok(())
}

/// Returns the sequence number of a director's SYN-ACK.
fn greet(world: &World, number: usize, client: usize, port: u16) -> Option<u32> {
    let node = &world.nodes[number];
    let syn = Segment { flags: TCP_SYN, sequence: ISN, acknowledgment: 0, data: &[] };
    let frame = syn.frame(world.kind, number, client, port, VIPS[0]);
    let (decision, answer) = node.engine.decide_frame(LINK, &frame, node.ticks(world.now_ms));
    let Verdict::Forward { .. } = decision.verdict else { return None };
    Segment::sequence_of(&answer)
}

/// True if servers accept the SYN cookies of these directors: all clocks agree, and the directors'
/// daemons run and read their clocks.
fn agree(world: &World, directors: [usize; 2]) -> bool {
    world.clocks.agree() && directors.iter().all(|number| world.nodes[*number].director.is_some())
}

/// Daemons read their clocks once a second. Data planes without a daemon continue their schedule.
fn renew(world: &World) {
    for (number, node) in world.nodes.iter().enumerate().filter(|(_, node)| node.director.is_some()) {
        let schedule = world.clocks.schedule(number, world.now_ms, node.ticks(world.now_ms));
        node.engine.memory().cookies.set(&schedule);
    }
}

fn keys_of_server(world: &World, server: usize) -> Keys {
    world.clocks.schedule(world.nodes.len() + server, world.now_ms, 0).at(0)
}
