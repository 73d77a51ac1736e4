//! Farms whose director reads what clients want before it chooses a server, and hands the open
//! connection over: the product on a director and on servers, real web servers, real clients.

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
use evener_lab::host::Host;
use evener_lab::load::Report;

/// A farm on one network with so many servers alike.
fn farm(engine: &str, servers: u8, routes: &[String]) -> Result<Handoff> {
    let farm = Farm::builder().bare().servers(servers).build()?;
    Handoff::start(farm, Offer::new(engine, servers.into(), routes))
}

/// The count of a server's program for a reason.
fn counted(server: &Host, reason: &str) -> Result<u64> {
    let text = server.run(&[&program()?.to_string_lossy(), "agent", "--status", "--json"])?;
    let status: serde_json::Value = serde_json::from_str(&text)?;
    Ok(status["packets"][reason].as_u64().unwrap_or_default())
}

/// A report without errors.
fn unbroken(report: Report) -> Result<Report> {
    ensure!(report.errors.total() == 0, "{} requests broke: {:?}", report.errors.total(), report.examples);
    ensure!(report.requests > 0, "nothing was asked at all");
    Ok(report)
}
