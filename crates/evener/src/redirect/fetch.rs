//! What clients want of members that they never learn of is fetched for them, and passed on as it comes.

use std::net::SocketAddr;
use std::time::Duration;

use evener_core::net::http::Url;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use hyper::{Request, Response, Uri, Version};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::attendant::Body;

/// How long a member may take to open a connection, and to begin its answer.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(60);
/// Connections that are kept for later, of each member, and for how long.
const KEPT: usize = 32;
const KEPT_FOR: Duration = Duration::from_secs(10);

/// What concerns one connection and no more (RFC 9110, section 7.6.1); others are named by `Connection`.
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

/// Who fetches.
#[derive(Clone)]
pub(super) struct Client(legacy::Client<HttpConnector, Incoming>);

/// What came of it.
pub(super) enum Fetch {
    Answer(Response<Body>),
    /// Nothing: a status and a sentence for the client, in which the member has no name.
    Failed(u16, &'static str),
}

impl Client {
    pub(super) fn new() -> Client {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(KEPT)
            .pool_idle_timeout(KEPT_FOR)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Client(client)
    }

    /// Asks a member what its client asked.
    pub(super) async fn fetch(
        &self,
        url: &Url,
        request: Request<Incoming>,
        client: SocketAddr,
        by_tls: bool,
    ) -> Fetch {
        let Some(request) = forwarded(url, request, client, by_tls) else {
            return Fetch::Failed(400, "The request can't be passed on.");
        };
        match tokio::time::timeout(ANSWER, self.0.request(request)).await {
            Ok(Ok(response)) => Fetch::Answer(passed_back(url, response)),
            Ok(Err(error)) => {
                tracing::debug!(%error, %url, "a member did not answer");
                Fetch::Failed(502, "The server did not answer.")
            }
            Err(_) => Fetch::Failed(504, "The server did not answer in time."),
        }
    }
}

/// The request as its member gets it: below the member's URL, with the host that the client named, so that the member's own links lead
/// to the group.
fn forwarded(
    url: &Url,
    request: Request<Incoming>,
    client: SocketAddr,
    by_tls: bool,
) -> Option<Request<Incoming>> {
    let (mut head, body) = request.into_parts();
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let path = target.trim_start_matches(['/', '\\']);
    head.uri = format!("{url}/{path}").parse::<Uri>().ok()?;
    head.version = Version::HTTP_11;
    remove_hop(&mut head.headers);
    let from = client.ip().to_canonical().to_string();
    let before: Vec<_> = head.headers.get_all("x-forwarded-for").iter().collect();
    let mut chain = Vec::new();
    for value in before {
        chain.extend_from_slice(value.as_bytes());
        chain.extend_from_slice(b", ");
    }
    chain.extend_from_slice(from.as_bytes());
    head.headers.insert("x-forwarded-for", HeaderValue::from_bytes(&chain).ok()?);
    let scheme = if by_tls { "https" } else { "http" };
    head.headers.insert("x-forwarded-proto", HeaderValue::from_static(scheme));
    head.headers.insert("via", HeaderValue::from_static("1.1 evener"));
    Some(Request::from_parts(head, body))
}

/// The answer as the client gets it, without the member's URL.
fn passed_back(url: &Url, response: Response<Incoming>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    remove_hop(&mut head.headers);
    let below = head.headers.get(LOCATION).and_then(|to| below(url, to.to_str().ok()?));
    if let Some(path) = below.and_then(|path| HeaderValue::from_str(&path).ok()) {
        head.headers.insert(LOCATION, path);
    }
    head.version = Version::HTTP_11;
    Response::from_parts(head, body.boxed())
}

/// The path of a location below a member's URL: one that begins with one slash.
fn below(url: &Url, location: &str) -> Option<String> {
    let rest = location.strip_prefix(url.as_str())?;
    let is_whole = rest.is_empty() || rest.starts_with(['/', '?', '#']);
    is_whole.then(|| format!("/{}", rest.trim_start_matches(['/', '\\'])))
}

fn remove_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
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
    }

    #[test]
    fn what_is_of_one_hop_goes_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("connection", "x-own, close"), ("x-own", "1"), ("te", "trailers"), ("x-kept", "2")]
        {
            headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
        }
        remove_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
    }
}
