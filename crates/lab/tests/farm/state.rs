//! Run-time changes: they persist, harm no connection, and can be undone.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::Evener;
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use serde_json::Value;

use crate::{file, shares, split};

on_one_engine! {
    changes_outlive_a_killed_daemon_until_they_are_undone,
    servers_and_services_come_and_go_at_run_time,
    full_disk_leaves_all_as_it_was,
    server_in_maintenance_is_left_alone,
}

/// Returns the weights and states of all servers.
fn weights(evener: &Evener) -> Result<BTreeMap<String, (u32, String)>> {
    let servers = evener.servers()?.into_iter();
    Ok(servers.map(|server| (server.name, (server.weight, server.state))).collect())
}

fn changes_outlive_a_killed_daemon_until_they_are_undone(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let listed = file::listed(engine, &farm, "");
    let mut evener = Evener::start(farm.director(), &listed)?;
    evener.wait_for_servers(3, LONG)?;
    let before = weights(&evener)?;
    let mut visit = HttpConnection::open(farm.client(0), farm.service())?;
    let server = visit.who()?;

    evener.command(&["weight", "web/web1", "3"])?;
    evener.command(&["drain", "web/web3"])?;
    let said = evener.command(&["weight", "web/web2", "7", "--dry-run"])?;
    ensure!(said.contains("weight: 1 -> 7"), "{said}");
    evener.daemon().kill9()?;
    evener.start_again()?;
    evener.wait_for_servers(2, LONG)?;
    let after = weights(&evener)?;
    assert_eq!((after["web1"].0, after["web2"].0, after["web3"].1.as_str()), (3, 1, "draining"));
    assert_eq!(visit.who()?, server, "open connections stay");
    assert_eq!(shares(&farm, 8)?, split([6, 2, 0]));
    let table = evener.command(&["servers"])?;
    ensure!(table.contains("weight 3 (file: 1, by root"), "{table}");

    // A file with unchanged values keeps the run-time changes. Changed values replace them.
    let reloaded = evener.reload(&listed)?;
    ensure!(!reloaded.contains("replaces the run-time change"), "{reloaded}");
    assert_eq!(weights(&evener)?["web1"].0, 3);
    let other = listed.replacen("weight = 1", "weight = 2", 1);
    let reloaded = evener.reload(&other)?.replace('\n', " ");
    ensure!(
        reloaded.contains("replaces the run-time change") && reloaded.contains("web/web1: weight"),
        "{reloaded}"
    );
    assert_eq!(weights(&evener)?["web1"].0, 2);
    evener.reload(&listed)?;

    // A daemon's start with another file has the same effect: a dropped change stays dropped.
    evener.command(&["weight", "web/web1", "4"])?;
    for (file, weight) in [(&other, 2), (&listed, 1)] {
        evener.daemon().kill9()?;
        evener.write(file)?;
        evener.start_again()?;
        assert_eq!(weights(&evener)?["web1"].0, weight);
    }

    evener.command(&["weight", "web/web2", "5"])?;
    evener.command(&["undo"])?;
    evener.command(&["undo"])?;
    evener.wait_for_servers(3, LONG)?;
    assert_eq!(weights(&evener)?, before);
    let (code, why) = evener.failure(&["undo"])?;
    ensure!(code == 1 && why.contains("no run-time change"), "{why}");
    let audit = audit_log(&farm)?;
    assert_eq!(audit.lines().count(), 8, "four changes, two drops and two undone: {audit}");
    Ok(())
}

/// Returns the audit log.
fn audit_log(farm: &Farm) -> Result<String> {
    let mut folders = fs::read_dir(farm.director().file("state"))?.flatten();
    let log = folders.find_map(|folder| fs::read_to_string(folder.path().join("audit.log")).ok());
    log.context("There is no audit log")
}

fn servers_and_services_come_and_go_at_run_time(engine: &str) -> Result<()> {
    let mut farm = Farm::builder().servers(2).vips(2).build()?;
    let second = std::net::SocketAddr::new(farm.vip(1).into(), 80);
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(2, LONG)?;
    let mut visit = HttpConnection::open(farm.client(0), farm.service())?;
    let server = visit.who()?;

    let added = farm.add_server()?;
    let address = added.address().to_string();
    let said = evener.command(&["add", "web/web3", &address, "--weight", "2"])?;
    ensure!(said.contains("web/web3 is added"), "{said}");
    evener.wait_for_servers(3, LONG)?;
    assert_eq!(shares(&farm, 8)?, split([2, 2, 4]));
    let (_, why) = evener.failure(&["add", "web/web4", &address])?;
    ensure!(why.replace('\n', " ").contains("two servers of this service have the address"), "{why}");

    // A complete service, added by the printed state. An outdated state changes nothing.
    let mut state: Value = evener.json(&["state"])?;
    let late = farm.director().write("late.json", &state.to_string())?;
    let mut service = state["service"][0].clone();
    service["name"] = "second".into();
    service["address"] = second.to_string().into();
    state["service"].as_array_mut().unwrap().push(service);
    let wanted = farm.director().write("state.json", &state.to_string())?;
    evener.command(&["state", &wanted.to_string_lossy()])?;
    evener.wait_for_servers(6, LONG)?;
    let (_, why) = evener.failure(&["state", &late.to_string_lossy()])?;
    ensure!(why.replace('\n', " ").contains("the farm has changed"), "{why}");
    ensure!(evener.services()?.len() == 2);
    assert_eq!(crate::shares_of(&farm, second, 4)?, split([1, 1, 2]));

    evener.command(&["drain", "web/web3", "--wait", "--timeout", "30s"])?;
    evener.command(&["remove", "web/web3"])?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    assert_eq!(visit.who()?, server, "no change has touched an open connection");
    for _ in 0..4 {
        evener.command(&["undo"])?;
    }
    assert_eq!((evener.services()?.len(), evener.servers()?.len()), (1, 2));
    Ok(())
}

fn full_disk_leaves_all_as_it_was(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let mut evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(2, LONG)?;
    evener.command(&["weight", "web/web2", "2"])?;
    let state = farm.director().file("state");
    let aside = farm.director().file("aside");
    fs::rename(&state, &aside)?;
    // A file in place of the folder makes writing fail, as on a full disk.
    fs::write(&state, "")?;
    for change in
        [&["weight", "web/web1", "9"][..], &["drain", "web/web1"], &["undo"], &["remove", "web/web2"]]
    {
        let (code, why) = evener.failure(change)?;
        ensure!(code == 1 && why.replace('\n', " ").contains("nothing was changed"), "{change:?}: {why}");
    }
    let now = weights(&evener)?;
    assert_eq!((now["web1"].0, now["web2"].0, now["web1"].1.as_str()), (1, 2, "up"));
    assert_eq!(shares(&farm, 6)?, split([2, 4]));
    fs::remove_file(&state)?;
    fs::rename(&aside, &state)?;
    evener.command(&["weight", "web/web1", "2"])?;
    evener.daemon().kill9()?;
    evener.start_again()?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(weights(&evener)?["web1"].0, 2);
    Ok(())
}

fn server_in_maintenance_is_left_alone(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let probed = "[service.health]\nkind = \"tcp\"\ninterval = \"200ms\"\ntimeout = \"150ms\"\nfall = 2\n";
    let listed = file::listed(engine, &farm, "").replace(file::ALWAYS_UP, probed);
    let mut evener = Evener::start(farm.director(), &listed)?;
    evener.wait_for_servers(2, LONG)?;
    let state = |evener: &Evener, name: &str| Ok::<_, anyhow::Error>(evener.server(name)?.state);
    evener.command(&["maintenance", "web/web1"])?;
    assert_eq!(state(&evener, "web1")?, "maintenance");
    assert_eq!(shares(&farm, 4)?, split([0, 4]));
    // Both servers lose their cables. Only the server that is not in maintenance is reported down.
    farm.server(0).unplug()?;
    farm.server(1).unplug()?;
    wait::until("web2 is down", || Ok(state(&evener, "web2")? == "down"))?;
    let failures = evener.json::<Vec<Value>>(&["servers"])?;
    let of =
        |name: &str| failures.iter().find(|server| server["name"] == name).unwrap()["probe_failures"].clone();
    ensure!(of("web1") == 0 && of("web2").as_u64() > Some(0), "{failures:?}");
    // The maintenance state persists over a restart until it is ended.
    evener.daemon().kill9()?;
    evener.start_again()?;
    assert_eq!(state(&evener, "web1")?, "maintenance");
    farm.server(0).plug()?;
    farm.server(1).plug()?;
    evener.wait_for_servers(1, LONG)?;
    evener.command(&["undrain", "web/web1"])?;
    evener.wait_for_servers(2, LONG)?;
    assert_eq!(shares(&farm, 4)?, split([2, 2]));
    Ok(())
}
