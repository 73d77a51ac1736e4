//! State of connections of this host's services, and connections to expect.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::time::{ClockId, clock_gettime};
use zerocopy::{FromBytes, IntoBytes};

use super::program::mapped;
use super::socket_snapshot::SocketSnapshot;
use crate::repair::{Saved, Window};
use crate::test_run;

/// Length of `struct connection` of `bpf/server/server.h`: addresses and ports of client and
/// service.
pub(super) const CONNECTION_LEN: usize = 36;
/// Length of `struct expectation`: expiry, sequence and acknowledgment, MSS, both window scales,
/// option flags, and the flag of a created socket.
pub(super) const EXPECTATION_LEN: usize = 24;
/// Offsets in `struct expectation`: sequence and acknowledgment, and the flag of a created socket.
const NUMBERS: std::ops::Range<usize> = 8..16;
const MADE: usize = 23;
/// Lifetime of an expectation. A client whose server has no room for the connection retransmits a
/// few times.
const EXPECTED_FOR: Duration = Duration::from_secs(60);
/// Largest window scale (RFC 7323, section 2.3).
const SCALE_MAX: u8 = 14;
/// Verdict of linux/pkt_cls.h. Here the verdict means that the program has filled in the frame.
const TC_ACT_OK: u32 = 0;
/// Ethernet header with an EtherType for experiments (IEEE 802), which no other protocol uses.
const FRAME_HEADER: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0xb5];

/// Reads the state of connections and announces expected ones. Clones share their state. The value
/// may outlive the [`ServerPrograms`](super::ServerPrograms).
#[derive(Clone)]
pub struct Connections {
    look: Arc<OwnedFd>,
    expected: Arc<MapHandle>,
}

/// State of a connection between a client and a service of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// No connection that is open in both directions.
    Gone,
    /// Open; the last response may be incomplete.
    Busy,
    /// Open, but the state of its response is unknown: the exchange contained more than plain
    /// requests and responses.
    Unclear,
    /// Open and idle: every response is complete.
    Idle(Idle),
}

/// Sequence numbers, agreed options and windows of an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Sequence number of the next byte from the client.
    pub receive_next: u32,
    /// Sequence number of the next byte to the client. The client may not have acknowledged all
    /// earlier bytes.
    pub send_next: u32,
    /// Maximum segment size that the client accepts, in bytes.
    pub mss: u16,
    /// Window scales of client and service; `None` without window scaling.
    pub window_scales: Option<(u8, u8)>,
    /// True with selective acknowledgments.
    pub sack: bool,
    pub timestamps: bool,
    /// Windows of both directions.
    pub window: Window,
}

impl Connections {
    pub(super) fn new(look: OwnedFd, expected: MapHandle) -> Self {
        Connections { look: Arc::new(look), expected: Arc::new(expected) }
    }

    /// Returns the state of a connection in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn state(&self, client: SocketAddr, service: SocketAddr) -> io::Result<ConnectionState> {
        self.snapshot(client, service).map(|looked| looked.judge())
    }

    /// For a connection that is gone: returns true if this host has sent nothing to the client
    /// since the state `idle`. Returns `None` if this is unknown, as long as the stack has a socket
    /// for the connection.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn ended_in_silence(
        &self,
        client: SocketAddr,
        service: SocketAddr,
        idle: &Idle,
    ) -> io::Result<Option<bool>> {
        self.snapshot(client, service).map(|looked| looked.ended_in_silence(idle.send_next))
    }

    /// Announces a connection, for about a minute. A segment with its next unread bytes then
    /// creates a socket here, as a valid SYN cookie would. The segment's sequence number is
    /// `receive_next - unread.len()`, its acknowledgment `send_next - unacked.len()`. At most one
    /// socket is created: an expectation [that was used](Connections::was_made) is not renewed.
    ///
    /// # Errors
    /// Fails if the kernel refuses. Also fails for options with which the kernel would create no
    /// connection: an MSS below the minimum of RFC 9293, or an invalid window scale.
    pub fn expect(&self, saved: &Saved) -> io::Result<()> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        let value = expectation(saved, Duration::from(now) + EXPECTED_FOR)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no connection has such terms"))?;
        if self.was_made(saved)? {
            return Ok(());
        }
        self.expected
            .update(&connection_key(saved.client, saved.service), &value, MapFlags::ANY)
            .map_err(io::Error::other)
    }

    /// True if an expectation of this connection has created a socket, also if the socket is gone.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn was_made(&self, saved: &Saved) -> io::Result<bool> {
        let key = connection_key(saved.client, saved.service);
        let known = self.expected.lookup(&key, MapFlags::ANY).map_err(io::Error::other)?;
        let is_same = |known: &Vec<u8>| known.get(NUMBERS) == Some(numbers(saved).as_slice());
        Ok(known.filter(is_same).is_some_and(|known| known.get(MADE).is_some_and(|made| *made != 0)))
    }

    fn snapshot(&self, client: SocketAddr, service: SocketAddr) -> io::Result<SocketSnapshot> {
        let snapshot = SocketSnapshot::at(connection_key(client, service));
        let frame = [FRAME_HEADER.as_slice(), snapshot.as_bytes()].concat();
        // The program fills in the frame.
        let mut out = vec![0u8; frame.len()];
        let run = test_run::run(self.look.as_fd(), &frame, &mut out)?;
        let filled = out.get(FRAME_HEADER.len()..).filter(|_| run.verdict == TC_ACT_OK);
        let answer = filled.and_then(|bytes| SocketSnapshot::read_from_bytes(bytes).ok());
        answer.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn connection_key(client: SocketAddr, service: SocketAddr) -> [u8; CONNECTION_LEN] {
    let mut key = [0; CONNECTION_LEN];
    let addresses = [client, service].map(|end| mapped(end.ip())).concat();
    let ports = [client, service].map(|end| end.port().to_be_bytes()).concat();
    key.iter_mut().zip([addresses, ports].concat()).for_each(|(byte, part)| *byte = part);
    key
}

/// Encodes an expectation; `None` if the kernel would create no connection from it
/// (`bpf_sk_assign_tcp_reqsk`).
fn expectation(saved: &Saved, until: Duration) -> Option<Vec<u8>> {
    let terms = &saved.terms;
    // Segment size that every host accepts (RFC 9293, section 3.7.1).
    let least = if saved.service.ip().to_canonical().is_ipv4() { 536 } else { 1220 };
    let (send, receive) = terms.window_scales.unwrap_or_default();
    if terms.mss < least || send > SCALE_MAX || receive > SCALE_MAX {
        return None;
    }
    let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
    let flags = [terms.window_scales.is_some(), terms.sack, terms.timestamp.is_some(), false];
    Some(
        [
            until.to_ne_bytes().as_slice(),
            &numbers(saved),
            &terms.mss.to_ne_bytes(),
            &[send, receive],
            &flags.map(u8::from),
        ]
        .concat(),
    )
}

/// Sequence number and acknowledgment of the connection's next segment.
fn numbers(saved: &Saved) -> [u8; 8] {
    let sequence = saved.receive_next.wrapping_sub(saved.unread.len() as u32);
    let acknowledgment = saved.send_next.wrapping_sub(saved.unacked.len() as u32);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&sequence.to_ne_bytes());
    bytes[4..].copy_from_slice(&acknowledgment.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::repair::AgreedOptions;

    fn saved(service: &str, mss: u16, window_scales: Option<(u8, u8)>) -> Saved {
        Saved {
            client: "198.51.100.7:258".parse().unwrap(),
            service: service.parse().unwrap(),
            receive_next: 2,
            send_next: 1,
            unacked: vec![0; 3],
            unsent: 0,
            unread: vec![0; 5],
            terms: AgreedOptions { mss, window_scales, sack: true, timestamp: None },
            window: Window::default(),
        }
    }

    #[test]
    fn keys_are_as_in_the_header() {
        let key = connection_key("198.51.100.7:258".parse().unwrap(), "[2001:db8::1]:80".parse().unwrap());
        assert_eq!(key[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 51, 100, 7]);
        assert_eq!(key[16..20], [0x20, 1, 0xd, 0xb8]);
        assert_eq!(key[31..], [1, 1, 2, 0, 80]);
    }

    #[test]
    fn expectation_matches_c_layout() {
        let value =
            expectation(&saved("192.0.2.1:80", 1400, Some((9, 7))), Duration::from_nanos(77)).unwrap();
        assert_eq!(value.len(), EXPECTATION_LEN);
        assert_eq!(value[..8], 77u64.to_ne_bytes());
        assert_eq!(value[8..12], (u32::MAX - 2).to_ne_bytes());
        assert_eq!(value[12..16], (u32::MAX - 1).to_ne_bytes());
        assert_eq!(value[16..18], 1400u16.to_ne_bytes());
        assert_eq!(value[18..], [9, 7, 1, 1, 0, 0]);
    }

    #[test]
    fn terms_that_no_connection_has_are_refused() {
        let taken =
            |service, mss, scales| expectation(&saved(service, mss, scales), Duration::ZERO).is_some();
        let (v4, v6) = ("192.0.2.1:80", "[2001:db8::1]:80");
        assert_eq!([535, 536].map(|mss| taken(v4, mss, None)), [false, true]);
        assert_eq!([1219, 1220].map(|mss| taken(v6, mss, None)), [false, true]);
        assert_eq!(
            [(14, 14), (15, 0), (0, 15)].map(|scales| taken(v4, 1460, Some(scales))),
            [true, false, false]
        );
    }
}
