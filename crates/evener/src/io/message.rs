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

/// The same with where a URL leads: `to` is its address, `from` this host's where it matters, and https takes `tls`.
///
/// # Errors
/// When the connection can't be had, or breaks, or nobody is there who can show a certificate for the URL's host.
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
    match stream.take(most).read_to_end(&mut answer).await {
        // Some end their connections without the word that TLS has for it.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !answer.is_empty() => {}
        read => drop(read?),
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// What is asked for: the URL's path, which may be left out in it.
pub(crate) fn target(url: &Url) -> &str {
    if url.path().is_empty() { "/" } else { url.path() }
}

/// The status of an answer, if it is one.
pub(crate) fn status(answer: &str) -> Option<u16> {
    let rest = answer.strip_prefix("HTTP/1.")?.get(1..)?;
    rest.strip_prefix(' ')?.get(..3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::status;

    #[test]
    fn statuses_are_read_of_answers_alone() {
        assert_eq!(status("HTTP/1.1 204 No Content\r\n\r\n"), Some(204));
        assert_eq!(status("HTTP/1.0 405\r\n"), Some(405));
        for other in ["", "HTTP/2 200", "HTTP/1.1", "HTTP/1.1 x", "SSH-2.0-x", "HTTP/1.1 2é0"] {
            assert_eq!(status(other), None, "{other}");
        }
    }
}
