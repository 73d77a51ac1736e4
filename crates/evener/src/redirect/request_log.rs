//! Records of single requests: a line of the access log, and for those who follow a client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::frontend::{Frontend, RequestOutcome};
use crate::record::{Recorder, RedirectRecord};

/// The way to the recorder.
#[derive(Clone)]
pub(crate) struct RequestLog {
    recorder: Arc<Recorder>,
}

/// A request that was answered.
pub(super) struct AnsweredRequest<'a> {
    pub(super) client: SocketAddr,
    /// The head, as it came.
    pub(super) head: &'a [u8],
    /// The member's number, if one was chosen.
    pub(super) member: Option<usize>,
    pub(super) status: u16,
    pub(super) outcome: RequestOutcome,
    /// When it was seen.
    pub(super) began: Instant,
}

impl RequestLog {
    pub(crate) fn new(recorder: Arc<Recorder>) -> RequestLog {
        RequestLog { recorder }
    }

    /// Whether anybody wants to know of requests.
    pub(super) fn is_wanted(&self) -> bool {
        self.recorder.is_wanted()
    }

    /// Tells of a request, if anybody wants to know.
    pub(super) fn record(&self, front: &Frontend, answered: &AnsweredRequest<'_>) {
        if !self.is_wanted() {
            return;
        }
        let AnsweredRequest { client, head, member, status, outcome, began } = *answered;
        let rules = front.rules();
        self.recorder.redirected(&RedirectRecord {
            client,
            service: &front.name,
            head,
            server: member.and_then(|id| rules.names.get(&id)).map(String::as_str),
            status,
            mechanism: match outcome {
                RequestOutcome::Redirected => "redirected",
                RequestOutcome::Fetched => "fetched",
                RequestOutcome::NoMember => "no_member",
                RequestOutcome::Message(_) => "message",
                RequestOutcome::Refused(_) => "refused",
            },
            at: SystemTime::now(),
            latency: began.elapsed(),
        });
    }
}
