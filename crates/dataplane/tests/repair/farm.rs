//! A client and two servers with the same service address. The client's packets go to one server or
//! to an unused MAC address.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use evener_core::net::wire::{Mac, TCP_RST};
use evener_dataplane::repair::{self, Saved};
use socket2::{SockFilter, SockRef};

use crate::hosts::{Host, mac_of, run, up};

const CLIENT: [&str; 2] = ["192.0.2.7", "2001:db8::7"];
const SERVICE: [&str; 2] = ["192.0.2.100", "2001:db8::100"];
/// No host has this MAC, so frames to it are lost.
const UNUSED: Mac = Mac([2, 0, 0, 0, 0, 0x99]);
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Farm {
    pub client: Host,
    servers: [Host; 2],
    /// Listener on the first server.
    pub listener: TcpListener,
    macs: [Mac; 2],
    service: SocketAddr,
    client_address: SocketAddr,
}

impl Farm {
    pub fn set_up(v6: bool) -> Farm {
        let client = Host::new("client");
        let servers = ["a", "b"].map(Host::new);
        client.enter(|| {
            enable_v6();
            run("ip link add br0 type bridge");
            up("br0");
            address("br0", CLIENT);
        });
        let client_mac = client.enter(|| mac_of("br0"));
        let macs = [0, 1].map(|number: usize| {
            let (server, port) = (&servers[number], format!("port{number}"));
            client.cable(&port, server, "eth0");
            client.enter(|| run(&format!("ip link set {port} master br0")));
            server.enter(|| {
                enable_v6();
                address("eth0", SERVICE);
                neighbours("eth0", CLIENT, client_mac);
                mac_of("eth0")
            })
        });
        // A bridge otherwise takes its MAC from its ports.
        client.enter(|| run(&format!("ip link set br0 address {client_mac}")));
        let at =
            |addresses: [&str; 2], port| SocketAddr::new(addresses[usize::from(v6)].parse().unwrap(), port);
        let (client_address, service) = (at(CLIENT, 1025), at(SERVICE, 80));
        let listener = servers[0].enter(|| TcpListener::bind(service).unwrap());
        let farm = Farm { client, servers, listener, macs, service, client_address };
        farm.lead_to(0);
        farm
    }

    pub fn server(&self, number: usize) -> &Host {
        &self.servers[number]
    }

    /// Sends the client's packets to this server from now on.
    pub fn lead_to(&self, server: usize) {
        self.client.enter(|| neighbours("br0", SERVICE, self.macs[server]));
    }

    /// Sends the client's packets to an unused MAC from now on.
    pub fn hold(&self) {
        self.client.enter(|| neighbours("br0", SERVICE, UNUSED));
    }

    /// Writes an IPv4 sysctl on every host.
    pub fn set(&self, setting: &str, value: &str) {
        for host in [&self.client, &self.servers[0], &self.servers[1]] {
            host.enter(|| std::fs::write(format!("/proc/sys/net/ipv4/{setting}"), value).unwrap());
        }
    }

    /// Returns a client address with a port that the kernel does not choose by itself.
    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    pub fn service(&self) -> SocketAddr {
        self.service
    }

    /// Opens a connection to the first server. Returns the client's socket and the server's.
    pub fn connection(&self) -> (TcpStream, TcpStream) {
        self.connection_to(self.service, &self.listener)
    }

    /// Opens a connection to another address, on which `listener` listens.
    pub fn connection_to(&self, service: SocketAddr, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = self.client.enter(|| TcpStream::connect_timeout(&service, PATIENCE).unwrap());
        let (server, _) = listener.accept().unwrap();
        for socket in [&client, &server] {
            patient(socket);
        }
        (client, server)
    }

    /// Restores a connection on a server and sends the client's packets there.
    pub fn restore(&self, saved: &Saved, server: usize) -> TcpStream {
        let socket = self.server(server).enter(|| repair::restore(saved).unwrap());
        self.lead_to(server);
        patient(&socket);
        socket
    }

    /// Moves a connection to a server.
    pub fn give(&self, socket: TcpStream, already_read: &[u8], server: usize) -> TcpStream {
        self.hold();
        let saved = repair::save(socket, already_read).unwrap();
        self.restore(&saved, server)
    }
}

/// Makes the client's socket ignore resets, for example from a host that no longer has the
/// connection.
pub fn drop_resets(client: &TcpStream) {
    let instruction = |code: u32, jt, jf, k| SockFilter::new(code as u16, jt, jf, k);
    let filter = [
        // The offset of the flags byte (RFC 9293, section 3.1). A socket filter sees the TCP
        // segment only.
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 13),
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, TCP_RST.into()),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
    ];
    SockRef::from(client).attach_filter(&filter).unwrap();
}

/// Sets timeouts, so that a stuck test fails instead of hanging.
pub fn patient(socket: &TcpStream) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
}

/// Writes on one socket and reads the same bytes from the other.
pub fn pass(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    let mut read = vec![0; bytes.len()];
    to.read_exact(&mut read).unwrap();
    assert!(read == bytes, "what arrives is what was sent");
}

/// Checks that both directions still work and that both ends can close the connection.
pub fn finish(client: TcpStream, server: TcpStream) {
    pass(&client, &server, b"one more question");
    pass(&server, &client, b"one more answer");
    drop(server);
    let mut rest = Vec::new();
    (&client).read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [], "nothing came twice");
}

/// Returns bytes without repeated patterns.
pub fn data(len: usize, seed: u32) -> Vec<u8> {
    let words = (0..len as u32 / 4 + 1).flat_map(|n| (n ^ seed).wrapping_mul(2_654_435_761).to_le_bytes());
    words.take(len).collect()
}

fn address(interface: &str, [v4, v6]: [&str; 2]) {
    run(&format!("ip addr add {v4}/24 dev {interface}"));
    run(&format!("ip addr add {v6}/64 dev {interface} nodad"));
}

fn neighbours(interface: &str, addresses: [&str; 2], mac: Mac) {
    for address in addresses {
        run(&format!("ip neigh replace {address} lladdr {mac} nud permanent dev {interface}"));
    }
}

fn enable_v6() {
    for setting in ["all", "default"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{setting}/disable_ipv6"), "0").unwrap();
    }
}
