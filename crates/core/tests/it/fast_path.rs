//! The fast path decides as the slow one does: the same bytes, the same verdict, the same sessions
//! and counts.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::sync::atomic::Ordering::Relaxed;

use evener_core::net::packet::Checksum;
use evener_core::net::wire::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN, TCP_URG};
use evener_core::path::tables::{Forwarding, Handoff, RehandoffMode};
use proptest::prelude::*;

use crate::world::{DIRECTOR, ROUTER, SERVER, World, ways};

const VIP: [u8; 4] = [192, 0, 2, 100];
const PORT: u16 = 80;
const PSH: u8 = 0x08;

/// A client's packet, and what is wrong with it.
#[derive(Clone, Debug)]
struct Sent {
    client: u8,
    udp: bool,
    flags: u8,
    sequence: u32,
    payload: usize,
    port: u16,
    from_server: bool,
    ticks: u32,
    /// One byte of the frame, and what it becomes.
    changed: Option<(usize, u8)>,
    /// Bytes behind the packet, or that are missing of it.
    padding: i8,
}

fn sent() -> impl Strategy<Value = Sent> {
    let flags = prop_oneof![
        8 => Just(TCP_ACK),
        3 => Just(TCP_ACK | PSH),
        4 => Just(TCP_SYN),
        1 => Just(TCP_SYN | TCP_ACK),
        1 => Just(TCP_FIN | TCP_ACK),
        1 => Just(TCP_RST),
        1 => Just(TCP_ACK | TCP_URG),
        1 => any::<u8>(),
    ];
    // A mark is a kilobyte, and 64 of them are near.
    let sequence = prop_oneof![6 => 0u32..3_000, 2 => 0u32..200_000, 1 => any::<u32>()];
    // After two seconds a UDP flow lasts.
    let ticks = prop_oneof![6 => Just(0u32), 3 => 1u32..40, 1 => 40u32..140, 2 => 2_000u32..2_300];
    let changed = prop_oneof![6 => Just(None), 2 => (0usize..54, any::<u8>()).prop_map(Some)];
    let padding = prop_oneof![6 => Just(0i8), 2 => -30i8..30];
    let port = prop_oneof![9 => Just(PORT), 1 => Just(81u16)];
    let ends = (0u8..4, any::<bool>(), prop::bool::weighted(0.2), port);
    let rest = (flags, sequence, 0usize..40, ticks, changed, padding);
    (ends, rest).prop_map(
        |((client, udp, from_server, port), (flags, sequence, payload, ticks, changed, padding))| Sent {
            client,
            udp,
            flags,
            sequence,
            payload,
            port,
            from_server,
            ticks,
            changed,
            padding,
        },
    )
}

impl Sent {
    fn frame(&self, endpoint: Option<([u8; 4], u16)>) -> Vec<u8> {
        let client = ([203, 0, 113, self.client], 40_000u16);
        let (mac, from, to) = match endpoint.filter(|_| self.from_server) {
            Some(endpoint) => (SERVER, endpoint, client),
            None => (ROUTER, client, (VIP, self.port)),
        };
        let transport = if self.udp { 8 } else { 20 } + self.payload;
        let mut frame = [&DIRECTOR.0[..], &mac.0, &[8, 0, 0x45, 0]].concat();
        frame.extend((20 + transport as u16).to_be_bytes());
        frame.extend([0, 1, 0x40, 0, 64, if self.udp { 17 } else { 6 }, 0, 0]);
        frame.extend(from.0.into_iter().chain(to.0));
        frame.extend([from.1, to.1].map(u16::to_be_bytes).concat());
        match self.udp {
            true => frame.extend((transport as u16).to_be_bytes().into_iter().chain([0, 0])),
            false => {
                frame.extend(self.sequence.to_be_bytes().into_iter().chain([0, 0, 0, 9, 0x50, self.flags]));
                frame.extend([1, 0, 0, 0, 0, 0]);
            }
        }
        frame.extend(vec![b'x'; self.payload]);
        if let Some((at, byte)) = self.changed
            && let Some(place) = frame.get_mut(at)
        {
            *place = byte;
        }
        frame.resize(frame.len().saturating_add_signed(self.padding.into()), 0);
        frame
    }
}

/// All that is remembered and counted.
fn remembered(world: &World, now: u32) -> (Vec<String>, Vec<u64>, Vec<u64>) {
    let memory = world.memory();
    let mut sessions: Vec<_> = memory.sessions.list(now).map(|session| format!("{session:x?}")).collect();
    sessions.sort();
    let active = memory.counts.active.iter().map(|count| count.load(Relaxed)).collect();
    (sessions, active, memory.sessions.shares().0.iter().map(|count| count.load(Relaxed)).collect())
}

fn decide_alike(worlds: [&World; 2], story: &[Sent]) -> Result<(), TestCaseError> {
    let endpoint = worlds[0].tables.endpoints.keys().next().and_then(|key| match key.address {
        std::net::IpAddr::V4(address) => Some((address.octets(), key.port)),
        std::net::IpAddr::V6(_) => None,
    });
    let mut now = 1_000;
    for sent in story {
        now += sent.ticks;
        let frame = sent.frame(endpoint);
        let short = worlds[0].decide(&frame, Checksum::Whole, now);
        let long = worlds[1].slow_path(&frame, Checksum::Whole, now);
        prop_assert_eq!(short, long, "of {:?}", sent);
    }
    prop_assert_eq!(remembered(worlds[0], now), remembered(worlds[1], now));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn fast_and_slow_path_agree(
        way in 0usize..16,
        idle in prop_oneof![1u32..200, 2_500u32..9_000],
        up in any::<bool>(),
        story in prop::collection::vec(sent(), 1..60),
    ) {
        let ways = ways(false);
        let world = || {
            let mut world = World::new((VIP, PORT).into(), ways[way % ways.len()]);
            world.tables.servers.values_mut().for_each(|server| server.up = up);
            world.tables.vips.values_mut().for_each(|vip| {
                (vip.idle.tcp, vip.idle.udp, vip.idle.udp_new, vip.idle.syn) = (idle, idle, idle, idle);
            });
            world
        };
        decide_alike([&world(), &world()], &story)?;
    }

    #[test]
    fn fast_and_slow_path_agree_with_handoff(
        later in prop::sample::select(vec![RehandoffMode::Stay, RehandoffMode::Close]),
        own in 0u16..2,
        story in prop::collection::vec(sent(), 1..60),
    ) {
        let world = || {
            let mut world = World::among_hosts((VIP, PORT).into(), Forwarding::Link);
            let handoff = Handoff { mss: 1400, punt: 0, held: 0, later };
            world.tables.vips.values_mut().filter(|vip| vip.id == 1).for_each(|vip| {
                vip.handoff = Some(handoff);
                vip.own *= own;
            });
            world
        };
        let worlds = [world(), world()];
        // A connection that begins with a cookie can't be made here.
        worlds.iter().for_each(|world| world.establish([203, 0, 113, 1].into(), 40_000, 1_000));
        decide_alike([&worlds[0], &worlds[1]], &story)?;
    }

    #[test]
    fn fast_and_slow_path_agree_on_every_host(story in prop::collection::vec(sent(), 1..60)) {
        let world = || World::among_hosts((VIP, PORT).into(), Forwarding::Link);
        decide_alike([&world(), &world()], &story)?;
    }
}
