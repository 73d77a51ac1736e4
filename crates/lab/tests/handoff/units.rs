//! Handed-off connections within the limits of the packaged units, and clients that hold as many
//! connections as they can.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use evener_lab::clients::transfer::there_and_back;
use evener_lab::evener::{Evener, Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::harness::process::Proc;
use evener_lab::harness::wait;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;

use crate::talk::{Talk, get};

on_both_engines! {
    connections_are_given_and_acknowledged,
    open_connections_move,
}

on_one_engine! {
    who_opens_many_takes_no_place_from_others,
}

mod in_user_space {
    use super::{
        carried_clients_are_told_of, few_descriptors_are_enough, so_it_is_with_many_more,
        what_is_carried_is_bounded_too,
    };

    on_engine!(xdp: so_it_is_with_many_more, what_is_carried_is_bounded_too, few_descriptors_are_enough,
        carried_clients_are_told_of);
}

/// Starts a farm in which one server has images and the other all other paths.
fn shipped(engine: &str, clients: u8, keys: &str) -> Result<Handoff> {
    let farm = Farm::builder().bare().servers(2).clients(clients).build()?;
    let routes = [route("path = \"/img/*\"", &["web2"]), route("path = \"/*\"", &["web1"])];
    let offer = Offer { in_units: true, keys: keys.to_owned(), ..Offer::new(engine, 2, &routes) };
    let handoff = Handoff::start(farm, offer)?;
    handoff.wait_for_nodes()?;
    Ok(handoff)
}

fn connections_are_given_and_acknowledged(engine: &str) -> Result<()> {
    let handoff = shipped(engine, 1, "")?;
    for family in Family::BOTH {
        for (path, server) in [("/a", "web1"), ("/img/a", "web2"), ("/%69mg/a", "web2"), ("/x/../a", "web1")]
        {
            let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
            assert_eq!(
                talk.request(&get("x", path)).with_context(|| format!("{family}: {path}"))?.server,
                server
            );
        }
        for len in [10, 100_000] {
            there_and_back(&handoff.farm, handoff.client(), handoff.service(family), len)
                .with_context(|| format!("{family}: {len} bytes"))?;
        }
    }
    handoff.wait_for_punted("handed_off", 4)?;
    handoff.wait_for_lccp("handoffs_acknowledged", 4)
}

fn open_connections_move(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(2).build()?;
    let routes = [route("host = \"img.example.com\"", &["web2"]), route("", &["web1"])];
    let keys = "later_requests = \"rehandoff\"\n".to_owned();
    let handoff = Handoff::start(farm, Offer { in_units: true, keys, ..Offer::new(engine, 2, &routes) })?;
    handoff.wait_for_nodes()?;
    for family in Family::BOTH {
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        for turn in 0..5 {
            for (host, server) in [("www.example.com", "web1"), ("img.example.com", "web2")] {
                let reply =
                    talk.request(&get(host, "/who")).with_context(|| format!("{family}: {turn}: {host}"))?;
                assert_eq!(reply.server, server, "{family}: {turn}");
            }
        }
    }
    handoff.wait_for_lccp("released", 18)?;
    assert_eq!(handoff.punted("not_moved")?, 0);
    Ok(())
}

/// Opens connections from one host, each with half a request. Several processes share them, because
/// of the limit of descriptors per process.
fn half_requests(handoff: &Handoff, host: &Host, count: usize) -> Result<Vec<Proc>> {
    const EACH: usize = 5_000;
    let service = handoff.service(Family::V4);
    let (to, port) = (service.ip(), service.port());
    let start = |from: usize| -> Result<Proc> {
        let script = format!(
            "ulimit -n $(ulimit -Hn); for ((i = 0; i < {}; i++)); do exec {{fd}}<>/dev/tcp/{to}/{port}; \
             printf 'GET /img/a HTTP/1.1\\r\\nHo' >&$fd; done; echo all were said; exec sleep 600",
            EACH.min(count - from)
        );
        host.spawn(&format!("half{from}"), &["bash", "-c", &script])
    };
    let mut started = (0..count).step_by(EACH).map(start).collect::<Result<Vec<_>>>()?;
    let all = Duration::from_secs(120);
    started.iter_mut().try_for_each(|process| process.wait_for("all were said", all))?;
    Ok(started)
}

/// Checks that another client is served, with requests in two segments on separate connections.
fn others_are_served(handoff: &Handoff, host: &Host) -> Result<()> {
    for _ in 0..20 {
        for family in Family::BOTH {
            let mut talk = Talk::open(host, handoff.service(family))?;
            let request = get("x", "/img/a");
            talk.send_slowly(&request, request.len() - 4)?;
            assert_eq!(talk.reply().with_context(|| format!("{family}"))?.server, "web2");
        }
    }
    Ok(())
}

fn with_half_requests(engine: &str, count: usize) -> Result<()> {
    let handoff = shipped(engine, 2, "")?;
    let other = handoff.farm.client(1);
    others_are_served(&handoff, other)?;
    let greedy = half_requests(&handoff, handoff.client(), count)?;
    wait::until("all places are taken", || Ok(handoff.punted("evicted")? > 0))?;
    others_are_served(&handoff, other)?;
    // Probes, the admin socket and the control protocol still have descriptors.
    let servers = handoff.evener.servers()?;
    ensure!(servers.iter().all(|server| server.state == "up"), "{servers:?}");
    handoff.wait_for_punted("handed_off", 80)?;
    handoff.wait_for_lccp("handoffs_acknowledged", 80)?;
    ensure!(handoff.evener.command(&["servers"])?.contains("web2"));
    drop(greedy);
    others_are_served(&handoff, other)
}

/// A client opens more connections than the limit of 4,096 that follows from the unit's limit of
/// files.
fn who_opens_many_takes_no_place_from_others(engine: &str) -> Result<()> {
    with_half_requests(engine, 4_200)
}

fn so_it_is_with_many_more(engine: &str) -> Result<()> {
    with_half_requests(engine, 20_000)
}

/// Sends a complete request and FIN at once. Such a connection cannot be handed off, so the
/// director relays it. The response is read later.
fn say_and_end(host: &Host, service: SocketAddr, path: &str) -> Result<Talk> {
    let mut talk = Talk::open_narrow(host, service)?;
    talk.send_and_end(get("x", path))?;
    Ok(talk)
}

/// Starts a daemon with the usual limit of descriptors per process.
fn with_few_descriptors(engine: &str) -> Result<Handoff> {
    let mut handoff = shipped(engine, 2, "")?;
    handoff.evener.stop()?;
    let few = ["prlimit", "--nofile=1024:1024"];
    handoff.evener = Evener::start_by(handoff.farm.director(), &handoff.file(), &few, &[])?;
    handoff.evener.wait_for_servers(2, wait::LONG)?;
    handoff.wait_for_nodes()?;
    Ok(handoff)
}

fn what_is_carried_is_bounded_too(engine: &str) -> Result<()> {
    let handoff = with_few_descriptors(engine)?;
    let (client, other) = (handoff.client(), handoff.farm.client(1));
    let service = handoff.service(Family::V4);
    // No client reads these responses.
    let greedy: Vec<Talk> =
        (0..200).map(|_| say_and_end(client, service, "/%3108k")).collect::<Result<_>>()?;
    wait::until("all places are taken", || Ok(handoff.punted("evicted")? > 0))?;
    for _ in 0..20 {
        assert_eq!(say_and_end(other, service, "/%69mg/a")?.reply()?.server, "web2");
    }
    wait::until("all are counted", || Ok(handoff.punted("spliced")? >= 200))?;
    let servers = handoff.evener.servers()?;
    ensure!(servers.iter().all(|server| server.state == "up"), "{servers:?}");
    drop(greedy);
    Ok(())
}

/// A daemon reserves descriptors for its probes under any limit.
fn few_descriptors_are_enough(engine: &str) -> Result<()> {
    let handoff = with_few_descriptors(engine)?;
    let other = handoff.farm.client(1);
    let greedy = half_requests(&handoff, handoff.client(), 1_100)?;
    wait::until("all places are taken", || Ok(handoff.punted("evicted")? > 0))?;
    others_are_served(&handoff, other)?;
    // The failure and recovery of a server is still detected.
    handoff.farm.set_healthy(1, false)?;
    handoff.evener.wait_for_servers(1, wait::LONG)?;
    handoff.farm.set_healthy(1, true)?;
    handoff.evener.wait_for_servers(2, wait::LONG)?;
    drop(greedy);
    Ok(())
}

/// A relayed connection comes from the director. A server with PROXY protocol learns the client's
/// address.
fn carried_clients_are_told_of(engine: &str) -> Result<()> {
    const PORT: u16 = 8_081;
    let handoff = shipped(engine, 1, &format!("proxy_protocol_port = {PORT}\n"))?;
    let server = handoff.farm.server(1);
    let listener = server.enter(|| TcpListener::bind((server.address(), PORT)))??;
    let taking = thread::spawn(move || -> Result<(IpAddr, Vec<u8>)> {
        let (mut stream, from) = listener.accept()?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said)?;
        stream.write_all(b"HTTP/1.1 204 No Content\r\nX-Server: web2\r\n\r\n")?;
        Ok((from.ip(), said))
    });
    let mut talk = Talk::open_from(handoff.client(), 40_000, handoff.service(Family::V4))?;
    talk.send_and_end(get("x", "/%69mg/a"))?;
    assert_eq!(talk.reply()?.server, "web2");
    let (from, said) = taking.join().map_err(|_| anyhow!("the server's thread panicked"))??;
    assert_eq!(from, IpAddr::from(handoff.farm.director().address()));
    let (client, vip) = (handoff.client().address().octets(), handoff.farm.vip(0).octets());
    let header = [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
        &client,
        &vip,
        &40_000u16.to_be_bytes(),
        &80u16.to_be_bytes(),
    ];
    assert_eq!(said, [&header.concat(), get("x", "/%69mg/a").as_bytes()].concat());
    Ok(())
}
