//! Tunnel packets that the server must not decapsulate, and the handling of ECN marks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use etherparse::{IpFragOffset, Ipv4Header, NetHeaders, PacketBuilder, PacketHeaders};
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;

use crate::tunnels::config;
use crate::wrapper::{Kind, Tunnel};
use crate::{Agent, status};

/// Returns a SYN from a client to a service.
fn syn(from: IpAddr, to: IpAddr, port: u16) -> Vec<u8> {
    let packet = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64),
        _ => panic!("one family"),
    };
    let packet = packet.tcp(40_000, port, 1, 1024).syn();
    let mut bytes = Vec::new();
    packet.write(&mut bytes, &[]).unwrap();
    bytes
}

/// Changes the first header of an IPv4 packet and corrects its checksum.
fn changed(packet: &[u8], change: impl FnOnce(&mut Ipv4Header)) -> Vec<u8> {
    let (mut header, rest) = Ipv4Header::from_slice(packet).unwrap();
    change(&mut header);
    let mut bytes = Vec::new();
    header.write_raw(&mut bytes).unwrap();
    // `write_raw` does not update the checksum.
    bytes[10..12].copy_from_slice(&[0, 0]);
    let sum: u32 = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

/// Sends packets one by one. Each packet must be counted for exactly the expected reason.
struct Trial<'a> {
    farm: &'a Farm,
    hook: &'a str,
}

impl Trial<'_> {
    fn expect(&self, reason: &str, what: &str, send: impl FnOnce() -> Result<()>) -> Result<()> {
        let server = self.farm.server(0);
        let before = status(server)?.packets;
        send()?;
        wait::until(&format!("{what} is counted as {reason} ({})", self.hook), || {
            Ok(status(server)?.packets[reason] > before[reason])
        })?;
        let mut expected = before;
        *expected.get_mut(reason).unwrap() += 1;
        let mut after = status(server)?.packets;
        // Replies to decapsulated SYNs have a separate counter.
        after.insert("clamped".into(), 0);
        expected.insert("clamped".into(), 0);
        assert_eq!(after, expected, "{what} ({})", self.hook);
        Ok(())
    }
}

fn refusals(hook: &str) -> Result<()> {
    let farm = Farm::builder().bare().build()?;
    let (director, server) = (farm.director(), farm.server(0));
    director.ip(&["addr add 192.0.2.77/24 dev eth0".into()])?;
    let _agent = Agent::start(server, &config(&farm, ""), &["--hook", hook])?;
    let trial = Trial { farm: &farm, hook };
    let [client, client6] = Family::BOTH.map(|family| farm.client(0).address_in(family));
    let [vip, vip6] = Family::BOTH.map(|family| farm.vip_in(family, 0));
    let (good, good6) = (syn(client, vip, 80), syn(client6, vip6, 80));
    let to = |family| server.address_in(family);
    let open = |kind, family| Tunnel::open(&farm, kind, director.address_in(family), to(family));
    let (ipip, gue) = (open(Kind::Ipip, Family::V4)?, open(Kind::Gue, Family::V4)?);
    let (ipip6, gue6) = (open(Kind::Ipip, Family::V6)?, open(Kind::Gue, Family::V6)?);

    for (name, tunnel) in [("ipip", &ipip), ("gue", &gue), ("ipip6", &ipip6), ("gue6", &gue6)] {
        trial.expect("decapsulated", &format!("IPv4 by {name}"), || tunnel.send(&good))?;
        trial.expect("decapsulated", &format!("IPv6 by {name}"), || tunnel.send(&good6))?;
        trial.expect("not_own_service", "another port", || tunnel.send(&syn(client, vip, 81)))?;
        trial.expect("not_own_service", "another address", || {
            tunnel.send(&syn(client6, server.address_in(Family::V6), 80))
        })?;
        for martian in ["127.0.0.1", "0.1.2.3", "224.0.0.5", "255.255.255.255"] {
            let martian = IpAddr::V4(martian.parse()?);
            trial.expect("inner_martian", &martian.to_string(), || tunnel.send(&syn(martian, vip, 80)))?;
        }
        for martian in ["::", "::1", "ff02::1", "fe80::1", "::ffff:192.0.2.9"] {
            let martian = IpAddr::V6(martian.parse::<Ipv6Addr>()?);
            trial.expect("inner_martian", &martian.to_string(), || tunnel.send(&syn(martian, vip6, 80)))?;
        }
        trial.expect("inner_martian", "the service itself", || tunnel.send(&syn(vip, vip, 80)))?;
        for (protocol, inside) in [(4, &good), (41, &good6), (47, &good)] {
            let nested = nested(client, vip, protocol, inside);
            trial.expect("nested", &format!("protocol {protocol} inside"), || tunnel.send(&nested))?;
        }
        let too_long = changed(&good, |header| header.total_len += 1);
        trial.expect("malformed", "a length beyond the tunnel's", || tunnel.send(&too_long))?;
        let too_short = changed(&good, |header| header.total_len = 19);
        trial.expect("malformed", "a length below its header's", || tunnel.send(&too_short))?;
        trial.expect("malformed", "half a header", || tunnel.send(&good[..19]))?;
        trial.expect("malformed", "half an IPv6 header", || tunnel.send(&good6[..39]))?;
        let fragment = changed(&good, |header| {
            header.fragment_offset = IpFragOffset::try_new(100).unwrap();
        });
        trial.expect("decapsulated", "an inner fragment", || tunnel.send(&fragment))?;
    }
    // The inner version must match the outer protocol number.
    trial.expect("malformed", "IPv6 as IPv4", || ipip.send_as(false, &good6))?;
    trial.expect("malformed", "IPv4 as IPv6", || ipip.send_as(true, &good))?;

    let stranger = Tunnel::open(&farm, Kind::Ipip, Ipv4Addr::new(192, 0, 2, 77).into(), to(Family::V4))?;
    trial.expect("unlisted_source", "a stranger's", || stranger.send(&good))?;
    trial.expect("unlisted_source", "a stranger's IPv6", || stranger.send(&good6))?;

    let headers: [(&str, &[u8], &str); 6] = [
        ("gue_header", &[0x40, 4, 0, 0], "version 1"),
        ("gue_header", &[0x20, 4, 0, 0], "a control message"),
        ("gue_header", &[0, 4, 0x80, 0], "a flag"),
        ("gue_header", &[0, 17, 0, 0], "UDP inside"),
        ("decapsulated", &[2, 4, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9], "words to skip"),
        ("malformed", &[0, 4], "half a header"),
    ];
    for (reason, header, what) in headers {
        let packet = if header.len() < 4 { header.to_vec() } else { [header, &good].concat() };
        trial.expect(reason, what, || gue.send_as(false, &packet))?;
        trial.expect(reason, what, || gue6.send_as(false, &packet))?;
    }
    outer_fragments(&trial, &good)?;
    congestion(&trial, &ipip, &good)
}

/// Returns an IPv4 packet with this protocol and payload.
fn nested(from: IpAddr, to: IpAddr, protocol: u8, inside: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { panic!("IPv4") };
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv4(from.octets(), to.octets(), 64);
    builder.write(&mut bytes, protocol.into(), inside).unwrap();
    bytes
}

fn outer_fragments(trial: &Trial<'_>, good: &[u8]) -> Result<()> {
    let (director, server) = (trial.farm.director(), trial.farm.server(0));
    // Sent directly into the server's interface: a bridge would drop malformed frames.
    let raw = server.raw_to(0)?;
    let mac = server.mac().parse::<evener_core::net::wire::Mac>()?.0;
    let frame = |change: &dyn Fn(&mut Ipv4Header)| {
        let outer = nested(director.address().into(), server.address().into(), 4, good);
        let outer = changed(&outer, change);
        [&mac[..], &raw.mac().0, &[8, 0], &outer].concat()
    };
    trial.expect("outer_fragment", "a first fragment", || {
        raw.send(&frame(&|header| header.more_fragments = true))
    })?;
    trial.expect("outer_fragment", "a later fragment", || {
        raw.send(&frame(&|header| header.fragment_offset = IpFragOffset::try_new(100).unwrap()))
    })?;
    trial.expect("malformed", "an outer length beyond the frame's", || {
        raw.send(&frame(&|header| header.total_len += 1))
    })?;
    // The unchanged frame is valid.
    trial.expect("decapsulated", "the same, whole", || raw.send(&frame(&|_| {})))
}

/// RFC 6040, section 4.2. The host's stack counts the arriving packets and verifies their
/// checksums.
fn congestion(trial: &Trial<'_>, tunnel: &Tunnel, good: &[u8]) -> Result<()> {
    let server = trial.farm.server(0);
    let ecns = ["not-ect", "ect1", "ect0", "ce"];
    server.run(&[
        "nft",
        "add table inet seen; add chain inet seen in { type filter hook input priority 0; }",
    ])?;
    for ecn in ecns {
        server.run(&["nft", &format!("add counter inet seen {}", ecn.replace('-', "_"))])?;
        let rule =
            format!("add rule inet seen in ip ecn {ecn} tcp dport 80 counter name {}", ecn.replace('-', "_"));
        server.run(&["nft", &rule])?;
    }
    let seen = |ecn: &str| -> Result<bool> {
        let text = server.run(&["nft", &format!("list counter inet seen {}", ecn.replace('-', "_"))])?;
        Ok(!text.contains("packets 0 "))
    };
    // Rows: outer ECN field. Columns: inner ECN field. Both in the order of `ecns`.
    let results = [
        ["not-ect", "ect1", "ect0", "ce"],
        ["not-ect", "ect1", "ect1", "ce"],
        ["not-ect", "ect1", "ect0", "ce"],
        ["", "ce", "ce", "ce"],
    ];
    for (outer, row) in results.iter().enumerate() {
        for (inner, wanted) in row.iter().enumerate() {
            tunnel.mark(outer as u32)?;
            let packet = changed(good, |header| header.ecn = (inner as u8).try_into().unwrap());
            let what = format!("{} in {}", ecns[inner], ecns[outer]);
            if wanted.is_empty() {
                trial.expect("congestion", &what, || tunnel.send(&packet))?;
                continue;
            }
            server.run(&["nft", "reset counters"])?;
            trial.expect("decapsulated", &what, || tunnel.send(&packet))?;
            wait::until(&format!("{what} arrives as {wanted}"), || seen(wanted))?;
        }
    }
    tunnel.mark(0)
}

#[test]
fn server_refusals_are_counted_by_tc() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    refusals("tc")
}

#[test]
fn server_refusals_are_counted_by_generic_xdp() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    refusals("generic")
}

#[test]
fn crafted_packets_match_their_description() {
    let (from, to) = (IpAddr::from([203, 0, 113, 1]), IpAddr::from([192, 0, 2, 1]));
    let packet = changed(&syn(from, to, 80), |header| header.ecn = 3.try_into().unwrap());
    let headers = PacketHeaders::from_ip_slice(&packet).unwrap();
    let Some(NetHeaders::Ipv4(header, _)) = headers.net else { panic!("IPv4") };
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    assert_eq!(header.ecn.value(), 3);
}
