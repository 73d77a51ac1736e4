//! Requests that the data plane cannot route are read in user space: the daemon routes them or
//! responds itself.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use evener_lab::clients::half_close::{Late, LateRequests, silent};
use evener_lab::clients::transfer::there_and_back;
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::talk::{Talk, get};
use crate::{farm, unbroken};

on_both_engines! {
    heads_in_pieces,
    complex_routes,
    half_closed_clients_are_served,
    who_has_said_all_is_answered_late,
    bodies_go_on,
    nobody_for_a_route,
    many_at_once,
}

on_one_engine! {
    odd_requests_are_made_normal,
    bad_requests_are_told_off,
    the_silent_are_not_waited_for,
}

/// Returns routes for images to `web2` and for other paths to `web1`.
fn images() -> Vec<String> {
    vec![route("path = \"/img/*\"", &["web2"]), route("path = \"/*\"", &["web1"])]
}

fn open(handoff: &Handoff, family: Family) -> Result<Talk> {
    Talk::open(handoff.client(), handoff.service(family))
}

/// Checks that `count` connections were read in user space and all handed off to a server.
fn given(handoff: &Handoff, count: u64) -> Result<()> {
    handoff.wait_for_punted("handed_off", count)?;
    let status = handoff.evener.status()?;
    let others: u64 =
        status.punted.iter().filter(|(name, _)| *name != "handed_off").map(|(_, count)| count).sum();
    ensure!(others == 0, "more than {count} were read: {:?}", status.punted);
    ensure!(status.packets["punted"] >= count, "{:?}", status.packets);
    Ok(())
}

fn heads_in_pieces(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &images())?;
    for family in Family::BOTH {
        for (path, server) in [("/img/a.png", "web2"), ("/a.png", "web1")] {
            let request = get("www.example.com", path);
            for len in [1, 7, request.len() - 1, request.len() - 2] {
                let mut talk = open(&handoff, family)?;
                talk.send_slowly(&request, len)?;
                let context = || format!("{family}: {path} in pieces of {len} bytes");
                assert_eq!(talk.reply().with_context(context)?.server, server, "{}", context());
                // From here on, the connection belongs to the server alone.
                for _ in 0..3 {
                    assert_eq!(talk.request(&get("x", "/who")).with_context(context)?.server, server);
                }
            }
        }
    }
    given(&handoff, 16)
}

fn odd_requests_are_made_normal(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &images())?;
    let odd = [
        ("/%69mg/a", "web2"),
        ("//img//a", "web2"),
        ("/x/../img/a", "web2"),
        ("/img/%2e%2e/a", "web1"),
        ("/img/../a", "web1"),
        ("http://www.example.com/img/a", "web2"),
        ("HTTP://www.example.com:80/a", "web1"),
        ("http://www.example.com", "web1"),
    ];
    for family in Family::BOTH {
        for (target, server) in odd {
            let reply = open(&handoff, family)?.request(&get("www.example.com", target))?;
            assert_eq!(reply.server, server, "{family}: {target}");
        }
        // Leading empty lines, which servers ignore (RFC 9112, section 2.2).
        let reply = open(&handoff, family)?.request(&format!("\r\n{}", get("www.example.com", "/img/a")))?;
        assert_eq!(reply.server, "web2");
    }
    given(&handoff, 18)
}

fn complex_routes(engine: &str) -> Result<()> {
    let routes = [
        route("path = \"/plain/*\"", &["web1"]),
        route("path = \"/*/thumb-?.png\"", &["web2"]),
        route("methods = \"PROPFIND\"", &["web3"]),
        route("path = \"/a/*\"", &["web1"]),
    ];
    let handoff = farm(engine, 3, &routes)?;
    let request = |text: &str| open(&handoff, Family::V4)?.request(text).map(|reply| reply.server);
    assert_eq!(request(&get("x", "/plain/thumb-1.png"))?, "web1");
    given(&handoff, 0)?;
    assert_eq!(request(&get("x", "/a/b/thumb-1.png"))?, "web2");
    assert_eq!(request(&get("x", "/a/b/thumb-11.png"))?, "web1");
    assert_eq!(request("PROPFIND /a/b HTTP/1.1\r\nHost: x\r\n\r\n")?, "web3");
    given(&handoff, 3)
}

/// A client sends a FIN directly after its request, while the connection is being handed off.
fn half_closed_clients_are_served(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &images())?;
    for family in Family::BOTH {
        for (target, server) in [("/img/a", "web2"), ("/%69mg/a", "web2"), ("/x/../a", "web1")] {
            for _ in 0..5 {
                let mut talk = open(&handoff, family)?;
                talk.send(get("www.example.com", target))?;
                talk.end()?;
                let reply = talk.reply().with_context(|| format!("{family}: {target}"))?;
                assert_eq!(reply.server, server, "{family}: {target}");
                assert_eq!(talk.rest()?, b"");
            }
        }
    }
    Ok(())
}

/// A client that has closed its direction gets its response even after a long time, whether the
/// data plane or the daemon routes the request.
fn who_has_said_all_is_answered_late(engine: &str) -> Result<()> {
    const PORT: u16 = 7_000;
    let farm = Farm::builder().servers(2).bare().build()?;
    let late = Late::start(farm.servers(), PORT)?;
    let keys = "timeouts = { closing = \"1s\" }\n".to_owned();
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let handoff =
        Handoff::start(farm, Offer { port: PORT, keys, health, ..Offer::new(engine, 2, &images()) })?;
    let kinds =
        Family::BOTH.into_iter().flat_map(|family| ["/img/a", "/%69mg/a"].map(|target| (family, target)));
    let send_kind = |(family, target)| {
        let requests =
            LateRequests::by(handoff.client(), handoff.service(family), 6, &get("www.example.com", target))?;
        Ok((format!("{family}: {target}"), requests))
    };
    let requests = kinds.map(send_kind).collect::<Result<Vec<_>>>()?;
    wait::until("all are half closed, and have been for long", || {
        Ok(silent(&handoff.evener.sessions()?) == 24)
    })?;
    late.answer();
    requests.into_iter().try_for_each(|(kind, requests)| requests.read_answers().context(kind))
}

/// Uploads whose head is read in user space: body bytes arrive with the head, and more follow
/// meanwhile.
fn bodies_go_on(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &[route("path = \"/*/*d/*\"", &["web2"])])?;
    for family in Family::BOTH {
        for len in [1, 1_400, 100_000, 5_000_000] {
            there_and_back(&handoff.farm, handoff.client(), handoff.service(family), len)
                .with_context(|| format!("{family}: {len} bytes"))?;
        }
        let mut talk = open(&handoff, family)?;
        let body = "0123456789".repeat(20_000);
        let path = if family == Family::V4 { "/upload/slow4" } else { "/upload/slow6" };
        let head = format!("PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        talk.send_slowly(&head, 20)?;
        talk.send_slowly(&body, 50_000)?;
        assert_eq!(talk.reply().with_context(|| format!("{family}"))?.status, 201);
        assert_eq!(std::fs::read(handoff.farm.page(path.trim_start_matches('/')))?, body.as_bytes());
    }
    handoff.wait_for_punted("handed_off", 18)
}

fn bad_requests_are_told_off(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &images())?;
    let long = format!("GET /a HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(40_000));
    let answers = [
        (400, "GET / HTTP/1.1\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        (400, "GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET / HTTP/1.1\nHost: a\n\n"),
        (400, "POST /%41 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (421, "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        (431, &long),
    ];
    for family in Family::BOTH {
        for (status, text) in answers {
            let mut talk = open(&handoff, family)?;
            let reply = talk.request(text)?;
            assert_eq!((reply.status, reply.server.as_str()), (status, ""), "{family}: {:.80?}", text);
            assert_eq!(talk.rest()?, b"", "and hung up");
        }
        // HTTP/2 with prior knowledge (RFC 9113, section 3.3): the reply is SETTINGS, and GOAWAY
        // with HTTP_1_1_REQUIRED.
        let mut talk = open(&handoff, family)?;
        talk.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")?;
        let frames = talk.rest()?;
        assert_eq!((frames[3], frames[12], frames[frames.len() - 1]), (4, 7, 0xd), "{frames:?}");
        // Neither HTTP nor TLS.
        let mut talk = open(&handoff, family)?;
        talk.send([0x7f; 40])?;
        assert!(talk.rest().is_err(), "it is reset");
    }
    handoff.wait_for_punted("refused", 2 * (answers.len() as u64 + 2))?;
    assert_eq!(handoff.punted("handed_off")?, 0);
    Ok(())
}

fn the_silent_are_not_waited_for(engine: &str) -> Result<()> {
    let handoff = farm(engine, 1, &[])?;
    let mut half = open(&handoff, Family::V4)?;
    half.send("GET / HTTP/1.1\r\nHost")?;
    let mut hello = open(&handoff, Family::V6)?;
    hello.send([0x16, 3, 1, 2, 0, 1])?;
    let mut left = open(&handoff, Family::V4)?;
    left.send("GET ")?;
    wait::until("it is being read", || Ok(handoff.counted("punted")? >= 3))?;
    drop(left);
    handoff.wait_for_punted("client_closed", 1)?;
    let reply = half.reply()?;
    assert_eq!((reply.status, reply.server.as_str()), (408, ""));
    assert!(hello.rest().is_err(), "it is reset");
    handoff.wait_for_punted("client_timeout", 2)
}

fn nobody_for_a_route(engine: &str) -> Result<()> {
    let mut handoff = farm(engine, 2, &images())?;
    handoff.farm.stop_web(1)?;
    handoff.evener.wait_for_servers(1, wait::LONG)?;
    for family in Family::BOTH {
        for target in ["/img/a", "/%69mg/a"] {
            let mut talk = open(&handoff, family)?;
            let reply = talk.request(&get("www.example.com", target))?;
            assert_eq!((reply.status, reply.server.as_str()), (503, ""), "{family}: {target}");
        }
        assert_eq!(open(&handoff, family)?.request(&get("www.example.com", "/a"))?.server, "web1");
    }
    handoff.wait_for_punted("no_server", 4)?;
    handoff.farm.start_web(1)?;
    handoff.evener.wait_for_servers(2, wait::LONG)?;
    assert_eq!(open(&handoff, Family::V4)?.request(&get("www.example.com", "/img/a"))?.server, "web2");
    Ok(())
}

/// All requests are read in user space.
fn many_at_once(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &[route("path = \"/*h?\"", &["web2"])])?;
    let load = |service: SocketAddr| {
        Load { connections: 50, requests: Some(10), timeout: wait::LONG, ..Load::to(service) }
            .start_on(handoff.client())
    };
    let loads = Family::BOTH.map(|family| load(handoff.service(family)));
    for load in loads {
        let report = unbroken(load.join()?)?;
        assert_eq!(report.servers.keys().collect::<Vec<_>>(), ["web2"]);
        assert_eq!(report.requests, 500);
    }
    given(&handoff, 1_000)
}
