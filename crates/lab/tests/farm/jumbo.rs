//! Networks with frames six times as long as usual.

use anyhow::{Result, ensure};
use evener_lab::clients::transfer;
use evener_lab::harness::wait::LONG;
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::stage::{Plan, Way};
use crate::{file, unbroken};

by_every_way! { jumbo_frames }

/// Generic XDP, where the kernel engine would otherwise attach by TC: a driver can deliver a frame
/// in several buffers.
mod generic {
    use anyhow::Result;
    use evener_lab::harness::engines::on_engine;
    use evener_lab::network::family::Family;

    use super::{Way, arrive};

    /// An engine with a further key of its section.
    const GENERIC: &str = "xdp\"\nxdp_mode = \"generic";

    #[test]
    fn l2() -> Result<()> {
        on_engine(GENERIC, |engine| arrive(engine, Way::L2, Family::V4))
    }

    #[test]
    fn source_nat() -> Result<()> {
        on_engine(GENERIC, |engine| arrive(engine, Way::SourceNat, Family::V4))
    }

    #[test]
    fn gue() -> Result<()> {
        on_engine(GENERIC, |engine| arrive(engine, Way::Gue, Family::V4))
    }
}

const MTU: u16 = 9_000;
/// Bytes of each upload.
const LEN: usize = 3_000_000;

fn jumbo_frames(engine: &str, way: Way) -> Result<()> {
    arrive(engine, way, Family::V6)
}

/// Data arrives in both directions, in frames above the usual length.
fn arrive(engine: &str, way: Way, family: Family) -> Result<()> {
    let farm = way.builder().servers(2).build()?;
    farm.widen(MTU)?;
    let stage = Plan::new(engine, way, family).start(farm, "", file::ALWAYS_UP, &[1; 2])?;
    transfer::there_and_back(&stage.farm, stage.client(), stage.service, LEN)?;
    let uploaded = stage.evener.servers()?;
    let big = Load {
        path: "/big".to_owned(),
        connections: 2,
        requests: Some(1),
        timeout: LONG,
        ..Load::to(stage.service)
    };
    unbroken(big.run_on(stage.client())?)?;
    let bytes: u64 = uploaded.iter().map(|server| server.bytes).sum();
    let packets: u64 = uploaded.iter().map(|server| server.packets).sum();
    ensure!(bytes >= LEN as u64, "{bytes} bytes came by");
    ensure!(bytes / packets > 2_000, "{packets} packets had {bytes} bytes");
    Ok(())
}
