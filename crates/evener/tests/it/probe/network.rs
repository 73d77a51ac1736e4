//! The network around a director, as reported by its kernel.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;
use evener::io::network::path_mtu::{self, PathMtu};
use evener::io::network::{self, NextHop, resolve, watch};
use evener_core::net::wire::Mac;
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;

use crate::probe::{TIMEOUT, decapsulator, on};

#[test]
fn the_network_is_read_and_watched() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().server_lans(2).servers(2).build()?;
    let director = farm.director();
    // The connection is refused, but the kernel now knows the router's MAC.
    director.enter(|| TcpStream::connect("192.0.2.1:9")).unwrap().unwrap_err();
    let network = on(director, network::read).unwrap();
    let named = |name: &str| network.interfaces.iter().find(|(_, found)| found.name == name).unwrap();
    let (&eth0, found) = named("eth0");
    assert_eq!(found.mac.to_string(), director.mac());
    for (family, prefix_len) in [(Family::V4, 24), (Family::V6, 64)] {
        assert!(found.addresses.contains(&(director.address_in(family), prefix_len)), "{found:?}");
    }
    assert!(found.up && found.ethernet && !found.loopback && found.mtu == 1500, "{found:?}");
    let (_, lo) = named("lo");
    assert!(lo.loopback && !lo.ethernet);
    let router = |family| {
        network.gateways.iter().find(|r| r.address == farm.router().interfaces()[1].address_in(family))
    };
    assert_eq!(router(Family::V4).unwrap().mac, Some("02:00:c0:00:02:01".parse()?));
    assert!(router(Family::V6).is_some(), "{:?}", network.gateways);
    for family in Family::BOTH {
        assert_eq!(network.route_to(farm.vip_in(family, 0)), Some(eth0));
        assert_eq!(network.route_to(farm.server(1).address_in(family)), Some(*named("eth1").0));
        assert_eq!(network.route_to(farm.client(0).address_in(family)), None);
    }

    changes_are_told(director, || director.ip(&["addr add 192.0.2.77/32 dev eth0".to_owned()]));
    changes_are_told(director, || director.ip(&["addr add 2001:db8::77/128 dev eth0".to_owned()]));
    changes_are_told(director, || director.ip(&["route add 203.0.113.7/32 via 192.0.2.1".to_owned()]));
    changes_are_told(director, || director.ip(&["route add 2001:db8:77::/48 via 2001:db8::1".to_owned()]));
    changes_are_told(director, || {
        director.ip(&["neigh add 192.0.2.78 lladdr 02:00:00:00:00:78 dev eth0".to_owned()])
    });
    changes_are_told(director, || director.ip(&["link set eth1 down".to_owned()]));
    let network = on(director, network::read).unwrap();
    assert!(network.is_local(Ipv4Addr::new(192, 0, 2, 77).into()));
    assert!(network.is_local("2001:db8::77".parse()?));
    Ok(())
}

/// Quiet time before a change, longer than the minimum time between two notifications of [`watch`].
const QUIET: Duration = Duration::from_millis(200);

fn changes_are_told(host: &Host, change: impl FnOnce() -> Result<()> + Send) {
    on(host, async || {
        let mut changes = watch().await.unwrap();
        // Notifications of the kernel's own changes, such as neighbour states, must not be mistaken
        // for the change below.
        while within(QUIET, changes.recv()).await.is_some() {}
        change().unwrap();
        assert_eq!(within(TIMEOUT, changes.recv()).await, Some(Some(())));
    });
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Returns the next hop to an address after the kernel has resolved its MAC.
pub(crate) fn resolved(host: &Host, address: IpAddr) -> NextHop {
    let hop = || on(host, network::read).unwrap().next_hop(address).expect("there is a route");
    let first = hop();
    let station = first.gateway.unwrap_or(address);
    host.enter(|| resolve(first.ifindex, station)).unwrap().unwrap();
    let started = Instant::now();
    loop {
        let now = hop();
        if now.mac.is_some() || started.elapsed() > TIMEOUT {
            return now;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn kernel_resolves_requested_neighbour() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let lan = Farm::builder().build()?;
    let remote = Farm::builder().remote().build()?;
    for family in Family::BOTH {
        let hop = resolved(lan.director(), lan.server(0).address_in(family));
        assert_eq!((hop.mac, hop.gateway), (Some(lan.server(0).mac().parse()?), None));
        let router = &remote.router().interfaces()[1];
        let hop = resolved(remote.director(), remote.server(0).address_in(family));
        assert_eq!((hop.mac, hop.gateway), (Some(router.mac.parse()?), Some(router.address_in(family))));
        assert_eq!(hop.mtu, 1500);
    }
    let network = on(lan.director(), network::read)?;
    assert_eq!(network.next_hop(lan.director().address().into()), None);
    // A host that does not answer has no known MAC, whatever the kernel has cached.
    let silent = resolved(lan.director(), Ipv4Addr::new(192, 0, 2, 99).into());
    assert_eq!((silent.mac, silent.gateway), (None, None));
    Ok(())
}

#[test]
fn router_icmp_sets_tunnel_mtu() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().remote().build()?;
    let director = farm.director();
    farm.narrow_behind_directors(1300)?;
    for family in Family::BOTH {
        let (from, to) = (director.address_in(family), farm.server(0).address_in(family));
        let mac: Mac = resolved(director, to).mac.expect("the router answers");
        for (len, expected) in [(1300, None), (1400, Some(PathMtu { from, to, mtu: 1300 }))] {
            let frame = decapsulator::ip_in_ip(director.mac().parse()?, mac, from, to, len);
            let received = on(director, async || {
                let mut messages = path_mtu::listen().unwrap();
                director.raw(0).unwrap().send(&frame).unwrap();
                let limit = if expected.is_some() { TIMEOUT } else { Duration::from_millis(200) };
                within(limit, messages.recv()).await.flatten()
            });
            assert_eq!(received, expected, "{len} bytes over {family}");
        }
    }
    Ok(())
}
