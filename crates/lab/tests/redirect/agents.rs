//! Members that join through their agents: real web servers, each with `evener agent`.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result};
use evener_lab::evener::Agent;
use evener_lab::farm::{Farm, WEB_PORT};
use evener_lab::harness::wait;
use evener_lab::servers::other_web_servers;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::credentials::{at, authority, signed};
use crate::membership::tokens;
use crate::stage::{PORT, Stage, file, member};

const TOKEN: &str = "0123456789abcdef-farm";

/// Starts a group that accepts members with the token. `times` are further keys of [service.group].
fn group(name: &str, times: &str) -> Result<(Stage, std::path::PathBuf)> {
    let path = tokens(name, &format!("{TOKEN} * weight=4\n"))?;
    let farm = Farm::builder().bare().servers(2).clients(2).build()?;
    let stage = Stage::start_with(farm, &[], "", &in_group(&path, times))?;
    Ok((stage, path))
}

fn in_group(path: &Path, times: &str) -> String {
    format!("[service.group]\ntoken_file = \"{}\"\nallow = [\"192.0.2.0/24\"]\n{times}", path.display())
}

/// Returns a host's configuration for its agent.
fn host_file(stage: &Stage, path: &Path, more: &str) -> String {
    format!("[agent.member]\ngroup = \"{}\"\ntoken_file = \"{}\"\n{more}\n", stage.url(""), path.display())
}

impl Stage {
    fn agent_members(&self) -> Result<Vec<Value>> {
        let (status, text) = self.tell(1, "GROUP-QUERY", TOKEN, "")?;
        anyhow::ensure!(status == 200, "{status} {text}");
        let listing: Value = serde_json::from_str(&text)?;
        Ok(listing["members"].as_array().context("no members")?.clone())
    }

    /// True if exactly `members` members exist, all up and with a report.
    fn have_reported(&self, members: usize) -> Result<bool> {
        let all = self.agent_members()?;
        let good = |member: &&Value| member["state"] == "up" && member["load"].is_f64();
        Ok(all.len() == members && all.iter().filter(good).count() == members)
    }
}

#[test]
fn hosts_join_with_four_lines_serve_their_share_and_leave() -> Result<()> {
    let (mut stage, path) = group("agents", "")?;
    let config = host_file(&stage, &path, "");
    let mut agents =
        [Agent::start(stage.farm.server(0), &config)?, Agent::start(stage.farm.server(1), &config)?];
    wait::until("both are members and have reported", || stage.have_reported(2))?;
    let member = &stage.agent_members()?[0];
    let own = stage.farm.server(0).address();
    let control = member["control"].as_str().unwrap_or_default().to_owned();
    assert!(member["url"] == format!("http://{own}") || control.contains(":9183"), "{member}");
    let mut seen = [0, 0];
    for _ in 0..20 {
        match stage.follow("/who")?.as_str() {
            "web1" => seen[0] += 1,
            _ => seen[1] += 1,
        }
    }
    assert!(seen.iter().all(|times| *times >= 5), "{seen:?}");
    wait::until("an agent counts its server's requests", || {
        stage.follow("/who")?;
        let url = ["curl", "--silent", "--max-time", "3", "http://127.0.0.1:9183/v1/load"];
        let report: Value = serde_json::from_str(&stage.farm.server(0).run(&url)?)?;
        let rate = report["requests_per_second"].as_f64();
        Ok(report["requests_source"] == "kernel" && rate.is_some_and(|rate| rate > 0.0))
    })?;
    assert!(!agents[0].process().log().contains("(10 m)"), "{}", agents[0].process().log());

    // The agent of a failed server sends no reports, and resumes when the server is back.
    stage.farm.stop_web(0)?;
    agents[0].process().wait_for("the server doesn't answer at its URL", wait::LONG)?;
    wait::until("it is down", || Ok(stage.agent_members()?.iter().any(|one| one["state"] == "down")))?;
    stage.farm.start_web(0)?;
    agents[0].process().wait_for("is a member and reports", wait::LONG)?;

    assert_eq!(agents[1].stop()?, 0);
    wait::until("it has left", || Ok(stage.agent_members()?.len() == 1))?;
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn agent_restart_with_keep_stays_member_and_quit_leaves() -> Result<()> {
    let (stage, path) = group("keep", "")?;
    let host = stage.farm.server(0);
    let mut agent = Agent::start_by(host, &host_file(&stage, &path, ""), &["--keep"])?;
    wait::until("it is a member", || stage.have_reported(1))?;
    assert_eq!(agent.stop()?, 0);
    assert_eq!(stage.agent_members()?.len(), 1);
    agent.start_again()?;
    agent.process().wait_for("joined", wait::LONG)?;
    agent.process().kill9()?;
    assert_eq!(stage.agent_members()?.len(), 1);
    agent.start_again()?;
    agent.process().wait_for("joined", wait::LONG)?;
    agent.process().signal(Signal::SIGQUIT)?;
    wait::until("it has left", || Ok(stage.agent_members()?.is_empty()))?;
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn forgetful_director_regains_members_and_queries_silent_ones() -> Result<()> {
    let times = "report = \"300ms\"\nquery_after = \"1s\"\nremove_after = \"30s\"\n";
    let (mut stage, path) = group("forgets", times)?;
    // The agent reports once a day, but also answers queries.
    let config = host_file(&stage, &path, "report = \"1d\"");
    let host = stage.farm.server(0).clone();
    let mut agent = Agent::start(&host, &config)?;
    wait::until("it is a member", || stage.have_reported(1))?;
    let age =
        |stage: &Stage| anyhow::Ok(stage.agent_members()?[0]["age_seconds"].as_f64().unwrap_or(f64::MAX));
    let mut oldest: f64 = 0.0;
    wait::until("it is silent, and reports when it is asked", || {
        let now = age(&stage)?;
        let is_younger = now < oldest;
        oldest = oldest.max(now);
        Ok(is_younger && oldest >= 0.9)
    })?;

    // The new director does not know the member: the first report is refused, and the agent joins
    // again.
    stage.evener.daemon().signal(Signal::SIGQUIT)?;
    stage.evener.daemon().wait(wait::LONG)?;
    agent.process().signal(Signal::SIGTERM)?;
    agent.process().wait(wait::LONG)?;
    let mut agent = Agent::start(&host, &host_file(&stage, &path, "report = \"300ms\""))?;
    agent.process().wait_for("the director can't be reached", wait::LONG)?;
    stage.evener.start_again()?;
    wait::until("it is a member again", || stage.have_reported(1))?;
    let (status, _) = stage.tell(0, "GROUP-EXIT", TOKEN, &format!("http://{}", host.address()))?;
    assert_eq!(status, 200);
    wait::until("it has joined again by itself", || stage.have_reported(1))?;
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn killed_agent_is_removed_on_first_query() -> Result<()> {
    let times = "report = \"300ms\"\nquery_after = \"1s\"\nremove_after = \"1h\"\n";
    let (stage, path) = group("killed", times)?;
    let mut agent = Agent::start(stage.farm.server(0), &host_file(&stage, &path, "report = \"300ms\""))?;
    wait::until("it is a member", || stage.have_reported(1))?;
    agent.process().kill9()?;
    wait::until("it is removed", || Ok(stage.agent_members()?.is_empty()))?;
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn listed_members_join_by_the_farms_file_and_are_never_removed() -> Result<()> {
    let path = tokens("listed", &format!("{TOKEN} *\n"))?;
    let farm = Farm::builder().bare().servers(2).clients(2).build()?;
    let members: String = (0..2).map(|number| member(&farm, number, "")).collect();
    let times = "report = \"300ms\"\nquery_after = \"1s\"\nremove_after = \"2s\"\n";
    let keys = in_group(&path, times);
    let config =
        format!("[agent.member]\nreport = \"300ms\"\n{}", file(&farm, "", &format!("{keys}{members}")));
    let stage = Stage::start_with(farm, &[], "", &format!("{keys}{members}"))?;
    let mut agents = Agent::start_all(stage.farm.servers(), &config)?;
    wait::until("both report", || stage.have_reported(2))?;
    agents[0].process().kill9()?;
    let state = |stage: &Stage| {
        anyhow::Ok(stage.agent_members()?[0]["state"].as_str().unwrap_or_default().to_owned())
    };
    wait::until("it is silent", || Ok(state(&stage)? == "silent"))?;
    wait::until("nothing is expected of it any more", || Ok(state(&stage)? == "up"))?;
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn agent_logs_director_refusal_once() -> Result<()> {
    let (stage, path) = group("refused", "")?;
    let other = tokens("refused-other", "another-token-than-theirs\n")?;
    let mut agent = Agent::start(stage.farm.server(0), &host_file(&stage, &other, "report = \"200ms\""))?;
    agent
        .process()
        .wait_for("the director refuses it (401): the token is not one of this group", wait::LONG)?;
    wait::until("it was tried again", || Ok(stage.counted("message_401")? >= 4))?;
    assert_eq!(agent.process().log().matches("401").count(), 1);
    let program = evener_lab::evener::program()?.to_string_lossy().into_owned();
    let refused = format!("http://{}:{PORT}: the director refuses it (401)", stage.farm.director().address());
    let shown = stage.farm.server(0).run(&[program.as_str(), "agent", "--status"])?;
    assert!(shown.contains(&format!("group      {refused}")), "{shown}");
    let found = stage.farm.server(0).output(&[program.as_str(), "doctor", "--json"])?;
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.contains(&format!("This host as a member of {refused}")), "{found}");
    fs::remove_file(path)?;
    fs::remove_file(other)?;
    Ok(())
}

#[test]
fn apache_and_caddy_are_members_like_others() -> Result<()> {
    if !other_web_servers::apache_is_there() || !other_web_servers::caddy_is_there() {
        return Ok(());
    }
    let (mut stage, path) = group("others", "")?;
    (0..2).try_for_each(|number| stage.farm.stop_web(number))?;
    // The director probes this page.
    fs::write(stage.farm.page("healthz"), "ok\n")?;
    let (apache, caddy) = (stage.farm.server(0), stage.farm.server(1));
    let _apache = other_web_servers::apache(apache, &stage.farm)?;
    let _caddy = other_web_servers::caddy(caddy, WEB_PORT, &other_web_servers::site(&stage.farm, ""))?;
    let config = host_file(&stage, &path, "");
    let _agents = [Agent::start(apache, &config)?, Agent::start(caddy, &config)?];
    wait::until("both are members and have reported", || stage.have_reported(2))?;
    let mut lengths = Vec::new();
    for _ in 0..6 {
        lengths.push(stage.follow("/2k")?.len());
    }
    assert!(lengths.iter().all(|length| (1_990..=2_000).contains(length)), "{lengths:?}");

    // Apache's status page is a report. A server without a report counts as having a medium load.
    let keys = "policy = \"utilisation\"\nreport = { kind = \"mod_status\", interval = \"200ms\" }\n";
    let members: String = (0..2).map(|number| member(&stage.farm, number, "")).collect();
    stage.evener.reload(&file(&stage.farm, keys, &(in_group(&path, "") + &members)))?;
    let cause = |server: usize| {
        let servers: Value = stage.evener.json(&["servers"])?;
        anyhow::Ok(servers[server]["cause"].as_str().unwrap_or_default().to_owned())
    };
    wait::until("Apache's page is read", || Ok(cause(0)?.starts_with("reported 0.")))?;
    assert_eq!(cause(1)?, "nothing is known: median");
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn members_and_directors_speak_by_tls_both_ways() -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(2).build()?;
    let (director, host) = (farm.director(), farm.server(0));
    authority(director, "fronts")?;
    authority(director, "members")?;
    signed(director, "fronts", "front", &format!("IP:{}", director.address()))?;
    signed(director, "members", "one", &format!("IP:{}", host.address()))?;
    let file = |name: &str| at(director, name);
    let keys =
        format!("tls = {{ certificate = \"{}\", key = \"{}\" }}", file("front.pem"), file("front.key"));
    let times = "report = \"300ms\"\nquery_after = \"1s\"\nremove_after = \"1h\"\n";
    let group = format!("[service.group]\nclient_ca = \"{}\"\n{times}", file("members.pem"));
    let stage = Stage::start_with(farm, &[], &keys, &group)?;
    let (director, host) = (stage.farm.director(), stage.farm.server(0));
    let config = |ca: &str| {
        let own = format!(
            "{{ certificate = \"{}\", key = \"{}\" }}",
            at(director, "one.pem"),
            at(director, "one.key")
        );
        let url = stage.url("").replace("http:", "https:");
        format!(
            "[agent.member]\ngroup = \"{url}\"\nreport = \"1h\"\nca = \"{}\"\ntls = {own}\n",
            at(director, ca)
        )
    };
    let mut stranger = Agent::start(host, &config("members.pem"))?;
    stranger.process().wait_for("the director can't be reached: invalid peer certificate", wait::LONG)?;
    drop(stranger);
    let mut agent = Agent::start(host, &config("fronts.pem"))?;
    agent.process().wait_for("joined", wait::LONG)?;
    let age = || {
        let servers: Value = stage.evener.json(&["servers"])?;
        anyhow::Ok(servers[0]["member"]["age_seconds"].as_f64())
    };
    let mut oldest: f64 = 0.0;
    // The agent reports once an hour, but the director queries it over TLS.
    wait::until("it is silent, and reports when it is asked", || {
        let now = age()?.unwrap_or(f64::MAX);
        let is_younger = now < oldest;
        oldest = oldest.max(if now == f64::MAX { 0.0 } else { now });
        Ok(is_younger && oldest >= 0.9)
    })
}

/// Returns HAProxy's view of a server: the effective weight and the state of the agent check.
fn in_haproxy(socket: &Path, server: &str) -> Result<(u64, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"show stat\n")?;
    let mut table = String::new();
    stream.read_to_string(&mut table)?;
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().trim_start_matches("# ").split(',').collect();
    let row: Vec<&str> = lines
        .map(|line| line.split(',').collect())
        .find(|row: &Vec<&str>| row.get(1) == Some(&server))
        .context("no such server")?;
    let of = |name: &str| {
        names.iter().position(|one| *one == name).and_then(|at| row.get(at)).copied().unwrap_or_default()
    };
    Ok((of("weight").parse()?, of("agent_status").to_owned()))
}

#[test]
fn haproxy_and_a_group_go_by_the_same_agent() -> Result<()> {
    let path = tokens("haproxy", &format!("{TOKEN} *\n"))?;
    let farm = Farm::builder().bare().servers(1).clients(2).build()?;
    let (director, host) = (farm.director().clone(), farm.server(0).clone());
    let socket = director.file("haproxy.sock");
    let config = format!(
        "global\n stats socket {} mode 600\ndefaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\n\
         listen web\n bind {}:8081\n server web1 {}:{WEB_PORT} weight 200 agent-check agent-port 9184 agent-inter 200ms\n",
        socket.display(),
        director.address(),
        host.address()
    );
    let config = director.write("haproxy.cfg", &config)?;
    let _haproxy = director.spawn("haproxy", &["haproxy", "-db", "-f", &config.to_string_lossy()])?;
    let keys = "report = { kind = \"agent-check\", port = 9184, interval = \"200ms\" }\n";
    let stage = Stage::start_with(farm, &[], keys, &(in_group(&path, "")))?;
    wait::until("HAProxy asks", || Ok(socket.exists() && in_haproxy(&socket, "web1")?.1 == "L4CON"))?;
    let own = host_file(&stage, &path, "");
    let config =
        format!("[farm]\ndirectors = [\"{}\"]\n[agent]\ncheck_listen = \":9184\"\n{own}", director.address());
    let _agent = Agent::start(&host, &config)?;
    // Any machine has some load, so the weight is reduced.
    wait::until("HAProxy hears it", || {
        let (weight, agent) = in_haproxy(&socket, "web1")?;
        Ok(agent == "L7OK" && (2..=200).contains(&weight))
    })?;
    wait::until("the group hears it", || {
        let all: Value = stage.evener.json(&["servers"])?;
        let percent = all[0]["member"]["weight_percent"].as_u64().unwrap_or_default();
        let output = all[0]["report"]["percent"].as_u64().unwrap_or_default();
        Ok(all[0]["state"] == "up" && (10..=100).contains(&percent) && (1..=100).contains(&output))
    })?;
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn a_reload_changes_a_member_without_a_gap_and_reads_its_token_again() -> Result<()> {
    let (mut stage, path) = group("reload", "")?;
    let host = stage.farm.server(0).clone();
    let mut agent = Agent::start(&host, &host_file(&stage, &path, ""))?;
    wait::until("it is a member", || stage.have_reported(1))?;
    for weight in [2, 3, 4] {
        let more = format!("weight = {weight}");
        host.write(
            "agent.toml",
            &format!("[agent]\nlisten = \":9183\"\n{}", host_file(&stage, &path, &more)),
        )?;
        agent.process().sighup()?;
        wait::until("its weight is another", || {
            Ok(stage.agent_members()?.first().is_some_and(|one| one["weight"] == weight))
        })?;
    }
    assert!(!stage.evener.daemon().log().contains("left"), "{}", stage.evener.daemon().log());

    // The member's old address is used by another host; the group sees the member at a new address.
    let device = host.interfaces()[0].name.clone();
    let (old, new) = (
        format!("address del {}/24 dev {device}", host.address()),
        format!("address add 192.0.2.99/24 dev {device}"),
    );
    host.ip(&[old, new])?;
    wait::until("it has joined by its new address", || {
        Ok(stage.agent_members()?.iter().any(|one| one["url"] == "http://192.0.2.99"))
    })?;
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn an_operators_drain_lasts_over_leaving_and_joining() -> Result<()> {
    let (stage, path) = group("drain", "")?;
    let host = stage.farm.server(0);
    let mut agent = Agent::start(host, &host_file(&stage, &path, ""))?;
    wait::until("it is a member", || stage.have_reported(1))?;
    stage.evener.command(&["drain", &format!("shop/http://{}", host.address())])?;
    assert_eq!(agent.stop()?, 0);
    assert!(stage.agent_members()?.is_empty());
    agent.start_again()?;
    agent.process().wait_for("joined", wait::LONG)?;
    assert_eq!(stage.agent_members()?[0]["state"], "draining");
    fs::remove_file(path)?;
    Ok(())
}

#[test]
fn a_token_that_others_may_read_is_refused_until_they_may_not() -> Result<()> {
    let (stage, path) = group("modes", "")?;
    let own = tokens("modes-own", &format!("{TOKEN}\n"))?;
    fs::set_permissions(&own, fs::Permissions::from_mode(0o644))?;
    let host = stage.farm.server(0);
    let mut agent = Agent::start(host, &host_file(&stage, &own, "report = \"200ms\""))?;
    agent.process().wait_for("nothing can be sent to the director: ", wait::LONG)?;
    fs::set_permissions(&own, fs::Permissions::from_mode(0o600))?;
    wait::until("it is a member", || stage.have_reported(1))?;
    fs::remove_file(path)?;
    fs::remove_file(own)?;
    Ok(())
}
