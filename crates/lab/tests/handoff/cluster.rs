//! Every-host selection, with hosts that read and serve: a client reaches any host, and the server
//! that its request selects serves it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::clients::transfer::there_and_back;
use evener_lab::evener::{Plan, Team, left_on, program, route, wait_for_count};
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::talk::{Reply, Talk, get};
use crate::unbroken;

on_both_engines! {
    each_host_gives_what_its_routes_say,
    each_host_reads_what_is_odd,
    bodies_go_on_to_all_hosts_alike,
    hosts_behind_a_router_take_their_part,
    one_host_takes_all_arrivals,
    a_host_dies,
    all_daemons_restart_in_turn,
    a_host_is_drained,
    stopped_it_leaves_nothing,
}

on_one_engine! {
    one_host_decides_for_all,
    a_host_without_a_web_server_is_given_nothing,
}

/// Servers by first path component: the second host serves images, the third documents.
const PLACES: [(&str, &[&str]); 3] =
    [("/img", &["web2"]), ("/doc", &["web3"]), ("/any", &["web1", "web2", "web3"])];

fn plan(engine: &str, hosts: usize, routes: &[String]) -> Plan {
    Plan {
        health: "[service.health]\nkind = \"http\"\npath = \"/healthz\"\ninterval = \"500ms\"\ntimeout = \"400ms\"\n"
            .to_owned(),
        routes: routes.concat(),
        ..Plan::new(engine, "method = \"handoff\"\npolicy = \"round-robin\"\n", hosts)
    }
}

/// Starts three hosts with the routes of [`PLACES`].
fn team(engine: &str, family: Family) -> Result<Team> {
    let routes = [route("path = \"/img/*\"", &["web2"]), route("path = \"/doc/*\"", &["web3"])];
    let farm = Farm::builder().every_host(3).build()?;
    Team::start(farm, Plan { family, ..plan(engine, 3, &routes) })
}

/// Returns the service at the address of a host.
fn service(team: &Team, host: usize) -> SocketAddr {
    (team.farm.own_vip(team.plan.family, host), WEB_PORT).into()
}

fn request(team: &Team, host: usize, text: &str) -> Result<Reply> {
    let reply = Talk::open(team.farm.client(0), service(team, host))?.request(text);
    reply.with_context(|| format!("by web{}: {text:?}", host + 1))
}

/// Returns the number of connections with this outcome that all hosts have read in user space.
fn punted(team: &Team, outcome: &str) -> Result<u64> {
    let of = |host: &evener_lab::evener::Evener| {
        Ok(host.status()?.punted.get(outcome).copied().unwrap_or_default())
    };
    team.hosts.iter().map(of).sum()
}

/// Checks that the hosts have read `count` connections in user space and handed all of them off.
fn given(team: &Team, count: u64) -> Result<()> {
    wait_for_count("handed_off", count, || punted(team, "handed_off"))?;
    for outcome in ["spliced", "refused", "no_server", "client_timeout", "evicted"] {
        assert_eq!(punted(team, outcome)?, 0, "{outcome}");
    }
    Ok(())
}

/// Returns the servers of new connections to the address of a host.
fn shares(team: &Team, host: usize, connections: u64) -> Result<BTreeSet<String>> {
    let load = Load { requests: Some(connections), timeout: LONG, ..Load::to(service(team, host)) };
    Ok(unbroken(load.run_on(team.farm.client(0))?)?.servers.into_keys().collect())
}

fn each_host_gives_what_its_routes_say(engine: &str) -> Result<()> {
    for family in Family::BOTH {
        let team = team(engine, family)?;
        for host in 0..3 {
            for (place, servers) in PLACES {
                for number in 0..4 {
                    let reply = request(&team, host, &get("www.example.com", &format!("{place}/{number}")))?;
                    ensure!(
                        servers.contains(&reply.server.as_str()),
                        "{family}: {place} by {}",
                        reply.server
                    );
                }
            }
            // A connection stays with the server of its first request, as elsewhere.
            let mut talk = Talk::open(team.farm.client(0), service(&team, host))?;
            for path in ["/img/a", "/doc/a", "/img/a"] {
                assert_eq!(talk.request(&get("x", path))?.server, "web2");
            }
        }
        given(&team, 0)?;
    }
    Ok(())
}

/// Requests that any host reads in user space are routed by one host, so round robin covers all of
/// them.
fn one_host_decides_for_all(engine: &str) -> Result<()> {
    let farm = Farm::builder().every_host(3).build()?;
    let dispatcher = farm.server(0).address();
    let plan = plan(engine, 3, &[route("path = \"/*?*\"", &["web1", "web2", "web3"])]);
    let mut team = Team::start(farm, Plan { farm: format!("dispatcher = \"{dispatcher}\"\n"), ..plan })?;
    let lccp = |team: &Team, host: usize, outcome: &str| -> Result<u64> {
        Ok(team.hosts[host].status()?.lccp.get(outcome).copied().unwrap_or_default())
    };
    for host in [1, 2] {
        wait::until("the dispatcher is known", || {
            Ok(team.hosts[host].status()?.dispatcher.is_some_and(|dispatcher| dispatcher.responding))
        })?;
    }
    let mut servers = Vec::new();
    for number in 0..12 {
        servers.push(request(&team, 1 + number % 2, &get("x", "/who"))?.server);
    }
    for server in ["web1", "web2", "web3"] {
        assert_eq!(servers.iter().filter(|name| *name == server).count(), 4, "{servers:?}");
    }
    assert_eq!((lccp(&team, 1, "dispatch_answered")?, lccp(&team, 2, "dispatch_answered")?), (6, 6));
    assert_eq!(lccp(&team, 0, "dispatch_served")?, 12);
    given(&team, 12)?;
    // Without the dispatcher, each host routes by itself.
    team.hosts[0].daemon().kill9()?;
    wait::until("the others serve without it", || {
        Ok(request(&team, 1, &get("x", "/who")).is_ok_and(|reply| reply.status == 200))
    })?;
    ensure!(lccp(&team, 1, "dispatch_local")? > 0);
    Ok(())
}

fn each_host_reads_what_is_odd(engine: &str) -> Result<()> {
    for family in Family::BOTH {
        let team = team(engine, family)?;
        for host in 0..3 {
            for (path, server) in [("/img/a", "web2"), ("/doc/a", "web3")] {
                let request = get("www.example.com", path);
                for len in [7, request.len() - 1] {
                    let mut talk = Talk::open(team.farm.client(0), service(&team, host))?;
                    talk.send_slowly(&request, len)?;
                    let context = || format!("{family}: {path} in pieces of {len} by web{}", host + 1);
                    assert_eq!(talk.reply().with_context(context)?.server, server, "{}", context());
                    assert_eq!(talk.request(&get("x", "/who")).with_context(context)?.server, server);
                }
            }
            for (path, server) in [("/%69mg/a", "web2"), ("//doc//a", "web3"), ("/x/../img/a", "web2")] {
                assert_eq!(request(&team, host, &get("x", path))?.server, server, "{family}: {path}");
            }
        }
        given(&team, 21)?;
        let acknowledged = team.hosts.iter().map(|host| Ok(host.status()?.lccp["handoffs_acknowledged"]));
        ensure!(
            acknowledged.sum::<Result<u64>>()? > 0,
            "{family}: no host said that it has what it was given"
        );
        // The host that received the client's connection rejects bad requests.
        assert_eq!(request(&team, 1, "GET / HTTP/1.1\r\n\r\n")?.status, 400);
        wait_for_count("refused", 1, || punted(&team, "refused"))?;
    }
    Ok(())
}

/// Uploads whose head is read in user space, to the same host and to another one.
fn bodies_go_on_to_all_hosts_alike(engine: &str) -> Result<()> {
    let routes = [route("path = \"/*/*d/*\"", &["web2"])];
    for family in Family::BOTH {
        let plan = Plan { family, ..plan(engine, 2, &routes) };
        let team = Team::start(Farm::builder().every_host(2).build()?, plan)?;
        for host in 0..2 {
            for len in [1, 1_400, 1_000_000] {
                there_and_back(&team.farm, team.farm.client(0), service(&team, host), len)
                    .with_context(|| format!("{family}: {len} bytes by web{}", host + 1))?;
            }
        }
        given(&team, 12)?;
    }
    Ok(())
}

fn hosts_behind_a_router_take_their_part(engine: &str) -> Result<()> {
    let routes = [route("path = \"/img/*\"", &["web2"]), route("path = \"/doc/*\"", &["web3"])];
    let farm = Farm::builder().every_host(4).server_lans(2).build()?;
    let team = Team::start(farm, plan(engine, 4, &routes))?;
    let tunnels = team.farm.server(0).capture(0, "udp port 6080")?;
    for host in 0..4 {
        for path in ["/img/a", "/%69mg/a"] {
            assert_eq!(request(&team, host, &get("x", path))?.server, "web2");
        }
        assert_eq!(request(&team, host, &get("x", "/doc/a"))?.server, "web3");
        assert_eq!(shares(&team, host, 12)?.len(), 4, "by web{}", host + 1);
    }
    given(&team, 4)?;
    let to = format!(" > {}.6080: ", team.farm.server(1).address());
    ensure!(tunnels.stop()?.iter().any(|line| line.contains(&to)), "they are reached by tunnels");
    Ok(())
}

fn one_host_takes_all_arrivals(engine: &str) -> Result<()> {
    let team = Team::start(Farm::builder().every_host(3).build()?, plan(engine, 3, &[]))?;
    let load = Load { connections: 12, requests: Some(50), timeout: LONG, ..Load::to(service(&team, 0)) };
    let report = unbroken(load.run_on(team.farm.client(0))?)?;
    assert_eq!(report.servers.len(), 3, "{:?}", report.servers);
    for share in report.servers.values() {
        ensure!((180..=220).contains(&share.connections), "in turn: {:?}", report.servers);
    }
    ensure!(team.counted(0, "cookie_sent")? >= 600, "it greeted all");
    for host in 1..3 {
        assert_eq!(team.counted(host, "cookie_sent")?, 0);
        // Packets that another host forwarded count as the host's own.
        let own = team.hosts[host].server(team.farm.server(host).name())?;
        ensure!(own.connections >= 180, "{own:?}");
    }
    Ok(())
}

/// Only the web server is down: its host detects this and reports it to the others.
fn a_host_without_a_web_server_is_given_nothing(engine: &str) -> Result<()> {
    let mut team = team(engine, Family::V4)?;
    team.farm.stop_web(1)?;
    for host in &team.hosts {
        host.wait_for_servers(2, LONG)?;
    }
    for host in 0..3 {
        ensure!(!shares(&team, host, 12)?.contains("web2"), "by web{}", host + 1);
        // Routes to web2 have no available server.
        assert_eq!(request(&team, host, &get("x", "/img/a"))?.status, 503);
    }
    wait_for_count("no_server", 3, || punted(&team, "no_server"))?;
    team.farm.start_web(1)?;
    team.together()?;
    assert_eq!(request(&team, 0, &get("x", "/img/a"))?.server, "web2");
    Ok(())
}

/// A slow download that lasts longer than a change of the farm.
struct Download {
    /// Index of the host whose address the client uses.
    by: usize,
    server: String,
    thread: JoinHandle<Result<()>>,
}

/// Starts two downloads per address: one served by the host itself and one by another host.
fn downloads(team: &Team) -> Result<Vec<Download>> {
    let start = |(by, passed): (usize, bool)| -> Result<Download> {
        for _ in 0..100 {
            let mut visit = HttpConnection::open(team.farm.client(0), service(team, by))?;
            let server = visit.who()?;
            if passed == (server != team.farm.server(by).name()) {
                let thread = thread::spawn(move || visit.download(4_000_000, LONG));
                return Ok(Download { by, server, thread });
            }
        }
        bail!("web{} never does that", by + 1)
    };
    (0..team.hosts.len()).flat_map(|by| [(by, false), (by, true)]).map(start).collect()
}

fn all_whole(downloads: Vec<Download>) -> Result<()> {
    downloads.into_iter().try_for_each(|Download { by, server, thread }| {
        let done = thread.join().map_err(|_| anyhow!("the download's thread panicked"))?;
        done.with_context(|| format!("the download from {server} by the address of web{}", by + 1))
    })
}

/// Returns a load of continuous visits to all addresses.
fn audience(team: &Team) -> Load {
    let targets = (0..team.hosts.len()).map(|host| service(team, host)).collect();
    let pause = std::time::Duration::from_millis(5);
    Load { targets, connections: 6, pause, timeout: LONG, ..Load::to(service(team, 0)) }
}

fn a_host_dies(engine: &str) -> Result<()> {
    let team = Team::start(Farm::builder().every_host(3).build()?, plan(engine, 3, &[]))?;
    let slow = downloads(&team)?;
    team.farm.server(1).unplug()?;
    wait::until("its address is another's", || Ok(team.owners(1, &[0, 2])?.len() == 1))?;
    wait::until("a new connection there is served", || {
        let timeout = std::time::Duration::from_secs(1);
        let load = Load { requests: Some(1), timeout, ..Load::to(service(&team, 1)) };
        Ok(load.run_on(team.farm.client(0))?.errors.total() == 0)
    })?;
    for host in 0..3 {
        ensure!(!shares(&team, host, 12)?.contains("web2"), "by web{}", host + 1);
    }
    all_whole(slow.into_iter().filter(|download| download.by != 1 && download.server != "web2").collect())?;
    team.farm.server(1).plug()?;
    team.together()?;
    wait::until("it serves again", || Ok(shares(&team, 0, 12)?.contains("web2")))
}

fn all_daemons_restart_in_turn(engine: &str) -> Result<()> {
    let farm = Farm::builder().every_host(3).build()?;
    // On a busy machine, a daemon's restart can take longer than the default time after which other
    // hosts take over its share.
    let patient = Plan { farm: "silence = \"20s\"\n".to_owned(), ..plan(engine, 3, &[]) };
    let mut team = Team::start_by(farm, patient, &["--keep"])?;
    let (load, slow) = (audience(&team).start_on(team.farm.client(0)), downloads(&team)?);
    for host in 0..3 {
        assert_eq!(team.hosts[host].stop()?, 0);
        team.hosts[host].start_again()?;
        ensure!(team.hosts[host].status()?.adopted, "it carries on");
        team.together()?;
    }
    all_whole(slow)?;
    unbroken(load.stop()?)?;
    // The new daemon has a new listener for punted connections.
    for host in 0..3 {
        assert_eq!(request(&team, host, &get("x", "//who"))?.status, 200);
    }
    given(&team, 3)
}

fn a_host_is_drained(engine: &str) -> Result<()> {
    let team = Team::start(Farm::builder().every_host(3).build()?, plan(engine, 3, &[]))?;
    let (load, slow) = (audience(&team).start_on(team.farm.client(0)), downloads(&team)?);
    team.hosts[1].command(&["drain", "web/web2"])?;
    wait::until("all see it drain", || {
        let states = team.hosts.iter().map(|evener| Ok(evener.server("web2")?.state));
        Ok(states.collect::<Result<Vec<_>>>()?.iter().all(|state| state == "draining"))
    })?;
    for host in 0..3 {
        ensure!(!shares(&team, host, 12)?.contains("web2"), "by web{}", host + 1);
        // Requests that are read in user space are not sent to the drained server either.
        ensure!(request(&team, host, &get("x", "//a"))?.server != "web2", "by web{}", host + 1);
    }
    let own = team.hosts[1].server("web2")?;
    ensure!(own.sessions >= 1, "it knows what it still serves: {own:?}");
    all_whole(slow)?;
    unbroken(load.stop()?)?;
    team.hosts[1].command(&["undrain", "web/web2"])?;
    team.together()
}

fn stopped_it_leaves_nothing(engine: &str) -> Result<()> {
    let mut team = team(engine, Family::V4)?;
    let output = team.farm.server(1).output(&[&program()?.to_string_lossy(), "doctor"])?;
    let output = String::from_utf8(output.stdout)?;
    ensure!(output.contains("Connections that are handed over are made here."), "{output}");
    ensure!(!output.lines().any(|line| line.starts_with("FAIL")), "{output}");
    for (evener, host) in team.hosts.iter_mut().zip(team.farm.servers()) {
        let local = || host.run(&["sysctl", "-n", "net.ipv4.conf.lo.accept_local"]);
        assert_eq!(local()?.trim(), "1");
        assert_eq!(evener.stop()?, 0);
        assert_eq!(left_on(host)?, [""; 0], "{}", host.name());
        assert_eq!(local()?.trim(), "0");
    }
    Ok(())
}
