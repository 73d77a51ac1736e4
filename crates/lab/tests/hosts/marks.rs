//! Packets with a forged forwarding mark are dropped and counted. An accepted forged packet ends no
//! connection.

use std::net::SocketAddr;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use evener_core::path::mark::{PASSED, PASSED_TWICE};
use evener_lab::cases;
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::{Plan, Team};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;

use crate::{IN_TURN, service};

on_both_engines! {
    what_no_host_has_passed_on_is_dropped_and_ends_no_connection,
}

/// Opens a connection through the first host's address that another host serves.
fn served_elsewhere(team: &Team) -> Result<(HttpConnection, String)> {
    for _ in 0..100 {
        let mut visit = HttpConnection::open(team.farm.client(0), service(team, 0))?;
        let server = visit.who()?;
        if server != team.farm.server(0).name() {
            return Ok((visit, server));
        }
    }
    bail!("the first host passes no connection on")
}

/// Returns frames to the first host with segments that this client could send: with the source MAC
/// of decapsulated packets, or in a tunnel from another host's address.
fn unmarked(team: &Team, client: SocketAddr) -> Result<Vec<Vec<u8>>> {
    let sources = [PASSED, PASSED_TWICE].map(|mark| (mark.to_string(), String::new()));
    let family = team.plan.family;
    let [one, two] = [0, 1].map(|host| team.farm.server(host));
    let (ip, from, to) = (word(family), two.address_in(family), one.address_in(family));
    // The frame generator signs marks with a different key.
    let tunnels =
        ["", "udp 50000 > 6080 gue", "udp 50000 > 6080 gue mark=once", "udp 50000 > 6080 gue mark=twice"];
    let tunnels = tunnels.map(|tunnel| (two.mac().to_owned(), format!("{ip} {from} > {to} {tunnel}")));
    seemingly(team, client, &[&sources[..], &tunnels].concat())
}

/// Returns frames as from [`unmarked`], but with the source MACs of other hosts, which mark
/// forwarded packets on a link.
fn by_link(team: &Team, client: SocketAddr) -> Result<Vec<Vec<u8>>> {
    let sources = [1, 2].map(|host| (team.farm.server(host).mac().to_owned(), String::new()));
    seemingly(team, client, &sources)
}

fn word(family: Family) -> &'static str {
    if family == Family::V4 { "ip" } else { "ip6" }
}

/// Returns segments with all kinds of flags, with these source MACs and outer headers.
fn seemingly(team: &Team, client: SocketAddr, around: &[(String, String)]) -> Result<Vec<Vec<u8>>> {
    let (to, service) = (team.farm.server(0).mac(), service(team, 0));
    let ends = format!("{} {} > {}", word(team.plan.family), client.ip(), service.ip());
    let of = |(source, around): &(String, String)| {
        let kinds = ["S", "SA", "A", "F", "FA", "R", "RA", "PA"].map(|flags| {
            let ports = format!("tcp {} > {} {flags}", client.port(), service.port());
            cases::frame(&format!("eth {source} > {to} {around} {ends} {ports} seq=7 ack=9"))
        });
        kinds.into_iter().collect::<Result<Vec<_>>>()
    };
    Ok(around.iter().map(of).collect::<Result<Vec<_>>>()?.concat())
}

fn what_no_host_has_passed_on_is_dropped_and_ends_no_connection(engine: &str) -> Result<()> {
    const ROUNDS: usize = 20;
    for family in Family::BOTH {
        let plan = Plan { family, ..Plan::new(engine, IN_TURN, 3) };
        let team = Team::start(Farm::builder().every_host(3).build()?, plan)?;
        let (mut visit, server) = served_elsewhere(&team)?;
        let client = visit.client();
        // The client's address with a port that has neither a listener nor a connection.
        let nobody = SocketAddr::new(client.ip(), 999);
        let download = thread::spawn(move || visit.download(4_000_000, LONG));
        // Sent from the other end of the cable: a bridge would learn the forged source MACs.
        let rogue = team.farm.server(0).raw_to(0)?;
        let forged = [unmarked(&team, client)?, unmarked(&team, nobody)?].concat();
        let believed = by_link(&team, client)?;
        for _ in 0..ROUNDS {
            forged.iter().chain(&believed).try_for_each(|frame| rogue.send(frame))?;
        }
        let of = |client: SocketAddr| -> Result<Vec<String>> {
            let sessions = team.hosts[0].sessions()?.into_iter();
            Ok(sessions
                .filter(|known| known.client == client.to_string())
                .map(|known| known.server)
                .collect())
        };
        let counted = || -> Result<u64> {
            Ok(team.hosts[0].status()?.tunnels.get("forged_mark").copied().unwrap_or_default())
        };
        wait::until("all are counted", || Ok(counted()? >= (ROUNDS * forged.len()) as u64))
            .with_context(|| format!("{family}: nobody is served for them: {:?}", of(nobody)))?;
        assert_eq!(of(nobody)?, Vec::<String>::new(), "{family}");
        assert_eq!(of(client)?, [server], "{family}: who has the connection keeps it");
        download
            .join()
            .map_err(|_| anyhow!("the download's thread panicked"))?
            .with_context(|| format!("{family}"))?;
    }
    Ok(())
}
