//! Connections whose next request belongs to another server. The current server releases the
//! connection, which is then read here like a punted one.

use std::net::IpAddr;

use evener_core::path::decide::Reason;
use evener_core::path::parse::TcpHeader;
use evener_dataplane::repair::{AgreedOptions, Saved, Window};

use super::FourTuple;

/// A client's segment that the data plane held, as received.
#[derive(Clone, Debug)]
pub(crate) struct HeldSegment {
    /// Reason of the hold: the segment starts a rehandoff, or arrived during one.
    pub(crate) reason: Reason,
    pub(crate) ifindex: u32,
    /// Slot of the connection's server.
    pub(crate) server: u16,
    pub(crate) frame: Vec<u8>,
    /// True if the checksum is correct.
    pub(crate) is_whole: bool,
}

/// A connection that is to leave its server.
#[derive(Debug)]
pub(crate) struct Rehandoff {
    pub(crate) ends: FourTuple,
    /// Address of the connection's current server.
    pub(crate) at: IpAddr,
    /// The client's next segment: its header, payload and frame.
    pub(crate) header: TcpHeader,
    pub(crate) payload: Vec<u8>,
    pub(crate) held: HeldSegment,
}

/// Returns the released connection, with the client's next segment added.
pub(super) fn taken_up(moving: &Rehandoff, at_rest: Saved) -> Saved {
    let Rehandoff { header, payload, .. } = moving;
    let Saved { terms, window, .. } = at_rest;
    let scale = terms.window_scales.map_or(0, |(send, _)| send);
    let send = u32::from(header.window).checked_shl(scale.into()).unwrap_or_default();
    Saved {
        receive_next: header.sequence.wrapping_add(payload.len() as u32),
        unread: payload.clone(),
        // The server's timestamp that the client has echoed last. This host's timestamps continue
        // from that value.
        terms: AgreedOptions { timestamp: terms.timestamp.and(header.options.timestamp_echo), ..terms },
        window: Window { send_update: header.sequence, send, send_max: window.send_max.max(send), ..window },
        ..at_rest
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use evener_core::net::tcp::TcpOptions;

    use super::*;

    fn moving(timestamp_echo: Option<u32>) -> Rehandoff {
        Rehandoff {
            ends: FourTuple {
                client: "203.0.113.7:40000".parse().unwrap(),
                service: "192.0.2.100:80".parse().unwrap(),
            },
            at: [192, 0, 2, 11].into(),
            header: TcpHeader {
                sequence: u32::MAX - 1,
                acknowledgment: 9,
                flags: 0x18,
                window: 500,
                options: TcpOptions { timestamp_echo, ..TcpOptions::default() },
            },
            payload: b"GET /img/ HTTP/1.1\r\n\r\n".to_vec(),
            held: HeldSegment {
                reason: Reason::Rehandoff,
                ifindex: 1,
                server: 1,
                frame: Vec::new(),
                is_whole: true,
            },
        }
    }

    #[test]
    fn a_connection_goes_on_where_the_client_is() {
        let at_rest = Saved {
            client: "203.0.113.7:40000".parse().unwrap(),
            service: "192.0.2.100:80".parse().unwrap(),
            receive_next: u32::MAX - 1,
            send_next: 9,
            unacked: Vec::new(),
            unsent: 0,
            unread: Vec::new(),
            terms: AgreedOptions { mss: 1_440, window_scales: Some((7, 8)), sack: true, timestamp: Some(0) },
            window: Window { send_max: 65_536, receive: 65_160, receive_update: 77, ..Window::default() },
        };
        let moved = taken_up(&moving(Some(123)), at_rest.clone());
        assert_eq!((moved.receive_next, moved.send_next, moved.unread.len()), (20, 9, 22));
        assert_eq!(
            moved.terms,
            AgreedOptions { mss: 1_440, window_scales: Some((7, 8)), sack: true, timestamp: Some(123) }
        );
        assert_eq!((moved.window.send, moved.window.send_max), (64_000, 65_536));
        assert_eq!((moved.window.receive, moved.window.receive_update), (65_160, 77));
        // A connection without negotiated timestamps has none, even if the segment contains one.
        let terms = AgreedOptions { timestamp: None, window_scales: None, ..at_rest.terms };
        let silent = Saved { terms, ..at_rest.clone() };
        assert_eq!(taken_up(&moving(Some(123)), silent.clone()).terms.timestamp, None);
        assert_eq!(taken_up(&moving(None), at_rest).terms.timestamp, None);
        assert_eq!(taken_up(&moving(None), silent).window.send, 500);
    }
}
