//! LOAD-QUERY: a member is asked for its load, and answers by a message of its own. Nobody waits for what comes back here, which from
//! a server that knows nothing of groups is an error.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use evener_core::farm::group::Reach;
use evener_core::net::http::Url;
use evener_core::node::group::Verb;
use tokio::sync::Semaphore;

use super::locating::locate;
use crate::io::message::{exchange, target};

/// How long all of it may take.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Members that are asked at a time; others are asked the next time.
const AT_ONCE: usize = 128;
/// What is read of an answer, in bytes, so that the connection ends well.
const READ: u64 = 4 * 1024;

static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(AT_ONCE)));

/// Asks a member for its load, where it may be.
pub(crate) fn ask_for_load(url: Url, reach: Option<Reach>, own: Arc<[SocketAddr]>) {
    if url.is_secure() {
        tracing::debug!(%url, "not asked for its load: over TLS members are not asked, give one an http control URL");
        return;
    }
    let Ok(place) = Arc::clone(&PLACES).try_acquire_owned() else {
        tracing::debug!(%url, "not asked for its load: too many members are asked at this time");
        return;
    };
    tokio::spawn(async move {
        let question = async {
            let at = locate(&url, reach.as_ref(), &own).await.map_err(|error| error.to_string())?;
            exchange(at, &message(&url), READ).await.map_err(|error| error.to_string())
        };
        match tokio::time::timeout(TIMEOUT, question).await {
            Ok(Ok(answer)) => tracing::debug!(%url, answer = answer.lines().next(), "asked for its load"),
            Ok(Err(error)) => tracing::debug!(%url, %error, "it can't be asked for its load"),
            Err(_) => tracing::debug!(%url, "asked for its load, without an answer in time"),
        }
        drop(place);
    });
}

/// The bytes of the message.
fn message(url: &Url) -> String {
    format!(
        "{} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: evener\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        Verb::LoadQuery.name(),
        target(url),
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
