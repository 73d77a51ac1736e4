//! One message to a web server, and all that comes back.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evener_core::net::http::Url;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, ToSocketAddrs};
use tokio_rustls::TlsConnector;

/// Sends a message, and reads until the other side ends the connection, `most` bytes at most.
///
/// # Errors
/// When the connection can't be had, or breaks.
pub(crate) async fn exchange(to: impl ToSocketAddrs, message: &str, most: u64) -> io::Result<String> {
    talk(TcpStream::connect(to).await?, message, most).await
}

/// The same with where a URL leads: `to` is its address, `from` this host's where it matters, and
/// https takes `tls`.
///
/// # Errors
/// When the connection can't be had, or breaks, or nobody is there who can show a certificate for
/// the URL's host.
pub(crate) async fn exchange_with(
    url: &Url,
    to: SocketAddr,
    from: Option<IpAddr>,
    tls: Option<&Arc<ClientConfig>>,
    message: &str,
    most: u64,
) -> io::Result<String> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
        socket.bind((from, 0).into())?;
    }
    let stream = socket.connect(to).await?;
    if !url.is_secure() {
        return talk(stream, message, most).await;
    }
    let no_tls =
        || io::Error::new(io::ErrorKind::Unsupported, "it wants TLS, and there are no authorities to trust");
    let host = url.host().trim_matches(['[', ']']).to_owned();
    let name =
        ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let connector = TlsConnector::from(Arc::clone(tls.ok_or_else(no_tls)?));
    talk(connector.connect(name, stream).await?, message, most).await
}

async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    message: &str,
    most: u64,
) -> io::Result<String> {
    stream.write_all(message.as_bytes()).await?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while (answer.len() as u64) < most && !is_whole(&answer) {
        match stream.read(&mut buffer).await {
            Ok(0) => break,
            Ok(len) => answer.extend_from_slice(buffer.get(..len).unwrap_or_default()),
            // Some end their connections without the word that TLS has for it.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !answer.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    answer.drain(..provisional(&answer));
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// How much of what came are provisional answers (RFC 9110, section 15.2), which come before the
/// one.
fn provisional(answer: &[u8]) -> usize {
    let mut from = 0;
    while let Some((len, code, _)) =
        head(answer.get(from..).unwrap_or_default()).filter(|(_, code, _)| *code < 200)
    {
        if code == 101 {
            break;
        }
        from += len;
    }
    from
}

/// Whether an answer has all that its head says: some leave connections open whatever they are
/// asked.
fn is_whole(answer: &[u8]) -> bool {
    let from = provisional(answer);
    let rest = answer.get(from..).unwrap_or_default();
    match head(rest) {
        Some((_, 204 | 304, _)) => true,
        Some((len, _, Some(body))) => rest.len() >= len.saturating_add(body),
        _ => false,
    }
}

/// The length of a head, its status, and the length of its body if it says that.
fn head(bytes: &[u8]) -> Option<(usize, u16, Option<usize>)> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(len) = parsed.parse(bytes).ok()? else { return None };
    let length = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    Some((len, parsed.code?, length))
}

/// The target: the URL's path, which may be left out in it.
pub(crate) fn target(url: &Url) -> &str {
    if url.path().is_empty() { "/" } else { url.path() }
}

/// The status of an answer, if its head is whole.
pub(crate) fn status(answer: &str) -> Option<u16> {
    head(answer.as_bytes()).map(|(_, status, _)| status)
}

#[cfg(test)]
mod tests {
    use super::{is_whole, provisional, status};

    #[test]
    fn statuses_are_read_of_whole_heads_alone() {
        assert_eq!(status("HTTP/1.1 204 No Content\r\n\r\n"), Some(204));
        assert_eq!(status("HTTP/1.0 405\r\n\r\n"), Some(405));
        for other in [
            "",
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 2é0\r\n\r\n",
        ] {
            assert_eq!(status(other), None, "{other}");
        }
    }

    #[test]
    fn an_answer_is_whole_with_its_body_and_behind_provisional_ones() {
        let whole = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";
        assert!(is_whole(whole) && !is_whole(&whole[..whole.len() - 1]) && !is_whole(&whole[..30]));
        assert_eq!(provisional(whole), 25);
        assert!(is_whole(b"HTTP/1.1 204 No Content\r\n\r\n"));
        assert!(!is_whole(b"HTTP/1.0 200 OK\r\n\r\nuntil the end"));
    }
}
