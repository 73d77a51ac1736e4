//! Path probes to servers' agents: the rate of a shaped link, the rate that other traffic leaves,
//! and unauthorised requests.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use evener_core::node::path_probe::{AT_ONCE, NONCE_LEN, Nonce, ProbeMessage, TrainKind, key};
use evener_core::node::secret::Secret;
use evener_lab::evener::{Agent, Evener};
use evener_lab::farm::Farm;
use evener_lab::harness::wait;
use evener_lab::network::host::Host;
use serde_json::Value;

use crate::loads::{LOAD_PORT, shown};
use crate::stage::{Stage, file};

const SECRET: [u8; 32] = [7; 32];
/// Length of a datagram of other traffic, with all headers, in bytes.
const OTHERS_LEN: usize = 1_242;

fn keys(mode: &str) -> String {
    format!(
        "policy = \"expected-delay\"\nreport = {{ interval = \"200ms\" }}\nprobe = \"1s\"\nprobe_mode = \"{mode}\""
    )
}

/// Starts a farm whose director probes the paths to agents by packet trains.
fn stage(servers: u8, mode: &str) -> Result<(Stage, Vec<Agent>)> {
    let farm = Farm::builder().bare().servers(servers).build()?;
    let director = farm.director();
    let secret = director.write("farm.key", &Secret::new(SECRET).text())?;
    let known = format!(
        "[farm]\ndirectors = [\"{}\"]\nsecret_file = \"{}\"\n[agent]\nlisten = \":{LOAD_PORT}\"\nreport = \"200ms\"\n",
        director.address(),
        secret.display()
    );
    let config = known + &file(&farm, &keys(mode));
    let agents = farm.servers().iter().map(|host| Agent::start(host, &config)).collect::<Result<_>>()?;
    Ok((Stage { evener: Evener::start(farm.director(), &config)?, farm }, agents))
}

/// Limits the rate of all packets that a host sends.
fn shape(host: &Host, megabits: u64) -> Result<()> {
    let name = host.interfaces().first().context("an interface")?.name.clone();
    let rate = format!("{megabits}mbit");
    let class =
        ["tc", "class", "replace", "dev", &name, "parent", "1:", "classid", "1:1", "htb", "rate", &rate];
    if host.run(&class).is_err() {
        host.run(&["tc", "qdisc", "replace", "dev", &name, "root", "handle", "1:", "htb", "default", "1"])?;
        host.run(&class)?;
    }
    Ok(())
}

fn is_near(value: &Value, megabits: f64, percent: f64) -> bool {
    value.as_f64().is_some_and(|bps| (bps - megabits * 1e6).abs() <= megabits * 1e6 * percent / 100.0)
}

/// Sends datagrams at a constant rate from a host to another until `is_over`.
fn send_beside(from: &Host, to: &Host, bps: u64, is_over: &AtomicBool) -> Result<()> {
    let to = SocketAddr::new(to.address().into(), 9);
    let socket = from.enter(|| UdpSocket::bind((from.address(), 0)))??;
    let gap = Duration::from_nanos(OTHERS_LEN as u64 * 8 * 1_000_000_000 / bps);
    let (mut due, bytes) = (Instant::now(), vec![0; OTHERS_LEN - 42]);
    while !is_over.load(Relaxed) {
        // The port is closed, so some calls report an ICMP error.
        let _ = socket.send_to(&bytes, to);
        due += gap;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

#[test]
fn a_path_is_known_that_no_client_uses() -> Result<()> {
    let (stage, _agents) = stage(1, "udp")?;
    let server = stage.farm.server(0);
    for megabits in [4, 40] {
        shape(server, megabits)?;
        wait::until(&format!("{megabits} Mbit/s are known, and free"), || {
            let path = shown(&stage, 0)?;
            let is_known = is_near(&path["bottleneck_bps"], megabits as f64, 10.0);
            Ok(is_known
                && is_near(&path["available_bps"], megabits as f64, 25.0)
                && path["path_source"] == "probe")
        })?;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let beside =
                scope.spawn(|| send_beside(server, stage.farm.client(0), megabits * 500_000, &is_over));
            let found = wait::until("half of it is free", || {
                let path = shown(&stage, 0)?;
                Ok(is_near(&path["bottleneck_bps"], megabits as f64, 10.0)
                    && is_near(&path["available_bps"], megabits as f64 / 2.0, 25.0))
            });
            is_over.store(true, Relaxed);
            beside.join().expect("no panic").and(found)
        })?;
    }
    Ok(())
}

/// Returns the number of events with this name.
fn events(stage: &Stage, name: &str) -> Result<u64> {
    let status: Value = stage.evener.json(&["status"])?;
    Ok(status["events"][name].as_u64().unwrap_or_default())
}

#[test]
fn trains_that_are_lost_leave_a_path_unknown_and_others_known() -> Result<()> {
    let (stage, _agents) = stage(2, "udp")?;
    let is_known = |server| Ok(shown(&stage, server)?["path_source"] == "probe");
    wait::until("both are known", || Ok(is_known(0)? && is_known(1)?))?;
    let before = events(&stage, "path_unknown")?;
    let rules = "table inet lost { chain out { type filter hook output priority 0; udp sport 9183 meta length > 1000 drop; }; }";
    stage.farm.server(0).run(&["nft", rules])?;
    wait::until("the first is no longer known", || Ok(!is_known(0)? && is_known(1)?))?;
    // On a busy host, trains may have been lost before.
    wait::until("it is an event", || Ok(events(&stage, "path_unknown")? > before))?;
    let before = events(&stage, "path_known")?;
    // A server is answered whether or not its path is known.
    ensure!(shown(&stage, 0)?["share"].as_f64() > Some(0.0));
    stage.farm.server(0).run(&["nft", "delete table inet lost"])?;
    wait::until("it is known again", || is_known(0))?;
    wait::until("it is an event", || Ok(events(&stage, "path_known")? > before))
}

/// A client that requests a train from an agent.
struct Asker {
    socket: UdpSocket,
    to: SocketAddr,
    secret: Secret,
}

impl Asker {
    fn new(host: &Host, server: &Host, secret: [u8; 32]) -> Result<Asker> {
        let socket = host.enter(|| UdpSocket::bind((host.address(), 0)))??;
        socket.set_read_timeout(Some(Duration::from_millis(700)))?;
        Ok(Asker {
            socket,
            to: SocketAddr::new(server.address().into(), LOAD_PORT),
            secret: Secret::new(secret),
        })
    }

    fn send(&self, message: ProbeMessage) -> Result<()> {
        self.socket.send_to(&message.seal(&key(&self.secret)), self.to)?;
        Ok(())
    }

    /// Returns the received datagrams until none arrives for some time.
    fn received(&self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 2_048];
        std::iter::from_fn(|| self.socket.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())).collect()
    }

    fn challenge(&self, request: Nonce) -> Result<Option<Nonce>> {
        self.send(ProbeMessage::Request(request))?;
        let answers = self.received();
        ensure!(answers.len() <= 1 && answers.iter().all(|answer| answer.len() < 64), "{answers:?}");
        Ok(answers.first().and_then(|answer| match ProbeMessage::open(&key(&self.secret), answer) {
            Some(ProbeMessage::Challenge { request: of, challenge }) if of == request => Some(challenge),
            _ => None,
        }))
    }
}

#[test]
fn only_directors_with_the_secret_get_trains_and_each_once() -> Result<()> {
    let (stage, _agents) = stage(1, "udp")?;
    let (server, director, request) = (stage.farm.server(0), stage.farm.director(), [1; NONCE_LEN]);
    wait::until("the agent answers", || Ok(shown(&stage, 0)?["path_source"] == "probe"))?;
    // The daemon's own probes would interfere.
    let unprobed = file(&stage.farm, "policy = \"expected-delay\"\nreport = { interval = \"200ms\" }");
    stage.evener.reload(&unprobed)?;
    let stranger = Asker::new(stage.farm.client(0), server, SECRET)?;
    ensure!(stranger.challenge(request)?.is_none(), "the secret alone is not enough");
    let forger = Asker::new(director, server, [8; 32])?;
    ensure!(forger.challenge(request)?.is_none(), "nor is the address");
    let asker = Asker::new(director, server, SECRET)?;
    let go = |challenge| ProbeMessage::Go { request, challenge, step: TrainKind::AtOnce, gap_ns: 0 };
    asker.send(go([0; NONCE_LEN]))?;
    ensure!(asker.received().is_empty(), "nobody has asked before");
    let challenge = asker.challenge(request)?.context("a challenge")?;
    let other = Asker::new(director, server, SECRET)?;
    other.send(go(challenge))?;
    ensure!(other.received().is_empty(), "it is somebody else's");
    for train in [usize::from(AT_ONCE), 0] {
        asker.send(go(challenge))?;
        let packets = asker.received();
        ensure!(packets.len() == train, "{} packets, and not {train}", packets.len());
    }
    // No other datagram gets a reply.
    for bytes in
        [&b""[..], b"x", &[0; 200], &ProbeMessage::Request(request).seal(&key(&Secret::new(SECRET)))[..20]]
    {
        asker.socket.send_to(bytes, asker.to)?;
    }
    ensure!(asker.received().is_empty());
    Ok(())
}

#[test]
fn echoes_measure_a_path_to_a_server_without_an_agent() -> Result<()> {
    let (stage, agents) = stage(1, "paper")?;
    shape(stage.farm.server(0), 4)?;
    wait::until("4 Mbit/s are known", || {
        let path = shown(&stage, 0)?;
        Ok(is_near(&path["bottleneck_bps"], 4.0, 10.0) && is_near(&path["available_bps"], 4.0, 10.0))
    })?;
    let name = stage.farm.server(0).interfaces().first().context("an interface")?.name.clone();
    let bucket = ["rate", "10mbit", "burst", "16kb", "latency", "200ms"];
    stage
        .farm
        .server(0)
        .run(&[&["tc", "qdisc", "replace", "dev", &name, "root", "tbf"][..], &bucket].concat())?;
    wait::until("10 Mbit/s are known behind a bucket that lets a train pass", || {
        let path = shown(&stage, 0)?;
        ensure!(
            path["bottleneck_bps"].as_f64().is_none_or(|bps| bps < 20e6),
            "the burst is believed: {path}"
        );
        Ok(is_near(&path["bottleneck_bps"], 10.0, 10.0) && is_near(&path["available_bps"], 10.0, 15.0))
    })?;
    drop(agents);
    stage.farm.server(0).run(&["sysctl", "-qw", "net.ipv4.icmp_echo_ignore_all=1"])?;
    wait::until("it answers no more", || {
        Ok(events(&stage, "path_unknown")? > 0 && shown(&stage, 0)?["bottleneck_bps"].is_null())
    })
}
