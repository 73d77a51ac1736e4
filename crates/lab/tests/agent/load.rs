//! Clients of an agent's load reports.

use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::host::Host;
use evener_lab::servers::nginx_tls;
use evener_lab::workloads::load::Load;
use serde_json::Value;

use crate::{Agent, service, vips};

/// Number of idle connections that one address opens.
const SILENT: usize = 4_000;

/// Opens connections one after the other until `is_over`, and keeps them open.
fn open_silent(
    host: &Host,
    at: SocketAddr,
    opened: &Mutex<Vec<TcpStream>>,
    is_over: &AtomicBool,
) -> Result<()> {
    for _ in (0..SILENT).take_while(|_| !is_over.load(Relaxed)) {
        let stream = host.enter(|| TcpStream::connect(at))??;
        opened.lock().expect("no panic").push(stream);
        // A rate that one machine can sustain.
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

#[test]
fn silent_connections_of_one_address_block_no_director() -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let (host, stranger) = (farm.server(0), farm.server(1));
    let config = format!(
        "[farm]\ndirectors = [\"{}\"]\n[agent]\nlisten = \"0.0.0.0:9183\"\n{}",
        farm.director().address(),
        service("web", &vips(&farm, 80), "", &host.address().to_string())
    );
    let _agent = Agent::start(host, &config, &[])?;
    let at = SocketAddr::from((host.address(), 9_183));
    let url = format!("http://{at}/v1/load");
    // A request that had to wait for all idle connections would exceed this timeout.
    let is_answered = |client: &Host| {
        let report = client.run(&["curl", "--silent", "--max-time", "3", &url]);
        report.is_ok_and(|report| report.contains("\"cpu\""))
    };
    wait::until("the agent listens", || Ok(is_answered(farm.director())))?;
    let (opened, is_over) = (Mutex::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let silent = scope.spawn(|| open_silent(stranger, at, &opened, &is_over));
        let answered = wait::until("more are open than there are places", || {
            Ok(opened.lock().expect("no panic").len() > 200)
        })
        .and_then(|()| wait::until("a director is answered", || Ok(is_answered(farm.director()))))
        .and_then(|()| wait::until("others are answered", || Ok(is_answered(farm.server(2)))));
        is_over.store(true, Relaxed);
        silent.join().expect("no panic").and(answered)
    })
}

#[test]
fn agent_on_all_addresses_answers_only_allowed_clients() -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let (host, allowed, stranger) = (farm.server(0), farm.server(1), farm.server(2));
    let config = format!(
        "[farm]\ndirectors = [\"{}\"]\n[agent]\nlisten = \":9183\"\nallow = [\"{}\"]\n{}",
        farm.director().address(),
        allowed.address(),
        service("web", &vips(&farm, 80), "", &host.address().to_string())
    );
    let _agent = Agent::start(host, &config, &[])?;
    let fetch = |client: &Host, at: &str| {
        let url = format!("http://{at}:9183/v1/load");
        client.run(&["curl", "--silent", "--max-time", "3", &url]).is_ok_and(|load| load.contains("\"cpu\""))
    };
    let own = host.address().to_string();
    wait::until("the agent listens", || Ok(fetch(farm.director(), &own)))?;
    assert!(fetch(allowed, &own) && fetch(host, "127.0.0.1") && fetch(host, "[::1]"));
    assert!(!fetch(stranger, &own), "neither a director nor allowed");
    Ok(())
}

/// Requests in clear are counted by the agent's kernel programs. Requests over TLS can't be, which
/// the report says.
#[test]
fn requests_in_clear_are_part_of_the_load_and_those_over_tls_are_said_to_be_unknown() -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let (host, client) = (farm.server(0), farm.server(1));
    let own = host.address().to_string();
    let _tls = nginx_tls::start(host)?;
    let config = format!(
        "[agent]\nlisten = \"0.0.0.0:9183\"\nreport = \"200ms\"\n{}{}",
        service("web", &vips(&farm, 80), "", &own),
        service("tls", &vips(&farm, nginx_tls::PORT), "", &own)
    );
    let _agent = Agent::start(host, &config, &[])?;
    let report = || -> Result<Value> {
        let url = format!("http://{own}:9183/v1/load");
        Ok(serde_json::from_str(&client.run(&["curl", "--silent", "--max-time", "3", &url])?)?)
    };
    let number =
        |report: &Value, name: &str| report[name].as_f64().with_context(|| format!("{name}: {report}"));
    wait::until("requests in clear are counted", || {
        let load = Load { requests: Some(50), ..Load::to((host.address(), 80).into()) };
        load.run_on(client)?;
        let report = report()?;
        Ok(report["requests_source"] == "kernel" && number(&report, "requests_per_second")? > 5.0)
    })?;
    let found = report()?;
    let (rate, queue) = (number(&found, "requests_per_second")?, number(&found, "run_queue")?);
    let load = number(&found, "load")?;
    assert!((load - 10.0 * (rate + queue)).abs() < 0.01, "{found}");

    wait::until("requests over TLS are unknown", || {
        let url = format!("https://{own}/");
        for _ in 0..20 {
            client.run(&["curl", "--silent", "--insecure", "--max-time", "3", &url])?;
        }
        Ok(report()?["requests_source"] == "unread")
    })?;
    let found = report()?;
    assert!(found["requests_per_second"].is_null(), "{found}");
    assert!((number(&found, "load")? - 10.0 * number(&found, "run_queue")?).abs() < 0.01, "{found}");
    Ok(())
}
