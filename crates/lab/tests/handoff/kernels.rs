//! A farm with the kernel engine, through all changes of an operator. The test is short enough for
//! guests with other kernels; see `scripts/kernels`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use evener_lab::evener::{Evener, Handoff, left_on};
use evener_lab::harness::wait::LONG;
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;
use nix::sys::signal::Signal;

use crate::{farm, unbroken};

on_engine!(xdp: handoff);

/// Returns the number of connections per server, of 20 new connections.
fn serve(handoff: &Handoff) -> Result<BTreeMap<String, u64>> {
    let load = Load { requests: Some(20), timeout: LONG, ..Load::to(handoff.service(Family::V4)) };
    let report = unbroken(load.run_on(handoff.client())?)?;
    Ok(report.servers.into_iter().map(|(server, share)| (server, share.connections)).collect())
}

fn split(web1: u64, web2: u64) -> BTreeMap<String, u64> {
    let shares = [("web1", web1), ("web2", web2)].into_iter().filter(|(_, share)| *share > 0);
    shares.map(|(name, share)| (name.to_owned(), share)).collect()
}

fn handoff(engine: &str) -> Result<()> {
    let mut stage = farm(engine, 2, &[])?;
    assert_eq!(stage.evener.stop()?, 0);
    stage.evener = Evener::start_by(stage.farm.director(), &stage.file(), &[], &["--keep"])?;
    stage.evener.wait_for_servers(2, LONG)?;
    assert_eq!(serve(&stage)?, split(10, 10), "at first");

    stage.offer.weights = vec![1, 3];
    stage.reload()?;
    assert_eq!(serve(&stage)?, split(5, 15), "after a reload");

    stage.evener.command(&["drain", "web/web2"])?;
    assert_eq!(serve(&stage)?, split(20, 0), "while a server drains");
    stage.evener.command(&["undrain", "web/web2"])?;
    assert_eq!(serve(&stage)?, split(5, 15), "after it drained");

    stage.evener.daemon().kill9()?;
    assert_eq!(serve(&stage).context("killed")?, split(5, 15), "without a daemon");
    stage.evener.start_again()?;
    assert!(stage.evener.status()?.adopted, "after a kill");
    assert_eq!(serve(&stage)?, split(5, 15), "after a restart");

    assert_eq!(stage.evener.stop()?, 0);
    assert_eq!(serve(&stage).context("stopped with --keep")?, split(5, 15), "after a stop with --keep");
    stage.evener.start_again()?;
    assert!(stage.evener.status()?.adopted, "after a stop with --keep");
    assert_eq!(serve(&stage)?, split(5, 15), "after the next start");

    stage.evener.daemon().signal(Signal::SIGQUIT)?;
    assert!(stage.evener.daemon().wait(LONG)?.success());
    assert_eq!(left_on(stage.farm.director())?, [""; 0]);
    Ok(())
}
