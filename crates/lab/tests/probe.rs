//! Probes and the network around a director, on farms with real web servers.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::future::Future;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use evener::network::{Network, watch};
use evener::probe::{Target, probe};
use evener_core::farm::HealthKind;
use evener_core::health::Failure;
use evener_core::wire::Mac;
use evener_lab::farm::Farm;
use evener_lab::host::Host;
use evener_lab::skip;

const TIMEOUT: Duration = Duration::from_secs(2);
/// For what is bound to fail.
const SHORT: Duration = Duration::from_millis(300);

/// Runs a future in a host's namespace.
fn on<T: Send>(host: &Host, work: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work())
    };
    host.enter(run).unwrap()
}

/// One of the farm's servers, as its director would probe it.
fn target(farm: &Farm, number: usize, port: u16) -> Target {
    let (director, server) = (farm.director(), farm.server(number));
    let network = on(director, Network::read).unwrap();
    let ifindex = network.route_to(server.address()).expect("servers are on the director's link");
    Target {
        mac: server.mac().parse().unwrap(),
        ifindex,
        own_mac: network.interfaces[&ifindex].mac,
        source: network.source_for(ifindex, server.address()).unwrap(),
        destination: SocketAddrV4::new(farm.vip(0), port),
        local: false,
        server_address: Some(server.address()),
    }
}

fn probed(host: &Host, target: &Target, kind: &HealthKind, timeout: Duration) -> Result<u64, Failure> {
    on(host, async || probe(target, kind, timeout).await)
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
    }
}

/// A server that does with each connection what `serve` does. It ends with the test's process.
fn server(host: &Host, address: (Ipv4Addr, u16), serve: fn(TcpStream)) -> Result<()> {
    let listener = host.enter(|| TcpListener::bind(SocketAddr::from(address)))??;
    thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(thread::spawn(move || serve(stream))))
    });
    Ok(())
}

/// Reads a request to its end.
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

/// Resets that a host's own stack has sent.
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
fn a_server_is_asked_at_its_mac_for_the_service_address() -> Result<()> {
    if !skip::has_root() {
        return Ok(());
    }
    let mut farm = Farm::builder().servers(2).build()?;
    let director = farm.director().clone();
    let [web1, web2] = [0, 1].map(|number| target(&farm, number, 80));
    let capture = farm.server(0).capture(0, "tcp port 80")?;

    probed(&director, &web1, &HealthKind::Tcp, TIMEOUT).unwrap();
    probed(&director, &web1, &get("/healthz"), TIMEOUT).unwrap();
    // each MAC leads to its own server, though all have the address
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
    let nobody = Target { mac: Mac([2, 0, 0, 0, 0, 9]), ..web1 };
    let late = text(probed(&director, &nobody, &HealthKind::Tcp, SHORT));
    assert_eq!(late, "no answer to SYN within 300ms");

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
fn odd_servers_fail_for_what_they_do() -> Result<()> {
    if !skip::has_root() {
        return Ok(());
    }
    // checksums are left to the receiver here, and segments merged
    let farm = Farm::builder().offload_replies().build()?;
    let director = farm.director().clone();
    let vip = farm.vip(0);
    let probed = |port: u16, kind: &HealthKind| probed(&director, &target(&farm, 0, port), kind, SHORT);
    let host = farm.server(0);

    server(host, (vip, 8001), |stream| {
        request(&stream);
        thread::sleep(Duration::from_secs(1));
    })?;
    assert_eq!(text(probed(8001, &get("/"))), "connected, but no reply within 300ms");

    server(host, (vip, 8002), |mut stream| {
        request(&stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf of it").unwrap();
        thread::sleep(Duration::from_secs(1));
    })?;
    let late = text(probed(8002, &http("/", Some("the other half"))));
    assert_eq!(late, "connected, but the reply was not complete within 300ms");
    probed(8002, &http("/", Some("half"))).unwrap();

    // closing with the request unread resets the connection
    server(host, (vip, 8003), drop)?;
    assert!(matches!(probed(8003, &get("/")), Err(Failure::Reset | Failure::Closed)));
    server(host, (vip, 8004), |stream| drop(request(&stream)))?;
    assert_eq!(probed(8004, &get("/")), Err(Failure::Closed));
    server(host, (vip, 8005), |mut stream| drop(stream.write_all(b"SSH-2.0-nobody\r\n")))?;
    assert_eq!(probed(8005, &get("/")), Err(Failure::NotHttp));

    // far more than a window, and more than is looked at; the client goes first
    server(host, (vip, 8006), |mut stream| {
        let asked = request(&stream);
        let len: usize = asked[5..].split(' ').next().unwrap().parse().unwrap();
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
    if !skip::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().build()?;
    let web1 = target(&farm, 0, 80);
    // the first SYN is lost on its way in
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
fn arp_is_asked_of_the_server_alone() -> Result<()> {
    if !skip::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().servers(2).answering().build()?;
    let director = farm.director();
    let listed = target(&farm, 0, 80);
    let discovered = Target { server_address: None, ..listed };
    let capture = farm.server(1).capture(0, "arp")?;
    for target in [&listed, &discovered] {
        probed(director, target, &HealthKind::Arp, TIMEOUT).unwrap();
    }
    let nobody = Target { mac: Mac([2, 0, 0, 0, 0, 9]), ..listed };
    assert_eq!(probed(director, &nobody, &HealthKind::Arp, SHORT), Err(Failure::NoArp));
    let elsewhere = Target { server_address: Some(farm.server(1).address()), ..listed };
    assert_eq!(probed(director, &elsewhere, &HealthKind::Arp, SHORT), Err(Failure::NoArp));
    let gone = Target { ifindex: 999, ..listed };
    let error = text(probed(director, &gone, &HealthKind::Arp, TIMEOUT));
    assert!(error.starts_with("no probe can leave by interface number 999: "), "{error}");
    let packets = capture.stop()?;
    let by_director = |line: &String| line.contains("who-has") && line.contains("tell 192.0.2.2,");
    // a switch that doesn't know a MAC yet sends what is for it everywhere
    let to_all = packets.iter().filter(|line| by_director(line) && line.contains("> ff:ff:ff:ff:ff:ff"));
    assert_eq!(to_all.count(), 0, "{packets:?}");
    Ok(())
}

#[test]
fn hundreds_of_probes_at_once_do_not_disturb_each_other() -> Result<()> {
    if !skip::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().servers(3).build()?;
    let targets = [0, 1, 2].map(|number| target(&farm, number, 80));
    let nobody = Target { mac: Mac([2, 0, 0, 0, 0, 9]), ..targets[0] };
    let results = on(farm.director(), async || {
        let spawn = |number: usize| {
            let (server, name) = (number % 4, format!("web{}", number % 4 + 1));
            let target = *targets.get(server).unwrap_or(&nobody);
            let probe = async move { (server, probe(&target, &http("/who", Some(&name)), TIMEOUT).await) };
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
    if !skip::has_root() {
        return Ok(());
    }
    // One that the farm's own web server on the director leaves free.
    const PORT: u16 = 8080;
    let farm = Farm::builder().director_serves().build()?;
    let director = farm.director();
    let local = Target { local: true, ..target(&farm, 0, PORT) };
    assert_eq!(probed(director, &local, &HealthKind::Tcp, TIMEOUT), Err(Failure::Refused));
    server(director, (farm.vip(0), PORT), |mut stream| {
        let asked = request(&stream);
        if asked.starts_with("GET /slow ") {
            thread::sleep(Duration::from_secs(1));
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhere");
    })?;
    for kind in [HealthKind::Tcp, HealthKind::Arp, HealthKind::None, http("/", Some("here"))] {
        probed(director, &local, &kind, TIMEOUT).unwrap();
    }
    assert_eq!(probed(director, &local, &http("/", Some("there")), TIMEOUT), Err(Failure::Body));
    let late = text(probed(director, &local, &get("/slow"), SHORT));
    assert_eq!(late, "connected, but no reply within 300ms");
    Ok(())
}

#[test]
fn the_network_is_read_and_watched() -> Result<()> {
    if !skip::has_root() {
        return Ok(());
    }
    let farm = Farm::builder().server_lans(2).servers(2).build()?;
    let director = farm.director();
    // refused, but the router's MAC is known then
    director.enter(|| TcpStream::connect("192.0.2.1:9")).unwrap().unwrap_err();
    let network = on(director, Network::read).unwrap();
    let named = |name: &str| network.interfaces.iter().find(|(_, found)| found.name == name).unwrap();
    let (&eth0, found) = named("eth0");
    assert_eq!(found.mac.to_string(), director.mac());
    assert_eq!(found.addresses, [(director.address(), 24)]);
    assert!(found.up && found.ethernet && !found.loopback && found.mtu == 1500, "{found:?}");
    let (_, lo) = named("lo");
    assert!(lo.loopback && !lo.ethernet);
    let [router] = network.gateways[..] else { panic!("{:?}", network.gateways) };
    assert_eq!(router.address, Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(router.mac, Some("02:00:c0:00:02:01".parse()?));
    assert_eq!(network.route_to(farm.vip(0)), Some(eth0));
    assert_eq!(network.route_to(farm.server(1).address()), Some(*named("eth1").0));
    assert_eq!(network.route_to(farm.client(0).address()), None);

    changes_are_told(director, || director.ip(&["addr add 192.0.2.77/32 dev eth0".to_owned()]));
    changes_are_told(director, || director.ip(&["route add 203.0.113.7/32 via 192.0.2.1".to_owned()]));
    changes_are_told(director, || {
        director.ip(&["neigh add 192.0.2.78 lladdr 02:00:00:00:00:78 dev eth0".to_owned()])
    });
    changes_are_told(director, || director.ip(&["link set eth1 down".to_owned()]));
    assert!(on(director, Network::read).unwrap().is_local(Ipv4Addr::new(192, 0, 2, 77)));
    Ok(())
}

fn changes_are_told(host: &Host, change: impl FnOnce() -> Result<()> + Send) {
    on(host, async || {
        let mut changes = watch().await.unwrap();
        assert!(within(Duration::from_millis(50), changes.recv()).await.is_none(), "nothing happened yet");
        change().unwrap();
        assert_eq!(within(TIMEOUT, changes.recv()).await, Some(Some(())));
    });
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}
