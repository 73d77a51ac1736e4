//! Records of single requests, for the access log and traces.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::frontend::{Frontend, RequestOutcome};
use crate::record::{Recorder, RedirectRecord};

/// Connection to the recorder.
#[derive(Clone)]
pub(crate) struct RequestLog {
    recorder: Arc<Recorder>,
}

pub(super) struct AnsweredRequest<'a> {
    pub(super) client: SocketAddr,
    /// Head of the request, as received.
    pub(super) head: &'a [u8],
    /// Number of the selected member.
    pub(super) member: Option<usize>,
    pub(super) status: u16,
    pub(super) outcome: RequestOutcome,
    pub(super) began: Instant,
}

impl RequestLog {
    pub(crate) fn new(recorder: Arc<Recorder>) -> RequestLog {
        RequestLog { recorder }
    }

    /// True if requests are logged or traced.
    pub(super) fn is_wanted(&self) -> bool {
        self.recorder.is_wanted()
    }

    /// Records a request, if requests are logged or traced.
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
