//! One connection's talk: what was heard goes in, answers come out. No socket and no clock is in
//! here.

use std::net::IpAddr;

use evener_core::farm::group::{DispatchRequest, MemberCandidate};
use evener_core::net::http::{self, BodyFraming, HeadParse, HttpRefusal, Request, Response, ResponseFraming};

use super::frontend::{RequestOutcome, Rules};

/// The longest body that is read to its end, so that the connection can be kept, in bytes.
const DRAINED_MAX: u64 = 64 * 1024;
/// Answers that are gathered before they are sent, in bytes.
const GATHERED_MAX: usize = 64 * 1024;

/// The answering side, and the client.
pub(super) struct AnswerContext<'s> {
    pub(super) client: IpAddr,
    pub(super) rules: &'s Rules,
    /// The time, as HTTP writes it.
    pub(super) date: &'s str,
    /// Whether connections end after the next answer.
    pub(super) ends: bool,
}

/// The action once the answers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionAction {
    /// Hear more.
    Read,
    /// Go on with what was heard already.
    GoOn,
    /// The connection is over. Where the client may be sending yet, that is waited for, so that no
    /// reset overtakes the answer.
    End {
        /// Whether to.
        lingers: bool,
    },
    /// Somebody else answers the request that begins the unread bytes, and what follows.
    GiveAway,
}

/// The answered request, for the log.
pub(super) struct AnsweredRequest<'t> {
    /// The head, as it came.
    pub(super) head: &'t [u8],
    pub(super) status: u16,
    /// The member's number, if one was chosen.
    pub(super) member: Option<usize>,
    pub(super) outcome: RequestOutcome,
}

/// A connection's talk so far.
#[derive(Debug, Default)]
pub(super) struct HttpConnection {
    /// The bytes received and not acted on: a part of a head, or all that came behind too many
    /// answers.
    unread: Vec<u8>,
    /// The rest of a body that is drained.
    drained: u64,
    /// The anonymous member that the request at the beginning of `unread` is to be fetched from.
    chosen: Option<MemberCandidate>,
}

/// The answer to one request, or the member that has it.
enum Answer<'t> {
    /// It was answered.
    Written(AnsweredRequest<'t>),
    /// It is fetched from this member.
    Fetched(MemberCandidate),
}

impl HttpConnection {
    /// Whether it is in the middle of a request.
    pub(super) fn is_in_request(&self) -> bool {
        !self.unread.is_empty() || self.drained > 0
    }

    /// The bytes without action, and the member that was chosen for the request that begins them.
    pub(super) fn into_unread(self) -> (Vec<u8>, Option<MemberCandidate>) {
        (self.unread, self.chosen)
    }

    /// Takes in what was heard, and appends answers to `out`.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        setting: &AnswerContext<'_>,
        out: &mut Vec<u8>,
        log: &mut dyn FnMut(&AnsweredRequest<'_>),
    ) -> ConnectionAction {
        if self.unread.is_empty() {
            let (next, read) = self.answer(bytes, setting, out, log);
            self.unread.extend_from_slice(bytes.get(read..).unwrap_or_default());
            return next;
        }
        self.unread.extend_from_slice(bytes);
        let unread = std::mem::take(&mut self.unread);
        let (next, read) = self.answer(&unread, setting, out, log);
        self.unread = unread;
        self.unread.drain(..read);
        if self.unread.is_empty() {
            // An idle connection holds no memory.
            self.unread = Vec::new();
        }
        next
    }

    /// It took too long: says so, if it had begun to say something.
    pub(super) fn late(&self, date: &str, out: &mut Vec<u8>) -> bool {
        let has_partial = !self.unread.is_empty();
        if has_partial {
            Response::refusal(HttpRefusal::Timeout).write(out, &closing(date));
        }
        has_partial
    }

    /// Answers as many requests as there are, and says how much of `bytes` that was.
    fn answer(
        &mut self,
        bytes: &[u8],
        setting: &AnswerContext<'_>,
        out: &mut Vec<u8>,
        log: &mut dyn FnMut(&AnsweredRequest<'_>),
    ) -> (ConnectionAction, usize) {
        let mut read = 0;
        loop {
            let rest = bytes.get(read..).unwrap_or_default();
            let skipped = usize::try_from(self.drained).map_or(rest.len(), |left| left.min(rest.len()));
            self.drained -= skipped as u64;
            read += skipped;
            let rest = rest.get(skipped..).unwrap_or_default();
            if rest.is_empty() {
                return (ConnectionAction::Read, read);
            }
            if out.len() >= GATHERED_MAX {
                return (ConnectionAction::GoOn, read);
            }
            let request = match http::read(rest) {
                HeadParse::Incomplete => return (ConnectionAction::Read, read),
                HeadParse::Refused(refusal) => {
                    Response::refusal(refusal).write(out, &closing(setting.date));
                    let outcome = RequestOutcome::Refused(refusal);
                    log(&AnsweredRequest { head: rest, status: refusal.status(), member: None, outcome });
                    return (ConnectionAction::End { lingers: true }, bytes.len());
                }
                HeadParse::Request(request) => request,
            };
            if is_for_others(&request, setting.rules) {
                return (ConnectionAction::GiveAway, read);
            }
            let answered = match one(&request, rest, setting, out) {
                Answer::Written(answered) => answered,
                Answer::Fetched(member) => {
                    self.chosen = Some(member);
                    return (ConnectionAction::GiveAway, read);
                }
            };
            log(&answered);
            read += request.len;
            let (kept, drained) = kept(&request, setting.ends);
            if !kept {
                let lingers = drained > 0 || read < bytes.len();
                return (ConnectionAction::End { lingers }, bytes.len());
            }
            self.drained = drained;
        }
    }
}

/// Whether a request is no client's, but a member's.
fn is_for_others(request: &Request<'_>, rules: &Rules) -> bool {
    rules.is_protocol(request.method)
}

/// Whether the connection is kept after an answer, and how much of the body there is to read away.
/// A client that waits for a word before sending the body may send it or not (RFC 9110, section
/// 10.1.1), so that nobody would know where the next request begins.
fn kept(request: &Request<'_>, ends: bool) -> (bool, u64) {
    let (short, length) = match request.body {
        BodyFraming::Length(0) => (true, 0),
        BodyFraming::Length(length) => (length <= DRAINED_MAX && !request.waits, length),
        BodyFraming::Chunked => (false, u64::MAX),
    };
    (short && request.keeps_alive && !ends, length)
}

/// Chooses a member for one request, and answers it unless it is to be fetched.
fn one<'t>(
    request: &Request<'_>,
    rest: &'t [u8],
    setting: &AnswerContext<'_>,
    out: &mut Vec<u8>,
) -> Answer<'t> {
    let (kept, _) = kept(request, setting.ends);
    let frame = ResponseFraming {
        date: setting.date,
        is_head: request.method == "HEAD",
        closes: !kept,
        keep_alive_header: request.is_old,
    };
    let head = rest.get(..request.len).unwrap_or_default();
    let wanted = DispatchRequest {
        client: setting.client,
        method: request.method,
        host: request.host,
        target: request.target,
    };
    let Some(member) = setting.rules.dispatch.choose(&wanted) else {
        no_member(setting.rules).write(out, &frame);
        let outcome = RequestOutcome::NoMember;
        return Answer::Written(AnsweredRequest { head, status: 503, member: None, outcome });
    };
    if member.anonymous {
        return Answer::Fetched(member.clone());
    }
    let status = setting.rules.status.keeping(request.method);
    Response::redirect(status, member.url.as_str(), request.target).write(out, &frame);
    Answer::Written(AnsweredRequest {
        head,
        status: status.code(),
        member: Some(member.id),
        outcome: RequestOutcome::Redirected,
    })
}

/// The response while no member works.
pub(super) fn no_member(rules: &Rules) -> Response {
    let response = Response::sentence(503, "No server of this group works now.");
    response.with("Retry-After", rules.retry_after_s.to_string())
}

fn closing(date: &str) -> ResponseFraming<'_> {
    ResponseFraming { date, is_head: false, closes: true, keep_alive_header: false }
}
