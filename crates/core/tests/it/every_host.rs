//! Where every host decides, a packet is served after three hosts at most, whatever they know of
//! each other; and a change of hosts under the hash policy moves no open flow.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::world::{MARK_KEY, ROUTER, World};
use etherparse::PacketBuilder;
use evener_core::farm::plan::identity;
use evener_core::net::packet::{Checksum, Packet};
use evener_core::net::wire::Mac;
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::decide::{Reason, Verdict};
use evener_core::path::mark::ForwardCount;
use evener_core::path::mark::{PASSED, PASSED_TWICE};
use evener_core::path::tables::{
    Forwarding, HASH_SLOTS, IdleTicks, Pick, Ring, ServerEntry, Tables, Vip, VipKey,
};
use evener_core::pool::policy::{Weighted, maglev};
use evener_core::server;
use proptest::prelude::*;

const VIP: ([u8; 4], u16) = ([192, 0, 2, 100], 80);
const HOSTS_MAX: usize = 6;
const SYN: u8 = 2;
const ACK: u8 = 16;

fn mac(host: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, host as u8])
}

fn address(host: usize) -> IpAddr {
    [10, 0, 0, host as u8 + 1].into()
}

/// A client's TCP segment to a host.
fn segment(host: usize, port: u16, flags: u8) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(ROUTER.0, mac(host).0);
    let mut tcp = link.ipv4([203, 0, 113, 7], VIP.0, 64).tcp(port, VIP.1, 7, 65_000);
    if flags & SYN != 0 {
        tcp = tcp.syn();
    }
    if flags & ACK != 0 {
        tcp = tcp.ack(9);
    }
    let mut frame = Vec::new();
    tcp.write(&mut frame, &[]).unwrap();
    frame
}

/// To whom a frame goes that a host sent, and what that one decides on: what is in a tunnel is
/// taken out of it first, as `bpf/server/server.bpf.c` does.
fn arrives(frame: &[u8]) -> (usize, Vec<u8>) {
    if frame[30..33] != [10, 0, 0] {
        assert_eq!(frame[..5], mac(0).0[..5], "to one of the hosts");
        return (usize::from(frame[5]), frame.to_vec());
    }
    let host = usize::from(frame[33]) - 1;
    let key = VipKey { address: VIP.0.into(), port: VIP.1, protocol: Protocol::Tcp };
    let opener = server::Tables {
        addresses: [address(host)].into(),
        directors: (0..HOSTS_MAX).map(address).collect(),
        services: [(key, server::Offer::default())].into(),
        marks: Some(MARK_KEY),
    };
    let mut opened = [&mac(host).0, &frame[6..]].concat();
    let mut packet = Packet::new(&mut opened, 0, 1);
    assert_eq!(server::open(&opener, &mut packet), Some(server::Reason::Decapsulated));
    (host, packet.frame().to_vec())
}

/// The hosts that a packet comes by, and the one that serves it, if any does.
fn follow(hosts: &[World], entry: usize, frame: &[u8]) -> (Vec<usize>, Option<usize>) {
    let (mut at, mut frame) = (entry, frame.to_vec());
    let mut by = Vec::new();
    loop {
        by.push(at);
        assert!(by.len() <= 3, "passed on and on: {by:?}");
        let (decision, out) = hosts[at].decide(&frame, Checksum::Whole, 7);
        match (decision.verdict, decision.reason) {
            (Verdict::Forward { .. }, Reason::Forwarded) => (at, frame) = arrives(&out),
            (Verdict::Pass, Reason::Local) => return (by, Some(at)),
            (Verdict::Drop, _) => return (by, None),
            other => panic!("{other:?}"),
        }
    }
}

fn entry(host: usize, local: bool, way: Forwarding) -> ServerEntry {
    let identity = identity("web", &host.to_string());
    ServerEntry { identity, mac: mac(host), ifindex: 1, weight: 1, up: true, local, forwarding: way }
}

fn tunnel(own: usize, to: usize, encapsulation: Encapsulation, mark: Option<ForwardCount>) -> Forwarding {
    Forwarding::Tunnel { encapsulation, from: address(own), to: address(to), mtu: 1500, mark }
}

/// A host's tables but for servers and ring.
fn tables(host: usize, own: u16, pick: Pick, stateless: bool) -> Tables {
    let idle = IdleTicks { syn: 100, tcp: 100, half_closed: 100, closing: 100, udp: 100, udp_new: 100 };
    // Hosts number their VIPs each for itself.
    let id = host as u16 + 1;
    let vip =
        Vip { id, service: 0, announce: true, pick, idle, own, stateless, affinity: None, handoff: None };
    let key = VipKey { address: VIP.0.into(), port: VIP.1, protocol: Protocol::Tcp };
    Tables {
        vips: [(key, vip)].into(),
        interfaces: [(1, mac(host))].into(),
        peers: (0..HOSTS_MAX).filter(|peer| *peer != host).map(mac).collect(),
        ..Tables::default()
    }
}

/// Numbers that only a seed decides (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 31) % n as u64) as usize
    }

    /// A table that names some of these slots, or none of them.
    fn table(&mut self, slots: &[u16]) -> Vec<u16> {
        let period = self.below(40) + 1;
        let some: Vec<u16> =
            (0..period).map(|_| slots.get(self.below(slots.len() + 1)).copied().unwrap_or(0)).collect();
        match self.below(6) {
            0 => Vec::new(),
            _ => some.iter().copied().cycle().take(HASH_SLOTS).collect(),
        }
    }

    /// The tables that a host may have: any servers by any way, in any ring. It only knows who its
    /// peers are.
    fn tables(&mut self, host: usize, hosts: usize) -> Tables {
        let pick = [Pick::Hash, Pick::Cursor, Pick::Least][self.below(3)];
        let own = self.below(3) as u16 + 1;
        let mut tables = tables(host, own, pick, self.below(2) == 0);
        if self.below(8) > 0 {
            tables.servers.insert(own, entry(host, true, Forwarding::Link));
        }
        for slot in 4..12 {
            let peer = self.below(hosts);
            let way = match self.below(5) {
                0 => continue,
                1 => Forwarding::Link,
                2 => tunnel(host, peer, Encapsulation::Ipip, None),
                3 => tunnel(host, peer, Encapsulation::Gue, Some(ForwardCount::Once)),
                _ => tunnel(host, peer, Encapsulation::Gue, Some(ForwardCount::Twice)),
            };
            // A host is no peer of its own.
            tables.servers.insert(slot, entry(peer, peer == host, way));
        }
        let slots: Vec<u16> = (0..13).collect();
        let (hash, previous) = (self.table(&slots), self.table(&slots));
        let order = hash.iter().take(30).copied().collect();
        tables.rings.insert(
            0,
            Ring { order, hash: hash.into(), previous: previous.into(), second: [].into() }.into(),
        );
        tables
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn packet_visits_at_most_three_hosts(seed: u64, hosts in 1..=HOSTS_MAX) {
        let mut dice = Dice(seed);
        let mut worlds: Vec<World> = (0..hosts).map(|host| World::of(dice.tables(host, hosts))).collect();
        for round in 0..6 {
            for _ in 0..40 {
                let (entry, port) = (dice.below(hosts), 40_000 + dice.below(8) as u16);
                let flags = [SYN, ACK, ACK, SYN | ACK][dice.below(4)];
                let mut frame = segment(entry, port, flags);
                // A packet may look as if it came from any host.
                let source = [ROUTER, PASSED, PASSED_TWICE, mac(dice.below(hosts))][dice.below(4)];
                frame[6..12].copy_from_slice(&source.0);
                follow(&worlds, entry, &frame);
            }
            // Somebody comes to believe something else. Sessions stay.
            let host = (round + dice.below(hosts)) % hosts;
            worlds[host].tables = dice.tables(host, hosts);
        }
    }
}

/// A farm under the hash policy whose hosts agree on who is in the ring, each with slots of its
/// own.
struct Farm {
    stateless: bool,
    method: Forwarding,
    seed: u64,
}

impl Farm {
    fn slot(&self, host: usize, peer: usize) -> u16 {
        1 + ((peer as u64 + self.seed % 97 * (host as u64 + 1)) % 50) as u16
    }

    fn ring(&self, host: usize, members: &BTreeSet<usize>, last: bool) -> Vec<u16> {
        let slot = |peer: usize| self.slot(host, peer) + if last && peer != host { 50 } else { 0 };
        let seed = |peer: usize| identity("web", &peer.to_string());
        let member = |&peer: &usize| Weighted { slot: slot(peer), weight: 1, seed: seed(peer) };
        maglev(&members.iter().map(member).collect::<Vec<_>>(), HASH_SLOTS)
    }

    /// The tables of a host while `alive` are there and `members` take new flows, `before` having
    /// taken them before.
    fn tables(
        &self,
        host: usize,
        alive: &BTreeSet<usize>,
        members: &BTreeSet<usize>,
        before: &BTreeSet<usize>,
    ) -> Tables {
        let mut tables = tables(host, self.slot(host, host), Pick::Hash, self.stateless);
        for &peer in alive {
            let way = match self.method {
                Forwarding::Tunnel { encapsulation, mark, .. } => tunnel(host, peer, encapsulation, mark),
                way => way,
            };
            tables.servers.insert(self.slot(host, peer), entry(peer, peer == host, way));
            if peer != host {
                let way = tunnel(host, peer, Encapsulation::Gue, Some(ForwardCount::Twice));
                tables.servers.insert(self.slot(host, peer) + 50, entry(peer, false, way));
            }
        }
        let hash = self.ring(host, members, false);
        let previous = self.ring(host, before, true);
        tables.rings.insert(
            0,
            Ring { order: Vec::new(), hash: hash.into(), previous: previous.into(), second: [].into() }
                .into(),
        );
        tables
    }

    fn hosts(
        &self,
        alive: &BTreeSet<usize>,
        members: &BTreeSet<usize>,
        before: &BTreeSet<usize>,
    ) -> BTreeMap<usize, Tables> {
        alive.iter().map(|&host| (host, self.tables(host, alive, members, before))).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Added,
    Removed,
    Drained,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![Just(Change::Added), Just(Change::Removed), Just(Change::Drained)]
}

/// By IPIP no host learns how often a packet was passed on: there is no second chance behind it.
fn method() -> impl Strategy<Value = Forwarding> {
    prop_oneof![Just(Forwarding::Link), Just(tunnel(0, 0, Encapsulation::Gue, Some(ForwardCount::Once)))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_change_of_hosts_moves_no_open_flow(
        seed: u64, stateless: bool, method in method(), change in change(), hosts in 3..=HOSTS_MAX,
    ) {
        let farm = Farm { stateless, method, seed };
        let mut dice = Dice(seed);
        let changed = dice.below(hosts);
        let all: BTreeSet<usize> = (0..hosts).collect();
        let others: BTreeSet<usize> = all.iter().copied().filter(|host| *host != changed).collect();
        let (alive0, ring0, alive1, ring1) = match change {
            Change::Added => (&others, &others, &all, &all),
            Change::Removed => (&all, &all, &others, &others),
            Change::Drained => (&all, &all, &all, &others),
        };
        let before = farm.hosts(alive0, ring0, ring0);
        // A host that isn't there has tables that name nobody.
        let mut worlds: Vec<World> =
            (0..hosts).map(|host| World::of(before.get(&host).cloned().unwrap_or_default())).collect();
        let entries: Vec<usize> = alive0.iter().copied().collect();
        let mut flows = Vec::new();
        for port in 40_000..40_060 {
            let entry = entries[dice.below(entries.len())];
            let (_, server) = follow(&worlds, entry, &segment(entry, port, SYN));
            let server = server.unwrap();
            for entry in &entries {
                let (_, again) = follow(&worlds, *entry, &segment(*entry, port, ACK));
                prop_assert_eq!(again, Some(server), "all hosts agree");
            }
            flows.push((port, server));
        }
        for (host, tables) in farm.hosts(alive1, ring1, ring0) {
            worlds[host].tables = tables;
        }
        for (port, server) in flows.into_iter().filter(|(_, server)| alive1.contains(server)) {
            for &entry in alive1 {
                let (by, again) = follow(&worlds, entry, &segment(entry, port, ACK));
                prop_assert_eq!(again, Some(server), "from {} by {:?}", entry, by);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The packets of a stranger on the link that look as if another host had passed them on.
    #[test]
    fn forged_forwarded_segment_ends_no_connection(
        seed: u64, to in 1..3usize, method in method(), forged in prop::collection::vec((0..4usize, any::<u8>()), 1..12),
    ) {
        let farm = Farm { stateless: false, method, seed };
        let all: BTreeSet<usize> = (0..3).collect();
        // All go to one other host.
        let hosts = farm.hosts(&all, &[to].into(), &all);
        let worlds: Vec<World> = (0..3).map(|host| World::of(hosts[&host].clone())).collect();
        for flags in [SYN, ACK, ACK] {
            prop_assert_eq!(follow(&worlds, 0, &segment(0, 40_000, flags)), (vec![0, to], Some(to)));
        }
        for (source, flags) in forged {
            let mut frame = segment(0, 40_000, ACK);
            frame[6..12].copy_from_slice(&[PASSED, PASSED_TWICE, mac(1), mac(2)][source].0);
            // The flags of TCP; without a session of its own this host may drop it, or serve it.
            frame[47] = flags;
            let _ = worlds[0].decide(&frame, Checksum::Whole, 7);
            prop_assert_eq!(follow(&worlds, 0, &segment(0, 40_000, ACK)), (vec![0, to], Some(to)));
        }
    }
}
