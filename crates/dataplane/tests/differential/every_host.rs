//! Services with every-host selection: this host serves some, and peers are on the link and behind
//! tunnels.

use std::net::IpAddr;
use std::sync::Arc;

use evener_core::net::wire::Mac;
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::mark::ForwardCount;
use evener_core::path::mark::{PASSED, PASSED_TWICE};
use evener_core::path::tables::{Forwarding, HASH_SLOTS, Pick, Ring, ServerEntry, Tables};

use crate::world::{Builder, vip};

/// Last address bytes of the services: by hash, by the ring of a host that serves no connection
/// itself, and by hash without sessions.
pub const EVERY_HOST: [u8; 3] = [130, 131, 132];

const PEERS: [Mac; 3] = [Mac([2, 0, 0, 8, 0, 1]), Mac([2, 0, 0, 8, 0, 2]), Mac([0x12, 0xff, 0, 8, 1, 0])];

/// Source addresses of frames: unknown hosts, peers, the marks of decapsulated packets, and
/// look-alikes.
pub const SOURCES: [Mac; 8] = [
    Mac([2, 0, 0, 9, 9, 9]),
    PEERS[0],
    PEERS[1],
    PEERS[2],
    PASSED,
    PASSED_TWICE,
    Mac([2, 0, 0, 8, 0, 3]),
    Mac([2, b'e', b'v', b'n', b'r', 3]),
];

/// A server id that no table contains.
const GHOST: u16 = 4000;

pub fn add(builder: &mut Builder) {
    builder.tables.peers = PEERS.into();
    let own = builder.server(Forwarding::Link, 1);
    change(&mut builder.tables, own, |server| server.local = true);
    let on_link: Vec<u16> = [1, 77, 1].map(|ifindex| builder.server(Forwarding::Link, ifindex)).into();
    change(&mut builder.tables, on_link[2], |server| server.up = false);
    let mut behind = |encapsulation, v6: bool, host: u8, mtu, mark| {
        let address = |host: u8| -> IpAddr {
            if v6 { format!("2001:db8:7::{host}").parse().unwrap() } else { [10, 0, 7, host].into() }
        };
        let way = Forwarding::Tunnel { encapsulation, from: address(1), to: address(host), mtu, mark };
        builder.server(way, if host.is_multiple_of(2) { 1 } else { 77 })
    };
    let ipip = behind(Encapsulation::Ipip, false, 2, 1500, None);
    let gue = behind(Encapsulation::Gue, true, 3, 1400, Some(ForwardCount::Once));
    let near = behind(Encapsulation::Gue, false, 4, 1500, Some(ForwardCount::Once));
    let last = [(false, 2), (false, 3), (true, 2), (true, 3)]
        .map(|(v6, host)| behind(Encapsulation::Gue, v6, host, 1500, Some(ForwardCount::Twice)));
    let all = [own, on_link[0], on_link[1], on_link[2], ipip, gue, near];
    let previous: Vec<u16> = last.into_iter().chain([own, GHOST, 0, on_link[0]]).collect();
    for v6 in [false, true] {
        let mut add = |address: u8, protocol, pick, servers: &[u16], previous: &[u16], stateless| {
            let id = builder.service(vip(v6, address), protocol, pick, servers);
            let table = &mut builder.tables;
            let vip = table.vips.values_mut().find(|vip| vip.id == id).unwrap();
            (vip.own, vip.stateless) = (own, stateless);
            let previous =
                previous.iter().copied().cycle().take(if previous.is_empty() { 0 } else { HASH_SLOTS });
            let ring = &table.rings[&vip.service];
            let ring = Ring { previous: previous.collect(), ..Ring::clone(ring) };
            table.rings.insert(vip.service, Arc::new(ring));
        };
        let [by_hash, by_ring, stateless] = EVERY_HOST;
        add(by_hash, Protocol::Tcp, Pick::Hash, &all, &previous, false);
        add(by_hash, Protocol::Udp, Pick::Least, &all, &[], false);
        add(by_ring, Protocol::Tcp, Pick::Cursor, &all[1..], &previous, false);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            add(stateless, protocol, Pick::Hash, &all, &previous, true);
        }
    }
}

fn change(tables: &mut Tables, slot: u16, change: impl FnOnce(&mut ServerEntry)) {
    tables.servers.entry(slot).and_modify(change);
}
