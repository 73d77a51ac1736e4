//! A host with services, listeners and connections, in the kernel and in the core's description.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use evener_core::net::Protocol;
use evener_core::net::checksum;
use evener_core::net::wire::protocol;
use evener_core::path::cookie::{FourTuple, Keys};
use evener_core::path::seed::Seed;
use evener_core::path::tables::VipKey;
use evener_core::server::{Expectation, Host, Made, Offer, OldConnection, Socket, Tables, Terms};
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_dataplane::repair::{self, Saved, Window};
use nix::sched::{CloneFlags, unshare};

use crate::frames::{link, packet_v4, packet_v6};
use crate::world::OWN;

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that a connection has written and that its client has not acknowledged.
pub const WRITTEN: u32 = 60_000;

/// Ports of the services: with a listener on the same port, with one on another port, with a punt
/// listener, without a socket, and without handoff.
pub const PLAIN: u16 = 80;
pub const ELSEWHERE: u16 = 81;
pub const WITH_PUNT: u16 = 82;
pub const DEAD: u16 = 83;
pub const NOT_HANDED: u16 = 84;
const LISTENERS: [u16; 4] = [PLAIN, 8_081, WITH_PUNT, 8_082];

pub fn service(v6: bool, port: u16) -> SocketAddr {
    let address: IpAddr = if v6 { "2001:db8:7::a".parse().unwrap() } else { [198, 51, 100, 10].into() };
    SocketAddr::new(address, port)
}

/// A client on another host that does not answer.
pub fn client(v6: bool, port: u16) -> SocketAddr {
    let address: IpAddr = if v6 { "2001:db8:c::7".parse().unwrap() } else { [203, 0, 113, 7].into() };
    SocketAddr::new(address, port)
}

/// A client on this host.
fn local(v6: bool, port: u16) -> SocketAddr {
    let address: IpAddr = if v6 { "2001:db8:7::7".parse().unwrap() } else { [198, 51, 100, 7].into() };
    SocketAddr::new(address, port)
}

/// Returns the cookie keys as of `ago_s` seconds ago.
pub fn keys_of(ago_s: u64) -> Keys {
    Keys { key: Seed(15, 16), epoch: 15_625 - (ago_s / 64) as u32 }
}

pub fn tables(mss: Option<u16>) -> Tables {
    let offers = [
        (PLAIN, Offer { mss, listener: Some(PLAIN), turns: true, punt_listener: None, is_marked: false }),
        (ELSEWHERE, Offer { listener: Some(8_081), ..Offer::default() }),
        (
            WITH_PUNT,
            Offer {
                listener: Some(WITH_PUNT),
                punt_listener: Some(8_082),
                turns: true,
                mss,
                is_marked: false,
            },
        ),
        (
            DEAD,
            Offer {
                listener: Some(DEAD),
                punt_listener: Some(8_083),
                turns: true,
                mss: None,
                is_marked: false,
            },
        ),
        (NOT_HANDED, Offer { mss, ..Offer::default() }),
    ];
    let both = [false, true].into_iter().flat_map(|v6| {
        offers.map(|(port, offer)| {
            (VipKey { address: service(v6, port).ip(), port, protocol: Protocol::Tcp }, offer)
        })
    });
    Tables { services: both.collect(), ..Tables::default() }
}

fn ip(command: &str) {
    let output = Command::new("ip").args(command.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates a network namespace for this thread, with addresses and a link to clients that do not
/// exist.
pub fn set_up() {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    for setting in ["all", "default", "lo"] {
        let path = format!("/proc/sys/net/ipv6/conf/{setting}/disable_ipv6");
        let _ = fs::write(path, "0");
    }
    ip("link set lo up");
    ip(&format!("link add out0 address {OWN} type veth peer name out1"));
    ip("link set out0 up");
    ip("link set out1 up");
    for v6 in [false, true] {
        let (family, bits) = if v6 { ("-6", 128) } else { ("-4", 32) };
        for own in [service(v6, 0), local(v6, 0)] {
            ip(&format!("{family} addr add {}/{bits} dev lo", own.ip()));
        }
        ip(&format!("{family} route add {}/{bits} dev out0", client(v6, 0).ip()));
        ip(&format!("{family} neigh add {} lladdr 02:00:00:00:09:09 dev out0", client(v6, 0).ip()));
    }
}

/// Opens listeners that live for the whole test: a child process of another thread can hold a copy
/// of a closed listener, and its port, for a moment.
pub fn listen() -> Vec<TcpListener> {
    let both = [false, true].into_iter();
    both.flat_map(|v6| LISTENERS.map(|port| TcpListener::bind(service(v6, port)).unwrap())).collect()
}

/// The sockets of a host, each with the core's description.
pub struct Sockets {
    known: Vec<(FourTuple, Socket)>,
    pub expected: Vec<(FourTuple, Expectation)>,
    _connections: Vec<TcpStream>,
}

fn saved(client: SocketAddr, service: SocketAddr, unacked: usize) -> Saved {
    let terms = repair::AgreedOptions { mss: 1400, window_scales: Some((7, 7)), sack: true, timestamp: None };
    Saved {
        client,
        service,
        receive_next: 5_000,
        send_next: 90_000 + unacked as u32,
        unacked: vec![0x41; unacked],
        unsent: 0,
        unread: vec![],
        terms,
        window: Window {
            send_update: 4_999,
            send: 65_535,
            send_max: 65_535,
            receive: 65_535,
            receive_update: 5_000,
        },
    }
}

impl Sockets {
    /// Creates, per IP version, connections that are established, opening, in TIME_WAIT and
    /// announced.
    /// Client ports start at `first_port`. The caller must keep the result of [`listen`].
    pub fn open(first_port: u16) -> Sockets {
        let both = [false, true];
        let mut sockets = Sockets { known: vec![], expected: vec![], _connections: vec![] };
        for v6 in both {
            sockets.connect(v6, first_port);
            sockets.begin(v6, first_port + 1);
            sockets.end(v6, first_port + 2);
            sockets.announce(v6, first_port + 3);
        }
        sockets
    }

    fn connect(&mut self, v6: bool, port: u16) {
        let ends = FourTuple { client: client(v6, port), service: service(v6, PLAIN) };
        let saved = saved(ends.client, ends.service, WRITTEN as usize);
        self._connections.push(repair::restore(&saved).unwrap());
        let old = OldConnection { next: saved.receive_next, timestamp: 0 };
        let first = saved.send_next - WRITTEN;
        self.known.push((ends, Socket::Connection { first, written: saved.send_next, old }));
    }

    /// Opens a connection with a SYN on the clients' link.
    fn begin(&mut self, v6: bool, port: u16) {
        let ends = FourTuple { client: client(v6, port), service: service(v6, PLAIN) };
        let syn = Tcp { sequence: 1, acknowledgment: 0, flags: 2, options: &[], data: &[] };
        let index = nix::net::if_::if_nametoindex("out1").unwrap();
        LinkSocket::open(index, EtherType::All).unwrap().send(&syn.frame(&ends)).unwrap();
        wait_for("syn-recv", &ends);
        self.known.push((ends, Socket::Opening));
    }

    /// Creates both ends on this host. The server's end closes first.
    fn end(&mut self, v6: bool, port: u16) {
        let ends = FourTuple { client: local(v6, port), service: service(v6, PLAIN) };
        let ours = saved(ends.client, ends.service, 0);
        let (receive_next, send_next) = (ours.send_next, ours.receive_next);
        let window = Window { send_update: send_next - 1, receive_update: receive_next, ..ours.window };
        let theirs = Saved {
            client: ends.service,
            service: ends.client,
            receive_next,
            send_next,
            window,
            ..ours.clone()
        };
        let [server, client] = [&ours, &theirs].map(|end| repair::restore(end).unwrap());
        drop(server);
        let closed = (&mut &client as &mut dyn std::io::Read).read(&mut [0]).unwrap();
        assert_eq!(closed, 0, "the server has closed");
        drop(client);
        wait_for("time-wait", &ends);
        // The client's FIN takes one sequence number.
        let old = OldConnection { next: ours.receive_next + 1, timestamp: 0 };
        self.known.push((ends, Socket::TimeWait(old)));
    }

    fn announce(&mut self, v6: bool, port: u16) {
        let ends = FourTuple { client: client(v6, port), service: service(v6, PLAIN) };
        let Saved { receive_next: sequence, send_next: acknowledgment, .. } =
            saved(ends.client, ends.service, 0);
        let terms = Terms { mss: 1400, window_scales: Some((7, 7)), sack: true, timestamps: false };
        self.expected.push((ends, Expectation { sequence, acknowledgment, terms, made: false }));
    }

    /// Returns the expected connections, for announcing them to the programs.
    pub fn announced(&self) -> impl Iterator<Item = Saved> {
        self.expected.iter().map(|(ends, _)| saved(ends.client, ends.service, 0))
    }
}

/// Waits until the kernel has a socket in an ss(8) state.
fn wait_for(state: &str, ends: &FourTuple) {
    let port = format!(":{} ", ends.client.port());
    let end = Instant::now() + PATIENCE;
    loop {
        let output = Command::new("ss").args(["-Htan", "state", state]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).replace('\n', " \n");
        if text.contains(&port) && text.contains(&ends.client.ip().to_string()) {
            return;
        }
        assert!(Instant::now() < end, "no socket of {ends:?} in {state}: {text}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Host for Sockets {
    fn socket(&self, client: SocketAddr, own: SocketAddr) -> Socket {
        let ends = FourTuple { client, service: own };
        let known = self.known.iter().find(|(known, _)| *known == ends).map(|(_, socket)| *socket);
        let is_own = [false, true].iter().any(|v6| service(*v6, 0).ip() == own.ip());
        let listens = is_own && LISTENERS.contains(&own.port());
        known.unwrap_or(if listens { Socket::Listener } else { Socket::None })
    }

    fn expected(&self, ends: &FourTuple) -> Option<Expectation> {
        self.expected.iter().find(|(known, _)| known == ends).map(|(_, expected)| *expected)
    }

    fn made(&self, _ends: &FourTuple) -> Option<Made> {
        None
    }
}

/// Description of a TCP segment.
pub struct Tcp<'a> {
    pub sequence: u32,
    pub acknowledgment: u32,
    pub flags: u8,
    /// The length is a multiple of four bytes.
    pub options: &'a [u8],
    pub data: &'a [u8],
}

impl Tcp<'_> {
    pub fn frame(&self, ends: &FourTuple) -> Vec<u8> {
        self.between(ends.client, ends.service)
    }

    pub fn between(&self, src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
        let ports = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
        let numbers = [self.sequence.to_be_bytes(), self.acknowledgment.to_be_bytes()].concat();
        let words = 5 + self.options.len() / 4;
        let rest = [(words as u8) << 4, self.flags, 0x75, 0x30, 0, 0, 0, 0];
        let mut tcp = [&ports, &numbers, &rest[..], self.options, self.data].concat();
        let pseudo = checksum::pseudo_header(src.ip(), dst.ip(), protocol::TCP, tcp.len());
        let sum = checksum::finish(checksum::add(pseudo, &tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        link(match src.is_ipv6() {
            true => packet_v6(src.ip(), dst.ip(), protocol::TCP, 60, &tcp),
            false => packet_v4(src.ip(), dst.ip(), protocol::TCP, 60, (1, 0x4000), &tcp),
        })
    }
}
