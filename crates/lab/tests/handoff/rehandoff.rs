//! Connections that move between servers as their requests require, unnoticed by the client.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use evener_lab::clients::handmade_tcp::{Call, HandmadeTcp};
use evener_lab::clients::transfer::there_and_back;
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;

use crate::talk::{Reply, Talk, get, request};

on_both_engines! {
    a_connection_moves_with_its_requests,
    many_move_at_once,
    a_daemon_that_is_killed,
    servers_behind_a_router,
    a_lan_that_loses_packets,
    requests_that_come_before_the_answer,
    requests_in_pieces,
    empty_lines_around_requests,
    what_can_not_be_moved_ends,
    servers_whose_agents_are_gone,
    what_others_say_moves_nothing,
}

/// Returns routes for images to one server, for downloads to two, and for all else to a fourth.
fn routes() -> [String; 3] {
    [
        route("host = \"img.example.com\"", &["web1"]),
        route("host = \"dl.example.com\"", &["web2", "web3"]),
        route("", &["web4"]),
    ]
}

/// Servers that may serve each host name.
const HOSTS: [(&str, &[&str]); 3] =
    [("img.example.com", &["web1"]), ("dl.example.com", &["web2", "web3"]), ("www.example.com", &["web4"])];

fn start(engine: &str, farm: Farm, keys: &str) -> Result<Handoff> {
    let keys = format!("later_requests = \"rehandoff\"\n{keys}");
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let handoff = Handoff::start(farm, Offer { keys, health, ..Offer::new(engine, 4, &routes()) })?;
    handoff.wait_for_nodes()?;
    Ok(handoff)
}

fn near(engine: &str) -> Result<Handoff> {
    start(engine, Farm::builder().bare().servers(4).build()?, "")
}

/// Sends requests for all hosts, `rounds` times, on one connection. Checks that each response is
/// complete and from a permitted server.
fn go_round(client: &Host, handoff: &Handoff, family: Family, rounds: usize) -> Result<()> {
    let mut talk = Talk::open(client, handoff.service(family))?;
    for round in 0..rounds {
        for (host, servers) in HOSTS {
            for (path, len) in [("/who", 5), ("/2k", 2_000), ("/108k", 108_000), ("/0k", 0)] {
                let reply =
                    talk.request(&get(host, path)).with_context(|| format!("{family}, round {round}"))?;
                let seen = (reply.status, reply.body.len());
                ensure!(seen == (200, len), "{family}, round {round}: {host}{path}: {seen:?}");
                ensure!(servers.contains(&&*reply.server), "{family}: {host}{path} by {}", reply.server);
            }
        }
    }
    talk.end()?;
    ensure!(talk.rest()?.is_empty(), "more than was asked for");
    Ok(())
}

fn a_connection_moves_with_its_requests(engine: &str) -> Result<()> {
    let handoff = near(engine)?;
    for family in Family::BOTH {
        go_round(handoff.client(), &handoff, family, 6)?;
    }
    // Each round has three moves, minus the first request of all.
    wait::until("all moves are counted", || Ok(handoff.punted("handed_off")? >= 2 * 17))?;
    let status = handoff.evener.status()?;
    ensure!(status.lccp["released"] >= 2 * (3 * 6 - 1), "{:?}", status.lccp);
    ensure!(status.punted["spliced"] == 0, "{:?}", status.punted);
    ensure!(
        handoff.counted("rehandoff")? >= 34 && handoff.counted("route_mismatch")? == 0,
        "{:?}",
        status.packets
    );
    for family in Family::BOTH {
        there_and_back(&handoff.farm, handoff.client(), handoff.service(family), 1_000_000)?;
    }
    Ok(())
}

/// Several connections move at the same time.
fn many_move_at_once(engine: &str) -> Result<()> {
    let handoff = near(engine)?;
    thread::scope(|scope| {
        let go = |number: usize| {
            let handoff = &handoff;
            scope.spawn(move || go_round(handoff.client(), handoff, Family::BOTH[number % 2], 8))
        };
        let clients: Vec<_> = (0..32).map(go).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))
    })?;
    let status = handoff.evener.status()?;
    ensure!(status.lccp["released"] >= 32 * (3 * 8 - 1), "{:?}", status.lccp);
    ensure!(status.punted["spliced"] == 0, "{:?}", status.punted);
    Ok(())
}

/// Connections that do not move continue without the daemon. Connections that moved can move again
/// under the next daemon.
fn a_daemon_that_is_killed(engine: &str) -> Result<()> {
    let mut handoff = near(engine)?;
    let mut talks: Vec<(Family, Talk)> = Family::BOTH
        .into_iter()
        .flat_map(|family| [family; 4])
        .map(|family| Ok((family, Talk::open(handoff.client(), handoff.service(family))?)))
        .collect::<Result<_>>()?;
    for (host, server) in [("img.example.com", "web1"), ("www.example.com", "web4")] {
        for (family, talk) in &mut talks {
            let reply = talk.request(&get(host, "/2k")).with_context(|| format!("{family}, before"))?;
            assert_eq!(reply.server, server, "{family}");
        }
    }
    // The server responds as soon as it has the connection, and the director records it a moment
    // later.
    wait::until("all have moved", || {
        Ok(handoff.evener.sessions()?.iter().all(|session| session.server != "-"))
    })?;
    handoff.evener.daemon().kill9()?;
    handoff.evener.start_again()?;
    handoff.wait_for_nodes()?;
    for (host, server) in [("www.example.com", "web4"), ("img.example.com", "web1")] {
        for (family, talk) in &mut talks {
            let reply = talk.request(&get(host, "/2k")).with_context(|| format!("{family}, after"))?;
            assert_eq!(reply.server, server, "{family}");
        }
    }
    if engine == "xdp" {
        no_orphan_waits_for_ever(handoff)?;
    }
    Ok(())
}

/// The kernel holds a connection without a rehandoff task. The next daemon resets the connection.
fn no_orphan_waits_for_ever(mut handoff: Handoff) -> Result<()> {
    let mut talk = Talk::open(handoff.client(), handoff.service(Family::V4))?;
    assert_eq!(talk.request(&get("www.example.com", "/who"))?.server, "web4");
    handoff.evener.daemon().kill9()?;
    talk.send(get("img.example.com", "/who"))?;
    thread::sleep(Duration::from_millis(300));
    handoff.evener.start_again()?;
    // Each attempt waits for a reply's timeout; the client retransmits at growing intervals.
    let resets = (0..4).map(|_| is_reset(talk.reply())).find(Result::is_ok);
    resets.context("the client was not told")?
}

fn servers_behind_a_router(engine: &str) -> Result<()> {
    let farm = Farm::builder().remote().bare().servers(4).server_lans(2).build()?;
    let handoff = start(engine, farm, "encapsulation = \"gue\"\n")?;
    Family::BOTH.into_iter().try_for_each(|family| go_round(handoff.client(), &handoff, family, 3))
}

fn a_lan_that_loses_packets(engine: &str) -> Result<()> {
    let handoff = near(engine)?;
    handoff.farm.servers().iter().try_for_each(|server| server.lose(10))?;
    for family in Family::BOTH {
        go_round(handoff.client(), &handoff, family, 2)?;
    }
    Ok(())
}

/// A client that sends requests early gets all responses in order.
fn requests_that_come_before_the_answer(engine: &str) -> Result<()> {
    let handoff = near(engine)?;
    for family in Family::BOTH {
        // During a long response that the client reads later.
        let mut talk = Talk::open_narrow(handoff.client(), handoff.service(family))?;
        talk.send(get("img.example.com", "/108k"))?;
        thread::sleep(Duration::from_millis(50));
        talk.send(get("www.example.com", "/who"))?;
        let long = talk.reply_slowly(4_000)?;
        ensure!((long.server.as_str(), long.body.len()) == ("web1", 108_000), "{family}: {}", long.server);
        let next = talk.reply().with_context(|| format!("{family}: the one that was not waited with"))?;
        ensure!(next.body == b"web4\n", "{family}: {:?}", next.server);
    }
    Ok(())
}

fn requests_in_pieces(engine: &str) -> Result<()> {
    let handoff = near(engine)?;
    for family in Family::BOTH {
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        assert_eq!(talk.request(&get("img.example.com", "/who"))?.body, b"web1\n");
        talk.send_slowly(get("www.example.com", "/who"), 20)?;
        assert_eq!(talk.reply().with_context(|| format!("{family}: in pieces"))?.body, b"web4\n");
    }
    for family in Family::BOTH {
        let long =
            |host: &str| format!("GET /who HTTP/1.1\r\nHost: {host}\r\nX: {}\r\n\r\n", "x".repeat(7_000));
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        assert_eq!(talk.request(&get("img.example.com", "/who"))?.body, b"web1\n");
        assert_eq!(talk.request(&long("www.example.com"))?.body, b"web4\n", "{family}");
    }
    Ok(())
}

/// Some clients send an empty line before or after a request, which servers ignore (RFC 9112,
/// section 2.2).
fn empty_lines_around_requests(engine: &str) -> Result<()> {
    let handoff = near(engine)?;
    for family in Family::BOTH {
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        let requests =
            [("www.example.com", "web4"), ("img.example.com", "web1"), ("www.example.com", "web4")];
        for (host, server) in requests {
            talk.send(format!("\r\n{}", get(host, "/who")))?;
            ensure!(talk.reply().with_context(|| format!("{family}: before {host}"))?.server == server);
        }
        for (host, server) in requests {
            // The empty line is usually a separate segment. Otherwise this equals the previous
            // case.
            talk.send_slowly("\r\n", 2)?;
            ensure!(
                talk.request(&get(host, "/who")).with_context(|| format!("{family}: {host}"))?.server
                    == server
            );
        }
    }
    ensure!(handoff.counted("route_mismatch")? == 0 && handoff.punted("not_moved")? == 0);
    Ok(())
}

/// Fails unless the client's connection was reset.
fn is_reset(reply: Result<Reply>) -> Result<()> {
    let error = match reply {
        Ok(reply) => bail!("It was answered by {:?}", reply.server),
        Err(error) => error,
    };
    let kind = error.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
    ensure!(kind == Some(ErrorKind::ConnectionReset), "{error:?}");
    Ok(())
}

/// Some exchanges leave unknown state on a connection. A later request for another server then
/// resets the connection.
fn what_can_not_be_moved_ends(engine: &str) -> Result<()> {
    let handoff = near(engine)?;
    for family in Family::BOTH {
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        talk.request(&request("POST", "img.example.com", "/who"))?;
        is_reset(talk.request(&get("www.example.com", "/who")))
            .with_context(|| format!("{family}: after a POST"))?;
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        assert_eq!(talk.request(&get("www.example.com", "/who"))?.server, "web4");
    }
    ensure!(handoff.lccp("released")? == 0, "what can't be known was believed");
    Ok(())
}

fn servers_whose_agents_are_gone(engine: &str) -> Result<()> {
    let mut handoff = near(engine)?;
    handoff.agents[0].process().kill9()?;
    wait::until("the agent is missed", || {
        let nodes = handoff.evener.status()?.nodes;
        Ok(nodes.values().any(|state| state == "silent"))
    })?;
    for family in Family::BOTH {
        // Without web1's agent, connections cannot leave web1, and moves to web1 are relayed.
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        assert_eq!(talk.request(&get("www.example.com", "/who"))?.server, "web4");
        assert_eq!(talk.request(&get("img.example.com", "/who"))?.server, "web1", "{family}: carried");
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        assert_eq!(talk.request(&get("img.example.com", "/who"))?.server, "web1");
        is_reset(talk.request(&get("www.example.com", "/who"))).with_context(|| format!("{family}"))?;
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        let seen: BTreeSet<String> = ["www.example.com", "dl.example.com", "www.example.com"]
            .into_iter()
            .map(|host| Ok(talk.request(&get(host, "/who"))?.server))
            .collect::<Result<_>>()?;
        ensure!(seen.contains("web4") && seen.len() == 2, "{family}: {seen:?}");
    }
    handoff.agents[0].start_again()?;
    handoff.wait_for_nodes()?;
    Family::BOTH.into_iter().try_for_each(|family| go_round(handoff.client(), &handoff, family, 1))
}

/// Damaged or forged segments neither move nor end a connection.
fn what_others_say_moves_nothing(engine: &str) -> Result<()> {
    let handoff = near(engine)?;
    let hand = HandmadeTcp::on(&handoff.farm, handoff.client())?;
    for (port, family) in (0..).zip(Family::BOTH) {
        let mut call = hand.call(port, handoff.service(family))?;
        let mut count = 0;
        let mut request = |call: &mut Call, host: &str, server: &str| -> Result<()> {
            let (request, received) = (get(host, "/who"), call.received().len());
            call.send_data(count, &request)?;
            count += request.len();
            call.listen(|call| call.received().len() > received)?;
            let reply = String::from_utf8_lossy(&call.received()[received..]).into_owned();
            ensure!(reply.ends_with(&format!("\r\n\r\n{server}\n")), "{family}: {host}: {reply}");
            Ok(())
        };
        request(&mut call, "img.example.com", "web1")?;
        let first = get("img.example.com", "/who").len();
        for _ in 0..3 {
            call.corrupt(first, get("www.example.com", "/who"))?;
            call.forge(get("www.example.com", "/who"))?;
        }
        request(&mut call, "img.example.com", "web1")?;
        request(&mut call, "www.example.com", "web4")?;
    }
    ensure!(handoff.lccp("released")? == 2, "only what the clients themselves asked for moves");
    Ok(())
}
