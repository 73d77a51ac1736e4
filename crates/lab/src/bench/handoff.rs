//! Connections that are handed over by what is asked for, beside going straight to the servers, and beside proxies, which
//! read requests too.

use std::net::SocketAddr;

use anyhow::Result;

use super::Effort;
use super::end_to_end::{Outcome, SERVERS, STRAIGHT, Way, engine_of, measure};
use crate::evener::{Handoff, Offer, route};
use crate::family::Family;
use crate::farm::Farm;
use crate::proxies::{HaProxy, NginxProxy};

/// Routes before the one that takes the requests that are measured.
const ROUTES: usize = 100;

/// Builds the farm with all that is compared in it, and measures.
pub(super) fn run(effort: Effort) -> Result<Outcome> {
    // proxies have a director of their own, where no program of ours sees their packets
    let farm = Farm::builder().servers(SERVERS).directors(2).bare().offload_replies().build()?;
    let all: Vec<&str> = farm.servers().iter().map(|server| server.name()).collect();
    let others = (0..ROUTES).map(|number| route(&format!("path = \"/{number}/*\""), &all[..1]));
    let routes: Vec<String> = others.chain([route("path = \"/*\"", &all)]).collect();
    let offer = Offer { sessions_max: 1 << 20, ..Offer::new("xdp", SERVERS.into(), &routes) };
    let handoff = Handoff::start(farm, offer)?;
    let mut outcome = Outcome::new("handoff", STRAIGHT, effort);
    outcome.engines.push(format!("evener handoff: {}", engine_of(&handoff.evener, "xdp")?));
    let farm = &handoff.farm;
    let proxies = &farm.directors()[1];
    let (haproxy, nginx) =
        (HaProxy::start(proxies, farm.servers())?, NginxProxy::start(proxies, farm.servers())?);
    let way = |name, targets: Vec<SocketAddr>| Way { name, targets, client: farm.client(0) };
    let ways = [
        way(STRAIGHT, farm.straight()),
        way("evener handoff", vec![handoff.service(Family::V4)]),
        way("HAProxy tcp", vec![haproxy.tcp]),
        way("HAProxy http", vec![haproxy.http]),
        way("nginx proxy", vec![nginx.http]),
    ];
    measure(&ways, &[false, true], effort, &mut outcome)?;
    Ok(outcome)
}
