//! Foreign datagrams to the hosts' peer port change nothing and are counted.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use evener_lab::evener::{Evener, PEERS_PORT, Team};
use evener_lab::harness::wait;
use evener_lab::network::host::Host;

use crate::{HASH, IN_TURN, audience, service, shares, unbroken};

on_engine! { packet:
    what_peers_did_not_say_is_refused,
    a_host_with_another_secret_is_no_peer,
    a_host_with_another_file_changes_nothing,
}

/// Records one host's messages to another.
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

/// Returns the number of datagrams that a host rejected.
fn refused(evener: &Evener) -> Result<u64> {
    let peers = evener.status()?.peers;
    Ok(peers.iter().filter(|(name, _)| name.as_str() != "accepted").map(|(_, count)| count).sum())
}

/// Sends datagrams to a host's peer port and waits until all are counted.
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
    let shown = team.hosts[0].command(&["hosts"])?;
    ensure!(shown.contains("another farm's secret"), "{shown}");
    let log = team.hosts[0].daemon().log();
    ensure!(log.lines().filter(|line| line.contains("web3")).count() < 10, "one line, and no flood:\n{log}");
    for host in 0..3 {
        shares(&team, service(&team, host), 10)?;
        ensure!(team.owners(host, &[0, 1, 2])?.len() <= 1, "its address is answered for, so nobody takes it");
    }
    Ok(())
}

fn a_host_with_another_file_changes_nothing(engine: &str) -> Result<()> {
    let mut team = crate::team(engine, IN_TURN, 3)?;
    let load = audience(&team).start_on(team.farm.client(0));
    team.hosts[2].reload(&team.file_with_backups(&[2]))?;
    let differs = "web3 runs another configuration";
    let others = [0, 1];
    for host in others {
        wait::until("they say so", || Ok(team.hosts[host].daemon().log().contains(differs)))?;
        let counts = team.hosts[host].status()?.peers;
        ensure!(counts.get("generation").is_some_and(|count| *count > 0), "{counts:?}");
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    for host in others {
        let log = team.hosts[host].daemon().log();
        assert_eq!(log.matches(differs).count(), 1, "once is enough:\n{log}");
    }
    assert_eq!(shares(&team, service(&team, 0), 9)?.len(), 3, "all serve as before");
    for host in 0..3 {
        assert_eq!(team.owners(host, &[0, 1, 2])?, [host]);
    }
    team.hosts[2].reload(&team.file())?;
    team.together()?;
    unbroken(load.stop()?).map(drop)
}
