//! The largest number of routes of a service, and one more. Also, jumbo frames.

use anyhow::{Context, Result, ensure};
use evener_lab::clients::transfer::there_and_back;
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;

use crate::farm;
use crate::talk::{Talk, get};

on_both_engines! {
    ten_thousand_routes_and_not_one_more,
    jumbo_frames,
}

const MOST: usize = 10_000;

/// Returns routes for different hosts, alternately to two servers.
fn routes(count: usize, first: usize) -> Vec<String> {
    let server = |number: usize| if (number + first).is_multiple_of(2) { "web1" } else { "web2" };
    (0..count).map(|number| route(&format!("host = \"h{number}.example.com\""), &[server(number)])).collect()
}

fn go_by(handoff: &Handoff, first: usize) -> Result<()> {
    for family in Family::BOTH {
        for number in [0usize, 1, MOST / 2, MOST - 2, MOST - 1] {
            let expected = if (number + first).is_multiple_of(2) { "web1" } else { "web2" };
            let host = format!("h{number}.example.com");
            let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
            let reply = talk.request(&get(&host, "/who")).with_context(|| format!("{family}: {host}"))?;
            assert_eq!(reply.server, expected, "{family}: {host}");
        }
    }
    let status = handoff.evener.status()?;
    assert!(status.punted.values().all(|count| *count == 0), "the data plane decides all of it: {status:?}");
    Ok(())
}

fn ten_thousand_routes_and_not_one_more(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 2, &routes(MOST, 0))?;
    go_by(&handoff, 0)?;
    handoff.offer.routes = routes(MOST + 1, 1).concat();
    let refused = format!("{:#}", handoff.reload().unwrap_err());
    assert!(refused.contains("10001 routes"), "{refused}");
    assert!(handoff.evener.status()?.reload_error.is_some_and(|error| error.contains("10001 routes")));
    go_by(&handoff, 0)?;
    // The same number of different routes replaces them.
    handoff.offer.routes = routes(MOST, 1).concat();
    handoff.reload()?;
    go_by(&handoff, 1)
}

/// Uploads whose route the data plane finds, and uploads read in user space. A cookie cannot encode
/// an MSS above the usual one, so connections use the usual MSS on paths with a larger MTU.
fn jumbo_frames(engine: &str) -> Result<()> {
    const LEN: usize = 3_000_000;
    let farm = Farm::builder().bare().servers(2).build()?;
    farm.widen(9_000)?;
    let routes = |path: &str| [route(path, &["web2"]), route("path = \"/*\"", &["web1"])];
    let mut handoff = Handoff::start(farm, Offer::new(engine, 2, &routes("path = \"/upload/*\"")))?;
    for kind in ["decided", "read"] {
        for family in Family::BOTH {
            there_and_back(&handoff.farm, handoff.client(), handoff.service(family), LEN)
                .with_context(|| format!("{family}, {kind}"))?;
        }
        match kind {
            "read" => wait::until("they were read", || Ok(handoff.punted("handed_off")? > 0))?,
            _ => ensure!(handoff.punted("handed_off")? == 0),
        }
        handoff.offer.routes = routes("path = \"/*load/*\"").concat();
        handoff.reload()?;
    }
    let server = handoff.evener.server("web2")?;
    ensure!(server.bytes > 4 * LEN as u64, "{server:?}");
    Ok(())
}
