//! Decapsulated packets, with every combination of headers.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result};
use evener_lab::clients::transfer::there_and_back;
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;

use evener_lab::evener::Evener;

use crate::wrapper::{Kind, Tunnel, Wrapper, cable};
use crate::{Agent, Program, refused, service, snapshot, status, vips};

/// Returns a configuration with services behind tunnels to the first server's IPv4 and IPv6
/// addresses.
pub(crate) fn config(farm: &Farm, keys: &str) -> String {
    let (director, server) = (farm.director(), farm.server(0));
    let directors = Family::BOTH.map(|family| director.address_in(family).to_string());
    let tunnel = format!("method = \"tunnel\"\n{keys}");
    format!("[farm]\ndirectors = {directors:?}\n\n")
        + &service("web", &vips(farm, 80), &tunnel, &server.address().to_string())
        + &service("web6", &vips(farm, 8080), &tunnel, &server.address_in(Family::V6).to_string())
}

fn url(farm: &Farm, family: Family, page: &str) -> String {
    format!("http://{}/{page}", SocketAddr::new(farm.vip_in(family, 0), 80))
}

fn every_combination(hook: &str) -> Result<()> {
    let farm = Farm::builder().bare().build()?;
    cable(&farm)?;
    let (director, server) = (farm.director(), farm.server(0));
    let before = snapshot(server)?;
    let mut agent = Agent::start(server, &config(&farm, "mtu = 1400"), &["--hook", hook])?;
    let programs = status(server)?.programs;
    assert!(programs.contains(&Program { interface: "eth0".into(), hook: hook.into() }), "{programs:?}");
    for (kind, outer) in [Kind::Ipip, Kind::Gue].into_iter().flat_map(|k| Family::BOTH.map(|f| (k, f))) {
        let tunnel = Tunnel::open(&farm, kind, director.address_in(outer), server.address_in(outer))?;
        let _wrapper = Wrapper::start(&farm, tunnel)?;
        for inner in Family::BOTH {
            let what = || format!("{inner} in {kind:?} over {outer}");
            let who = director.curl(&[&url(&farm, inner, "who")]).with_context(what)?;
            assert_eq!(who, "web1\n", "{}", what());
            let big = director.curl(&[
                "--output",
                "/dev/null",
                "--write-out",
                "%{size_download}",
                &url(&farm, inner, "108k"),
            ]);
            assert_eq!(big.with_context(what)?, "108000", "{}", what());
        }
    }
    let packets = status(server)?.packets;
    assert!(packets["decapsulated"] > 100 && packets["clamped"] >= 16, "{packets:?}");
    assert!(
        packets
            .iter()
            .all(|(name, count)| ["decapsulated", "clamped"].contains(&name.as_str()) || *count == 0)
    );
    assert_eq!(agent.stop()?, 0);
    assert_eq!(snapshot(server)?, before);
    Ok(())
}

#[test]
fn every_encapsulation_is_decapsulated_by_tc() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    every_combination("tc")
}

#[test]
fn every_encapsulation_is_decapsulated_by_generic_xdp() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    every_combination("generic")
}

#[test]
fn every_encapsulation_is_decapsulated_by_native_xdp() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    every_combination("native")
}

/// Frames merged by receive offload are decapsulated completely.
fn large_transfers(hook: &str) -> Result<()> {
    let farm = Farm::builder().bare().build()?;
    cable(&farm)?;
    let (director, server) = (farm.director(), farm.server(0));
    server.run(&["ethtool", "-K", "eth0", "gro", "on"])?;
    // A veth merges only segments that its peer has not merged already.
    let port = &server.interfaces()[0].port;
    let done = farm.switch().enter(|| Command::new("ethtool").args(["-K", port, "tx", "off"]).status())??;
    assert!(done.success());
    // Delays single packets so that the kernel has packets to merge.
    let hold = "echo 500000 >/sys/class/net/eth0/gro_flush_timeout; echo 10 >/sys/class/net/eth0/napi_defer_hard_irqs";
    let netns = server.netns().name();
    server.run(&["ip", "netns", "exec", netns, "sh", "-c", hold])?;
    let _agent = Agent::start(server, &config(&farm, "mtu = 1400"), &["--hook", hook])?;
    for outer in Family::BOTH {
        let tunnel = Tunnel::open(&farm, Kind::Ipip, director.address_in(outer), server.address_in(outer))?;
        let _wrapper = Wrapper::start(&farm, tunnel)?;
        for inner in Family::BOTH {
            let service = SocketAddr::new(farm.vip_in(inner, 0), 80);
            there_and_back(&farm, director, service, 4_000_000)
                .with_context(|| format!("{inner} over {outer}"))?;
        }
    }
    let packets = status(server)?.packets;
    assert!(
        packets
            .iter()
            .all(|(name, count)| ["decapsulated", "clamped"].contains(&name.as_str()) || *count == 0)
    );
    Ok(())
}

#[test]
fn large_transfers_are_whole_by_tc() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    large_transfers("tc")
}

#[test]
fn large_transfers_are_whole_by_generic_xdp() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    large_transfers("generic")
}

#[test]
fn tunnels_work_on_without_the_agent_and_the_next_one_takes_over() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    cable(&farm)?;
    let (director, server) = (farm.director(), farm.server(0));
    let before = snapshot(server)?;
    let mut agent = Agent::start(server, &config(&farm, ""), &[])?;
    let tunnel = Tunnel::open(&farm, Kind::Gue, director.address().into(), server.address().into())?;
    let _wrapper = Wrapper::start(&farm, tunnel)?;
    let asks = || director.curl(&[&url(&farm, Family::V4, "who")]);
    assert_eq!(asks()?, "web1\n");
    agent.process.kill9()?;
    assert_eq!(asks()?, "web1\n");
    let left = status(server)?;
    assert!(!left.running && left.addresses.len() == 2 && left.packets["decapsulated"] > 0, "{left:?}");
    agent.start_again()?;
    let adopted = status(server)?;
    assert!(
        adopted.running && adopted.packets["decapsulated"] >= left.packets["decapsulated"],
        "{adopted:?}"
    );
    assert_eq!(
        (left.addresses, left.settings, left.programs),
        (adopted.addresses, adopted.settings, adopted.programs)
    );
    assert_eq!(asks()?, "web1\n");
    assert_eq!(agent.stop()?, 0);
    assert_eq!(snapshot(server)?, before);
    assert!(director.curl(&["--max-time", "1", &url(&farm, Family::V4, "who")]).is_err());
    Ok(())
}

#[test]
fn an_interface_that_comes_back_gets_its_program_back() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let _agent = Agent::start(server, &config(&farm, ""), &[])?;
    // A second interface, which then disappears and returns with another index.
    for address in ["192.0.2.60", "192.0.2.60"] {
        server.ip(&[
            "link add way type veth peer name back".into(),
            "link set way up".into(),
            "link set back up".into(),
        ])?;
        server.ip(&[
            format!("addr add {address}/32 dev way"),
            format!("route add {} dev way", farm.director().address()),
        ])?;
        let on_way =
            || Ok(status(server)?.programs.contains(&Program { interface: "way".into(), hook: "tc".into() }));
        wait::until("the program runs on the new interface", on_way)?;
        server.ip(&["link del way".into()])?;
        wait::until("its program is gone with it", || Ok(!on_way()?))?;
    }
    Ok(())
}

#[test]
fn servers_offer_segments_that_fit() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    cable(&farm)?;
    let (director, server) = (farm.director(), farm.server(0));
    // The MTU minus outer IPv4, GUE, inner IP and TCP headers.
    for (keys, ipv4, ipv6) in [
        ("mtu = 1400\nencapsulation = \"gue\"", "mss 1328,", "mss 1308,"),
        ("mtu = 1400", "mss 1340,", "mss 1320,"),
        ("", "mss 1440,", "mss 1420,"),
        ("clamp_mss = false", "mss 1460,", "mss 1440,"),
    ] {
        let mut agent = Agent::start(server, &config(&farm, keys), &[])?;
        let tunnel = Tunnel::open(&farm, Kind::Ipip, director.address().into(), server.address().into())?;
        let wrapper = Wrapper::start(&farm, tunnel)?;
        for (family, wanted) in Family::BOTH.into_iter().zip([ipv4, ipv6]) {
            let capture = director.capture(0, &format!("host {} and src port 80", farm.vip_in(family, 0)))?;
            assert_eq!(director.curl(&[&url(&farm, family, "who")])?, "web1\n");
            let lines = capture.stop()?;
            let offer = lines.iter().find(|line| line.contains("[S.]")).expect("a SYN-ACK");
            assert!(offer.contains(wanted), "{keys:?}: {offer}");
        }
        drop(wrapper);
        assert_eq!(agent.stop()?, 0);
    }
    Ok(())
}

#[test]
fn a_strict_reverse_path_filter_is_made_loose_and_strict_again() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    server.netns().sysctl(&[("ipv4/conf/all/rp_filter", "1"), ("ipv4/conf/eth0/rp_filter", "1")])?;
    let before = snapshot(server)?;
    let mut agent = Agent::start(server, &config(&farm, ""), &[])?;
    assert_eq!(server.run(&["cat", "/proc/sys/net/ipv4/conf/eth0/rp_filter"])?, "2\n");
    assert_eq!(status(server)?.settings["net.ipv4.conf.eth0.rp_filter"], 1);
    assert_eq!(agent.stop()?, 0);
    assert_eq!(snapshot(server)?, before);
    Ok(())
}

#[test]
fn without_directors_no_tunnel_is_opened() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let before = snapshot(server)?;
    let address = server.address().to_string();
    let (code, output) =
        refused(server, &service("web", &vips(&farm, 80), "method = \"tunnel\"", &address), &[])?;
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("directors"), "{output}");
    assert_eq!(snapshot(server)?, before);
    Ok(())
}

/// Probes of a separate port, and TCP probes of a UDP service.
#[test]
fn probes_come_out_of_tunnels_beside_clients_packets() -> Result<()> {
    let farm = Farm::builder().bare().build()?;
    let (director, server) = (farm.director(), farm.server(0));
    let directors = [director.address().to_string()];
    let probed = |keys: &str| format!("[service.health]\nkind = \"tcp\"\ninterval = \"300ms\"\n{keys}\n");
    let one = |name: &str, port: u16, keys: &str, health: &str| {
        let address = SocketAddr::new(farm.vip(0).into(), port).to_string();
        let keys = format!("method = \"tunnel\"\n{keys}\n{}", probed(health));
        service(name, &[address], &keys, &server.address().to_string())
    };
    // The server program listens on ports 80 and 8080.
    let file = format!("[farm]\ndirectors = {directors:?}\n\n")
        + &one("web", 9_000, "", "port = 8080")
        + &one("dns", 8_080, "protocol = \"udp\"", "")
        + &one("other", 80, "", "");
    let _agent = Agent::start(server, &file, &[])?;
    let evener = Evener::start(director, &file)?;
    evener.wait_for_servers(3, wait::LONG).map(drop)
}
