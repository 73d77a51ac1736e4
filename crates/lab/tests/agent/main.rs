//! The agent on real servers: configured parts, decapsulated and rejected packets, and complete
//! removal.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod delays;
mod doctor;
mod host;
mod load;
mod night;
mod pair;
mod refusals;
mod requests;
mod tunnels;
mod wrapper;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use evener_lab::evener::program;
use evener_lab::farm::Farm;
use evener_lab::harness::process::Proc;
use evener_lab::network::host::Host;
use serde::Deserialize;

/// Timeout for start and stop of an agent.
const LIMIT: Duration = Duration::from_secs(20);

/// An agent on a server. Dropping this value stops the agent.
struct Agent {
    host: Host,
    words: Vec<String>,
    process: Proc,
}

/// Output of `evener agent --status --json`.
#[derive(Debug, Deserialize)]
struct Status {
    running: bool,
    addresses: Vec<String>,
    settings: BTreeMap<String, u32>,
    programs: Vec<Program>,
    packets: BTreeMap<String, u64>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Program {
    interface: String,
    hook: String,
}

impl Agent {
    fn start(host: &Host, config: &str, options: &[&str]) -> Result<Agent> {
        Agent::start_by(host, config, &[], options)
    }

    /// Starts an agent with words before its command, such as setpriv(1) with options.
    fn start_by(host: &Host, config: &str, before: &[&str], options: &[&str]) -> Result<Agent> {
        let program = program()?.to_string_lossy().into_owned();
        let config = host.write("agent.toml", config)?.to_string_lossy().into_owned();
        let words = [before, &[program.as_str(), "agent", "--config", &config], options].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let process = start(host, &words)?;
        Ok(Agent { host: host.clone(), words, process })
    }

    fn start_again(&mut self) -> Result<()> {
        self.process = start(&self.host, &self.words)?;
        Ok(())
    }

    fn stop(&mut self) -> Result<i32> {
        self.process.sigterm(LIMIT)
    }

    fn write(&self, config: &str) -> Result<()> {
        self.host.write("agent.toml", config).map(drop)
    }
}

fn start(host: &Host, words: &[String]) -> Result<Proc> {
    let mut process = host.spawn("agent", words)?;
    process.wait_for("evener: ready", LIMIT)?;
    Ok(process)
}

fn status(host: &Host) -> Result<Status> {
    let text = host.run(&[&program()?.to_string_lossy(), "agent", "--status", "--json"])?;
    serde_json::from_str(&text).with_context(|| format!("the status is {text}"))
}

/// Returns exit code and standard error of an agent that must refuse to start.
fn refused(host: &Host, config: &str, options: &[&str]) -> Result<(i32, String)> {
    let config = host.write("refused.toml", config)?;
    let (program, config) =
        (program()?.to_string_lossy().into_owned(), config.to_string_lossy().into_owned());
    let words = [&[program.as_str(), "agent", "--config", &config], options].concat();
    let output = host.output(&words)?;
    Ok((output.status.code().context("it was ended by a signal")?, String::from_utf8(output.stderr)?))
}

/// Returns all state of a host that an agent may change: addresses, routes, sysctls and programs.
fn snapshot(host: &Host) -> Result<Vec<String>> {
    let settings = host.run(&[
        "sh",
        "-c",
        "grep . /proc/sys/net/ipv4/conf/*/arp_* /proc/sys/net/ipv4/conf/*/rp_filter",
    ])?;
    let addresses = host.run(&["ip", "-oneline", "address"])?;
    let routes = host.run(&["ip", "route", "show", "table", "all"])?;
    let routes6 = host.run(&["ip", "-6", "route", "show", "table", "all"])?;
    let programs = host.run(&["bpftool", "net"])?;
    Ok([settings, addresses, routes, routes6, programs]
        .iter()
        .flat_map(|text| text.lines())
        .map(|line| line.trim().to_owned())
        .collect())
}

/// Returns a service with the farm's first server. `keys` are additional lines.
fn service(name: &str, addresses: &[String], keys: &str, server: &str) -> String {
    format!(
        "[[service]]\nname = \"{name}\"\naddresses = {addresses:?}\n{keys}\n[[service.server]]\nname = \"web1\"\n\
         address = \"{server}\"\n\n"
    )
}

/// Returns a farm with one server of method `l2`, and the server's agent.
fn l2_farm() -> Result<(Farm, Agent)> {
    let farm = Farm::builder().bare().build()?;
    let server = farm.server(0);
    let config = service("web", &vips(&farm, 80), "method = \"l2\"", &server.address().to_string());
    let agent = Agent::start(server, &config, &[])?;
    Ok((farm, agent))
}

/// Returns both service addresses with a port.
fn vips(farm: &Farm, port: u16) -> [String; 2] {
    use evener_lab::network::family::Family;
    Family::BOTH.map(|family| std::net::SocketAddr::new(farm.vip_in(family, 0), port).to_string())
}
