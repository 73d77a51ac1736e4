//! Links with a small MTU: no transfer hangs, and all bytes arrive. Routers send ICMP errors to the
//! service, and the errors reach the server that sent the packet.

use anyhow::{Context, Result};
use evener_lab::clients::transfer;
use evener_lab::farm::Builder;
use evener_lab::harness::wait::LONG;
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::stage::{Plan, Stage, Way};
use crate::{file, unbroken};

by_every_way! { a_narrow_link_to_the_clients, a_narrow_link_to_the_servers }

/// Large files in both directions, several at the same time.
fn transfers(stage: &Stage) -> Result<()> {
    let big = Load {
        path: "/big".to_owned(),
        connections: 4,
        requests: Some(1),
        timeout: LONG,
        ..Load::to(stage.service)
    };
    unbroken(big.run_on(stage.client())?)?;
    transfer::there_and_back(&stage.farm, stage.client(), stage.service, 3_000_000)
}

/// Farms without and with offloads: packets are segmented before or after the director.
fn offloads(way: Way) -> [(bool, Builder); 2] {
    let builder = way.builder().servers(2);
    [(false, builder.clone()), (true, builder.offload_all())]
}

fn a_narrow_link_to_the_clients(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        for (offload, builder) in offloads(way) {
            let stage =
                Plan::new(engine, way, family).start(builder.build()?, "", file::ALWAYS_UP, &[1; 2])?;
            stage.farm.narrow_to_clients(1280)?;
            transfers(&stage).with_context(|| format!("{family}, offload {offload}"))?;
            assert!(stage.counted("icmp_forwarded")? > 0, "{family}, offload {offload}: servers were told");
        }
    }
    Ok(())
}

fn a_narrow_link_to_the_servers(engine: &str, way: Way) -> Result<()> {
    // Servers of these methods are not behind the router.
    if matches!(way, Way::L2 | Way::Nat) {
        return Ok(());
    }
    for family in Family::BOTH {
        for (offload, builder) in offloads(way) {
            let stage =
                Plan::new(engine, way, family).start(builder.build()?, "", file::ALWAYS_UP, &[1; 2])?;
            // The inner IPv6 MTU must be at least 1280 (RFC 8200, section 5), plus the outer
            // header.
            let mtu = if family == Family::V6 && way.is_tunnel() { 1400 } else { 1280 };
            stage.farm.narrow_behind_directors(mtu)?;
            transfers(&stage).with_context(|| format!("{family}, offload {offload}"))?;
        }
    }
    Ok(())
}
