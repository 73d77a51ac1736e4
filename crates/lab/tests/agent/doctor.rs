//! Findings of `evener doctor` on a server that could not serve.

use anyhow::{Context, Result};
use evener_lab::evener::program;
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use serde::Deserialize;

use crate::tunnels::config;
use crate::wrapper::{Kind, Tunnel};
use crate::{Agent, l2_farm, service, status, vips};

#[derive(Debug, Deserialize)]
struct Finding {
    check: String,
    state: String,
    message: String,
}

/// Returns the findings that are not `ok`: state, check and message.
fn wrong(host: &Host) -> Result<Vec<String>> {
    let output = host.output(&[&program()?.to_string_lossy(), "doctor", "--json"])?;
    let text = String::from_utf8(output.stdout)?;
    let findings: Vec<Finding> = serde_json::from_str(&text).with_context(|| format!("it said {text}"))?;
    let wrong = findings.into_iter().filter(|finding| finding.state != "ok");
    Ok(wrong.map(|finding| format!("{} {}: {}", finding.state, finding.check, finding.message)).collect())
}

/// Returns the findings that are not in `before`.
fn new(host: &Host, before: &[String]) -> Result<Vec<String>> {
    Ok(wrong(host)?.into_iter().filter(|finding| !before.contains(finding)).collect())
}

#[test]
fn a_tunnel_server_is_looked_at() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let mut farm = Farm::builder().bare().build()?;
    let (director, server) = (farm.director().clone(), farm.server(0).clone());
    let _agent = Agent::start(&server, &config(&farm, "mtu = 1500"), &[])?;
    let before = wrong(&server)?;
    assert!(before.iter().all(|finding| !finding.starts_with("fail")), "{before:?}");

    let stranger = Tunnel::open(&farm, Kind::Gue, director.address().into(), server.address().into())?;
    stranger.send_as(false, &[0x40, 0, 0, 0])?;
    wait::until("a packet is refused", || Ok(status(&server)?.packets["gue_header"] == 1))?;
    let output = new(&server, &before)?;
    assert!(
        matches!(&*output, [one] if one.starts_with("warn") && one.contains("1 gue_header")),
        "{output:?}"
    );

    let before = wrong(&server)?;
    server.ip(&["link set eth0 mtu 1400".into()])?;
    server.netns().sysctl(&[("ipv4/conf/all/rp_filter", "1")])?;
    farm.stop_web(0)?;
    let output = new(&server, &before)?;
    let has = |words: &[&str]| output.iter().any(|finding| words.iter().all(|word| finding.contains(word)));
    assert!(
        has(&["fail rp_filter", "eth0"])
            || status(&server)?.settings.contains_key("net.ipv4.conf.eth0.rp_filter"),
        "{output:?}"
    );
    assert!(has(&["warn web", "mtu is 1500", "1400"]), "{output:?}");
    for vip in vips(&farm, 80) {
        assert!(has(&["fail web", "Nothing listens", &vip]), "{output:?}");
    }
    Ok(())
}

#[test]
fn doctor_reports_leftovers_of_killed_agent() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let mut agent = Agent::start(server, &config(&farm, ""), &[])?;
    agent.process.kill9()?;
    let before = wrong(server)?;
    let [vip, vip6] = Family::BOTH.map(|family| farm.vip_in(family, 0));
    server.ip(&[format!("addr del {vip6}/128 dev lo"), format!("addr del {vip}/32 dev lo")])?;
    let output = new(server, &before)?;
    assert!(
        output.iter().any(|one| one.starts_with("fail web") && one.contains(&vip6.to_string())),
        "{output:?}"
    );
    // The address is back, but on an interface that answers neighbour requests.
    server.ip(&[format!("addr add {vip}/32 dev eth0"), format!("addr add {vip6}/128 dev lo")])?;
    let output = new(server, &before)?;
    assert!(output.iter().any(|one| one.contains("eth0") && one.contains("move it to lo")), "{output:?}");
    server.ip(&[format!("addr del {vip}/32 dev eth0"), format!("addr add {vip}/32 dev lo")])?;
    server.netns().sysctl(&[("ipv4/conf/all/arp_ignore", "0"), ("ipv4/conf/all/arp_announce", "0")])?;
    let output = new(server, &before)?;
    assert!(output.iter().any(|one| one.starts_with("fail") && one.contains("arp_ignore=1")), "{output:?}");
    assert!(output.iter().any(|one| one.starts_with("warn") && one.contains("arp_announce=2")), "{output:?}");
    Ok(())
}

/// Clients' packets arrive on the director's link, and the route back uses another link.
#[test]
fn strict_reverse_path_filter_of_l2_server_is_reported() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let (farm, _agent) = l2_farm()?;
    let server = farm.server(0);
    server.netns().sysctl(&[("ipv4/conf/all/rp_filter", "1")])?;
    let before = wrong(server)?;
    assert!(before.iter().all(|one| !one.contains("reverse path")), "one interface is enough: {before:?}");
    let dropped = || server.run(&["nstat", "-asz", "TcpExtIPReversePathFilter"]);
    let none = dropped()?;
    farm.answer_by_second_cable(server)?;
    let output = new(server, &before)?;
    let [one] = &output[..] else { panic!("{output:?}") };
    let parts =
        ["warn web", "of eth0 is strict", "leaves by eth1", "`sysctl -w net.ipv4.conf.eth0.rp_filter=2`"];
    assert!(parts.iter().all(|part| one.contains(part)), "{one}");
    let url = format!("http://{}/who", server.address());
    assert!(farm.client(0).curl(&["--max-time", "1", &url]).is_err());
    assert_ne!(dropped()?, none, "the kernel drops what it said");
    server.netns().sysctl(&[("ipv4/conf/eth0/rp_filter", "2")])?;
    assert_eq!(new(server, &before)?, <[String; 0]>::default());
    assert_eq!(farm.client(0).curl(&[&url])?, "web1\n");
    Ok(())
}

#[test]
fn a_nat_server_must_answer_by_a_director() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let (director, server) = (farm.director(), farm.server(0));
    let directors = format!("[farm]\ndirectors = [\"{}\"]\n", director.address());
    let nat = service("web", &vips(&farm, 80)[..1], "method = \"nat\"", &server.address().to_string());
    let _agent = Agent::start(server, &(directors + &nat), &[])?;
    let output = wrong(server)?;
    assert!(output.iter().any(|one| one.starts_with("warn web") && one.contains("source_nat")), "{output:?}");
    server.ip(&[format!("route replace default via {}", director.address())])?;
    let output = wrong(server)?;
    assert!(output.iter().all(|one| !one.contains("source_nat")), "{output:?}");
    Ok(())
}

#[test]
fn doctor_reports_agent_without_packets() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let secret = server.file("farm.key");
    server.run(&[&program()?.to_string_lossy(), "keygen", &secret.to_string_lossy()])?;
    let head = format!(
        "[farm]\nsecret_file = \"{}\"\ndirectors = [\"{}\"]\n\n",
        secret.display(),
        farm.director().address()
    );
    let config =
        head + &service("web", &vips(&farm, 80), "method = \"handoff\"", &server.address().to_string());
    let deaf = |output: &[String]| {
        output.iter().any(|one| one.starts_with("fail web") && one.contains("can't receive messages"))
    };
    let mut agent = Agent::start(server, &config, &[])?;
    let output = wrong(server)?;
    assert!(!deaf(&output), "{output:?}");
    agent.stop()?;
    let before = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"];
    let _agent = Agent::start_by(server, &config, &before, &[])?;
    let output = wrong(server)?;
    assert!(deaf(&output), "{output:?}");
    Ok(())
}
