//! Networks with loss and duplicates, clients that reuse a port, and very many clients.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use evener_lab::cases;
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::clients::transfer::there_and_back;
use evener_lab::evener::{Handoff, Offer, Session, route};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;
use evener_lab::servers::nginx::PATTERN;
use evener_lab::workloads::load::Load;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::talk::{Talk, get};
use crate::{farm, unbroken};

on_both_engines! {
    every_tenth_packet_is_lost,
    packets_come_twice,
    packets_come_in_disorder,
    clients_read_slowly_and_have_little_room,
    a_port_is_used_over_and_over,
    ten_thousand_are_open_at_once,
    a_flood_of_handshakes_costs_no_memory,
}

/// Returns two routes that the data plane evaluates. Paths with an `8` and paths without a route
/// are read in user space.
fn some_requested() -> [String; 3] {
    let both = &["web1", "web2"];
    [route("path = \"/who\"", both), route("path = \"/2k\"", both), route("path = \"/*8*\"", &["web2"])]
}

fn every_tenth_packet_is_lost(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).build()?;
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let handoff = Handoff::start(farm, Offer { health, ..Offer::new(engine, 2, &some_requested()) })?;
    let loads = Family::BOTH.map(|family| {
        let load = |path: &str| Load {
            connections: 8,
            path: path.to_owned(),
            requests: Some(5),
            timeout: Duration::from_secs(40),
            ..Load::to(handoff.service(family))
        };
        [load("/2k"), load("/108k")]
    });
    for host in [handoff.client(), handoff.farm.director()] {
        host.lose(10)?;
    }
    let running: Vec<_> = loads.into_iter().flatten().map(|load| load.start_on(handoff.client())).collect();
    for family in Family::BOTH {
        there_and_back(&handoff.farm, handoff.client(), handoff.service(family), 300_000)
            .with_context(|| format!("{family}"))?;
    }
    for load in running {
        assert_eq!(unbroken(load.join()?)?.requests, 40);
    }
    Ok(())
}

/// Each packet of a client is duplicated, including the first segment, for the data plane and for
/// user space.
fn packets_come_twice(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &some_requested())?;
    let (client, router) = (&handoff.client().interfaces()[0], &handoff.farm.router().interfaces()[0]);
    let rules = format!(
        "table netdev twice {{\n chain from_client {{\n  type filter hook ingress device \"{}\" priority 0\n  \
         dup to \"{}\"\n }}\n}}\n",
        client.port, router.port
    );
    let file = handoff.client().write("twice.nft", &rules)?;
    let switch = format!("--net={}", handoff.farm.switch().path().display());
    handoff.client().run(&["nsenter", &switch, "nft", "-f", &file.to_string_lossy()])?;
    for family in Family::BOTH {
        for path in ["/2k", "/108k"] {
            let load = Load {
                connections: 4,
                path: path.to_owned(),
                requests: Some(25),
                ..Load::to(handoff.service(family))
            };
            assert_eq!(unbroken(load.run_on(handoff.client())?)?.requests, 100, "{family}: {path}");
        }
        there_and_back(&handoff.farm, handoff.client(), handoff.service(family), 1_000_000)?;
    }
    ensure!(handoff.counted("cookie_acked")? >= 800, "nothing came twice");
    Ok(())
}

/// Packets are reordered in both directions, at the client.
fn packets_come_in_disorder(engine: &str) -> Result<()> {
    let handoff = farm(engine, 2, &some_requested())?;
    let shuffle = handoff.client().shuffle()?;
    for family in Family::BOTH {
        for path in ["/2k", "/108k"] {
            for keep_alive in [false, true] {
                let load = Load {
                    connections: 4,
                    path: path.to_owned(),
                    requests: Some(25),
                    keep_alive,
                    timeout: LONG,
                    ..Load::to(handoff.service(family))
                };
                assert_eq!(unbroken(load.run_on(handoff.client())?)?.requests, 100, "{family}: {path}");
            }
        }
        there_and_back(&handoff.farm, handoff.client(), handoff.service(family), 1_000_000)
            .with_context(|| format!("{family}"))?;
    }
    ensure!(shuffle.overtaken() >= 500, "only {} packets were overtaken", shuffle.overtaken());
    Ok(())
}

/// The smallest receive buffer and a pause after each piece close the window again and again.
fn clients_read_slowly_and_have_little_room(engine: &str) -> Result<()> {
    const PIECE: usize = 3_000;
    let handoff = farm(engine, 2, &some_requested())?;
    let right: Vec<u8> = PATTERN.iter().copied().cycle().take(108_000).collect();
    let mut talks = Vec::new();
    for family in Family::BOTH {
        // Routed by the data plane, and by user space.
        for path in ["/2k", "/108k"] {
            let mut talk = Talk::open_narrow(handoff.client(), handoff.service(family))?;
            talk.send(get("x", path))?;
            talks.push((family, path, talk));
        }
    }
    for (family, path, talk) in &mut talks {
        let what = || format!("{family}: {path}");
        let reply = talk.reply_slowly(PIECE).with_context(what)?;
        assert!(right.starts_with(&reply.body), "{}: other bytes came", what());
        assert_eq!(reply.body.len(), if *path == "/2k" { 2_000 } else { 108_000 }, "{}", what());
        assert_eq!(talk.request(&get("x", "/who"))?.status, 200, "{}", what());
    }
    Ok(())
}

/// The server closes first, so its end is in TIME-WAIT when the client reuses the port.
fn a_port_is_used_over_and_over(engine: &str) -> Result<()> {
    const PORT: u16 = 40_000;
    let routes = [
        route("host = \"www.example.com\"\npath = \"/who\"", &["web1"]),
        route("path = \"/*h?\"", &["web2"]),
    ];
    let handoff = farm(engine, 2, &routes)?;
    for timestamps in ["1", "0"] {
        handoff.client().netns().sysctl(&[("ipv4/tcp_timestamps", timestamps)])?;
        for family in Family::BOTH {
            let service = handoff.service(family);
            for round in 0..10 {
                let what = || format!("{family}, timestamps {timestamps}, round {round}");
                let visit = HttpConnection::open_from(handoff.client(), PORT, service).with_context(what)?;
                assert_eq!(visit.who_and_close().with_context(what)?, "web1");
                let mut visit =
                    HttpConnection::open_from(handoff.client(), PORT, service).with_context(what)?;
                assert_eq!(visit.who().with_context(what)?, "web1");
                visit.reset()?;
            }
        }
    }
    // Changes between two servers: segments meet the remains of the previous connection.
    for family in Family::BOTH {
        for round in 0..6 {
            for (host, server) in [("www.example.com", "web1"), ("other.example.com", "web2")] {
                let mut talk = Talk::open_from(handoff.client(), PORT, handoff.service(family))?;
                let request = format!("GET /who HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
                let reply =
                    talk.request(&request).with_context(|| format!("{family}: {server}, round {round}"))?;
                assert_eq!(reply.server, server);
                assert_eq!(talk.rest()?, b"");
            }
        }
    }
    Ok(())
}

/// Ten thousand connections from one client, half of them with IPv6, are open at once. A quarter of
/// the requests is read in user space.
fn ten_thousand_are_open_at_once(engine: &str) -> Result<()> {
    const COUNT: usize = 10_000;
    // The limit of open files may be too small for two such tests at the same time.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    ensure!(most > COUNT as u64 + 1_000, "this process may have no more than {most} files open");
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let handoff = farm(engine, 2, &some_requested())?;
    let mut talks = Vec::new();
    for family in Family::BOTH {
        talks.extend(Talk::open_many(handoff.client(), COUNT / 2, handoff.service(family))?);
    }
    assert_eq!(handoff.evener.status()?.sessions, 0, "who has said nothing costs nothing");
    for (number, talk) in talks.iter_mut().enumerate() {
        talk.send(get("x", if number % 4 == 0 { "/8" } else { "/who" }))?;
    }
    for (number, talk) in talks.iter_mut().enumerate() {
        let reply = talk.reply().with_context(|| format!("connection {number}"))?;
        match number % 4 {
            0 => assert_eq!(reply.server, "web2", "{number}"),
            _ => assert_eq!(reply.body, format!("{}\n", reply.server).as_bytes(), "{number}"),
        }
    }
    assert!(handoff.evener.status()?.sessions >= COUNT as u64);
    for (number, talk) in talks.iter_mut().enumerate() {
        assert_eq!(talk.request(&get("x", "/who"))?.status, 200, "{number}");
    }
    // The count can be larger: if all probes were late for a moment, more requests were punted.
    wait::until("all are counted", || Ok(handoff.punted("handed_off")? >= COUNT as u64 / 4))?;
    drop(talks);
    let open = || -> Result<Vec<Session>> {
        let sessions = handoff.evener.sessions()?;
        Ok(sessions.into_iter().filter(|session| !session.is_ending()).collect())
    };
    // A lost FIN is not always repeated. The session then ends after its idle timeout.
    if let Err(left) = wait::for_value(2 * LONG, open, |open| open.len() <= COUNT / 1_000)? {
        bail!("{} sessions stay open, such as {:?}", left.len(), left.first());
    }
    let mut talk = Talk::open(handoff.client(), handoff.service(Family::V4))?;
    assert_eq!(talk.request(&get("x", "/who"))?.status, 200);
    Ok(())
}

/// Sends SYNs from sources that no host has, as fast as one thread can send.
fn a_flood_of_handshakes_costs_no_memory(engine: &str) -> Result<()> {
    const FLOOD: Duration = Duration::from_secs(3);
    let handoff = farm(engine, 2, &some_requested())?;
    let router = handoff.farm.router().raw(1)?;
    let to = handoff.farm.director().mac();
    let vips = Family::BOTH.map(|family| handoff.farm.vip_in(family, 0));
    let syn = |number: u16| {
        let (low, port) = (number % 250 + 1, 1024 + number);
        let packet = match number % 2 {
            0 => format!("ip 198.18.7.{low} > {} tcp {port} > 80 S", vips[0]),
            _ => format!("ip6 2001:db8:dead::{low} > {} tcp {port} > 80 S", vips[1]),
        };
        cases::frame(&format!("eth {} > {to} {packet}", router.mac()))
    };
    let frames: Vec<Vec<u8>> = (0..1000).map(syn).collect::<Result<_>>()?;
    let load = Load { connections: 4, timeout: LONG, ..Load::to(handoff.service(Family::V4)) };
    let punted = Load { path: "/108k".to_owned(), connections: 2, ..load.clone() };
    let loads = [load, punted].map(|load| load.start_on(handoff.client()));
    wait::until("clients are served", || Ok(loads.iter().all(|load| load.requests() > 20)))?;
    let before = handoff.evener.status()?;
    let sent = thread::scope(|scope| {
        let flood = scope.spawn(|| -> Result<u64> {
            let (started, mut sent) = (Instant::now(), 0);
            while started.elapsed() < FLOOD {
                frames.iter().try_for_each(|frame| router.send(frame))?;
                sent += frames.len() as u64;
            }
            Ok(sent)
        });
        let now: u64 = loads.iter().map(|load| load.requests()).sum();
        wait::until("clients are served all the while", || {
            Ok(loads.iter().map(|load| load.requests()).sum::<u64>() > now + 20)
        })?;
        flood.join().map_err(|_| anyhow!("the flood's thread panicked"))?
    })?;
    let after = handoff.evener.status()?;
    for load in loads {
        unbroken(load.stop()?)?;
    }
    let greeted = after.packets["cookie_sent"] - before.packets["cookie_sent"];
    ensure!(greeted > 1_000 && sent > 1_000, "{greeted} of {sent} were answered");
    let sessions = handoff.evener.sessions()?;
    let spoofed = |client: &str| client.starts_with("198.18.") || client.contains("dead");
    ensure!(!sessions.iter().any(|session| spoofed(&session.client)), "what is forged is remembered");
    Ok(())
}
