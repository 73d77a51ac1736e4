//! Changes by an operator break no connection: hosts join and leave, and daemons restart.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use evener_lab::evener::{Plan, Team};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;

use crate::{HASH, IN_TURN, STATELESS, all_whole, audience, downloads, service, shares, unbroken};

on_both_engines! {
    a_host_joins,
    a_host_joins_where_nothing_is_noted,
    a_host_is_drained,
    a_host_is_drained_where_nothing_is_noted,
    all_daemons_restart_in_turn,
    killed_daemons_come_back,
    stopped_it_leaves_nothing,
}

fn a_host_joins(engine: &str) -> Result<()> {
    joins(engine, IN_TURN)
}

fn a_host_joins_where_nothing_is_noted(engine: &str) -> Result<()> {
    joins(engine, STATELESS)
}

fn joins(engine: &str, keys: &str) -> Result<()> {
    let farm = Farm::builder().every_host(3).build()?;
    let mut team = Team::start(farm, Plan::new(engine, keys, 2))?;
    let (load, slow) = (audience(&team).start_on(team.farm.client(0)), downloads(&team)?);
    team.plan.weights.push(1);
    team.reload()?;
    for host in 0..3 {
        let shares = shares(&team, service(&team, host), 30)?;
        ensure!(shares.len() == 3, "by web{}: {shares:?}", host + 1);
    }
    all_whole(slow)?;
    unbroken(load.stop()?).map(drop)
}

fn a_host_is_drained(engine: &str) -> Result<()> {
    drained(engine, HASH)
}

fn a_host_is_drained_where_nothing_is_noted(engine: &str) -> Result<()> {
    drained(engine, STATELESS)
}

fn drained(engine: &str, keys: &str) -> Result<()> {
    let team = crate::team(engine, keys, 3)?;
    let (load, slow) = (audience(&team).start_on(team.farm.client(0)), downloads(&team)?);
    let says = |state: &str| -> Result<()> {
        wait::until(&format!("all see web2 {state}"), || {
            let states = team.hosts.iter().map(|evener| Ok(evener.server("web2")?.state));
            Ok(states.collect::<Result<Vec<_>>>()?.iter().all(|found| found == state))
        })
    };
    team.hosts[1].command(&["drain", "web/web2"])?;
    says("draining")?;
    for host in 0..3 {
        let shares = shares(&team, service(&team, host), 20)?;
        ensure!(!shares.contains_key("web2"), "by web{}: {shares:?}", host + 1);
    }
    all_whole(slow)?;
    let slow = downloads(&team)?;
    team.hosts[1].command(&["undrain", "web/web2"])?;
    says("up")?;
    ensure!(shares(&team, service(&team, 0), 30)?.contains_key("web2"), "it serves again");
    all_whole(slow)?;
    unbroken(load.stop()?).map(drop)
}

fn all_daemons_restart_in_turn(engine: &str) -> Result<()> {
    let farm = Farm::builder().every_host(3).build()?;
    // On a busy machine, a daemon's restart can take longer than the default time after which other
    // hosts take over its share.
    let patient = Plan { farm: "silence = \"20s\"\n".to_owned(), ..Plan::new(engine, IN_TURN, 3) };
    let mut team = Team::start_by(farm, patient, &["--keep"])?;
    let (load, slow) = (audience(&team).start_on(team.farm.client(0)), downloads(&team)?);
    for host in 0..3 {
        assert_eq!(team.hosts[host].stop()?, 0);
        team.hosts[host].start_again()?;
        ensure!(team.hosts[host].status()?.adopted, "it carries on");
        team.together()?;
    }
    all_whole(slow)?;
    unbroken(load.stop()?).map(drop)
}

fn killed_daemons_come_back(engine: &str) -> Result<()> {
    let farm = Farm::builder().every_host(3).build()?;
    // As above, a restart can take long. Stateless services move connections when a host is
    // considered dead for a moment.
    let patient = Plan { farm: "silence = \"20s\"\n".to_owned(), ..Plan::new(engine, STATELESS, 3) };
    let mut team = Team::start(farm, patient)?;
    let (load, slow) = (audience(&team).start_on(team.farm.client(0)), downloads(&team)?);
    for host in 0..2 {
        team.hosts[host].daemon().kill9()?;
        thread::sleep(Duration::from_millis(300));
        team.hosts[host].start_again()?;
    }
    team.together()?;
    all_whole(slow)?;
    unbroken(load.stop()?).map(drop)
}

fn stopped_it_leaves_nothing(engine: &str) -> Result<()> {
    let mut team = crate::team(engine, "method = \"tunnel\"\n", 3)?;
    for (evener, host) in team.hosts.iter_mut().zip(team.farm.servers()) {
        ensure!(!evener_lab::evener::left_on(host)?.is_empty());
        assert_eq!(evener.stop()?, 0);
        assert_eq!(evener_lab::evener::left_on(host)?, [""; 0], "{}", host.name());
        let addresses = host.run(&["ip", "-4", "-oneline", "address", "show", "dev", "lo"])?;
        assert_eq!(addresses.lines().count(), 1, "{addresses}");
    }
    Ok(())
}
