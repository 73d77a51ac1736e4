//! Malicious packets of layers three and four, with every method, while clients are served.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use evener_lab::cases;
use evener_lab::clients::fragments::Order;
use evener_lab::clients::udp_echo::{Client, Echo};
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::workloads::load::Load;

use crate::stage::{Plan, Stage, Way};
use crate::unbroken;

by_every_way! { forgeries_are_counted_and_harm_nobody, a_flood_of_fragments_changes_nothing }

mod tunnels {
    use super::{Result, Way};

    on_both_engines! { strangers_by_ipip, strangers_by_gue }

    fn strangers_by_ipip(engine: &str) -> Result<()> {
        super::strangers_get_nothing_through_a_server(engine, Way::Ipip)
    }

    fn strangers_by_gue(engine: &str) -> Result<()> {
        super::strangers_get_nothing_through_a_server(engine, Way::Gue)
    }
}

/// Eight bytes of a TCP header: the ports and the sequence number.
const TINY: &str = "hex 9c 40 00 50 00 00 00 01";
/// Source addresses that no host has, so that no host answers.
const UNUSED: [&str; 2] = ["198.18.0.1", "2001:db8:dead::1"];

/// Returns pairs of a drop reason and a packet that must be dropped for it, from `src` to service
/// `vip`.
fn crimes(family: Family, src: &str, vip: &str) -> Vec<(&'static str, String)> {
    match family {
        Family::V4 => vec![
            ("tiny_fragment", format!("ip {src} > {vip} id=9 frag=0x2000 proto=6 {TINY}")),
            ("fragment_overlap", format!("ip {src} > {vip} id=9 frag=0x0001 proto=6 payload 64")),
            ("fragment", format!("ip {src} > {vip} id=9 frag=0x2000 icmp echo id=1 payload 56")),
            ("bad_length", format!("ip {src} > {vip} id=9 frag=0x1fff proto=17 payload 64")),
            (
                "icmp_unknown",
                format!("ip {src} > {vip} icmp too-big mtu=1280 ip {vip} > {src} tcp 81 > 999 A"),
            ),
            ("icmp_unknown", format!("ip {src} > {vip} icmp unreach ip {src} > {vip} tcp 999 > 80 A")),
            ("forged_mtu", format!("ip {src} > {vip} icmp too-big mtu=60 ip {vip} > {src} tcp 80 > 999 A")),
            ("martian_source", format!("ip 127.0.0.1 > {vip} icmp echo id=1")),
            ("not_service", format!("ip {src} > {vip} ip {src} > {vip} ip {src} > {vip} tcp 999 > 80 S")),
        ],
        Family::V6 => vec![
            ("tiny_fragment", format!("ip6 {src} > {vip} frag6 id=9 more=1 next=6 {TINY}")),
            ("fragment_overlap", format!("ip6 {src} > {vip} frag6 id=9 off=1 next=6 payload 64")),
            ("fragment", format!("ip6 {src} > {vip} frag6 id=9 more=1 icmp echo id=1 payload 56")),
            ("bad_length", format!("ip6 {src} > {vip} frag6 id=9 off=8191 next=17 payload 64")),
            (
                "icmp_unknown",
                format!("ip6 {src} > {vip} icmp too-big mtu=1280 ip6 {vip} > {src} tcp 81 > 999 A"),
            ),
            (
                "forged_mtu",
                format!("ip6 {src} > {vip} icmp too-big mtu=600 ip6 {vip} > {src} tcp 80 > 999 A"),
            ),
            ("martian_source", format!("ip6 ::1 > {vip} icmp echo id=1")),
            ("extension_headers", format!("ip6 {src} > {vip} route type=0 left=1 tcp 999 > 80 S")),
            ("extension_headers", format!("ip6 {src} > {vip} dst hop tcp 999 > 80 S")),
            ("not_service", format!("ip6 {src} > {vip} ip6 {src} > {vip} ip6 {src} > {vip} tcp 999 > 80 S")),
        ],
    }
}

/// Returns the frames of packets as the router sends them to the director.
fn frames(stage: &Stage, packets: impl Iterator<Item = String>) -> Result<Vec<Vec<u8>>> {
    let (router, director) = (stage.farm.router().raw(1)?, stage.farm.director().mac());
    packets.map(|packet| cases::frame(&format!("eth {} > {director} {packet}", router.mac()))).collect()
}

fn source(family: Family) -> &'static str {
    if family == Family::V4 { UNUSED[0] } else { UNUSED[1] }
}

fn forgeries_are_counted_and_harm_nobody(engine: &str, way: Way) -> Result<()> {
    const ROUNDS: u64 = 200;
    for family in Family::BOTH {
        let mut stage = Plan::new(engine, way, family).stage(2)?;
        let crimes = crimes(family, source(family), &stage.service.ip().to_string());
        let frames = frames(&stage, crimes.iter().map(|(_, packet)| packet.clone()))?;
        let load = Load { connections: 4, path: "/2k".to_owned(), ..Load::to(stage.service) };
        let load = load.start_on(stage.client());
        wait::until("clients are served", || Ok(load.requests() > 20))?;
        // Sent from the other end of the director's cable: a bridge would drop some frames.
        let rogue = stage.farm.director().raw_to(0)?;
        for _ in 0..ROUNDS {
            frames.iter().try_for_each(|frame| rogue.send(frame))?;
        }
        unbroken(load.stop()?).with_context(|| format!("{family}"))?;
        for (reason, packet) in &crimes {
            assert!(stage.counted(reason)? >= ROUNDS / 2, "{family} {reason}: {packet}");
        }
        assert!(stage.evener.daemon().status()?.is_none(), "the daemon lives");
    }
    Ok(())
}

fn a_flood_of_fragments_changes_nothing(engine: &str, way: Way) -> Result<()> {
    const FLOOD: u32 = 12_000;
    const PORT: u16 = 5353;
    for family in Family::BOTH {
        let plan = Plan::new(engine, way, family);
        let farm = way.builder().servers(2).build()?;
        for server in farm.servers() {
            // First fragments reach servers, whose stacks wait for the rest. The default timeout is
            // half a minute.
            server.netns().sysctl(&[("ipv4/ipfrag_time", "1"), ("ipv6/ip6frag_time", "1")])?;
        }
        let file = plan.file_with_udp(&farm, PORT);
        let mut stage = plan.start_with(farm, &file, 4)?;
        let (src, vip) = (source(family), stage.service.ip());
        // First fragments without later ones, and later fragments without a first one.
        let packets = (0..FLOOD).map(|id| match (family, id % 2) {
            (Family::V4, 0) => {
                format!("ip {src} > {vip} id={id} frag=0x2000 udp 999 > {PORT} len=99 payload 56")
            }
            (Family::V4, _) => format!("ip {src} > {vip} id={id} frag=0x2008 proto=17 payload 64"),
            (Family::V6, 0) => {
                format!("ip6 {src} > {vip} frag6 id={id} more=1 udp 999 > {PORT} len=99 payload 56")
            }
            (Family::V6, _) => format!("ip6 {src} > {vip} frag6 id={id} off=8 more=1 next=17 payload 64"),
        });
        let frames = frames(&stage, packets)?;
        let rogue = stage.farm.director().raw_to(0)?;
        let load = Load { connections: 4, timeout: LONG, ..Load::to(stage.service) }.start_on(stage.client());
        let flood = || frames.iter().try_for_each(|frame| rogue.send(frame));
        flood()?;
        let before = stage.evener.daemon().memory()?;
        flood()?;
        flood()?;
        let after = stage.evener.daemon().memory()?;
        assert!(after < before + (8 << 20), "{family}: {before} bytes, then {after}");
        unbroken(load.stop()?).with_context(|| format!("{family}"))?;
        wait::until(
            "fragments without a first one are given up",
            || Ok(stage.counted("fragment_lost")? > 0),
        )?;

        let service = SocketAddr::new(vip, PORT);
        let address =
            |host: &Host| SocketAddr::new(if way.is_nat() { host.address_in(family) } else { vip }, PORT);
        let echoes = stage.farm.servers().iter().map(|host| Echo::start(host, address(host)));
        let _echoes: Vec<Echo> = echoes.collect::<Result<_>>()?;
        let client = Client::open(stage.client(), service, Duration::from_secs(1))?;
        client.request(&"x".repeat(1300)).with_context(|| format!("{family}"))?;
        // During a flood, fragments may be dropped. They must pass afterwards.
        for order in Order::ALL {
            let text = "x".repeat(4000);
            wait::until("fragments come through again", || {
                Ok(client.request_truncated(&stage.farm, stage.client(), &text, order).is_ok())
            })
            .with_context(|| format!("{family} {order:?}"))?;
        }
    }
    Ok(())
}

/// Servers decapsulate packets from listed directors only. The inner packet must be from a client
/// to the service.
fn strangers_get_nothing_through_a_server(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let stage = Plan::new(engine, way, family).stage(1)?;
        let (server, vip) = (stage.farm.server(0), stage.service.ip());
        let (router, to) = (stage.farm.router().raw(2)?, server.address_in(family));
        let director = stage.farm.director().address_in(family).to_string();
        let client = stage.client().address_in(family);
        let ip = if family == Family::V4 { "ip" } else { "ip6" };
        let (stranger, martian) = (source(family), if family == Family::V4 { "127.0.0.1" } else { "::1" });
        let answers = |outer_src: &str, inner: &str| -> Result<bool> {
            let around = if way == Way::Gue { "udp 50000 > 6080 gue" } else { "" };
            let capture = server.capture(0, &format!("src host {vip} or src host {martian}"))?;
            let words =
                format!("eth {} > {} {ip} {outer_src} > {to} {around} {inner}", router.mac(), server.mac());
            router.send(&cases::frame(&words)?)?;
            Ok(!capture.stop()?.is_empty())
        };
        let syn = |src: &str, dst: &str| format!("{ip} {src} > {dst} tcp 999 > 80 S");
        let (client, service) = (client.to_string(), vip.to_string());
        let own = server.address_in(family).to_string();
        assert!(answers(&director, &syn(&client, &service))?, "{family}: the director's is answered");
        assert!(!answers(stranger, &syn(&client, &service))?, "{family}: a stranger");
        assert!(!answers(&director, &syn(martian, &service))?, "{family}: a martian");
        assert!(!answers(&director, &syn(&client, &own))?, "{family}: not the service");
        let nested = format!("{ip} {director} > {service} {}", syn(&client, &service));
        assert!(!answers(&director, &nested)?, "{family}: a tunnel in a tunnel");
    }
    Ok(())
}
