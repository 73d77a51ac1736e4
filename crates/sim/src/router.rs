//! Router of an every-host farm's clients, and the path of packets from host to host.
//!
//! The router learns owners of service addresses from announcements and ARP replies, and keeps an
//! owner until the next announcement. So a host that takes over an address without an announcement
//! gets no packets, as in a network with long-lived caches.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::net::wire::{TCP_ACK, TCP_SYN};
use evener_core::path::decide::Verdict;
use evener_core::server::open;

use crate::check::{self, Broken, Promise};
use crate::farms::{self, LINK, VIPS};
use crate::world::{Connection, World};

/// Maximum number of hosts on a packet's path.
const MEETS_MAX: usize = 3;

/// Router with its ARP cache.
#[derive(Debug, Default)]
pub(crate) struct Router {
    owners: BTreeMap<IpAddr, usize>,
}

impl Router {
    /// Returns the node that the router knows as an address's owner.
    pub(crate) fn known(&self, address: IpAddr) -> Option<usize> {
        self.owners.get(&address).copied()
    }

    /// Learns the owner of an address.
    pub(crate) fn learn(&mut self, address: IpAddr, node: usize) {
        self.owners.insert(address, node);
    }
}

/// End of a packet's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Stack of this host.
    Host(usize),
    Nowhere,
}

/// True if the router and a node are in the same partition of the network.
pub(crate) fn reaches(world: &World, node: usize) -> bool {
    world.nodes[node].has_carrier && world.sides >> node & 1 == 0
}

/// Returns the node to which the router sends packets for an address. Without an entry the router
/// sends an ARP request and accepts the first reply.
fn owner(world: &mut World, address: IpAddr) -> Option<usize> {
    if let Some(known) = world.router.known(address) {
        return Some(known);
    }
    let mut nodes = 0..world.nodes.len();
    let found = nodes.find(|node| reaches(world, *node) && world.nodes[*node].answers(address, world.now_ms));
    found.inspect(|node| world.router.learn(address, *node))
}

/// Opens a connection over the router and checks that one host gets all of its packets.
pub(crate) fn connect(world: &mut World, client: usize, port: u16) -> Result<(), Broken> {
    let vip = VIPS[0];
    let Some(entry) = owner(world, vip) else { return Ok(()) };
    let End::Host(server) = carry(world, entry, client, port, TCP_SYN)? else { return Ok(()) };
    let host = &mut world.nodes[server];
    // From here on the host's kernel has a socket, independent of the daemon.
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

/// Sends a segment of a client's connection. If the connection must have been kept and its owner is
/// reachable, checks that the owner gets the segment.
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

/// Forwards a client's segment from the router to a host, and further by the hosts' decisions.
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

/// Returns the frame that a host's data plane sees, decapsulated if necessary.
fn arrived(world: &World, to: usize, frame: &[u8]) -> Vec<u8> {
    let mut buffer = [&[0; HEADROOM][..], frame].concat();
    let mut packet = Packet::new(&mut buffer, HEADROOM, LINK);
    let _ = open(&world.nodes[to].tunnels, &mut packet);
    packet.frame().to_vec()
}
