//! A director that is also a server (LSMAC, section 4.2.4).

use std::net::SocketAddr;

use anyhow::Result;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::stage::{Plan, Way};
use crate::{file, shares_of, unbroken};

on_both_engines! {
    a_silent_director_has_its_share,
    an_answering_director_has_its_share,
    a_director_that_translates_has_its_share,
    a_director_that_stands_for_its_clients_has_its_share,
    a_director_without_the_service_address_has_no_share,
}

/// Probes that reach the director through the local path.
const HEALTH: &str = "[service.health]\nkind = \"http\"\npath = \"/healthz\"\n";

fn a_silent_director_has_its_share(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).director_serves().build()?;
    let file = file::engine(engine)
        + &file::service("web", farm.service(), "")
        + HEALTH
        + &file::servers(farm.directors())
        + &file::servers(farm.servers());
    has_its_share(&farm, &file)
}

fn an_answering_director_has_its_share(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).director_serves().answering().build()?;
    let file = file::engine(engine)
        + &file::service("web", farm.service(), file::DISCOVER)
        + HEALTH
        + &file::servers(farm.directors());
    has_its_share(&farm, &file)
}

fn a_director_that_translates_has_its_share(engine: &str) -> Result<()> {
    Family::BOTH.into_iter().try_for_each(|family| a_nat_director_has_its_share(engine, Way::Nat, family))
}

fn a_director_that_stands_for_its_clients_has_its_share(engine: &str) -> Result<()> {
    Family::BOTH
        .into_iter()
        .try_for_each(|family| a_nat_director_has_its_share(engine, Way::SourceNat, family))
}

/// The other servers serve on a different port, and the director on the service's port.
fn a_nat_director_has_its_share(engine: &str, way: Way, family: Family) -> Result<()> {
    let farm = way.builder().servers(2).director_serves().build()?;
    let file = Plan::new(engine, way, family).file(&farm, "", HEALTH, &[1; 2]) + &itself(&farm, family);
    has_its_share_of(&farm, &file, farm.service_in(family))
}

/// A director that is listed as a server without the service address: the daemon warns and sends no
/// clients to this director.
fn a_director_without_the_service_address_has_no_share(engine: &str) -> Result<()> {
    let farm = Way::Nat.builder().servers(1).build()?;
    let family = Family::V4;
    let file =
        Plan::new(engine, Way::Nat, family).file(&farm, "", file::ALWAYS_UP, &[1]) + &itself(&farm, family);
    let evener = Evener::start(farm.director(), &file)?;
    evener.wait_for_servers(1, LONG)?;
    let vip = farm.vip_in(family, 0);
    let cause = evener.server("director1")?.reason.unwrap_or_default();
    assert!(cause.contains(&format!("ip addr add {vip}/32 dev lo")), "{cause}");
    assert_eq!(shares_of(&farm, farm.service_in(family), 4)?, [("web1".to_owned(), 4)].into());
    farm.director().ip(&[format!("addr add {vip}/32 dev lo")])?;
    evener.wait_for_servers(2, LONG)?;
    farm.director().ip(&[format!("addr del {vip}/32 dev lo")])?;
    wait::until("the director is no server", || Ok(evener.server("director1")?.state == "down"))?;
    assert_eq!(shares_of(&farm, farm.service_in(family), 4)?, [("web1".to_owned(), 4)].into());
    Ok(())
}

/// Returns the director as a server of the preceding service.
fn itself(farm: &Farm, family: Family) -> String {
    let (name, address) = (farm.director().name(), farm.director().address_in(family));
    format!("[[service.server]]\nname = \"{name}\"\naddress = \"{address}\"\n")
}

fn has_its_share(farm: &Farm, file: &str) -> Result<()> {
    has_its_share_of(farm, file, farm.service())
}

fn has_its_share_of(farm: &Farm, file: &str, service: SocketAddr) -> Result<()> {
    let evener = Evener::start(farm.director(), file)?;
    evener.wait_for_servers(3, LONG)?;
    assert!(evener.server("director1")?.local);
    let shares = shares_of(farm, service, 9)?;
    let third = ["director1", "web1", "web2"].map(|name| (name.to_owned(), 3));
    assert_eq!(shares, third.into());
    for (path, keep_alive) in [("/108k", false), ("/2k", true)] {
        let load = Load {
            path: path.to_owned(),
            keep_alive,
            connections: 6,
            requests: Some(20),
            ..Load::to(service)
        };
        let report = unbroken(load.run_on(farm.client(0))?)?;
        assert_eq!(report.servers.len(), 3, "{report:?}");
        assert!(!keep_alive || report.connections == 6, "no connection was opened twice");
    }
    assert!(evener.status()?.packets["local"] > 0);
    Ok(())
}
