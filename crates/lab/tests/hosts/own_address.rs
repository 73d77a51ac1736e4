//! Service addresses that the operator has added to the hosts that own them.

use anyhow::{Context, Result, ensure};
use evener_lab::evener::{Plan, Team};
use evener_lab::farm::Farm;
use evener_lab::network::family::Family;

use crate::{HASH, service, shares};

on_both_engines! { a_service_address_may_be_a_hosts_own }

const HOSTS: u8 = 3;

fn a_service_address_may_be_a_hosts_own(engine: &str) -> Result<()> {
    for family in Family::BOTH {
        let farm = Farm::builder().every_host(HOSTS).build()?;
        for (number, host) in farm.servers().iter().enumerate() {
            let more = if family == Family::V6 { " nodad" } else { "" };
            let bits = if family == Family::V6 { 128 } else { 32 };
            host.ip(&[format!("addr add {}/{bits} dev eth0{more}", farm.own_vip(family, number))])?;
        }
        let team = Team::start(farm, Plan { family, ..Plan::new(engine, HASH, HOSTS.into()) })?;
        for host in 0..team.hosts.len() {
            let shares = shares(&team, service(&team, host), 30)
                .with_context(|| format!("{family}, by web{}", host + 1))?;
            ensure!(shares.len() == usize::from(HOSTS), "{family}, by web{}: {shares:?}", host + 1);
        }
    }
    Ok(())
}
