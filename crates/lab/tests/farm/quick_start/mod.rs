//! The quick starts of the manual, with the page's files and commands.

mod page;
mod setup;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use evener_lab::farm::{Builder, Farm};
use evener_lab::harness::engines;
use evener_lab::network::host::Host;
use evener_lab::servers::nginx_tls;

use self::page::QuickStart;
use self::setup::Setup;

/// The quick starts that these tests run.
const CARRIED_OUT: [&str; 8] = ["l2", "l2 2", "nat", "tunnel", "handoff", "every-host", "redirect", "Names"];

fn quick_starts() -> Result<Vec<QuickStart>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/quick-start.md");
    page::read(&fs::read_to_string(&path)?).with_context(|| path.display().to_string())
}

#[test]
fn every_quick_start_is_carried_out() {
    let starts = quick_starts().unwrap();
    let names: Vec<&str> = starts[1..].iter().map(|start| start.name.as_str()).collect();
    assert_eq!(names, CARRIED_OUT);
    for start in &starts[1..] {
        assert!(!start.file.is_empty() && start.steps.len() > 1, "{}", start.name);
    }
    let has_hand = |start: &&QuickStart| start.steps.iter().any(|step| !step.by_hand.is_empty());
    let by_hand: Vec<&str> = starts.iter().filter(has_hand).map(|start| start.name.as_str()).collect();
    assert_eq!(by_hand, ["l2"]);
}

/// Sets up a farm according to a quick start.
fn set_up(name: &str, farm: Farm, by_hand: bool) -> Result<Setup> {
    let starts = quick_starts()?;
    let start = starts.iter().find(|start| start.name == name);
    Setup::by_page(farm, &starts[0], start.with_context(|| format!("no quick start {name}"))?, by_hand)
}

/// Runs a test on a farm, or skips it without root.
fn on_farm(builder: Builder, test: impl FnOnce(Farm) -> Result<()>) -> Result<()> {
    if engines::has_root() { test(builder.build()?) } else { Ok(()) }
}

/// Replaces a host's address, with prefix length 24.
fn readdress(host: &Host, address: &str, gateway: Option<&str>) -> Result<()> {
    let mut lines = vec!["addr flush dev eth0".to_owned(), format!("addr add {address}/24 dev eth0")];
    lines.extend(gateway.map(|gateway| format!("route replace default via {gateway}")));
    host.ip(&lines)
}

/// Checks that the director has the service address and that its servers answer.
fn director_serves(setup: &Setup) -> Result<()> {
    setup.wait_for_answers("http://192.0.2.100/who")?;
    let neighbour = setup.farm.router().run(&["ip", "neighbour", "show", "192.0.2.100"])?;
    ensure!(neighbour.contains(setup.farm.director().mac()), "{neighbour}");
    Ok(())
}

#[test]
fn l2_by_agent_serves() -> Result<()> {
    on_farm(Farm::builder().bare().servers(2), |farm| director_serves(&set_up("l2", farm, false)?))
}

#[test]
fn l2_by_hand_serves() -> Result<()> {
    on_farm(Farm::builder().bare().servers(2), |farm| director_serves(&set_up("l2", farm, true)?))
}

#[test]
fn l2_with_discovery_serves() -> Result<()> {
    on_farm(Farm::builder().bare().servers(2), |farm| {
        set_up("l2 2", farm, false)?.wait_for_answers("http://192.0.2.100/who")
    })
}

#[test]
fn nat_serves() -> Result<()> {
    on_farm(Farm::builder().routed().servers(2).server_lans(2), |farm| {
        farm.director().ip(&["eth1", "eth2"].map(|interface| format!("addr flush dev {interface}")))?;
        readdress(farm.server(0), "10.1.0.5", None)?;
        readdress(farm.server(1), "10.2.0.5", None)?;
        set_up("nat", farm, false)?.wait_for_answers("http://192.0.2.110/who")
    })
}

#[test]
fn tunnel_serves() -> Result<()> {
    on_farm(Farm::builder().remote().bare(), |farm| {
        let server = farm.server(0);
        readdress(server, "198.51.100.5", Some("198.51.100.1"))?;
        let _web = nginx_tls::start(server)?;
        set_up("tunnel", farm, false)?.wait_for_answers("https://192.0.2.111/")
    })
}

#[test]
fn handoff_serves_by_route() -> Result<()> {
    on_farm(Farm::builder().bare().servers(2), |farm| {
        readdress(farm.server(1), "192.0.2.21", Some("192.0.2.1"))?;
        let page = farm.page("img/who");
        fs::create_dir_all(page.parent().context("a folder")?)?;
        fs::write(page, "")?;
        let setup = set_up("handoff", farm, false)?;
        for (path, name) in [("who", "web1"), ("img/who", "web2")] {
            let head = setup.farm.client(0).curl(&["--head", &format!("http://192.0.2.100/{path}")])?;
            ensure!(head.contains(&format!("X-Server: {name}")), "{path}: {head}");
        }
        Ok(())
    })
}

#[test]
fn every_host_serves_at_each_address() -> Result<()> {
    on_farm(Farm::builder().every_host(2), |farm| {
        let setup = set_up("every-host", farm, false)?;
        ["192.0.2.101", "192.0.2.102"]
            .iter()
            .try_for_each(|address| setup.wait_for_answers(&format!("http://{address}/who")))
    })
}

#[test]
fn redirect_sends_clients_to_members() -> Result<()> {
    on_farm(Farm::builder().bare().servers(2), |farm| {
        readdress(farm.server(0), "192.0.2.31", Some("192.0.2.1"))?;
        readdress(farm.server(1), "192.0.2.32", Some("192.0.2.1"))?;
        set_up("redirect", farm, false)?.wait_for_answers("http://192.0.2.2:8080/who")
    })
}

#[test]
fn names_answer_with_servers() -> Result<()> {
    on_farm(Farm::builder().bare().servers(2).server_lans(2), |farm| {
        set_up("Names", farm, false)?;
        Ok(())
    })
}
