//! Compares handoff by request with direct connections, with layer-two forwarding without reading
//! requests, and with proxies, which also read requests.

use std::net::SocketAddr;

use anyhow::Result;

use super::Effort;
use super::end_to_end::{self, HOP, PAGES, Page, SERVERS, STRAIGHT, Way, engine_of, measure, start};
use crate::evener::{self, Handoff, Offer, route};
use crate::farm::{Farm, WEB_PORT};
use crate::harness::cpu::BpfTimes;
use crate::network::bare_hop::{Hop, Method};
use crate::network::family::Family;
use crate::servers::nginx;
use crate::servers::proxies::{HaProxy, NginxProxy};

/// Number of routes before the one that matches the measured requests.
const ROUTES: usize = 100;
const LARGE_LEN: usize = 100_000_000;
/// Few connections, so that some requests are answered during the measurement.
const LARGE: Page = Page { name: "100 MB", path: "/bytes/100000000", connections: 2 };

/// Builds a farm with all variants and measures them.
pub(super) fn run(effort: Effort) -> Result<end_to_end::Outcome> {
    // The proxies and the layer-two director have separate hosts, so that no program of ours sees
    // the proxies' packets.
    let farm = Farm::builder().servers(SERVERS).directors(4).vips(3).bare().offload_replies().build()?;
    nginx::write_by_length(&farm, &[LARGE_LEN])?;
    let all: Vec<&str> = farm.servers().iter().map(|server| server.name()).collect();
    let others = (0..ROUTES).map(|number| route(&format!("path = \"/{number}/*\""), &all[..1]));
    let routes: Vec<String> = others.chain([route("path = \"/*\"", &all)]).collect();
    let offer = Offer { sessions_max: 1 << 20, ..Offer::new("xdp", SERVERS.into(), &routes) };
    let handoff = Handoff::start(farm, offer)?;
    let mut outcome = end_to_end::Outcome::new("handoff", STRAIGHT, Some(HOP), effort);
    outcome.engines.push(format!("evener handoff: {}", engine_of(&handoff.evener, "xdp")?));
    let farm = &handoff.farm;
    let [reading, proxies, layer_two] = [0, 1, 2].map(|number| &farm.directors()[number]);
    // agents have disabled ARP for their service addresses; these addresses belong to no agent
    let [service, hopped] = [1, 2].map(|vip| SocketAddr::from((farm.vip(vip), WEB_PORT)));
    let lines = [service, hopped].map(|service| format!("addr add {}/32 dev lo", service.ip()));
    farm.servers().iter().try_for_each(|server| server.ip(&lines))?;
    let bare = &farm.directors()[3];
    let _hop = Hop::start(bare, farm, 2, Method::Link)?;
    let (l2, says) = start(farm, layer_two, &evener::web_service(farm, 1, "xdp"), "xdp")?;
    outcome.engines.push(format!("evener l2: {says}"));
    let (haproxy, nginx) =
        (HaProxy::start(proxies, farm.servers())?, NginxProxy::start(proxies, farm.servers())?);
    let way = |name, targets, director| Way { name, targets, client: farm.client(0), director };
    let ways = [
        way(STRAIGHT, farm.straight(), None),
        way(HOP, vec![hopped], Some(bare)),
        way("evener handoff", vec![handoff.service(Family::V4)], Some(reading)),
        way("evener l2", vec![service], Some(layer_two)),
        way("HAProxy tcp", vec![haproxy.tcp], Some(proxies)),
        way("HAProxy http", vec![haproxy.http], Some(proxies)),
        way("nginx proxy", vec![nginx.http], Some(proxies)),
    ];
    let _times = BpfTimes::count()?;
    let pages = [&PAGES[..], &[LARGE]].concat();
    measure(&ways, &pages, &[false, true], effort, &mut outcome)?;
    drop(l2);
    Ok(outcome)
}
