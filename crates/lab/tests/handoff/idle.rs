//! Clients that connect early and send their request late, and servers that send a head line by
//! line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{Handoff, Offer, route};
use evener_lab::farm::Farm;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;
use socket2::{SockRef, TcpKeepalive};

use crate::talk::{Talk, get};

on_both_engines! {
    a_client_that_probes_before_it_asks_is_served,
    answers_whose_head_comes_in_pieces_let_connections_move,
}

/// Port of servers that write each line separately.
const PORT: u16 = 7_002;
/// Pause between two lines.
const PAUSE: Duration = Duration::from_millis(5);

/// With and without timestamps and over both IP versions, the client waits longer than the delay of
/// resets.
fn a_client_that_probes_before_it_asks_is_served(engine: &str) -> Result<()> {
    let farm = Farm::builder().bare().servers(1).clients(2).build()?;
    let handoff = Handoff::start(farm, Offer::new(engine, 1, &[route("path = \"/*\"", &["web1"])]))?;
    let [with, without] = [0, 1].map(|client| handoff.farm.client(client));
    without.netns().sysctl(&[("ipv4/tcp_timestamps", "0")])?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(1))
        .with_interval(Duration::from_secs(1))
        .with_retries(2);
    let visits: Vec<(String, HttpConnection)> = [with, without]
        .into_iter()
        .flat_map(|client| Family::BOTH.map(|family| (client, family)))
        .map(|(client, family)| {
            let visit = HttpConnection::open(client, handoff.service(family))?;
            SockRef::from(visit.stream()).set_tcp_keepalive(&keepalive)?;
            Ok((format!("{} over {family}", client.name()), visit))
        })
        .collect::<Result<_>>()?;
    // Without acknowledgments, a connection would end after the third probe.
    thread::sleep(Duration::from_secs(6));
    for (what, mut visit) in visits {
        ensure!(visit.who().with_context(|| what.clone())? == "web1", "{what}");
    }
    let acked = handoff.counted("keepalive_acked")?;
    ensure!(acked >= 4 * 3, "{acked} probes were acknowledged");
    Ok(())
}

/// Starts a server that returns its name and writes each line of the response head separately.
fn serve_by_lines(host: &Host) -> Result<()> {
    let listener = host.enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)))??;
    let name = host.name().to_owned();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let name = name.clone();
            // A write error is ignored: the client may be gone.
            thread::spawn(move || answer_by_lines(&stream, &name).unwrap_or_default());
        }
    });
    Ok(())
}

fn answer_by_lines(mut stream: &TcpStream, name: &str) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
        }
        let length = format!("Content-Length: {}\r\n", name.len());
        for part in ["HTTP/1.1 200 OK\r\n", "Content-Type: text/plain\r\n", &length, "\r\n", name] {
            thread::sleep(PAUSE);
            stream.write_all(part.as_bytes())?;
        }
    }
}

/// CGI programs and small servers write responses this way.
fn answers_whose_head_comes_in_pieces_let_connections_move(engine: &str) -> Result<()> {
    const ROUNDS: usize = 4;
    let farm = Farm::builder().bare().servers(2).build()?;
    farm.servers().iter().try_for_each(serve_by_lines)?;
    let routes = [route("host = \"a.example\"", &["web1"]), route("", &["web2"])];
    let keys = "later_requests = \"rehandoff\"\n".to_owned();
    let health = "[service.health]\nkind = \"none\"\n".to_owned();
    let handoff = Handoff::start(farm, Offer { keys, health, port: PORT, ..Offer::new(engine, 2, &routes) })?;
    handoff.wait_for_nodes()?;
    for family in Family::BOTH {
        let mut talk = Talk::open(handoff.client(), handoff.service(family))?;
        for round in 0..ROUNDS {
            for (host, server) in [("a.example", "web1"), ("b.example", "web2")] {
                let reply =
                    talk.request(&get(host, "/")).with_context(|| format!("{family}, round {round}"))?;
                let body = String::from_utf8_lossy(&reply.body).into_owned();
                ensure!((reply.status, body.as_str()) == (200, server), "{family}, round {round}: {body}");
            }
        }
    }
    handoff.wait_for_punted("handed_off", 2 * (2 * ROUNDS as u64 - 1))
}
