//! Farms with a director that reads requests before it selects a server and hands the open
//! connection off:
//! the program on director and servers, real web servers and real clients.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[macro_use]
extern crate evener_lab;

mod abrupt;
mod again;
mod asked;
mod cluster;
mod front;
mod guesses;
mod hostile;
mod idle;
mod kernels;
mod lccp;
mod limits;
mod others;
mod own_address;
mod rehandoff;
mod requests;
mod reverse_path;
mod routes;
mod seen;
mod segments;
mod survival;
mod talk;
mod tls;
mod trouble;
mod units;
mod websocket;

use anyhow::{Result, ensure};
use evener_lab::evener::{Handoff, Offer, program};
use evener_lab::farm::Farm;
use evener_lab::network::host::Host;
use evener_lab::workloads::load::Report;

/// Returns a farm on one network with `servers` equal servers.
fn farm(engine: &str, servers: u8, routes: &[String]) -> Result<Handoff> {
    let farm = Farm::builder().bare().servers(servers).build()?;
    Handoff::start(farm, Offer::new(engine, servers.into(), routes))
}

/// Returns the server programs' count of a reason.
fn counted(server: &Host, reason: &str) -> Result<u64> {
    let text = server.run(&[&program()?.to_string_lossy(), "agent", "--status", "--json"])?;
    let status: serde_json::Value = serde_json::from_str(&text)?;
    Ok(status["packets"][reason].as_u64().unwrap_or_default())
}

/// Returns the report if it has no errors.
fn unbroken(report: Report) -> Result<Report> {
    ensure!(report.errors.total() == 0, "{} requests broke: {:?}", report.errors.total(), report.examples);
    ensure!(report.requests > 0, "nothing was asked at all");
    Ok(report)
}
