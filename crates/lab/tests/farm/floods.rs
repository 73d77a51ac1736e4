//! Strangers who send first packets in others' names, and clients who have said all: the one takes nothing from the other.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use etherparse::PacketBuilder;
use evener_core::ports::PORTS;
use evener_core::wire::Mac;
use evener_lab::evener::Evener;
use evener_lab::family::Family;
use evener_lab::farm::Farm;
use evener_lab::host::Host;
use evener_lab::raw::Raw;
use evener_lab::visit::Visit;
use evener_lab::wait::{self, LONG};

use crate::stage::{Plan, Way};

on_both_engines! {
    spoofed_syns_leave_ports_to_clients,
    a_flooded_service_leaves_room_to_others,
}

by_way!(l2, L2: who_has_said_all_is_answered_late);
by_way!(nat, Nat: who_has_said_all_is_answered_late);
by_way!(ipip, Ipip: who_has_said_all_is_answered_late);

/// First packets to a service, each from another client.
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
        let IpAddr::V4(service) = self.service.ip() else { return Ok(()) };
        let client = Ipv4Addr::from_bits(u32::from_be_bytes([198, 18, 0, 0]) + number % 0x1_fffe + 1);
        let port = 1_024 + (number / 7 % 60_000) as u16;
        let builder = PacketBuilder::ethernet2(self.link.mac().0, self.to.0).ipv4(
            client.octets(),
            service.octets(),
            64,
        );
        let mut frame = Vec::new();
        match self.udp {
            true => builder.udp(port, self.service.port()).write(&mut frame, &[7; 16])?,
            false => builder.tcp(port, self.service.port(), number, 64_000).syn().write(&mut frame, &[])?,
        }
        self.link.send(&frame)
    }
}

/// Twenty thousand SYNs a second, until the server's ports were asked for three times over, and longer if clients are slow.
fn spoofed_syns_leave_ports_to_clients(engine: &str) -> Result<()> {
    const BURST: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(5);
    let stage = Plan::new(engine, Way::SourceNat, Family::V4).stage(1)?;
    let spoofer = Spoofer::new(&stage.farm, stage.service, false)?;
    let done = AtomicBool::new(false);
    let sent = thread::scope(|scope| -> Result<u32> {
        let flood = scope.spawn(|| -> Result<u32> {
            let mut sent = 0;
            while !done.load(Relaxed) || (sent as usize) < 3 * PORTS {
                for _ in 0..BURST {
                    spoofer.send(sent)?;
                    sent += 1;
                }
                thread::sleep(PAUSE);
            }
            Ok(sent)
        });
        let visits = (0..30).try_for_each(|number| -> Result<()> {
            let mut visit =
                Visit::open(stage.client(), stage.service).with_context(|| format!("client {number}"))?;
            visit.who().with_context(|| format!("the request of client {number}"))?;
            Ok(())
        });
        done.store(true, Relaxed);
        let sent = flood.join().map_err(|_| anyhow::anyhow!("the flood broke off"))??;
        visits.map(|()| sent)
    })?;
    ensure!(sent as usize >= 3 * PORTS);
    for number in 0..10 {
        Visit::open(stage.client(), stage.service)?
            .who()
            .with_context(|| format!("client {number}, afterwards"))?;
    }
    Ok(())
}

/// A table that one service's spoofed datagrams fill many times over.
fn a_flooded_service_leaves_room_to_others(engine: &str) -> Result<()> {
    const UDP_PORT: u16 = 5_353;
    let farm = Way::Nat.builder().servers(2).build()?;
    let plan = Plan::new(engine, Way::Nat, Family::V4);
    let text = plan.file_with_udp(&farm, UDP_PORT).replace("sessions_max = 65536", "sessions_max = 1024");
    let stage = plan.start_with(farm, &text, 4)?;
    let mut old: Vec<Visit> =
        (0..20).map(|_| Visit::open(stage.client(), stage.service)).collect::<Result<_>>()?;
    let before: Vec<String> = old.iter_mut().map(Visit::who).collect::<Result<_>>()?;
    let spoofer = Spoofer::new(&stage.farm, SocketAddr::new(stage.service.ip(), UDP_PORT), true)?;
    (0..20_000).try_for_each(|number| spoofer.send(number))?;
    let status = stage.evener.status()?;
    ensure!(status.sessions > 1_024, "the table is full: {status:?}");
    ensure!(status.sessions_assured >= 20 && status.sessions_embryonic > 1_000, "{status:?}");
    for number in 0..36 {
        let served = Visit::open(stage.client(), stage.service).and_then(|mut visit| visit.who());
        served.with_context(|| format!("client {number}"))?;
    }
    let after: Vec<String> = old.iter_mut().map(Visit::who).collect::<Result<_>>()?;
    assert_eq!(before, after, "what was open stays");
    Ok(())
}

/// Takes a connection, hears all that its client says, and answers when it may.
fn answer_late(host: &Host, port: u16, answers: &'static [u8], may: &'static AtomicBool) -> Result<()> {
    let listener = host.enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || -> std::io::Result<()> {
                stream.read_to_end(&mut Vec::new())?;
                while !may.load(Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                }
                stream.write_all(answers)
            });
        }
    });
    Ok(())
}

/// A client's FIN is half a close: what it hears afterwards, and acknowledges, still belongs to its connection, however long
/// nothing was said.
fn who_has_said_all_is_answered_late(engine: &str, way: Way) -> Result<()> {
    const PORT: u16 = 7_000;
    static ANSWER: [u8; 200_000] = [b'x'; 200_000];
    let may: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let farm = way.builder().servers(2).build()?;
    let plan = Plan::new(engine, way, Family::V4);
    let text =
        plan.file_with_udp(&farm, PORT).replace("protocol = \"udp\"\n", "timeouts = { closing = \"1s\" }\n");
    for host in farm.servers() {
        answer_late(host, PORT, &ANSWER, may)?;
    }
    let stage = plan.start_with(farm, &text, 4)?;
    let service = SocketAddr::new(stage.service.ip(), PORT);
    let mut streams = Vec::new();
    for _ in 0..12 {
        let mut stream = stage.client().enter(|| TcpStream::connect_timeout(&service, LONG))??;
        stream.set_read_timeout(Some(LONG))?;
        stream.write_all(b"all that there is to say")?;
        stream.shutdown(Shutdown::Write)?;
        streams.push(stream);
    }
    let ours = |evener: &Evener| -> Result<Vec<u64>> {
        let sessions = evener.sessions()?.into_iter().filter(|session| session.state == "half-closed");
        Ok(sessions.map(|session| session.idle_seconds).collect())
    };
    // silence that outlasts `closing`
    wait::until("all are half closed, and have been for long", || {
        let idle = ours(&stage.evener)?;
        Ok(idle.len() == 12 && idle.iter().all(|idle| *idle >= 3))
    })?;
    may.store(true, Relaxed);
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).with_context(|| format!("client {number}"))?;
        ensure!(answer == ANSWER, "client {number} heard {} bytes", answer.len());
    }
    Ok(())
}
