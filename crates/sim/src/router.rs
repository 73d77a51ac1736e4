//! The router before clients, where every host decides, and the way of their packets from host to
//! host.
//!
//! It knows who has a service address by announcements and by answers to its questions, and keeps
//! that until another one comes. So a host that takes an address over without a word gets none of
//! its packets, as in a network with patient caches.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::net::wire::{TCP_ACK, TCP_SYN};
use evener_core::path::decide::Verdict;
use evener_core::server::open;

use crate::check::{self, Broken, Promise};
use crate::farms::{self, LINK, VIPS};
use crate::world::{Connection, World};

/// Hosts that a packet meets at the most.
const MEETS_MAX: usize = 3;

/// The router's neighbours.
#[derive(Debug, Default)]
pub(crate) struct Router {
    owners: BTreeMap<IpAddr, usize>,
}

impl Router {
    /// The node that has an address, as far as it knows.
    pub(crate) fn known(&self, address: IpAddr) -> Option<usize> {
        self.owners.get(&address).copied()
    }

    /// A host says that it has an address.
    pub(crate) fn learn(&mut self, address: IpAddr, node: usize) {
        self.owners.insert(address, node);
    }
}

/// Where a packet comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The stack of this host has it.
    Host(usize),
    /// Nobody.
    Nowhere,
}

/// Whether the router and a node are on the same side of a network that is cut in two.
pub(crate) fn reaches(world: &World, node: usize) -> bool {
    world.nodes[node].has_carrier && world.sides >> node & 1 == 0
}

/// Where the router sends what is for an address. It asks if it doesn't know, and believes the
/// first answer.
fn owner(world: &mut World, address: IpAddr) -> Option<usize> {
    if let Some(known) = world.router.known(address) {
        return Some(known);
    }
    let mut nodes = 0..world.nodes.len();
    let found = nodes.find(|node| reaches(world, *node) && world.nodes[*node].answers(address, world.now_ms));
    found.inspect(|node| world.router.learn(address, *node))
}

/// A client opens a connection by the router: all of its packets get to one host.
pub(crate) fn connect(world: &mut World, client: usize, port: u16) -> Result<(), Broken> {
    let vip = VIPS[0];
    let Some(entry) = owner(world, vip) else { return Ok(()) };
    let End::Host(server) = carry(world, entry, client, port, TCP_SYN)? else { return Ok(()) };
    let host = &mut world.nodes[server];
    // Its kernel has a socket for it from now on, whatever becomes of the daemon.
    if !host.serves(vip) || !world.works[server] {
        return Ok(());
    }
    host.sockets.insert((client, port));
    match carry(world, entry, client, port, TCP_ACK)? {
        End::Host(other) if other != server => {
            return Err(Promise::Moved.broken(format!("client {client}, from {server} to {other} at once")));
        }
        _ => {}
    }
    let name =
        evener_core::farm::plan::ServerName { service: farms::service(0), server: farms::name(server) };
    let connection = Connection {
        node: entry,
        vip,
        port,
        server: name,
        slot: 0,
        last_ms: world.now_ms,
        lost: !world.hosts.is_calm(world.now_ms),
        began_ms: world.now_ms,
    };
    world.connections.insert(client, connection);
    Ok(())
}

/// A client goes on with its connection: it gets to the host that has it, if it was made in quiet
/// times and the host can be reached.
pub(crate) fn send(world: &mut World, client: usize) -> Result<(), Broken> {
    let Some(connection) = world.connections.get(&client).cloned() else { return Ok(()) };
    let Connection { vip, port, ref server, lost, began_ms, .. } = connection;
    let number = farms::number(&server.server).unwrap_or_default();
    let Some(entry) = owner(world, vip) else { return Ok(()) };
    let end = carry(world, entry, client, port, TCP_ACK)?;
    let has_socket = |host: usize| world.nodes[host].sockets.contains(&(client, port));
    let is_there = has_socket(number) && reaches(world, number);
    match end {
        End::Host(host) if has_socket(host) => {}
        _ if is_there && !lost && world.hosts.keeps(began_ms, world.now_ms) => {
            return Err(Promise::Moved
                .broken(format!("client {client}, from {} to {end:?} by node {entry}", server.server)));
        }
        _ => {
            world.connections.remove(&client);
        }
    }
    Ok(())
}

/// A client's segment goes from the router to a host, and from there as hosts decide.
fn carry(world: &World, entry: usize, client: usize, port: u16, flags: u8) -> Result<End, Broken> {
    if !reaches(world, entry) {
        return Ok(End::Nowhere);
    }
    let mut frame = check::segment(world.kind, entry, client, port, VIPS[0], flags);
    let mut met = vec![entry];
    loop {
        let at = *met.last().unwrap_or(&entry);
        let node = &world.nodes[at];
        let (decision, sent) = node.engine.decide_frame(LINK, &frame, node.ticks(world.now_ms));
        match decision.verdict {
            Verdict::Pass | Verdict::HostStack { .. } => return Ok(End::Host(at)),
            Verdict::Forward { .. } => {}
            Verdict::Drop | Verdict::Hold => return Ok(End::Nowhere),
        }
        let has_mac = |to: &usize| sent.starts_with(&farms::node(world.kind, *to).1.0);
        let Some(to) = (0..world.nodes.len()).find(has_mac).filter(|to| world.hears(*to, at)) else {
            return Ok(End::Nowhere);
        };
        met.push(to);
        world.coverage.checked(Promise::Circles);
        if met.len() > MEETS_MAX {
            return Err(Promise::Circles.broken(format!("client {client} by nodes {met:?}")));
        }
        frame = arrived(world, to, &sent);
    }
}

/// A frame as it comes to a host's data plane: out of its tunnel, if it is in one.
fn arrived(world: &World, to: usize, frame: &[u8]) -> Vec<u8> {
    let mut buffer = [&[0; HEADROOM][..], frame].concat();
    let mut packet = Packet::new(&mut buffer, HEADROOM, LINK);
    let _ = open(&world.nodes[to].tunnels, &mut packet);
    packet.frame().to_vec()
}
