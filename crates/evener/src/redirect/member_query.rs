//! Load queries to members: LOAD-QUERY, which the member answers with a separate message, and the
//! query that the group's `report` key configures.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use evener_core::farm::group::{QueryResult, Reach};
use evener_core::net::http::Url;
use evener_core::node::group::Verb;
use evener_core::pool::Reporting;
use evener_core::pool::report::{BadReport, Report};
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use tokio::sync::Semaphore;

use crate::http::client::{self, Destination};
use crate::io::locating::locate_port;
use crate::io::report;
use crate::runtime::tls;

/// Timeout of a query.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of concurrent queries. Further members are queried the next time.
const AT_ONCE: usize = 128;
/// Maximum number of bytes that are read of a response. The response is only read so that the
/// connection ends in order.
const READ: usize = 4 * 1024;

static PLACES: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(AT_ONCE));

/// A member to query.
pub(crate) struct MemberQuery {
    pub(crate) url: Url,
    /// True if the member has named this URL itself.
    pub(crate) is_named: bool,
    /// Allowed addresses of the member.
    pub(crate) reach: Option<Reach>,
    /// Addresses on which this daemon listens.
    pub(crate) own: Arc<[SocketAddr]>,
    /// Addresses of the group. Queries are sent from one of them, since members know the director
    /// by these addresses.
    pub(crate) from: Vec<IpAddr>,
    /// Authorities that sign members' certificates. `None`: the authorities of this system.
    pub(crate) ca: Option<PathBuf>,
}

/// Sends a LOAD-QUERY to a member. The load arrives later, as a message.
pub(crate) async fn query_load(question: MemberQuery) -> QueryResult {
    let MemberQuery { url, is_named, reach, own, from, ca } = question;
    let Ok(_place) = PLACES.try_acquire() else {
        tracing::debug!(%url, "no load query: too many queries are in progress");
        return QueryResult::Unanswered;
    };
    let sent = async {
        let at = locate_port(&url, url.port(), reach.as_ref(), &own).await.map_err(io::Error::other)?;
        let from = from.into_iter().find(|from| !from.is_unspecified() && from.is_ipv4() == at.is_ipv4());
        let tls = url.is_secure().then(|| tls::client(ca.as_deref(), None));
        let tls = tls.transpose().map_err(io::Error::other)?;
        let destination = Destination::of_url(&url, at, from, tls.as_ref())?;
        client::send(&destination, message(&url)?, READ).await
    };
    match tokio::time::timeout(TIMEOUT, sent).await {
        Ok(Ok(answer)) => {
            tracing::debug!(%url, status = answer.status, "sent a load query");
            QueryResult::of_status(answer.status, is_named)
        }
        Ok(Err(error)) => {
            tracing::debug!(%url, %error, "failed to send a load query");
            if error.is_refused() { QueryResult::Refused } else { QueryResult::Unanswered }
        }
        Err(_) => {
            tracing::debug!(%url, "a load query timed out");
            QueryResult::Unanswered
        }
    }
}

fn message(url: &Url) -> io::Result<Request<Full<Bytes>>> {
    let mut request = client::request(Verb::LoadQuery.name(), url.path(), url.authority())?;
    request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    Ok(request)
}

/// Queries a member's host for the load.
///
/// # Errors
/// The reason why the response is no valid report.
pub(crate) async fn fetch_report(
    url: Url,
    reach: Option<Reach>,
    own: Arc<[SocketAddr]>,
    settings: Arc<Reporting>,
) -> Result<Report, BadReport> {
    let located = locate_port(&url, settings.port, reach.as_ref(), &own);
    let located = tokio::time::timeout(Duration::from_millis(settings.timeout_ms), located).await;
    let to = located.map_err(|_| BadReport::Silent)?.map_err(|_| BadReport::Silent)?;
    report::fetch(to, &settings).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn load_query_matches_document() {
        let of = |url: &str| message(&Url::parse(url).unwrap()).unwrap();
        let query = of("http://m1.example:9184/load");
        assert_eq!((query.method().as_str(), query.uri().path()), ("LOAD-QUERY", "/load"));
        let fields =
            query.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        let expected =
            ["host: m1.example:9184", "user-agent: evener", "connection: close", "content-length: 0"];
        assert_eq!(fields.collect::<Vec<_>>(), expected);
        assert_eq!(of("http://m1").uri().path(), "/");
    }

    async fn queried(answer: Option<&'static [u8]>, is_named: bool) -> QueryResult {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let server = answer.map(|answer| {
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(answer).await.unwrap();
                stream.shutdown().await.unwrap();
                std::future::pending::<()>().await;
            })
        });
        let own = Arc::new([]);
        let question = MemberQuery { url, is_named, reach: None, own, from: Vec::new(), ca: None };
        let queried = query_load(question).await;
        server.into_iter().for_each(|server| server.abort());
        queried
    }

    #[tokio::test]
    async fn refused_connection_or_404_of_named_control_is_a_refusal() {
        assert_eq!(queried(None, false).await, QueryResult::Refused);
        let unknown = Some(&b"HTTP/1.1 404 Not Found\r\n\r\n"[..]);
        assert_eq!(queried(unknown, true).await, QueryResult::Refused);
        assert_eq!(queried(unknown, false).await, QueryResult::Unanswered);
        for other in
            [&b"HTTP/1.1 405 No\r\n\r\n"[..], b"HTTP/1.1 501 No\r\n\r\n", b"HTTP/1.1 204 Yes\r\n\r\n", b""]
        {
            assert_eq!(queried(Some(other), false).await, QueryResult::Unanswered);
        }
    }
}
