//! Open connections behind equal-cost routes, whose directors go and return.

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::Agent;
use evener_lab::farm::{Builder, Farm};
use evener_lab::harness::wait;
use evener_lab::network::host::Host;
use serde_json::Value;

use super::{Front, lacks, no_agents};
use crate::lasting::{self, CONNECTIONS, go_on};

on_both_engines! {
    open_connections_go_on_when_one_director_goes,
    open_connections_go_on_after_directors_heard_each_other_again,
    open_connections_go_on_when_directors_of_three_go,
    tunnelled_connections_go_on_when_directors_of_three_go,
    connections_handed_off_go_on_when_directors_of_three_go,
}

/// Starts a front with `count` directors and as many servers. The default policy chooses by load,
/// so the directors choose differently.
fn front_by_load(
    engine: &str,
    method: &str,
    builder: Builder,
    count: u8,
    agents: impl FnOnce(&[Host], &str) -> Result<Vec<Agent>>,
) -> Result<Front> {
    let farm = builder.servers(count).directors(count).build()?;
    let server = |host: &Host| {
        format!("[[service.server]]\nname = \"{}\"\naddress = \"{}\"\n", host.name(), host.address())
    };
    let servers: String = farm.servers().iter().map(server).collect();
    let edit = |text: &str| {
        let service = text.split("[[service.server]]").next().unwrap_or_default();
        let service = service.replace("policy = \"hash\"", &format!("method = \"{method}\""));
        format!("[announce]\nhold = \"1s\"\n{service}{servers}")
    };
    Front::start_on(farm, engine, edit, agents)
}

/// Opens connections by all directors. Returns each with its server, once each director knows all
/// of them: its own ones, and those that the others have told.
fn lasting_connections(front: &Front) -> Result<Vec<(HttpConnection, String)>> {
    let services: Vec<_> = front.families.iter().map(|family| front.farm.service_in(*family)).collect();
    let visits = lasting::open(front.farm.client(0), &services)?;
    all_know_all(front, &visits)?;
    Ok(visits)
}

fn all_know_all(front: &Front, visits: &[(HttpConnection, String)]) -> Result<()> {
    front.directors.iter().try_for_each(|director| lasting::are_known_to(visits, director))
}

/// Opens connections to all of three directors, of which two go in turn: one is unplugged, and one
/// dies with its host. All must go on, as when the first returns.
fn connections_outlive_two_of_three(front: &mut Front) -> Result<()> {
    let mut visits = lasting_connections(front)?;
    for (gone, paths) in [(0, [false, true, true]), (1, [false, false, true])] {
        if gone == 1 {
            front.directors[gone].daemon().kill9()?;
        }
        front.farm.directors()[gone].ip(&["link set eth0 down".to_owned()])?;
        front.wait_for_paths(&paths)?;
        go_on(&mut visits, &format!("after director {gone} went"))?;
    }
    front.plug(0)?;
    front.wait_for_paths(&[true, false, true])?;
    go_on(&mut visits, "after the return")
}

fn open_connections_go_on_when_directors_of_three_go(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird"]) {
        return Ok(());
    }
    connections_outlive_two_of_three(&mut front_by_load(engine, "l2", Farm::builder(), 3, no_agents)?)
}

fn tunnelled_connections_go_on_when_directors_of_three_go(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird"]) {
        return Ok(());
    }
    let remote = Farm::builder().remote().bare();
    connections_outlive_two_of_three(&mut front_by_load(engine, "tunnel", remote, 3, Agent::start_all)?)
}

fn connections_handed_off_go_on_when_directors_of_three_go(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird"]) {
        return Ok(());
    }
    let bare = Farm::builder().bare();
    connections_outlive_two_of_three(&mut front_by_load(engine, "handoff", bare, 3, Agent::start_all)?)
}

/// Opens connections to both directors, and unplugs one. All must go on.
fn open_connections_go_on_when_one_director_goes(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird"]) {
        return Ok(());
    }
    let front = front_by_load(engine, "l2", Farm::builder(), 2, no_agents)?;
    let mut visits = lasting_connections(&front)?;
    front.farm.directors()[0].ip(&["link set eth0 down".to_owned()])?;
    front.wait_for_paths(&[false, true])?;
    go_on(&mut visits, "after the director went")?;
    front.plug(0)?;
    front.wait_for_paths(&[true, true])?;
    go_on(&mut visits, "after the return")
}

/// Opens connections while the directors don't hear each other. They must go on, once the directors
/// have heard each other, when one of them goes.
fn open_connections_go_on_after_directors_heard_each_other_again(engine: &str) -> Result<()> {
    if lacks(&["/usr/sbin/bird"]) {
        return Ok(());
    }
    let front = front_by_load(engine, "l2", Farm::builder(), 2, no_agents)?;
    let hear = |state: &str| {
        wait::until(&format!("the other director is {state}"), || {
            let known: Value = front.directors[0].json(&["directors"])?;
            Ok(known["directors"][1]["state"] == state)
        })
    };
    let nft = |command: &str| front.farm.directors()[1].run(&["sh", "-ec", command]).map(drop);
    hear("ready")?;
    nft("nft add table inet deaf
         nft add chain inet deaf in '{ type filter hook input priority 0; }'
         nft add rule inet deaf in udp dport 9181 drop
         nft add chain inet deaf out '{ type filter hook output priority 0; }'
         nft add rule inet deaf out udp dport 9181 drop")?;
    hear("silent")?;
    let mut visits = lasting::open(front.farm.client(0), &[front.farm.service()])?;
    let known = front.directors.iter().map(|director| Ok(director.sessions()?.len()));
    let known: usize = known.sum::<Result<_>>()?;
    ensure!(known == CONNECTIONS, "the directors have told each other: they know {known}");
    nft("nft delete table inet deaf")?;
    all_know_all(&front, &visits)?;
    front.farm.directors()[0].ip(&["link set eth0 down".to_owned()])?;
    front.wait_for_paths(&[false, true])?;
    go_on(&mut visits, "after the director went")
}
