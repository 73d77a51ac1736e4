//! A packet that makes no sense to a director makes none to a server: both read packets by the same
//! rules.

use std::net::{IpAddr, SocketAddr};

use evener_core::net::Protocol;
use evener_core::net::packet::Packet;
use evener_core::path::tables::VipKey;
use evener_core::server::{Leaving, Offer, Reason, Tables, open};

const CLIENT: &str = "2001:db8:c::7";
const SERVICE: &str = "2001:db8:7::a";
/// Ports 40000 and 80, and the rest of a TCP header.
const TCP: [u8; 20] = [0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn tables(mss: Option<u16>) -> Tables {
    let key = VipKey { address: ip(SERVICE), port: 80, protocol: Protocol::Tcp };
    Tables {
        addresses: [ip("2001:db8::2")].into(),
        directors: [ip("2001:db8::1")].into(),
        services: [(key, Offer { mss, ..Offer::default() })].into(),
        marks: None,
    }
}

fn packet(from: &str, to: &str, next: u8, rest: &[u8]) -> Vec<u8> {
    let [high, low] = (rest.len() as u16).to_be_bytes();
    let ends = [from, to].map(|end| match ip(end) {
        IpAddr::V6(end) => end.octets(),
        IpAddr::V4(_) => panic!("IPv6"),
    });
    [&[0x60, 0, 0, 0, high, low, next, 64][..], &ends.concat(), rest].concat()
}

fn frame(packet: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd][..], packet].concat()
}

/// The way of a packet from a client in a tunnel from a director.
fn opened(from: &str, next: u8, rest: &[u8]) -> Reason {
    let inside = packet(from, SERVICE, next, rest);
    let mut frame = frame(&packet("2001:db8::1", "2001:db8::2", 41, &inside));
    open(&tables(None), &mut Packet::new(&mut frame, 0, 1)).unwrap()
}

fn behind(header: [u8; 8], rest: &[u8]) -> Vec<u8> {
    [&header[..], rest].concat()
}

#[test]
fn sources_that_no_client_has() {
    assert_eq!(opened(CLIENT, 6, &TCP), Reason::Decapsulated);
    for martian in ["::", "::1", "::2", "::192.0.2.7", "::ffff:192.0.2.7", "ff02::1", "fe80::7", SERVICE] {
        assert_eq!(opened(martian, 6, &TCP), Reason::InnerMartian, "{martian}");
    }
}

#[test]
fn extension_headers_are_gone_through_alike() {
    let of = |next: u8, header: [u8; 8]| opened(CLIENT, next, &behind(header, &TCP));
    assert_eq!(of(0, [6, 0, 0, 0, 0, 0, 0, 0]), Reason::Decapsulated, "hop-by-hop options");
    assert_eq!(of(43, [6, 0, 2, 0, 0, 0, 0, 0]), Reason::Decapsulated, "nowhere left to go");
    assert_eq!(of(43, [6, 0, 4, 1, 0, 0, 0, 0]), Reason::NotOwnService, "hops are left");
    assert_eq!(of(43, [6, 0, 0, 0, 0, 0, 0, 0]), Reason::Malformed, "type 0 is forbidden");
    assert_eq!(of(60, [6, 3, 0, 0, 0, 0, 0, 0]), Reason::Malformed, "a header longer than the packet");
    let twice = behind([0, 0, 0, 0, 0, 0, 0, 0], &behind([6, 0, 0, 0, 0, 0, 0, 0], &TCP));
    assert_eq!(opened(CLIENT, 60, &twice), Reason::Malformed, "hop-by-hop options come first");
}

#[test]
fn fragments_are_read_alike() {
    let of = |word: u16, len: usize| {
        let [high, low] = word.to_be_bytes();
        opened(CLIENT, 44, &behind([6, 0, high, low, 0, 0, 0, 9], &vec![0; len]))
    };
    assert_eq!(of(3 << 3, 20), Reason::Decapsulated, "the last one, by its address");
    assert_eq!(of(3 << 3 | 1, 20), Reason::Malformed, "one in the middle is of whole units");
    assert_eq!(of(0x1fff << 3, 20), Reason::Malformed, "it ends behind every packet's end");
    // One that is the whole packet is none (RFC 6946), and goes by its port.
    let whole = |tcp: [u8; 20]| opened(CLIENT, 44, &behind([6, 0, 0, 0, 0, 0, 0, 9], &tcp));
    let mut other = TCP;
    other[3] = 81;
    assert_eq!((whole(TCP), whole(other)), (Reason::Decapsulated, Reason::NotOwnService));
}

#[test]
fn of_two_segment_sizes_the_last_one_counts() {
    let mss = |size: u16| [&[2, 4][..], &size.to_be_bytes()].concat();
    let syn_ack = |options: &[u8]| {
        let mut tcp = [&TCP[..], options].concat();
        tcp[..4].rotate_left(2);
        (tcp[12], tcp[13]) = ((5 + options.len() as u8 / 4) << 4, 0x12);
        frame(&packet(SERVICE, CLIENT, 6, &tcp))
    };
    for (options, clamped) in [
        (mss(1440), true),
        (mss(1000), false),
        ([mss(1000), mss(1440)].concat(), true),
        ([mss(1440), mss(1000)].concat(), false),
        ([&[3, 3, 7, 1][..], &mss(1440)].concat(), true),
        // An option behind an end, or one that is malformed, is none.
        ([&[0, 0, 0, 0][..], &mss(1440)].concat(), false),
        ([&[5, 1, 1, 1][..], &mss(1440)].concat(), false),
    ] {
        let mut frame = syn_ack(&options);
        let tables = tables(Some(1200));
        let before = frame.clone();
        let leaving = Leaving::read(&tables, &before).unwrap();
        assert_eq!(leaving.ends.client, SocketAddr::new(ip(CLIENT), 40_000));
        assert_eq!(leaving.clamp(&mut frame), clamped.then_some(Reason::Clamped), "{options:?}");
        assert_eq!(frame.ends_with(&1200u16.to_be_bytes()), clamped, "{options:?}");
    }
}
