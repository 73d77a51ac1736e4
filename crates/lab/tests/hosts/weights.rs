//! Weights, limits and loads of hosts, which every host says about its own server.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{Plan, Team};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::servers::report_server::{ReportServer, json};

use crate::{HASH, IN_TURN, STATELESS, all_whole, audience, downloads, service, shares, unbroken};

on_both_engines! {
    weight_of_a_host_counts_at_all_hosts,
    connections_outlive_changes_of_weights,
    connections_outlive_a_change_of_weight_where_nothing_is_noted,
    full_host_gets_no_connection_until_some_end,
}

on_one_engine! {
    reports_of_servers_count_at_all_hosts,
    reported_load_counts_at_all_hosts,
}

const REPORT_PORT: u16 = 9_184;

/// Waits until all hosts see a server as `wanted` says.
fn all_see(
    team: &Team,
    server: &str,
    what: &str,
    wanted: impl Fn(&evener_lab::evener::Server) -> bool,
) -> Result<()> {
    wait::until(&format!("all see {server} {what}"), || {
        let seen = team.hosts.iter().map(|evener| evener.server(server));
        Ok(seen.collect::<Result<Vec<_>>>()?.iter().all(&wanted))
    })
}

fn split(shares: [u64; 3]) -> BTreeMap<String, u64> {
    let named = (1..).zip(shares).filter(|(_, share)| *share > 0);
    named.map(|(number, share)| (format!("web{number}"), share)).collect()
}

/// Waits until connections by a host have these shares. A host shows a change before its tables
/// follow.
fn wait_for_shares(team: &Team, host: usize, wanted: [u64; 3]) -> Result<()> {
    wait::until(&format!("by web{} the shares are {wanted:?}", host + 1), || {
        Ok(shares(team, service(team, host), wanted.iter().sum())? == split(wanted))
    })
}

/// Returns the explanation of a flow by one host that goes to `server`.
fn explained(team: &Team, host: usize, server: usize) -> Result<String> {
    let address = service(team, host).to_string();
    for port in 40_000..40_100 {
        let client = format!("{}:{port}", team.farm.client(0).address());
        let text = team.hosts[host].command(&["explain", &client, &address])?;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if text.contains(&format!("web{server} has ")) {
            return Ok(text);
        }
        // The turn of a ring moves on with real connections.
        shares(team, service(team, host), 1)?;
    }
    anyhow::bail!("none of 100 flows by web{} goes to web{server}", host + 1)
}

fn weight_of_a_host_counts_at_all_hosts(engine: &str) -> Result<()> {
    let mut team = crate::team(engine, IN_TURN, 3)?;
    let elsewhere = team.hosts[0].command(&["weight", "web/web2", "3"]);
    let refusal = format!("{:#}", elsewhere.err().ok_or_else(|| anyhow::anyhow!("it is not refused"))?);
    ensure!(refusal.contains("run this command on that host"), "{refusal}");

    team.hosts[1].command(&["weight", "web/web2", "3"])?;
    all_see(&team, "web2", "with weight 3", |server| server.weight == 3)?;
    for host in 0..3 {
        wait_for_shares(&team, host, [5, 15, 5])?;
    }
    // Restarted hosts hear of the weight again.
    for host in 0..2 {
        team.hosts[host].stop()?;
        team.hosts[host].start_again()?;
    }
    team.together()?;
    all_see(&team, "web2", "with weight 3 again", |server| server.weight == 3)?;
    team.hosts[1].command(&["undo"])?;
    all_see(&team, "web2", "as the file has it", |server| server.weight == 1)?;
    wait_for_shares(&team, 0, [10, 10, 10])?;

    team.hosts[1].command(&["weight", "web/web2", "0"])?;
    all_see(&team, "web2", "without weight", |server| server.state == "draining")?;
    wait_for_shares(&team, 0, [5, 0, 5])?;
    Ok(())
}

/// Each change of a weight changes the tables of all hosts, one after the other.
fn connections_outlive_changes_of_weights(engine: &str) -> Result<()> {
    let team = crate::team(engine, HASH, 3)?;
    let (load, slow) = (audience(&team).start_on(team.farm.client(0)), downloads(&team)?);
    for round in 0..8 {
        let (host, weight) = (round % 3, 1 + round % 4);
        team.hosts[host].command(&["weight", &format!("web/web{}", host + 1), &weight.to_string()])?;
        thread::sleep(Duration::from_millis(100));
    }
    all_whole(slow)?;
    unbroken(load.stop()?).map(drop)
}

fn connections_outlive_a_change_of_weight_where_nothing_is_noted(engine: &str) -> Result<()> {
    let team = crate::team(engine, STATELESS, 3)?;
    let (load, slow) = (audience(&team).start_on(team.farm.client(0)), downloads(&team)?);
    team.hosts[1].command(&["weight", "web/web2", "3"])?;
    all_see(&team, "web2", "with weight 3", |server| server.weight == 3)?;
    all_whole(slow)?;
    unbroken(load.stop()?)?;
    let text = explained(&team, 0, 2)?;
    ensure!(text.contains("web2 has weight 3, as web2 itself reports"), "{text}");
    let text = explained(&team, 1, 2)?;
    ensure!(text.contains("web2 has weight 3 (file: 1, by"), "{text}");
    let text = explained(&team, 1, 1)?;
    ensure!(text.contains("web1 has weight 1, as web1 itself reports"), "{text}");
    Ok(())
}

fn full_host_gets_no_connection_until_some_end(engine: &str) -> Result<()> {
    let team = crate::team(engine, IN_TURN, 3)?;
    let visits = |host: usize, count: usize| -> Result<Vec<(HttpConnection, String)>> {
        let open = |_| {
            let mut visit = HttpConnection::open(team.farm.client(0), service(&team, host))?;
            let server = visit.who()?;
            Ok((visit, server))
        };
        (0..count).map(open).collect()
    };
    let of_web2 = |visits: &[(HttpConnection, String)]| visits.iter().filter(|(_, by)| by == "web2").count();
    // A host's own file may have another limit.
    let limited = team.file().replace("name = \"web2\"\n", "name = \"web2\"\nmax_connections = 4\n");
    team.hosts[1].reload(&limited)?;
    let held = visits(0, 12)?;
    ensure!(of_web2(&held) == 4, "each host got a third");
    all_see(&team, "web2", "full", |server| server.reason.as_deref() == Some("it has its max_connections"))?;
    for host in 0..3 {
        wait::until("web2 gets none", || Ok(of_web2(&visits(host, 6)?) == 0))?;
    }
    drop(held);
    all_see(&team, "web2", "free", |server| server.state == "up")?;
    wait::until("web2 gets a third", || Ok(of_web2(&visits(0, 6)?) == 2))?;
    Ok(())
}

/// Starts three hosts whose servers report, with these keys and this kind of report.
fn reporting(engine: &str, keys: &str, kind: &str, report: &str) -> Result<(Team, Vec<ReportServer>)> {
    let farm = Farm::builder().every_host(3).build()?;
    let servers = farm.servers().iter().map(|host| ReportServer::start(host, REPORT_PORT, report));
    let servers = servers.collect::<Result<Vec<_>>>()?;
    let mut plan = Plan::new(engine, keys, 3);
    plan.health +=
        &format!("[service.report]\nkind = \"{kind}\"\nport = {REPORT_PORT}\ninterval = \"200ms\"\n");
    Ok((Team::start(farm, plan)?, servers))
}

fn reports_of_servers_count_at_all_hosts(engine: &str) -> Result<()> {
    let (team, servers) = reporting(engine, IN_TURN, "agent-check", "up 100%\n")?;
    servers[1].set_report("up 50%\n")?;
    all_see(&team, "web2", "at half its weight", |server| server.effective_weight == 0.5)?;
    wait_for_shares(&team, 0, [10, 5, 10])?;
    let text = explained(&team, 0, 2)?;
    ensure!(
        text.contains("web2 has weight 1, as web2 itself reports; 50 % of it are in force: reported 50 %"),
        "{text}"
    );

    servers[1].set_report("drain\n")?;
    all_see(&team, "web2", "drained", |server| {
        server.reason.as_deref() == Some("drained by its own report")
    })?;
    for host in 0..3 {
        wait_for_shares(&team, host, [5, 0, 5])?;
    }
    servers[1].set_report("up 100%\n")?;
    all_see(&team, "web2", "up", |server| server.state == "up" && server.effective_weight == 1.0)?;
    wait_for_shares(&team, 0, [10, 10, 10])?;
    Ok(())
}

fn reported_load_counts_at_all_hosts(engine: &str) -> Result<()> {
    let idle = json("{\"cpu\":0.1}");
    let keys = "method = \"l2\"\npolicy = \"utilisation\"\nreport_gain = 32\n";
    let (team, servers) = reporting(engine, keys, "http", &idle)?;
    servers[1].set_report(&json("{\"cpu\":0.9}"))?;
    all_see(&team, "web2", "spared", |server| server.effective_weight < 0.3)?;
    let cause = team.hosts[0].server("web2")?.cause.unwrap_or_default();
    ensure!(cause.starts_with("reported load 900"), "{cause}");
    let own = team.hosts[1].server("web2")?.cause.unwrap_or_default();
    ensure!(own.starts_with("reported 0.90"), "{own}");
    for host in [0, 2] {
        let shares = shares(&team, service(&team, host), 60)?;
        ensure!(shares.get("web2").copied().unwrap_or_default() < 12, "by web{}: {shares:?}", host + 1);
    }
    Ok(())
}
