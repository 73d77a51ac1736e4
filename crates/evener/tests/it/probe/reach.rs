//! Probes of servers by tunnel, NAT and IPv6, beyond MAC addressing with IPv4.

use std::net::SocketAddr;

use anyhow::Result;
use evener::io::probe::{Adjacency, ProbePath, Target};
use evener_core::net::Encapsulation;
use evener_core::net::wire::Mac;
use evener_core::pool::HealthKind;
use evener_core::pool::health::Failure;
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::network::family::Family;

use crate::probe::network::resolved;
use crate::probe::{
    SHORT, TIMEOUT, decapsulator, get, http, nobody, on, probed, resets_sent, target_in, text,
};

#[test]
fn servers_are_probed_over_ipv6() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let mut farm = Farm::builder().servers(2).build()?;
    let director = farm.director().clone();
    let [web1, web2] = [0, 1].map(|number| target_in(Family::V6, &farm, number, 80));
    probed(&director, &web1, &HealthKind::Tcp, TIMEOUT).unwrap();
    probed(&director, &web1, &http("/who", Some("web1")), TIMEOUT).unwrap();
    probed(&director, &web2, &http("/who", Some("web2")), TIMEOUT).unwrap();
    assert_eq!(probed(&director, &web1, &get("/nothing"), TIMEOUT), Err(Failure::Status(404)));
    let closed = target_in(Family::V6, &farm, 0, 81);
    assert_eq!(probed(&director, &closed, &HealthKind::Tcp, TIMEOUT), Err(Failure::Refused));
    farm.stop_web(0)?;
    assert_eq!(probed(&director, &web1, &get("/healthz"), TIMEOUT), Err(Failure::Refused));
    let late = text(probed(&director, &nobody(&web1), &HealthKind::Tcp, SHORT));
    assert_eq!(late, "no answer to SYN within 1s");
    assert_eq!(resets_sent(&director), 0, "the director's own stack keeps out of it");
    Ok(())
}

#[test]
fn servers_by_nat_are_probed_at_their_own_address() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let mut farm = Farm::builder().routed().servers(2).server_lans(2).build()?;
    let director = farm.director().clone();
    for family in Family::BOTH {
        let destination = farm.service_in(family);
        let at = |number: usize, port: u16| {
            let to = SocketAddr::new(farm.server(number).address_in(family), port);
            Target { destination, way: ProbePath::Direct { to } }
        };
        probed(&director, &at(0, 80), &HealthKind::Tcp, TIMEOUT).unwrap();
        probed(&director, &at(0, 80), &http("/who", Some("web1")), TIMEOUT).unwrap();
        probed(&director, &at(1, 80), &http("/who", Some("web2")), TIMEOUT).unwrap();
        assert_eq!(probed(&director, &at(1, 81), &HealthKind::Tcp, TIMEOUT), Err(Failure::Refused));
        let arp = text(probed(&director, &at(0, 80), &HealthKind::Arp, TIMEOUT));
        assert!(arp.starts_with("ARP can't probe"), "{arp}");
    }
    farm.stop_web(1)?;
    let to = SocketAddr::new(farm.server(1).address().into(), 80);
    let stopped = Target { destination: farm.service(), way: ProbePath::Direct { to } };
    assert_eq!(probed(&director, &stopped, &get("/"), TIMEOUT), Err(Failure::Refused));
    Ok(())
}

/// Returns a remote server behind a tunnel. The outer packets and the service address can be of
/// different IP versions.
fn by_tunnel(farm: &Farm, encapsulation: Encapsulation, outer: Family, inner: Family, port: u16) -> Target {
    let director = farm.director();
    let network = on(director, evener::io::network::read).unwrap();
    let (from, to) = (director.address_in(outer), farm.server(0).address_in(outer));
    let found = resolved(director, to);
    let own_mac = network.interfaces[&found.ifindex].mac;
    let hop = Adjacency { ifindex: found.ifindex, mac: found.mac.expect("the router answers"), own_mac };
    let destination = SocketAddr::new(farm.vip_in(inner, 0), port);
    let source = director.address_in(inner);
    Target { destination, way: ProbePath::Tunnel { hop, source, encapsulation, from, to } }
}

#[test]
fn tunnel_servers_are_probed_through_tunnel() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let mut farm = Farm::builder().remote().build()?;
    let director = farm.director().clone();
    let ways = [Encapsulation::Ipip, Encapsulation::Gue].into_iter().flat_map(|encapsulation| {
        Family::BOTH.map(|outer| Family::BOTH.map(|inner| (encapsulation, outer, inner))).concat()
    });
    let targets: Vec<_> = ways
        .map(|(encapsulation, outer, inner)| {
            (
                format!("{encapsulation}, {inner} in {outer}"),
                by_tunnel(&farm, encapsulation, outer, inner, 80),
            )
        })
        .collect();
    let late = text(probed(&director, &targets[0].1, &HealthKind::Tcp, SHORT));
    assert_eq!(late, "no answer to SYN within 1s", "nobody takes them out of the tunnel");
    decapsulator::start(farm.server(0))?;
    for (way, target) in &targets {
        let result = probed(&director, target, &http("/who", Some("web1")), TIMEOUT);
        assert!(result.is_ok(), "{way}: {result:?}");
    }
    let closed = by_tunnel(&farm, Encapsulation::Ipip, Family::V4, Family::V4, 81);
    assert_eq!(probed(&director, &closed, &HealthKind::Tcp, TIMEOUT), Err(Failure::Refused));
    let ProbePath::Tunnel { hop, source, encapsulation, from, to } = targets[0].1.way else { unreachable!() };
    let hop = Adjacency { mac: Mac([2, 0, 0, 0, 0, 9]), ..hop };
    let astray = Target { way: ProbePath::Tunnel { hop, source, encapsulation, from, to }, ..targets[0].1 };
    let late = text(probed(&director, &astray, &get("/"), SHORT));
    assert_eq!(late, "no answer to SYN within 1s");
    farm.stop_web(0)?;
    for (way, target) in &targets {
        assert_eq!(probed(&director, target, &get("/"), TIMEOUT), Err(Failure::Refused), "{way}");
    }
    assert_eq!(resets_sent(&director), 0, "the director's own stack keeps out of it");
    Ok(())
}
