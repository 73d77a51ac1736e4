//! Client with a handmade TCP: segments in any order, windows of any size, and resets at any time.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use etherparse::{PacketBuilder, SlicedPacket, TcpHeader, TcpOptionElement, TransportSlice};
use evener_core::net::wire::Mac;
use evener_dataplane::link::{EtherType, LinkSocket, tcp_filter, tcp_filter_v6};
use nix::net::if_::if_nametoindex;

use crate::farm::Farm;
use crate::harness::wait::LONG;
use crate::network::host::Host;

/// Ports of handmade connections. A firewall rule hides their packets from the host's own TCP.
const PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;
const AGAIN: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_micros(200);
const TTL: u8 = 64;
/// Maximum segment size that the client accepts, in bytes.
const MSS: u16 = 1400;
/// Window of a client that reads at once.
pub const WINDOW: u16 = 64_000;
const FRAME_MAX: usize = 65_536;

/// Host from which handmade connections start.
#[derive(Debug)]
pub struct HandmadeTcp {
    host: Host,
    gateway: Mac,
}

/// End of a connection by the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Fin,
    Reset,
}

/// Handmade connection. Dropping it sends nothing.
#[derive(Debug)]
pub struct Call {
    link: LinkSocket,
    from: (Mac, SocketAddr),
    to: (Mac, SocketAddr),
    isn: u32,
    /// Sequence number of the next expected byte.
    next: u32,
    /// Number of bytes that the service has acknowledged.
    acked: usize,
    expected: Vec<Sent>,
    received: Vec<u8>,
    end: Option<End>,
    /// True if the client has reset the connection.
    gone: bool,
    /// Window in every segment, in bytes.
    pub window: u16,
    /// True to retransmit unacknowledged segments, which is the default.
    pub repeats: bool,
}

/// Sent segment with data or a FIN.
#[derive(Clone, Debug)]
struct Sent {
    /// Number of bytes before the segment.
    at: usize,
    bytes: Vec<u8>,
    fin: bool,
}

/// Returns an initial sequence number, which grows by one in four microseconds (RFC 9293, section
/// 3.4.1). So a connection's numbers are above the previous connection's from the same port.
fn clock() -> Result<u32> {
    Ok((SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() / 4) as u32)
}

impl HandmadeTcp {
    /// Reserves ports of a client for handmade connections.
    pub fn on(farm: &Farm, host: &Host) -> Result<HandmadeTcp> {
        let (first, last) = (PORTS.start(), PORTS.end());
        let rules = format!(
            "table inet by_hand\ndelete table inet by_hand\ntable inet by_hand {{\n chain coming {{\n  \
             type filter hook input priority -300\n  tcp dport {first}-{last} drop\n }}\n}}\n"
        );
        let file = host.write("by-hand.nft", &rules)?;
        host.run(&["nft", "-f", &file.to_string_lossy()])?;
        // nor does the host select one of them itself
        host.netns().sysctl(&[("ipv4/ip_local_reserved_ports", &format!("{first}-{last}"))])?;
        Ok(HandmadeTcp { host: host.clone(), gateway: farm.gateway_of(host).parse()? })
    }

    /// Sends SYNs from a port, by index, until the service answers. The answer is not acknowledged
    /// yet.
    pub fn call(&self, port: u16, service: SocketAddr) -> Result<Call> {
        self.call_with(port, service, WINDOW)
    }

    /// Like [`HandmadeTcp::call`], with another initial window.
    pub fn call_with(&self, port: u16, service: SocketAddr, window: u16) -> Result<Call> {
        let port = PORTS.start() + port;
        ensure!(PORTS.contains(&port), "Port {port} is none of those that are made by hand");
        let interface = self.host.interfaces().first().context("The host has no interface")?;
        let address = interface.address_in(crate::network::family::Family::of(service.ip()));
        let from = SocketAddr::new(address, port);
        let filter = match (service, from) {
            (SocketAddr::V4(service), SocketAddr::V4(from)) => tcp_filter(*service.ip(), from),
            (SocketAddr::V6(service), SocketAddr::V6(from)) => tcp_filter_v6(*service.ip(), from),
            _ => bail!("{from} and {service} are not of one family"),
        };
        let open = || -> Result<LinkSocket> {
            let index = if_nametoindex(interface.name.as_str())?;
            Ok(LinkSocket::open_filtered(index, EtherType::All, &filter)?)
        };
        let mut call = Call {
            link: self.host.enter(open)??,
            from: (interface.mac.parse()?, from),
            to: (self.gateway, service),
            isn: clock()?,
            next: 0,
            acked: 0,
            expected: Vec::new(),
            received: Vec::new(),
            end: None,
            gone: false,
            window,
            repeats: true,
        };
        call.greet()?;
        Ok(call)
    }
}

impl Call {
    pub fn client(&self) -> SocketAddr {
        self.from.1
    }

    /// Sends bytes as one segment, `at` bytes behind the start of the data. The segment is
    /// retransmitted until it is acknowledged, while the caller [listens](Call::listen).
    pub fn send_data(&mut self, at: usize, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.count(Sent { at, bytes: bytes.as_ref().to_vec(), fin: false })
    }

    /// Sends bytes once, without retransmission.
    pub fn repeat(&self, at: usize, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.send(at, |header| header.psh = true, bytes.as_ref())
    }

    /// Sends the connection's SYN again, like a delayed duplicate.
    pub fn answer_syn_late(&self) -> Result<()> {
        self.send_header(TcpHeader { syn: true, ..self.header(self.isn) }, &[])
    }

    /// Sends bytes once, in a segment with a wrong checksum.
    pub fn corrupt(&self, at: usize, bytes: impl AsRef<[u8]>) -> Result<()> {
        let mut frame = self.frame(self.answer(at)?, bytes.as_ref())?;
        let checksum = frame.len() - bytes.as_ref().len() - 4;
        frame[checksum] ^= 1;
        Ok(self.link.send(&frame)?)
    }

    /// Sends bytes once, like an attacker who knows addresses and ports but no sequence numbers.
    pub fn forge(&self, bytes: impl AsRef<[u8]>) -> Result<()> {
        let header = self.answer(0)?;
        let sequence_number = header.sequence_number ^ 1 << 30;
        let acknowledgment_number = header.acknowledgment_number ^ 1 << 30;
        self.send_header(TcpHeader { sequence_number, acknowledgment_number, ..header }, bytes.as_ref())
    }

    /// Sends a FIN behind `at` bytes.
    pub fn finish(&mut self, at: usize) -> Result<()> {
        self.count(Sent { at, bytes: Vec::new(), fin: true })
    }

    /// Acknowledges the received bytes, in a segment without data at offset `at`.
    pub fn acknowledge(&self, at: usize) -> Result<()> {
        self.send(at, |_| (), &[])
    }

    /// Resets the connection behind `at` bytes. Nothing is retransmitted afterwards. Later segments
    /// are refused while the caller calls [`Call::refuse`].
    pub fn reset(&mut self, at: usize) -> Result<()> {
        self.expected.clear();
        self.gone = true;
        self.send(at, |header| header.rst = true, &[])
    }

    /// Answers segments that arrived after the reset like a host without the connection (RFC 9293,
    /// section 3.5.2).
    pub fn refuse(&mut self) -> Result<()> {
        while self.hear()? {}
        Ok(())
    }

    /// Acknowledges and retransmits until `enough` is true. Returns an error after a timeout.
    pub fn listen(&mut self, enough: impl Fn(&Call) -> bool) -> Result<()> {
        let begun = Instant::now();
        let mut again = begun + AGAIN;
        loop {
            while !enough(self) && self.hear()? {}
            let now = Instant::now();
            if enough(self) {
                return Ok(());
            }
            if self.end == Some(End::Reset) || now > begun + LONG {
                let heard = String::from_utf8_lossy(&self.received);
                bail!("{:?} behind {} bytes: {:.300?}", self.end, self.received.len(), heard);
            }
            if self.repeats && now > again {
                again = now + AGAIN;
                self.say_again()?;
            }
            thread::sleep(POLL);
        }
    }

    /// All bytes that the service has sent so far.
    pub fn received(&self) -> &[u8] {
        &self.received
    }

    /// Number of bytes that the service has acknowledged.
    pub fn acked(&self) -> usize {
        self.acked
    }

    /// End of the connection by the service; `None` while open.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    fn greet(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < LONG {
            self.send_header(TcpHeader { syn: true, ..self.header(self.isn) }, &[])?;
            let sent = Instant::now();
            while sent.elapsed() < AGAIN {
                match self.receive()? {
                    Some((header, _)) if header.syn && header.ack => {
                        self.next = header.sequence_number.wrapping_add(1);
                        return Ok(());
                    }
                    Some(_) => {}
                    None => thread::sleep(POLL),
                }
            }
        }
        bail!("{} answered no SYN of {}", self.to.1, self.from.1)
    }

    fn count(&mut self, said: Sent) -> Result<()> {
        self.put(&said)?;
        self.expected.push(said);
        Ok(())
    }

    fn put(&self, said: &Sent) -> Result<()> {
        self.send(said.at, |header| (header.psh, header.fin) = (!said.fin, said.fin), &said.bytes)
    }

    /// Retransmits in the order of the bytes, like a TCP.
    fn say_again(&mut self) -> Result<()> {
        let acked = self.acked;
        self.expected.retain(|said| said.at + said.bytes.len() + usize::from(said.fin) > acked);
        self.expected.sort_by_key(|said| (said.at, said.fin));
        self.expected.iter().try_for_each(|said| self.put(said))
    }

    /// Handles one segment of the service. Returns false if none has arrived.
    fn hear(&mut self) -> Result<bool> {
        let Some((header, payload)) = self.receive()? else { return Ok(false) };
        if header.rst {
            self.end = Some(End::Reset);
            return Ok(true);
        }
        let acked = header.acknowledgment_number.wrapping_sub(self.isn.wrapping_add(1));
        if self.gone {
            self.send(usize::try_from(acked)?, |header| header.rst = true, &[])?;
            return Ok(true);
        }
        if header.ack {
            // a smaller number is old
            self.acked = self.acked.max(usize::try_from(acked.cast_signed()).unwrap_or_default());
        }
        if header.sequence_number == self.next {
            self.next = self.next.wrapping_add(u32::try_from(payload.len())?).wrapping_add(header.fin.into());
            self.received.extend(&payload);
            if header.fin {
                self.end = Some(End::Fin);
            }
        }
        if !payload.is_empty() || header.fin || header.syn {
            self.acknowledge(self.end_of_said())?;
        }
        Ok(true)
    }

    /// Offset behind all sent data.
    fn end_of_said(&self) -> usize {
        let ends = self.expected.iter().map(|said| said.at + said.bytes.len() + usize::from(said.fin));
        ends.max().unwrap_or_default().max(self.acked)
    }

    fn receive(&self) -> Result<Option<(TcpHeader, Vec<u8>)>> {
        let mut frame = vec![0; FRAME_MAX];
        let len = match self.link.recv(&mut frame) {
            Ok((len, _)) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let sliced = SlicedPacket::from_ethernet(frame.get(..len).unwrap_or_default())?;
        match sliced.transport {
            Some(TransportSlice::Tcp(tcp)) if tcp.source_port() == self.to.1.port() => {
                Ok(Some((tcp.to_header(), tcp.payload().to_vec())))
            }
            _ => Ok(None),
        }
    }

    fn send(&self, at: usize, change: impl FnOnce(&mut TcpHeader), payload: &[u8]) -> Result<()> {
        let mut header = self.answer(at)?;
        change(&mut header);
        self.send_header(header, payload)
    }

    /// Returns a header at offset `at` that acknowledges the received bytes.
    fn answer(&self, at: usize) -> Result<TcpHeader> {
        let seq = self.isn.wrapping_add(1).wrapping_add(u32::try_from(at)?);
        Ok(TcpHeader { ack: true, acknowledgment_number: self.next, ..self.header(seq) })
    }

    fn header(&self, seq: u32) -> TcpHeader {
        TcpHeader::new(self.from.1.port(), self.to.1.port(), seq, self.window)
    }

    fn send_header(&self, header: TcpHeader, payload: &[u8]) -> Result<()> {
        Ok(self.link.send(&self.frame(header, payload)?)?)
    }

    fn frame(&self, mut header: TcpHeader, payload: &[u8]) -> Result<Vec<u8>> {
        if header.syn {
            header.set_options(&[TcpOptionElement::MaximumSegmentSize(MSS)])?;
        }
        let ethernet = PacketBuilder::ethernet2(self.from.0.0, self.to.0.0);
        let packet = match (self.from.1, self.to.1) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                ethernet.ipv4(from.ip().octets(), to.ip().octets(), TTL)
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                ethernet.ipv6(from.ip().octets(), to.ip().octets(), TTL)
            }
            (from, to) => bail!("{from} and {to} are not of one family"),
        };
        let mut frame = Vec::new();
        packet.tcp_header(header).write(&mut frame, payload)?;
        Ok(frame)
    }
}
