//! Malicious frames while clients are served.

use std::net::Ipv4Addr;

use anyhow::Result;
use etherparse::PacketBuilder;
use evener_core::net::wire::Mac;
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::Evener;
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::harness::wait::LONG;
use evener_lab::workloads::load::Load;

use crate::{file, shares, unbroken};

on_both_engines! {
    malformed_frames_are_counted_and_harm_nobody,
    a_flood_that_fills_the_table_breaks_nothing,
}

const CLIENT: [u8; 4] = [198, 18, 0, 1];

/// Returns a SYN to the service.
fn syn(src: Mac, dst: Mac, client: [u8; 4], port: u16, vip: Ipv4Addr) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(src.0, dst.0)
        .ipv4(client, vip.octets(), 64)
        .tcp(port, WEB_PORT, 1, 64_000)
        .syn();
    let mut frame = Vec::new();
    builder.write(&mut frame, &[]).unwrap();
    frame
}

/// Returns damaged copies of a valid frame, each with its drop reason.
fn crimes(good: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let with = |changes: &[(usize, u8)]| {
        let mut frame = good.to_vec();
        changes.iter().for_each(|&(at, byte)| frame[at] = byte);
        frame
    };
    let tag = [0x81, 0x00, 0x00, 0x05];
    let tagged = [&good[..12], &tag, &tag, &tag, &good[12..]].concat();
    vec![
        ("truncated", with(&[(17, 20 + 8)])[..14 + 28].to_vec()),
        ("bad_length", with(&[(16, 0xff), (17, 0xff)])),
        ("ip_options", with(&[(14, 0x46)])),
        ("bad_length", with(&[(20, 0x20), (21, 0)])),
        ("fragment_overlap", with(&[(20, 0x00), (21, 1)])),
        ("multicast_source", with(&[(6, 0x01)])),
        ("bad_flags", with(&[(47, 0x03)])),
        ("bad_version", with(&[(14, 0x65)])),
        ("vlan", tagged),
        ("martian_source", with(&[(26, 127)])),
        ("martian_source", with(&[(26, 224)])),
    ]
}

fn malformed_frames_are_counted_and_harm_nobody(engine: &str) -> Result<()> {
    const ROUNDS: usize = 300;
    let farm = Farm::builder().servers(2).build()?;
    let mut evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(2, LONG)?;
    let rogue = farm.director().raw_to(0)?;
    let to: Mac = farm.director().mac().parse()?;
    let good = syn(rogue.mac(), to, CLIENT, 5000, farm.vip(0));
    let crimes = crimes(&good);
    let load = Load { connections: 4, path: "/2k".to_owned(), timeout: LONG, ..Load::to(farm.service()) };
    let loads = [false, true].map(|keep_alive| Load { keep_alive, ..load.clone() }.start_on(farm.client(0)));
    let mut noise = 1u64;
    for _ in 0..ROUNDS {
        for (_, frame) in &crimes {
            rogue.send(frame)?;
        }
        // Random damage: changed bytes, or a frame that is cut off.
        for _ in 0..5 {
            let mut frame = good.clone();
            for _ in 0..4 {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = 12 + (noise >> 33) as usize % (frame.len() - 12);
                frame[at] = (noise >> 56) as u8;
            }
            frame.truncate(14 + (noise >> 40) as usize % (frame.len() - 13));
            rogue.send(&frame)?;
        }
    }
    for load in loads {
        unbroken(load.stop()?)?;
    }
    let packets = evener.status()?.packets;
    for (name, _) in &crimes {
        // A veth drops frames only if the receiver is slow, which a busy machine may be.
        assert!(packets[*name] >= ROUNDS as u64 / 2, "{name}: {packets:?}");
    }
    assert!(evener.sessions()?.iter().all(|session| !session.client.starts_with("127.")));
    assert!(evener.daemon().status()?.is_none(), "the daemon lives");
    Ok(())
}

fn a_flood_that_fills_the_table_breaks_nothing(engine: &str) -> Result<()> {
    const FLOOD: u32 = 12_000;
    let farm = Farm::builder().servers(2).build()?;
    let text = file::listed(engine, &farm, "").replace("sessions_max = 65536", "sessions_max = 1024");
    let evener = Evener::start(farm.director(), &text)?;
    evener.wait_for_servers(2, LONG)?;
    let mut old: Vec<_> =
        (0..20).map(|_| HttpConnection::open(farm.client(0), farm.service())).collect::<Result<_>>()?;
    let before: Vec<_> = old.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    // Spoofed packets come from the router.
    let router = farm.router().raw(1)?;
    let to: Mac = farm.director().mac().parse()?;
    for number in 0..FLOOD {
        let [_, b, c, d] = number.to_be_bytes();
        router.send(&syn(
            router.mac(),
            to,
            [198, 18 + (b & 1), c, d],
            1024 + number as u16 % 50_000,
            farm.vip(0),
        ))?;
    }
    let status = evener.status()?;
    assert!(status.sessions > 1024 && status.sessions_embryonic > 1024, "{status:?}");
    // A new session falls back to the hash if another thread takes its place twice at that moment.
    assert!(
        status.packets["table_full"] < u64::from(FLOOD) / 100,
        "first packets give way to others: {status:?}"
    );
    let after: Vec<_> = old.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    assert_eq!(before, after, "what was established stays");
    let served = shares(&farm, 200)?;
    assert_eq!(served.values().sum::<u64>(), 200);
    assert_eq!(served.len(), 2, "{served:?}");
    Ok(())
}
