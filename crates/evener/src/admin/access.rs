//! Access over TCP. A web page must not reach the farm through the browser of somebody who may (DNS
//! rebinding), so requests have to name a host that this one is; and an address that is not
//! loopback is for those with a token.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::api::ApiError;
use crate::config;
use crate::runtime::token::{TokenError, Tokens};

/// The paths that are answered without a token: they show no more than whether the daemon works.
const OPEN: &str = "/healthz";
/// Below this path a token of the group does as well: the control loop asks for it.
pub(super) const GROUPS: &str = "/v1/groups/";
const SCHEME: &str = "bearer ";

/// The address of this host that a connection came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnAddress(pub(super) IpAddr);

/// The address that a connection came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

/// Whether who asks may look at all that there is, by this address's own rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPermission(pub(super) bool);

/// The requirements for a client.
#[derive(Debug)]
pub(super) struct Access {
    /// Names of this host that requests may have besides its addresses, in lower case.
    hosts: Vec<String>,
    /// Whether a token is needed.
    closed: bool,
    /// Read for each request, so that tokens can be changed while the daemon runs.
    token_file: Option<PathBuf>,
}

impl Access {
    /// By the configuration, for this address.
    ///
    /// # Errors
    /// When it has a file of tokens that can't be used.
    pub(super) fn new(admin: &config::AdminConfig, listen: SocketAddr) -> Result<Access, TokenError> {
        let closed = !listen.ip().is_loopback() || admin.token_file.is_some();
        match &admin.token_file {
            Some(path) => drop(Tokens::read(path)?),
            None if closed => tracing::warn!(
                "{listen} is not a loopback address and [admin] has no token_file: only /healthz is answered there"
            ),
            None => {}
        }
        Ok(Access { hosts: admin.hosts.clone(), closed, token_file: admin.token_file.clone() })
    }

    /// Whether a request was meant for this host (RFC 9110, section 7.4).
    fn judge_host(&self, request: &Request, reached: IpAddr) -> Result<(), ApiError> {
        let malformed = || {
            let message = "A request names the host that it is for, once (RFC 9112, section 3.2).";
            ApiError(StatusCode::BAD_REQUEST, message.to_owned())
        };
        let mut fields = request.headers().get_all(HOST).iter();
        let named = match (fields.next(), fields.next()) {
            (Some(host), None) => Some(host.to_str().map_err(|_| malformed())?),
            // Probes of HTTP/1.0 name none; every browser does.
            (None, _) if request.version() < Version::HTTP_11 => None,
            _ => return Err(malformed()),
        };
        let named = named.map(|host| host.parse::<Authority>().map_err(|_| malformed())).transpose()?;
        // The host in the request line goes before the field (RFC 9112, section 3.2.2), and both
        // must be right.
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
        // Names as people may write them, with the dot at the end.
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        address.is_some_and(|address| address.to_canonical() == reached.to_canonical())
            || name == "localhost"
            || self.hosts.contains(&name)
            || address.is_some_and(|address| self.hosts.iter().any(|known| known.parse() == Ok(address)))
    }

    /// Whether who asks may see this.
    fn judge_token(&self, request: &Request) -> Result<(), ApiError> {
        if !self.closed || request.uri().path() == OPEN {
            return Ok(());
        }
        let refused = |message: &str| ApiError(StatusCode::UNAUTHORIZED, message.to_owned());
        let Some(path) = &self.token_file else {
            return Err(refused(
                "Without a token only /healthz is answered here: name a file with one as `token_file` in [admin].",
            ));
        };
        let mut fields = request.headers().get_all(AUTHORIZATION).iter();
        let (Some(field), None) = (fields.next(), fields.next()) else {
            return Err(refused("Send a token: `Authorization: Bearer TOKEN`."));
        };
        let tokens = Tokens::read(path).map_err(|error| {
            tracing::warn!("{error}; nobody can look at the admin address until that is mended");
            ApiError(
                StatusCode::SERVICE_UNAVAILABLE,
                "The tokens can't be read: see the daemon's log.".to_owned(),
            )
        })?;
        match bearer(field.as_bytes()) {
            Some(token) if tokens.have(token) => Ok(()),
            _ => Err(refused("That is none of the tokens of this host.")),
        }
    }
}

/// The token in a field (RFC 6750, section 2.1).
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = field.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes()).then(|| token.trim_ascii())
}

/// Lets through who may look.
pub(super) async fn guard(
    State(access): State<Arc<Access>>,
    Extension(OwnAddress(reached)): Extension<OwnAddress>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Err(failure) = access.judge_host(&request, reached) {
        return failure.into_response();
    }
    let judged = access.judge_token(&request);
    request.extensions_mut().insert(ReadPermission(judged.is_ok()));
    match judged {
        Err(failure) if !request.uri().path().starts_with(GROUPS) => {
            let wants_token = failure.0 == StatusCode::UNAUTHORIZED;
            let mut response = failure.into_response();
            if wants_token {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
        Ok(()) | Err(_) => next.run(request).await,
    }
}
