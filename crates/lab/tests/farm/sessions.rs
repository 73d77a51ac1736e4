//! Packets of a connection reach the same server.

use anyhow::{Context, Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::clients::reused_ports;
use evener_lab::evener::{Evener, Explanation, Session};
use evener_lab::farm::{Builder, Farm};
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;

use crate::stage::{Plan, Way};
use crate::{file, split};

on_both_engines! {
    a_connection_stays_where_it_began,
    a_port_used_again_gets_a_new_choice,
    a_port_whose_end_was_reset_begins_anew_at_once,
    idle_sessions_are_forgotten,
    a_connection_that_nat_has_forgotten_is_reset,
    explain_says_what_happens,
    large_files_pass_whole_both_ways,
}

fn session_of(evener: &Evener, visit: &HttpConnection) -> Result<Option<Session>> {
    let client = visit.client().to_string();
    Ok(evener.sessions()?.into_iter().find(|session| session.client == client))
}

fn a_connection_stays_where_it_began(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let evener = Evener::start(
        farm.director(),
        &file::listed(engine, &farm, "timeouts = { half_closed = \"2s\" }\n"),
    )?;
    evener.wait_for_servers(2, LONG)?;
    let mut visits: Vec<_> =
        (0..4).map(|_| HttpConnection::open(farm.client(0), farm.service())).collect::<Result<_>>()?;
    for (visit, server) in visits.iter_mut().zip(["web1", "web2"].into_iter().cycle()) {
        for _ in 0..5 {
            assert_eq!(visit.who()?, server);
        }
        let session = session_of(&evener, visit)?.context("there is no session")?;
        assert_eq!((session.server.as_str(), session.state.as_str()), (server, "established"));
    }
    let clients: Vec<_> = visits.iter().map(|visit| visit.client().to_string()).collect();
    let session = |client: &String| -> Result<Option<Session>> {
        let sessions = evener.sessions()?;
        Ok(sessions.into_iter().find(|session| session.client == *client))
    };
    let (mut reset, mut kept) = (visits.split_off(2), visits);
    drop(kept.remove(0));
    reset.remove(0).reset()?;
    for gone in [&clients[0], &clients[2]] {
        wait::until("FIN and RST close", || Ok(session(gone)?.is_none_or(|session| session.is_ending())))?;
        wait::until("what has closed is forgotten", || Ok(session(gone)?.is_none()))?;
    }
    assert_eq!((kept[0].who()?, reset[0].who()?), ("web2".to_owned(), "web2".to_owned()));
    wait::until("only the open ones count", || {
        let active: Vec<_> = evener.servers()?.iter().map(|server| server.sessions).collect();
        Ok(active == [0, 2])
    })
}

fn a_port_used_again_gets_a_new_choice(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    // A half-closed session outlives the test, so that its port is reused within it.
    let keys = "timeouts = { half_closed = \"2m\" }\n";
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, keys))?;
    evener.wait_for_servers(2, LONG)?;
    for server in ["web1", "web2", "web1", "web2"] {
        let mut visit = HttpConnection::open_from(farm.client(0), 40_000, farm.service())?;
        assert_eq!(visit.who()?, server);
        let client = visit.client().to_string();
        visit.reset()?;
        wait::until("it closes", || {
            let sessions = evener.sessions()?;
            Ok(sessions.iter().any(|session| session.client == client && session.is_ending()))
        })?;
    }
    assert_eq!(evener.sessions()?.len(), 1);
    Ok(())
}

/// If the SYN went to the previous server, the reply would belong to no session, and the client
/// would retransmit after a second.
fn a_port_whose_end_was_reset_begins_anew_at_once(engine: &str) -> Result<()> {
    const USES: i64 = 40;
    for (way, family) in [(Way::Nat, Family::V4), (Way::SourceNat, Family::V6)] {
        let stage = Plan::new(engine, way, family).stage(2)?;
        let client = stage.client();
        let before = reused_ports::syns_sent_twice(client)?;
        for use_ in 0..USES {
            let visit = HttpConnection::open_from(client, 40_000, stage.service);
            let visit = visit.and_then(HttpConnection::reset_behind_the_end);
            visit.with_context(|| format!("{way:?}, use {use_}"))?;
        }
        // A busy machine can delay some SYNs.
        let twice = reused_ports::syns_sent_twice(client)? - before;
        ensure!(twice < USES / 2, "{way:?}: {twice} SYNs of {USES} connections were sent again");
    }
    Ok(())
}

fn idle_sessions_are_forgotten(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(2).build()?;
    let keys = "timeouts = { tcp = \"5s\" }\n";
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, keys))?;
    evener.wait_for_servers(2, LONG)?;
    let mut visit = HttpConnection::open(farm.client(0), farm.service())?;
    let server = visit.who()?;
    // All pauses together exceed the timeout, and each pause is a twentieth of the timeout.
    for _ in 0..24 {
        std::thread::sleep(std::time::Duration::from_millis(250));
        assert_eq!(visit.who()?, server, "who talks is not idle");
    }
    assert!(session_of(&evener, &visit)?.is_some());
    wait::until("it is forgotten", || Ok(session_of(&evener, &visit)?.is_none()))?;
    wait::until("it no longer counts", || Ok(evener.status()?.sessions == 0))
}

/// Without the reset, the client would retransmit for a quarter of an hour.
fn a_connection_that_nat_has_forgotten_is_reset(engine: &str) -> Result<()> {
    for (way, family) in [(Way::Nat, Family::V6), (Way::SourceNat, Family::V4)] {
        let farm = way.builder().servers(1).build()?;
        let keys = "timeouts = { tcp = \"5s\" }\n";
        let stage = Plan::new(engine, way, family).start(farm, keys, file::ALWAYS_UP, &[1])?;
        let mut visit = HttpConnection::open(stage.client(), stage.service)?;
        ensure!(visit.who()? == "web1");
        wait::until("it is forgotten", || Ok(session_of(&stage.evener, &visit)?.is_none()))?;
        let error = visit.who().err().with_context(|| format!("{way:?}: it was answered"))?;
        let is_reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        ensure!(error.downcast_ref().is_some_and(is_reset), "{way:?}: {error:#}");
        ensure!(stage.counted("reset")? == 1 && stage.counted("no_session")? >= 1, "{way:?}");
    }
    Ok(())
}

fn explain_says_what_happens(engine: &str) -> Result<()> {
    let farm = Farm::builder().servers(3).build()?;
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(3, LONG)?;
    let (client, service) = (farm.client(0).address(), farm.service().to_string());
    let explain = |port: u16, service: &str| -> Result<Explanation> {
        evener.json(&["explain", &format!("{client}:{port}"), service])
    };
    for port in 40_000..40_006 {
        let foretold = explain(port, &service)?;
        assert!(foretold.reasons.iter().any(|why| why.contains("no session")), "{foretold:?}");
        let mut visit = HttpConnection::open_from(farm.client(0), port, farm.service())?;
        let server = visit.who()?;
        assert_eq!(foretold.server.as_deref(), Some(server.as_str()), "{foretold:?}");
        let explained = explain(port, &service)?;
        assert_eq!(explained.server.as_deref(), Some(server.as_str()), "{explained:?}");
        assert!(explained.reasons.iter().any(|why| why.contains("there is a session")), "{explained:?}");
    }
    let stranger = explain(1, "192.0.2.77:80")?;
    assert_eq!((stranger.service, stranger.server), (None, None));
    Ok(())
}

fn large_files_pass_whole_both_ways(engine: &str) -> Result<()> {
    for farm in [Farm::builder(), Farm::builder().offload_replies()] {
        there_and_back(engine, farm)?;
    }
    Ok(())
}

fn there_and_back(engine: &str, farm: Builder) -> Result<()> {
    let farm = farm.servers(2).build()?;
    let evener = Evener::start(farm.director(), &file::listed(engine, &farm, ""))?;
    evener.wait_for_servers(2, LONG)?;
    let client = farm.client(0);
    let (original, copy) = (client.file("original"), client.file("copy"));
    let (original, copy) = (original.to_string_lossy().into_owned(), copy.to_string_lossy().into_owned());
    client.run(&[
        "dd",
        "if=/dev/urandom",
        &format!("of={original}"),
        "bs=1000000",
        "count=30",
        "status=none",
    ])?;
    let url = format!("http://{}/upload/file", farm.service());
    let long = ["--max-time", "60", "--output", &copy];
    client.curl(&[&long[..], &["--upload-file", &original, &url]].concat())?;
    client.curl(&[&long[..], &[&url]].concat())?;
    let sums = client.run(&["sha256sum", &original, &copy])?;
    let sums: Vec<_> = sums.lines().filter_map(|line| line.split_whitespace().next()).collect();
    ensure!(sums.len() == 2 && sums[0] == sums[1], "{sums:?}");
    let connections: u64 = evener.servers()?.iter().map(|server| server.connections).sum();
    assert_eq!(connections, 2);
    assert_eq!(crate::shares(&farm, 4)?, split([2, 2]));
    Ok(())
}
