//! What the nodes of a farm say to each other: servers acknowledge the connections that they are given.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::family::Family;
use evener_lab::farm::Farm;
use evener_lab::load::Load;
use evener_lab::transfer::there_and_back;

use crate::talk::{Talk, get};
use crate::{farm, unbroken};

on_both_engines! {
    servers_say_what_they_took,
    a_lan_that_loses_every_fifth_packet,
    agents_that_are_gone_are_given_to_without_a_word,
}

/// Everything has to be asked about, and all servers serve it.
fn all_asked() -> [String; 1] {
    [route("path = \"/*?*\"", &["web1", "web2"])]
}

fn servers_say_what_they_took(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &all_asked())?;
    handoff.wait_for_nodes()?;
    for family in Family::BOTH {
        for len in [10, 1_400, 100_000] {
            there_and_back(&handoff.farm, handoff.client(), handoff.service(family), len)
                .with_context(|| format!("{family}: {len} bytes"))?;
        }
        // a head that is longer than a message
        let long = format!("GET /who HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(7_000));
        let reply = Talk::open(handoff.client(), handoff.service(family))?.ask(&long)?;
        assert_eq!(reply.status, 200, "{family}");
    }
    let status = handoff.evener.status()?;
    let given = status.asked["given"];
    ensure!(given > 0 && status.lccp["given"] == given, "{:?} {:?}", status.asked, status.lccp);
    ensure!(status.lccp["unanswered"] + status.lccp["not_restored"] == 0, "{:?}", status.lccp);
    Ok(())
}

fn a_lan_that_loses_every_fifth_packet(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).build()?;
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let handoff = Handoff::start(farm, Offer { health, ..Offer::new(engine, 2, &all_asked()) })?;
    handoff.wait_for_nodes()?;
    let loads = Family::BOTH.map(|family| {
        let load = |path: &str| Load {
            connections: 8,
            path: path.to_owned(),
            requests: Some(10),
            timeout: Duration::from_secs(60),
            ..Load::to(handoff.service(family))
        };
        [load("/2k"), load("/108k")]
    });
    handoff.farm.servers().iter().try_for_each(|server| server.lose(20))?;
    let running: Vec<_> = loads.into_iter().flatten().map(|load| load.start_on(handoff.client())).collect();
    for family in Family::BOTH {
        there_and_back(&handoff.farm, handoff.client(), handoff.service(family), 300_000)
            .with_context(|| format!("{family}"))?;
    }
    for load in running {
        assert_eq!(unbroken(load.join()?)?.requests, 80);
    }
    let status = handoff.evener.status()?;
    ensure!(status.lccp["given"] >= 320, "{:?} {:?}", status.asked, status.lccp);
    ensure!(status.asked["given"] == 324 && status.asked["spliced"] == 0, "{:?}", status.asked);
    Ok(())
}

/// What accepts connections works on without the agent, and so they are given as to one that never spoke.
fn agents_that_are_gone_are_given_to_without_a_word(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 2, &all_asked())?;
    handoff.wait_for_nodes()?;
    handoff.agents.iter_mut().try_for_each(|agent| agent.process().kill9())?;
    for family in Family::BOTH {
        let reply = Talk::open(handoff.client(), handoff.service(family))?.ask(&get("x", "/who"))?;
        assert_eq!(reply.status, 200, "{family}");
    }
    assert_eq!((handoff.lccp("given")?, handoff.asked("given")?, handoff.asked("spliced")?), (0, 2, 0));
    handoff.agents.iter_mut().try_for_each(|agent| agent.start_again())?;
    handoff.wait_for_nodes()?;
    for family in Family::BOTH {
        let reply = Talk::open(handoff.client(), handoff.service(family))?.ask(&get("x", "/who"))?;
        assert_eq!(reply.status, 200, "{family}");
    }
    assert_eq!((handoff.lccp("given")?, handoff.asked("given")?), (2, 4));
    Ok(())
}
