//! A server with its programs, and a link that carries a director's frames to it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use evener_core::net::Protocol;
use evener_core::net::wire::{Mac, TCP_RST};
use evener_core::path::cookie::{FourTuple, Keys, Schedule};
use evener_core::path::seed::Seed;
use evener_core::path::tables::VipKey;
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_dataplane::now_ticks;
use evener_dataplane::server::{self, AttachPoints, Offer, Reason, ServerPrograms, Tables};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::call::{Call, Offered, Received};
use crate::hosts::{CLIENT, Host, NEVER, SOON, VIP, index_of, mac_of, receive, run};

pub const PORT: u16 = 80;
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x100);
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x7, 0, 0, 0, 0, 7);
pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n";
/// Options that current clients offer.
pub const USUAL: Offered = Offered { mss: 1460, scale: Some(9) };

/// The values of `v6`: IPv4, then IPv6.
pub const FAMILIES: [bool; 2] = [false, true];

pub struct World {
    pub server: ServerPrograms,
    pub keys: Keys,
    pub ifindex: u32,
    /// Rewrites a frame in the way the director forwards it.
    pub way: fn(&[u8]) -> Vec<u8>,
    link: LinkSocket,
    macs: (Mac, Mac),
    director: Host,
}

/// Runs `work` on a server. `listener` is the port of the service's listener.
pub fn on_a_server(listener: Option<u16>, work: impl FnOnce(&mut World) + Send) {
    let director = Host::new("director");
    let host = Host::new("server");
    director.cable("out0", &host, "in0");
    host.enter(|| {
        let mut world = World::set_up(director, listener);
        work(&mut world);
        world.server.leave(false).unwrap();
    });
}

impl World {
    fn set_up(director: Host, listener: Option<u16>) -> World {
        let (link, client_mac) =
            director.enter(|| (LinkSocket::open(index_of("out0"), EtherType::All).unwrap(), mac_of("out0")));
        for setting in ["all", "lo", "in0"] {
            set(&format!("ipv6/conf/{setting}/disable_ipv6"), "0");
        }
        run(&format!("ip addr add {VIP}/32 dev lo"));
        run(&format!("ip addr add {VIP6}/128 dev lo nodad"));
        run(&format!("ip route add {CLIENT}/32 dev in0"));
        run(&format!("ip -6 route add {CLIENT6}/128 dev in0"));
        run(&format!("ip neigh add {CLIENT} lladdr {client_mac} dev in0"));
        run(&format!("ip neigh add {CLIENT6} lladdr {client_mac} dev in0"));
        let keys = Keys { key: Seed(15, 16), epoch: 15 };
        let mut world = World {
            server: ServerPrograms::start(server::directory().unwrap()).unwrap(),
            keys,
            ifindex: index_of("in0"),
            way: <[u8]>::to_vec,
            link,
            macs: (client_mac, mac_of("in0")),
            director,
        };
        world.serve(listener);
        world.believe(&keys);
        world
    }

    /// Loads tables with the service into the programs.
    pub fn serve(&mut self, listener: Option<u16>) {
        let places = AttachPoints { accept: [self.ifindex].into(), ..AttachPoints::default() };
        self.server.apply(&self.tables(listener), &places).unwrap();
    }

    /// Sets the cookie keys that the programs accept.
    pub fn believe(&self, keys: &Keys) {
        self.server.set_cookie_keys(&Schedule::fixed(keys, now_ticks())).unwrap();
    }

    /// Makes the programs track request and response of each connection, too.
    pub fn follow(&mut self) {
        let at = [self.ifindex];
        let places = AttachPoints { accept: at.into(), answers: at.into(), ..AttachPoints::default() };
        let mut tables = self.tables(Some(PORT));
        tables.services.values_mut().for_each(|offer| offer.turns = true);
        self.server.apply(&tables, &places).unwrap();
    }

    /// Raises the MTU so that segments longer than any recorded segment fit.
    pub fn widen(&self) {
        run("ip link set in0 mtu 9000");
        self.director.enter(|| run("ip link set out0 mtu 9000"));
    }

    pub fn tables(&self, listener: Option<u16>) -> Tables {
        let key = |address: IpAddr| VipKey { address, port: PORT, protocol: Protocol::Tcp };
        let offer = Offer { listener, ..Offer::default() };
        let services = BTreeMap::from([VIP.into(), VIP6.into()].map(|address| (key(address), offer)));
        Tables { services, ..Tables::default() }
    }

    /// Returns a client's connection whose SYN the director has answered.
    pub fn call(&self, v6: bool, port: u16) -> Call {
        self.call_with(v6, port, 1_000, USUAL)
    }

    pub fn call_with(&self, v6: bool, port: u16, isn: u32, offered: Offered) -> Call {
        let client = if v6 { CLIENT6.into() } else { IpAddr::from(CLIENT) };
        let ends =
            FourTuple { client: SocketAddr::new(client, port), service: SocketAddr::new(vip(v6), PORT) };
        Call::new(&self.keys, ends, isn, offered)
    }

    pub fn send(&self, call: &Call, segment: &[u8]) {
        let frame = call.frame(self.macs.0, self.macs.1, segment);
        self.link.send(&(self.way)(&frame)).unwrap();
    }

    /// Sends segments back to back.
    pub fn send_all(&self, call: &Call, segments: &[Vec<u8>]) {
        let frames =
            segments.iter().map(|segment| (self.way)(&call.frame(self.macs.0, self.macs.1, segment)));
        frames.collect::<Vec<_>>().iter().for_each(|frame| self.link.send(frame).unwrap());
    }

    /// Makes the server receive frames on another CPU than the sending CPU, if there are two. The
    /// frames then wait in a queue, like frames that a network card delivers in one batch.
    pub fn receive_on_another_cpu(&self) {
        let (own, other) = (0, 1);
        if std::thread::available_parallelism().is_ok_and(|count| count.get() > other) {
            let mut cpus = CpuSet::new();
            cpus.set(own).unwrap();
            sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
            // Inside a network namespace, only a new mount of sysfs shows its interfaces.
            let script = format!(
                "mount -t sysfs of-here /sys && echo {:x} >/sys/class/net/in0/queues/rx-0/rps_cpus",
                1 << other
            );
            let done = Command::new("unshare").args(["--mount", "sh", "-c", &script]).status().unwrap();
            assert!(done.success());
        }
    }

    /// Returns the server's next segment on this connection, or `None` after `wait`.
    pub fn receive(&self, call: &Call, wait: Duration) -> Option<Received> {
        let end = Instant::now() + wait;
        loop {
            let frame = receive(&self.link, end.saturating_duration_since(Instant::now()))?;
            if let Some(received) = call.received(&frame) {
                return Some(received);
            }
        }
    }

    /// Returns the server's next segment with any of these flags.
    pub fn receive_flags(&self, call: &Call, flags: u8) -> Received {
        loop {
            let received = self.receive(call, SOON).expect("a segment with these flags");
            if received.flags & flags != 0 {
                return received;
            }
        }
    }

    /// Returns the server's next segment with data. Skips retransmissions of the previous
    /// connection between the same addresses and ports, by their acknowledgment number.
    pub fn receive_data(&self, call: &Call) -> Received {
        loop {
            let received = self.receive(call, SOON).expect("a segment with data");
            assert_eq!(received.flags & TCP_RST, 0, "{received:?}");
            if !received.data.is_empty() && received.ack < 500_000 {
                return received;
            }
        }
    }

    /// Sends a segment and checks that the server answers with a reset and opens no connection.
    pub fn is_reset(&self, call: &Call, segment: &[u8], listener: &TcpListener) {
        self.send(call, segment);
        let received = self.receive(call, SOON).expect("a reset");
        assert_eq!(received.flags & TCP_RST, TCP_RST, "{received:?}");
        assert!(accept(listener, NEVER).is_none());
    }

    /// Opens a connection with its first data segment and reads the data from the accepted socket.
    pub fn open(&self, call: &Call, listener: &TcpListener) -> TcpStream {
        self.send(call, &call.first(REQUEST));
        let (mut stream, peer) = accept(listener, SOON).expect("a connection");
        assert_eq!((peer, stream.local_addr().unwrap()), (call.ends.client, call.ends.service));
        assert_eq!(read(&mut stream, REQUEST.len()), REQUEST);
        stream
    }

    /// Writes data on the server and checks the segment that the client receives.
    pub fn reply(&self, call: &Call, stream: &mut TcpStream, text: &[u8]) {
        stream.write_all(text).unwrap();
        let received = self.receive_data(call);
        assert_eq!(
            (received.seq, received.ack, received.data.as_slice()),
            (1, 1 + REQUEST.len() as u32, text)
        );
    }

    pub fn count(&self, reason: Reason) -> u64 {
        self.server.counters().unwrap()[&reason]
    }

    /// Returns the reasons with a count above zero.
    pub fn counts(&self) -> Vec<(Reason, u64)> {
        self.server.counters().unwrap().into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

pub fn vip(v6: bool) -> IpAddr {
    if v6 { VIP6.into() } else { VIP.into() }
}

pub fn set(setting: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{setting}"), value).unwrap();
}

/// Returns a listener as soon as the port is free. A child process of another test can hold a copy
/// of the previous listener until it calls exec.
pub fn listen(v6: bool, port: u16) -> TcpListener {
    let end = Instant::now() + SOON;
    loop {
        match TcpListener::bind((vip(v6), port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                thread::sleep(Duration::from_millis(1));
            }
            bound => return bound.unwrap(),
        }
    }
}

/// Accepts the next connection. Returns the connection and the client's address.
pub fn accept(listener: &TcpListener, wait: Duration) -> Option<(TcpStream, SocketAddr)> {
    listener.set_nonblocking(true).unwrap();
    let end = Instant::now() + wait;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(SOON)).unwrap();
                return Some((stream, peer));
            }
            Err(_) if Instant::now() > end => return None,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

pub fn read(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Returns the number of sockets in this namespace in an ss(8) state.
pub fn sockets(state: &str) -> usize {
    run(&format!("ss -Htan state {state}")).lines().count()
}

/// Waits until `count` sockets are in a state.
pub fn wait_for(state: &str, count: usize) {
    until(|| sockets(state) == count);
}

#[track_caller]
pub fn until(holds: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "it never is so");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the kernel's details of the one established connection.
pub fn knowledge() -> String {
    run("ss -Htino state established")
}
