//! Full-size packets to a server: test if the path has the MTU of the first link. A narrower link
//! drops packets with DF set. If ICMP is dropped too, no sender learns of it, and transfers hang
//! after their first segments (RFC 2923, section 2.1).

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use evener_core::net::Encapsulation;
use evener_core::net::checksum;
use evener_core::net::wire::{IPV4_DONT_FRAGMENT, Ipv4, Udp, protocol};
use evener_core::node::path_probe::{NONCE_LEN, ProbeMessage, SIZE_MIN};
use evener_core::node::secret::Key;
use socket2::{Domain, Protocol, Socket, Type};
use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32};

use super::outer::ProbeTunnel;
use crate::runtime::secret::random;

/// Smallest MTU that is searched for (RFC 791: every host accepts such a packet).
const LEAST: u16 = 576;
/// Number of sizes tried at a time.
const AT_ONCE: u16 = 16;
/// Number of times that each size is sent, pause between them, and total time to wait for answers.
const SENDINGS: u32 = 2;
const BETWEEN: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_millis(600);

/// A path to measure, over IPv4 only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizePath {
    pub(crate) from: Ipv4Addr,
    /// Own address of the server.
    pub(crate) server: Ipv4Addr,
    /// Service address and encapsulation, if packets go through a tunnel.
    pub(crate) tunnel: Option<(Ipv4Addr, Encapsulation)>,
    /// MTU of the first link, or the service's own MTU if that is smaller.
    pub(crate) mtu: u16,
    /// Port of the agent, and the key that authenticates its answers.
    pub(crate) agent: Option<(u16, Key)>,
}

/// Result of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathSize {
    /// The path has the first link's MTU.
    Whole,
    /// Length of the longest packet that arrives, in bytes.
    Narrow(u16),
    /// No packet was answered.
    Unknown,
}

/// Measures a path by UDP to the agent, or by ICMP echo, through the tunnel if there is one. Blocks
/// for some seconds at most.
///
/// # Errors
/// If this host can't send full-size packets.
pub(crate) fn measure(path: &SizePath) -> io::Result<PathSize> {
    let by_agent = match path.agent {
        Some((port, key)) => search(path.mtu, &mut AgentEcho::open(path, port, key)?)?,
        None => PathSize::Unknown,
    };
    match by_agent {
        PathSize::Unknown => search(path.mtu, &mut IcmpEcho::open(path)?),
        known => Ok(known),
    }
}

/// Method to find out which packets arrive.
trait SizeEcho {
    /// Sends a packet of `len` bytes, including all headers.
    fn send(&mut self, len: u16) -> io::Result<()>;
    /// Waits for an answer. Returns the length of the packet that it is for, or `None` at the
    /// deadline.
    fn receive(&mut self, until: Instant) -> io::Result<Option<u16>>;
}

/// Searches for the longest packet that arrives. Tries some sizes at once, and then sizes between
/// the longest size that arrived and the next tried size.
fn search(mtu: u16, echo: &mut impl SizeEcho) -> io::Result<PathSize> {
    let (mut arrives, mut too_long) = (None, None);
    loop {
        let (low, high) =
            (arrives.map_or(LEAST.min(mtu), |len| len + 1), too_long.map_or(mtu, |len: u16| len - 1));
        if low > high {
            break;
        }
        let step = ((high - low) / (AT_ONCE - 1)).max(1);
        let mut sizes: BTreeSet<u16> = (low..=high).step_by(usize::from(step)).collect();
        sizes.insert(high);
        let found = attempt(&sizes, echo)?;
        match (found, arrives) {
            (None, None) => return Ok(PathSize::Unknown),
            (Some(len), _) => {
                arrives = Some(len);
                too_long = sizes.range(len + 1..).next().copied().or(too_long);
            }
            (None, Some(_)) => too_long = sizes.first().copied(),
        }
        if arrives == Some(mtu) {
            return Ok(PathSize::Whole);
        }
    }
    Ok(arrives.map_or(PathSize::Unknown, PathSize::Narrow))
}

/// Sends packets of these sizes, and returns the longest that is answered.
fn attempt(sizes: &BTreeSet<u16>, echo: &mut impl SizeEcho) -> io::Result<Option<u16>> {
    let began = Instant::now();
    let mut answered = BTreeSet::new();
    for sending in 1..=SENDINGS {
        for len in sizes.difference(&answered) {
            echo.send(*len)?;
        }
        let until = if sending < SENDINGS { began + BETWEEN * sending } else { began + PATIENCE };
        while answered.len() < sizes.len() {
            let Some(len) = echo.receive(until)? else { break };
            answered.extend(Some(len).filter(|len| sizes.contains(len)));
        }
    }
    Ok(answered.last().copied())
}

/// Returns the remaining time as a socket timeout. `None` at the deadline.
fn remaining(until: Instant) -> Option<Duration> {
    until.checked_duration_since(Instant::now()).filter(|time| *time > Duration::from_millis(1))
}

fn header(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: usize) -> Vec<u8> {
    let mut header = Ipv4 {
        version_ihl: 0x45,
        tos: 0,
        total_len: U16::new((size_of::<Ipv4>() + payload) as u16),
        id: U16::new(0),
        fragment: U16::new(IPV4_DONT_FRAGMENT),
        ttl: 64,
        protocol,
        checksum: U16::new(0),
        src: U32::new(from.to_bits()),
        dst: U32::new(to.to_bits()),
    };
    header.checksum.set(checksum::finish(checksum::add(0, header.as_bytes())));
    header.as_bytes().to_vec()
}

/// Opens a socket that sends whole packets with their headers (raw(7)).
fn raw_sender() -> io::Result<Socket> {
    const WITH_HEADERS: i32 = 255;
    Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(WITH_HEADERS)))
}

/// Sends a whole packet. A packet longer than this host's MTU is lost.
fn send_raw(socket: &Socket, packet: &[u8], to: Ipv4Addr) -> io::Result<()> {
    match socket.send_to(packet, &SocketAddr::from((to, 0)).into()) {
        Err(error) if error.raw_os_error() == Some(nix::libc::EMSGSIZE) => Ok(()),
        other => other.map(drop),
    }
}

/// Echo by a server's agent, which answers every UDP packet that the farm's key authenticates.
struct AgentEcho {
    sender: Socket,
    receiver: UdpSocket,
    from: Ipv4Addr,
    to: Ipv4Addr,
    ports: (u16, u16),
    key: Key,
    request: [u8; NONCE_LEN],
}

impl AgentEcho {
    fn open(path: &SizePath, port: u16, key: Key) -> io::Result<AgentEcho> {
        let receiver = UdpSocket::bind((path.from, 0))?;
        let own = receiver.local_addr()?.port();
        let mut request = [0; NONCE_LEN];
        random(&mut request)?;
        let (from, to) = (path.from, path.server);
        Ok(AgentEcho { sender: raw_sender()?, receiver, from, to, ports: (own, port), key, request })
    }
}

impl SizeEcho for AgentEcho {
    fn send(&mut self, len: u16) -> io::Result<()> {
        let headers = size_of::<Ipv4>() + size_of::<Udp>();
        let len = len.saturating_sub(headers as u16).max(SIZE_MIN);
        let payload = ProbeMessage::Size { request: self.request, len }.seal(&self.key);
        let udp = Udp {
            src_port: U16::new(self.ports.0),
            dst_port: U16::new(self.ports.1),
            len: U16::new((size_of::<Udp>() + payload.len()) as u16),
            // The tag protects more than a checksum (RFC 768: 0 means none).
            checksum: U16::new(0),
        };
        let ip = header(self.from, self.to, protocol::UDP, size_of::<Udp>() + payload.len());
        send_raw(&self.sender, &[&ip[..], udp.as_bytes(), &payload].concat(), self.to)
    }

    fn receive(&mut self, until: Instant) -> io::Result<Option<u16>> {
        let mut bytes = [0; 256];
        while let Some(time) = remaining(until) {
            self.receiver.set_read_timeout(Some(time))?;
            // A closed port is reported as an error of an earlier datagram.
            let Ok((len, _)) = self.receiver.recv_from(&mut bytes) else { continue };
            let message = ProbeMessage::open(&self.key, bytes.get(..len).unwrap_or_default());
            if let Some(ProbeMessage::Arrived { request, len }) = message
                && request == self.request
            {
                return Ok(Some(len + (size_of::<Ipv4>() + size_of::<Udp>()) as u16));
            }
        }
        Ok(None)
    }
}

/// Echo by a server's kernel, with ICMP (RFC 792).
struct IcmpEcho {
    sender: Socket,
    receiver: Socket,
    path: SizePath,
    tunnel: Option<ProbeTunnel>,
    to: Ipv4Addr,
    identifier: u16,
}

const ICMP_LEN: usize = 8;
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;

impl IcmpEcho {
    fn open(path: &SizePath) -> io::Result<IcmpEcho> {
        let receiver = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
        receiver.bind(&SocketAddr::from((path.from, 0)).into())?;
        let mut identifier = [0; 2];
        random(&mut identifier)?;
        let tunnel = path.tunnel.map(|(_, encapsulation)| {
            ProbeTunnel::new(encapsulation, IpAddr::V4(path.from), IpAddr::V4(path.server))
        });
        Ok(IcmpEcho {
            sender: raw_sender()?,
            receiver,
            path: *path,
            tunnel,
            to: path.tunnel.map_or(path.server, |(vip, _)| vip),
            identifier: u16::from_be_bytes(identifier),
        })
    }

    /// Builds an echo request of `len` bytes, including all headers.
    fn packet(&self, len: usize) -> Vec<u8> {
        let [high, low] = self.identifier.to_be_bytes();
        let [len_high, len_low] = (len as u16).to_be_bytes();
        // The sequence number is the length with all headers.
        let mut icmp = vec![ECHO, 0, 0, 0, high, low, len_high, len_low];
        let outer = self.tunnel.as_ref().map_or(0, |tunnel| tunnel.headers(&[0x45]).len());
        icmp.resize(len.saturating_sub(outer + size_of::<Ipv4>()).max(ICMP_LEN), 0);
        let sum = checksum::finish(checksum::add(0, &icmp)).to_be_bytes();
        icmp.splice(2..4, sum);
        let inner = [header(self.path.from, self.to, protocol::ICMP, icmp.len()), icmp].concat();
        match &self.tunnel {
            Some(tunnel) => [tunnel.headers(&inner), inner].concat(),
            None => inner,
        }
    }
}

impl SizeEcho for IcmpEcho {
    fn send(&mut self, len: u16) -> io::Result<()> {
        send_raw(&self.sender, &self.packet(usize::from(len)), self.path.server)
    }

    fn receive(&mut self, until: Instant) -> io::Result<Option<u16>> {
        use std::io::Read;
        let mut bytes = vec![0; 65_535];
        while let Some(time) = remaining(until) {
            self.receiver.set_read_timeout(Some(time))?;
            let Ok(len) = (&self.receiver).read(&mut bytes) else { continue };
            let packet = bytes.get(..len).unwrap_or_default();
            let header_len = usize::from(packet.first().copied().unwrap_or_default() & 0xf) * 4;
            let from =
                packet.get(12..16).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(Ipv4Addr::from);
            if let Some([ECHO_REPLY, 0, _, _, high, low, len_high, len_low]) =
                packet.get(header_len..header_len + ICMP_LEN)
                && u16::from_be_bytes([*high, *low]) == self.identifier
                && from == Some(self.to)
            {
                return Ok(Some(u16::from_be_bytes([*len_high, *len_low])));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A path that forwards packets up to a size, and loses the first packet of each size.
    struct Narrow {
        mtu: u16,
        seen: BTreeSet<u16>,
        answers: VecDeque<u16>,
        sent: usize,
    }

    impl SizeEcho for Narrow {
        fn send(&mut self, len: u16) -> io::Result<()> {
            self.sent += 1;
            if !self.seen.insert(len) && len <= self.mtu {
                self.answers.push_back(len);
            }
            Ok(())
        }

        fn receive(&mut self, _: Instant) -> io::Result<Option<u16>> {
            Ok(self.answers.pop_front())
        }
    }

    #[test]
    fn the_longest_packet_that_arrives_is_found() {
        for (mtu, expected) in [
            (1_500, PathSize::Whole),
            (9_000, PathSize::Whole),
            (1_400, PathSize::Narrow(1_400)),
            (1_499, PathSize::Narrow(1_499)),
            (576, PathSize::Narrow(576)),
            (577, PathSize::Narrow(577)),
            (500, PathSize::Unknown),
        ] {
            let mut path = Narrow { mtu, seen: BTreeSet::new(), answers: VecDeque::new(), sent: 0 };
            assert_eq!(search(1_500, &mut path).unwrap(), expected, "{mtu}");
            assert!(path.sent <= 4 * 2 * 18, "{} packets", path.sent);
        }
        let mut large = Narrow { mtu: 8_952, seen: BTreeSet::new(), answers: VecDeque::new(), sent: 0 };
        assert_eq!(search(9_000, &mut large).unwrap(), PathSize::Narrow(8_952));
    }
}
