//! A director that is also a server (LSMAC, section 4.2.4).

use anyhow::Result;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::load::Load;
use evener_lab::wait::LONG;

use crate::{file, shares, unbroken};

on_both_engines! {
    a_silent_director_has_its_share,
    an_answering_director_has_its_share,
}

/// Its probes go the local way.
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

fn has_its_share(farm: &Farm, file: &str) -> Result<()> {
    let evener = Evener::start(farm.director(), file)?;
    evener.wait_for_servers(3, LONG)?;
    assert!(evener.server("director1")?.local);
    let shares = shares(farm, 9)?;
    let third = ["director1", "web1", "web2"].map(|name| (name.to_owned(), 3));
    assert_eq!(shares, third.into());
    for (path, keep_alive) in [("/108k", false), ("/2k", true)] {
        let load = Load {
            path: path.to_owned(),
            keep_alive,
            connections: 6,
            requests: Some(20),
            ..Load::to(farm.service())
        };
        let report = unbroken(load.run_on(farm.client(0))?)?;
        assert_eq!(report.servers.len(), 3, "{report:?}");
        assert!(!keep_alive || report.connections == 6, "no connection was opened twice");
    }
    assert!(evener.status()?.packets["local"] > 0);
    Ok(())
}
