//! A service address that is one of the director's own, as whoever comes from IPVS or a proxy sets it up.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use evener_lab::family::Family;
use evener_lab::farm::Farm;
use evener_lab::load::Load;
use evener_lab::wait::LONG;

use crate::stage::{Plan, Stage, Way};
use crate::{file, split, unbroken};

by_every_way! {
    a_service_address_may_be_the_directors_own,
}

/// Without a program of TC's, which finds neighbours by itself.
mod generic {
    use anyhow::Result;
    use evener_lab::skip::on_engine;

    use super::{Way, owned};

    /// An engine, and more of its section.
    const GENERIC: &str = "xdp\"\nxdp_mode = \"generic";

    #[test]
    fn nat() -> Result<()> {
        on_engine(GENERIC, |engine| owned(engine, Way::Nat))
    }

    #[test]
    fn source_nat() -> Result<()> {
        on_engine(GENERIC, |engine| owned(engine, Way::SourceNat))
    }
}

/// The service's address as one of the director's own, on an interface.
fn give(farm: &Farm, vip: IpAddr, device: &str) -> Result<()> {
    let (bits, more) = if vip.is_ipv4() { (32, "") } else { (128, " nodad") };
    farm.director().ip(&[format!("addr add {vip}/{bits} dev {device}{more}")])
}

fn take(farm: &Farm, vip: IpAddr, device: &str) -> Result<()> {
    let bits = if vip.is_ipv4() { 32 } else { 128 };
    farm.director().ip(&[format!("addr del {vip}/{bits} dev {device}")])
}

/// Has the director's stack forget the way to clients.
fn forget_clients(stage: &Stage) -> Result<()> {
    stage.farm.director().run(&["ip", "neighbour", "flush", "dev", "eth0"]).map(drop)
}

fn served(stage: &Stage, how: &str) -> Result<()> {
    forget_clients(stage)?;
    assert_eq!(stage.shares(4)?, split([2, 2]), "{how}");
    // from the next hop itself
    let near = Load { path: "/108k".to_owned(), requests: Some(4), timeout: LONG, ..Load::to(stage.service) };
    let report =
        unbroken(near.run_on(stage.farm.router())?).with_context(|| format!("the neighbour, {how}"))?;
    ensure!(report.servers.len() == 2, "{how}: {report:?}");
    Ok(())
}

fn a_service_address_may_be_the_directors_own(engine: &str, way: Way) -> Result<()> {
    owned(engine, way)
}

fn owned(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let farm = way.builder().servers(2).build()?;
        let vip = farm.vip_in(family, 0);
        give(&farm, vip, "eth0")?;
        let stage = Plan::new(engine, way, family).start(farm, "", file::ALWAYS_UP, &[1; 2])?;
        served(&stage, &format!("{family}, on the interface"))?;
        take(&stage.farm, vip, "eth0")?;
        give(&stage.farm, vip, "lo")?;
        served(&stage, &format!("{family}, on lo"))?;
        stage.farm.forward_on_directors()?;
        served(&stage, &format!("{family}, on lo of a router"))?;
        assert_eq!(stage.counted("no_route")?, 0, "{family}");
    }
    Ok(())
}
