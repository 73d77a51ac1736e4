//! The paper's variants, and variants that it names but did not build: all hosts serve connections
//! that arrive at any host.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evener_lab::clients::half_close::{Late, LateRequests, silent};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::clients::reused_ports;
use evener_lab::clients::transfer;
use evener_lab::evener::{Plan, Team};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;

use crate::{HASH, IN_TURN, STATELESS, service, shares};

on_both_engines! {
    by_hash,
    by_hash_without_sessions,
    in_turn,
    by_fewest_sessions,
    in_ip_packets,
    in_udp_without_sessions,
    on_two_networks,
    by_a_rewriter_that_serves_nothing,
    over_ipv6,
    in_ip_packets_over_ipv6,
    who_has_said_all_is_answered_late,
    ports_are_used_again_by_mac_address,
    ports_are_used_again_in_ip_packets,
}

on_one_engine! {
    what_is_too_much_flows_over,
    on_six_hosts,
}

/// Number of connections to each address.
const CONNECTIONS: u64 = 60;

/// Expected distribution of connections to one address.
#[derive(Clone, Copy)]
enum Spread {
    Even,
    /// Every server gets a fair share.
    Fair,
}

/// Each address in turn receives all connections (the paper's imbalanced case), and all hosts with
/// a weight serve them. Large files arrive complete, and the hosts' packets are well-formed.
fn serves(team: &Team, spread: Spread) -> Result<()> {
    let serving: Vec<String> = (1..)
        .zip(&team.plan.weights)
        .filter(|(_, weight)| **weight > 0)
        .map(|(number, _)| format!("web{number}"))
        .collect();
    let recording = team.farm.server(0).record(0)?;
    for host in 0..team.hosts.len() {
        let shares =
            shares(team, service(team, host), CONNECTIONS).with_context(|| format!("by web{}", host + 1))?;
        let even = CONNECTIONS / serving.len() as u64;
        let right = |share: &u64| match spread {
            Spread::Even => *share == even,
            Spread::Fair => *share >= even / 4,
        };
        ensure!(shares.keys().eq(&serving) && shares.values().all(right), "by web{}: {shares:?}", host + 1);
        for len in [1, 70_000, 2_000_000] {
            transfer::there_and_back(&team.farm, team.farm.client(0), service(team, host), len)
                .with_context(|| format!("{len} bytes by web{}", host + 1))?;
        }
    }
    let sent = recording.verified()?.len();
    ensure!(sent > 100, "{sent} frames");
    Ok(())
}

fn by_hash(engine: &str) -> Result<()> {
    let team = crate::team(engine, HASH, 3)?;
    serves(&team, Spread::Fair)?;
    ensure!(!team.hosts[0].sessions()?.is_empty(), "sessions are noted");
    Ok(())
}

fn by_hash_without_sessions(engine: &str) -> Result<()> {
    let team = crate::team(engine, STATELESS, 3)?;
    serves(&team, Spread::Fair)?;
    for (host, evener) in team.hosts.iter().enumerate() {
        let name = team.farm.server(host).name();
        let sessions = evener.sessions()?;
        let others: Vec<_> = sessions.iter().filter(|session| session.server != name).collect();
        ensure!(others.is_empty(), "{name} notes sessions of others: {others:?}");
    }
    Ok(())
}

fn in_turn(engine: &str) -> Result<()> {
    serves(&crate::team(engine, IN_TURN, 3)?, Spread::Even)
}

fn by_fewest_sessions(engine: &str) -> Result<()> {
    let team = crate::team(engine, "policy = \"least-connections\"\n", 3)?;
    let held = hold(&team, 0, 9, Duration::ZERO)?;
    assert_eq!(shares_of(&held), BTreeMap::from([("web1", 3), ("web2", 3), ("web3", 3)]));
    drop(held);
    serves(&team, Spread::Fair)
}

fn what_is_too_much_flows_over(engine: &str) -> Result<()> {
    let team = crate::team(engine, "policy = \"overflow\"\n", 3)?;
    for (host, server) in team.farm.servers().iter().enumerate() {
        let shares = shares(&team, service(&team, host), 5)?;
        assert_eq!(shares, BTreeMap::from([(server.name().to_owned(), 5)]), "who has little to do keeps it");
    }
    let held = hold(&team, 0, 90, Duration::from_millis(50))?;
    let shares = shares_of(&held);
    ensure!(shares.len() == 3 && shares.values().all(|share| *share >= 15), "{shares:?}");
    Ok(())
}

fn in_ip_packets(engine: &str) -> Result<()> {
    let keys = "method = \"tunnel\"\nencapsulation = \"ipip\"\npolicy = \"round-robin\"\n";
    serves(&crate::team(engine, keys, 3)?, Spread::Even)
}

fn in_udp_without_sessions(engine: &str) -> Result<()> {
    let keys = "method = \"tunnel\"\nencapsulation = \"gue\"\npolicy = \"hash\"\nstateless = true\n";
    serves(&crate::team(engine, keys, 3)?, Spread::Fair)
}

fn on_two_networks(engine: &str) -> Result<()> {
    let farm = Farm::builder().every_host(4).server_lans(2).build()?;
    let team = Team::start(farm, Plan::new(engine, IN_TURN, 4))?;
    let tunnels = team.farm.server(0).capture(0, "udp port 6080")?;
    serves(&team, Spread::Even)?;
    let tunnels = tunnels.stop()?;
    let to = |server: usize| {
        let to = format!(" > {}.6080: ", team.farm.server(server).address());
        tunnels.iter().filter(|line| line.contains(&to)).count()
    };
    ensure!(to(1) > 0 && to(3) > 0, "hosts behind the router are reached by tunnels");
    assert_eq!(to(2), 0, "those on the link are not");
    Ok(())
}

fn by_a_rewriter_that_serves_nothing(engine: &str) -> Result<()> {
    let plan = Plan { weights: vec![0, 1, 1], ..Plan::new(engine, IN_TURN, 3) };
    serves(&Team::start(Farm::builder().every_host(3).build()?, plan)?, Spread::Even)
}

fn over_ipv6(engine: &str) -> Result<()> {
    let plan = Plan { family: Family::V6, ..Plan::new(engine, STATELESS, 3) };
    serves(&Team::start(Farm::builder().every_host(3).build()?, plan)?, Spread::Fair)
}

fn in_ip_packets_over_ipv6(engine: &str) -> Result<()> {
    let keys = "method = \"tunnel\"\npolicy = \"round-robin\"\n";
    let plan = Plan { family: Family::V6, ..Plan::new(engine, keys, 3) };
    serves(&Team::start(Farm::builder().every_host(3).build()?, plan)?, Spread::Even)
}

fn on_six_hosts(engine: &str) -> Result<()> {
    serves(&crate::team(engine, IN_TURN, 6)?, Spread::Even)
}

/// A client's FIN closes one direction only, for connections of the first host and of other hosts.
fn who_has_said_all_is_answered_late(engine: &str) -> Result<()> {
    const PORT: u16 = 7_000;
    let plan = Plan { udp: Some(PORT), ..Plan::new(engine, IN_TURN, 3) };
    let team = Team::start(Farm::builder().every_host(3).build()?, plan)?;
    let late = Late::start(team.farm.servers(), PORT)?;
    let file = team.file().replace("protocol = \"udp\"\n", "timeouts = { closing = \"1s\" }\n");
    team.hosts.iter().try_for_each(|evener| evener.reload(&file).map(drop))?;
    team.together()?;
    let service = (team.farm.own_vip(team.plan.family, 0), PORT).into();
    let asked = LateRequests::by(team.farm.client(0), service, 12, "all that there is to say")?;
    wait::until("all are half closed, and have been for long", || {
        Ok(silent(&team.hosts[0].sessions()?) == 12)
    })?;
    late.answer();
    asked.read_answers()
}

/// Opens connections to a host's address at intervals and keeps them open. Returns their servers.
fn hold(team: &Team, host: usize, count: usize, interval: Duration) -> Result<Vec<(String, HttpConnection)>> {
    let open = || -> Result<_> {
        let mut visit = HttpConnection::open(team.farm.client(0), service(team, host))?;
        std::thread::sleep(interval);
        Ok((visit.who()?, visit))
    };
    (0..count).map(|_| open()).collect()
}

fn shares_of(held: &[(String, HttpConnection)]) -> BTreeMap<&str, u64> {
    let mut shares = BTreeMap::new();
    held.iter().for_each(|(server, _)| *shares.entry(server.as_str()).or_default() += 1);
    shares
}

fn ports_are_used_again_by_mac_address(engine: &str) -> Result<()> {
    ports_are_used_again(engine, IN_TURN)
}

fn ports_are_used_again_in_ip_packets(engine: &str) -> Result<()> {
    ports_are_used_again(engine, "method = \"tunnel\"\npolicy = \"round-robin\"\n")
}

fn ports_are_used_again(engine: &str, keys: &str) -> Result<()> {
    let farm = Farm::builder().every_host(2).clients(2).build()?;
    let team = Team::start(farm, Plan::new(engine, keys, 2))?;
    reused_ports::ports_are_used_again(team.farm.clients(), &[service(&team, 0), service(&team, 1)])
}
