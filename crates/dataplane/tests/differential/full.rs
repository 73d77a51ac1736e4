//! Full tables and exhausted ports: the tests check which session is evicted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evener_core::path::decide::{Memory, Reason};
use evener_core::path::ports::{FIRST_PORT, POOLS, PORTS};
use evener_core::path::sessions::{SessionKey, State, Value};
use evener_core::path::tables::VIP_IDS;
use evener_dataplane::Engine;

use crate::world::{Core, NOW, SEED};
use crate::{HOOKS, Kernel, frames, meet, sessions, world};

/// The eviction order: embryonic sessions, then closing sessions, then sessions of another service
/// above its share. Other sessions stay.
#[test]
fn a_full_table_gives_places_and_then_goes_by_the_hash_alike() {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    const FIN: u8 = 0x11;
    for hook in HOOKS {
        let Some(c) = Kernel::start(hook) else { return };
        let mut core = Core::new();
        for (flow, v6) in (0..4000u32).flat_map(|flow| [(flow, false), (flow, true)]) {
            let (client, port) = ((flow % 250) as u8, (1000 + flow / 250) as u16);
            let service = world::L2[if flow < 1500 { 1 } else { 2 }];
            let flags: &[u8] = match flow % 7 {
                0 => &[SYN],
                1 => &[SYN, ACK, FIN],
                _ => &[SYN, ACK],
            };
            c.pass(&mut core, flow % 3);
            for flags in flags {
                meet(&mut core, &c, &frames::segment(v6, service, client, port, *flags)).unwrap();
            }
        }
        let (reasons, _) = c.counted();
        assert_eq!(core.reasons, reasons);
        assert!(reasons[&Reason::TableFull] > 1000 && reasons[&Reason::TableFull] < 6000, "{reasons:?}");
        let (ours, theirs) = (core.memory(), c.engine.memory());
        assert_eq!(sessions(&ours, core.now), sessions(&theirs, c.engine.now()));
        for vip in 0..VIP_IDS as u16 {
            let shares = [ours, theirs].map(|memory| memory.sessions.shares());
            assert_eq!(shares[0].assured(vip), shares[1].assured(vip));
        }
        let of = |memory: &Memory<'_>| {
            let shares = memory.sessions.shares();
            (0..VIP_IDS as u16)
                .filter(|vip| shares.own(*vip) > 0 && shares.assured(*vip) >= shares.own(*vip))
                .count()
        };
        assert!(of(&ours) >= 4, "in both versions both services have their share");
    }
}

/// Every port belongs to an established connection.
#[test]
fn no_port_is_left_alike() {
    for hook in HOOKS {
        let Some(c) = Kernel::start(hook) else { return };
        let mut core = Core::new();
        for memory in [core.memory(), c.engine.memory()] {
            for (server, number) in
                (0..POOLS as u16).flat_map(|server| (0..120_000u32).map(move |n| (server, n)))
            {
                let client = Ipv4Addr::from_bits(number).into();
                let key = SessionKey { client, port: 1, vip: 1 };
                let value = Value::new(server, State::Established, NOW + 100_000);
                let _ = memory.ports.allocate(server, key.into(), key.hash(SEED), value, NOW);
            }
        }
        for (v6, client) in [false, true].into_iter().flat_map(|v6| (0..40).map(move |client| (v6, client))) {
            meet(&mut core, &c, &frames::segment(v6, world::SOURCE_NAT, client, 1000, 0x02)).unwrap();
        }
        assert_eq!(core.reasons, c.counted().0);
        // The third server is the director itself, which needs no port.
        assert_eq!([Reason::NoPort, Reason::Local].map(|reason| core.reasons[&reason]), [54, 26]);
    }
}

/// Embryonic sessions take all places and ports, four of each source. Then a few sources send more.
#[test]
fn a_source_holds_no_more_places_than_others_alike() {
    for hook in HOOKS {
        let Some(c) = Kernel::start(hook) else { return };
        let mut core = Core::new();
        for (number, server) in (0..60_000u32).flat_map(|number| (0..POOLS as u16).map(move |s| (number, s)))
        {
            let (v4, v6) = (0x0a00_0000 + (number << 6), 0x2001_0db8 << 96 | u128::from(number) << 70);
            let client = if number % 2 == 0 {
                IpAddr::from(Ipv4Addr::from_bits(v4))
            } else {
                IpAddr::from(Ipv6Addr::from_bits(v6))
            };
            let key = SessionKey { client, port: 1, vip: 1 };
            let (hash, value) =
                (key.hash(SEED), Value::new(server, State::UdpAnswered, NOW + 100_000 - number));
            for memory in [core.memory(), c.engine.memory()] {
                let _ = memory.ports.allocate(server, key.into(), hash, value, NOW);
                if server == 0 {
                    let _ = memory.sessions.insert(key, hash, value, NOW);
                }
            }
        }
        let flows = (0..14).flat_map(|client| (1_000..1_080).map(move |port| (client, port)));
        for ((client, port), v6) in flows.flat_map(|flow| [(flow, false), (flow, true)]) {
            meet(&mut core, &c, &frames::segment(v6, world::SOURCE_NAT, client, port, 0x02)).unwrap();
        }
        assert_eq!(core.reasons, c.counted().0);
        let (ours, theirs) = (core.memory(), c.engine.memory());
        assert_eq!(sessions(&ours, core.now), sessions(&theirs, c.engine.now()));
        let mut changed = 0;
        for (server, port) in
            (0..POOLS as u16).flat_map(|s| (FIRST_PORT..FIRST_PORT + PORTS as u16).map(move |port| (s, port)))
        {
            let holder =
                |memory: &Memory<'_>| memory.ports.holder(server, port, NOW).map(|(holder, _)| holder);
            assert_eq!(holder(&ours), holder(&theirs), "port {port} towards server {server}");
            changed += usize::from(holder(&ours).is_some_and(|holder| holder.session.port != 1));
        }
        assert!(changed > 500, "{changed} ports have gone over");
    }
}
