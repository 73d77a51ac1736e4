//! Another configuration: all of it or nothing, and no session the worse for it.

use anyhow::Result;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::load::Load;
use evener_lab::visit::Visit;
use evener_lab::wait::{self, LONG};

use crate::{file, shares, shares_of, slow_downloads, split, unbroken};

on_both_engines! {
    what_did_not_change_goes_on,
    a_file_with_errors_changes_nothing,
}

fn what_did_not_change_goes_on(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().servers(2).vips(2).build()?;
    let second = (farm.vip(1), 80).into();
    let web = file::listed(engine, &farm, "");
    let mut evener = Evener::start(farm.director(), &web)?;
    evener.wait_for_servers(2, LONG)?;
    let mut kept: Vec<_> =
        (0..4).map(|_| Visit::open(farm.client(0), farm.service())).collect::<Result<_>>()?;
    let before: Vec<_> = kept.iter_mut().map(Visit::who).collect::<Result<_>>()?;
    let downloads = slow_downloads(&farm);
    let visitors = Load { connections: 2, ..Load::to(farm.service()) }.start_on(farm.client(0));
    let mut same = || -> Result<()> {
        let now: Vec<_> = kept.iter_mut().map(Visit::who).collect::<Result<_>>()?;
        assert_eq!(before, now);
        Ok(())
    };
    same()?;

    let added = farm.add_server()?;
    let three = file::listed(engine, &farm, "");
    evener.reload(&three)?;
    evener.wait_for_servers(3, LONG)?;
    same()?;
    let weighted = three.replacen("weight = 1", "weight = 5", 1);
    evener.reload(&weighted)?;
    assert_eq!(evener.server("web1")?.weight, 5);
    same()?;
    let both = file::service("second", second, "") + file::ALWAYS_UP + &file::server(&added, 1);
    evener.reload(&(weighted + &both))?;
    evener.wait_for_servers(4, LONG)?;
    assert_eq!(shares_of(&farm, second, 3)?, split([0, 0, 3]));
    same()?;

    // a server goes without harm to anyone once nobody is left on it
    evener.command(&["drain", "web/web3"])?;
    wait::until("nobody is left on the server that goes", || {
        let server = evener.server("web3")?;
        let sessions = evener.sessions()?;
        let left = sessions.iter().filter(|session| session.service == "web" && session.server == "web3");
        Ok(server.state == "draining" && left.filter(|session| session.state != "closing").count() == 0)
    })?;
    // the other way of asking for it
    evener.write(&web)?;
    evener.daemon().sighup()?;
    wait::until("SIGHUP is heeded", || Ok(evener.status()?.reloads == 4))?;
    evener.wait_for_servers(2, LONG)?;
    same()?;
    assert!(shares_of(&farm, second, 1).is_err(), "the second service is gone");
    unbroken(visitors.stop()?)?;
    assert_eq!(shares(&farm, 6)?, split([3, 3]));
    let report = unbroken(downloads.join()?)?;
    assert_eq!(report.requests, 2);
    same()
}

fn a_file_with_errors_changes_nothing(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let good = file::listed(engine, &farm, "");
    let evener = Evener::start(farm.director(), &good)?;
    evener.wait_for_servers(2, LONG)?;
    let mut visit = Visit::open(farm.client(0), farm.service())?;
    let server = visit.who()?;

    evener.write(&good.replacen("weight = 1", "wieght = 1", 1).replacen("192.0.2.12", "192.0.2.300", 1))?;
    let (code, said) = evener.failure(&["reload"])?;
    assert_eq!(code, 1, "{said}");
    for part in ["nothing was changed", "wieght", "weight", "192.0.2.300"] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
    let status = evener.status()?;
    assert!(status.reload_error.as_deref().is_some_and(|error| error.contains("192.0.2.300")), "{status:?}");
    assert_eq!(status.reloads, 0);
    assert_eq!(evener.servers()?.len(), 2);
    assert_eq!(visit.who()?, server);
    assert_eq!(shares(&farm, 6)?, split([3, 3]));

    evener.reload(&good)?;
    let status = evener.status()?;
    assert_eq!((status.reloads, status.reload_error), (1, None));
    assert_eq!(visit.who()?, server);
    Ok(())
}
