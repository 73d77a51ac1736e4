//! Frames at a server's end of tunnels, for the corpus and for fuzzing.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::net::IpAddr;

use evener_core::net::Protocol;
use evener_core::net::packet::Packet;
use evener_core::path::mark::{PASSED, PASSED_TWICE};
use evener_core::path::parse::PacketEndpoints;
use evener_core::path::seed::Seed;
use evener_core::path::tables::VipKey;
use evener_core::server::{Offer, Reason, Tables, open};

/// Of both families: this host's own address, a director's, and that of a service.
fn addresses(last: u8) -> [IpAddr; 2] {
    [[198, 51, 100, last].into(), format!("2001:db8:7::{last:x}").parse().unwrap()]
}

fn tables(marks: bool) -> Tables {
    let key = |address| VipKey { address, port: 80, protocol: Protocol::Tcp };
    Tables {
        addresses: addresses(1).into(),
        directors: addresses(2).into(),
        services: addresses(10).map(|address| (key(address), Offer::default())).into(),
        marks: marks.then_some(Seed(1, 2)),
    }
}

/// The verdict on a frame, which was seen to be all right.
pub fn open_and_check(frame: &[u8]) -> Option<Reason> {
    let [with, without] = [true, false].map(|marks| {
        let mut buffer = frame.to_vec();
        let mut packet = Packet::new(&mut buffer, 0, 1);
        (open(&tables(marks), &mut packet), packet.frame().to_vec())
    });
    if [&with, &without].iter().any(|(opened, _)| *opened == Some(Reason::ForgedMark)) {
        assert!([with.1, without.1].iter().all(|after| after == frame), "it is left alone");
        return with.0;
    }
    assert_eq!(with.0, without.0, "where no mark is wrong, marks decide nothing");
    let (opened, after) = without;
    if opened != Some(Reason::Decapsulated) {
        assert_eq!(after, frame, "{opened:?} leaves the frame alone");
        return opened;
    }
    assert!(after.len() + 20 <= frame.len() && frame[..12] == after[..12]);
    assert_eq!(frame[frame.len() - after.len() + 34..], after[34..], "all but the first header is as it was");
    let inside = PacketEndpoints::of(&after).unwrap();
    assert!(addresses(10).contains(&inside.dst.ip()), "{inside:?}");
    assert!(usize::from(inside.len) + 14 <= after.len(), "{inside:?}");
    let source = &with.1[6..12];
    assert!([PASSED, PASSED_TWICE].iter().any(|mark| mark.0 == source) && with.1[12..] == after[12..]);
    opened
}
