//! The dialogue over a probe's connection, whichever transport carries it.

use std::net::SocketAddr;
use std::time::Duration;

use evener_core::pool::HealthKind;
use evener_core::pool::health::{Failure, REPLY_MAX, ReplyVerdict, http_request, judge_http};

/// One connection's part of a probe.
pub(super) struct ProbeDialogue<'a> {
    kind: &'a HealthKind,
    request: Vec<u8>,
    reply: Vec<u8>,
    handed_over: bool,
}

/// The bytes to send where there is no question and yet something must be sent: servers overlook an
/// empty line before a request (RFC 9112, section 2.2).
const EMPTY_LINE: &[u8] = b"\r\n";

impl<'a> ProbeDialogue<'a> {
    /// `handed_over`: the connection is given to the server with the first data, so there must be
    /// some.
    pub(super) fn new(kind: &'a HealthKind, destination: SocketAddr, handed_over: bool) -> Self {
        let least = if handed_over { EMPTY_LINE.to_vec() } else { Vec::new() };
        let request = http_request(kind, destination).unwrap_or(least);
        ProbeDialogue { kind, request, reply: Vec::new(), handed_over }
    }

    /// Whether all is well once the request has arrived.
    pub(super) fn wants_no_reply(&self) -> bool {
        *self.kind == HealthKind::Tcp
    }

    /// The server's end was reset.
    pub(super) fn reset(&self) -> Failure {
        match self.handed_over && self.reply.is_empty() {
            true => Failure::Other(
                "it resets what is handed over: `evener agent` must run there, with the same secret and clock, and \
                 something must listen; `evener doctor` there says more"
                    .to_owned(),
            ),
            false => Failure::Reset,
        }
    }

    /// The bytes to send once the connection is open. If there are none, an open connection is all
    /// that was asked for.
    pub(super) fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes in a part of the reply.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> ReplyVerdict {
        let left = REPLY_MAX.saturating_sub(self.reply.len());
        self.reply.extend_from_slice(bytes.get(..left).unwrap_or(bytes));
        judge_http(self.kind, &self.reply, false)
    }

    /// No more will come.
    pub(super) fn ended(&self) -> Result<(), Failure> {
        match judge_http(self.kind, &self.reply, true) {
            ReplyVerdict::Ok => Ok(()),
            ReplyVerdict::Failed(failure) => Err(failure),
            ReplyVerdict::More => Err(Failure::Closed),
        }
    }

    /// The time is over; `opened`: the connection had been made.
    pub(super) fn late(&self, opened: bool, timeout: Duration) -> Failure {
        Failure::Other(match (opened, self.reply.is_empty()) {
            (false, _) => format!("no answer to SYN within {timeout:?}"),
            (true, true) if self.handed_over => {
                format!("nothing came back of what was handed over, within {timeout:?}")
            }
            (true, true) => format!("connected, but no reply within {timeout:?}"),
            (true, false) => format!("connected, but the reply was not complete within {timeout:?}"),
        })
    }
}
