//! Records of single requests: a line of the access log, and for those who follow a client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::frontend::{Frontend, RequestOutcome, Rules};
use super::http_connection::AnsweredRequest;
use crate::record::{Recorder, RedirectRecord};

/// The way to the recorder.
#[derive(Clone)]
pub(crate) struct RequestLog {
    recorder: Arc<Recorder>,
}

impl RequestLog {
    pub(crate) fn new(recorder: Arc<Recorder>) -> RequestLog {
        RequestLog { recorder }
    }

    /// Tells of a request that was answered, if anybody wants to know; it was seen at `began`.
    pub(super) fn record(
        &mut self,
        front: &Frontend,
        rules: &Rules,
        client: SocketAddr,
        began: Instant,
        answered: &AnsweredRequest<'_>,
    ) {
        if !self.recorder.is_wanted() {
            return;
        }
        let server = answered.member.and_then(|id| rules.names.get(&id)).map(String::as_str);
        let (head, status, outcome) = (answered.head, answered.status, answered.outcome);
        self.log_request(front, server, client, began, head, status, outcome);
    }

    /// The same of one that was answered by somebody who waits.
    #[allow(clippy::too_many_arguments, reason = "a line of the log has so many parts")]
    pub(super) fn log_request(
        &self,
        front: &Frontend,
        server: Option<&str>,
        client: SocketAddr,
        began: Instant,
        head: &[u8],
        status: u16,
        outcome: RequestOutcome,
    ) {
        if !self.recorder.is_wanted() {
            return;
        }
        self.recorder.redirected(&RedirectRecord {
            client,
            service: &front.name,
            head,
            server,
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
