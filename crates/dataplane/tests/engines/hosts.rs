//! Network namespaces for tests, and helpers for their frames.

use std::fs::File;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use evener_core::net::wire::{ETHERTYPE_IPV4, Ethernet, Ipv4, Mac, TCP_ACK, Tcp};
use evener_dataplane::link::LinkSocket;
use nix::sched::{CloneFlags, setns};
use zerocopy::IntoBytes;

pub const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

/// A network namespace of one test. Dropping this value removes the namespace.
pub struct Host {
    name: String,
}

impl Host {
    pub fn new(role: &str) -> Host {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("evp{}-{}-{role}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        run(&format!("ip netns add {name}"));
        let host = Host { name };
        host.enter(|| {
            run("ip link set lo up");
            settle();
        });
        host
    }

    /// Runs `work` in the namespace.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            match inside.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Connects interface `here` of this host to interface `there` of another host with a veth
    /// pair.
    pub fn cable(&self, here: &str, other: &Host, there: &str) {
        let (ours, theirs) = (&self.name, &other.name);
        run(&format!("ip link add {here} netns {ours} type veth peer name {there} netns {theirs}"));
        self.enter(|| up(here));
        other.enter(|| up(there));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Sets sysctls that a new namespace may otherwise inherit.
pub fn settle() {
    for (setting, value) in [
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/conf/all/forwarding", "0"),
        ("ipv6/conf/all/disable_ipv6", "1"),
        ("ipv6/conf/default/disable_ipv6", "1"),
    ] {
        // The kernel may have no IPv6.
        let _ = std::fs::write(format!("/proc/sys/net/{setting}"), value);
    }
}

pub fn up(interface: &str) {
    run(&format!("ip link set {interface} up"));
}

/// Runs a command, whose words are separated by spaces.
pub fn run(command: &str) -> String {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn index_of(interface: &str) -> u32 {
    nix::net::if_::if_nametoindex(interface).unwrap()
}

pub fn mac_of(interface: &str) -> Mac {
    let text = run(&format!("ip -br link show {interface}"));
    text.split_whitespace().nth(2).unwrap().parse().unwrap()
}

/// Returns a TCP segment from [`CLIENT`] to [`VIP`] with correct checksums.
pub fn segment(from: Mac, to: Mac, port: u16, flags: u8) -> Vec<u8> {
    segment_to(80, from, to, port, flags)
}

/// Returns a TCP segment from [`CLIENT`] to port `service` of [`VIP`].
pub fn segment_to(service: u16, from: Mac, to: Mac, port: u16, flags: u8) -> Vec<u8> {
    let ethernet = Ethernet { dst: to, src: from, ethertype: ETHERTYPE_IPV4.into() };
    let mut ip = Ipv4 {
        version_ihl: 0x45,
        tos: 0,
        total_len: 40.into(),
        id: 1.into(),
        fragment: 0.into(),
        ttl: 64,
        protocol: 6,
        checksum: 0.into(),
        src: CLIENT.to_bits().into(),
        dst: VIP.to_bits().into(),
    };
    ip.checksum = (!sum(ip.as_bytes())).into();
    let mut tcp = Tcp {
        src_port: port.into(),
        dst_port: service.into(),
        seq: 1.into(),
        ack: u32::from(flags & TCP_ACK != 0).into(),
        data_offset: 0x50,
        flags,
        window: 1000.into(),
        checksum: 0.into(),
        urgent: 0.into(),
    };
    // The pseudo-header (RFC 9293, section 3.1): addresses, protocol, length.
    let pseudo = [ip.src.as_bytes(), ip.dst.as_bytes(), &[0, 6, 0, 20]].concat();
    tcp.checksum = (!sum(&[&pseudo, tcp.as_bytes()].concat())).into();
    [ethernet.as_bytes(), ip.as_bytes(), tcp.as_bytes()].concat()
}

/// Returns the one's complement sum of 16-bit words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|b| u32::from(b[0]) << 8 | u32::from(b[1])).sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns the next frame, or `None` after `wait`.
pub fn receive(socket: &LinkSocket, wait: Duration) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 65_600];
    let end = Instant::now() + wait;
    loop {
        match socket.recv(&mut buffer) {
            Ok((len, meta)) => {
                assert!(!meta.outgoing && !meta.truncated);
                buffer.truncate(len);
                return Some(buffer);
            }
            Err(_) if Instant::now() > end => return None,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Timeout for frames that must arrive.
pub const SOON: Duration = Duration::from_secs(30);
/// Waiting time for frames that must not arrive.
pub const NEVER: Duration = Duration::from_millis(200);
