//! Systems to compare: farms of rate-limited servers, with or without Evener.

use std::any::Any;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::SERVER_MBITS;
use crate::evener::{Plan, Team};
use crate::farm::{Builder, Farm, WEB_PORT};
use crate::network::family::Family;
use crate::network::host::Host;
use crate::servers::nginx;
use crate::workloads::load::Mix;

pub(super) const STATEFUL: &str = "method = \"l2\"\npolicy = \"round-robin\"\n";
pub(super) const STATELESS: &str = "method = \"l2\"\npolicy = \"hash\"\nstateless = true\n";

pub(super) struct System {
    pub(super) targets: Vec<SocketAddr>,
    pub(super) client: Host,
    _running: Box<dyn Any>,
}

impl System {
    /// Starts a number of servers without a balancer.
    pub(super) fn straight(servers: u8) -> Result<System> {
        let farm = farm(servers)?;
        Ok(System { targets: farm.straight(), client: farm.client(0).clone(), _running: Box::new(farm) })
    }

    /// Starts a number of hosts that serve and forward. Requests arrive at all hosts equally, or at
    /// the first alone.
    pub(super) fn every_host(hosts: u8, keys: &str, balanced: bool) -> Result<System> {
        let arrivals = if balanced { hosts } else { 1 };
        Self::team(Plan::new("auto", keys, hosts.into()), arrivals)
    }

    /// Starts a number of servers, and a host in front that only forwards.
    pub(super) fn centralised(servers: u8, keys: &str) -> Result<System> {
        let mut plan = Plan::new("auto", keys, usize::from(servers) + 1);
        plan.weights[0] = 0;
        Self::team(plan, 1)
    }

    fn team(plan: Plan, arrivals: u8) -> Result<System> {
        let farm = farm(u8::try_from(plan.weights.len())?)?;
        let team = Team::start(farm, plan).context("The hosts of a farm did not come together")?;
        let targets =
            (0..arrivals.into()).map(|host| (team.farm.own_vip(Family::V4, host), WEB_PORT).into()).collect();
        Ok(System { targets, client: team.farm.client(0).clone(), _running: Box::new(team) })
    }
}

fn farm(servers: u8) -> Result<Farm> {
    let builder: Builder = Farm::builder().every_host(servers).offload_replies();
    let farm = builder.build()?;
    nginx::write_by_length(&farm, &Mix::lengths())?;
    farm.servers().iter().try_for_each(|host| host.limit_replies(SERVER_MBITS))?;
    Ok(farm)
}
