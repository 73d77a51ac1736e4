//! Servers on other networks than the director: nat and tunnels, compared with the kernel's own
//! functions. Each variant has a separate farm, so that no other program sees its packets.

use std::any::Any;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::Effort;
use super::end_to_end::{HOP, Outcome, PAGES, SERVERS, STRAIGHT, Way, measure, start};
use crate::evener::{self, Agent};
use crate::farm::{Builder, Farm};
use crate::network::bare_hop::{Hop, Method};
use crate::servers::proxies::{HaProxy, NftDnat};

/// Baseline of nat: the same client and servers, and the director as a plain router.
const ROUTED: &str = "the director's kernel, routing";
/// The kernel's own nat.
const DNAT: &str = "nftables DNAT";

/// Path from clients to servers. The programs in between end before their farm.
struct Lane {
    name: &'static str,
    targets: Vec<SocketAddr>,
    _between: Vec<Box<dyn Any>>,
    farm: Farm,
}

/// Compares nat with routing, with the kernel's own nat, and with a proxy.
pub(super) fn nat(effort: Effort) -> Result<Outcome> {
    let builder = Farm::builder().servers(SERVERS).routed().offload_replies();
    let mut outcome = Outcome::new("nat", ROUTED, Some(DNAT), effort);
    let routed = lane(ROUTED, &builder, |farm| {
        farm.forward_on_directors()?;
        Ok((farm.straight(), Vec::new()))
    })?;
    let mut lanes = vec![routed];
    for (name, engine) in [("evener nat, xdp", "xdp"), ("evener nat, packet", "packet")] {
        add_evener(&mut lanes, &mut outcome, name, &builder, engine, "method = \"nat\"\n");
    }
    lanes.push(lane(DNAT, &builder, |farm| {
        farm.forward_on_directors()?;
        let dnat = NftDnat::start(farm.director(), farm.service(), farm.servers())?;
        Ok((vec![farm.service()], vec![Box::new(dnat)]))
    })?);
    lanes.push(haproxy(&builder)?);
    compare(&lanes, effort, outcome)
}

/// Compares tunnels with direct connections and with a proxy.
pub(super) fn tunnel(effort: Effort) -> Result<Outcome> {
    let builder = Farm::builder().servers(SERVERS).remote().bare().offload_replies();
    let mut outcome = Outcome::new("tunnel", STRAIGHT, Some(HOP), effort);
    let mut lanes = vec![lane(STRAIGHT, &builder, |farm| Ok((farm.straight(), Vec::new())))?];
    lanes.push(lane(HOP, &builder, |farm| {
        // servers decapsulate packets as they do for the director
        let file = evener::web_service_by(farm, 0, "xdp", "method = \"tunnel\"\n");
        let agents = Agent::start_all(farm.servers(), &file)?;
        let hop = Hop::start(farm.director(), farm, 0, Method::Tunnel)?;
        Ok((vec![farm.service()], vec![Box::new(agents), Box::new(hop)]))
    })?);
    let (ipip, gue) = ("method = \"tunnel\"\n", "method = \"tunnel\"\nencapsulation = \"gue\"\n");
    for (name, engine, keys) in [
        ("evener ipip, xdp", "xdp", ipip),
        ("evener gue, xdp", "xdp", gue),
        ("evener ipip, packet", "packet", ipip),
    ] {
        add_evener(&mut lanes, &mut outcome, name, &builder, engine, keys);
    }
    lanes.push(haproxy(&builder)?);
    compare(&lanes, effort, outcome)
}

fn compare(lanes: &[Lane], effort: Effort, mut outcome: Outcome) -> Result<Outcome> {
    let ways: Vec<Way<'_>> = lanes
        .iter()
        .map(|Lane { name, targets, farm, .. }| Way {
            name,
            targets: targets.clone(),
            director: None,
            client: farm.client(0),
        })
        .collect();
    measure(&ways, &PAGES, &[false], effort, &mut outcome)?;
    Ok(outcome)
}

fn lane(
    name: &'static str,
    builder: &Builder,
    begin: impl FnOnce(&Farm) -> Result<(Vec<SocketAddr>, Vec<Box<dyn Any>>)>,
) -> Result<Lane> {
    let farm = builder.clone().build()?;
    let (targets, between) = begin(&farm).with_context(|| format!("Starting {name} failed"))?;
    Ok(Lane { name, targets, _between: between, farm })
}

fn add_evener(
    lanes: &mut Vec<Lane>,
    outcome: &mut Outcome,
    name: &'static str,
    builder: &Builder,
    engine: &str,
    keys: &str,
) {
    let mut says = String::new();
    let added = lane(name, builder, |farm| {
        let file = evener::web_service_by(farm, 0, engine, keys);
        let mut between: Vec<Box<dyn Any>> = Vec::new();
        if keys.contains("tunnel") {
            between.push(Box::new(Agent::start_all(farm.servers(), &file)?));
        }
        let (evener, detail) = start(farm, farm.director(), &file, engine)?;
        says = detail;
        between.push(Box::new(evener));
        Ok((vec![farm.service()], between))
    });
    match added {
        Ok(lane) => {
            outcome.engines.push(format!("{name}: {says}"));
            lanes.push(lane);
        }
        Err(error) => outcome.missing.push(format!("{name}: {error:#}")),
    }
}

fn haproxy(builder: &Builder) -> Result<Lane> {
    lane("HAProxy tcp", builder, |farm| {
        // HAProxy's connections to servers start at the director, so replies need no routing
        let haproxy = HaProxy::start(farm.director(), farm.servers())?;
        Ok((vec![haproxy.tcp], vec![Box::new(haproxy)]))
    })
}
