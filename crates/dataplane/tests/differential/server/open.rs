//! The core and the C programs decapsulate alike, also look-alikes of tunnel packets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use evener_core::net::Protocol;
use evener_core::net::packet::Packet;
use evener_core::net::wire::{GUE_PORT, Mac};
use evener_core::path::mark::{ForwardCount, GUE_LAST, MARK_LEN, Marker, TunnelAddresses};
use evener_core::path::mark::{PASSED, PASSED_TWICE, PUNTED};
use evener_core::path::seed::Seed;
use evener_core::path::tables::VipKey;
use evener_core::server::{Offer, Reason, Tables, open};
use evener_dataplane::server::Hook;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::{Counts, Programs};
use crate::frames::{link, packet_v4, packet_v6};
use crate::stories;

/// Packets per hook, with and without keyed marks.
const TUNNEL_PACKETS: u32 = 600;
/// Reasons that must occur. Left out are reasons of a kernel that refuses to shorten a frame, and
/// reasons of other programs.
const MET: [Reason; 10] = [
    Reason::Decapsulated,
    Reason::UnlistedSource,
    Reason::NotOwnService,
    Reason::InnerMartian,
    Reason::Nested,
    Reason::Malformed,
    Reason::GueHeader,
    Reason::OuterFragment,
    Reason::Congestion,
    Reason::ForgedMark,
];

/// Returns an address of an IP version. With IPv6, high numbers are IPv4-mapped addresses.
fn address(v6: bool, last: u8) -> IpAddr {
    match (v6, last) {
        (false, last) => [198, 51, 100, last].into(),
        (true, 200..) => Ipv4Addr::from([198, 51, 100, last - 200]).to_ipv6_mapped().into(),
        (true, last) => format!("2001:db8:7::{last:x}").parse().unwrap(),
    }
}

const OWN: u8 = 1;
const DIRECTOR: u8 = 2;
const SERVICE: u8 = 10;
const CLIENT: u8 = 30;
const PORT: u16 = 80;

/// Key of marks, if marks are in use. Then UDP packets and packets without ports need a mark.
const KEY: Seed = Seed(0x1122_3344_5566_7788, 9);

fn tables(marks: bool) -> Tables {
    let both = |last| [false, true].map(|v6| address(v6, last));
    let keys = both(SERVICE).into_iter().flat_map(|address| {
        let protocols = [(Protocol::Tcp, PORT), (Protocol::Udp, 53)];
        protocols.map(|(protocol, port)| VipKey { address, port, protocol })
    });
    Tables {
        addresses: both(OWN).into(),
        directors: both(DIRECTOR).into(),
        services: keys
            .map(|vip| {
                let is_marked = marks && vip.protocol == Protocol::Udp;
                (vip, Offer { is_marked, ..Offer::default() })
            })
            .collect(),
        marks: marks.then_some(KEY),
    }
}

/// Description of an encapsulated packet, before it is damaged.
#[derive(Clone, Debug)]
struct Plan {
    outer: Outer,
    inner: Inner,
    damage: Vec<Damage>,
}

#[derive(Clone, Debug)]
struct Outer {
    v6: bool,
    from: u8,
    to: u8,
    class: u8,
    /// Offset, and the "more fragments" bit.
    fragment: Option<(u16, bool)>,
    /// First byte, protocol if it differs from the inner one, and flags.
    gue: Option<(u8, Option<u8>, u16)>,
    mark: Option<Mark>,
    port: u16,
}

/// Mark in a GUE header, and its fault.
#[derive(Clone, Copy, Debug)]
struct Mark {
    generation: u32,
    passed: ForwardCount,
    fault: Fault,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// One bit of the mark is flipped.
    Bit(usize),
    /// The header contains a different forward count.
    Passed,
    /// The mark is made with another farm's key.
    Key,
    /// The mark is made for another client.
    Client,
    /// The mark is made for another outer source.
    From,
    /// The header length field contains this many words.
    Words(u8),
}

impl Mark {
    /// Returns the flags of the header, its length in words, and the mark.
    fn header(&self, outer: &Outer, inner: &Inner) -> (u16, u8, [u8; MARK_LEN]) {
        let Mark { generation, passed, fault } = *self;
        let mut ends = TunnelAddresses {
            outer: (address(outer.v6, outer.from), address(outer.v6, outer.to)),
            inner: (inner.from, address(inner.v6, inner.to)),
        };
        let mut key = KEY;
        match fault {
            Fault::Key => key.1 ^= 1,
            Fault::Client => ends.inner.0 = address(inner.v6, CLIENT + 1),
            Fault::From => ends.outer.0 = address(outer.v6, DIRECTOR + 1),
            _ => {}
        }
        let mut mark = Marker { key, generation }.mark(&ends, passed);
        if let Fault::Bit(bit) = fault {
            mark[bit / 8 % MARK_LEN] ^= 1 << (bit % 8);
        }
        let lie = if matches!(fault, Fault::Passed) { GUE_LAST } else { 0 };
        let words = if let Fault::Words(words) = fault { words } else { 3 };
        (passed.flags() ^ lie, words, mark)
    }
}

#[derive(Clone, Debug)]
struct Inner {
    v6: bool,
    from: IpAddr,
    to: u8,
    class: u8,
    protocol: u8,
    port: u16,
    fragment: Option<(u16, bool)>,
    /// IPv4: words of options. IPv6: extension headers with their length.
    options: Vec<(u8, u8)>,
    payload: usize,
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    SetByte(usize, u8),
    /// Adds a number to the 16 bits at an offset.
    Add(usize, i16),
    Truncate(usize),
    Extend(usize),
    /// Sets the source MAC, which marks forwarded frames.
    Source(Mac),
}

fn fragment() -> impl Strategy<Value = Option<(u16, bool)>> {
    let word = prop_oneof![Just((0, true)), Just((3, true)), Just((3, false)), Just((0, false))];
    prop_oneof![12 => Just(None), 1 => word.prop_map(Some)]
}

fn outer() -> impl Strategy<Value = Outer> {
    let from = prop_oneof![20 => Just(DIRECTOR), 1 => Just(3u8), 1 => Just(200 + DIRECTOR)];
    let to = prop_oneof![20 => Just(OWN), 1 => Just(3u8), 1 => Just(200 + OWN)];
    let first = prop_oneof![12 => Just(0u8), 4 => 0u8..10, 1 => any::<u8>()];
    let protocol = prop_oneof![14 => Just(None), 1 => any::<u8>().prop_map(Some), 1 => Just(Some(4)), 1 => Just(Some(41))];
    let flags = prop_oneof![6 => Just(0u16), 3 => Just(1), 1 => any::<u16>()];
    let gue = prop_oneof![1 => Just(None), 2 => (first, protocol, flags).prop_map(Some)];
    let port = prop_oneof![12 => Just(GUE_PORT), 1 => any::<u16>()];
    (any::<bool>(), from, to, any::<u8>(), fragment(), gue, mark(), port).prop_map(
        |(v6, from, to, class, fragment, gue, mark, port)| Outer {
            v6,
            from,
            to,
            class,
            fragment,
            gue,
            mark,
            port,
        },
    )
}

fn mark() -> impl Strategy<Value = Option<Mark>> {
    let fault = prop_oneof![
        6 => Just(Fault::None),
        1 => (0..8 * MARK_LEN).prop_map(Fault::Bit),
        1 => prop::sample::select(vec![Fault::Passed, Fault::Key, Fault::Client, Fault::From]),
        1 => (0u8..5).prop_map(Fault::Words),
    ];
    let passed = prop_oneof![Just(ForwardCount::Once), Just(ForwardCount::Twice)];
    let mark = (any::<u32>(), passed, fault).prop_map(|(generation, passed, fault)| Mark {
        generation,
        passed,
        fault,
    });
    prop_oneof![1 => Just(None), 1 => mark.prop_map(Some)]
}

/// Returns addresses of clients, and addresses that no client can have.
fn source(v6: bool) -> BoxedStrategy<IpAddr> {
    let odd: &[&str] = match v6 {
        false => {
            &["0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255", "198.51.100.10", "223.255.255.255"]
        }
        true => &[
            "::",
            "::1",
            "::2",
            "fe80::7",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "::ffff:1.2.3.4",
            "2001:db8:7::a",
        ],
    };
    let odd: Vec<IpAddr> = odd.iter().map(|text| text.parse().unwrap()).collect();
    prop_oneof![14 => Just(address(v6, CLIENT)), 2 => prop::sample::select(odd)].boxed()
}

fn inner() -> impl Strategy<Value = Inner> {
    let to = prop_oneof![20 => Just(SERVICE), 1 => Just(11u8), 1 => Just(200 + SERVICE)];
    let protocol = prop_oneof![
        10 => Just(6u8), 4 => Just(17), 2 => Just(1), 2 => Just(58), 1 => Just(4), 1 => Just(41), 1 => Just(47),
        1 => any::<u8>(),
    ];
    let port = prop_oneof![8 => Just(PORT), 4 => Just(53), 1 => any::<u16>()];
    let option = (prop::sample::select(vec![0u8, 43, 60]), prop_oneof![6 => 0u8..3, 1 => any::<u8>()]);
    let options = prop_oneof![6 => Just(0usize), 2 => 0usize..9];
    let options = options.prop_flat_map(move |count| prop::collection::vec(option.clone(), count));
    let payload = prop_oneof![8 => 0usize..80, 1 => 80usize..1200];
    let rest = (to, any::<u8>(), protocol, port, fragment(), options, payload);
    (any::<bool>().prop_flat_map(|v6| (Just(v6), source(v6))), rest).prop_map(
        |((v6, from), (to, class, protocol, port, fragment, options, payload))| Inner {
            v6,
            from,
            to,
            class,
            protocol,
            port,
            fragment,
            options,
            payload,
        },
    )
}

fn plan() -> impl Strategy<Value = Plan> {
    let damage = prop_oneof![
        3 => (12usize..140, any::<u8>()).prop_map(|(at, to)| Damage::SetByte(at, to)),
        // Offsets of the length fields of all headers.
        4 => (prop::sample::select(vec![16usize, 18, 36, 38, 58, 48, 50, 70, 78, 90, 98]), -90i16..12)
            .prop_map(|(at, by)| Damage::Add(at, by)),
        // The version and the header length of the outer IPv4 header.
        1 => (0x40u8..0x50).prop_map(|to| Damage::SetByte(14, to)),
        1 => (14usize..160).prop_map(Damage::Truncate),
        1 => prop::sample::select(vec![PASSED, PASSED_TWICE, PUNTED]).prop_map(Damage::Source),
        2 => (1usize..60).prop_map(Damage::Extend),
    ];
    let damage = prop_oneof![3 => Just(0usize), 2 => Just(1), 1 => Just(2)]
        .prop_flat_map(move |count| prop::collection::vec(damage.clone(), count));
    (outer(), inner(), damage).prop_map(|(outer, inner, damage)| Plan { outer, inner, damage })
}

impl Inner {
    fn packet(&self) -> Vec<u8> {
        let to = address(self.v6, self.to);
        let transport = [&[0x9c, 0x40][..], &self.port.to_be_bytes(), &vec![0x55; self.payload]].concat();
        let mut packet = if self.v6 { self.packet_v6(to, transport) } else { self.packet_v4(to, transport) };
        set_class(&mut packet, self.class);
        packet
    }

    fn packet_v4(&self, to: IpAddr, transport: Vec<u8>) -> Vec<u8> {
        let words: u8 = self.options.len().min(10) as u8;
        let rest = [vec![1; 4 * usize::from(words)], transport].concat();
        let field = self.fragment.map_or(0x4000, |(offset, more)| offset | u16::from(more) << 13);
        let mut packet = packet_v4(self.from, to, self.protocol, 60, (7, field), &rest);
        packet[0] += words;
        packet
    }

    fn packet_v6(&self, to: IpAddr, transport: Vec<u8>) -> Vec<u8> {
        let (mut next, mut rest) = (self.protocol, transport);
        if let Some((offset, more)) = self.fragment {
            let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
            rest = [&[next, 0, high, low, 0, 0, 0, 9][..], &rest].concat();
            next = 44;
        }
        for (kind, words) in &self.options {
            // Long headers are cut off.
            let body = vec![0; 6 + 8 * usize::from(*words).min(4)];
            rest = [&[next, *words][..], &body, &rest].concat();
            next = *kind;
        }
        packet_v6(self.from, to, next, 60, &rest)
    }
}

impl Plan {
    fn frame(&self) -> Vec<u8> {
        let Outer { v6, from, to, class, fragment, gue, mark, port } = self.outer;
        let inside = self.inner.packet();
        let mut protocol = if self.inner.v6 { 41 } else { 4 };
        let rest = match gue {
            None => inside,
            Some((first, other, flags)) => {
                let (flags, first, private) = match mark.map(|mark| mark.header(&self.outer, &self.inner)) {
                    Some((flags, words, mark)) => (flags, first & 0x80 | words, mark.to_vec()),
                    None => (flags, first, vec![0; 4 * usize::from(first & 0x1f)]),
                };
                let gue = [&[first, other.unwrap_or(protocol)][..], &flags.to_be_bytes(), &private].concat();
                protocol = 17;
                let len = (8 + gue.len() + inside.len()) as u16;
                let udp = [0xc001u16, port, len, 0].map(u16::to_be_bytes).concat();
                [udp, gue, inside].concat()
            }
        };
        let (from, to) = (address(v6, from), address(v6, to));
        let mut packet = match (v6, fragment) {
            (false, fragment) => {
                let field = fragment.map_or(0x4000, |(offset, more)| offset | u16::from(more) << 13);
                packet_v4(from, to, protocol, 64, (0, field), &rest)
            }
            (true, None) => packet_v6(from, to, protocol, 64, &rest),
            (true, Some((offset, more))) => {
                let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
                packet_v6(from, to, 44, 64, &[&[protocol, 0, high, low, 0, 0, 0, 9][..], &rest].concat())
            }
        };
        set_class(&mut packet, class);
        self.damage.iter().fold(link(packet), damaged)
    }
}

/// Sets the traffic class.
fn set_class(packet: &mut [u8], class: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = class;
    } else {
        packet[0] = 0x60 | class >> 4;
        packet[1] = packet[1] & 15 | class << 4;
    }
}

fn damaged(mut frame: Vec<u8>, damage: &Damage) -> Vec<u8> {
    match *damage {
        Damage::SetByte(at, to) => frame.iter_mut().skip(at).take(1).for_each(|byte| *byte = to),
        Damage::Add(at, by) => {
            if let Some(field) = frame.get_mut(at..at + 2) {
                let sum = u16::from_be_bytes([field[0], field[1]]).wrapping_add_signed(by);
                field.copy_from_slice(&sum.to_be_bytes());
            }
        }
        Damage::Truncate(len) => frame.truncate(len.max(15)),
        Damage::Source(mac) => frame[6..12].copy_from_slice(&mac.0),
        Damage::Extend(by) => frame.resize(frame.len() + by, 0xaa),
    }
    frame
}

fn meet(tables: &Tables, c: &Programs, hook: Hook, before: &[u8], met: &mut Counts) -> TestCaseResult {
    let Some(ran) = c.run(hook, before)? else { return Ok(()) };
    let mut after = before.to_vec();
    let mut packet = Packet::new(&mut after, 0, 1);
    let opened = open(tables, &mut packet);
    let after = packet.frame();
    prop_assert_eq!(
        &ran.counted,
        &opened.map(|reason| (reason, 1)).into_iter().collect::<Counts>(),
        "{:?}: {:02x?}",
        hook,
        before
    );
    let goes_on = matches!(opened, None | Some(Reason::Decapsulated));
    prop_assert_eq!(ran.goes_on, goes_on, "{:?}: {:?} for {:02x?}", hook, opened, before);
    prop_assert!(!goes_on || ran.frame == after, "{before:02x?}\ncore {after:02x?}\nC    {:02x?}", ran.frame);
    opened.into_iter().for_each(|reason| *met.entry(reason).or_default() += 1);
    Ok(())
}

#[test]
fn tunnels_are_opened_alike() {
    let mut round = 0;
    for marks in [false, true] {
        let tables = tables(marks);
        let Some(c) = Programs::start(&tables) else { return };
        for hook in [Hook::Native, Hook::Tc] {
            let met = RefCell::new(BTreeMap::new());
            round += 1;
            let outcome = stories::runner(TUNNEL_PACKETS, round)
                .run(&plan(), |plan| meet(&tables, &c, hook, &plan.frame(), &mut met.borrow_mut()));
            outcome.unwrap_or_else(|error| panic!("{error}"));
            for frame in super::corpus("open") {
                meet(&tables, &c, hook, &frame, &mut met.borrow_mut()).unwrap();
            }
            let met = met.into_inner();
            let missing: Vec<_> = MET.iter().filter(|reason| !met.contains_key(reason)).collect();
            assert!(missing.is_empty(), "{hook:?} never met {missing:?}: {met:?}");
        }
    }
}
