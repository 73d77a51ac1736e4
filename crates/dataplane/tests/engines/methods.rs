//! Complete TCP connections by NAT and through tunnels, between the stacks of real hosts.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use evener_core::net::wire::Mac;
use evener_core::net::{Encapsulation, Protocol};
use evener_core::path::decide::Reason;
use evener_core::path::mark::ForwardCount;
use evener_core::path::sessions::ticks;
use evener_core::path::tables::{
    Forwarding, HASH_SLOTS, IdleTicks, Pick, ReplyOrigin, Ring, ServerEntry, Tables, Vip, VipKey,
};
use evener_dataplane::Engine;
use evener_dataplane::events::{EventSource, TraceEvent, TraceFilter};
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_dataplane::packet::PacketEngine;
use evener_dataplane::xdp::Mode;

use crate::hosts::{Host, SOON, index_of, mac_of, run};
use crate::kernel::kernel_engine;
use crate::{apply, count, options, session_file, skipped};

/// Client, director and server in a row. Director and server share a LAN.
struct Row {
    v6: bool,
    client: Host,
    director: Host,
    server: Host,
}

fn address(v6: bool, four: &str, six: &str) -> IpAddr {
    (if v6 { six } else { four }).parse().unwrap()
}

impl Row {
    fn set_up(v6: bool) -> Row {
        let (client, director, server) = (Host::new("client"), Host::new("director"), Host::new("server"));
        for host in [&client, &director, &server] {
            // New interfaces have IPv6 enabled and can use their addresses at once.
            host.enter(|| {
                for setting in
                    ["all/disable_ipv6", "default/disable_ipv6", "all/accept_dad", "default/accept_dad"]
                {
                    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{setting}"), "0");
                }
            });
        }
        client.cable("eth0", &director, "in0");
        director.cable("out0", &server, "eth0");
        let row = Row { v6, client, director, server };
        let bits = if v6 { 64 } else { 24 };
        let add = |address: IpAddr, interface: &str| {
            run(&format!("ip addr add {address}/{bits} dev {interface} {}", if v6 { "nodad" } else { "" }))
        };
        row.client.enter(|| {
            add(row.client_address(), "eth0");
            run(&format!("ip route add {} via {}", row.vip(), row.director_address()));
        });
        row.director.enter(|| {
            add(row.director_address(), "in0");
            add(row.own(), "out0");
        });
        row.server.enter(|| add(row.server_address(), "eth0"));
        row
    }

    fn vip(&self) -> IpAddr {
        address(self.v6, "192.0.2.100", "2001:db8::100")
    }
    fn client_address(&self) -> IpAddr {
        address(self.v6, "198.51.100.7", "2001:db8:c::7")
    }
    fn director_address(&self) -> IpAddr {
        address(self.v6, "198.51.100.1", "2001:db8:c::1")
    }
    fn own(&self) -> IpAddr {
        address(self.v6, "10.0.5.1", "2001:db8:5::1")
    }
    fn server_address(&self) -> IpAddr {
        address(self.v6, "10.0.5.2", "2001:db8:5::2")
    }

    fn tables(&self, way: Forwarding) -> Tables {
        let idle = IdleTicks {
            syn: ticks(30_000),
            tcp: ticks(900_000),
            half_closed: ticks(120_000),
            closing: ticks(10_000),
            udp: ticks(60_000),
            udp_new: ticks(30_000),
        };
        let mac = self.server.enter(|| mac_of("eth0"));
        let mut tables = Tables::default();
        self.director.enter(|| {
            let ifindex = index_of("out0");
            tables.interfaces =
                ["in0", "out0"].into_iter().map(|name| (index_of(name), mac_of(name))).collect();
            let server =
                ServerEntry { identity: 1, mac, ifindex, weight: 1, up: true, local: false, forwarding: way };
            tables.servers.insert(1, server);
        });
        let key = VipKey { address: self.vip(), port: 80, protocol: Protocol::Tcp };
        // The client reaches the VIP by a route via the director's own address.
        tables.vips.insert(
            key,
            Vip {
                id: 1,
                service: 0,
                announce: false,
                pick: Pick::Cursor,
                idle,
                own: 0,
                stateless: false,
                affinity: None,
                handoff: None,
            },
        );
        tables.rings.insert(
            0,
            Arc::new(Ring {
                order: vec![1],
                hash: vec![1; HASH_SLOTS].into(),
                previous: [].into(),
                second: [].into(),
            }),
        );
        if let Forwarding::Nat { to, .. } = way {
            let endpoint = VipKey { address: to.ip(), port: to.port(), protocol: Protocol::Tcp };
            tables.endpoints.insert(endpoint, vec![ReplyOrigin { vip: 1, server: 1 }]);
        }
        tables
    }

    fn start(&self, kind: Kind, way: Forwarding) -> Box<dyn Engine> {
        let tables = self.tables(way);
        self.director.enter(|| -> Box<dyn Engine> {
            let Kind::Kernel(mode) = kind else {
                let mut engine = PacketEngine::start(options(session_file())).unwrap();
                apply(&mut engine, tables);
                return Box::new(engine);
            };
            forward();
            Box::new(kernel_engine(Some(mode), None, tables))
        })
    }

    /// Listens on the server. Each address is used once: a child process of another test can hold a
    /// copy of a closed listener until it calls exec.
    fn listen(&self, address: SocketAddr) -> TcpListener {
        self.server.enter(|| TcpListener::bind(address).unwrap())
    }

    /// Sends data to the service and has it echoed, so that both directions carry large frames.
    fn exchange(&self, listener: &TcpListener, data: &[u8]) {
        let wait = Duration::from_secs(20);
        thread::scope(|scope| {
            let served = scope.spawn(move || {
                let (mut stream, peer) = listener.accept().unwrap();
                stream.set_read_timeout(Some(wait)).unwrap();
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                stream.write_all(&received).unwrap();
                peer
            });
            self.client.enter(|| {
                let mut stream = TcpStream::connect_timeout(&SocketAddr::new(self.vip(), 80), wait).unwrap();
                stream.set_read_timeout(Some(wait)).unwrap();
                stream.write_all(data).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut back = Vec::new();
                stream.read_to_end(&mut back).unwrap();
                assert!(
                    back == data,
                    "what comes back is what was sent: {} bytes of {}",
                    back.len(),
                    data.len()
                );
            });
            served.join().unwrap();
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Packet,
    Kernel(Mode),
}

/// Enables forwarding, which the kernel engine needs for NAT.
fn forward() {
    for version in ["ipv4", "ipv6"] {
        std::fs::write(format!("/proc/sys/net/{version}/conf/all/forwarding"), "1").unwrap();
    }
}

fn data() -> Vec<u8> {
    (0..1u32 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn nat(kind: Kind, v6: bool, source_nat: bool) {
    let row = Row::set_up(v6);
    let to = SocketAddr::new(row.server_address(), 8080);
    if !source_nat {
        row.server.enter(|| run(&format!("ip route add {} via {}", row.client_address(), row.own())));
    }
    let mut engine = row.start(kind, Forwarding::Nat { to, own: row.own(), source_nat, mtu: 1500 });
    let guarded = engine.describe().contains("guarded by nftables");
    assert_eq!(guarded, kind == Kind::Packet, "{}", engine.describe());
    let listener = row.listen(to);
    row.exchange(&listener, &data());
    let client = row.client_address();
    engine.watch(&TraceFilter { connections: false, clients: [client].into() }).unwrap();
    row.exchange(&listener, b"and once more");
    both_ways_are_told(engine.events().unwrap(), client);
    assert!(count(&*engine, Reason::Answered) > 0);
    // This engine does not trust a neighbour entry that the host did not confirm, as with IPv4
    // here. The host's stack resolves the neighbour first.
    assert!(v6 || guarded == (count(&*engine, Reason::HostStack) > 0));
    assert_eq!(count(&*engine, Reason::TooBig), 0);
    let memory = engine.memory();
    assert_eq!(memory.sessions.list(engine.now()).count(), 2);
    assert_eq!(memory.ports.taken(engine.now()), if source_nat { 2 } else { 0 });
    row.director.enter(|| engine.leave(false)).unwrap();
}

/// Checks that packets of both directions are traced.
fn both_ways_are_told(mut events: Box<dyn EventSource>, client: IpAddr) {
    let (mut there, mut back) = (0, 0);
    let end = Instant::now() + SOON;
    // The client opens the connection, and both ends close it.
    while (there < 4 || back < 3) && Instant::now() < end {
        for event in events.read(Duration::from_millis(20)).unwrap() {
            let TraceEvent::Packet(packet) = event else { panic!("{event:?}") };
            match packet.reason {
                Reason::Forwarded => {
                    assert_eq!((packet.src.ip(), packet.dst.port(), packet.server), (client, 80, 1));
                    there += 1;
                }
                Reason::Answered | Reason::HostStack => {
                    assert_eq!((packet.dst.ip(), packet.src.port()), (client, 8080));
                    back += 1;
                }
                // Messages of neighbour discovery.
                _ => assert_ne!(packet.protocol, Protocol::Tcp.number(), "{packet:?}"),
            }
        }
    }
    assert!(there >= 4 && back >= 3, "{there} packets there, {back} back");
}

#[test]
fn nat_servers_answer_through_the_director() {
    if !skipped() {
        nat(Kind::Packet, false, false);
    }
}

#[test]
fn source_nat_servers_answer_the_director() {
    if !skipped() {
        nat(Kind::Packet, false, true);
    }
}

#[test]
fn nat_is_for_ipv6_too() {
    if !skipped() {
        nat(Kind::Packet, true, false);
        nat(Kind::Packet, true, true);
    }
}

#[test]
fn nat_in_the_kernel_by_tc() {
    if !skipped() {
        for v6 in [false, true] {
            nat(Kind::Kernel(Mode::Tc), v6, false);
            nat(Kind::Kernel(Mode::Tc), v6, true);
        }
    }
}

/// Decapsulates packets on the server and passes them to the server's stack, which verifies the
/// checksums.
struct Decapsulator {
    stop: Arc<AtomicBool>,
    packets: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

const INSIDE: Mac = Mac([2, 0, 0, 0, 0, 0xde]);

impl Decapsulator {
    fn start(server: &Host, outer_len: usize) -> Decapsulator {
        let (stop, packets) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&packets));
        let sockets = server.enter(|| {
            run(&format!("ip link add inside address {INSIDE} type veth peer name outside"));
            run("ip link set inside up");
            run("ip link set outside up");
            let open = |name| LinkSocket::open(index_of(name), EtherType::All).unwrap();
            (open("eth0"), open("outside"))
        });
        let work = move || {
            let mut buffer = vec![0; 65_600];
            while !stopped.load(Relaxed) {
                let Ok((len, _)) = sockets.0.recv(&mut buffer) else {
                    thread::sleep(Duration::from_micros(200));
                    continue;
                };
                let Some(inner) = buffer[..len].get(14 + outer_len..) else { continue };
                let ethertype = match inner.first().map(|byte| byte >> 4) {
                    Some(4) => [8, 0],
                    Some(6) => [0x86, 0xdd],
                    _ => continue,
                };
                assert!(len <= 1514, "no longer than the link takes: {len}");
                counted.fetch_add(1, Relaxed);
                let frame = [&INSIDE.0[..], &[2, 0, 0, 0, 0, 1], &ethertype, inner].concat();
                let _ = sockets.1.send(&frame);
            }
        };
        Decapsulator { stop, packets, thread: Some(thread::spawn(work)) }
    }
}

impl Drop for Decapsulator {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn tunnel(v6: bool, encapsulation: Encapsulation, mark: Option<ForwardCount>) {
    let row = Row::set_up(v6);
    let (from, to) = (row.own(), row.server_address());
    let vip = row.vip();
    row.server.enter(|| {
        let bits = if v6 { 128 } else { 32 };
        run(&format!("ip addr add {vip}/{bits} dev lo"));
        // Replies go directly to the client. In this network, the director's stack forwards them.
        run(&format!("ip route add {} via {}", row.client_address(), row.own()));
    });
    row.director.enter(forward);
    let decapsulator = Decapsulator::start(
        &row.server,
        evener_core::path::rewrite::outer_len(encapsulation, to, mark.is_some()),
    );
    let engine = row.start(Kind::Packet, Forwarding::Tunnel { encapsulation, from, to, mtu: 1500, mark });
    row.exchange(&row.listen(SocketAddr::new(vip, 80)), &data());
    assert!(decapsulator.packets.load(Relaxed) > 2800, "the upload came in segments of the link's length");
    // The client received a "packet too big" message.
    assert!(count(&*engine, Reason::TooBig) > 0);
    row.director.enter(|| engine.leave(false)).unwrap();
}

#[test]
fn tunnels_carry_offloaded_segments() {
    if !skipped() {
        tunnel(false, Encapsulation::Ipip, None);
        tunnel(false, Encapsulation::Gue, None);
        tunnel(false, Encapsulation::Gue, Some(ForwardCount::Once));
    }
}

#[test]
fn tunnels_are_for_ipv6_too() {
    if !skipped() {
        tunnel(true, Encapsulation::Ipip, None);
        tunnel(true, Encapsulation::Gue, None);
        tunnel(true, Encapsulation::Gue, Some(ForwardCount::Once));
    }
}
