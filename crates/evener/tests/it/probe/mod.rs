//! Probes and the network around a director, on farms with real web servers.

mod decapsulator;
mod network;
mod reach;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use evener::io::probe::{Adjacency, ProbePath, Target, probe};
use evener_core::net::wire::Mac;
use evener_core::pool::HealthKind;
use evener_core::pool::health::Failure;
use evener_lab::farm::Farm;
use evener_lab::harness::engines;
use evener_lab::network::family::Family;
use evener_lab::network::host::Host;

const TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for probes that must fail.
const SHORT: Duration = Duration::from_secs(1);

/// Runs a future in a host's network namespace.
fn on<T: Send>(host: &Host, work: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work())
    };
    host.enter(run).unwrap()
}

/// Returns a server as a probe target of its director.
fn target(farm: &Farm, number: usize, port: u16) -> Target {
    target_in(Family::V4, farm, number, port)
}

/// Returns a server as a probe target, with this IP version.
fn target_in(family: Family, farm: &Farm, number: usize, port: u16) -> Target {
    let (director, server) = (farm.director(), farm.server(number));
    let network = on(director, evener::io::network::read).unwrap();
    let address = server.address_in(family);
    let ifindex = network.route_to(address).expect("servers are on the director's link");
    let own_mac = network.interfaces[&ifindex].mac;
    let hop = Adjacency { ifindex, mac: server.mac().parse().unwrap(), own_mac };
    let source = network.source_for(ifindex, address).unwrap();
    let way = ProbePath::Link { hop, source, server: Some(address) };
    Target { destination: SocketAddr::new(farm.vip_in(family, 0), port), way }
}

/// Returns the target with a changed hop or a changed server address.
fn changed(target: &Target, change: impl FnOnce(&mut Adjacency, &mut Option<IpAddr>)) -> Target {
    let mut target = *target;
    if let ProbePath::Link { hop, server, .. } = &mut target.way {
        change(hop, server);
    }
    target
}

/// Returns the target with a MAC that no host has.
fn nobody(target: &Target) -> Target {
    changed(target, |hop, _| hop.mac = Mac([2, 0, 0, 0, 0, 9]))
}

fn probed(host: &Host, target: &Target, kind: &HealthKind, timeout: Duration) -> Result<u64, Failure> {
    on(host, async || {
        let result = probe(target, None, kind, timeout).await;
        // Responses in flight must arrive before the runtime closes the port.
        tokio::time::sleep(Duration::from_millis(50)).await;
        result
    })
}

fn get(path: &str) -> HealthKind {
    http(path, None)
}

fn http(path: &str, body: Option<&str>) -> HealthKind {
    HealthKind::Http {
        path: path.to_owned(),
        host: None,
        status: vec![(200, 399)],
        body: body.map(Into::into),
        tls: None,
    }
}

/// Starts a server that runs `serve` for each connection until the test process ends.
fn server(host: &Host, address: (IpAddr, u16), serve: fn(TcpStream)) -> Result<()> {
    let listener = host.enter(|| TcpListener::bind(SocketAddr::from(address)))??;
    thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(thread::spawn(move || serve(stream))))
    });
    Ok(())
}

/// Reads a request up to the empty line.
fn request(mut stream: &TcpStream) -> String {
    let mut request = Vec::new();
    let mut buffer = [0; 1000];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(len @ 1..) => request.extend_from_slice(&buffer[..len]),
            _ => break,
        }
    }
    String::from_utf8(request).unwrap()
}

/// Returns the number of resets that a host's stack has sent.
fn resets_sent(host: &Host) -> u64 {
    let snmp = host.run(&["cat", "/proc/net/snmp"]).unwrap();
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    pairs.find(|(name, _)| *name == "OutRsts").unwrap().1.parse().unwrap()
}

fn text<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn arp_probe_of_l2_server_asks_for_service_address() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let mut farm = Farm::builder().servers(2).build()?;
    let director = farm.director().clone();
    let [web1, web2] = [0, 1].map(|number| target(&farm, number, 80));
    let capture = farm.server(0).capture(0, "tcp port 80")?;

    probed(&director, &web1, &HealthKind::Tcp, TIMEOUT).unwrap();
    probed(&director, &web1, &get("/healthz"), TIMEOUT).unwrap();
    // Each MAC reaches its own server, although all servers have the VIP.
    probed(&director, &web1, &http("/who", Some("web1")), TIMEOUT).unwrap();
    probed(&director, &web2, &http("/who", Some("web2")), TIMEOUT).unwrap();
    assert_eq!(probed(&director, &web2, &http("/who", Some("web1")), TIMEOUT), Err(Failure::Body));
    assert_eq!(probed(&director, &web1, &get("/nothing"), TIMEOUT), Err(Failure::Status(404)));
    farm.set_healthy(0, false)?;
    assert_eq!(probed(&director, &web1, &get("/healthz"), TIMEOUT), Err(Failure::Status(503)));

    let closed = target(&farm, 0, 81);
    assert_eq!(probed(&director, &closed, &HealthKind::Tcp, TIMEOUT), Err(Failure::Refused));
    farm.stop_web(0)?;
    assert_eq!(probed(&director, &web1, &get("/healthz"), TIMEOUT), Err(Failure::Refused));
    let late = text(probed(&director, &nobody(&web1), &HealthKind::Tcp, SHORT));
    assert_eq!(late, "no answer to SYN within 1s");

    let packets = capture.stop()?;
    let to_web1 = format!("{} > {}", director.mac(), farm.server(0).mac());
    let requests =
        packets.iter().filter(|line| line.starts_with(&to_web1) && line.contains("> 192.0.2.100.80:"));
    assert!(requests.count() > 10, "{packets:?}");
    assert!(packets.iter().any(|line| line.contains("192.0.2.100.80 > 192.0.2.2.")), "{packets:?}");
    assert_eq!(resets_sent(&director), 0, "the director's own stack keeps out of it");
    Ok(())
}

#[test]
fn odd_servers_fail_probes_with_reason() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    // Checksum offload is active here, and segments arrive merged.
    let farm = Farm::builder().offload_replies().build()?;
    let director = farm.director().clone();
    let vip = farm.vip(0).into();
    let probed = |port: u16, kind: &HealthKind| probed(&director, &target(&farm, 0, port), kind, SHORT);
    let host = farm.server(0);

    server(host, (vip, 8001), |stream| {
        request(&stream);
        thread::sleep(4 * SHORT);
    })?;
    assert_eq!(text(probed(8001, &get("/"))), "connected, but no reply within 1s");

    server(host, (vip, 8002), |mut stream| {
        request(&stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf of it").unwrap();
        thread::sleep(4 * SHORT);
    })?;
    let late = text(probed(8002, &http("/", Some("the other half"))));
    assert_eq!(late, "connected, but the reply was not complete within 1s");
    probed(8002, &http("/", Some("half"))).unwrap();

    // A close with the request unread sends a reset.
    server(host, (vip, 8003), drop)?;
    assert!(matches!(probed(8003, &get("/")), Err(Failure::Reset | Failure::Closed)));
    server(host, (vip, 8004), |stream| drop(request(&stream)))?;
    assert_eq!(probed(8004, &get("/")), Err(Failure::Closed));
    server(host, (vip, 8005), |mut stream| drop(stream.write_all(b"SSH-2.0-nobody\r\n")))?;
    assert_eq!(probed(8005, &get("/")), Err(Failure::NotHttp));

    // Responses longer than a window, and longer than the probe's limit. The client sends first.
    server(host, (vip, 8006), |mut stream| {
        let request_text = request(&stream);
        let len: usize = request_text[5..].split(' ').next().unwrap().parse().unwrap();
        let body = [vec![b'.'; len], b"the end".to_vec()].concat();
        let _ = stream.write_all(&[b"HTTP/1.0 200 OK\r\n\r\n".to_vec(), body].concat());
    })?;
    probed(8006, &http("/60000", Some("the end"))).unwrap();
    assert_eq!(probed(8006, &http("/2000000", Some("the end"))), Err(Failure::Body));
    assert_eq!(resets_sent(&director), 0);
    Ok(())
}

#[test]
fn lost_frames_are_sent_again() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().build()?;
    let web1 = target(&farm, 0, 80);
    // The first SYN is dropped.
    let rules = "table netdev lossy { chain in { type filter hook ingress device eth0 priority 0;\n\
                 tcp flags syn limit rate over 1/minute burst 1 packets accept\n\
                 tcp flags syn drop\n }\n }\n";
    let rules = farm.server(0).write("lossy.nft", rules)?;
    farm.server(0).run(&["nft", "-f", &rules.to_string_lossy()])?;
    let started = Instant::now();
    probed(farm.director(), &web1, &get("/healthz"), Duration::from_secs(5)).unwrap();
    assert!(started.elapsed() > Duration::from_millis(500), "the first was not lost");
    Ok(())
}

#[test]
fn arp_probe_is_unicast_to_server() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().servers(2).answering().build()?;
    let director = farm.director();
    let other = farm.server(1);
    for (family, silent) in [(Family::V4, Failure::NoArp), (Family::V6, Failure::NoNeighbour)] {
        let listed = target_in(family, &farm, 0, 80);
        let discovered = changed(&listed, |_, server| *server = None);
        let capture = other.capture(0, "arp or icmp6")?;
        for target in [&listed, &discovered] {
            probed(director, target, &HealthKind::Arp, TIMEOUT).unwrap();
        }
        let nobody = probed(director, &nobody(&listed), &HealthKind::Arp, SHORT);
        assert_eq!(nobody.as_ref(), Err(&silent));
        let elsewhere = changed(&listed, |_, server| *server = Some(other.address_in(family)));
        let elsewhere = probed(director, &elsewhere, &HealthKind::Arp, SHORT);
        assert_eq!(elsewhere.as_ref(), Err(&silent));
        let gone = changed(&listed, |hop, _| hop.ifindex = 999);
        let error = text(probed(director, &gone, &HealthKind::Arp, TIMEOUT));
        assert!(error.starts_with("no probe can leave by interface number 999: "), "{error}");
        let packets = capture.stop()?;
        let asked = |line: &&String| {
            line.contains("who-has") && line.contains(&format!("tell {},", director.address()))
                || line.contains(&format!("{} > ff02::1:ff", director.address_in(Family::V6)))
        };
        // A switch floods frames to unknown MACs to all ports.
        let to_all = |line: &&String| line.contains("> ff:ff:ff:ff:ff:ff") || line.contains("> 33:33:");
        let to_all: Vec<_> = packets.iter().filter(asked).filter(to_all).collect();
        assert!(to_all.is_empty(), "{packets:?}");
    }
    Ok(())
}

#[test]
fn hundreds_of_probes_at_once_do_not_disturb_each_other() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().servers(3).build()?;
    let targets = [0, 1, 2].map(|number| target(&farm, number, 80));
    let nobody = nobody(&targets[0]);
    let results = on(farm.director(), async || {
        let spawn = |number: usize| {
            let (server, name) = (number % 4, format!("web{}", number % 4 + 1));
            let target = *targets.get(server).unwrap_or(&nobody);
            let probe =
                async move { (server, probe(&target, None, &http("/who", Some(&name)), TIMEOUT).await) };
            tokio::spawn(probe)
        };
        let tasks: Vec<_> = (0..256).map(spawn).collect();
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.unwrap());
        }
        results
    });
    for (server, result) in results {
        assert_eq!(result.is_ok(), server < 3, "web{}: {result:?}", server + 1);
    }
    assert_eq!(resets_sent(farm.director()), 0);
    Ok(())
}

#[test]
fn a_director_that_serves_is_probed_by_its_own_stack() -> Result<()> {
    if !engines::has_root() {
        return Ok(());
    }
    // A port that the farm's web server on the director does not use.
    const PORT: u16 = 8888;
    let farm = Farm::builder().director_serves().build()?;
    let director = farm.director();
    let destination = SocketAddr::new(farm.vip(0).into(), PORT);
    let local = Target { destination, way: ProbePath::Local { to: destination } };
    assert_eq!(probed(director, &local, &HealthKind::Tcp, TIMEOUT), Err(Failure::Refused));
    server(director, (farm.vip(0).into(), PORT), |mut stream| {
        let asked = request(&stream);
        if asked.starts_with("GET /slow ") {
            thread::sleep(4 * SHORT);
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhere");
    })?;
    for kind in [HealthKind::Tcp, HealthKind::Arp, HealthKind::None, http("/", Some("here"))] {
        probed(director, &local, &kind, TIMEOUT).unwrap();
    }
    assert_eq!(probed(director, &local, &http("/", Some("there")), TIMEOUT), Err(Failure::Body));
    let late = text(probed(director, &local, &get("/slow"), SHORT));
    assert_eq!(late, "connected, but no reply within 1s");
    Ok(())
}
