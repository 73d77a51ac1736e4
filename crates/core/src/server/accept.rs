//! Selects the client's segment that becomes a connection of this host: the first with data, handed
//! off by a director. The director made the handshake without keeping state; the agreed terms are
//! in the numbers of this segment. `bpf/server/accept.h` is the copy in C; [`Host`] gives access to
//! the sockets of the host's stack.

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

/// The host's state besides the tables.
pub trait Host {
    /// Returns the socket that a segment from a client to an address of this host would reach: the
    /// connection's, else a listener.
    fn socket(&self, client: SocketAddr, own: SocketAddr) -> Socket;
    /// Returns the announced expectation for a connection, if there is one.
    fn expected(&self, ends: &FourTuple) -> Option<Expectation>;
    /// Returns the last segment that a socket was made of for these addresses and ports.
    fn made(&self, ends: &FourTuple) -> Option<Made>;
}

/// Socket for given addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// The stack has no socket.
    None,
    Listener,
    /// A connection that the listener has not accepted yet, or one of which nothing is known.
    Opening,
    /// A connection that waits for its stragglers (RFC 9293, section 3.3.2: TIME-WAIT).
    TimeWait(OldConnection),
    Connection {
        /// Sequence number of the first byte to the client.
        first: u32,
        /// Sequence number of the next byte that the process may write.
        written: u32,
        /// The numbers that it expects and has seen last.
        old: OldConnection,
    },
}

/// Numbers of an old connection with the same addresses and ports: next expected, and last seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldConnection {
    /// Sequence number of the next byte from the client.
    pub next: u32,
    /// The client's last timestamp; 0 where it has none.
    pub timestamp: u32,
}

/// A segment that a socket was made of. The server may have answered and closed that connection,
/// and requests must run only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The segment's sequence number.
    pub sequence: u32,
    /// Acknowledgment number of the segment.
    pub acknowledgment: u32,
    /// Port of the listener that accepted the socket.
    pub listener: u16,
}

/// Expected segment in the middle of a connection, which no cookie validates, with the terms agreed
/// on earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The segment's sequence number.
    pub sequence: u32,
    /// Acknowledgment number of the segment.
    pub acknowledgment: u32,
    pub terms: Terms,
    /// True if a socket was made of it. The server may have answered and closed that connection,
    /// and requests must run only once.
    pub made: bool,
}

/// The terms of a connection that the kernel is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The largest segment that the client takes, in bytes.
    pub mss: u16,
    /// Window scales announced by the client and by the director.
    pub window_scales: Option<(u8, u8)>,
    /// True for selective acknowledgments.
    pub sack: bool,
    pub timestamps: bool,
}

/// The outcome of a segment. But for [`Outcome::Clears`] the host's stack has it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The segment belongs to an existing connection.
    Known,
    /// The segment is late for an ended connection, or too early for the next one.
    Straggler,
    /// The listener at this port makes a connection of it, unless the kernel refuses.
    Connection(Terms, u16),
    /// No connection, and counted.
    Nothing(Reason),
    /// The segment is changed into a reset of the old connection, and a copy of it is received
    /// again after that. The server's stack sees no SYN, by which it would accept a reused port.
    /// Meanwhile other segments of the connection wait ([`Clearing`](super::Clearing)).
    Clears(Reason, OldConnection),
}

/// A client's segment with data, for a service that hands off connections.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    pub ends: FourTuple,
    pub payload: Payload<'a>,
    /// Timestamps: the client's and the echoed one.
    pub timestamps: Option<(u32, u32)>,
    /// Port of the socket that accepts handed off connections.
    pub listener: u16,
    /// True if turns of request and response are tracked.
    pub turns: bool,
    /// Offset of the TCP header in the frame, in bytes.
    l4: usize,
}

impl<'a> Arrived<'a> {
    /// Returns `None` for all other frames, which the host's stack handles.
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
            // With `every-host` this host may serve and read at the same time.
            listener: offer.punt_listener.filter(|_| segment.from == PUNTED).unwrap_or(listener),
            turns: offer.turns,
            l4: segment.l4,
        })
    }

    /// Decides what happens with the segment.
    pub fn outcome(&self, keys: &Keys, host: &dyn Host) -> Outcome {
        let FourTuple { client, service } = self.ends;
        let other = SocketAddr::new(service.ip(), self.listener);
        let found = match host.socket(client, service) {
            // The connection has the service's port in either case.
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
            // Only a segment that acknowledges nothing of it can be another connection's, and its
            // own first one may come again.
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

    /// Returns the agreed terms, from the cookie or an announcement. A cookie does not contain
    /// timestamps: they were agreed on if the segment has them (RFC 7323, section 3.2).
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
        // A director may have read this segment, and replay it for its client.
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

    /// The note once the kernel has made a socket of it.
    pub fn made(&self) -> Made {
        let Payload { sequence, acknowledgment, .. } = self.payload;
        Made { sequence, acknowledgment, listener: self.listener }
    }

    /// The announcement of just this segment.
    fn expectation(&self, host: &dyn Host) -> Option<Expectation> {
        let numbers = (self.payload.sequence, self.payload.acknowledgment);
        host.expected(&self.ends).filter(|expected| (expected.sequence, expected.acknowledgment) == numbers)
    }

    /// Decides about a segment whose addresses and ports belong to an old connection.
    fn resolve_conflict(&self, keys: &Keys, host: &dyn Host, old: OldConnection, reason: Reason) -> Outcome {
        let may_begin = self.agreed(keys, host).is_some();
        if may_begin && self.is_newer(old) { Outcome::Clears(reason, old) } else { Outcome::Straggler }
    }

    /// True if the segment begins a connection newer than the old one, as for a SYN in TIME-WAIT
    /// (RFC 6191, section 2).
    fn is_newer(&self, old: OldConnection) -> bool {
        let is_after = |now: u32, then: u32| now.wrapping_sub(then) as i32 > 0;
        is_after(self.payload.sequence.wrapping_sub(1), old.next)
            || self.timestamps.is_some_and(|(now, _)| old.timestamp != 0 && is_after(now, old.timestamp))
    }

    /// The state of the exchange on the connection, after this segment. The kernel has `made` a
    /// connection of it, or has not.
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

    /// The reset of the old connection that `frame`, this segment's, becomes (RFC 9293, section
    /// 3.5.2): no more than a TCP header, and by no option to be taken for old.
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
