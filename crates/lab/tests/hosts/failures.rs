//! Hosts that die or lose their link: exactly one other host answers for each of their addresses,
//! and gives the address back later.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evener_lab::evener::{PEERS_PORT, Plan, Team};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::workloads::load::Load;

use crate::{HASH, IN_TURN, all_whole, download, downloads, service, shares, unbroken};

on_both_engines! {
    a_dead_hosts_address_is_answered_and_given_back,
    a_dead_hosts_address_is_answered_and_given_back_over_ipv6,
    a_dead_daemons_address_is_answered_and_given_back,
}

on_one_engine! {
    two_of_six_hosts_may_die,
    a_split_network_has_one_owner_on_each_side,
    hosts_that_hear_nothing_claim_nothing_that_is_answered,
}

/// The packet engine ends with its daemon, so this test is for XDP only.
mod dead_for_long {
    use super::what_a_host_without_a_daemon_serves_goes_on;

    on_engine!(xdp: what_a_host_without_a_daemon_serves_goes_on);
}

fn what_a_host_without_a_daemon_serves_goes_on(engine: &str) -> Result<()> {
    let mut team = crate::team(engine, HASH, 3)?;
    let mut slow = downloads(&team)?;
    for by in 0..3 {
        slow.push(download(&team, by, |server| server == "web2")?);
    }
    team.hosts[1].daemon().kill9()?;
    wait::until("a peer owns its address", || Ok(team.owners(1, &[0, 2])?.len() == 1))?;
    answered(&team, service(&team, 1))?;
    ensure!(!shares(&team, service(&team, 1), 20)?.contains_key("web2"), "it gets nothing new");
    all_whole(slow)
}

/// Returns the MAC in the router's neighbour entry of an address. `None` while the entry is
/// incomplete.
fn neighbour(router: &Host, address: IpAddr) -> Result<Option<String>> {
    let line = router.run(&["ip", "neighbour", "show", &address.to_string()])?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "lladdr");
    Ok(words.nth(1).map(str::to_owned))
}

/// Waits until a new connection to an address is served.
fn answered(team: &Team, service: SocketAddr) -> Result<()> {
    wait::until(&format!("{service} is answered"), || {
        let load = Load { requests: Some(1), timeout: Duration::from_secs(1), ..Load::to(service) };
        Ok(load.run_on(team.farm.client(0))?.errors.total() == 0)
    })
}

fn a_dead_hosts_address_is_answered_and_given_back(engine: &str) -> Result<()> {
    a_host_dies(engine, Family::V4)
}

fn a_dead_hosts_address_is_answered_and_given_back_over_ipv6(engine: &str) -> Result<()> {
    a_host_dies(engine, Family::V6)
}

fn a_host_dies(engine: &str, family: Family) -> Result<()> {
    let plan = Plan { family, ..Plan::new(engine, HASH, 4) };
    let team = Team::start(Farm::builder().every_host(4).build()?, plan)?;
    let (router, dead) = (team.farm.router(), team.farm.server(1));
    let vip = team.farm.own_vip(team.plan.family, 1);
    let slow = downloads(&team)?;
    ensure!(neighbour(router, vip)?.as_deref() == Some(dead.mac()), "it answers for its own address");

    // A host that takes an address over announces the address: by ARP (RFC 5227, section 3), or by
    // a neighbour advertisement (RFC 4861, section 7.2.6).
    let (icmp_filter, told_to) = match family {
        Family::V4 => (format!("arp and host {vip}"), "ff:ff:ff:ff:ff:ff"),
        Family::V6 => ("icmp6 and ip6[40] == 136".to_owned(), "ff02::1:"),
    };
    let icmp_filter = router.capture(1, &icmp_filter)?;
    dead.unplug()?;
    wait::until("a peer answers for the address", || {
        Ok(neighbour(router, vip)?.is_some_and(|mac| mac != dead.mac()))
    })?;
    answered(&team, service(&team, 1))?;
    let announced = icmp_filter.stop()?;
    let is_it = |line: &String| line.contains(told_to) && line.contains(&vip.to_string());
    ensure!(announced.iter().any(is_it), "{announced:?}");
    ensure!(!shares(&team, service(&team, 0), 30)?.contains_key("web2"), "who is dead serves nothing");
    // Only connections that the dead host served end.
    all_whole(slow.into_iter().filter(|download| download.server != "web2").collect())
        .context("when the host died")?;

    dead.plug()?;
    let slow = downloads(&team)?;
    team.together()?;
    wait::until("the router knows that it is back", || {
        Ok(neighbour(router, vip)?.as_deref() == Some(dead.mac()))
    })?;
    ensure!(shares(&team, service(&team, 1), 40)?.contains_key("web2"), "it serves again");
    all_whole(slow).context("when it came back")
}

/// Each address of the dead hosts has one new owner, and all other hosts serve.
fn two_of_six_hosts_may_die(engine: &str) -> Result<()> {
    let team = crate::team(engine, HASH, 6)?;
    let (dead, alive) = ([1, 4], [0, 2, 3, 5]);
    let slow = downloads(&team)?;
    dead.iter().try_for_each(|host| team.farm.server(*host).unplug())?;
    wait::until("each address has one owner of those that live", || {
        let owners = (0..6).map(|address| team.owners(address, &alive)).collect::<Result<Vec<_>>>()?;
        Ok(owners.iter().all(|owners| owners.len() == 1))
    })?;
    let names = dead.map(|host| team.farm.server(host).name().to_owned());
    for address in 0..6 {
        answered(&team, service(&team, address))?;
        let shares = shares(&team, service(&team, address), 40)?;
        ensure!(
            shares.len() == alive.len() && names.iter().all(|name| !shares.contains_key(name)),
            "{shares:?}"
        );
    }
    all_whole(slow.into_iter().filter(|download| !names.contains(&download.server)).collect())?;
    dead.iter().try_for_each(|host| team.farm.server(*host).plug())?;
    team.together()
}

fn a_dead_daemons_address_is_answered_and_given_back(engine: &str) -> Result<()> {
    let mut team = crate::team(engine, HASH, 3)?;
    let (router, vip) = (team.farm.router().clone(), team.farm.own_vip(team.plan.family, 2));
    let mac = team.farm.server(2).mac().to_owned();
    team.hosts[2].daemon().kill9()?;
    wait::until("a peer answers for the address", || Ok(team.owners(2, &[0, 1])?.len() == 1))?;
    answered(&team, service(&team, 2))?;
    ensure!(neighbour(&router, vip)?.is_some_and(|now| now != mac), "its data plane has fallen silent");
    for host in 0..3 {
        shares(&team, service(&team, host), 10)?;
    }
    team.hosts[2].start_again()?;
    team.together()?;
    shares(&team, service(&team, 2), 10).map(drop)
}

/// Returns the MACs of all hosts that answer a broadcast ARP request for an address.
fn answers(team: &Team, address: IpAddr) -> Result<Vec<String>> {
    let router = team.farm.router();
    let capture = router.capture(1, "arp[6:2] = 2")?;
    let device = &router.interfaces()[1].name;
    router.ip(&[format!("neighbour flush dev {device}")])?;
    // Only the ARP reply matters, not the connection.
    let load = Load { requests: Some(1), timeout: Duration::from_secs(1), ..Load::to((address, 80).into()) };
    load.run_on(team.farm.client(0))?;
    let is_at = format!("Reply {address} is-at ");
    let mut macs: Vec<String> = capture
        .stop()?
        .iter()
        .filter_map(|line| line.split(&is_at).nth(1)?.split([',', ' ']).next().map(str::to_owned))
        .collect();
    macs.sort();
    macs.dedup();
    Ok(macs)
}

fn a_split_network_has_one_owner_on_each_side(engine: &str) -> Result<()> {
    let team = crate::team(engine, IN_TURN, 4)?;
    let hosts: Vec<&Host> = team.farm.servers().iter().collect();
    let (here, there) = hosts.split_at(2);
    let sides: [&[usize]; 2] = [&[0, 1], &[2, 3]];
    hosts[0].split(here, there)?;
    wait::until("each side has an owner for every address", || {
        let mut owned = true;
        for (side, address) in sides.iter().flat_map(|side| (0..4).map(move |address| (side, address))) {
            let owners = team.owners(address, side)?;
            ensure!(
                owners.len() <= 1,
                "the address of web{} has two owners on one side: {owners:?}",
                address + 1
            );
            owned &= owners.len() == 1;
        }
        Ok(owned)
    })?;
    for address in 0..4 {
        answered(&team, service(&team, address))?;
    }
    hosts[0].split(&[], &[])?;
    team.together()?;
    for (address, owner) in team.farm.servers().iter().enumerate() {
        assert_eq!(team.owners(address, &[0, 1, 2, 3])?, [address]);
        assert_eq!(answers(&team, team.farm.own_vip(team.plan.family, address))?, [owner.mac()]);
        unbroken(
            Load { requests: Some(8), timeout: LONG, ..Load::to(service(&team, address)) }
                .run_on(team.farm.client(0))?,
        )?;
    }
    Ok(())
}

fn hosts_that_hear_nothing_claim_nothing_that_is_answered(engine: &str) -> Result<()> {
    let team = crate::team(engine, IN_TURN, 3)?;
    let all = [0, 1, 2];
    team.farm.servers().iter().try_for_each(|host| host.deafen(PEERS_PORT, true))?;
    wait::until("nobody hears anybody", || {
        let peers = team.hosts.iter().map(|evener| evener.hosts()).collect::<Result<Vec<_>>>()?;
        Ok(peers.iter().flatten().all(|peer| peer.own || peer.state != "alive"))
    })?;
    // Hosts probe an address repeatedly before they claim it.
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(500));
        for address in all {
            assert_eq!(team.owners(address, &all)?, [address], "only who answers owns");
        }
    }
    for (address, owner) in team.farm.servers().iter().enumerate() {
        assert_eq!(answers(&team, team.farm.own_vip(team.plan.family, address))?, [owner.mac()]);
        answered(&team, service(&team, address)).context("without a word between hosts")?;
    }
    team.farm.servers().iter().try_for_each(|host| host.deafen(PEERS_PORT, false))?;
    team.together()
}
