//! Tests of the testbed: farms carry real traffic and leave nothing behind.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::net::SocketAddr;
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use evener_lab::clients::fragments::Order;
use evener_lab::clients::transfer;
use evener_lab::clients::udp_echo;
use evener_lab::evener::{self, Agent};
use evener_lab::farm::{Farm, Shape};
use evener_lab::harness::cleanup;
use evener_lab::harness::engines;
use evener_lab::network::bare_hop::{Hop, Method};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::servers::dnsmasq;
use evener_lab::workloads::load::Load;

/// Set in the child process of [`killed_owner_leaves_no_namespaces`].
const VICTIM: &str = "EVENER_LAB_VICTIM";

#[test]
fn servers_answer_straight_through_the_router() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().servers(3).server_lans(2).clients(2).build()?;
    for (number, server) in farm.servers().iter().enumerate() {
        let name = format!("web{}", number + 1);
        assert_eq!(server.name(), name);
        let body = farm.client(number % 2).curl(&[&format!("http://{}/who", server.address())])?;
        assert_eq!(body, name + "\n");
    }
    let all = Load { connections: 6, requests: Some(20), ..Load::to(farm.straight()[0]) };
    for (path, bytes) in [("/who", 5), ("/0k", 0), ("/2k", 2_000), ("/108k", 108_000)] {
        for keep_alive in [false, true] {
            let load = Load { path: path.to_owned(), keep_alive, targets: farm.straight(), ..all.clone() };
            let report = load.run_on(farm.client(0))?;
            assert_eq!((report.requests, report.errors.total()), (120, 0), "{path}: {report:?}");
            assert_eq!(report.bytes, 120 * bytes);
            assert_eq!(report.connections, if keep_alive { 6 } else { 120 });
            let shares: Vec<_> = report.servers.values().map(|share| share.requests).collect();
            assert_eq!(shares, [40, 40, 40], "{path}");
        }
    }
    Ok(())
}

#[test]
fn every_shape_carries_both_families() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let builders = [
        Farm::builder(),
        Farm::builder().answering().offload_all(),
        Farm::builder().routed(),
        Farm::builder().remote().directors(2),
        Farm::builder().remote().bare().offload_all(),
        Farm::builder().every_host(3).server_lans(2),
    ];
    for builder in builders {
        let farm = builder.servers(3).server_lans(2).build()?;
        let shape = farm.shape();
        if shape == Shape::Routed {
            assert!(farm.client(0).curl(&["--max-time", "1", &page(farm.straight()[0], "who")]).is_err());
            farm.forward_on_directors()?;
        }
        for family in Family::BOTH {
            for (target, server) in farm.straight_in(family).into_iter().zip(farm.servers()) {
                let body = farm.client(0).curl(&[&page(target, "who")])?;
                assert_eq!(body.trim(), server.name(), "{shape:?} {family}");
            }
            let big =
                Load { path: "/big".to_owned(), requests: Some(1), ..Load::to(farm.straight_in(family)[2]) };
            assert_eq!(big.run_on(farm.client(0))?.errors.total(), 0, "{shape:?} {family}");
        }
        for director in farm.directors() {
            for family in Family::BOTH {
                assert_eq!(director.curl(&[&page(farm.straight_in(family)[1], "who")])?, "web2\n");
            }
        }
    }
    Ok(())
}

fn page(target: SocketAddr, name: &str) -> String {
    format!("http://{target}/{name}")
}

#[test]
fn narrow_link_sends_too_big() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    for builder in [Farm::builder().remote(), Farm::builder().remote().offload_all()] {
        let farm = builder.build()?;
        farm.narrow_to_clients(1280)?;
        farm.narrow_behind_directors(1400)?;
        for family in Family::BOTH {
            let (client, server) = (farm.client(0), farm.server(0));
            let learned = |host: &Host, other: &Host| {
                host.run(&["ip", "route", "get", &other.address_in(family).to_string()])
            };
            // Both ends offer an MSS for an MTU of 1500. The router reports the smaller MTU between
            // them.
            transfer::there_and_back(&farm, client, farm.straight_in(family)[0], 1_000_000)?;
            let (there, back) = (learned(client, server)?, learned(server, client)?);
            assert!(there.contains("mtu 1400") && back.contains("mtu 1280"), "{family}: {there}{back}");
        }
    }
    Ok(())
}

#[test]
fn arp_answers_match_setup() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let silent = Farm::builder().servers(2).silent().build()?;
    let capture = silent.server(0).capture(0, "arp")?;
    assert!(silent.client(0).curl(&["--max-time", "1", "http://192.0.2.100/who"]).is_err(), "nobody answers");
    let packets = capture.stop()?;
    assert!(packets.iter().any(|line| line.contains("Request who-has 192.0.2.100")), "{packets:?}");
    assert!(!packets.iter().any(|line| line.contains("192.0.2.100 is-at")), "{packets:?}");
    drop(silent);

    let answering = Farm::builder().servers(2).answering().build()?;
    let route = answering.router().run(&["ip", "route", "get", "192.0.2.100"])?;
    assert!(route.contains("via 192.0.2.2"), "{route}");
    // Without the route, the reply of any server makes the router use that server.
    answering.router().ip(&["route delete 192.0.2.100/32".to_owned()])?;
    assert!(answering.client(0).curl(&["http://192.0.2.100/who"])?.starts_with("web"));
    Ok(())
}

#[test]
fn faults_are_felt_and_heal() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let mut farm = Farm::builder().servers(2).build()?;
    let client = farm.client(0).clone();
    let second: SocketAddr = farm.straight()[1];
    let reaches = || client.curl(&["--max-time", "1", &format!("http://{second}/who")]).is_ok();
    let heals = || (0..50).any(|_| reaches());
    assert!(reaches());

    farm.server(1).unplug()?;
    assert!(!reaches());
    farm.server(1).plug()?;
    assert!(heals());

    farm.server(1).lose(100)?;
    assert!(!reaches());
    farm.server(1).lose(0)?;
    assert!(heals());

    farm.stop_web(1)?;
    assert!(!reaches());
    farm.start_web(1)?;
    assert!(reaches());

    let healthz = format!("http://{second}/healthz");
    farm.set_healthy(1, false)?;
    assert!(client.curl(&[&healthz]).is_err());
    farm.set_healthy(1, true)?;
    assert_eq!(client.curl(&[&healthz])?, "ok\n");

    farm.server(1).limit(Some(50))?;
    let before = farm.server(1).traffic()?;
    let download = Load { path: "/big".to_owned(), requests: Some(1), ..Load::to(second) };
    let report = download.run_on(&client)?;
    assert_eq!((report.requests, report.bytes), (1, 16_000_000), "{report:?}");
    let sent = farm.server(1).traffic()?.since(&before).sent_bytes;
    assert!((16_000_000..20_000_000).contains(&sent), "{sent}");
    // 16 MB at 50 Mbit/s take 2.56 s. The bound is far lower but still shows the limit.
    assert!(report.seconds > 1.5, "{} s", report.seconds);

    let third = farm.add_server()?;
    assert_eq!(client.curl(&[&format!("http://{}/who", third.address())])?, "web3\n");
    Ok(())
}

#[test]
fn load_generator_reports_broken_answers() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let mut farm = Farm::builder().build()?;
    let target = farm.straight()[0];
    let client = farm.client(0).clone();

    let download =
        Load { path: "/big".to_owned(), pace: Some(1_000_000), keep_alive: true, ..Load::to(target) };
    let running = download.clone().start_on(&client);
    thread::sleep(Duration::from_millis(300));
    let report = running.stop()?;
    assert_eq!((report.requests, report.errors.total()), (0, 0), "stopped is not broken: {report:?}");

    let running = Load { requests: Some(1), ..download }.start_on(&client);
    thread::sleep(Duration::from_millis(300));
    farm.stop_web(0)?;
    let errors = running.join()?.errors;
    assert_eq!(errors.total(), 1, "{errors:?}");

    let refused = Load { requests: Some(3), ..Load::to(target) }.run_on(&client)?;
    assert_eq!((refused.requests, refused.errors.connect), (0, 3), "{refused:?}");
    farm.start_web(0)?;
    let missing =
        Load { requests: Some(2), path: "/nothing".to_owned(), ..Load::to(target) }.run_on(&client)?;
    assert_eq!(missing.errors.wrong, 2, "{missing:?}");
    Ok(())
}

#[test]
fn datagrams_come_back_with_a_name() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().build()?;
    let address = SocketAddr::from((farm.server(0).address(), 5353));
    let client = udp_echo::Client::open(farm.client(0), address, Duration::from_millis(500))?;
    assert!(client.request("anybody?").is_err());
    let echo = udp_echo::Echo::start(farm.server(0), address)?;
    assert_eq!(client.request("who are you?")?, "web1");
    drop(echo);
    assert!(client.request("still there?").is_err());
    Ok(())
}

#[test]
fn datagrams_in_fragments_come_whole_in_any_order() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().remote().build()?;
    let (client, server) = (farm.client(0), farm.server(0));
    let text = "x".repeat(4000);
    for family in Family::BOTH {
        for (port, order) in (5353..).zip(Order::ALL) {
            let address = SocketAddr::new(server.address_in(family), port);
            let _echo = udp_echo::Echo::start_cut(&farm, server, address, order)?;
            let asked = udp_echo::Client::open(client, address, Duration::from_secs(2))?;
            assert_eq!(asked.request("short").ok().as_deref(), Some("web1"), "{family} {order:?}");
            assert_eq!(asked.request_truncated(&farm, client, &text, order)?, "web1", "{family} {order:?}");
        }
    }
    Ok(())
}

#[test]
fn a_dns_server_answers_in_several_packets() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().build()?;
    let _server = dnsmasq::Server::start(farm.server(0))?;
    for family in Family::BOTH {
        let address = SocketAddr::new(farm.server(0).address_in(family), dnsmasq::PORT);
        let client = dnsmasq::Client::open(farm.client(0), address, Duration::from_secs(2))?;
        assert_eq!(client.who()?, "web1", "{family}");
        let recording = farm.server(0).record(0)?;
        client.big(0)?;
        client.big(3000)?;
        let frames = recording.verified()?;
        assert!(frames.iter().filter(|frame| frame.len() > 1300).count() >= 6, "{family}: {}", frames.len());
    }
    Ok(())
}

#[test]
fn recording_has_all_frames_and_detects_errors() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().build()?;
    let recording = farm.server(0).record(0)?;
    for target in Family::BOTH.map(|family| farm.straight_in(family)[0]) {
        assert_eq!(farm.client(0).curl(&[&page(target, "who")])?, "web1\n");
    }
    let mut frames = recording.verified()?;
    assert!(frames.len() > 10, "{}", frames.len());
    assert!(frames.iter().all(|frame| frame[6..12] == farm.server(0).raw(0).unwrap().mac().0));

    let recording = farm.server(0).record(0)?;
    let last = frames.iter_mut().rfind(|frame| frame[12..14] == [8, 0]).unwrap();
    last[33] ^= 1;
    farm.server(0).raw(0)?.send(last)?;
    assert!(recording.verified().is_err_and(|error| error.to_string().contains("checksum")));
    Ok(())
}

#[test]
fn dropped_farm_leaves_no_namespaces() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().servers(2).build()?;
    let (directory, namespace) = (farm.server(0).file("nginx.conf"), farm.server(0).netns().path());
    let sleeper = farm.server(0).spawn("sleep", &["sleep", "600"])?;
    let pid = sleeper.pid();
    assert!(directory.exists() && namespace.exists() && running(pid));
    // The process is leaked on purpose, as by a test that panics.
    std::mem::forget(sleeper);
    drop(farm);
    assert!(!directory.exists() && !namespace.exists());
    assert!(!running(pid));
    Ok(())
}

#[test]
fn killed_owner_leaves_no_namespaces() -> Result<()> {
    if std::env::var_os(VICTIM).is_some() {
        return be_the_victim();
    }
    if !engines::has_root() {
        return Ok(());
    }
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["--exact", "killed_owner_leaves_no_namespaces", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::null())
        .spawn()?;
    let pid = victim.id();
    let built = wait_until(|| cleanup::namespaces_of(pid).len() == 5 && !web_servers_of(pid).is_empty());
    assert!(built, "the victim did not build its farm: {:?}", cleanup::namespaces_of(pid));
    let servers = web_servers_of(pid);
    victim.kill()?;
    victim.wait()?;
    assert!(wait_until(|| cleanup::namespaces_of(pid).is_empty()), "{:?}", cleanup::namespaces_of(pid));
    assert!(wait_until(|| servers.iter().all(|server| !running(*server))), "{servers:?}");
    Ok(())
}

#[test]
fn leftovers_of_dead_owners_are_removed() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let mut gone = Command::new("true").spawn()?;
    let pid = gone.id();
    gone.wait()?;
    let left = format!("ev{pid}-1-0-web1");
    assert!(Command::new("ip").args(["netns", "add", &left]).status()?.success());
    // The number of this process with a wrong start time: a reused process id.
    let reused = format!("ev{}-1-0-web1", process::id());
    assert!(Command::new("ip").args(["netns", "add", &reused]).status()?.success());
    let farm = Farm::builder().build()?;
    cleanup::reap_dead();
    assert!(cleanup::namespaces_of(pid).is_empty());
    assert!(!cleanup::namespaces_of(process::id()).contains(&reused));
    assert!(farm.server(0).netns().path().exists(), "the living are left alone");
    Ok(())
}

fn be_the_victim() -> Result<()> {
    let _farm = Farm::builder().build()?;
    thread::sleep(Duration::from_secs(60));
    Ok(())
}

fn web_servers_of(owner: u32) -> Vec<u32> {
    cleanup::namespaces_of(owner)
        .iter()
        .filter(|name| name.ends_with("-web1"))
        .flat_map(|name| {
            let output = Command::new("ip").args(["netns", "pids", name]).output();
            let text =
                output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            text.lines().filter_map(|line| line.trim().parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// True if a process runs. Zombies do not count.
fn running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(' ') && !rest.starts_with(" Z"))
}

fn wait_until(condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn a_bare_hop_passes_requests_on() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    for method in [Method::Link, Method::Tunnel] {
        let builder = Farm::builder().servers(2);
        let farm = if method == Method::Link { builder } else { builder.remote().bare() }.build()?;
        let file = evener::web_service_by(&farm, 0, "xdp", "method = \"tunnel\"\n");
        let agents =
            if method == Method::Link { Vec::new() } else { Agent::start_all(farm.servers(), &file)? };
        let hop = Hop::start(farm.director(), &farm, 0, method)?;
        let load = Load { connections: 8, requests: Some(10), ..Load::to(farm.service()) };
        let report = load.run_on(farm.client(0))?;
        assert_eq!((report.requests, report.errors.total()), (80, 0), "{method:?}: {report:?}");
        drop((hop, agents));
        assert!(farm.client(0).curl(&[&format!("http://{}/who", farm.service())]).is_err(), "{method:?}");
    }
    Ok(())
}
