//! One message to a web server, and all that comes back.

use std::io;

use evener_core::net::http::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs};

/// Sends a message, and reads until the other side ends the connection, `most` bytes at most.
///
/// # Errors
/// When the connection can't be had, or breaks.
pub(crate) async fn exchange(to: impl ToSocketAddrs, message: &str, most: u64) -> io::Result<String> {
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(message.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(most).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// What is asked for: the URL's path, which may be left out in it.
pub(crate) fn target(url: &Url) -> &str {
    if url.path().is_empty() { "/" } else { url.path() }
}
