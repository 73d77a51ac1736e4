//! Faults that time clients out while all checks look healthy. The doctor on the director names
//! each fault within a minute of traffic.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use etherparse::PacketBuilder;
use evener_core::net::wire::Mac;
use evener_lab::evener::{Evener, program};
use evener_lab::farm::{Builder, Farm};
use evener_lab::harness::engines;
use evener_lab::network::host::Host;
use serde::Deserialize;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::Agent;

/// Number of client networks, with one client each.
const NETWORKS: u8 = 24;
/// Time limit for a finding.
const MINUTE: Duration = Duration::from_secs(60);
const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

#[derive(Debug, Deserialize)]
struct Finding {
    check: String,
    state: String,
    message: String,
}

/// Returns the doctor's findings on a host that are not `ok`.
fn wrong(host: &Host, config: &str) -> Result<Vec<String>> {
    let output = host.output(&[&program()?.to_string_lossy(), "doctor", "--json", "--config", config])?;
    let findings: Vec<Finding> = serde_json::from_slice(&output.stdout)?;
    let wrong = findings.into_iter().filter(|finding| finding.state != "ok");
    Ok(wrong.map(|finding| format!("{} {}: {}", finding.state, finding.check, finding.message)).collect())
}

struct Night {
    farm: Farm,
    /// Running agents, which stop when this value is dropped.
    _agents: Vec<Agent>,
    evener: Evener,
    config: String,
}

impl Night {
    /// Starts a farm of three servers with clients in many networks. `keys` belong to the service.
    fn start(builder: Builder, keys: &str, with_agents: bool) -> Result<Night> {
        let farm = builder.servers(3).build()?;
        let client = farm.client(0);
        let sources: Vec<String> =
            (1..=NETWORKS).map(|net| format!("addr add {}/32 dev lo", source(net))).collect();
        client.ip(&sources)?;
        farm.router().ip(&[format!("route add 10.200.0.0/16 via {}", client.address())])?;
        let director = farm.director();
        let secret = director.write("farm.key", SECRET)?.display().to_string();
        director.run(&["chmod", "600", &secret])?;
        let directors = format!("directors = [\"{}\"]\nsecret_file = \"{secret}\"\n", director.address());
        let servers: String = farm
            .servers()
            .iter()
            .map(|host| {
                format!("[[service.server]]\nname = \"{}\"\naddress = \"{}\"\n", host.name(), host.address())
            })
            .collect();
        let text = format!(
            "[farm]\n{directors}[agent]\nlisten = \":9183\"\n[[service]]\nname = \"web\"\naddress = \"{}\"\n{keys}policy = \
             \"round-robin\"\n{servers}[service.health]\nkind = \"tcp\"\ninterval = \"500ms\"\n",
            farm.service()
        );
        let mut agents = Vec::new();
        for host in farm.servers().iter().filter(|_| with_agents) {
            agents.push(Agent::start(host, &text, &[])?);
        }
        let evener = Evener::start(director, &text)?;
        let config = director.write("doctor.toml", &text)?.display().to_string();
        Ok(Night { farm, _agents: agents, evener, config })
    }

    /// Makes clients connect until the doctor on the director has a finding for each set of words.
    /// Fails after a minute.
    fn finds(&self, wanted: &[&[&str]]) -> Result<()> {
        let ends = AtomicBool::new(false);
        let (client, service) = (self.farm.client(0), self.farm.service());
        std::thread::scope(|scope| {
            let traffic = scope.spawn(|| client.enter(|| connect_all(service, &ends)));
            let found = self.look(wanted);
            ends.store(true, Relaxed);
            drop(traffic.join());
            found
        })
    }

    fn look(&self, wanted: &[&[&str]]) -> Result<()> {
        let began = Instant::now();
        loop {
            let found = wrong(self.farm.director(), &self.config)?;
            let has = |words: &&[&str]| found.iter().any(|one| words.iter().all(|word| one.contains(word)));
            if wanted.iter().all(has) {
                return Ok(());
            }
            ensure!(
                began.elapsed() < MINUTE,
                "no finding has {wanted:?}: {found:#?}\n{:?}",
                self.evener.servers()
            );
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

fn source(network: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 200, network, 1)
}

/// Connects from one client of each network again and again.
fn connect_all(service: SocketAddr, ends: &AtomicBool) {
    std::thread::scope(|scope| {
        for network in 1..=NETWORKS {
            scope.spawn(move || {
                while !ends.load(Relaxed) {
                    let _ = connect(source(network).into(), service);
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
}

fn connect(from: IpAddr, to: SocketAddr) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
    socket.connect_timeout(&to.into(), Duration::from_secs(1))
}

/// Sends 200 SYNs per second with spoofed sources.
fn flood(farm: &Farm, ends: &AtomicBool) -> Result<()> {
    let link = farm.router().raw(1)?;
    let (to, IpAddr::V4(service)) = (farm.director().mac().parse::<Mac>()?, farm.service().ip()) else {
        return Ok(());
    };
    for number in (0_u32..).take_while(|_| !ends.load(Relaxed)) {
        let client =
            Ipv4Addr::from_bits(u32::from_be_bytes([198, 18, 0, 0]) + number.wrapping_mul(257) % 0x1_ffff);
        let builder = PacketBuilder::ethernet2(link.mac().0, to.0)
            .ipv4(client.octets(), service.octets(), 64)
            .tcp(1_024 + number as u16 % 60_000, farm.service().port(), number, 64_000)
            .syn();
        let mut frame = Vec::new();
        builder.write(&mut frame, &[])?;
        link.send(&frame)?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Drops packets to port 80 of a server, except packets from `but`.
fn firewall(host: &Host, but: Option<Ipv4Addr>) -> Result<()> {
    let from = but.map(|address| format!("ip saddr != {address} ")).unwrap_or_default();
    let rules = format!(
        "table inet guard {{
 chain input {{
  type filter hook input priority 0; policy accept;
  tcp dport 80 {from}drop
 }}
}}
"
    );
    let file = host.write("guard.nft", &rules)?.display().to_string();
    host.run(&["nft", "--file", &file]).map(drop)
}

#[test]
fn strict_reverse_path_filter_is_found_by_the_director() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let night = Night::start(Farm::builder().bare(), "method = \"l2\"\n", true)?;
    let server = night.farm.server(0);
    server.netns().sysctl(&[("ipv4/conf/all/rp_filter", "1")])?;
    night.farm.answer_by_second_cable(server)?;
    night.finds(&[
        &["fail web/web1", "never continued", "its probes succeed"],
        &["web/web1: web", "reverse path filter"],
    ])
}

#[test]
fn firewall_for_all_is_found_by_its_rule() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let night = Night::start(Farm::builder().bare(), "method = \"l2\"\n", true)?;
    firewall(night.farm.server(0), None)?;
    night.finds(&[&["warn web/web1", "down"], &["fail web/web1: web firewall", "rule", "guard input"]])
}

#[test]
fn firewall_that_admits_the_director_alone_is_found() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    for with_agents in [false, true] {
        // Without an agent, the server's service address is configured manually.
        let builder = if with_agents { Farm::builder().bare() } else { Farm::builder().silent() };
        let night = Night::start(builder, "method = \"l2\"\n", with_agents)?;
        firewall(night.farm.server(0), Some(night.farm.director().address()))?;
        let stalling: &[&str] = &["fail web/web1:", "never continued", "its probes succeed"];
        let rule: &[&str] = &["warn web/web1: web firewall", "lets directors in"];
        let wanted: Vec<&[&str]> = [stalling, rule].into_iter().take(1 + usize::from(with_agents)).collect();
        night.finds(&wanted)?;
    }
    Ok(())
}

#[test]
fn nat_server_that_answers_past_the_director_is_found() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let night = Night::start(Farm::builder().bare(), "method = \"nat\"\n", true)?;
    // The other servers share the director's network, or reach it through the router.
    for server in &night.farm.servers()[1..] {
        let gateway = same_network(&night.farm, server);
        server.ip(&[format!("route replace default via {gateway}")])?;
    }
    night.finds(&[
        &["fail web/web1:", "got no answer from the server", "its probes succeed"],
        &["web/web1: web", "not in `directors` of [farm]"],
    ])
}

/// Returns the director's address on a server's network.
fn same_network(farm: &Farm, server: &Host) -> Ipv4Addr {
    let there = |address: Ipv4Addr| address.octets()[..3] == server.address().octets()[..3];
    let own = farm.director().interfaces().iter().map(|interface| interface.address);
    own.into_iter().find(|address| there(*address)).unwrap_or(farm.director().address())
}

#[test]
fn narrow_path_that_nobody_tells_of_is_measured() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    for (listens, icmp) in [
        (true, "icmp type { destination-unreachable, echo-request, echo-reply }"),
        (false, "icmp type destination-unreachable"),
    ] {
        let night = Night::start(Farm::builder().bare().remote(), "method = \"tunnel\"\n", listens)?;
        night.farm.narrow_behind_directors(1400)?;
        let rules = format!(
            "table inet silent {{\n chain told {{\n  type filter hook output priority 0;\n  {icmp} drop\n }}\n chain through {{\n  type filter hook forward priority 0;\n  {icmp} drop\n }}\n}}\n"
        );
        let router = night.farm.router();
        let file = router.write("silent.nft", &rules)?.display().to_string();
        router.run(&["nft", "--file", &file])?;
        let _agent = match listens {
            true => None,
            false => {
                let text = std::fs::read_to_string(&night.config)?
                    .replace("listen = \":9183\"", "listen = \"none\"");
                Some(Agent::start(night.farm.server(0), &text, &[])?)
            }
        };
        night.look(&[&["fail web/web1:", "is 1400 bytes"]])?;
    }
    Ok(())
}

/// Connections to all servers, a flood with spoofed sources and idle clients affect all servers
/// alike.
#[test]
fn healthy_farm_under_load_and_flood_has_no_finding() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let night = Night::start(Farm::builder().bare().silent(), "method = \"l2\"\n", true)?;
    let before = wrong(night.farm.director(), &night.config)?;
    let ends = AtomicBool::new(false);
    let (client, service) = (night.farm.client(0), night.farm.service());
    let found = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| client.enter(|| connect_all(service, &ends)));
        let flood = scope.spawn(|| flood(&night.farm, &ends));
        let began = Instant::now();
        let mut found = Ok(Vec::new());
        while began.elapsed() < Duration::from_secs(45) {
            std::thread::sleep(Duration::from_secs(5));
            found = wrong(night.farm.director(), &night.config);
            if found.as_ref().is_ok_and(|found| *found != before) {
                break;
            }
        }
        ends.store(true, Relaxed);
        drop((traffic.join(), flood.join()));
        found
    })?;
    ensure!(found == before, "{found:#?} and not {before:#?}");
    Ok(())
}
