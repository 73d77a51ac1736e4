//! Connections continue after any fault of daemons, agents and servers, and new connections go to
//! working servers.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{Handoff, Offer, Session, left_on, program, route};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::workloads::load::{Load, Running};

use crate::talk::{Talk, get};
use crate::{farm, unbroken};

on_both_engines! {
    a_killed_director_breaks_nothing,
    a_reload_breaks_nothing,
    a_drained_server_keeps_what_it_has,
    stopped_they_leave_nothing,
}

on_one_engine! {
    without_agents_connections_are_accepted_for_ever,
    a_killed_agent_breaks_nothing,
    other_servers_take_over,
    a_server_without_agent_is_down,
}

mod alone {
    on_engine!(xdp: without_a_daemon_clients_are_greeted_for_ever);

    pub(super) use super::without_a_daemon_clients_are_greeted_for_ever;
}

mod doctor {
    on_engine!(xdp: settings_that_lose_connections_are_told);

    pub(super) use super::settings_that_lose_connections_are_told;
}

/// A path that is read in user space.
const PUNTED: &str = "/./who";

/// Starts clients of all kinds, with timeouts long enough for TCP retransmissions.
fn audience(handoff: &Handoff) -> [Running; 4] {
    let visit = Load {
        connections: 4,
        pause: Duration::from_millis(5),
        timeout: LONG,
        ..Load::to(handoff.service(Family::V4))
    };
    let sixth = Load { targets: vec![handoff.service(Family::V6)], ..visit.clone() };
    let kept = Load { keep_alive: true, path: "/2k".to_owned(), ..visit.clone() };
    let slow = Load { connections: 2, path: "/big".to_owned(), pace: Some(4_000_000), ..visit.clone() };
    [visit, sixth, kept, slow].map(|load| load.start_on(handoff.client()))
}

fn request_count(loads: &[Running]) -> u64 {
    loads.iter().map(Running::requests).sum()
}

fn go_on(loads: &[Running]) -> Result<()> {
    let before = request_count(loads);
    wait::until("clients are served", || Ok(request_count(loads) > before + 200))
}

fn all_whole<const N: usize>(loads: [Running; N]) -> Result<()> {
    for (number, load) in loads.into_iter().enumerate() {
        let report = load.stop()?;
        ensure!(report.errors.total() == 0, "load {number}: {:?}", report.examples);
    }
    Ok(())
}

fn a_killed_director_breaks_nothing(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 3, &[route("path = \"/2k\"", &["web2", "web3"])])?;
    let loads = audience(&handoff);
    go_on(&loads)?;
    let mut moved = HttpConnection::open(handoff.client(), handoff.service(Family::V4))?;
    let mut talk = Talk::open(handoff.client(), handoff.service(Family::V4))?;
    let server = talk.request(&get("x", PUNTED))?.server;
    let first = moved.who()?;
    // The server responds as soon as it has the connection, and the director records it a moment
    // later.
    wait::until("the connection has moved", || {
        let own = talk.client()?.to_string();
        let is_moved = |session: &Session| session.client != own || session.server != "-";
        Ok(handoff.evener.sessions()?.iter().all(is_moved))
    })?;
    for _ in 0..2 {
        handoff.evener.daemon().kill9()?;
        if engine == "xdp" {
            go_on(&loads).context("without a daemon")?;
        } else {
            thread::sleep(Duration::from_millis(500));
        }
        handoff.evener.start_again()?;
        assert!(handoff.evener.status()?.adopted);
        go_on(&loads).context("with the next daemon")?;
        assert_eq!(talk.request(&get("x", "/who"))?.server, server, "a connection that was moved stays");
        assert_eq!(moved.who()?, first);
        let mut talk = Talk::open(handoff.client(), handoff.service(Family::V6))?;
        assert_eq!(talk.request(&get("x", PUNTED))?.status, 200, "and others are moved again");
    }
    all_whole(loads)
}

fn a_killed_agent_breaks_nothing(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 2, &[])?;
    let loads = audience(&handoff);
    go_on(&loads)?;
    for agent in &mut handoff.agents {
        agent.process().kill9()?;
    }
    go_on(&loads).context("without agents")?;
    for agent in &mut handoff.agents {
        agent.start_again()?;
    }
    go_on(&loads).context("with the next agents")?;
    assert!(handoff.evener.servers()?.iter().all(|server| server.state == "up"));
    all_whole(loads)
}

/// Cookies of this farm are valid for three to six seconds. If the data plane could not derive
/// later keys itself, no cookie would be valid after four epochs.
const EPOCH: Duration = Duration::from_secs(3);

/// Starts a farm with short epochs.
fn of_short_epochs(engine: &str) -> Result<Handoff> {
    let farm = Farm::builder().bare().servers(2).build()?;
    let offer = Offer { farm: "cookie_epoch = \"3s\"".to_owned(), ..Offer::new(engine, 2, &[]) };
    Handoff::start(farm, offer)
}

fn epochs_go_by(number: u32) -> Result<()> {
    let until = Instant::now() + EPOCH * number;
    wait::until("epochs have gone by", || Ok(Instant::now() > until))
}

fn without_a_daemon_clients_are_greeted_for_ever(engine: &str) -> Result<()> {
    let mut handoff = of_short_epochs(engine)?;
    let loads = audience(&handoff);
    go_on(&loads)?;
    handoff.evener.daemon().kill9()?;
    epochs_go_by(5)?;
    go_on(&loads).context("without a daemon")?;
    handoff.evener.start_again()?;
    go_on(&loads).context("with the next daemon")?;
    all_whole(loads)
}

fn without_agents_connections_are_accepted_for_ever(engine: &str) -> Result<()> {
    let mut handoff = of_short_epochs(engine)?;
    let loads = audience(&handoff);
    go_on(&loads)?;
    for agent in &mut handoff.agents {
        agent.process().kill9()?;
    }
    epochs_go_by(5)?;
    go_on(&loads).context("without agents")?;
    assert!(handoff.evener.servers()?.iter().all(|server| server.state == "up"));
    all_whole(loads)
}

fn a_reload_breaks_nothing(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 3, &[])?;
    let loads = audience(&handoff);
    go_on(&loads)?;
    let request = |handoff: &Handoff| -> Result<String> {
        Ok(Talk::open(handoff.client(), handoff.service(Family::V4))?
            .request(&get("img.example.com", "/"))?
            .server)
    };
    for server in ["web2", "web3", "web1"] {
        handoff.offer.routes = route("host = \"img.example.com\"", &[server]);
        handoff.reload()?;
        for _ in 0..4 {
            assert_eq!(request(&handoff)?, server);
        }
        go_on(&loads)?;
    }
    all_whole(loads)
}

fn a_drained_server_keeps_what_it_has(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &[route("path = \"/2k\"", &["web1"])])?;
    let service = handoff.service(Family::V4);
    let slow = Load {
        connections: 4,
        path: "/big".to_owned(),
        requests: Some(1),
        pace: Some(8_000_000),
        ..Load::to(service)
    };
    let mut kept: Vec<_> =
        (0..4).map(|_| HttpConnection::open(handoff.client(), service)).collect::<Result<_>>()?;
    let before: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    assert!(before.contains(&"web1".to_owned()));
    let slow = slow.start_on(handoff.client());
    wait::until("downloads run", || Ok(handoff.evener.sessions()?.len() >= 8))?;
    handoff.evener.command(&["drain", "web/web1"])?;
    let report = unbroken(Load { requests: Some(20), ..Load::to(service) }.run_on(handoff.client())?)?;
    assert_eq!(report.servers.keys().collect::<Vec<_>>(), ["web2"]);
    let after: Vec<_> = kept.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    assert_eq!(before, after);
    // A route without another server.
    let mut talk = Talk::open(handoff.client(), service)?;
    assert_eq!(talk.request(&get("x", "/2k"))?.status, 503);
    assert_eq!(unbroken(slow.join()?)?.requests, 4);
    Ok(())
}

fn other_servers_take_over(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 3, &[route("path = \"/img/*\"", &["web2", "web3"])])?;
    let request = |handoff: &Handoff, path: &str| -> Result<(u16, String)> {
        let reply = Talk::open(handoff.client(), handoff.service(Family::V6))?.request(&get("x", path))?;
        Ok((reply.status, reply.server))
    };
    handoff.farm.stop_web(1)?;
    handoff.evener.wait_for_servers(2, LONG)?;
    for path in ["/img/a", "/img/%61"] {
        for _ in 0..4 {
            assert_eq!(request(&handoff, path)?, (404, "web3".to_owned()));
        }
    }
    handoff.farm.stop_web(2)?;
    handoff.evener.wait_for_servers(1, LONG)?;
    for path in ["/img/a", "/img/%61"] {
        assert_eq!(request(&handoff, path)?, (503, String::new()));
    }
    assert_eq!(request(&handoff, "/who")?, (200, "web1".to_owned()));
    Ok(())
}

fn a_server_without_agent_is_down(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 2, &[])?;
    assert_eq!(handoff.agents[1].stop()?, 0);
    let servers = handoff.evener.wait_for_servers(1, LONG)?;
    let server = servers.iter().find(|server| server.name == "web2").context("web2 is gone")?;
    assert_eq!(server.state, "down");
    ensure!(server.reason.as_ref().is_some_and(|reason| !reason.is_empty()), "{server:?}");
    let service = handoff.service(Family::V4);
    let report = unbroken(Load { requests: Some(20), ..Load::to(service) }.run_on(handoff.client())?)?;
    assert_eq!(report.servers.keys().collect::<Vec<_>>(), ["web1"]);
    handoff.agents[1].start_again()?;
    handoff.evener.wait_for_servers(2, LONG)?;
    Ok(())
}

fn stopped_they_leave_nothing(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 1, &[])?;
    let hosts = [handoff.farm.director().clone(), handoff.farm.server(0).clone()];
    let mut talk = Talk::open(handoff.client(), handoff.service(Family::V4))?;
    assert_eq!(talk.request(&get("x", PUNTED))?.server, "web1");
    for host in &hosts {
        assert!(!left_on(host)?.is_empty(), "{} has something to leave", host.name());
    }
    assert_eq!(handoff.evener.stop()?, 0);
    assert_eq!(handoff.agents[0].stop()?, 0);
    for host in &hosts {
        assert_eq!(left_on(host)?, [""; 0], "{}", host.name());
        let addresses = host.run(&["ip", "-oneline", "address", "show", "dev", "lo"])?;
        for family in Family::BOTH {
            let vip = handoff.farm.vip_in(family, 0).to_string();
            assert!(!addresses.contains(&format!("{vip}/")), "{}: {addresses}", host.name());
        }
        assert_eq!(host.run(&["cat", "/proc/sys/net/ipv4/conf/all/arp_ignore"])?, "0\n");
    }
    Ok(())
}

fn settings_that_lose_connections_are_told(engine: &str) -> Result<()> {
    let handoff = farm(engine, 1, &[])?;
    let server = handoff.farm.server(0);
    let doctor = || -> Result<String> {
        let output = server.output(&[&program()?.to_string_lossy(), "doctor"])?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let output = doctor()?;
    ensure!(!output.lines().any(|line| line.starts_with("FAIL")), "{output}");
    for (path, name) in [
        ("ipv4/tcp_sack", "net.ipv4.tcp_sack"),
        ("ipv4/tcp_timestamps", "net.ipv4.tcp_timestamps"),
        ("ipv4/tcp_window_scaling", "net.ipv4.tcp_window_scaling"),
        ("ipv4/tcp_syncookies", "net.ipv4.tcp_syncookies"),
    ] {
        server.netns().sysctl(&[(path, "0")])?;
        let output = doctor()?;
        let of_it = |line: &str| line.starts_with("FAIL") && line.contains(name);
        ensure!(output.lines().any(of_it), "{name}: {output}");
        server.netns().sysctl(&[(path, "1")])?;
    }
    ensure!(!doctor()?.lines().any(|line| line.starts_with("FAIL")));
    Ok(())
}
