//! What comes to the port of the hosts' own datagrams from others changes nothing, and is counted; so is what only looks as if
//! another host had passed it on.

use std::net::{SocketAddr, UdpSocket};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use evener_core::arrival::{PASSED, PASSED_TWICE};
use evener_lab::cases;
use evener_lab::evener::{Evener, PEERS_PORT, Plan, Team};
use evener_lab::family::Family;
use evener_lab::farm::Farm;
use evener_lab::host::Host;
use evener_lab::visit::Visit;
use evener_lab::wait::{self, LONG};

use crate::{HASH, IN_TURN, audience, service, shares, unbroken};

on_engine! { packet:
    what_peers_did_not_say_is_refused,
    a_host_with_another_secret_is_no_peer,
    a_host_with_another_file_changes_nothing,
}

on_both_engines! {
    what_no_host_has_passed_on_is_dropped_and_ends_no_connection,
}

/// What one host tells another, as it was on the wire.
fn overheard(from: &Host, to: &Host) -> Result<Vec<Vec<u8>>> {
    let recording = from.record(0)?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    let payload = |frame: &Vec<u8>| -> Option<Vec<u8>> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(NetSlice::Ipv4(ip)) = &packet.net else { return None };
        let Some(TransportSlice::Udp(udp)) = &packet.transport else { return None };
        let right = ip.header().destination_addr() == to.address() && udp.destination_port() == PEERS_PORT;
        right.then(|| udp.payload().to_vec())
    };
    Ok(recording.verified()?.iter().filter_map(payload).collect())
}

/// How many datagrams a host did not believe.
fn refused(evener: &Evener) -> Result<u64> {
    let peers = evener.status()?.peers;
    Ok(peers.iter().filter(|(name, _)| name.as_str() != "accepted").map(|(_, count)| count).sum())
}

/// Sends datagrams to a host's port, and waits until all were counted.
fn send(team: &Team, from: &Host, datagrams: &[Vec<u8>]) -> Result<()> {
    let before = refused(&team.hosts[0])?;
    let to = SocketAddr::from((team.farm.server(0).address(), PEERS_PORT));
    let address = SocketAddr::from((from.address(), 0));
    from.enter(|| -> Result<()> {
        let socket = UdpSocket::bind(address)?;
        for datagram in datagrams {
            socket.send_to(datagram, to)?;
        }
        Ok(())
    })??;
    let wanted = before + datagrams.len() as u64;
    wait::until("all are counted", || Ok(refused(&team.hosts[0])? >= wanted))
}

fn what_peers_did_not_say_is_refused(engine: &str) -> Result<()> {
    let team = crate::team(engine, HASH, 3)?;
    let load = audience(&team).start_on(team.farm.client(0));
    let (one, two) = (team.farm.server(0), team.farm.server(1));
    let real = overheard(two, one)?;
    let last = real.last().context("web2 told web1 nothing in two seconds")?;

    for from in [two, team.farm.client(0)] {
        send(&team, from, &real).context("each again")?;
        send(&team, from, &vec![last.clone(); 100]).context("one again and again")?;
        let flipped = |at: usize| {
            let mut bytes = last.clone();
            bytes[at] ^= 1;
            bytes
        };
        send(&team, from, &(0..last.len()).map(flipped).collect::<Vec<_>>()).context("changed")?;
        let cut: Vec<Vec<u8>> = (1..last.len()).map(|len| last[..len].to_vec()).collect();
        send(&team, from, &cut).context("cut")?;
        send(&team, from, &[vec![0; 1400], vec![0xff; 9], [last.as_slice(), b"x"].concat()])
            .context("noise")?;
    }
    let counts = team.hosts[0].status()?.peers;
    for reason in ["forged", "malformed", "replayed"] {
        ensure!(counts.get(reason).is_some_and(|count| *count > 0), "{reason}: {counts:?}");
    }
    team.together()?;
    for host in 0..3 {
        shares(&team, service(&team, host), 10)?;
    }
    unbroken(load.stop()?).map(drop)
}

fn a_host_with_another_secret_is_no_peer(engine: &str) -> Result<()> {
    let mut team = crate::team(engine, IN_TURN, 3)?;
    let other = team.farm.server(2).file("other.key");
    team.hosts[2].command(&["keygen", &other.to_string_lossy()])?;
    team.hosts[2].daemon().kill9()?;
    team.hosts[2].write(&team.plan.file(&team.farm, &other))?;
    team.hosts[2].start_again()?;
    wait::until("it is silent to the others", || {
        Ok(team.hosts[0].hosts()?.iter().any(|peer| peer.name == "web3" && peer.state != "alive"))
    })?;
    ensure!(team.hosts[0].status()?.peers.get("forged").is_some_and(|count| *count > 0));
    let said = team.hosts[0].daemon().log();
    ensure!(
        said.lines().filter(|line| line.contains("web3")).count() < 10,
        "one line, and no flood:\n{said}"
    );
    for host in 0..3 {
        shares(&team, service(&team, host), 10)?;
        ensure!(team.owners(host, &[0, 1, 2])?.len() <= 1, "its address is answered for, so nobody takes it");
    }
    Ok(())
}

fn a_host_with_another_file_changes_nothing(engine: &str) -> Result<()> {
    let mut team = crate::team(engine, IN_TURN, 3)?;
    let load = audience(&team).start_on(team.farm.client(0));
    let other = Plan { weights: vec![1, 1, 5], ..team.plan.clone() };
    team.hosts[2].reload(&other.file(&team.farm, &team.secret))?;
    let differs = "web3 runs another configuration";
    let others = [0, 1];
    for host in others {
        wait::until("they say so", || Ok(team.hosts[host].daemon().log().contains(differs)))?;
        let counts = team.hosts[host].status()?.peers;
        ensure!(counts.get("generation").is_some_and(|count| *count > 0), "{counts:?}");
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    for host in others {
        let said = team.hosts[host].daemon().log();
        assert_eq!(said.matches(differs).count(), 1, "once is enough:\n{said}");
    }
    assert_eq!(shares(&team, service(&team, 0), 9)?.len(), 3, "all serve as before");
    for host in 0..3 {
        assert_eq!(team.owners(host, &[0, 1, 2])?, [host]);
    }
    team.hosts[2].reload(&team.file())?;
    team.together()?;
    unbroken(load.stop()?).map(drop)
}

/// A connection by the address of the first host that another one serves.
fn served_elsewhere(team: &Team) -> Result<(Visit, String)> {
    for _ in 0..100 {
        let mut visit = Visit::open(team.farm.client(0), service(team, 0))?;
        let server = visit.who()?;
        if server != team.farm.server(0).name() {
            return Ok((visit, server));
        }
    }
    bail!("the first host passes no connection on")
}

/// Frames to the first host with what this client could have sent, each with the source of what comes out of tunnels, or in a
/// tunnel from another host's address.
fn unmarked(team: &Team, client: SocketAddr) -> Result<Vec<Vec<u8>>> {
    let sources = [PASSED, PASSED_TWICE].map(|mark| (mark.to_string(), String::new()));
    let family = team.plan.family;
    let [one, two] = [0, 1].map(|host| team.farm.server(host));
    let (ip, from, to) = (word(family), two.address_in(family), one.address_in(family));
    // Whoever makes cases has another key.
    let tunnels =
        ["", "udp 50000 > 6080 gue", "udp 50000 > 6080 gue mark=once", "udp 50000 > 6080 gue mark=twice"];
    let tunnels = tunnels.map(|tunnel| (two.mac().to_owned(), format!("{ip} {from} > {to} {tunnel}")));
    seemingly(team, client, &[&sources[..], &tunnels].concat())
}

/// The same with the MAC addresses of other hosts, by which hosts on one link pass packets on.
fn by_link(team: &Team, client: SocketAddr) -> Result<Vec<Vec<u8>>> {
    let sources = [1, 2].map(|host| (team.farm.server(host).mac().to_owned(), String::new()));
    seemingly(team, client, &sources)
}

fn word(family: Family) -> &'static str {
    if family == Family::V4 { "ip" } else { "ip6" }
}

/// Segments of every kind with these sources, and with this around them.
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
        // Its own, on which nobody listens, and the port of nobody's connection.
        let nobody = SocketAddr::new(client.ip(), 999);
        let download = thread::spawn(move || visit.download(4_000_000, LONG));
        // The other end of the cable: a bridge would believe whose frames they are.
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
        let counted = || Ok(team.hosts[0].status()?.tunnels.get("forged_mark").copied().unwrap_or_default());
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
