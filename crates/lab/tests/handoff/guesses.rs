//! A client that does not see SYN-ACKs cannot guess cookies, and other clients are served during
//! such a flood.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evener_lab::cases;
use evener_lab::evener::{Handoff, Service};
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::talk::{Talk, get};
use crate::{farm, unbroken};

on_both_engines! {
    guesses_are_limited_and_clients_are_served,
    the_clock_in_the_answer_goes_on,
}

/// Limit of forged segments. One address has fewer cookies checked during a flood.
const FLOOD: u32 = 20_000;
/// An address that no host has.
const OTHER: &str = "203.0.113.202";
const REQUEST: &str = "text \"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n\"";

fn service(handoff: &Handoff) -> Result<Service> {
    handoff.evener.services()?.into_iter().next().context("There is no service")
}

/// Sends segments with a forged source and guessed cookies until `enough` returns true.
fn guess(
    handoff: &Handoff,
    forged: &str,
    options: &str,
    enough: impl Fn(&Service) -> bool,
) -> Result<Service> {
    const SOME: u32 = 500;
    let router = handoff.farm.router().raw(1)?;
    let vip = handoff.farm.vip_in(Family::V4, 0);
    let (from, to) = (router.mac(), handoff.farm.director().mac());
    for number in 1..=FLOOD {
        let (port, ack) = (1_024 + number, number.wrapping_mul(0x9e37_79b1));
        router.send(&cases::frame(&format!(
            "eth {from} > {to} ip {forged} > {vip} tcp {port} > 80 PA seq={number} ack={ack} {options} {REQUEST}"
        ))?)?;
        if number % SOME == 0 {
            let now = service(handoff)?;
            if enough(&now) {
                return Ok(now);
            }
        }
    }
    let seen = || service(handoff);
    wait::for_value(wait::LONG, seen, enough)?.map_err(|seen| anyhow::anyhow!("after all guesses: {seen:?}"))
}

/// Forged segments without timestamps are soon no longer checked. Segments with timestamps are all
/// checked and rejected. Clients with timestamps are not affected, and clients without are served
/// after the flood.
fn guesses_are_limited_and_clients_are_served(engine: &str) -> Result<()> {
    let handoff = farm(engine, 1, &[])?;
    let load = Load { connections: 2, ..Load::to(handoff.service(Family::V4)) }.start_on(handoff.client());
    wait::until("clients are served", || Ok(load.requests() > 20))?;
    let before = service(&handoff)?;

    let flooded =
        guess(&handoff, "203.0.113.201", "", |now| now.cookies_unchecked > before.cookies_unchecked + 100)?;
    ensure!(flooded.cookies_bad >= before.cookies_bad + 4_096, "too few were looked at: {flooded:?}");
    ensure!(handoff.counted("cookie_unchecked")? > 0, "they are counted as packets too");
    let during = load.requests();
    wait::until("clients are served still", || Ok(load.requests() > during + 20))?;

    let bad = flooded.cookies_bad + 1_000;
    let echoing = guess(&handoff, OTHER, "options=nop,nop,ts:7:9", |now| now.cookies_bad >= bad)?;
    let report = unbroken(load.stop()?)?;
    ensure!(report.requests > during, "clients were served");
    let sessions = handoff.evener.sessions()?;
    let passed: Vec<_> = sessions.iter().filter(|session| session.client.starts_with(OTHER)).collect();
    ensure!(passed.is_empty(), "a guess was right: {passed:?} of {echoing:?}");

    handoff.client().netns().sysctl(&[("ipv4/tcp_timestamps", "0")])?;
    for family in Family::BOTH {
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        let reply =
            talk.request(&get("x", "/who")).with_context(|| format!("{family}: without timestamps"))?;
        assert_eq!(reply.server, "web1");
    }
    Ok(())
}

/// Returns the service's timestamp value in a line of tcpdump.
fn clock(line: &str) -> Option<u32> {
    line.split_once("TS val ")?.1.split(' ').next()?.parse().ok()
}

/// Returns the smoothed round-trip time of a socket in milliseconds, from `rtt:0.061/0.03`.
fn round_trip(sockets: &str) -> Option<f64> {
    sockets.split_once(" rtt:")?.1.split('/').next()?.parse().ok()
}

/// The SYN-ACK, the user-space reader and the server continue one timestamp clock. A client never
/// receives an older timestamp than before (RFC 7323, section 5), even if it waits before its first
/// request.
fn the_clock_in_the_answer_goes_on(engine: &str) -> Result<()> {
    let handoff = farm(engine, 1, &[])?;
    let mut port = 40_000;
    for family in Family::BOTH {
        // Requests that the data plane routes, and requests that are punted.
        for path in ["/who", "/./who"] {
            for pause in [Duration::ZERO, Duration::from_millis(1_500)] {
                port += 1;
                let what = || format!("{family}: {path}, {pause:?}");
                let capture = handoff.client().capture(0, "tcp and src port 80")?;
                let started = Instant::now();
                let mut talk = Talk::open_from(handoff.client(), port, handoff.service(family))?;
                // The pause of a slow client; nothing to wait for.
                std::thread::sleep(pause);
                for _ in 0..3 {
                    let reply = talk.request(&get("x", path)).with_context(what)?;
                    assert_eq!(reply.server, "web1", "{}", what());
                }
                let (dport, server) = (format!("dport = :{port}"), handoff.farm.server(0));
                let sockets = || server.run(&["ss", "-tinHO", &dport]);
                let is_elapsed =
                    |rtt: &Option<f64>| rtt.is_some_and(|rtt| rtt <= started.elapsed().as_secs_f64() * 1e3);
                let rtt = wait::for_value(wait::LONG, || Ok(round_trip(&sockets()?)), is_elapsed)?;
                ensure!(rtt.is_ok(), "{}: round trip {rtt:?} in {}", what(), sockets()?);
                let to_client = format!(".{port}: ");
                let lines: Vec<_> =
                    capture.stop()?.into_iter().filter(|line| line.contains(&to_client)).collect();
                let elapsed_ms = started.elapsed().as_millis() as u32 + 2;
                let clocks: Vec<u32> = lines.iter().filter_map(|line| clock(line)).collect();
                ensure!(clocks.len() > 3, "{}: {lines:#?}", what());
                for pair in clocks.windows(2) {
                    ensure!(pair[1].wrapping_sub(pair[0]) <= elapsed_ms, "{}: {lines:#?}", what());
                }
            }
        }
    }
    Ok(())
}
