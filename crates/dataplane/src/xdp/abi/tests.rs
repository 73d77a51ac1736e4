//! Round trips of encoded values.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use evener_core::path::content::RouteKey;
use evener_core::path::mark::ForwardCount;
use evener_core::path::tables::{Handoff, RehandoffMode, ReplyOrigin};

use super::*;

#[test]
fn servers_are_read_back_as_they_were_written() {
    let (four, six): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
    let nat = |ip, own| Forwarding::Nat { to: SocketAddr::new(ip, 8080), own, source_nat: true, mtu: 1500 };
    let tunnel =
        |encapsulation, to, from, mark| Forwarding::Tunnel { encapsulation, from, to, mtu: 1400, mark };
    for way in [
        Forwarding::Link,
        nat(four, four),
        nat(six, six),
        tunnel(Encapsulation::Ipip, four, four, None),
        tunnel(Encapsulation::Gue, six, six, None),
        tunnel(Encapsulation::Gue, six, six, Some(ForwardCount::Once)),
        tunnel(Encapsulation::Gue, four, four, Some(ForwardCount::Twice)),
    ] {
        let entry = ServerEntry {
            identity: 7,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            ifindex: 3,
            weight: 5,
            up: true,
            local: false,
            forwarding: way,
        };
        assert_eq!(server_of(&server(&entry, Mac::default())), Some(entry));
    }
    let flags = |way| {
        let entry = ServerEntry {
            identity: 7,
            mac: Mac::default(),
            ifindex: 3,
            weight: 5,
            up: true,
            local: false,
            forwarding: way,
        };
        server(&entry, Mac::default())[SERVER_FLAGS_WORD]
    };
    assert!(same_forwarding(flags(nat(four, four)), flags(nat(four, six))));
    assert!(!same_forwarding(flags(nat(four, four)), flags(Forwarding::Link)));
    assert!(same_forwarding(0, flags(Forwarding::Link)));
}

#[test]
fn vips_and_endpoints_are_read_back_as_they_were_written() {
    let idle = IdleTicks { syn: 1, tcp: 2, half_closed: 5, closing: 3, udp: 4, udp_new: 6 };
    for address in ["192.0.2.100", "2001:db8::100"] {
        let key = VipKey { address: address.parse().unwrap(), port: 80, protocol: Protocol::Udp };
        let entry = Vip {
            id: 9,
            service: 3,
            announce: true,
            pick: Pick::Least,
            idle,
            own: 4095,
            stateless: true,
            affinity: None,
            handoff: None,
        };
        assert_eq!(vip_of(&vip(&key, &entry, 1)), Some((key, entry, 1)));
        assert_eq!(endpoint_key_of(&endpoint_key(&key)), Some(key));
    }
    let mac = Mac([2, 0xff, 3, 0, 0x80, 0]);
    assert_eq!(
        (mac_of(mac_bits(mac)), mac_of(mac_bits(Mac::default())), mac_of(0)),
        (Some(mac), Some(Mac::default()), None)
    );
    let behind = vec![ReplyOrigin { vip: 1, server: 2 }, ReplyOrigin { vip: 3, server: 4 }];
    assert_eq!(endpoint_of(&endpoint(&behind)), Some(behind));
}

#[test]
fn affinity_entry_round_trips() {
    let vip = |address: &str| VipKey { address: address.parse().unwrap(), port: 80, protocol: Protocol::Tcp };
    for (address, lens) in [("192.0.2.1", [1, 24, 32]), ("2001:db8::1", [56, 64, 128])] {
        for prefix_len in lens {
            let settings = Affinity { tag: 0xabcd, prefix_len, lifetime: 7 };
            let words = affinity(&vip(address), Some(settings));
            assert_eq!(affinity_of(&vip(address), &words), Some(settings));
        }
    }
    let mask = affinity(&vip("192.0.2.1"), Some(Affinity { tag: 0, prefix_len: 24, lifetime: 1 }));
    assert_eq!(mask[..2], [u64::MAX, 0xffff_ffff_ffff_ff00]);
    assert_eq!(affinity_of(&vip("192.0.2.1"), &affinity(&vip("192.0.2.1"), None)), None);
}

#[test]
fn handoff_entry_round_trips() {
    let in_force = HandoffState { generation: 77, ring_halves: 1 << 63 | 1 };
    for later in [RehandoffMode::Stay, RehandoffMode::Close, RehandoffMode::Rehandoff] {
        let terms = Handoff { mss: 1460, punt: 4095, held: 4094, later };
        let words = handoff(&terms, None, in_force);
        assert_eq!(handoff_of(&words), Some((terms, in_force)));
    }
    assert_eq!(handoff_of(&[0; HANDOFF_WORDS]), None);
    let key = RouteKey { host: 1, path: u64::MAX };
    assert_eq!(generation_of(&route_key(&key, 77)), Some(77));
    assert_eq!(generation_of(&[0; 3]), None);
}

#[test]
fn punted_frame_matches_c_layout() {
    let mut held = c::held {
        ifindex: 3,
        len: 4,
        reason: c::reason::REASON_REHANDOFF.0 as u16,
        server: 9,
        frame: [0; HELD_FRAME_MAX],
    };
    held.frame[..5].copy_from_slice(&[1, 2, 3, 4, 5]);
    let record: [u8; size_of::<c::held>()] = bytes(&held);
    let expected = PuntedFrame { ifindex: 3, reason: Reason::Rehandoff, server: 9, frame: &[1, 2, 3, 4] };
    assert_eq!(held_of(&record), Some(expected));
    assert_eq!(held_of(&record[..15]), None, "it has an end");
    assert_eq!(held_of(&record[..11]), None);
    held.reason = c::reason::REASON_MAX.0 as u16;
    let record: [u8; size_of::<c::held>()] = bytes(&held);
    assert_eq!(held_of(&record), None, "nobody knows what for");
}
