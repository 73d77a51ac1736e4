//! Complete farms: the daemon as its users run it, real web servers and real clients. Packet tests
//! run on both engines, and tests of the control plane on one.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[macro_use]
extern crate evener_lab;

/// Generates tests of functions, one per method and engine. Method and engine are the functions'
/// arguments.
macro_rules! by_every_way {
    ($($name:ident),+ $(,)?) => {
        by_way!(l2, L2: $($name),+);
        by_way!(nat, Nat: $($name),+);
        by_way!(source_nat, SourceNat: $($name),+);
        by_way!(ipip, Ipip: $($name),+);
        by_way!(gue, Gue: $($name),+);
    };
}

/// Generates tests of functions for one method.
macro_rules! by_way {
    ($module:ident, $way:ident: $($name:ident),+) => {
        mod $module {
            on_both_engines! { $($name),+ }

            $(pub(super) fn $name(engine: &str) -> anyhow::Result<()> {
                super::$name(engine, crate::stage::Way::$way)
            })+
        }
    };
}

mod affinity;
mod cards;
mod changes;
mod datagrams;
mod discovery;
mod elsewhere;
mod errors;
mod file;
mod floods;
mod forgeries;
mod health;
mod hostile;
mod icmp;
mod jumbo;
mod keepalived;
mod kernels;
mod lasting;
mod link_local;
mod listed;
mod load;
mod local;
mod outage;
mod own_address;
mod page;
mod path_mtu;
mod policies;
mod quick_start;
mod readiness;
mod reload;
mod removed;
mod routes;
mod sessions;
mod stage;
mod state;
mod straight;
mod survival;
mod told;
mod udp;
mod ways;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::farm::Farm;
use evener_lab::network::host::Host;
use evener_lab::workloads::load::{Load, Report, Running};

/// Returns the number of connections per server, of sequential new connections to the farm's
/// service.
fn shares(farm: &Farm, connections: u64) -> Result<BTreeMap<String, u64>> {
    shares_of(farm, farm.service(), connections)
}

/// Returns the number of connections per server, of sequential new connections to a service.
fn shares_of(farm: &Farm, service: SocketAddr, connections: u64) -> Result<BTreeMap<String, u64>> {
    let load = Load { requests: Some(connections), ..Load::to(service) };
    let report = unbroken(load.run_on(farm.client(0))?)?;
    Ok(report.servers.into_iter().map(|(server, share)| (server, share.connections)).collect())
}

/// Returns connections that stay open, with the names of their servers.
fn kept(farm: &Farm, count: usize) -> Result<Vec<(String, HttpConnection)>> {
    kept_of(farm.client(0), farm.service(), count)
}

/// Returns connections to a service that stay open, with the names of their servers.
fn kept_of(client: &Host, service: SocketAddr, count: usize) -> Result<Vec<(String, HttpConnection)>> {
    let open = || -> Result<_> {
        let mut visit = HttpConnection::open(client, service)?;
        Ok((visit.who()?, visit))
    };
    (0..count).map(|_| open()).collect()
}

/// Checks that each connection still reaches its server.
fn go_on(kept: &mut [(String, HttpConnection)]) -> Result<()> {
    for (server, visit) in kept {
        assert_eq!(*server, visit.who()?);
    }
    Ok(())
}

/// Returns the report if it has no errors.
fn unbroken(report: Report) -> Result<Report> {
    ensure!(report.errors.total() == 0, "{} requests broke: {:?}", report.errors.total(), report.examples);
    ensure!(report.requests > 0, "nothing was asked at all");
    Ok(report)
}

/// Starts two clients that each download the big file once, slowly enough to outlast a change of
/// the farm.
fn slow_downloads(farm: &Farm) -> Running {
    let slow = Load {
        path: "/big".to_owned(),
        connections: 2,
        requests: Some(1),
        pace: Some(4_000_000),
        ..Load::to(farm.service())
    };
    slow.start_on(farm.client(0))
}

/// Returns `web1`, `web2` etc. with their shares, in the form that [`shares`] returns.
fn split<const N: usize>(shares: [u64; N]) -> BTreeMap<String, u64> {
    let named = shares.into_iter().enumerate().filter(|(_, share)| *share > 0);
    named.map(|(number, share)| (format!("web{}", number + 1), share)).collect()
}
