//! Serves one client's connection through hyper. Core checks each request's head first
//! ([`RequestStream`]), since hyper is less strict and hides some details that must be refused.

use std::convert::Infallible;
use std::time::Duration;

use evener_core::net::http::{self, HEAD_MAX, HEADERS_MAX, HttpRefusal};
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::request_stream::{RequestStream, StreamRest};
use super::{end, last_bytes};

/// Maximum time to drop a client's bytes after the last response.
const LINGER: Duration = Duration::from_secs(2);

/// Limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionBounds {
    /// Time limit of a head from its first byte, and time limit until the first head begins.
    pub(crate) head: Duration,
    /// Maximum idle time between two requests. `None` for a single request.
    pub(crate) idle: Option<Duration>,
    /// True if a client that has closed its direction still gets a response. If false, the response
    /// ends as soon as the client closes its direction.
    pub(crate) half_close: bool,
}

/// Serves a connection until its end. A refused request is passed to `refused` with its first
/// bytes, and answered here.
pub(crate) async fn serve<B, F>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    bounds: &ConnectionBounds,
    service: impl Fn(Request<Incoming>) -> F,
    refused: impl FnOnce(HttpRefusal, &[u8]),
) where
    F: Future<Output = Response<B>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let service = service_fn(|request: Request<Incoming>| {
        // After a chunked body no further request is read.
        let is_last = request.headers().contains_key(TRANSFER_ENCODING);
        let response = service(request);
        async move {
            let mut response = response.await;
            if is_last {
                close(&mut response);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut hyper = http1::Builder::new();
    hyper
        .keep_alive(bounds.idle.is_some())
        .half_close(bounds.half_close)
        .title_case_headers(true)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX);
    let mut stream = RequestStream::new(stream, *bounds);
    while stream.next_request().await {
        if let Err(error) = hyper.serve_connection(TokioIo::new(&mut stream), &service).await {
            tracing::debug!(%error, "a client's connection failed");
            break;
        }
    }
    let StreamRest { stream, refusal, lingers } = stream.into_rest();
    if let Some((refusal, head)) = &refusal {
        refused(*refusal, head);
    }
    let last = refusal.map(|(refusal, _)| last_bytes(&http::Response::refusal(refusal)));
    end(stream, &last.unwrap_or_default(), lingers, LINGER).await;
}

/// Makes a response the connection's last one.
pub(crate) fn close<B>(response: &mut Response<B>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use http_body_util::Full;
    use hyper::body::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(3_600);

    /// Returns the response statuses of a connection that the server closes, and the reported
    /// refusal.
    async fn statuses(
        head: Duration,
        idle: Option<Duration>,
        talk: impl AsyncFnOnce(&mut DuplexStream),
    ) -> (Vec<u16>, Option<HttpRefusal>) {
        let (mut client, server) = duplex(64 * 1024);
        let bounds = ConnectionBounds { head, idle, half_close: true };
        let refusal = Cell::new(None);
        let answer = |_| async { Response::new(Full::<Bytes>::default()) };
        let served = serve(server, &bounds, answer, |why, _| refusal.set(Some(why)));
        let answers = async {
            talk(&mut client).await;
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            drop(client);
            let lines = text.lines().filter_map(|line| line.strip_prefix("HTTP/1.1 "));
            lines.map(|rest| rest[..3].parse().unwrap()).collect()
        };
        let ((), statuses) = tokio::join!(served, answers);
        (statuses, refusal.get())
    }

    #[tokio::test]
    async fn late_head_is_refused_and_idle_connection_ends() {
        let late = (vec![408], Some(HttpRefusal::Timeout));
        assert_eq!(statuses(SHORT, Some(LONG), async |_| ()).await, (vec![], None));
        let partial = async |client: &mut DuplexStream| client.write_all(b"GET").await.unwrap();
        assert_eq!(statuses(SHORT, Some(LONG), partial).await, late);
        let bytes = async |client: &mut DuplexStream| {
            for byte in b"GET / HTTP/1.1\r\nHost: a\r\nX: ".iter().chain([b'x'].iter().cycle()) {
                if client.write_all(&[*byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(SHORT / 5).await;
            }
        };
        assert_eq!(statuses(SHORT, Some(LONG), bytes).await, late);
        let first = async |client: &mut DuplexStream| client.write_all(GET).await.unwrap();
        assert_eq!(statuses(LONG, Some(SHORT), first).await, (vec![200], None));
        let second = async |client: &mut DuplexStream| {
            client.write_all(&[GET, b"GET"].concat()).await.unwrap();
        };
        assert_eq!(statuses(SHORT, Some(LONG), second).await, (vec![200, 408], Some(HttpRefusal::Timeout)));
    }

    #[tokio::test]
    async fn single_request_is_answered_whatever_follows_it() {
        let junk = async |client: &mut DuplexStream| {
            client.write_all(&[GET, b"\n\0 GET"].concat()).await.unwrap();
        };
        assert_eq!(statuses(LONG, None, junk).await, (vec![200], None));
    }

    #[tokio::test]
    async fn refused_request_is_answered_behind_those_before_it() {
        let bad = async |client: &mut DuplexStream| {
            client.write_all(&[GET, GET, b"GET / HTTP/1.1\r\n\r\n"].concat()).await.unwrap();
        };
        let expected = (vec![200, 200, 400], Some(HttpRefusal::Host));
        assert_eq!(statuses(LONG, Some(LONG), bad).await, expected);
    }
}
