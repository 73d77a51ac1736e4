//! LSMAC's discovery: every host that answers ARP for the address is a server (section 3.1), within
//! limits.

use std::net::{Ipv4Addr, UdpSocket};

use anyhow::Result;
use evener_core::net::wire::{ETHERTYPE_ARP, Mac};
use evener_lab::evener::{Evener, Server};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::workloads::load::Load;
use zerocopy::IntoBytes;

use crate::file;
use crate::{shares, shares_of, split, unbroken};

on_both_engines! {
    servers_come_and_go,
    servers_on_two_networks,
    two_services_at_two_addresses,
}

on_one_engine! {
    who_may_join_is_the_operators_choice,
    nobody_speaks_for_the_director_or_a_router,
    a_listed_server_that_is_found_is_one,
    a_mac_that_moves_is_not_followed_at_once,
}

fn servers_come_and_go(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().servers(2).answering().build()?;
    let evener = Evener::start(farm.director(), &file::discovered(engine, &farm, ""))?;
    let found = evener.wait_for_servers(2, LONG)?;
    for (server, host) in found.iter().zip(farm.servers()) {
        assert_eq!((server.name.as_str(), server.source.as_str()), (host.mac(), "discovered"));
    }
    assert_eq!(shares(&farm, 8)?, split([4, 4]));

    let added = farm.add_server()?;
    evener.wait_for_servers(3, LONG)?;
    assert_eq!(shares(&farm, 9)?, split([3, 3, 3]));

    added.unplug()?;
    let is_silent = |server: &Server| {
        server.state == "down" && server.reason.as_deref().is_some_and(|reason| reason.starts_with("silent"))
    };
    evener.wait_for("server silent", LONG, |all| all.iter().any(is_silent))?;
    assert_eq!(shares(&farm, 8)?, split([4, 4]));
    evener.wait_for("server removed", LONG, |all| all.len() == 2)?;
    added.plug()?;
    evener.wait_for_servers(3, LONG)?;
    assert_eq!(shares(&farm, 9)?, split([3, 3, 3]));
    Ok(())
}

fn who_may_join_is_the_operators_choice(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).answering().build()?;
    let allow = format!("allow = [\"{}\", \"{}\"]\n", farm.server(0).mac(), farm.server(1).address());
    let mut evener = Evener::start(farm.director(), &file::discovered(engine, &farm, &allow))?;
    evener.wait_for_servers(2, LONG)?;
    wait::until("web3 is refused", || Ok(evener.status()?.refused["not_allowed"] > 0))?;
    assert_eq!(shares(&farm, 8)?, split([4, 4]));
    assert_eq!(evener.stop()?, 0);

    let evener = Evener::start(farm.director(), &file::discovered(engine, &farm, "servers_max = 2\n"))?;
    evener.wait_for_servers(2, LONG)?;
    wait::until("a third is refused", || Ok(evener.status()?.refused["full"] > 0))?;
    assert_eq!(evener.servers()?.len(), 2);
    assert_eq!(shares(&farm, 8)?.len(), 2);
    Ok(())
}

fn nobody_speaks_for_the_director_or_a_router(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).directors(2).answering().build()?;
    let (director, rogue) = (farm.director(), farm.directors()[1].raw(0)?);
    let router: Ipv4Addr = farm.router().interfaces()[1].address;
    // A packet makes the director resolve its router's MAC.
    director.enter(|| UdpSocket::bind("0.0.0.0:0")?.send_to(b"hello", (router, 9)))??;
    let router_mac = farm.router().interfaces()[1].mac.clone();
    wait::until("the director knows its router", || {
        Ok(director.run(&["ip", "neigh"])?.contains(&router_mac))
    })?;

    let mut evener = Evener::start(director, &file::discovered(engine, &farm, ""))?;
    let before = evener.wait_for_servers(2, LONG)?;
    let load = Load::to(farm.service()).start_on(farm.client(0));
    let to: Mac = director.mac().parse()?;
    let multicast = Mac([1, 0, 0x5e, 0, 0, 1]);
    let short = [to.as_bytes(), rogue.mac().as_bytes(), &ETHERTYPE_ARP.to_be_bytes(), &[0; 20]].concat();
    let crimes = ["claims_director", "claims_router", "multicast_mac", "malformed"];
    wait::until("every false answer is refused", || {
        rogue.claim(director.address(), rogue.mac(), to)?;
        rogue.claim(router, rogue.mac(), to)?;
        rogue.claim(farm.vip(0), multicast, to)?;
        rogue.send(&short)?;
        let refused = evener.status()?.refused;
        Ok(crimes.iter().all(|crime| refused[*crime] > 0))
    })?;
    unbroken(load.stop()?)?;
    let names = |servers: Vec<evener_lab::evener::Server>| -> Vec<_> {
        servers.into_iter().map(|server| (server.name, server.mac)).collect()
    };
    assert_eq!(names(evener.servers()?), names(before));
    let log = evener.daemon().log();
    assert_eq!(log.matches("that is the director's own address").count(), 1, "told once: {log}");
    Ok(())
}

fn a_listed_server_that_is_found_is_one(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).answering().build()?;
    let file = file::discovered(engine, &farm, "") + &file::server(farm.server(0), 3);
    let evener = Evener::start(farm.director(), &file)?;
    let servers = evener.wait_for_servers(2, LONG)?;
    let sources: Vec<_> = servers.iter().map(|server| server.source.as_str()).collect();
    assert!(sources.contains(&"listed") && sources.contains(&"discovered"), "{servers:?}");
    assert_eq!(shares(&farm, 8)?, split([6, 2]));
    Ok(())
}

fn a_mac_that_moves_is_not_followed_at_once(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).directors(2).answering().build()?;
    let rogue = farm.directors()[1].raw(0)?;
    let file = file::discovered(engine, &farm, "discover_rounds = 2\n") + &file::servers(farm.servers());
    let mut evener = Evener::start(farm.director(), &file)?;
    evener.wait_for_servers(2, LONG)?;
    let to: Mac = farm.director().mac().parse()?;
    let (address, mac) = (farm.server(0).address(), farm.server(0).mac().to_owned());
    wait::until("the claim is logged", || {
        rogue.claim(address, rogue.mac(), to)?;
        Ok(evener.daemon().log().contains("not followed"))
    })?;
    for _ in 0..20 {
        rogue.claim(address, rogue.mac(), to)?;
        assert_eq!(evener.server("web1")?.mac.as_deref(), Some(mac.as_str()));
    }
    assert_eq!(shares(&farm, 8)?, split([4, 4]));

    farm.server(0).unplug()?;
    wait::until("who answers in the place of a server that is gone is followed", || {
        rogue.claim(address, rogue.mac(), to)?;
        Ok(evener.server("web1")?.mac == Some(rogue.mac().to_string()))
    })
}

fn servers_on_two_networks(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(4).server_lans(2).answering().build()?;
    let file = file::discovered(engine, &farm, "");
    let file = file.replacen("[engine]\n", "[engine]\ninterfaces = [\"eth0\", \"eth1\"]\n", 1);
    let evener = Evener::start(farm.director(), &file)?;
    evener.wait_for_servers(4, LONG)?;
    assert_eq!(shares(&farm, 12)?, split([3, 3, 3, 3]));
    Ok(())
}

fn two_services_at_two_addresses(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).vips(2).directors(1).answering().build()?;
    let second = (farm.vip(1), 80).into();
    let file = file::discovered(engine, &farm, "")
        + &file::service("second", second, file::DISCOVER)
        + file::ALWAYS_UP;
    let evener = Evener::start(farm.director(), &file)?;
    evener.wait_for_servers(4, LONG)?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    assert_eq!(shares_of(&farm, second, 6)?, split([3, 3]));
    let connections: Vec<_> =
        evener.services()?.into_iter().map(|service| (service.name, service.connections)).collect();
    assert_eq!(connections, [("web".to_owned(), 4), ("second".to_owned(), 6)]);
    Ok(())
}
