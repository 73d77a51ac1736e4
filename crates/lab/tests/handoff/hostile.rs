//! Forged segments open no connection and leave no state.

use anyhow::{Result, ensure};
use evener_lab::cases;
use evener_lab::evener::Session;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::talk::{Talk, get};
use crate::{counted, farm, unbroken};

on_both_engines! {
    forged_segments_make_no_connection,
    handshakes_that_end_leave_nothing,
}

const REQUEST: &str = "text \"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n\"";

fn forged_segments_make_no_connection(engine: &str) -> Result<()> {
    const ROUNDS: u64 = 200;
    let handoff = farm(engine, 1, &[])?;
    let (router, server) = (handoff.farm.router().raw(1)?, handoff.farm.server(0));
    let frame = |family: Family, to: &str, round: u64| {
        let ip = if family == Family::V4 { "ip" } else { "ip6" };
        let (src, vip) = (handoff.client().address_in(family), handoff.farm.vip_in(family, 0));
        let (port, seq, ack) = (20_000 + round, 1 + 7 * round, 1 + round * 0x0101_0303);
        cases::frame(&format!(
            "eth {} > {to} {ip} {src} > {vip} tcp {port} > 80 PA seq={seq} ack={ack} {REQUEST}",
            router.mac()
        ))
    };
    let before = counted(server, "accepted")?;
    let load = Load { connections: 2, ..Load::to(handoff.service(Family::V4)) }.start_on(handoff.client());
    wait::until("clients are served", || Ok(load.requests() > 20))?;
    for round in 0..ROUNDS {
        for family in Family::BOTH {
            router.send(&frame(family, handoff.farm.director().mac(), round)?)?;
            router.send(&frame(family, server.mac(), round)?)?;
        }
    }
    let bad = |count: u64| count >= ROUNDS;
    wait::until("the director sees what is forged", || Ok(bad(handoff.counted("cookie_bad")?)))?;
    wait::until("and so does the server", || Ok(bad(counted(server, "bad_cookie")?)))?;
    let report = unbroken(load.stop()?)?;
    let forged = |port: u16| (20_000..20_000 + ROUNDS as u16).contains(&port);
    let sockets = server.run(&["ss", "-tnH", "state", "all", "sport", "=", ":80"])?;
    let peers =
        sockets.lines().filter_map(|line| line.split_whitespace().last()?.rsplit(':').next()?.parse().ok());
    let clients = handoff.evener.sessions()?;
    let noted = clients.iter().filter_map(|session| session.client.rsplit(':').next()?.parse().ok());
    // The load's own ports may be among the forged ones, but not all of them.
    let found = peers.chain(noted).filter(|port| forged(*port)).count() as u64;
    ensure!(found < ROUNDS / 2, "{found} of the forged connections are there");
    ensure!(counted(server, "accepted")? >= before + report.connections, "the load's were made");
    Ok(())
}

/// Clients leave at each point, by FIN or RST, before and after their first bytes, and leave no
/// state.
fn handshakes_that_end_leave_nothing(engine: &str) -> Result<()> {
    let handoff = farm(engine, 1, &[])?;
    for family in Family::BOTH {
        for reset in [false, true] {
            for word in ["", "GET / HT", "GET /%41 HTTP/1.1\r\nHost: x\r\n\r\n", &get("x", "/who")] {
                for _ in 0..5 {
                    let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
                    talk.send(word)?;
                    if reset { talk.reset()? } else { drop(talk) }
                }
            }
        }
    }
    let open = || -> Result<Vec<Session>> {
        let sessions = handoff.evener.sessions()?;
        Ok(sessions.into_iter().filter(|session| !session.is_ending()).collect())
    };
    let left = wait::for_value(LONG, open, Vec::is_empty)?;
    ensure!(left.is_ok(), "sessions stay open: {left:?}");
    for host in [handoff.farm.server(0), handoff.farm.director()] {
        wait::until("no socket stays open", || {
            let sockets = host.run(&["ss", "-tnH", "state", "connected", "sport", "=", ":80"])?;
            Ok(sockets.lines().all(|line| line.starts_with("TIME-WAIT")))
        })?;
    }
    let mut talk = Talk::open(handoff.client(), handoff.service(Family::V4))?;
    assert_eq!(talk.request(&get("x", "/who"))?.server, "web1");
    Ok(())
}
