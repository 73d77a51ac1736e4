//! Creates connections of this host from clients' segments that a director hands off. The director
//! made the handshake without keeping state. The client's first segment with data creates the
//! connection, since the numbers in the segment contain the negotiated options.
//! `bpf/server/accept.h` is the copy in C; [`Host`] gives access to the sockets of the host's
//! stack.

use core::net::SocketAddr;

use super::exchange::{Exchange, Payload};
use super::segment::TcpSegment;
use super::{Reason, Tables};
use crate::net::Protocol;
use crate::net::checksum::{self, ChecksumDelta};
use crate::net::tcp::{TCP_LEN, TcpOptions};
use crate::net::wire::{ETHERNET_LEN, TCP_ACK, TCP_RST, TCP_SYN, TCP_URG, protocol};
use crate::path::cookie::{self, FourTuple, Keys, RCV_WSCALE, REPLAYED};
use crate::path::mark::PUNTED;
use crate::path::tables::VipKey;

/// State of the host that decisions depend on besides the tables.
pub trait Host {
    /// Returns the socket that a segment from a client to an address of this host would reach. This
    /// is the socket of the connection, or else a listener.
    fn socket(&self, client: SocketAddr, own: SocketAddr) -> Socket;
    /// Returns the expectation announced for a connection, if there is one.
    fn expected(&self, ends: &FourTuple) -> Option<Expectation>;
    /// Returns the last segment from which a socket was created for these addresses and ports.
    fn made(&self, ends: &FourTuple) -> Option<Made>;
}

/// Socket for given addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// The stack has no socket.
    None,
    Listener,
    /// A connection that the listener has not accepted yet, or whose state is unknown.
    Opening,
    /// A connection in TIME-WAIT (RFC 9293, section 3.3.2).
    TimeWait(OldConnection),
    Connection {
        /// Sequence number of the first byte to the client.
        first: u32,
        /// Sequence number of the next byte that the process may write.
        written: u32,
        /// Numbers with which the numbers of a new connection are compared.
        old: OldConnection,
    },
}

/// Numbers of an old connection with the same addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldConnection {
    /// Sequence number of the next byte from the client.
    pub next: u32,
    /// Last timestamp of the client; 0 if the connection has no timestamps.
    pub timestamp: u32,
}

/// A segment from which a socket was created. The server may have answered and closed the
/// connection. The same segment must not create another connection, since requests must run only
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The segment's sequence number.
    pub sequence: u32,
    /// Acknowledgment number of the segment.
    pub acknowledgment: u32,
    /// Port of the listener that accepted the socket.
    pub listener: u16,
}

/// A segment that is expected for a connection that moves to this host. No cookie validates the
/// segment, since the options were negotiated earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The segment's sequence number.
    pub sequence: u32,
    /// Acknowledgment number of the segment.
    pub acknowledgment: u32,
    pub terms: Terms,
    /// True if a socket was created from the segment. The segment must not create another socket:
    /// see [`Made`].
    pub made: bool,
}

/// Negotiated options of a connection to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Maximum segment size of the client, in bytes.
    pub mss: u16,
    /// Window scales of the client and of the director; `None` if window scaling was not
    /// negotiated.
    pub window_scales: Option<(u8, u8)>,
    /// True if both sides support selective acknowledgments.
    pub sack: bool,
    pub timestamps: bool,
}

/// Decision about a segment. The host's stack receives the segment unchanged, except with
/// [`Outcome::Clears`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The segment belongs to an existing connection.
    Known,
    /// The segment is late for an ended connection, or too early for the next connection.
    Straggler,
    /// The listener at this port creates a connection from the segment, unless the kernel refuses.
    Connection(Terms, u16),
    /// The segment creates no connection. The reason is counted.
    Nothing(Reason),
    /// The segment is changed into a reset of the old connection, and a copy of the segment is
    /// received after the reset. The stack would accept a reused port only by a SYN, which it does
    /// not see. Until the copy is received, other segments of the connection wait
    /// ([`ClearedConnection`](super::ClearedConnection)).
    Clears(Reason, OldConnection),
}

/// A client's segment with data, for a service whose connections are handed off.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    pub ends: FourTuple,
    pub payload: Payload<'a>,
    /// Timestamp of the client, and the timestamp that it echoes.
    pub timestamps: Option<(u32, u32)>,
    /// Port of the socket that accepts handed off connections.
    pub listener: u16,
    /// True if requests and responses of the connection are tracked ([`Exchange`]).
    pub turns: bool,
    /// Offset of the TCP header in the frame, in bytes.
    l4: usize,
}

impl<'a> Arrived<'a> {
    /// Reads a frame. `None` if the frame is no such segment, so that the host's stack handles it.
    pub fn read(tables: &Tables, frame: &'a [u8]) -> Option<Arrived<'a>> {
        let segment = TcpSegment::read(frame)?;
        let data = frame.get(segment.l4_end..segment.end).filter(|data| !data.is_empty())?;
        let flags = segment.tcp.flags;
        if flags & (TCP_SYN | TCP_RST | TCP_ACK) != TCP_ACK {
            return None;
        }
        let (address, port) = (segment.dst.ip(), segment.dst.port());
        let offer = tables.services.get(&VipKey { address, port, protocol: Protocol::Tcp })?;
        let listener = offer.listener?;
        let options = TcpOptions::read(frame.get(segment.l4 + TCP_LEN..segment.l4_end)?);
        Some(Arrived {
            ends: FourTuple { client: segment.src, service: segment.dst },
            payload: Payload {
                sequence: segment.tcp.seq.get(),
                acknowledgment: segment.tcp.ack.get(),
                urgent: flags & TCP_URG != 0,
                data,
            },
            timestamps: options.timestamp.zip(options.timestamp_echo),
            // In an every-host farm this host may be a server, and may also read requests as a
            // director does.
            listener: offer.punt_listener.filter(|_| segment.from == PUNTED).unwrap_or(listener),
            turns: offer.turns,
            l4: segment.l4,
        })
    }

    /// Decides about the segment.
    pub fn outcome(&self, keys: &Keys, host: &dyn Host) -> Outcome {
        let FourTuple { client, service } = self.ends;
        let other = SocketAddr::new(service.ip(), self.listener);
        let found = match host.socket(client, service) {
            // The connection has the service's port, even if its listener has another one.
            Socket::None | Socket::Listener if other != service => match host.socket(client, other) {
                Socket::Listener => Socket::Listener,
                _ => Socket::None,
            },
            found => found,
        };
        match found {
            Socket::None => Outcome::Nothing(Reason::NoListener),
            Socket::Listener => match self.agreed(keys, host) {
                Some(terms) => Outcome::Connection(terms, self.listener),
                None => Outcome::Nothing(Reason::BadCookie),
            },
            Socket::Opening => Outcome::Known,
            Socket::TimeWait(old) => self.resolve_conflict(keys, host, old, Reason::TimeWaitEvicted),
            // A segment that acknowledges bytes of this connection belongs to the connection. It
            // may be the connection's first segment again.
            Socket::Connection { first, written, old } => {
                let acknowledges =
                    self.payload.acknowledgment.wrapping_sub(first) <= written.wrapping_sub(first);
                if acknowledges {
                    Outcome::Known
                } else {
                    self.resolve_conflict(keys, host, old, Reason::StaleEvicted)
                }
            }
        }
    }

    /// Returns the negotiated options, from the cookie or from an expectation. A cookie does not
    /// encode timestamps. They were negotiated if the segment has them (RFC 7323, section 3.2).
    fn agreed(&self, keys: &Keys, host: &dyn Host) -> Option<Terms> {
        let has_timestamps = self.timestamps.is_some();
        let Payload { sequence, acknowledgment, .. } = self.payload;
        let expectation = self.expectation(host);
        let was_made = host.made(&self.ends) == Some(self.made());
        if was_made || expectation.is_some_and(|expectation| expectation.made) {
            return None;
        }
        let echo = self.timestamps.map(|(_, echo)| echo);
        let echoed = cookie::EchoedNumbers { sequence, acknowledgment, echo };
        // A director may have read this segment, and replayed it for its client.
        if let Some(cookie) = keys.check(&self.ends, &echoed, REPLAYED) {
            return Some(Terms {
                mss: cookie.mss(self.ends.service.is_ipv6()),
                window_scales: cookie.window_scale.map(|scale| (scale, RCV_WSCALE)),
                sack: cookie.window_scale.is_some(),
                timestamps: has_timestamps,
            });
        }
        let Expectation { terms, .. } = expectation?;
        Some(Terms { timestamps: terms.timestamps && has_timestamps, ..terms })
    }

    /// Returns the record of this segment, which the caller stores once the kernel has created a
    /// socket from the segment.
    pub fn made(&self) -> Made {
        let Payload { sequence, acknowledgment, .. } = self.payload;
        Made { sequence, acknowledgment, listener: self.listener }
    }

    /// Returns the expectation, if this is exactly the expected segment.
    fn expectation(&self, host: &dyn Host) -> Option<Expectation> {
        let numbers = (self.payload.sequence, self.payload.acknowledgment);
        host.expected(&self.ends).filter(|expected| (expected.sequence, expected.acknowledgment) == numbers)
    }

    /// Decides about a segment whose addresses and ports belong to an old connection.
    fn resolve_conflict(&self, keys: &Keys, host: &dyn Host, old: OldConnection, reason: Reason) -> Outcome {
        let may_begin = self.agreed(keys, host).is_some();
        if may_begin && self.is_newer(old) { Outcome::Clears(reason, old) } else { Outcome::Straggler }
    }

    /// True if the segment begins a connection that is newer than the old one. The rule is that for
    /// a SYN in TIME-WAIT (RFC 6191, section 2).
    fn is_newer(&self, old: OldConnection) -> bool {
        let is_after = |now: u32, then: u32| now.wrapping_sub(then) as i32 > 0;
        is_after(self.payload.sequence.wrapping_sub(1), old.next)
            || self.timestamps.is_some_and(|(now, _)| old.timestamp != 0 && is_after(now, old.timestamp))
    }

    /// Returns the state of the exchange after this segment. `made` is true if the kernel has
    /// created a connection from the segment.
    pub fn follow(&self, outcome: Outcome, made: bool, known: Option<Exchange>) -> Option<Exchange> {
        match outcome {
            Outcome::Connection(..) if self.turns && made => Some(Exchange::begin(&self.payload)),
            Outcome::Known if self.turns => known.map(|mut exchange| {
                exchange.follow_request(&self.payload);
                exchange
            }),
            _ => known,
        }
    }

    /// Changes `frame`, which contains this segment, into a reset of the old connection (RFC 9293,
    /// section 3.5.2). The reset has no TCP options, so no timestamp makes it look old.
    pub fn reset<'f>(&self, frame: &'f mut [u8], old: OldConnection) -> &'f [u8] {
        let FourTuple { client, service } = self.ends;
        let end = self.l4 + TCP_LEN;
        let Some(frame) = frame.get_mut(..end) else { return &[] };
        let (ip, tcp) = frame.split_at_mut(self.l4);
        // The ports stay unchanged.
        tcp[4..8].copy_from_slice(&old.next.to_be_bytes());
        tcp[8..].fill(0);
        tcp[12] = (TCP_LEN as u8 / 4) << 4;
        tcp[13] = TCP_RST;
        let pseudo = checksum::pseudo_header(client.ip(), service.ip(), protocol::TCP, TCP_LEN);
        let sum = checksum::finish(checksum::add(pseudo, tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        if client.is_ipv6() {
            ip[ETHERNET_LEN + 4..ETHERNET_LEN + 6].copy_from_slice(&(TCP_LEN as u16).to_be_bytes());
        } else if let Some(header) = ip.get_mut(ETHERNET_LEN..).filter(|header| header.len() >= 20) {
            let len = ((header.len() + TCP_LEN) as u16).to_be_bytes();
            let change = ChecksumDelta::of(&header[2..4], &len);
            header[2..4].copy_from_slice(&len);
            let sum = change.applied(u16::from_be_bytes([header[10], header[11]]));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    }
}
