//! LOAD-QUERY: a member is asked for its load, and answers by a message of its own. Nobody waits for what comes back here, which from
//! a server that knows nothing of groups is an error.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use evener_core::net::http::Url;
use evener_core::node::group::Verb;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// How long all of it may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Members that are asked at a time; others are asked the next time.
const AT_ONCE: usize = 128;
/// What is read of an answer, in bytes, so that the connection ends well.
const READ: usize = 4 * 1024;

static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(AT_ONCE)));

/// Asks a member for its load.
pub(crate) fn ask_for_load(url: Url) {
    if url.is_secure() {
        tracing::debug!(%url, "not asked for its load: over TLS members are not asked, give one an http control URL");
        return;
    }
    let Ok(place) = Arc::clone(&PLACES).try_acquire_owned() else {
        tracing::debug!(%url, "not asked for its load: too many members are asked at this time");
        return;
    };
    tokio::spawn(async move {
        match tokio::time::timeout(TIMEOUT, send(&url)).await {
            Ok(Ok(first)) => tracing::debug!(%url, answer = first, "asked for its load"),
            Ok(Err(error)) => tracing::debug!(%url, %error, "it can't be asked for its load"),
            Err(_) => tracing::debug!(%url, "asked for its load, without an answer in time"),
        }
        drop(place);
    });
}

/// Sends the message, and gives the first line of what comes back.
async fn send(url: &Url) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((url.host(), url.port())).await?;
    stream.write_all(message(url).as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(READ as u64).read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// The bytes of it.
fn message(url: &Url) -> String {
    let target = if url.path().is_empty() { "/" } else { url.path() };
    format!(
        "{} {target} HTTP/1.1\r\nHost: {}\r\nUser-Agent: evener\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        Verb::LoadQuery.name(),
        url.authority()
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_asked_as_the_document_says() {
        let asked = message(&Url::parse("http://m1.example:9184/load").unwrap());
        let wanted = "LOAD-QUERY /load HTTP/1.1\r\nHost: m1.example:9184\r\nUser-Agent: evener\r\n\
                      Content-Length: 0\r\nConnection: close\r\n\r\n";
        assert_eq!(asked, wanted);
        assert!(
            message(&Url::parse("http://m1").unwrap()).starts_with("LOAD-QUERY / HTTP/1.1\r\nHost: m1\r\n")
        );
    }
}
