//! Servers that report their load, and the effect. Web servers and clients are real. The report
//! servers are simulated and send what a test needs.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{Agent, Evener};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::servers::report_server::{ReportServer, json};

use crate::{file, kept, shares, split};

on_one_engine! {
    who_is_busy_gets_fewer_connections,
    who_speaks_agent_check_gets_what_it_asks_for,
    reports_are_collected_by_the_time_of_day,
    latency_of_probes_is_enough,
    agents_say_what_servers_feel,
}

const PORT: u16 = 9_183;
const CHECK_PORT: u16 = 9_184;

fn cpu(share: f64) -> String {
    json(&format!("{{\"cpu\":{share}}}"))
}

/// Opens `count` connections and keeps them open. Returns their number per server.
fn held(farm: &Farm, count: usize) -> Result<([usize; 2], Vec<HttpConnection>)> {
    let visits = kept(farm, count)?;
    let of = |name: &str| visits.iter().filter(|(server, _)| server == name).count();
    let shares = ["web1", "web2"].map(of);
    Ok((shares, visits.into_iter().map(|(_, visit)| visit).collect()))
}

fn who_is_busy_gets_fewer_connections(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let report_servers: Vec<ReportServer> = farm
        .servers()
        .iter()
        .map(|host| ReportServer::start(host, PORT, &cpu(0.2)))
        .collect::<Result<_>>()?;
    let keys = "policy = \"utilisation\"\nreport_gain = 32\nreport = { interval = \"200ms\" }\n";
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, keys))?;
    evener.wait_for_servers(2, LONG)?;
    let cause_of = |server: &str| -> Result<_> { Ok(evener.server(server)?.cause.unwrap_or_default()) };
    wait::until("both are asked", || {
        Ok(cause_of("web1")?.starts_with("reported 0.20") && cause_of("web2")?.starts_with("reported 0.20"))
    })?;
    let (even, visits) = held(&farm, 12)?;
    assert_eq!(even, [6, 6], "equals have equal shares");
    drop(visits);

    report_servers[0].set_report(&cpu(0.9))?;
    wait::until("web1 is spared", || Ok(evener.server("web1")?.effective_weight < 0.3))?;
    wait::until("connections are over", || Ok(evener.servers()?.iter().all(|server| server.sessions == 0)))?;
    // web1 has 4.5 times the load: about 4 of 22 connections, plus an occasional one for any load.
    let (shares, visits) = held(&farm, 22)?;
    ensure!((2..=7).contains(&shares[0]), "{shares:?}");
    ensure!(cause_of("web1")?.starts_with("reported 0.90"), "{}", cause_of("web1")?);
    drop(visits);

    report_servers[1].set_report(&json("{\"cpu\":-3}"))?;
    wait::until("an odd report is refused", || {
        let report = evener.server("web2")?.report.unwrap_or_default();
        Ok(report.refused.get("not_a_number").is_some_and(|count| *count > 0) && report.error.is_some())
    })?;
    ensure!(cause_of("web2")?.starts_with("reported 0.20"), "what it said before holds for a while");
    Ok(())
}

fn who_speaks_agent_check_gets_what_it_asks_for(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let report_server = ReportServer::start(farm.server(0), PORT, "up 50%\n")?;
    let keys = format!("report = {{ kind = \"agent-check\", port = {PORT}, interval = \"200ms\" }}\n");
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, &keys))?;
    evener.wait_for_servers(2, LONG)?;
    wait::until("web1 has half of its weight", || Ok(evener.server("web1")?.effective_weight == 0.5))?;
    assert_eq!(shares(&farm, 9)?, split([3, 6]));

    report_server.set_report("drain\n")?;
    evener.wait_for("web1 drains", LONG, |all| all[0].state == "draining")?;
    assert_eq!(evener.server("web1")?.reason.as_deref(), Some("drained by its own report"));
    assert_eq!(shares(&farm, 4)?, split([0, 4]));

    report_server.set_report("nonsense\n")?;
    assert_eq!(shares(&farm, 4)?, split([0, 4]));
    report_server.set_report("ready 100%\n")?;
    evener.wait_for("web1 is back", LONG, |all| all[0].state == "up")?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    Ok(())
}

/// The agents use the options of the packaged unit.
fn agents_say_what_servers_feel(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let expected = format!(
        "[agent]\nreport = \"100ms\"\nlisten = \"0.0.0.0:{PORT}\"\ncheck_listen = \"0.0.0.0:{CHECK_PORT}\"\n"
    );
    let keys = "policy = \"least-load\"\nreport = { interval = \"200ms\" }\n";
    let file = expected + &file::listed(engine, &farm, keys);
    let _agents: Vec<Agent> =
        farm.servers().iter().map(|host| Agent::start_in_unit(host, &file)).collect::<Result<_>>()?;
    let evener = Evener::start(farm.director(), &file)?;
    evener.wait_for_servers(2, LONG)?;
    wait::until("directors hear of load", || {
        let servers = evener.servers()?;
        Ok(servers
            .iter()
            .all(|server| server.cause.as_ref().is_some_and(|cause| cause.starts_with("reported load"))))
    })?;

    let (shares, visits) = held(&farm, 6)?;
    let query = |port: u16, question: &str| -> Result<String> {
        let to = SocketAddr::new(farm.server(0).address().into(), port);
        let mut stream = farm.director().enter(|| TcpStream::connect(to))??;
        stream.write_all(question.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    wait::until("connections are counted", || {
        let answer = query(PORT, "GET /v1/load HTTP/1.1\r\nHost: web1\r\n\r\n")?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let load: serde_json::Value = serde_json::from_str(body)?;
        ensure!(head.contains("Endpoint-Load-Metrics: TEXT cpu_utilization="), "{answer}");
        ensure!(load["bytes_source"] == "exact" && load["memory"].is_f64(), "{answer}");
        Ok(load["connections"] == shares[0])
    })?;
    drop(visits);
    let line = query(CHECK_PORT, "")?;
    let percent = line.strip_prefix("up ").and_then(|line| line.strip_suffix("%\n"));
    ensure!(
        percent.is_some_and(|percent| percent.parse().is_ok_and(|percent: u8| (1..=100).contains(&percent))),
        "{line}"
    );
    Ok(())
}

/// The latency of probes determines the shares, without any report from servers.
/// Returns an interval that is `now` at this time of day, and `later` from in half an hour on.
fn by_time_of_day(now: &str, later: &str) -> Result<String> {
    let at = |when: &str| -> Result<String> {
        let output = Command::new("date").args(["-d", when, "+%H:%M"]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let mut steps = [(at("now")?, now), (at("30 minutes")?, later)];
    steps.sort();
    Ok(format!("[[{:?}, {:?}], [{:?}, {:?}]]", steps[0].0, steps[0].1, steps[1].0, steps[1].1))
}

fn reports_are_collected_by_the_time_of_day(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let report_server = ReportServer::start(farm.server(0), PORT, "up 50%\n")?;
    let file = |interval: &str| {
        let keys = format!("report = {{ kind = \"agent-check\", port = {PORT}, interval = {interval} }}\n");
        file::listed(engine, &farm, &keys)
    };
    let evener = Evener::start(farm.director(), &file(&by_time_of_day("1h", "200ms")?))?;
    evener.wait_for_servers(2, LONG)?;
    wait::until("web1 is asked once", || Ok(evener.server("web1")?.effective_weight == 0.5))?;
    report_server.set_report("up 100%\n")?;
    // At the other step's interval, the server would be asked ten times.
    std::thread::sleep(Duration::from_secs(2));
    let kept = evener.server("web1")?;
    assert_eq!(
        (kept.effective_weight, kept.cause.map(|cause| cause.starts_with("reported 50 %"))),
        (0.5, Some(true))
    );
    evener.reload(&file(&by_time_of_day("200ms", "1h")?))?;
    wait::until("web1 has all of its weight", || Ok(evener.server("web1")?.effective_weight == 1.0))?;
    report_server.set_report("up 30%\n")?;
    wait::until("web1 is asked again", || Ok(evener.server("web1")?.effective_weight == 0.3))
}

fn latency_of_probes_is_enough(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let health = "health = { interval = \"200ms\" }\n";
    let listed = file::engine(engine)
        + &file::service("web", farm.service(), &format!("policy = \"peak-ewma\"\n{health}"))
        + &file::servers(farm.servers());
    let evener = Evener::start(farm.director(), &listed)?;
    evener.wait_for_servers(2, LONG)?;
    wait::until("latencies are known", || {
        Ok(evener
            .servers()?
            .iter()
            .all(|server| server.cause.as_ref().is_some_and(|cause| cause.starts_with("latency"))))
    })?;
    // On a busy machine, latencies vary, and so do the shares of the servers.
    let (shares, _visits) = held(&farm, 12)?;
    assert_eq!(shares.iter().sum::<usize>(), 12);
    Ok(())
}
