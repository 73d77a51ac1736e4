//! Shares that follow the load that servers report.

use anyhow::Result;
use evener_lab::harness::wait;
use evener_lab::servers::report_server::{ReportServer, json};
use serde_json::Value;

use crate::stage::Stage;

/// Default port of load reports.
pub(crate) const LOAD_PORT: u16 = 9_183;
const KEYS: &str = "policy = \"expected-delay\"\nreport_gain = 32\nreport = { interval = \"200ms\" }";

fn delay(seconds: f64) -> String {
    json(&format!("{{\"delay_seconds\":{seconds}}}"))
}

/// Returns the daemon's view of a server's address.
pub(crate) fn shown(stage: &Stage, server: usize) -> Result<Value> {
    let names: Vec<Value> = stage.evener.json(&["names"])?;
    let address = stage.address(server);
    Ok(names.into_iter().find(|name| name["address"] == *address).unwrap_or_default())
}

/// Returns the shares of two servers in percent.
pub(crate) fn shares(stage: &Stage) -> Result<[u64; 2]> {
    let share = |server| -> Result<u64> {
        Ok((shown(stage, server)?["share"].as_f64().unwrap_or_default() * 100.0).round() as u64)
    };
    Ok([share(0)?, share(1)?])
}

#[test]
fn slow_sender_is_answered_less_but_still() -> Result<()> {
    let stage = Stage::start(2, KEYS)?;
    let report_servers: Vec<ReportServer> = (0..2)
        .map(|server| ReportServer::start(stage.farm.server(server), LOAD_PORT, &delay(0.5)))
        .collect::<Result<_>>()?;
    let delays = || -> Result<[Value; 2]> {
        Ok([shown(&stage, 0)?["delay_seconds"].clone(), shown(&stage, 1)?["delay_seconds"].clone()])
    };
    wait::until("both have told", || Ok(delays()?.iter().all(|delay| *delay == 0.5)))?;
    assert_eq!(shares(&stage)?, [50, 50]);
    report_servers[0].set_report(&delay(2.0))?;
    wait::until("a quarter of the other's", || Ok(shares(&stage)? == [20, 80]))?;
    assert_eq!((&shown(&stage, 0)?["rank"], &shown(&stage, 1)?["rank"]), (&2.into(), &1.into()));
    // Of 50 draws with a probability of 1/5, none at all occurs once in 70,000 runs, and more than
    // 30 never.
    let given = stage.given(50)?;
    let to_first = given.get(&stage.address(0)).copied().unwrap_or_default();
    assert!((1..=30).contains(&to_first), "{given:?}");
    report_servers[0].set_report(&delay(3_600.0))?;
    wait::until("the least that anyone has", || Ok(shares(&stage)? == [3, 97]))?;
    report_servers[0].set_report(&json("{\"delay_seconds\":-1}"))?;
    report_servers[1].set_report(&json("{\"delay_seconds\":\"soon\"}"))?;
    wait::until("what was believed grows old", || Ok(delays()?.iter().all(Value::is_null)))?;
    assert_eq!(shares(&stage)?, [50, 50], "who says nothing is of middling load");
    Ok(())
}

#[test]
fn server_requesting_drain_is_drained() -> Result<()> {
    let keys = format!("report = {{ kind = \"agent-check\", port = {LOAD_PORT}, interval = \"200ms\" }}");
    let stage = Stage::start(2, &keys)?;
    let report_server = ReportServer::start(stage.farm.server(0), LOAD_PORT, "up 50%\n")?;
    wait::until("half of its weight", || Ok(shares(&stage)? == [33, 67]))?;
    report_server.set_report("drain\n")?;
    wait::until("it drains", || Ok(shown(&stage, 0)?["state"] == "draining"))?;
    assert_eq!(shares(&stage)?, [0, 100]);
    assert!(stage.given(6)?.keys().eq([&stage.address(1)]));
    report_server.set_report("ready 100%\n")?;
    wait::until("it is back", || Ok(shares(&stage)? == [50, 50]))?;
    Ok(())
}
