//! An agent's changes to its host for each method, and their exact removal.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use libbpf_rs::Link;

use crate::{Agent, l2_farm, refused, service, snapshot, status, tunnels, vips};

/// True if a host answers neighbour requests of `querying` for the address.
fn answers(querying: &Host, address: IpAddr) -> Result<bool> {
    querying.run(&["ip", if address.is_ipv4() { "-4" } else { "-6" }, "neigh", "flush", "all"])?;
    // Any packet makes the kernel send a neighbour request.
    querying.enter(|| -> Result<()> {
        let socket = UdpSocket::bind((Family::of(address).any(), 0))?;
        socket.send_to(b"?", (address, 9))?;
        Ok(())
    })??;
    let mut found = String::new();
    wait::until("the question is settled", || {
        found = querying.run(&["ip", "neigh", "show", "to", &address.to_string()])?;
        Ok(found.contains("lladdr") || found.contains("FAILED"))
    })?;
    Ok(found.contains("lladdr"))
}

#[test]
fn a_listed_server_has_the_addresses_and_is_silent_for_them() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let (director, server) = (farm.director(), farm.server(0));
    let before = snapshot(server)?;
    let config = service("web", &vips(&farm, 80), "method = \"l2\"", &server.address().to_string());
    let mut agent = Agent::start(server, &config, &[])?;
    let placed = status(server)?;
    assert_eq!(placed.addresses, Family::BOTH.map(|family| format!("{} on lo", farm.vip_in(family, 0))));
    assert!(placed.running && placed.programs.is_empty(), "{placed:?}");
    for family in Family::BOTH {
        assert!(!answers(director, farm.vip_in(family, 0))?, "{family}");
        assert!(answers(director, server.address_in(family))?, "{family}");
    }
    // IPv6 service addresses are deprecated: the host's own connections keep their source address.
    let source = server.run(&["ip", "-6", "route", "get", &director.address_in(Family::V6).to_string()])?;
    assert!(!source.contains(&farm.vip_in(Family::V6, 0).to_string()), "{source}");
    assert_eq!(agent.stop()?, 0);
    assert_eq!(snapshot(server)?, before);
    let left = status(server)?;
    assert!(!left.running && left.addresses.is_empty() && left.settings.is_empty(), "{left:?}");
    Ok(())
}

/// On an interface without address, the kernel may choose another interface's address as the sender
/// of ARP requests. Neighbours would then learn the service address at this host.
#[test]
fn link_without_address_asks_for_neighbours_as_the_server() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let (farm, _agent) = l2_farm()?;
    let server = farm.server(0);
    farm.answer_by_second_cable(server)?;
    server.run(&["ip", "-4", "addr", "flush", "dev", "eth1"])?;
    let questions = server.capture_network(0, "arp")?;
    server.run(&["ip", "route", "replace", &format!("{}/32", farm.client(0).address()), "dev", "eth1"])?;
    let url = format!("http://{}/", farm.client(0).address());
    assert!(server.curl(&["--max-time", "1", &url]).is_err(), "nobody has the client's address there");
    let asked = format!("who-has {} tell ", farm.client(0).address());
    let lines = questions.stop()?;
    let senders: BTreeSet<&str> = lines
        .iter()
        .filter_map(|line| line.split_once(&asked).and_then(|(_, rest)| rest.split(',').next()))
        .collect();
    assert_eq!(senders, BTreeSet::from([server.address().to_string().as_str()]), "{lines:?}");
    Ok(())
}

#[test]
fn a_server_that_is_to_be_found_answers() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let (director, server) = (farm.director(), farm.server(0));
    server.netns().sysctl(&[("ipv4/conf/all/arp_ignore", "1")])?;
    let before = snapshot(server)?;
    let addresses = vips(&farm, 80);
    let config = format!("[[service]]\nname = \"web\"\naddresses = {addresses:?}\ndiscover = \"arp\"\n");
    let (code, output) = refused(server, &config, &[])?;
    assert_eq!(code, 1, "{output}");
    assert!(output.contains(&server.address().to_string()) && output.contains("--service"), "{output}");
    assert_eq!(snapshot(server)?, before);
    let mut agent = Agent::start(server, &config, &["--service", "web"])?;
    for family in Family::BOTH {
        assert!(answers(director, farm.vip_in(family, 0))?, "{family}");
    }
    assert_eq!(agent.stop()?, 0);
    assert_eq!(snapshot(server)?, before);
    Ok(())
}

#[test]
fn existing_addresses_and_sysctls_are_left_alone() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    // Manually configured servers.
    let farm = Farm::builder().build()?;
    let server = farm.server(0);
    let before = snapshot(server)?;
    let config = service("web", &vips(&farm, 80), "method = \"l2\"", &server.address().to_string());
    let mut agent = Agent::start(server, &config, &[])?;
    assert_eq!(snapshot(server)?, before);
    let placed = status(server)?;
    assert!(placed.addresses.is_empty() && placed.settings.is_empty(), "{placed:?}");
    assert_eq!(agent.stop()?, 0);
    assert_eq!(snapshot(server)?, before);
    Ok(())
}

#[test]
fn nat_server_gets_no_changes() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let before = snapshot(server)?;
    let addresses = &vips(&farm, 80)[..1];
    let config = service("web", addresses, "method = \"nat\"", &server.address().to_string());
    let _agent = Agent::start(server, &config, &[])?;
    assert_eq!(snapshot(server)?, before);
    Ok(())
}

#[test]
fn agent_reload_applies_differences_and_invalid_file_changes_none() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let before = snapshot(server)?;
    let [vip, vip6] = vips(&farm, 80);
    let own = server.address().to_string();
    let with = |addresses: &[String]| service("web", addresses, "method = \"l2\"", &own);
    let mut agent = Agent::start(server, &with(std::slice::from_ref(&vip)), &[])?;
    let placed = |count: usize| {
        wait::until(&format!("{count} placed"), || Ok(status(server)?.addresses.len() == count))
    };
    placed(1)?;
    agent.write(&with(&[vip, vip6.clone()]))?;
    agent.process.sighup()?;
    placed(2)?;
    agent.write("rubbish")?;
    agent.process.sighup()?;
    agent.process.wait_for("nothing was changed", crate::LIMIT)?;
    placed(2)?;
    agent.write(&with(&[vip6]))?;
    agent.process.sighup()?;
    placed(1)?;
    wait::until("nothing has to be silent any more", || Ok(status(server)?.settings.is_empty()))?;
    assert_eq!(agent.stop()?, 0);
    assert_eq!(snapshot(server)?, before);
    Ok(())
}

#[test]
fn kept_state_is_removed_by_next_agent() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let before = snapshot(server)?;
    let config = service("web", &vips(&farm, 80), "method = \"l2\"", &server.address().to_string());
    let mut keeper = Agent::start(server, &config, &["--keep"])?;
    let (code, output) = refused(server, &config, &[])?;
    assert_eq!(code, 5, "{output}");
    assert!(output.contains(&format!("pid {}", keeper.process.pid())), "{output}");
    assert_eq!(keeper.stop()?, 0);
    assert_eq!(status(server)?.addresses.len(), 2);
    let mut agent = Agent::start(server, &config, &[])?;
    // The agent does not restore a sysctl that was changed by others meanwhile.
    server.netns().sysctl(&[("ipv4/conf/all/arp_announce", "1")])?;
    assert_eq!(agent.stop()?, 0);
    assert_eq!(server.run(&["cat", "/proc/sys/net/ipv4/conf/all/arp_announce"])?, "1\n");
    server.netns().sysctl(&[("ipv4/conf/all/arp_announce", "0")])?;
    assert_eq!(snapshot(server)?, before);
    Ok(())
}

#[test]
fn host_without_role_gets_an_error() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let config = service("web", &vips(&farm, 80), "method = \"l2\"", "192.0.2.99");
    let (code, output) = refused(server, &config, &[])?;
    assert_eq!(code, 1, "{output}");
    assert!(output.contains(&server.address().to_string()), "{output}");
    assert_eq!(output.lines().count(), 1, "{output}");
    let (code, output) = refused(server, &config, &["--host", "web9"])?;
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("\"web9\""), "{output}");
    let agent = Agent::start(server, &config, &["--host", "web1"])?;
    assert_eq!(status(server)?.addresses.len(), 2);
    drop(agent);
    Ok(())
}

/// Each of the agent's changes is removed in turn, and the agent restores it.
#[test]
fn removed_part_is_restored_by_agent() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let mut agent = Agent::start(server, &tunnels::config(&farm, ""), &[])?;
    let shown = status(server)?;
    for placed in &shown.addresses {
        let (address, interface) = placed.split_once(" on ").context("ADDRESS on INTERFACE")?;
        let list = ["ip", "-oneline", "address", "show", "dev", interface, "to", address];
        ensure!(!server.run(&list)?.is_empty(), "{placed}");
        server.run(&["ip", "address", "del", address, "dev", interface])?;
        wait::until(placed, || Ok(!server.run(&list)?.is_empty()))?;
    }
    for (name, was) in &shown.settings {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let value = || server.run(&["cat", &path]);
        let set = value()?;
        server.run(&["sh", "-c", &format!("echo {was} > {path}")])?;
        wait::until(name, || Ok(value()? == set))?;
    }
    let namespace = server.run(&["stat", "-L", "-c", "%i", "/proc/self/ns/net"])?;
    let pins = PathBuf::from(format!("/sys/fs/bpf/evener/server-{}", namespace.trim()));
    let pinned =
        || -> Result<BTreeSet<_>> { Ok(fs::read_dir(&pins)?.flatten().map(|pin| pin.file_name()).collect()) };
    let before = pinned()?;
    for link in before.iter().filter(|name| name.to_string_lossy().starts_with("link-")) {
        Link::open(pins.join(link))?.detach()?;
        wait::until("the program runs again", || Ok(status(server)?.programs == shown.programs))?;
    }
    fs::remove_dir_all(&pins)?;
    wait::until("all is pinned again", || Ok(pins.is_dir() && pinned()? == before))?;
    agent.process.kill9()?;
    agent.start_again()?;
    assert_eq!(status(server)?.programs, shown.programs);
    ensure!(
        !shown.addresses.is_empty() && !shown.settings.is_empty() && !shown.programs.is_empty(),
        "{shown:?}"
    );
    assert_eq!(agent.stop()?, 0);
    Ok(())
}
