//! A service address in the servers' network, while clients arrive on another interface of the
//! director.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::evener::Evener;
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;

use crate::stage::Way;
use crate::told::{doctor, is_logged};
use crate::{file, shares_of, split};

on_both_engines! {
    clients_may_come_by_any_interface,
    an_interface_that_comes_up_later_is_one_more,
}

on_one_engine! {
    where_packets_are_not_seen_is_said,
}

/// Timeout of a client's attempt.
const TRY: Duration = Duration::from_millis(300);

/// Returns a farm whose director has clients on eth0 and servers on eth1.
fn farm(way: Way) -> Result<Farm> {
    let farm = Farm::builder().servers(2).routed().build()?;
    if way == Way::L2 {
        farm.forward_on_directors()?;
        for server in farm.servers() {
            server
                .netns()
                .sysctl(&[("ipv4/conf/all/arp_ignore", "1"), ("ipv4/conf/all/arp_announce", "2")])?;
            let addresses = Family::BOTH.map(|family| {
                let bits = if family == Family::V4 { 32 } else { 128 };
                format!("addr add {}/{bits} dev lo", service(&farm, family).ip())
            });
            server.ip(&addresses)?;
        }
    }
    Ok(farm)
}

fn service(farm: &Farm, family: Family) -> SocketAddr {
    (farm.own_vip(family, 0), WEB_PORT).into()
}

/// Returns the director's next hop to the clients.
fn router(farm: &Farm, family: Family) -> IpAddr {
    farm.router().interfaces()[1].address_in(family)
}

fn configuration(engine: &str, farm: &Farm, way: Way, family: Family) -> String {
    let servers = farm.servers().iter().map(|host| {
        format!("[[service.server]]\nname = \"{}\"\naddress = \"{}\"\n", host.name(), host.address_in(family))
    });
    file::engine(engine)
        + &file::service("web", service(farm, family), way.keys())
        + file::ALWAYS_UP
        + &servers.collect::<String>()
}

fn clients_may_come_by_any_interface(engine: &str) -> Result<()> {
    for way in [Way::L2, Way::Nat] {
        let farm = farm(way)?;
        // Without a default route, which replies with `nat` may always use.
        let clients = Family::BOTH
            .map(|family| format!("route add {} via {}", farm.client_prefix(family), router(&farm, family)));
        farm.director().ip(&clients)?;
        farm.director().ip(&["route del default".into(), "route del ::/0".into()])?;
        for family in Family::BOTH {
            let mut evener = Evener::start(farm.director(), &configuration(engine, &farm, way, family))?;
            evener.wait_for_servers(2, LONG)?;
            assert_eq!(shares_of(&farm, service(&farm, family), 4)?, split([2, 2]), "{way:?}, {family}");
            assert_eq!(evener.status()?.interfaces, ["eth0", "eth1"]);
            assert_eq!(evener.stop()?, 0);
        }
    }
    Ok(())
}

fn an_interface_that_comes_up_later_is_one_more(engine: &str) -> Result<()> {
    let farm = farm(Way::L2)?;
    let director = farm.director();
    director.ip(&["link set eth0 down".into()])?;
    let mut evener = Evener::start(director, &configuration(engine, &farm, Way::L2, Family::V4))?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(evener.status()?.interfaces, ["eth1"]);
    director
        .ip(&["link set eth0 up".into(), format!("route add default via {}", router(&farm, Family::V4))])?;
    wait::until("packets are taken from both", || Ok(evener.status()?.interfaces == ["eth0", "eth1"]))?;
    is_logged(&mut evener, &["INFO", "packets are received from this interface too", "eth0"])?;
    assert_eq!(shares_of(&farm, service(&farm, Family::V4), 4)?, split([2, 2]));
    Ok(())
}

fn where_packets_are_not_seen_is_said(engine: &str) -> Result<()> {
    let farm = farm(Way::L2)?;
    let service = service(&farm, Family::V4);
    let open = configuration(engine, &farm, Way::L2, Family::V4);
    let named = open.replacen("[engine]\n", "[engine]\ninterfaces = [\"eth1\"]\n", 1);
    let evener = Evener::start(farm.director(), &named)?;
    evener.wait_for_servers(2, LONG)?;
    let client = SocketAddr::new(farm.client(0).address_in(Family::V4), 40_000);
    let explained = || evener.command(&["explain", &client.to_string(), &service.to_string()]);
    let output = explained()?.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(
        output.contains(&format!("but by this host's routes {} is reached by eth0", client.ip())),
        "{output}"
    );
    let output = doctor(farm.director(), &named)?;
    ensure!(!output.contains("arrive on eth0"), "nobody has come yet: {output}");

    let done = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        scope.spawn(|| {
            farm.client(0).enter(|| {
                while !done.load(Relaxed) {
                    let _ = TcpStream::connect_timeout(&service, TRY);
                }
            })
        });
        let output = doctor(farm.director(), &named);
        done.store(true, Relaxed);
        output
    })?;
    ensure!(output.contains(&format!("FAIL web Packets for {service} arrive on eth0")), "{output}");

    evener.reload(&open)?;
    assert_eq!(evener.status()?.interfaces, ["eth0", "eth1"]);
    assert_eq!(shares_of(&farm, service, 4)?, split([2, 2]));
    let output = explained()?;
    ensure!(!output.contains("behind eth0"), "{output}");
    let output = doctor(farm.director(), &open)?;
    ensure!(!output.contains("arrive on"), "{output}");
    Ok(())
}
