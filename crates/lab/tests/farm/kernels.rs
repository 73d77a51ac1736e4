//! A farm of each method with the kernel engine, through all changes of an operator. The tests are
//! short enough for guests with other kernels; see `scripts/kernels`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use evener_lab::evener::{Agent, Evener, left_on};
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use evener_lab::workloads::load::Load;
use nix::sys::signal::Signal;

use crate::file;
use crate::stage::{Plan, Stage, Way};
use crate::{split, unbroken};

/// Requests between two changes of a farm.
const REQUESTS: u64 = 20;

on_engine!(xdp: l2, nat, source_nat, ipip, gue);

mod syns {
    on_both_engines! { each_syn_reaches_one_server }

    pub(super) use super::each_syn_reaches_one_server;
}

fn l2(engine: &str) -> Result<()> {
    serves_through_changes(engine, Way::L2)
}

fn nat(engine: &str) -> Result<()> {
    serves_through_changes(engine, Way::Nat)
}

fn source_nat(engine: &str) -> Result<()> {
    serves_through_changes(engine, Way::SourceNat)
}

fn ipip(engine: &str) -> Result<()> {
    serves_through_changes(engine, Way::Ipip)
}

fn gue(engine: &str) -> Result<()> {
    serves_through_changes(engine, Way::Gue)
}

/// Returns the number of connections per server, of 20 new connections.
fn serve(stage: &Stage) -> Result<BTreeMap<String, u64>> {
    let load = Load { requests: Some(REQUESTS), timeout: LONG, ..Load::to(stage.service) };
    let report = unbroken(load.run_on(stage.client())?)?;
    Ok(report.servers.into_iter().map(|(server, share)| (server, share.connections)).collect())
}

fn serves_through_changes(engine: &str, way: Way) -> Result<()> {
    let plan = Plan::new(engine, way, Family::V4);
    let farm = way.builder().servers(2).build()?;
    let file = |weights: &[u16]| plan.file(&farm, "", file::ALWAYS_UP, weights);
    let agents = if way.is_tunnel() { Agent::start_all(farm.servers(), &file(&[1, 1]))? } else { Vec::new() };
    let evener = Evener::start_by(farm.director(), &file(&[1, 1]), &[], &["--keep"])?;
    evener.wait_for_servers(2, LONG)?;
    let other_weights = file(&[1, 3]);
    let mut stage = Stage { service: plan.service(&farm), evener, agents, farm };
    assert_eq!(stage.evener.status()?.engine, engine);
    assert_eq!(serve(&stage)?, split([10, 10]), "at first");

    stage.evener.reload(&other_weights)?;
    assert_eq!(serve(&stage)?, split([5, 15]), "after a reload");

    stage.evener.command(&["drain", "web/web2"])?;
    assert_eq!(serve(&stage)?, split([20]), "while a server drains");
    stage.evener.command(&["undrain", "web/web2"])?;
    assert_eq!(serve(&stage)?, split([5, 15]), "after it drained");

    stage.evener.daemon().kill9()?;
    assert_eq!(serve(&stage).context("killed")?, split([5, 15]), "without a daemon");
    stage.evener.start_again()?;
    assert!(stage.evener.status()?.adopted, "after a kill");
    assert_eq!(serve(&stage)?, split([5, 15]), "after a restart");

    assert_eq!(stage.evener.stop()?, 0);
    assert_eq!(serve(&stage).context("stopped with --keep")?, split([5, 15]), "after a stop with --keep");
    stage.evener.start_again()?;
    assert!(stage.evener.status()?.adopted, "after a stop with --keep");
    assert_eq!(serve(&stage)?, split([5, 15]), "after the next start");

    stage.evener.daemon().signal(Signal::SIGQUIT)?;
    assert!(stage.evener.daemon().wait(LONG)?.success());
    assert_eq!(left_on(stage.farm.director())?, [""; 0]);
    Ok(())
}

/// A filter for SYNs; see [`Host::capture_inside`].
const SYNS: &str = "tcp[tcpflags]&(tcp-syn|tcp-ack)==tcp-syn";

/// The kernel numbers fanout groups from 0 since boot, so this test must be the first of its kind
/// in a guest.
fn each_syn_reaches_one_server(engine: &str) -> Result<()> {
    let stage = Plan::new(engine, Way::L2, Family::V4).stage(2)?;
    let capture = |host: &Host| host.capture_inside(0, SYNS);
    let sent = capture(stage.client())?;
    let arrived = stage.farm.servers().iter().map(capture).collect::<Result<Vec<_>>>()?;
    let arrived_count = || arrived.iter().map(|capture| capture.lines().len()).sum::<usize>();
    assert_eq!(serve(&stage)?, split([10, 10]));
    wait::until("SYNs are captured", || {
        let sent = sent.lines().len();
        Ok(sent >= REQUESTS as usize && arrived_count() >= sent)
    })?;
    assert_eq!(arrived_count(), sent.lines().len(), "SYNs at servers, and of the client");
    Ok(())
}
