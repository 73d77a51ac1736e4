//! One connection of a group's client: it is told which member to ask, or an anonymous member's
//! answer is fetched for it, or it is a member itself, and says something.
//!
//! A connection that waits for somebody else has one of few places from then on, and so has one
//! with TLS ([`ConnectionLimit`]).

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use evener_core::farm::group::{DispatchRequest, MemberCandidate, RETRY_AFTER_S};
use evener_core::net::http::{self, HttpRefusal};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{AUTHORIZATION, EXPECT, HOST};
use hyper::{Request, Response};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

use super::fetch::{Destination, Fetch, FetchContext, FetchedBody, MemberClient};
use super::frontend::{Frontend, RequestOutcome, Rules};
use super::request_log::{AnsweredRequest, RequestLog};
use crate::http::client_stream::ClientStream;
use crate::http::server::{self, ConnectionBounds};
use crate::http::to_hyper;
use crate::runtime::connection_limit::{ConnectionLimit, ConnectionSlot};

/// Connections at a time that wait for somebody else.
const WAITING: usize = 1_024;
/// A head, also a TLS handshake, may take so long; and a connection may be idle so long.
const BOUNDS: ConnectionBounds =
    ConnectionBounds { head: Duration::from_secs(10), idle: Some(Duration::from_secs(60)), half_close: true };
/// A client that takes no byte of an answer for so long is closed.
const SEND: Duration = Duration::from_secs(20);
/// The longest body that is read to its end, so that the connection can be kept, in bytes; and how
/// long it may take.
const DRAINED_MAX: u64 = 64 * 1024;
const DRAINED: Duration = Duration::from_secs(10);
/// How long a message may take, and how long it may be, in bytes.
const MESSAGE: Duration = Duration::from_secs(10);
const MESSAGE_MAX: usize = 64 * 1024;
/// A connection's place is renewed as often as this.
const RENEWAL: Duration = Duration::from_secs(1);

type ResponseBody = Either<Full<Bytes>, FetchedBody>;

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

/// All that connections of groups have in common.
pub(crate) struct Clients {
    places: ConnectionLimit,
    /// Of connections with TLS, and of those that wait for somebody else.
    waiting: ConnectionLimit,
    messages: mpsc::Sender<MemberMessage>,
    members: MemberClient,
    request_log: RequestLog,
}

impl Clients {
    /// So many. Messages of members go to `messages`.
    pub(crate) fn new(
        places: usize,
        messages: mpsc::Sender<MemberMessage>,
        request_log: RequestLog,
    ) -> Clients {
        Clients {
            places: ConnectionLimit::new(places),
            waiting: ConnectionLimit::new(WAITING),
            messages,
            members: MemberClient::new(),
            request_log,
        }
    }

    /// A place for a new connection.
    pub(super) async fn admit(&self, client: SocketAddr, front: &Frontend) -> ClientSlot {
        let is_waiting = front.is_secure();
        let limit = if is_waiting { &self.waiting } else { &self.places };
        ClientSlot { slot: limit.acquire(client.ip()).await, is_waiting, renewed: None }
    }
}

/// The place that a connection has.
pub(super) struct ClientSlot {
    slot: ConnectionSlot,
    /// Whether it is one of the few.
    is_waiting: bool,
    renewed: Option<Instant>,
}

impl ClientSlot {
    /// The connection has a request.
    fn renew(&mut self, now: Instant) {
        if self.renewed.is_none_or(|renewed| now.duration_since(renewed) >= RENEWAL) {
            self.renewed = Some(now);
            self.slot.renew();
        }
    }
}

/// One connection.
pub(super) struct Connection {
    client: SocketAddr,
    /// A certificate that the client has shown, and that was found to be good.
    certificate: Option<CertificateDer<'static>>,
    front: Arc<Frontend>,
    clients: Arc<Clients>,
    place: Mutex<ClientSlot>,
}

/// The decision about a request.
enum Decision {
    /// The client is answered at once.
    Answer(http::Response, RequestOutcome),
    /// The answer is fetched from a member.
    Fetch(MemberCandidate),
    /// It is a message of a member.
    Message,
}

impl Connection {
    pub(super) fn new(
        client: SocketAddr,
        front: Arc<Frontend>,
        clients: Arc<Clients>,
        place: ClientSlot,
    ) -> Connection {
        Connection { client, certificate: None, front, clients, place: Mutex::new(place) }
    }

    /// Serves it until its end, or until somebody else needs its place more.
    pub(super) async fn serve(self, stream: TcpStream) {
        // Answers are whole when they are sent: to wait for more would only make them late.
        let _ = stream.set_nodelay(true);
        let stream = ClientStream::new(stream, SEND);
        match self.front.tls() {
            None => self.converse(stream).await,
            // Most connections need no room for it.
            Some(tls) => Box::pin(self.serve_tls(stream, tls)).await,
        }
    }

    async fn serve_tls(mut self, stream: ClientStream<TcpStream>, tls: Arc<ServerConfig>) {
        let shake = tokio::time::timeout(BOUNDS.head, TlsAcceptor::from(tls).accept(stream));
        let slot = &mut self.place.get_mut().unwrap_or_else(PoisonError::into_inner).slot;
        match slot.unless_needed(shake).await {
            Some(Ok(Ok(stream))) => {
                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
                self.certificate = shown.map(CertificateDer::into_owned);
                self.converse(stream).await;
            }
            Some(Ok(Err(error))) => {
                tracing::debug!(%error, client = %self.client, "a client speaks no TLS that is understood");
            }
            Some(Err(_)) => tracing::debug!(client = %self.client, "a handshake took too long"),
            None => self.front.count_evicted(),
        }
    }

    /// Serves its requests.
    pub(super) async fn converse(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let refused = |refusal: HttpRefusal, head: &[u8]| {
            self.log(None, Instant::now(), head, refusal.status(), RequestOutcome::Refused(refusal));
        };
        let mut served = pin!(server::serve(stream, &BOUNDS, |request| self.answer(request), refused));
        let is_served = poll_fn(|context| match served.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => self.place().slot.poll_needed(context).map(|()| false),
        });
        if !is_served.await {
            self.front.count_evicted();
        }
    }

    fn place(&self) -> MutexGuard<'_, ClientSlot> {
        // Nothing is half done in there that another could not go on with.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of the few places, and leaves the one that it has.
    async fn wait(&self) {
        if self.place().is_waiting {
            return;
        }
        let slot = self.clients.waiting.acquire(self.client.ip()).await;
        let mut place = self.place();
        (place.slot, place.is_waiting) = (slot, true);
    }

    /// Counts a request, and logs it.
    fn log(&self, member: Option<usize>, began: Instant, head: &[u8], status: u16, outcome: RequestOutcome) {
        self.front.count(outcome);
        let answered = AnsweredRequest { client: self.client, head, member, status, outcome, began };
        self.clients.request_log.record(&self.front, &answered);
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let began = Instant::now();
        self.place().renew(began);
        // A head that nobody reads isn't written again.
        let is_logged = self.clients.request_log.is_wanted();
        let head = if is_logged { head_of(&request) } else { Vec::new() };
        let (decision, member) = self.decide(&request);
        let (mut response, outcome) = match decision {
            Decision::Answer(response, outcome) => {
                let mut response = to_hyper(response).map(Either::Left);
                if !request.body().is_end_stream() && !drain(request).await {
                    server::close(&mut response);
                }
                (response, outcome)
            }
            Decision::Fetch(member) => {
                self.wait().await;
                (Box::pin(self.fetch(&member, request)).await, RequestOutcome::Fetched)
            }
            Decision::Message => {
                self.wait().await;
                let response = to_hyper(Box::pin(self.message(request)).await).map(Either::Left);
                let status = response.status().as_u16();
                (response, RequestOutcome::Message(status))
            }
        };
        if self.front.is_over() {
            server::close(&mut response);
        }
        self.log(member, began, &head, response.status().as_u16(), outcome);
        response
    }

    /// Decides about a request, and says which member it is for.
    fn decide<B>(&self, request: &Request<B>) -> (Decision, Option<usize>) {
        let (rules, uri) = (self.front.rules(), request.uri());
        let method = request.method().as_str();
        if rules.is_protocol(method) {
            return (Decision::Message, None);
        }
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let host = request.headers().get(HOST).map_or(&[][..], |host| host.as_bytes());
        let host = uri.authority().map_or(host, |authority| authority.as_str().as_bytes());
        let wanted = DispatchRequest { client: self.client.ip(), method, host, target };
        let Some(member) = rules.dispatch.choose(&wanted) else {
            return (Decision::Answer(no_member(&rules), RequestOutcome::NoMember), None);
        };
        let decision = if member.anonymous {
            Decision::Fetch(member.clone())
        } else {
            let status = rules.status.keeping(method);
            let response = http::Response::redirect(status, member.url.as_str(), target);
            Decision::Answer(response, RequestOutcome::Redirected)
        };
        (decision, Some(member.id))
    }

    /// A member's message goes to the control loop, whose answer is the member's.
    async fn message(&self, request: Request<Incoming>) -> http::Response {
        let refuse = http::Response::sentence;
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
            self.clients.messages.send(message).await.ok()?;
            answered.await.ok()
        };
        match tokio::time::timeout(MESSAGE, reply).await {
            Ok(Some(reply)) if reply.status == 401 => reply.with("WWW-Authenticate", "Bearer".to_owned()),
            Ok(Some(reply)) if reply.status == 429 => reply.with("Retry-After", RETRY_AFTER_S.to_string()),
            Ok(Some(reply)) => reply,
            _ => refuse(503, "The control loop does not answer."),
        }
    }

    /// Fetches an anonymous member's answer.
    async fn fetch(&self, member: &MemberCandidate, request: Request<Incoming>) -> Response<ResponseBody> {
        let own = Arc::clone(&self.front.rules().own);
        let by =
            FetchContext { group: &self.front.name, client: self.client, by_tls: self.front.is_secure() };
        let member = Destination { url: &member.url, reach: member.reach.as_deref(), own: &own };
        match self.clients.members.fetch(&member, request, &by).await {
            Fetch::Answer(response) => response.map(Either::Right),
            Fetch::Failed(status, sentence) => {
                to_hyper(http::Response::sentence(status, sentence)).map(Either::Left)
            }
        }
    }
}

/// Reads a body away, so that the connection can be kept; false where it can't. A client that waits
/// for a word before sending the body may send it or not (RFC 9110, section 10.1.1), so that nobody
/// would know where the next request begins.
async fn drain(request: Request<Incoming>) -> bool {
    let waits = request.headers().contains_key(EXPECT);
    let mut body = request.into_body();
    if waits || body.size_hint().exact().is_none_or(|len| len > DRAINED_MAX) {
        return false;
    }
    let drained = async {
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(DRAINED, drained).await.unwrap_or(false)
}

/// The response while no member works.
fn no_member(rules: &Rules) -> http::Response {
    let response = http::Response::sentence(503, "No server of this group works now.");
    response.with("Retry-After", rules.retry_after_s.to_string())
}

/// The beginning of a request's head, as the access log reads it.
fn head_of(request: &Request<Incoming>) -> Vec<u8> {
    let mut head = format!("{} {} HTTP/1.1\r\nHost: ", request.method(), request.uri()).into_bytes();
    head.extend_from_slice(request.headers().get(HOST).map_or(&[][..], |host| host.as_bytes()));
    head.extend_from_slice(b"\r\n\r\n");
    head
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use evener_core::pool::policy::Choice;

    use super::*;
    use crate::redirect::tests::{clients, front, rules_of};

    #[tokio::test]
    async fn connection_takes_little_memory() {
        let front = front(&["http://m1"]);
        let (client, clients) = (([127, 0, 0, 1], 1).into(), Arc::new(clients(1)));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let place = clients.admit(client, &front).await;
        let served = Connection::new(client, front, clients, place).serve(stream);
        assert!(size_of_val(&served) < 2_560, "{}", size_of_val(&served));
    }

    #[tokio::test]
    async fn anonymous_members_beside_plain_ones_have_their_share_by_each_policy() {
        const CLIENTS: u8 = 40;
        for choice in [Choice::Turn, Choice::Hash, Choice::Random, Choice::Head, Choice::Two] {
            let rules = rules_of(choice, &["http://m1", "http://hidden"]);
            let front = Arc::new(Frontend::new("shop", rules));
            let mut fetched = 0;
            for client in 0..CLIENTS {
                let client = (Ipv4Addr::new(192, 0, 2, client), 1).into();
                let clients = Arc::new(clients(1));
                let place = clients.admit(client, &front).await;
                let connection = Connection::new(client, Arc::clone(&front), clients, place);
                let request = Request::builder().uri("/a").header(HOST, "shop").body(()).unwrap();
                fetched += u8::from(matches!(connection.decide(&request).0, Decision::Fetch(_)));
            }
            let dispatched = front.rules().dispatch.given().map(|(_, given)| given).sum::<u64>();
            assert_eq!(dispatched, u64::from(CLIENTS), "{choice:?}");
            assert!((8..=32).contains(&fetched), "{choice:?}: {fetched} of {CLIENTS} are fetched");
        }
    }
}
