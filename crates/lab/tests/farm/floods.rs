//! Floods of first packets with spoofed sources, and clients that have closed their half: neither
//! harms the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use etherparse::PacketBuilder;
use evener_core::net::wire::Mac;
use evener_core::path::ports::PORTS;
use evener_lab::clients::half_close::{Late, LateRequests, silent};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::clients::raw_frames::Raw;
use evener_lab::clients::udp_echo::{Client, Echo};
use evener_lab::farm::Farm;
use evener_lab::harness::wait::{self, LONG};
use evener_lab::network::family::Family;

use crate::stage::{Plan, Way};

on_both_engines! {
    spoofed_syns_leave_ports_to_clients,
    spoofed_syns_leave_ports_to_clients_over_ipv6,
    spoofed_queries_that_are_answered_leave_ports_to_clients,
    a_flooded_service_leaves_room_to_others,
    a_flooded_service_leaves_room_to_others_over_ipv6,
    a_table_that_grows_under_a_flood_keeps_its_sessions,
    a_table_that_grows_under_a_flood_keeps_its_sessions_over_ipv6,
}

// Replies bypass the director, pass through it, or pass through it to an own source port.
by_way!(l2, L2: who_has_said_all_is_answered_late);
by_way!(nat, Nat: who_has_said_all_is_answered_late);
by_way!(source_nat, SourceNat: who_has_said_all_is_answered_late);

/// Sends first packets to a service, each from a different client address.
struct Spoofer {
    link: Raw,
    to: Mac,
    service: SocketAddr,
    udp: bool,
}

impl Spoofer {
    fn new(farm: &Farm, service: SocketAddr, udp: bool) -> Result<Spoofer> {
        Ok(Spoofer { link: farm.router().raw(1)?, to: farm.director().mac().parse()?, service, udp })
    }

    fn send(&self, number: u32) -> Result<()> {
        let port = 1_024 + (number / 7 % 60_000) as u16;
        let link = PacketBuilder::ethernet2(self.link.mac().0, self.to.0);
        let builder = match self.service.ip() {
            IpAddr::V4(service) => {
                let client = Ipv4Addr::from_bits(u32::from_be_bytes([198, 18, 0, 0]) + number % 0x1_fffe + 1);
                link.ipv4(client.octets(), service.octets(), 64)
            }
            IpAddr::V6(service) => {
                let client = Ipv6Addr::from_bits(0x2001_0db8_5eed << 80 | u128::from(number + 1));
                link.ipv6(client.octets(), service.octets(), 64)
            }
        };
        let mut frame = Vec::new();
        match self.udp {
            true => builder.udp(port, self.service.port()).write(&mut frame, &[7; 16])?,
            false => builder.tcp(port, self.service.port(), number, 64_000).syn().write(&mut frame, &[])?,
        }
        self.link.send(&frame)
    }
}

fn spoofed_syns_leave_ports_to_clients(engine: &str) -> Result<()> {
    spoofed_syns(engine, Family::V4)
}

fn spoofed_syns_leave_ports_to_clients_over_ipv6(engine: &str) -> Result<()> {
    spoofed_syns(engine, Family::V6)
}

/// Sends 20,000 SYNs per second until they have requested three times the server's ports. The flood
/// slows down for slow clients: a client loses its port if it answers the SYN-ACK later than others
/// request all ports, as on a busy machine. `EVENER_FLOOD_S` sets a minimum duration in seconds and
/// prints the result.
fn spoofed_syns(engine: &str, family: Family) -> Result<()> {
    const A_MILLISECOND: u128 = 20;
    const A_CLIENT: u32 = PORTS as u32 / 4;
    const PAUSE: Duration = Duration::from_millis(5);
    let at_least = match std::env::var("EVENER_FLOOD_S") {
        Ok(seconds) => Duration::from_secs(seconds.parse().context("EVENER_FLOOD_S")?),
        Err(_) => Duration::ZERO,
    };
    let stage = Plan::new(engine, Way::SourceNat, family).stage(1)?;
    let spoofer = Spoofer::new(&stage.farm, stage.service, false)?;
    let (done, started) = (AtomicBool::new(false), Instant::now());
    // SYNs sent in total, and SYNs sent before the current client's.
    let (so_far, before) = (AtomicU32::new(0), AtomicU32::new(0));
    let (sent, slowest, served) = thread::scope(|scope| -> Result<_> {
        let flood = scope.spawn(|| -> Result<u32> {
            let mut sent = 0;
            while !done.load(Relaxed) || (sent as usize) < 3 * PORTS {
                let late = (started.elapsed().as_millis() * A_MILLISECOND).saturating_sub(sent.into());
                let room = match done.load(Relaxed) {
                    true => u32::MAX,
                    false => (before.load(Relaxed) + A_CLIENT).saturating_sub(sent),
                };
                // A slow machine sends less and does not catch up.
                for _ in 0..late.min(A_MILLISECOND * PAUSE.as_millis()).min(room.into()) {
                    spoofer.send(sent)?;
                    sent += 1;
                }
                so_far.store(sent, Relaxed);
                thread::sleep(PAUSE);
            }
            Ok(sent)
        });
        let visits = || -> Result<_> {
            let (mut slowest, mut served) = (Duration::ZERO, 0_usize);
            while served < 30 || started.elapsed() < at_least {
                let sent_at = Instant::now();
                before.store(so_far.load(Relaxed), Relaxed);
                let visit =
                    HttpConnection::open(stage.client(), stage.service).and_then(|mut visit| visit.who());
                // A client loses its port only after other SYNs have requested about all ports.
                visit.with_context(|| {
                    let others = so_far.load(Relaxed) - before.load(Relaxed);
                    let took = sent_at.elapsed();
                    format!("client {served}, {took:?} and {others} SYNs of others after its own")
                })?;
                (slowest, served) = (slowest.max(sent_at.elapsed()), served + 1);
                // The rate stays below the server's ports per minute: each closed connection keeps
                // its port that long.
                thread::sleep(PAUSE);
            }
            Ok((slowest, served))
        };
        let visits = visits();
        done.store(true, Relaxed);
        let sent = flood.join().map_err(|_| anyhow::anyhow!("the flood broke off"))??;
        visits.map(|(slowest, served)| (sent, slowest, served))
    })?;
    if !at_least.is_zero() {
        println!(
            "{engine}, {family}: {sent} SYNs in {:?}; {served} served, {slowest:?} at the most",
            started.elapsed()
        );
    }
    ensure!(sent as usize >= 3 * PORTS);
    // The server has reset many half-open connections that a later SYN reused.
    let ended = stage.evener.sessions()?.iter().filter(|session| session.is_ending()).count();
    ensure!(ended <= served, "{ended} sessions have ended, though only {served} were ever open");
    for number in 0..10 {
        HttpConnection::open(stage.client(), stage.service)?
            .who()
            .with_context(|| format!("client {number}, afterwards"))?;
    }
    Ok(())
}

/// Spoofed queries, each answered by the server, until they have requested one and a half times its
/// ports.
fn spoofed_queries_that_are_answered_leave_ports_to_clients(engine: &str) -> Result<()> {
    const PORT: u16 = 5_353;
    let plan = Plan::new(engine, Way::SourceNat, Family::V4);
    let farm = Way::SourceNat.builder().servers(1).build()?;
    let text = plan.file_with_udp(&farm, PORT);
    let _echo = Echo::start(farm.server(0), SocketAddr::new(farm.server(0).address_in(Family::V4), PORT))?;
    let stage = plan.start_with(farm, &text, 2)?;
    let service = SocketAddr::new(stage.service.ip(), PORT);
    let spoofer = Spoofer::new(&stage.farm, service, true)?;
    let mut numbers = 0..;
    wait::until("the flood was answered", || {
        numbers.by_ref().take(2_000).try_for_each(|number| spoofer.send(number))?;
        Ok(stage.counted("answered")? as usize > PORTS * 3 / 2)
    })?;
    for number in 0..20 {
        let client = Client::open(stage.client(), service, LONG)?;
        client.request("who").with_context(|| format!("client {number}"))?;
    }
    let status = stage.evener.status()?;
    ensure!(status.sessions_assured == 0, "one question and its answer assure nothing: {status:?}");
    Ok(())
}

fn a_flooded_service_leaves_room_to_others(engine: &str) -> Result<()> {
    one_is_flooded(engine, Family::V4)
}

fn a_flooded_service_leaves_room_to_others_over_ipv6(engine: &str) -> Result<()> {
    one_is_flooded(engine, Family::V6)
}

/// Spoofed datagrams of one service fill the table many times.
fn one_is_flooded(engine: &str, family: Family) -> Result<()> {
    const UDP_PORT: u16 = 5_353;
    let farm = Way::Nat.builder().servers(2).build()?;
    let plan = Plan::new(engine, Way::Nat, family);
    let text = plan.file_with_udp(&farm, UDP_PORT).replace("sessions_max = 65536", "sessions_max = 1024");
    let stage = plan.start_with(farm, &text, 4)?;
    let mut old: Vec<HttpConnection> =
        (0..20).map(|_| HttpConnection::open(stage.client(), stage.service)).collect::<Result<_>>()?;
    let before: Vec<String> = old.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    let spoofer = Spoofer::new(&stage.farm, SocketAddr::new(stage.service.ip(), UDP_PORT), true)?;
    (0..20_000).try_for_each(|number| spoofer.send(number))?;
    let status = stage.evener.status()?;
    ensure!(status.sessions > 1_024, "the table is full: {status:?}");
    ensure!(status.sessions_assured >= 20 && status.sessions_embryonic > 1_000, "{status:?}");
    for number in 0..36 {
        let served = HttpConnection::open(stage.client(), stage.service).and_then(|mut visit| visit.who());
        served.with_context(|| format!("client {number}"))?;
    }
    let after: Vec<String> = old.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    assert_eq!(before, after, "what was open stays");
    Ok(())
}

fn a_table_that_grows_under_a_flood_keeps_its_sessions(engine: &str) -> Result<()> {
    grows(engine, Family::V4)
}

fn a_table_that_grows_under_a_flood_keeps_its_sessions_over_ipv6(engine: &str) -> Result<()> {
    grows(engine, Family::V6)
}

/// The daemon is killed while the table grows, and the next daemon continues.
fn grows(engine: &str, family: Family) -> Result<()> {
    let mut stage = Plan::new(engine, Way::L2, family).stage(2)?;
    let mut open: Vec<HttpConnection> =
        (0..20).map(|_| HttpConnection::open(stage.client(), stage.service)).collect::<Result<_>>()?;
    let before: Vec<String> = open.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    let slots = stage.evener.status()?.session_slots;
    let spoofer = Spoofer::new(&stage.farm, stage.service, false)?;
    (0..12_000).try_for_each(|number| spoofer.send(number))?;
    stage.evener.daemon().kill9()?;
    stage.evener.start_again()?;
    ensure!(stage.evener.status()?.adopted);
    (12_000..24_000).try_for_each(|number| spoofer.send(number))?;
    wait::until("the table has grown and all have moved", || {
        let status = stage.evener.status()?;
        Ok(status.session_slots > slots && !status.sessions_resizing)
    })?;
    let status = stage.evener.status()?;
    ensure!(status.session_slots <= status.session_slots_max && status.sessions_assured >= 20, "{status:?}");
    let after: Vec<String> = open.iter_mut().map(HttpConnection::who).collect::<Result<_>>()?;
    assert_eq!(before, after, "what was open stays");
    Ok(())
}

/// A client's FIN closes one direction only. Data that the client later receives and acknowledges
/// still belongs to the connection, even after a long pause.
fn who_has_said_all_is_answered_late(engine: &str, way: Way) -> Result<()> {
    const PORT: u16 = 7_000;
    let farm = way.builder().servers(2).build()?;
    let plan = Plan::new(engine, way, Family::V4);
    let text =
        plan.file_with_udp(&farm, PORT).replace("protocol = \"udp\"\n", "timeouts = { closing = \"1s\" }\n");
    let late = Late::start(farm.servers(), PORT)?;
    let stage = plan.start_with(farm, &text, 4)?;
    let service = SocketAddr::new(stage.service.ip(), PORT);
    let requests = LateRequests::by(stage.client(), service, 12, "all that there is to say")?;
    wait::until("all are half closed, and have been for long", || {
        Ok(silent(&stage.evener.sessions()?) == 12)
    })?;
    late.answer();
    requests.read_answers()
}
