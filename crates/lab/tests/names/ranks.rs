//! Ranks from the load-balancing agent: by delay and by the rate of paths.

use std::fs;

use anyhow::Result;
use evener_lab::evener::Agent;
use evener_lab::harness::wait;
use evener_lab::servers::report_server::{ReportServer, json};

use crate::loads::{LOAD_PORT, shares, shown};
use crate::stage::{NAME, Stage, file};

const ASKED: &str = "policy = \"expected-delay\"\nreport_gain = 32\nreport = { interval = \"200ms\" }\n";

fn load(delay_seconds: f64, bottleneck_bps: f64, available_bps: f64) -> String {
    json(&format!(
        "{{\"delay_seconds\":{delay_seconds},\"bottleneck_bps\":{bottleneck_bps},\"available_bps\":{available_bps}}}"
    ))
}

fn report_servers<const N: usize>(stage: &Stage, says: [String; N]) -> Result<Vec<ReportServer>> {
    let servers = stage.farm.servers().iter().zip(says);
    servers.map(|(host, says)| ReportServer::start(host, LOAD_PORT, &says)).collect()
}

#[test]
fn rank_policy_of_paper_answers_best_ranked() -> Result<()> {
    let stage = Stage::start(2, "")?;
    let (ranks, states) = (stage.farm.director().file("ranks"), stage.farm.director().file("states"));
    let keys = format!(
        "{ASKED}rank = \"paper\"\nrank_file = \"{}\"\ngdnsd_file = \"{}\"\n",
        ranks.display(),
        states.display()
    );
    let report_servers = report_servers(&stage, [load(0.0, 4e6, 4e6), load(0.0, 100e6, 60e6)])?;
    stage.evener.reload(&file(&stage.farm, &keys))?;
    let [slow, fast] = [stage.address(0), stage.address(1)];
    let best = |first: &str, second: &str| {
        let text = format!("{NAME} {first} 1\n{NAME} {second} 2\n");
        wait::until("ranks are written", || Ok(fs::read_to_string(&ranks).unwrap_or_default() == text))
    };
    best(&fast, &slow)?;
    assert!(stage.given(8)?.keys().eq([&fast]));
    assert_eq!(shares(&stage)?, [0, 100]);
    assert_eq!((&shown(&stage, 1)?["rank"], &shown(&stage, 1)?["available_bps"]), (&1.into(), &60e6.into()));
    assert_eq!(fs::read_to_string(&states)?, format!("{slow} => UP/5\n{fast} => UP/5\n"));
    // 160 Mbit/s with a delay of 61 s weighs less than 8 Mbit/s without delay.
    report_servers[1].set_report(&load(60.0, 100e6, 60e6))?;
    best(&slow, &fast)?;
    assert!(stage.given(8)?.keys().eq([&slow]));
    stage.farm.set_healthy(0, false)?;
    wait::until("the other is given", || Ok(stage.given(1)?.keys().eq([&fast])))?;
    wait::until("it is written that one doesn't live", || {
        let text = fs::read_to_string(&states)?;
        Ok(text == format!("{slow} => DOWN/5\n{fast} => UP/5\n"))
    })?;
    assert_eq!(fs::read_to_string(&ranks)?, format!("{NAME} {fast} 1\n"));
    Ok(())
}

#[test]
fn an_idle_server_on_an_unknown_path_is_given() -> Result<()> {
    let unknown = json("{\"delay_seconds\":0,\"bottleneck_bps\":null,\"available_bps\":null}");
    let stage = Stage::start(2, &format!("{ASKED}rank = \"paper\"\n"))?;
    let report_servers = report_servers(&stage, [load(0.2, 100e6, 60e6), unknown.clone()])?;
    let [busy, idle] = [stage.address(0), stage.address(1)];
    let given =
        |address: &String| Ok(shown(&stage, 0)?["rank"].is_u64() && stage.given(4)?.keys().eq([address]));
    let is_unknown =
        || Ok(shown(&stage, 1)?["cause"].as_str().is_some_and(|why| why.contains("path unknown")));
    wait::until("its path is unknown", is_unknown)?;
    wait::until("the idle one is given", || given(&idle))?;
    assert!(shown(&stage, 1)?["available_bps"].is_null(), "unknown, and not 0");
    report_servers[0].set_report(&load(0.0, 100e6, 60e6))?;
    wait::until("the other is idle, too", || Ok(shown(&stage, 0)?["delay_seconds"] == 0.0))?;
    wait::until("of two alike the unknown one is given", || given(&idle))?;
    report_servers[1].set_report(&load(0.0, 4e6, 4e6))?;
    wait::until("its path is known to be slow", || given(&busy))?;
    stage.evener.reload(&file(&stage.farm, ASKED))?;
    report_servers[1].set_report(&unknown)?;
    wait::until("with the corrected rank both have half", || Ok(shares(&stage)? == [50, 50]))
}

#[test]
fn slow_path_adds_its_reply_delay_to_rank() -> Result<()> {
    let stage = Stage::start(2, ASKED)?;
    // Sending 19,773 bytes takes as long on the second server's path as its queue.
    let _report_servers = report_servers(&stage, [load(0.1, 1e9, 1e9), load(0.1, 1e9, 1_581_840.0)])?;
    wait::until("half of the other's", || Ok(shares(&stage)? == [67, 33]))
}

#[test]
fn loads_count_when_a_period_ends_and_health_at_once() -> Result<()> {
    let period = |text: &str| format!("{ASKED}period = \"{text}\"");
    let stage = Stage::start(2, &period("1h"))?;
    let report_servers = report_servers(&stage, [load(0.5, 1e9, 1e9), load(0.5, 1e9, 1e9)])?;
    let has_told = |server: usize, delay: f64| Ok(shown(&stage, server)?["delay_seconds"] == delay);
    wait::until("both have told", || Ok(has_told(0, 0.5)? && has_told(1, 0.5)?))?;
    report_servers[0].set_report(&load(2.0, 1e9, 1e9))?;
    wait::until("it has told more", || has_told(0, 2.0))?;
    assert_eq!(shares(&stage)?, [50, 50]);
    stage.farm.set_healthy(1, false)?;
    wait::until("one is left", || Ok(shares(&stage)? == [100, 0]))?;
    stage.farm.set_healthy(1, true)?;
    wait::until("both, by what is known now", || Ok(shares(&stage)? == [20, 80]))?;
    stage.evener.reload(&file(&stage.farm, &period("300ms")))?;
    report_servers[0].set_report(&load(0.5, 1e9, 1e9))?;
    wait::until("a period ends", || Ok(shares(&stage)? == [50, 50]))
}

#[test]
fn agents_report_bandwidth_to_clients() -> Result<()> {
    const TOLD: &str = "[agent]\nreport = \"200ms\"\nlisten = \"0.0.0.0:9183\"\n";
    let stage = Stage::start(2, ASKED)?;
    let told = TOLD.to_owned() + &file(&stage.farm, ASKED);
    let _agents: Vec<Agent> =
        stage.farm.servers().iter().map(|host| Agent::start(host, &told)).collect::<Result<_>>()?;
    let mut downloads = Vec::new();
    for (server, megabits) in [(0, 4), (1, 40)] {
        stage.farm.server(server).limit(Some(megabits))?;
        let big = format!("http://{}/big", stage.address(server));
        // Lasts more than a minute unless the test ends first.
        let times = if megabits > 4 { 24 } else { 3 };
        let words = [&["curl", "--silent"][..], &["-o", "/dev/null", &big].repeat(times)].concat();
        downloads.push(stage.farm.client(server).spawn(&format!("download{server}"), &words)?);
    }
    // A frame of 1,514 bytes carries 1,448 bytes of the response.
    for (server, megabits) in [(0, 4.0), (1, 40.0)] {
        let right = megabits * 1e6 * 1_448.0 / 1_514.0;
        let near =
            |value: &serde_json::Value| value.as_f64().is_some_and(|bps| (bps / right - 1.0).abs() < 0.1);
        wait::until(&format!("{megabits} Mbit/s are told"), || {
            let shown = shown(&stage, server)?;
            Ok(near(&shown["available_bps"]) && near(&shown["bottleneck_bps"]))
        })?;
    }
    Ok(())
}

#[test]
fn ranks_of_another_host_decide_until_they_are_too_old() -> Result<()> {
    let stage = Stage::start(2, "")?;
    let host = stage.farm.director();
    let [one, other] = [stage.address(0), stage.address(1)];
    let write = |text: &str| -> Result<()> {
        let new = host.write("ranks.new", text)?;
        Ok(fs::rename(new, host.file("ranks"))?)
    };
    write(&format!("{NAME} {other} 1\n{NAME} {one} 2\n"))?;
    let keys = format!(
        "rank_from = \"{}\"\nperiod = [[\"00:00\", \"300ms\"], [\"12:00\", \"299ms\"]]\n",
        host.file("ranks").display()
    );
    stage.evener.reload(&file(&stage.farm, &keys))?;
    let all = |address: &str| Ok(stage.given(12)?.keys().eq([address]));
    wait::until("the best is given", || all(&other))?;
    write(&format!("{NAME} {one} 1\n{NAME} {other} 2\n"))?;
    wait::until("the new best is given", || all(&one))?;
    stage.farm.set_healthy(0, false)?;
    wait::until("one that doesn't live isn't", || all(&other))?;
    stage.farm.set_healthy(0, true)?;
    wait::until("one that lives again is", || all(&one))?;
    // Files with an unknown address or an incomplete line.
    for bad in [format!("{NAME} {other} 1\n{NAME} 10.9.9.9 2\n"), format!("{NAME} {other} 1\n{NAME} {one} 2")]
    {
        write(&bad)?;
        wait::until("weights count once the ranks before are too old", || Ok(stage.given(40)?.len() == 2))?;
        write(&format!("{NAME} {one} 1\n"))?;
        wait::until("ranks are believed again", || all(&one))?;
    }
    fs::remove_file(host.file("ranks"))?;
    wait::until("weights count without a file", || Ok(stage.given(40)?.len() == 2))
}
