//! A connection of a group's client.
//! The client is redirected to a member, or an anonymous member's response is fetched for the
//! client. A member may also send a message.
//!
//! A connection that waits for another host, or uses TLS, needs a slot of a smaller pool
//! ([`ConnectionLimit`]).

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

/// Number of slots for connections that use TLS or wait for another host.
const WAITING: usize = 1_024;
/// Time limits of a head or a TLS handshake, and of an idle connection.
const BOUNDS: ConnectionBounds =
    ConnectionBounds { head: Duration::from_secs(10), idle: Some(Duration::from_secs(60)), half_close: true };
/// Time without an acknowledged byte after which a client is reset.
const SEND: Duration = Duration::from_secs(20);
/// A request body up to this length in bytes is read and dropped, to keep the connection. DRAINED
/// is the time limit of the read.
const DRAINED_MAX: u64 = 64 * 1024;
const DRAINED: Duration = Duration::from_secs(10);
/// Time limit of a member's message, and its maximum length in bytes.
const MESSAGE: Duration = Duration::from_secs(10);
const MESSAGE_MAX: usize = 64 * 1024;
/// Minimum interval between renewals of a connection's slot.
const RENEWAL: Duration = Duration::from_secs(1);

type ResponseBody = Either<Full<Bytes>, FetchedBody>;

/// A member's message, for the control loop.
#[derive(Debug)]
pub(crate) struct MemberMessage {
    pub(crate) group: String,
    pub(crate) from: SocketAddr,
    /// Method of the group protocol.
    pub(crate) verb: String,
    /// Value of the `Authorization` field.
    pub(crate) authorization: Option<String>,
    /// Verified certificate of the client.
    pub(crate) certificate: Option<CertificateDer<'static>>,
    pub(crate) body: Vec<u8>,
    /// Channel for the control loop's response.
    pub(crate) answer: oneshot::Sender<http::Response>,
}

/// State shared by all connections of groups.
pub(crate) struct Clients {
    places: ConnectionLimit,
    /// Slots of connections that use TLS or wait for another host.
    waiting: ConnectionLimit,
    messages: mpsc::Sender<MemberMessage>,
    members: MemberClient,
    request_log: RequestLog,
}

impl Clients {
    /// Creates the state with this number of slots. Messages of members are sent to `messages`.
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

    /// Waits for a slot for a new connection. TLS connections get a slot of the smaller pool.
    pub(super) async fn admit(&self, client: SocketAddr, front: &Frontend) -> ClientSlot {
        let is_waiting = front.is_secure();
        let limit = if is_waiting { &self.waiting } else { &self.places };
        ClientSlot { slot: limit.acquire(client.ip()).await, is_waiting, renewed: None }
    }
}

/// A connection's slot, of the larger or the smaller pool.
pub(super) struct ClientSlot {
    slot: ConnectionSlot,
    /// True if the slot belongs to the smaller pool.
    is_waiting: bool,
    renewed: Option<Instant>,
}

impl ClientSlot {
    /// Renews the slot after a request, at most once per [`RENEWAL`]. Of a source's connections,
    /// the least recently renewed is evicted first.
    fn renew(&mut self, now: Instant) {
        if self.renewed.is_none_or(|renewed| now.duration_since(renewed) >= RENEWAL) {
            self.renewed = Some(now);
            self.slot.renew();
        }
    }
}

pub(super) struct Connection {
    client: SocketAddr,
    /// Verified certificate of the client.
    certificate: Option<CertificateDer<'static>>,
    front: Arc<Frontend>,
    clients: Arc<Clients>,
    place: Mutex<ClientSlot>,
}

/// Decision about a request.
enum Decision {
    Answer(http::Response, RequestOutcome),
    /// Fetch the response from a member.
    Fetch(MemberCandidate),
    /// The request is a member's message.
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

    /// Serves the connection until its end, or until it is evicted.
    pub(super) async fn serve(self, stream: TcpStream) {
        // Responses are sent whole, so waiting for more data would only delay them.
        let _ = stream.set_nodelay(true);
        let stream = ClientStream::new(stream, SEND);
        match self.front.tls() {
            None => self.converse(stream).await,
            // Boxed, since most connections need no memory for TLS.
            Some(tls) => Box::pin(self.serve_tls(stream, tls)).await,
        }
    }

    async fn serve_tls(mut self, stream: ClientStream<TcpStream>, tls: Arc<ServerConfig>) {
        let shake = tokio::time::timeout(BOUNDS.head, TlsAcceptor::from(tls).accept(stream));
        let slot = &mut self.place.get_mut().unwrap_or_else(PoisonError::into_inner).slot;
        match slot.unless_evicted(shake).await {
            Some(Ok(Ok(stream))) => {
                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
                self.certificate = shown.map(CertificateDer::into_owned);
                self.converse(stream).await;
            }
            Some(Ok(Err(error))) => {
                tracing::debug!(%error, client = %self.client, "a client's TLS handshake failed");
            }
            Some(Err(_)) => tracing::debug!(client = %self.client, "a client's TLS handshake timed out"),
            None => self.front.count_evicted(),
        }
    }

    /// Serves the requests of a connection.
    pub(super) async fn converse(&self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let refused = |refusal: HttpRefusal, head: &[u8]| {
            self.log(None, Instant::now(), head, refusal.status(), RequestOutcome::Refused(refusal));
        };
        let mut served = pin!(server::serve(stream, &BOUNDS, |request| self.answer(request), refused));
        let is_served = poll_fn(|context| match served.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => self.place().slot.poll_evicted(context).map(|()| false),
        });
        if !is_served.await {
            self.front.count_evicted();
        }
    }

    fn place(&self) -> MutexGuard<'_, ClientSlot> {
        // A panic can't leave the slot inconsistent, so a poisoned lock is usable.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges the slot for a slot of the smaller pool.
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
        // The head is only needed for the access log.
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

    /// Decides about a request. Also returns the selected member.
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

    /// Passes a member's message to the control loop, and returns the response of the loop.
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

    /// Fetches an anonymous member's response.
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

/// Reads a request's body and drops it, so that the connection can be kept. Returns false if the
/// body is too long, incomplete or late, or if the client expects 100-continue. A client that
/// expects 100-continue may send the body or omit it (RFC 9110, section 10.1.1). So the start of
/// the client's next request would be unknown.
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

/// Response if no member works.
fn no_member(rules: &Rules) -> http::Response {
    let response = http::Response::sentence(503, "No server of this group works now.");
    response.with("Retry-After", rules.retry_after_s.to_string())
}

/// Returns the beginning of a request's head, for the access log.
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
