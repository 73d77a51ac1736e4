//! Link between hosts: reachability, datagrams, and ARP.

use std::net::IpAddr;

use evener_core::director::Input;
use evener_core::net::wire::Mac;

use crate::farms::{self, Kind, LINK, SERVERS};
use crate::world::World;

impl World {
    /// True if two nodes receive each other's datagrams.
    pub(crate) fn reach(&self, a: usize, b: usize) -> bool {
        self.hears(a, b) && self.hears(b, a)
    }

    /// True if node `to` receives the datagrams of node `from`.
    pub(crate) fn hears(&self, to: usize, from: usize) -> bool {
        let plugged = |node: usize| self.nodes[node].has_carrier;
        let is_deaf = self.deaf >> (to * SERVERS + from) & 1 == 1;
        to == from
            || plugged(to) && plugged(from) && self.sides >> to & 1 == self.sides >> from & 1 && !is_deaf
    }

    /// Returns the partition of the network, and the pairs of nodes with one-way loss.
    pub(crate) fn parted(&self) -> (u8, u16) {
        (self.sides, self.deaf)
    }

    /// Sends a datagram to another host. The datagram is recorded, and may be lost, delayed or
    /// duplicated.
    pub(crate) fn post(&mut self, from: usize, to: IpAddr, datagram: Vec<u8>) {
        let Some(to) = (0..self.nodes.len()).find(|node| farms::node(self.kind, *node).0 == to) else {
            return;
        };
        let what = Input::Datagram { from: (farms::node(self.kind, from).0, 7).into(), bytes: datagram };
        self.recording.record(&what, &mut self.random);
        let copies = if self.below(10) == 0 { 2 } else { 1 };
        for _ in 0..copies {
            if self.below(100) < u64::from(self.loss) {
                continue;
            }
            let delay_ms = if self.below(8) == 0 { self.below(800) } else { self.below(20) };
            self.send(to, Some(from), delay_ms, what.clone());
        }
    }

    /// Sends the ARP replies of an address's owners to a node.
    pub(crate) fn ask(&mut self, node: usize, target: IpAddr) {
        let servers = 0..self.kind.servers();
        let servers = servers.filter(|server| self.kind != Kind::EveryHost && self.answers[*server]);
        let servers = servers.map(farms::server).filter(|(address, _)| *address == target);
        let mut owners: Vec<(Option<usize>, Mac)> = servers.map(|(_, mac)| (None, mac)).collect();
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            if self.reach(node, other) && self.nodes[other].answers(target, self.now_ms) {
                owners.push((Some(other), farms::node(self.kind, other).1));
            }
        }
        for (from, mac) in owners {
            let delay_ms = match self.kind {
                // A constant order of servers, and so of slots, lets all farms share one hash
                // table.
                Kind::Web => u64::from(mac.0[5]),
                _ => self.below(5),
            };
            let bytes = arp_reply(mac, target, farms::node(self.kind, node));
            self.send(node, from, delay_ms, Input::Frame { ifindex: LINK, bytes });
        }
    }

    /// Resolves a host's MAC in a node's kernel.
    pub(crate) fn resolve(&mut self, node: usize, address: IpAddr) {
        let mut servers = 0..self.kind.servers();
        let Some(server) = servers.find(|server| farms::server(*server).0 == address) else { return };
        let there = match self.kind {
            Kind::EveryHost => self.reach(node, server),
            _ => self.is_reached(node, server),
        };
        let known = self.nodes[node].neighbours.contains_key(&address);
        if there && !known {
            self.nodes[node].neighbours.insert(address, farms::server(server).1);
            let network = self.nodes[node].network();
            let delay_ms = self.below(10);
            self.send(node, None, delay_ms, network);
        }
    }
}

/// Returns an ARP reply (RFC 826).
pub(crate) fn arp_reply(mac: Mac, address: IpAddr, (asker, asker_mac): (IpAddr, Mac)) -> Vec<u8> {
    let octets = |address| match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => [0; 4],
    };
    let ethernet = [&asker_mac.0[..], &mac.0, &[0x08, 0x06]].concat();
    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    [&ethernet[..], &head, &mac.0, &octets(address), &asker_mac.0, &octets(asker)].concat()
}
