//! Each request goes to a server of its route, and the connection stays there.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use evener_lab::clients::transfer::there_and_back;
use evener_lab::evener::{Handoff, Offer, Session, route};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::workloads::load::Load;

use crate::talk::{Talk, get, request};
use crate::{farm, unbroken};

on_both_engines! {
    requests_go_where_routes_say,
    connections_stay_where_they_are,
    later_requests_end_connections,
    much_goes_there_and_back,
    servers_behind_a_router,
    policies_choose_among_a_routes_servers,
}

/// Returns all kinds of simple routes. `web1` is in none of them.
fn every_kind() -> [String; 5] {
    [
        route("host = \"img.example.com\"\npath = \"/img/*\"", &["web2"]),
        route("host = \"*.static.example.com\"", &["web3"]),
        route("path = \"/exact\"", &["web4"]),
        route("path = \"/write/*\"\nmethods = [\"POST\", \"PUT\"]", &["web3"]),
        route("host = \"img.example.com\"", &["web4"]),
    ]
}

/// The expected servers. `web1` stands for all servers by round robin.
const EXPECTED: [(&str, &str, &str, &[&str]); 13] = [
    ("GET", "img.example.com", "/img/a.png", &["web2"]),
    ("GET", "IMG.example.com:80", "/img/", &["web2"]),
    ("HEAD", "img.example.com", "/img/a?b=/c", &["web2"]),
    ("GET", "img.example.com", "/img", &["web4"]),
    ("GET", "img.example.com", "/IMG/a.png", &["web4"]),
    ("GET", "a.static.example.com", "/", &["web3"]),
    ("GET", "a.b.static.example.com", "/img/x", &["web3"]),
    ("GET", "www.example.com", "/exact?query", &["web4"]),
    ("POST", "www.example.com", "/write/a", &["web3"]),
    ("PUT", "www.example.com", "/write/a/b", &["web3"]),
    ("GET", "static.example.com", "/", &["web1", "web2", "web3", "web4"]),
    ("GET", "www.example.com", "/write/a", &["web1", "web2", "web3", "web4"]),
    ("DELETE", "www.example.com", "/exact/", &["web1", "web2", "web3", "web4"]),
];

fn requests_go_where_routes_say(engine: &str) -> Result<()> {
    let handoff = farm(engine, 4, &every_kind())?;
    for family in Family::BOTH {
        for (method, host, path, expected) in EXPECTED {
            let seen: BTreeSet<String> = (0..8)
                .map(|_| {
                    let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
                    Ok(talk.request(&request(method, host, path))?.server)
                })
                .collect::<Result<_>>()
                .with_context(|| format!("{family}: {method} {host} {path}"))?;
            assert_eq!(seen, expected.iter().map(ToString::to_string).collect(), "{method} {host} {path}");
        }
    }
    let status = handoff.evener.status()?;
    assert!(status.punted.values().all(|count| *count == 0), "the data plane decides all of it: {status:?}");
    assert!(handoff.counted("cookie_sent")? >= 2 * 8 * 13);
    Ok(())
}

fn connections_stay_where_they_are(engine: &str) -> Result<()> {
    let handoff = farm(engine, 4, &every_kind())?;
    for family in Family::BOTH {
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        assert_eq!(talk.request(&get("img.example.com", "/img/"))?.server, "web2");
        for (method, host, path, _) in EXPECTED {
            assert_eq!(talk.request(&request(method, host, path))?.server, "web2", "{method} {host} {path}");
        }
        // Several requests in the first segment.
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        talk.send([get("a.static.example.com", "/who"), get("img.example.com", "/img/a")].concat())?;
        assert_eq!(talk.reply()?.body, b"web3\n");
        assert_eq!(talk.reply()?.server, "web3");
        talk.end()?;
        assert_eq!(talk.rest()?, b"");
    }
    let load = Load {
        connections: 16,
        keep_alive: true,
        requests: Some(50),
        ..Load::to(handoff.service(Family::V4))
    };
    let report = unbroken(load.run_on(handoff.client())?)?;
    assert_eq!((report.connections, report.requests), (16, 800));
    Ok(())
}

/// A later request for other servers is never answered by the wrong server.
fn later_requests_end_connections(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(4).build()?;
    let keys = "later_requests = \"close\"\n".to_owned();
    let handoff = Handoff::start(farm, Offer { keys, ..Offer::new(engine, 4, &every_kind()) })?;
    for family in Family::BOTH {
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        for _ in 0..3 {
            assert_eq!(talk.request(&get("img.example.com", "/img/"))?.server, "web2");
        }
        let refused = talk.request(&get("a.static.example.com", "/who"));
        assert!(refused.is_err(), "{family}: answered by {:?}", refused.map(|reply| reply.server));
        // On a new connection, the request is answered. Connections read in user space behave the
        // same.
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        assert_eq!(talk.request(&get("a.static.example.com", "/./who"))?.server, "web3");
        assert_eq!(talk.request(&get("a.static.example.com", "/who"))?.server, "web3");
        assert!(talk.request(&get("img.example.com", "/img/")).is_err(), "{family}");
        there_and_back(&handoff.farm, handoff.client(), handoff.service(family), 1_000_000)?;
    }
    ensure!(handoff.counted("route_mismatch")? >= 4, "none was ended");
    let load = Load {
        connections: 16,
        keep_alive: true,
        requests: Some(50),
        ..Load::to(handoff.service(Family::V4))
    };
    let report = unbroken(load.run_on(handoff.client())?)?;
    assert_eq!((report.connections, report.requests), (16, 800));
    Ok(())
}

fn much_goes_there_and_back(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &[])?;
    for family in Family::BOTH {
        for len in [1, 1400, 5_000_000] {
            there_and_back(&handoff.farm, handoff.client(), handoff.service(family), len)
                .with_context(|| format!("{family}: {len} bytes"))?;
        }
    }
    there_and_back(&handoff.farm, handoff.client(), handoff.service(Family::V4), 20_000_000)?;
    let load = Load {
        connections: 8,
        path: "/108k".to_owned(),
        requests: Some(20),
        ..Load::to(handoff.service(Family::V4))
    };
    unbroken(load.run_on(handoff.client())?)?;
    wait::until("sessions end with their connections", || {
        let sessions = handoff.evener.sessions()?;
        Ok(sessions.iter().all(Session::is_ending))
    })
}

/// Through a tunnel, with its smaller MTU: the agreed MSS avoids packets that are too long.
fn servers_behind_a_router(engine: &str) -> Result<()> {
    for keys in ["", "encapsulation = \"gue\"\n"] {
        let farm = Farm::builder().remote().bare().servers(3).server_lans(2).build()?;
        let routes = [route("host = \"img.example.com\"", &["web2"])];
        let offer = Offer { keys: keys.to_owned(), ..Offer::new(engine, 3, &routes) };
        let handoff = Handoff::start(farm, offer)?;
        for family in Family::BOTH {
            for _ in 0..4 {
                let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
                assert_eq!(talk.request(&get("img.example.com", "/who"))?.body, b"web2\n");
            }
            there_and_back(&handoff.farm, handoff.client(), handoff.service(family), 2_000_000)
                .with_context(|| format!("{family}"))?;
        }
        let too_big = handoff.counted("too_big")?;
        ensure!(too_big == 0, "{too_big} segments did not fit");
    }
    Ok(())
}

fn policies_choose_among_a_routes_servers(engine: &str) -> Result<()> {
    let routes = [route("path = \"/who\"", &["web1", "web3"])];
    let handoff = farm(engine, 3, &routes)?;
    let load = Load { requests: Some(40), ..Load::to(handoff.service(Family::V4)) };
    let report = unbroken(load.run_on(handoff.client())?)?;
    let shares: Vec<_> =
        report.servers.iter().map(|(name, share)| (name.as_str(), share.connections)).collect();
    assert_eq!(shares, [("web1", 20), ("web3", 20)]);
    let counted: Vec<_> = handoff.evener.servers()?.iter().map(|server| server.connections).collect();
    assert_eq!(counted, [20, 0, 20]);
    Ok(())
}
