//! Fetches responses of anonymous members, and streams them to the client.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use evener_core::farm::group::Reach;
use evener_core::net::http::{Url, has_hidden_dots};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{
    CONTENT_LENGTH, CONTENT_LOCATION, HOST, HeaderMap, HeaderName, HeaderValue, LINK, LOCATION, REFRESH,
    SET_COOKIE, UPGRADE, VIA,
};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, Uri, Version};

use crate::http::client::{Pool, pooled};
use crate::io::locating::locate;

/// Time limits for connecting to a member, and for the beginning of its response.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(60);
/// Maximum wait for the first data of a member's body before the response is passed on. If that
/// data is damaged, the client gets an error instead. The wait is short, since event streams may
/// begin with silence.
const FIRST_DATA: Duration = Duration::from_millis(100);
/// Maximum number of idle connections per member, and their lifetime.
const KEPT: usize = 32;
const KEPT_FOR: Duration = Duration::from_secs(10);

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Hop-by-hop fields (RFC 9110, section 7.6.1). `Connection` names further fields.
const OF_ONE_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Body that is streamed.
pub(super) type FetchedBody = BoxBody<Bytes, hyper::Error>;

/// HTTP client for anonymous members.
#[derive(Clone)]
pub(super) struct MemberClient {
    client: Pool<FetchedBody>,
    /// Hash key of the groups' pseudonyms in `Via` fields. The pseudonyms of two directors differ.
    pseudonyms: RandomState,
}

/// Group and client of a request.
pub(super) struct FetchContext<'a> {
    pub(super) group: &'a str,
    pub(super) client: SocketAddr,
    pub(super) by_tls: bool,
}

/// A member, and the limits on its address.
pub(super) struct Destination<'a> {
    pub(super) url: &'a Url,
    pub(super) reach: Option<&'a Reach>,
    /// Addresses on which this daemon listens.
    pub(super) own: &'a [SocketAddr],
}

/// Result of a fetch.
pub(super) enum Fetch {
    Answer(Response<FetchedBody>),
    /// Status and text for the client. The text does not name the member.
    Failed(u16, &'static str),
}

impl MemberClient {
    pub(super) fn new() -> MemberClient {
        MemberClient { client: pooled(CONNECT, KEPT, KEPT_FOR), pseudonyms: RandomState::new() }
    }

    /// Sends the client's request to a member, if the member's address is allowed.
    pub(super) async fn fetch(
        &self,
        member: &Destination<'_>,
        request: Request<Incoming>,
        by: &FetchContext<'_>,
    ) -> Fetch {
        let url = member.url;
        let pseudonym = format!("evener-{:016x}", self.pseudonyms.hash_one(by.group));
        if has_passed(request.headers(), &pseudonym) {
            return Fetch::Failed(
                508,
                "The request has come back to this group, which would pass it on for ever.",
            );
        }
        if wants_websocket(request.headers()) {
            return Fetch::Failed(501, "Connections are not upgraded here.");
        }
        let at = match tokio::time::timeout(CONNECT, locate(url, member.reach, member.own)).await {
            Ok(Ok(at)) => at,
            Ok(Err(error)) => {
                tracing::debug!(%error, %url, "failed to request a member's page");
                return Fetch::Failed(502, "The server can't be asked.");
            }
            Err(_) => return Fetch::Failed(504, "The server's name was not resolved in time."),
        };
        let (mut head, body) = request.into_parts();
        if forward(url, at, &mut head, by, &pseudonym).is_none() {
            return Fetch::Failed(400, "The request can't be passed on.");
        }
        let broke_off = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&broke_off);
        let body = body.map_err(move |error| {
            noted.store(true, Relaxed);
            error
        });
        match tokio::time::timeout(ANSWER, self.client.request(Request::from_parts(head, body.boxed()))).await
        {
            Ok(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Fetch::Failed(502, "The server switched to a protocol that was not requested.")
            }
            Ok(Ok(response)) => passed_back(url, response).await,
            Ok(Err(_)) if broke_off.load(Relaxed) => {
                Fetch::Failed(400, "The request's body is not as HTTP has it.")
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, %url, "a member did not answer");
                Fetch::Failed(502, "The server did not answer.")
            }
            Err(_) => Fetch::Failed(504, "The server did not answer in time."),
        }
    }
}

/// True if a request was forwarded under this pseudonym before (RFC 9110, section 7.6.3).
fn has_passed(headers: &HeaderMap, pseudonym: &str) -> bool {
    let passed = |value: &HeaderValue| {
        value
            .to_str()
            .is_ok_and(|value| value.split(',').any(|by| by.split_whitespace().nth(1) == Some(pseudonym)))
    };
    headers.get_all(VIA).iter().any(passed)
}

fn wants_websocket(headers: &HeaderMap) -> bool {
    let is = |value: &HeaderValue| {
        value.to_str().is_ok_and(|value| {
            value.split(',').any(|protocol| protocol.trim().eq_ignore_ascii_case("websocket"))
        })
    };
    headers.get_all(UPGRADE).iter().any(is)
}

/// Rewrites a request's head for the member: below the member's URL, with the client's Host field,
/// so that the member's own links lead to the group.
fn forward(
    url: &Url,
    at: SocketAddr,
    head: &mut Parts,
    by: &FetchContext<'_>,
    pseudonym: &str,
) -> Option<()> {
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    if has_hidden_dots(head.uri.path()) {
        return None;
    }
    let path = target.trim_start_matches(['/', '\\']);
    let named = head.uri.authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    head.uri = format!("http://{at}{}/{path}", url.path()).parse::<Uri>().ok()?;
    head.version = Version::HTTP_11;
    remove_hop(&mut head.headers);
    if let Some(named) = named {
        head.headers.insert(HOST, named.ok()?);
    }
    if !head.headers.contains_key(HOST) {
        head.headers.insert(HOST, HeaderValue::from_str(url.authority()).ok()?);
    }
    let from = by.client.ip().to_canonical().to_string();
    add(&mut head.headers, &X_FORWARDED_FOR, &from)?;
    let scheme = if by.by_tls { "https" } else { "http" };
    head.headers.insert("x-forwarded-proto", HeaderValue::from_static(scheme));
    add(&mut head.headers, &VIA, &format!("1.1 {pseudonym}"))
}

/// Appends a value to a list field, and joins the lines of the field into one.
fn add(headers: &mut HeaderMap, name: &HeaderName, value: &str) -> Option<()> {
    let mut list = Vec::new();
    for before in headers.get_all(name) {
        list.extend_from_slice(before.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(value.as_bytes());
    headers.insert(name, HeaderValue::from_bytes(&list).ok()?);
    Some(())
}

/// Returns the response for the client, without the member's URL. Fails if the body is damaged at
/// its beginning.
async fn passed_back(url: &Url, response: Response<Incoming>) -> Fetch {
    let (mut head, mut body) = response.into_parts();
    let first = match tokio::time::timeout(FIRST_DATA, body.frame()).await {
        Ok(Some(Err(error))) => {
            tracing::debug!(%error, %url, "a member's answer is not HTTP");
            return Fetch::Failed(502, "The server's answer is not as HTTP has it.");
        }
        Ok(Some(Ok(frame))) => Some(frame),
        Ok(None) | Err(_) => None,
    };
    remove_hop(&mut head.headers);
    hide(url, &mut head.headers);
    head.version = Version::HTTP_11;
    Fetch::Answer(Response::from_parts(head, BodyWithFirst { first, rest: body }.boxed()))
}

/// A body whose first frame was already read.
struct BodyWithFirst {
    first: Option<Frame<Bytes>>,
    rest: Incoming,
}

impl Body for BodyWithFirst {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.first.take() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().and_then(Frame::data_ref).map_or(0, |data| data.len() as u64);
        let rest = self.rest.size_hint();
        let mut whole = SizeHint::new();
        whole.set_lower(rest.lower() + first);
        if let Some(upper) = rest.upper() {
            whole.set_upper(upper + first);
        }
        whole
    }
}

/// Removes the member's URL from all fields that contain one.
fn hide(url: &Url, headers: &mut HeaderMap) {
    for (name, value) in headers.iter_mut() {
        let Ok(text) = value.to_str() else { continue };
        let hidden = match *name {
            LOCATION | CONTENT_LOCATION => below(url, text),
            REFRESH => text
                .split_once('=')
                .and_then(|(before, to)| Some(format!("{before}={}", below(url, to.trim_matches('"'))?))),
            LINK => links_below(url, text),
            SET_COOKIE => without_domain(url, text),
            _ => None,
        };
        if let Some(hidden) = hidden.and_then(|hidden| HeaderValue::from_str(&hidden).ok()) {
            *value = hidden;
        }
    }
}

/// Returns the client's path for a location on the member: the path below the member's URL, or the
/// location's own path, since the member's name must not appear. The path begins with a single
/// slash.
fn below(url: &Url, location: &str) -> Option<String> {
    let location = location.trim();
    let path = match location.split_once("//") {
        Some((scheme, rest)) if scheme.is_empty() || is_http(scheme) => {
            let end = rest.find(['/', '\\', '?', '#']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            let scheme = if scheme.is_empty() { url.as_str() } else { scheme };
            let (scheme, _) = scheme.split_once(':')?;
            let at = Url::parse(&format!("{scheme}://{host}")).ok()?;
            ((at.host(), at.port()) == (url.host(), url.port())).then_some(path)?
        }
        _ if location.starts_with('/') && !url.path().is_empty() => location,
        _ => return None,
    };
    let rest =
        path.strip_prefix(url.path()).filter(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']));
    Some(format!("/{}", rest.unwrap_or(path).trim_start_matches(['/', '\\'])))
}

fn is_http(scheme: &str) -> bool {
    ["http:", "https:"].iter().any(|http| scheme.eq_ignore_ascii_case(http))
}

/// Rewrites links (RFC 8288, section 3). Links below the member's URL lead to the group.
fn links_below(url: &Url, links: &str) -> Option<String> {
    let mut parts = links.split('<');
    let mut hidden = parts.next()?.to_owned();
    for part in parts {
        let (target, rest) = part.split_once('>')?;
        let target = below(url, target).unwrap_or_else(|| target.to_owned());
        hidden += &format!("<{target}>{rest}");
    }
    Some(hidden)
}

/// Removes the member's domain from a cookie. The client then sends it to the host that set it,
/// which is the group (RFC 6265, section 5.3).
fn without_domain(url: &Url, cookie: &str) -> Option<String> {
    let names_member = |attribute: &&str| {
        let domain = attribute.split_once('=').filter(|(name, _)| name.trim().eq_ignore_ascii_case("domain"));
        domain.is_some_and(|(_, domain)| {
            let domain = domain.trim().trim_start_matches('.').to_ascii_lowercase();
            let host = url.host().to_ascii_lowercase();
            host == domain || host.ends_with(&format!(".{domain}"))
        })
    };
    let kept: Vec<&str> = cookie.split(';').filter(|attribute| !names_member(attribute)).collect();
    Some(kept.join(";"))
}

fn remove_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // `Host` and `Content-Length` are never hop-by-hop, even if `Connection` names them.
    for name in named.into_iter().filter(|name| *name != HOST && *name != CONTENT_LENGTH) {
        headers.remove(name);
    }
    for name in OF_ONE_HOP {
        headers.remove(name);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_members_url_is_taken_from_its_answers() {
        let url = Url::parse("http://m1:8080").unwrap();
        assert_eq!(below(&url, "http://m1:8080/a?b").as_deref(), Some("/a?b"));
        assert_eq!(below(&url, "http://m1:8080").as_deref(), Some("/"));
        assert_eq!(below(&url, "http://m1:8080//evil").as_deref(), Some("/evil"));
        assert_eq!(below(&url, "http://m1:80801/a"), None);
        assert_eq!(below(&url, "https://elsewhere/"), None);
        assert_eq!(below(&url, "/relative"), None);
        assert_eq!(below(&url, "a//m1:8080/b"), None);
        for same in ["HTTP://m1:8080/a", "//M1:8080/a", " http://x@m1:8080/a", "Http://m1:8080\\a"] {
            assert_eq!(below(&url, same).as_deref(), Some("/a"), "{same}");
        }
        let shop = Url::parse("http://m1/shop").unwrap();
        for (location, expected) in [
            ("http://m1/shop/a", Some("/a")),
            ("http://m1:80/other?x", Some("/other?x")),
            ("//m1/shopping", Some("/shopping")),
            ("/shop/a", Some("/a")),
            ("/shop", Some("/")),
            ("//elsewhere/shop/a", None),
            ("http://m1:81/shop", None),
        ] {
            assert_eq!(below(&shop, location).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn fields_that_name_the_member_name_the_group() {
        let url = Url::parse("http://m1.example:8080/shop").unwrap();
        let fields = [
            ("content-location", "http://m1.example:8080/shop/a", "/a"),
            ("refresh", "5; url=http://m1.example:8080/shop/b", "5; url=/b"),
            (
                "link",
                "<http://m1.example:8080/shop/c>; rel=next, <http://o/d>; rel=x",
                "</c>; rel=next, <http://o/d>; rel=x",
            ),
            ("set-cookie", "a=1; Domain=.Example; Path=/", "a=1; Path=/"),
            ("location", "http://m1.example:8080/shopping", "/shopping"),
        ];
        for (name, value, expected) in fields {
            let mut headers = HeaderMap::new();
            headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
            hide(&url, &mut headers);
            assert_eq!(headers.get(name).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn a_request_that_has_passed_is_known_by_its_pseudonym() {
        let mut headers = HeaderMap::new();
        assert!(!has_passed(&headers, "evener-1"));
        add(&mut headers, &VIA, "1.1 other").unwrap();
        assert!(!has_passed(&headers, "evener-1"));
        add(&mut headers, &VIA, "1.1 evener-1").unwrap();
        add(&mut headers, &VIA, "1.1 another (comment)").unwrap();
        assert!(has_passed(&headers, "evener-1"));
        assert_eq!(headers.get(VIA).unwrap(), "1.1 other, 1.1 evener-1, 1.1 another (comment)");
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "x-own, host, close"),
            ("host", "a"),
            ("x-own", "1"),
            ("te", "trailers"),
            ("x-kept", "2"),
        ] {
            headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
        }
        remove_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["host", "x-kept"]);
    }
}
