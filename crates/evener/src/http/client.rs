//! HTTP client. For single requests the caller resolves the address and sets the timeout.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evener_core::net::http::Url;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

/// Client with pooled connections to many servers, without TLS.
pub(crate) type Pool<B> = legacy::Client<HttpConnector, B>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'a> {
    pub(crate) to: SocketAddr,
    /// Local address to connect from. `None` for any address.
    pub(crate) from: Option<IpAddr>,
    /// For TLS: host name of the certificate, and the trusted authorities.
    pub(crate) tls: Option<(&'a str, &'a Arc<ClientConfig>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Body, up to the maximum length.
    pub(crate) body: Vec<u8>,
    /// Time from the request to the end of the body.
    pub(crate) duration: Duration,
}

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error(transparent)]
    Connection(#[from] io::Error),
    /// The response is not HTTP, or was cut off.
    #[error("the reply is not HTTP: {0}")]
    Answer(#[from] hyper::Error),
}

impl RequestError {
    /// True if the server's response was invalid.
    pub(crate) fn is_of_answer(&self) -> bool {
        matches!(self, RequestError::Answer(error) if error.is_parse() || error.is_incomplete_message())
    }

    /// True if no process listens at the address.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, RequestError::Connection(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

impl<'a> Destination<'a> {
    /// Returns a destination without TLS.
    pub(crate) fn plain(to: SocketAddr) -> Destination<'a> {
        Destination { to, from: None, tls: None }
    }

    /// Returns the destination of a URL. `tls` has the trusted authorities for https.
    ///
    /// # Errors
    /// With https and without `tls`.
    pub(crate) fn of_url(
        url: &'a Url,
        to: SocketAddr,
        from: Option<IpAddr>,
        tls: Option<&'a Arc<ClientConfig>>,
    ) -> io::Result<Destination<'a>> {
        let no_tls = || {
            io::Error::new(io::ErrorKind::Unsupported, "it wants TLS, and there are no authorities to trust")
        };
        let tls = match url.is_secure() {
            true => Some((url.host().trim_matches(['[', ']']), tls.ok_or_else(no_tls)?)),
            false => None,
        };
        Ok(Destination { to, from, tls })
    }
}

/// Builds a request without a body. The method may be any token, the target must be a path.
///
/// # Errors
/// If a part is invalid in a request.
pub(crate) fn request(method: &str, target: &str, host: &str) -> io::Result<Request<Full<Bytes>>> {
    let bad = |error: &dyn std::error::Error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string());
    let method = Method::from_bytes(method.as_bytes()).map_err(|error| bad(&error))?;
    let request = Request::builder()
        .method(method)
        .uri(if target.is_empty() { "/" } else { target })
        .header(HOST, host)
        .header(USER_AGENT, HeaderValue::from_static("evener"))
        .header(CONNECTION, HeaderValue::from_static("close"));
    request.body(Full::default()).map_err(|error| bad(&error))
}

/// Sends a request, and reads the response with at most `most` bytes of its body.
///
/// # Errors
/// If the connection fails or breaks, the certificate is invalid, or the response is no HTTP.
pub(crate) async fn send(
    destination: &Destination<'_>,
    request: Request<Full<Bytes>>,
    most: usize,
) -> Result<Answer, RequestError> {
    let Destination { to, from, tls } = *destination;
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
        socket.bind((from, 0).into())?;
    }
    let stream: TcpStream = socket.connect(to).await?;
    let Some((host, tls)) = tls else { return exchange(stream, request, most).await };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?;
    exchange(stream, request, most).await
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
    most: usize,
) -> Result<Answer, RequestError> {
    let began = Instant::now();
    let mut response = begin(stream, request).await?;
    let is_open_ended = response.body().size_hint().exact().is_none();
    let mut body = Vec::new();
    while body.len() < most {
        match response.frame().await {
            None => break,
            Some(Ok(frame)) => body.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
            // Some servers close TLS connections without the closing message.
            Some(Err(_)) if is_open_ended && !body.is_empty() => break,
            Some(Err(error)) => return Err(error.into()),
        }
    }
    body.truncate(most);
    Ok(Answer { status: response.status().as_u16(), body, duration: began.elapsed() })
}

/// Sends a request through a connection, and returns the response's head.
///
/// # Errors
/// If the connection breaks, or the response is no HTTP.
pub(crate) async fn begin<B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<B>,
) -> Result<Response<Incoming>, hyper::Error>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let builder = &mut http1::Builder::new();
    let (mut sender, connection) = builder.title_case_headers(true).handshake(TokioIo::new(stream)).await?;
    // The task moves the connection's bytes. Errors of the task also show in the response.
    tokio::spawn(connection);
    sender.send_request(request).await
}

/// Returns a client that pools connections: at most `kept` idle ones per server, for `kept_for`.
pub(crate) fn pooled<B>(connect: Duration, kept: usize, kept_for: Duration) -> Pool<B>
where
    B: Body + Send,
    B::Data: Send,
{
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(connect));
    connector.set_nodelay(true);
    legacy::Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(kept)
        .pool_idle_timeout(kept_for)
        .pool_timer(TokioTimer::new())
        .build(connector)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns the result of a request, and the request as the server received it.
    /// The server sends this response, and then closes the connection or leaves it open.
    async fn answered(
        answer: &'static [u8],
        ends: bool,
        most: usize,
    ) -> (Result<Answer, RequestError>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut question = vec![0; 4096];
            let len = stream.read(&mut question).await.unwrap();
            question.truncate(len);
            stream.write_all(answer).await.unwrap();
            if !ends {
                stream.read_to_end(&mut Vec::new()).await.unwrap();
            }
            String::from_utf8(question).unwrap()
        });
        let request = request("LOAD-QUERY", "", "m1:8080").unwrap();
        let answer = send(&Destination::plain(to), request, most).await;
        (answer, server.await.unwrap())
    }

    async fn body_of(answer: &'static [u8], ends: bool) -> Option<(u16, String)> {
        let answer = answered(answer, ends, 1_000).await.0.ok()?;
        Some((answer.status, String::from_utf8(answer.body).unwrap()))
    }

    #[tokio::test]
    async fn request_names_its_host_and_ends_the_connection() {
        let (_, question) = answered(b"HTTP/1.1 204 No Content\r\n\r\n", false, 10).await;
        let expected =
            "LOAD-QUERY / HTTP/1.1\r\nHost: m1:8080\r\nUser-Agent: evener\r\nConnection: close\r\n\r\n";
        assert_eq!(question, expected);
        assert!(request("GET", "/\r\nX: y", "a").is_err());
        assert!(request("GET", "/", "a\r\nX: y").is_err());
    }

    #[tokio::test]
    async fn answer_ends_with_its_length_chunks_or_connection() {
        let found = |status, body: &str| Some((status, body.to_owned()));
        assert_eq!(body_of(b"HTTP/1.1 204 No Content\r\n\r\n", false).await, found(204, ""));
        let length = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokxx";
        assert_eq!(body_of(length, false).await, found(200, "ok"));
        let provisional = b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(body_of(provisional, false).await, found(201, "ok"));
        let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        assert_eq!(body_of(chunks, false).await, found(200, "ok"));
        assert_eq!(body_of(b"HTTP/1.0 404\r\n\r\nuntil the end", true).await, found(404, "until the end"));
    }

    #[tokio::test]
    async fn answer_that_is_cut_off_or_no_http_is_an_error() {
        for bad in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"[..],
            b"HTTP/1.1 200 OK\r\n",
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/2 200\r\n\r\n",
            b"",
        ] {
            assert_eq!(body_of(bad, true).await, None, "{}", String::from_utf8_lossy(bad));
        }
    }

    #[tokio::test]
    async fn no_more_is_read_than_was_asked_for() {
        let (answer, _) = answered(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef", false, 3).await;
        assert_eq!(answer.unwrap().body, b"abc");
    }
}
