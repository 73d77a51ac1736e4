//! A service address that is also an address of the director, as in setups for IPVS or a proxy.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use evener_dataplane::xdp::attach_pass;
use evener_lab::farm::Farm;
use evener_lab::harness::engines::on_engine;
use evener_lab::harness::wait::LONG;
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::stage::{Plan, Stage, Way};
use crate::told::doctor;
use crate::{file, split, unbroken};

by_every_way! {
    a_service_address_may_be_the_directors_own,
}

/// XDP modes in which the host's stack resolves neighbours. TC programs let the kernel do this.
pub(crate) const GENERIC: &str = "xdp\"\nxdp_mode = \"generic";
pub(crate) const NATIVE: &str = "xdp\"\nxdp_mode = \"native";

/// Generates tests for one XDP mode.
macro_rules! by_xdp {
    ($module:ident, $engine:ident: $($name:ident, $way:ident);+) => {
        mod $module {
            $(#[test]
            fn $name() -> anyhow::Result<()> {
                super::on_engine(super::$engine, |engine| super::owned(engine, super::Way::$way))
            })+
        }
    };
}

by_xdp!(generic, GENERIC: nat, Nat; source_nat, SourceNat; l2, L2);
by_xdp!(native, NATIVE: nat, Nat; source_nat, SourceNat; l2, L2; ipip, Ipip);

/// Adds the service's address to a director's interface.
fn give(farm: &Farm, vip: IpAddr, device: &str) -> Result<()> {
    let (bits, more) = if vip.is_ipv4() { (32, "") } else { (128, " nodad") };
    farm.director().ip(&[format!("addr add {vip}/{bits} dev {device}{more}")])
}

fn take(farm: &Farm, vip: IpAddr, device: &str) -> Result<()> {
    let bits = if vip.is_ipv4() { 32 } else { 128 };
    farm.director().ip(&[format!("addr del {vip}/{bits} dev {device}")])
}

/// Flushes the director's neighbour entries of clients.
fn forget_clients(stage: &Stage) -> Result<()> {
    stage.farm.director().run(&["ip", "neighbour", "flush", "dev", "eth0"]).map(drop)
}

fn served(stage: &Stage, how: &str) -> Result<()> {
    forget_clients(stage)?;
    assert_eq!(stage.shares(4)?, split([2, 2]), "{how}");
    forget_clients(stage)?;
    // The next hop itself is a client.
    let near = Load { path: "/108k".to_owned(), requests: Some(4), timeout: LONG, ..Load::to(stage.service) };
    let report =
        unbroken(near.run_on(stage.farm.router())?).with_context(|| format!("the neighbour, {how}"))?;
    ensure!(report.servers.len() == 2, "{how}: {report:?}");
    Ok(())
}

fn a_service_address_may_be_the_directors_own(engine: &str, way: Way) -> Result<()> {
    owned(engine, way)
}

/// Attaches programs to the far ends of the director's cables. Without them, a veth drops frames
/// that native XDP sends.
pub(crate) fn receive_by_xdp(farm: &Farm) -> Result<Vec<impl Send + use<>>> {
    let ports = farm.director().interfaces().iter().map(|interface| interface.port.as_str());
    let attach = |port: &str| anyhow::Ok(attach_pass(nix::net::if_::if_nametoindex(port)?)?);
    farm.switch().enter(|| ports.map(attach).collect())?
}

/// Returns the sysctls for packets with local source addresses, of the director's last interface,
/// which leads to servers.
fn believes(farm: &Farm) -> Result<[String; 2]> {
    let interface = farm.director().interfaces().last().context("a director without interfaces")?;
    let value = |name: &str| -> Result<String> {
        let path = format!("/proc/sys/net/ipv4/conf/{}/{name}", interface.name);
        Ok(farm.director().run(&["cat", &path])?.trim().to_owned())
    };
    Ok([value("accept_local")?, value("rp_filter")?])
}

fn owned(engine: &str, way: Way) -> Result<()> {
    for family in Family::BOTH {
        let farm = way.builder().servers(2).build()?;
        let _far_ends = if engine == NATIVE { receive_by_xdp(&farm)? } else { Vec::new() };
        if engine == GENERIC && way == Way::Nat {
            // The default of some distributions.
            farm.director().netns().sysctl(&[("ipv4/conf/eth1/rp_filter", "1")])?;
        }
        let believed = believes(&farm)?;
        let vip = farm.vip_in(family, 0);
        give(&farm, vip, "eth0")?;
        let mut stage = Plan::new(engine, way, family).start(farm, "", file::ALWAYS_UP, &[1; 2])?;
        served(&stage, &format!("{family}, on the interface"))?;
        take(&stage.farm, vip, "eth0")?;
        give(&stage.farm, vip, "lo")?;
        served(&stage, &format!("{family}, on lo"))?;
        stage.farm.forward_on_directors()?;
        served(&stage, &format!("{family}, on lo of a router"))?;
        assert_eq!(stage.counted("no_route")?, 0, "{family}");
        let output = doctor(stage.farm.director(), &std::fs::read_to_string(stage.evener.file())?)?;
        ensure!(output.contains(&format!("ok web {vip} is this host's own")), "{output}");
        if engine != "packet" {
            stage.evener.daemon().kill9()?;
            served(&stage, &format!("{family}, without a daemon"))?;
            stage.evener.start_again()?;
        }
        assert_eq!(stage.evener.stop()?, 0);
        assert_eq!(believes(&stage.farm)?, believed, "{family}: it is as it was");
    }
    Ok(())
}
