//! Dialogue of a probe over its connection, for any transport.

use std::net::SocketAddr;
use std::time::Duration;

use evener_core::pool::HealthKind;
use evener_core::pool::health::Failure;
use evener_core::pool::reply::{REPLY_MAX, ReplyVerdict, http_request, judge_http};

use super::tls::TlsSession;

/// Maximum size of a client's handshake or request in TLS.
const RECORD_MAX: usize = 8 * 1024;

/// State of a probe's dialogue.
pub(super) struct ProbeDialogue<'a> {
    kind: &'a HealthKind,
    /// Request that is not sent yet.
    request: Vec<u8>,
    tls: Option<TlsSession>,
    reply: Vec<u8>,
    handed_over: bool,
}

/// Data for a probe without a request, if the connection must carry data. Servers ignore an empty
/// line before a request (RFC 9112, section 2.2).
const EMPTY_LINE: &[u8] = b"\r\n";

impl<'a> ProbeDialogue<'a> {
    /// With `handed_over`, the server gets the connection with the first data, so the probe must
    /// send data.
    ///
    /// # Errors
    /// If TLS can't be set up on this host.
    pub(super) fn new(
        kind: &'a HealthKind,
        destination: SocketAddr,
        handed_over: bool,
    ) -> Result<Self, Failure> {
        let least = if handed_over { EMPTY_LINE.to_vec() } else { Vec::new() };
        let mut request = http_request(kind, destination).unwrap_or(least);
        let tls = match kind {
            HealthKind::Http { tls: Some(settings), .. } => {
                Some(TlsSession::new(settings, destination, &core::mem::take(&mut request))?)
            }
            _ => None,
        };
        Ok(ProbeDialogue { kind, request, tls, reply: Vec::new(), handed_over })
    }

    /// True if the probe succeeds once the request has arrived.
    pub(super) fn wants_no_reply(&self) -> bool {
        *self.kind == HealthKind::Tcp
    }

    /// Returns the failure if the server resets the connection.
    pub(super) fn reset(&self) -> Failure {
        match self.handed_over && self.reply.is_empty() {
            true => Failure::Other(
                "it resets handed-off connections: `evener agent` must run there with the same secret and clock, and a program must listen; run `evener doctor` there"
                    .to_owned(),
            ),
            false => Failure::Reset,
        }
    }

    /// True if an open connection is enough.
    pub(super) fn wants_nothing(&self) -> bool {
        self.request.is_empty() && self.tls.is_none()
    }

    /// Returns the maximum number of bytes sent at once.
    pub(super) fn outgoing_max(&self) -> usize {
        if self.tls.is_some() { RECORD_MAX } else { self.request.len() }
    }

    /// Returns the bytes to send once the connection is open, and after each part of the reply.
    pub(super) fn outgoing(&mut self) -> Vec<u8> {
        match &mut self.tls {
            Some(tls) => tls.outgoing(),
            None => core::mem::take(&mut self.request),
        }
    }

    /// Handles a part of the reply.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> ReplyVerdict {
        let opened = self.tls.as_mut().map(|tls| tls.receive(bytes)).transpose();
        let opened = match opened {
            Ok(opened) => opened,
            Err(failure) => return ReplyVerdict::Failed(failure),
        };
        let bytes = opened.as_deref().unwrap_or(bytes);
        let left = REPLY_MAX.saturating_sub(self.reply.len());
        self.reply.extend_from_slice(bytes.get(..left).unwrap_or(bytes));
        judge_http(self.kind, &self.reply, false)
    }

    /// Judges the reply once the server has closed the connection.
    pub(super) fn ended(&self) -> Result<(), Failure> {
        match judge_http(self.kind, &self.reply, true) {
            ReplyVerdict::Ok => Ok(()),
            ReplyVerdict::Failed(failure) => Err(failure),
            ReplyVerdict::More => Err(Failure::Closed),
        }
    }

    /// Returns the failure at the timeout. `opened` is true if the connection was established.
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
