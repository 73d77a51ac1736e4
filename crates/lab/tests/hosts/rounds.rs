//! No packet loops: a packet is forwarded at most twice, even if the hosts' tables disagree.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use etherparse::PacketBuilder;
use evener_core::net::wire::Mac;
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::Team;
use evener_lab::harness::wait;
use evener_lab::workloads::load::Load;

use crate::{HASH, IN_TURN, STATELESS, audience, service, unbroken};

on_both_engines! {
    a_first_packet_is_passed_on_once,
    hosts_that_disagree_pass_nothing_round,
    what_belongs_to_no_session_ends_soon,
}

/// Returns how often each of these clients' first packets appears on the network.
fn copies(lines: &[String], clients: &[String]) -> Vec<usize> {
    let of = |client: &String| {
        let from = format!(" {client} > ");
        lines.iter().filter(|line| line.contains(&from) && line.contains("Flags [S],")).count()
    };
    clients.iter().map(of).collect()
}

/// Returns how often a connection's first packet must appear on the network: once to its first
/// host, and once more if another host serves the connection.
fn wanted(server: &str) -> usize {
    if server == "web1" { 1 } else { 2 }
}

/// Opens connections through the first host. Returns for each how often its first packet appeared
/// on the network, and its server.
fn opened(team: &Team, count: usize) -> Result<Vec<(usize, String)>> {
    let capture = team.farm.router().capture_network(1, "tcp[13] == 2 or ip proto 4")?;
    let mut clients = Vec::new();
    let mut servers = Vec::new();
    for _ in 0..count {
        let mut visit = HttpConnection::open(team.farm.client(0), service(team, 0))?;
        clients.push(visit.client().to_string().replace(':', "."));
        servers.push(visit.who()?);
    }
    wait::until("all first packets are seen", || {
        let seen = copies(&capture.lines(), &clients);
        Ok(seen.iter().zip(&servers).all(|(seen, server)| *seen >= wanted(server)))
    })?;
    Ok(copies(&capture.stop()?, &clients).into_iter().zip(servers).collect())
}

fn a_first_packet_is_passed_on_once(engine: &str) -> Result<()> {
    let ipip = "method = \"tunnel\"\nencapsulation = \"ipip\"\npolicy = \"round-robin\"\n";
    for keys in [IN_TURN, STATELESS, ipip] {
        let team = crate::team(engine, keys, 3)?;
        for (copies, server) in opened(&team, 12)? {
            assert_eq!(copies, wanted(&server), "{server}, {keys}");
        }
    }
    Ok(())
}

/// Configures two hosts so that each considers only the other a server that is no backup.
fn disagree(team: &Team) -> Result<()> {
    for (host, other) in [(0, 1), (1, 0)] {
        let backups: Vec<usize> = (0..3).filter(|number| *number != other).collect();
        team.hosts[host].reload(&team.file_with_backups(&backups))?;
    }
    Ok(())
}

fn hosts_that_disagree_pass_nothing_round(engine: &str) -> Result<()> {
    for keys in [IN_TURN, STATELESS, HASH] {
        let team = crate::team(engine, keys, 3)?;
        let begin =
            || Load { pause: Duration::from_millis(50), ..audience(&team) }.start_on(team.farm.client(0));
        // Without sessions, the third host may serve connections that are open at this moment.
        // After the change, neither host selects the third one.
        let load = if keys == STATELESS {
            disagree(&team)?;
            begin()
        } else {
            let load = begin();
            disagree(&team)?;
            load
        };
        wait::until("the other serves what comes by the first", || {
            let found = opened(&team, 4)?;
            ensure!(found.iter().all(|(copies, _)| *copies <= 2), "{keys}: {found:?}");
            Ok(found.iter().all(|(_, server)| server == "web2"))
        })?;
        unbroken(load.stop()?).with_context(|| keys.to_owned())?;
    }
    Ok(())
}

fn what_belongs_to_no_session_ends_soon(engine: &str) -> Result<()> {
    const SEGMENTS: u16 = 20;
    let team = crate::team(engine, STATELESS, 3)?;
    disagree(&team)?;
    let (farm, client) = (&team.farm, team.farm.client(0));
    let capture = farm.router().capture_network(1, "not arp and not udp port 9181")?;
    let raw = client.raw(0)?;
    let gateway: Mac = farm.gateway_of(client).parse()?;
    let vip: std::net::Ipv4Addr = farm.own_vip(team.plan.family, 0).to_string().parse()?;
    let send = |port: u16| -> Result<()> {
        // The client has no such connection. The replies are not addressed to it, so it sends no
        // resets.
        let builder = PacketBuilder::ethernet2(raw.mac().0, gateway.0)
            .ipv4(client.address().octets(), vip.octets(), 64)
            .tcp(50_000 + port, 80, 1, 1000)
            .ack(1);
        let mut frame = Vec::new();
        builder.write(&mut frame, b"hello")?;
        raw.send(&frame)
    };
    let mut sent = vec![0; SEGMENTS.into()];
    wait::until("some host says of each that it knows nothing of it", || {
        let lines = capture.lines();
        let reset = |port: u16| {
            let to = format!(" {vip}.80 > {}.{}: Flags [R]", client.address(), 50_000 + port);
            lines.iter().any(|line| line.contains(&to))
        };
        // Segments and resets may be lost. Segments without a reset are sent again.
        let left: Vec<u16> = (0..SEGMENTS).filter(|port| !reset(*port)).collect();
        left.iter().for_each(|port| sent[usize::from(*port)] += 1);
        left.iter().try_for_each(|port| send(*port))?;
        Ok(left.is_empty())
    })?;
    let lines = capture.stop()?;
    for (port, sent) in (50_000..).zip(&sent) {
        let from = format!(" {}.{port} > {vip}.80: Flags [.]", client.address());
        let seen = lines.iter().filter(|line| line.contains(&from)).count();
        ensure!(seen <= 2 * sent, "of {sent} from port {port} {seen} were seen");
    }
    // A packet's second chance uses a tunnel.
    let chances = lines.iter().filter(|line| line.contains(".6080: ")).count();
    let sent: usize = sent.iter().sum();
    ensure!(chances <= sent, "{chances} second chances of {sent} packets");
    Ok(())
}
