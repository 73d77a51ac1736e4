//! Access over TCP. A web page must not reach the farm through a permitted user's browser (DNS
//! rebinding), so each request must name this host. An address that is not loopback, or has a token
//! file or client certificates, requires a token or a certificate, except for health and the
//! dashboard's files.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Extension;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use evener_core::farm::group::TokenThrottle;
use nix::unistd::{Uid, User};

use super::api::ApiError;
use super::change_limit::{CHANGES_A_MINUTE, ChangeLimit};
use super::dashboard;
use super::endpoints::{API_PATHS, GROUPS};
use super::progress::Progress;
use crate::config;
use crate::runtime::certificate_names::{CertificateNames, CertificateNamesError};
use crate::runtime::fresh_file::FreshFile;
use crate::runtime::token::{Holder, Role, TokenError, Tokens};
use crate::state::Author;

/// Paths about the daemon's health, which need no token.
const HEALTH: &str = "/healthz";
const READY: &str = "/ready";
const READY_OF: &str = "/ready/";
const SCHEME: &str = "bearer ";

/// Local address of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnAddress(pub(super) IpAddr);

/// Remote address of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

/// Names of the client's certificate.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerNames(pub(super) Arc<[String]>);

/// User at the other end of a connection through the Unix socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerUser(pub(super) Option<u32>);

/// Authenticated sender of a request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) author: Author,
    pub(super) role: Role,
}

/// Access rules of the TCP address.
#[derive(Debug)]
pub(super) struct Access {
    /// Further names and addresses by which requests may name this host, in lower case.
    hosts: Vec<String>,
    /// True if a token or a certificate is required.
    closed: bool,
    tokens: Option<FreshFile<Tokens, TokenError>>,
    /// Roles of clients' certificates.
    certificates: Option<FreshFile<CertificateNames, CertificateNamesError>>,
    /// Rate limit of token lookups, against guessing.
    throttle: Mutex<TokenThrottle>,
    changes: Mutex<ChangeLimit>,
}

impl Access {
    /// Creates the rules from the configuration.
    ///
    /// # Errors
    /// If the file of tokens can't be used.
    pub(super) fn new(admin: &config::AdminConfig, listen: SocketAddr) -> Result<Access, TokenError> {
        let clients = admin.tls.as_ref().and_then(|tls| tls.clients.as_ref());
        let certificates_file = clients.map(|clients| clients.names.clone());
        let closed = !listen.ip().is_loopback() || admin.token_file.is_some() || certificates_file.is_some();
        let tokens = admin.token_file.clone().map(|path| FreshFile::open(path, Tokens::read)).transpose()?;
        if closed && tokens.is_none() && certificates_file.is_none() {
            tracing::warn!(
                "{listen} is not a loopback address and [admin] has no token_file: only /healthz and /ready are answered there"
            );
        }
        let certificates = certificates_file.map(|path| FreshFile::new(path, CertificateNames::read));
        Ok(Access {
            hosts: admin.hosts.clone(),
            closed,
            tokens,
            certificates,
            throttle: Mutex::default(),
            changes: Mutex::default(),
        })
    }

    /// Checks that a request is meant for this host (RFC 9110, section 7.4).
    fn judge_host(&self, request: &Request, reached: IpAddr) -> Result<(), ApiError> {
        let malformed = || {
            let message = "A request names the host that it is for, once (RFC 9112, section 3.2).";
            ApiError(StatusCode::BAD_REQUEST, message.to_owned())
        };
        let mut fields = request.headers().get_all(HOST).iter();
        let named = match (fields.next(), fields.next()) {
            (Some(host), None) => Some(host.to_str().map_err(|_| malformed())?),
            // HTTP/1.0 probes have no Host field. Every browser sends a Host field.
            (None, _) if request.version() < Version::HTTP_11 => None,
            _ => return Err(malformed()),
        };
        let named = named.map(|host| host.parse::<Authority>().map_err(|_| malformed())).transpose()?;
        // The host in the request line takes precedence over the field (RFC 9112, section 3.2.2).
        // The request line and the field must both name this host.
        for host in named.iter().chain(request.uri().authority()) {
            if !self.is_this(host.host(), reached) {
                let message = format!(
                    "This is not {:?}: ask by the address or as localhost, or add the name to `hosts` in [admin].",
                    host.host()
                );
                return Err(ApiError(StatusCode::MISDIRECTED_REQUEST, message));
            }
        }
        Ok(())
    }

    fn is_this(&self, host: &str, reached: IpAddr) -> bool {
        let bare = host.trim_matches(['[', ']']);
        let address: Option<IpAddr> = bare.parse().ok();
        // Names may end with a dot.
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        address.is_some_and(|address| address.to_canonical() == reached.to_canonical())
            || name == "localhost"
            || self.hosts.contains(&name)
            || address.is_some_and(|address| self.hosts.iter().any(|known| known.parse() == Ok(address)))
    }

    /// Refuses a change that a page of another site sends through a browser (RFC 6454).
    fn judge_origin(&self, request: &Request) -> Result<(), ApiError> {
        let Some(origin) = request.headers().get(ORIGIN) else { return Ok(()) };
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(());
        }
        let here = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let there = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        match there.zip(here) {
            Some(((_, there), here)) if there.eq_ignore_ascii_case(here) => Ok(()),
            _ => {
                let message =
                    "A page of another site sends this: the farm is changed from this address only.";
                Err(ApiError(StatusCode::FORBIDDEN, message.to_owned()))
            }
        }
    }

    /// Returns the sender of a request, by its certificate or token.
    async fn judge_token(&self, sent: &Credentials, from: IpAddr) -> Result<Caller, ApiError> {
        let caller =
            |role, by: &str| Caller { author: Author { by: by.to_owned(), from: from.to_string() }, role };
        if !self.closed || is_open(&sent.path) {
            return Ok(caller(Role::Read, "anybody"));
        }
        if let Some(Holder { role, name }) = self.certified(sent).await {
            return Ok(caller(role, &name));
        }
        let refused = |message: &str| ApiError(StatusCode::UNAUTHORIZED, message.to_owned());
        let Some(tokens) = &self.tokens else {
            return Err(refused(
                "Without a token only /healthz and /ready are answered here: name a file with one as `token_file` in [admin], or \
                 certificates in [admin.tls].",
            ));
        };
        let [field] = &sent.authorization[..] else {
            return Err(refused("Send a token: `Authorization: Bearer TOKEN`."));
        };
        let now_ms = evener_dataplane::now_ns() / 1_000_000;
        if !self.throttle().may_look_up(now_ms, from) {
            let message = "Too many wrong tokens came from here: wait a moment.";
            return Err(ApiError(StatusCode::TOO_MANY_REQUESTS, message.to_owned()));
        }
        let unreadable = || {
            let message = "The tokens can't be read: see the daemon's log.";
            ApiError(StatusCode::SERVICE_UNAVAILABLE, message.to_owned())
        };
        let tokens = tokens.get().await.map_err(|error| {
            tracing::warn!("{error}; requests to the admin address are refused until the file is corrected");
            unreadable()
        })?;
        let tokens = tokens.ok_or_else(unreadable)?;
        let holder = bearer(field.as_bytes()).and_then(|token| tokens.holder(token));
        // The token may be a group member's, which the token file doesn't list. The group checks it
        // later.
        if holder.is_some() || !sent.path.starts_with(GROUPS) {
            self.throttle().looked_up(now_ms, from, holder.is_some());
        }
        match holder {
            Some(Holder { role, name }) => Ok(caller(*role, name)),
            None => Err(refused("The token is not one of this host.")),
        }
    }
}

/// Parts of a request that identify its sender.
struct Credentials {
    path: String,
    authorization: Vec<HeaderValue>,
    names: Option<PeerNames>,
}

impl Credentials {
    fn of(request: &Request) -> Credentials {
        Credentials {
            path: request.uri().path().to_owned(),
            authorization: request.headers().get_all(AUTHORIZATION).iter().cloned().collect(),
            names: request.extensions().get().cloned(),
        }
    }
}

impl Access {
    fn throttle(&self) -> MutexGuard<'_, TokenThrottle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a change by role `operate`. The error is the time to wait, in seconds.
    fn count_change(&self, caller: &Caller, method: &Method) -> Result<(), u64> {
        if caller.role != Role::Operate || matches!(*method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        let now_ms = evener_dataplane::now_ns() / 1_000_000;
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.count(now_ms, &caller.author.by)
    }

    /// Returns the holder of the client's certificate, if the file gives the certificate a role.
    async fn certified(&self, sent: &Credentials) -> Option<Holder> {
        let certificates = self.certificates.as_ref()?;
        let PeerNames(names) = sent.names.as_ref()?;
        if names.is_empty() {
            return None;
        }
        match certificates.get().await {
            Ok(known) => known?.holder(names).cloned(),
            Err(error) => {
                tracing::warn!(
                    "{error}; client certificates are refused at the admin address until the file is corrected"
                );
                None
            }
        }
    }
}

/// True if a path needs no token: the daemon's health, and the files of the dashboard, which
/// contain no data of the farm.
fn is_open(path: &str) -> bool {
    path == HEALTH
        || path == READY
        || path.starts_with(READY_OF)
        || path == dashboard::PAGE
        || path.starts_with(dashboard::FILES)
}

/// Returns the token of an Authorization field (RFC 6750, section 2.1).
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = field.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes()).then(|| token.trim_ascii())
}

/// Forwards requests of authenticated senders, with their [`Caller`]. Requests to groups pass
/// without one, since the group authenticates them.
pub(super) async fn guard(
    State(access): State<Arc<Access>>,
    Extension(OwnAddress(reached)): Extension<OwnAddress>,
    Extension(Peer(from)): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let sent_token = request.headers().contains_key(AUTHORIZATION);
    let mut is_unknown = false;
    let is_meant = access.judge_host(&request, reached).and_then(|()| access.judge_origin(&request));
    if let Err(failure) = is_meant {
        return failure.into_response();
    }
    match access.judge_token(&Credentials::of(&request), from).await {
        Ok(caller) => {
            if let Err(retry_s) = access.count_change(&caller, request.method()) {
                let message = format!(
                    "Role operate makes at most {CHANGES_A_MINUTE} changes a minute: wait {retry_s} s."
                );
                let mut response = ApiError(StatusCode::TOO_MANY_REQUESTS, message).into_response();
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_s));
                return response;
            }
            drop(request.extensions_mut().insert(caller));
        }
        // The request may have a credential of the group instead, which the control loop checks.
        Err(_) if request.uri().path().starts_with(GROUPS) => is_unknown = sent_token,
        Err(failure) => {
            let wants_token = failure.0 == StatusCode::UNAUTHORIZED;
            let mut response = failure.into_response();
            if wants_token {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            return response;
        }
    }
    let response = next.run(request).await;
    // The token is neither this host's nor the group's.
    if is_unknown && matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        access.throttle().looked_up(evener_dataplane::now_ns() / 1_000_000, from, false);
    }
    response
}

/// Identifies the user at the other end of the Unix socket. The socket's file mode has granted
/// access.
pub(super) async fn name_user(
    Extension(PeerUser(uid)): Extension<PeerUser>,
    mut request: Request,
    next: Next,
) -> Response {
    let name = |uid: u32| match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => format!("user {uid}"),
    };
    let by = uid.map_or_else(|| "somebody".to_owned(), name);
    let author = Author { by, from: "the admin socket".to_owned() };
    request.extensions_mut().insert(Caller { author, role: Role::Admin });
    next.run(request).await
}

/// Refuses requests whose caller's role is too low for the path and method.
pub(super) async fn authorize(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let method = match request.method() {
        &Method::HEAD => "GET",
        method => method.as_str(),
    };
    let methods = API_PATHS.iter().filter(|known| Some(known.path) == path.as_deref());
    let needed = methods.flat_map(|known| known.methods).find(|known| known.method == method);
    let role = request.extensions().get::<Caller>().map(|caller| caller.role);
    match needed.zip(role).filter(|(needed, role)| *role < needed.role) {
        None => {
            if let Some(progress) = request.extensions().get::<Progress>() {
                progress.begin_answer();
            }
            next.run(request).await
        }
        Some((needed, role)) => {
            let message = format!(
                "{method} {} requires role {}, and yours is {}: send a token of that role (`token_file` in [admin] lists them), or use the admin socket, as the commands do.",
                request.uri().path(),
                needed.role.name(),
                role.name()
            );
            ApiError(StatusCode::FORBIDDEN, message).into_response()
        }
    }
}
