//! Connections that responders have given away: what members say is answered here, and what clients
//! want of members that they never learn of is fetched.
//!
//! They are as many as there are [`ConnectionLimit`] for; whoever comes when all are taken gets
//! that of the source that holds most.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evener_core::farm::group::{DispatchRequest, MemberCandidate, RETRY_AFTER_S};
use evener_core::net::http::{self, HEADERS_MAX, HttpRefusal};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

use super::client_stream::ClientStream;
use super::fetch::{Destination, Fetch, FetchContext, MemberClient};
use super::frontend::{Frontend, RequestOutcome, Rules};
use super::http_connection::no_member;
use super::request_log::RequestLog;
use super::request_stream::RequestStream;
use super::responder::{Delegate, DelegatedConnection};
use crate::http::to_hyper;
use crate::runtime::connection_limit::ConnectionLimit;

/// Connections at a time; and those that wait for a place, which is a moment.
const PLACES: usize = 1_024;
const WAITING: usize = 256;
/// How long a head may take, and how long a connection may be idle before it.
const HEAD: Duration = Duration::from_secs(20);
/// A client that takes no byte of an answer for so long is closed.
const SEND: Duration = Duration::from_secs(20);
/// How long a message may take, and how long it may be, in bytes.
const MESSAGE: Duration = Duration::from_secs(10);
const MESSAGE_MAX: usize = 64 * 1024;
/// The most that hyper reads ahead; also bounds a head.
const READ_BUFFER: usize = 16 * 1024;

/// The body of an answer.
pub(super) type ResponseBody = BoxBody<Bytes, hyper::Error>;

/// A message of a member, for the control loop.
#[derive(Debug)]
pub(crate) struct MemberMessage {
    /// The group's name.
    pub(crate) group: String,
    /// The sender.
    pub(crate) from: SocketAddr,
    /// How: a method of the group protocol.
    pub(crate) verb: String,
    /// The credential: the value of an `Authorization` line,
    pub(crate) authorization: Option<String>,
    /// and a certificate that was found to be good.
    pub(crate) certificate: Option<CertificateDer<'static>>,
    /// Its body.
    pub(crate) body: Vec<u8>,
    /// Where the answer goes.
    pub(crate) answer: oneshot::Sender<http::Response>,
}

/// The taker of connections that responders give away.
pub(crate) struct SlowPathServer {
    given: mpsc::Sender<DelegatedConnection>,
}

#[derive(Clone)]
struct SlowPathContext {
    messages: mpsc::Sender<MemberMessage>,
    client: MemberClient,
    request_log: RequestLog,
}

impl SlowPathServer {
    /// Begins to take some. Messages go to `asks`.
    pub(crate) fn start(request_log: RequestLog, messages: mpsc::Sender<MemberMessage>) -> SlowPathServer {
        let (given, mut come) = mpsc::channel::<DelegatedConnection>(WAITING);
        let desk = SlowPathContext { messages, client: MemberClient::new(), request_log };
        let limit = ConnectionLimit::new(PLACES);
        tokio::spawn(async move {
            while let Some(given) = come.recv().await {
                let mut slot = limit.acquire(given.client.ip()).await;
                let desk = desk.clone();
                tokio::spawn(async move {
                    let front = Arc::clone(&given.front);
                    if slot.unless_needed(attend(given, desk)).await.is_none() {
                        front.count_evicted();
                    }
                });
            }
        });
        SlowPathServer { given }
    }

    /// The way for responders' threads.
    pub(crate) fn taker(&self) -> Delegate {
        let given = self.given.clone();
        Arc::new(move |one| given.try_send(one).is_ok())
    }
}

/// One connection.
struct SlowConnection {
    client: SocketAddr,
    /// A certificate that the client has shown, and that was found to be good.
    certificate: Option<CertificateDer<'static>>,
    front: Arc<Frontend>,
    desk: SlowPathContext,
    /// The member that the responder chose for the first request.
    chosen: Mutex<Option<MemberCandidate>>,
}

async fn attend(given: DelegatedConnection, desk: SlowPathContext) {
    let DelegatedConnection { stream, client, front, received, chosen } = given;
    let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) else { return };
    let stream = ClientStream::new(received, stream, SEND);
    let tls = front.tls();
    let mut connection =
        SlowConnection { client, certificate: None, front, desk, chosen: Mutex::new(chosen) };
    let Some(tls) = tls else { return connection.serve(stream).await };
    match tokio::time::timeout(HEAD, TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
            connection.certificate = shown.map(CertificateDer::into_owned);
            connection.serve(stream).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, %client, "a client speaks no TLS that is understood"),
        Err(_) => tracing::debug!(%client, "a handshake took too long"),
    }
}

impl SlowConnection {
    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| async { Ok::<_, Infallible>(self.answer(request).await) });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(READ_BUFFER)
            .max_headers(HEADERS_MAX)
            .half_close(true)
            .serve_connection(TokioIo::new(RequestStream::new(stream)), service);
        match served.without_shutdown().await {
            Err(error) => tracing::debug!(%error, client = %self.client, "a connection broke"),
            Ok(parts) => {
                let mut stream = parts.io.into_inner();
                if let Some((refusal, head)) = stream.refused() {
                    self.log(None, Instant::now(), head, refusal.status(), RequestOutcome::Refused(refusal));
                }
                // A client that has gone needs no end.
                let _ = tokio::time::timeout(SEND, stream.end()).await;
            }
        }
    }

    /// Counts a request, and logs it.
    fn log(&self, member: Option<&str>, began: Instant, head: &[u8], status: u16, outcome: RequestOutcome) {
        let Self { client, front, desk, .. } = self;
        front.count(outcome);
        desk.request_log.log_request(front, member, *client, began, head, status, outcome);
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let (began, summary) = (Instant::now(), Summary::of(&request));
        let (response, outcome, member) = if self.front.rules().is_protocol(request.method().as_str()) {
            let response = self.message(request).await;
            let outcome = RequestOutcome::Message(response.status().as_u16());
            (response, outcome, None)
        } else {
            self.send_on(request, &summary).await
        };
        self.log(member.as_deref(), began, &summary.head, response.status().as_u16(), outcome);
        response
    }

    /// A member's message goes to the control loop, whose answer is the member's.
    async fn message(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let refuse = |status: u16, sentence: &str| boxed(http::Response::sentence(status, sentence));
        let (head, body) = request.into_parts();
        let collected = tokio::time::timeout(MESSAGE, Limited::new(body, MESSAGE_MAX).collect()).await;
        let body = match collected {
            Ok(Ok(body)) => body.to_bytes().to_vec(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                return refuse(413, "A message has at most 64 KiB.");
            }
            Ok(Err(_)) => return refuse(400, "The message broke off."),
            Err(_) => return refuse(408, HttpRefusal::Timeout.sentence()),
        };
        let authorization = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let (answer, answered) = oneshot::channel();
        let message = MemberMessage {
            group: self.front.name.clone(),
            from: self.client,
            verb: head.method.as_str().to_owned(),
            authorization: authorization.map(str::to_owned),
            certificate: self.certificate.clone(),
            body,
            answer,
        };
        let reply = async {
            self.desk.messages.send(message).await.ok()?;
            answered.await.ok()
        };
        match tokio::time::timeout(MESSAGE, reply).await {
            Ok(Some(reply)) => replied(reply),
            _ => refuse(503, "The control loop does not answer."),
        }
    }

    /// The member for a request: for the first one, that which the responder has chosen.
    fn choose(&self, summary: &Summary, rules: &Rules) -> Option<MemberCandidate> {
        let first = self.chosen.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.or_else(|| {
            let wanted = DispatchRequest {
                client: self.client.ip(),
                method: &summary.method,
                host: summary.host.as_bytes(),
                target: &summary.target,
            };
            rules.dispatch.choose(&wanted).cloned()
        })
    }

    /// A client's request: fetched, or the client is sent on.
    async fn send_on(
        &self,
        request: Request<Incoming>,
        summary: &Summary,
    ) -> (Response<ResponseBody>, RequestOutcome, Option<String>) {
        let rules = self.front.rules().clone();
        let Some(member) = self.choose(summary, &rules) else {
            return (boxed(no_member(&rules)), RequestOutcome::NoMember, None);
        };
        let name = rules.names.get(&member.id).cloned();
        if !member.anonymous {
            let status = rules.status.keeping(&summary.method);
            let response = http::Response::redirect(status, member.url.as_str(), &summary.target);
            return (boxed(response), RequestOutcome::Redirected, name);
        }
        let by =
            FetchContext { group: &self.front.name, client: self.client, by_tls: self.front.is_secure() };
        let member = Destination { url: &member.url, reach: member.reach.as_deref(), own: &rules.own };
        let response = match self.desk.client.fetch(&member, request, &by).await {
            Fetch::Answer(response) => response,
            Fetch::Failed(status, sentence) => boxed(http::Response::sentence(status, sentence)),
        };
        (response, RequestOutcome::Fetched, name)
    }
}

fn replied(reply: http::Response) -> Response<ResponseBody> {
    boxed(match reply.status {
        401 => reply.with("WWW-Authenticate", "Bearer".to_owned()),
        429 => reply.with("Retry-After", RETRY_AFTER_S.to_string()),
        _ => reply,
    })
}

/// The summary of a request, for the answer and the log.
struct Summary {
    method: String,
    host: String,
    /// The path and query, or `*`.
    target: String,
    /// The head's beginning, as the access log reads it.
    head: Vec<u8>,
}

impl Summary {
    fn of(request: &Request<Incoming>) -> Summary {
        let uri = request.uri();
        let named = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = uri.authority().map_or(named, |authority| authority.as_str()).to_owned();
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let method = request.method().as_str().to_owned();
        let head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        Summary { method, host, target, head }
    }
}

fn boxed(response: http::Response) -> Response<ResponseBody> {
    to_hyper(response).map(|body| body.map_err(|never| match never {}).boxed())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::record::Recorder;
    use crate::redirect::tests::rules;
    use crate::request_heads::{Expected, vectors};

    fn connection(
        desk: SlowPathContext,
        front: &Arc<Frontend>,
        chosen: Option<MemberCandidate>,
    ) -> SlowConnection {
        let (client, chosen) = (([127, 0, 0, 1], 1).into(), Mutex::new(chosen));
        SlowConnection { client, certificate: None, front: Arc::clone(front), desk, chosen }
    }

    /// The statuses of all that is answered to these bytes, on a connection as hyper has it.
    async fn answers(bytes: &[u8]) -> Vec<u16> {
        let (mut client, server) = duplex(256 * 1024);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let front = Arc::new(Frontend::new("shop", rules(&["http://m1"])));
        let request_log = RequestLog::new(Arc::new(Recorder::default()));
        let desk = SlowPathContext { messages: mpsc::channel(1).0, client: MemberClient::new(), request_log };
        connection(desk, &front, None).serve(server).await;
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("HTTP/1."));
        lines.filter_map(|rest| rest.get(2..5)?.parse().ok()).collect()
    }

    #[tokio::test]
    async fn requests_are_judged_as_at_every_door_also_later_ones() {
        let get = &b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n"[..];
        let post =
            &b"POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\n\r\n"[..];
        for vector in vectors() {
            for (first, answered) in [(&b""[..], None), (get, Some(302)), (post, Some(307))] {
                let statuses = answers(&[first, &vector.bytes].concat()).await;
                let expected = match vector.expected {
                    Expected::Accepted { method: "GET", .. } => 302,
                    Expected::Accepted { .. } => 307,
                    Expected::Refused { status, .. } => status,
                };
                let expected: Vec<u16> = answered.into_iter().chain([expected]).collect();
                assert_eq!(statuses, expected, "{}", vector.text);
            }
        }
    }
}
