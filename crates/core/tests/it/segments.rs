//! Segments that reach a server and leave it, for the corpus and for fuzzing.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::net::{IpAddr, SocketAddr};

use evener_core::net::Protocol;
use evener_core::net::checksum;
use evener_core::net::wire::TCP_RST;
use evener_core::path::cookie::{FourTuple, Keys};
use evener_core::path::parse::PacketEndpoints;
use evener_core::path::seed::Seed;
use evener_core::path::tables::VipKey;
use evener_core::server::{
    Arrived, Expectation, Host, Leaving, Made, Offer, OldConnection, Outcome, Socket, Tables, Terms,
};

/// A host that has, by the client's port, every kind of socket.
struct World;

const OLD: OldConnection = OldConnection { next: 5_000, timestamp: 9 };

impl Host for World {
    fn socket(&self, client: SocketAddr, own: SocketAddr) -> Socket {
        match client.port() % 6 {
            _ if own.port() == 8_080 => Socket::Listener,
            0 => Socket::None,
            1 => Socket::Opening,
            2 => Socket::TimeWait(OLD),
            3 => Socket::Connection { first: u32::MAX - 9, written: 9, old: OLD },
            _ => Socket::Listener,
        }
    }

    fn expected(&self, ends: &FourTuple) -> Option<Expectation> {
        let terms = Terms { mss: 1_400, window_scales: Some((7, 7)), sack: true, timestamps: true };
        let is_one = ends.client.port() > 50_000;
        is_one.then_some(Expectation { sequence: 6_000, acknowledgment: 7_000, terms, made: false })
    }

    fn made(&self, _ends: &FourTuple) -> Option<Made> {
        None
    }
}

fn tables() -> Tables {
    let addresses: [IpAddr; 2] = [[198, 51, 100, 10].into(), "2001:db8:7::a".parse().unwrap()];
    let keys =
        |(port, offer)| addresses.map(|address| (VipKey { address, port, protocol: Protocol::Tcp }, offer));
    let own = Offer {
        mss: Some(1_400),
        listener: Some(80),
        punt_listener: Some(8_080),
        turns: true,
        is_marked: false,
    };
    let other = Offer { listener: Some(8_080), punt_listener: None, ..own };
    Tables { services: [(80, own), (81, other)].into_iter().flat_map(keys).collect(), ..Tables::default() }
}

/// The verdict on a frame, in words.
pub fn meet_and_check(frame: &[u8]) -> String {
    if let Some(leaving) = Leaving::read(&tables(), frame) {
        let mut after = frame.to_vec();
        let clamped = leaving.clamp(&mut after);
        let changed = frame.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert!(changed <= 4 && after.len() == frame.len() && (clamped.is_some() || changed == 0));
        let held = leaving.is_held(true, || false);
        assert!(!leaving.is_held(true, || true) && !leaving.is_held(false, || false));
        return format!("leaves, {clamped:?}, {held}");
    }
    let Some(arrived) = Arrived::read(&tables(), frame) else { return "none".into() };
    let glance = PacketEndpoints::of(frame).unwrap();
    assert_eq!((glance.src, glance.dst), (arrived.ends.client, arrived.ends.service));
    let keys = Keys { key: Seed(15, 16), epoch: 15_625 };
    let outcome = arrived.outcome(&keys, &World);
    let Outcome::Clears(reason, old) = outcome else { return format!("{outcome:?}") };
    let mut after = frame.to_vec();
    let reset = arrived.reset(&mut after, old);
    let seen = PacketEndpoints::of(reset).unwrap();
    assert_eq!((seen.src, seen.dst, seen.tcp_flags), (glance.src, glance.dst, TCP_RST));
    assert_eq!(usize::from(seen.len) + 14, reset.len());
    let tcp = &reset[reset.len() - 20..];
    let sum = checksum::pseudo_header(seen.src.ip(), seen.dst.ip(), seen.protocol, tcp.len());
    assert_eq!(checksum::finish(checksum::add(sum, tcp)), 0, "its checksum is right");
    format!("{reason:?}")
}
