//! LOAD-QUERY: a group's director asks a member for its load, which answers by a message of its
//! own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evener_core::net::http::Response;
use evener_core::node::group::Verb;
use hyper::Request;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::RetryDelay;
use super::answers::{FORBIDDEN, ONE_REQUEST};
use crate::http::server;
use crate::http::to_hyper;
use crate::runtime::accept::accept;
use crate::runtime::connection_limit::ConnectionLimit;

/// Connections at a time; whoever comes when all are taken gets that of the source that holds most.
const AT_ONCE: usize = 16;
/// How long one may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The permitted clients, and that one has sent a query.
#[derive(Debug)]
pub(in crate::agent) struct QueryAccess {
    /// Of each group, by its number, its directors' addresses.
    directors: Mutex<BTreeMap<usize, BTreeSet<IpAddr>>>,
    query_signal: watch::Sender<()>,
    /// Sockets that are open for that alone.
    open: Mutex<BTreeSet<SocketAddr>>,
}

impl QueryAccess {
    pub(in crate::agent) fn new() -> QueryAccess {
        QueryAccess {
            directors: Mutex::default(),
            query_signal: watch::channel(()).0,
            open: Mutex::default(),
        }
    }

    /// These may ask for a group from now on, and no others.
    pub(in crate::agent) fn permit(&self, group: usize, directors: BTreeSet<IpAddr>) {
        let mut all = self.directors.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(group, directors);
    }

    /// Nobody may ask for a group any more.
    pub(in crate::agent) fn forget(&self, group: usize) {
        self.directors.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
    }

    /// A socket is to be opened there; false where there is one already.
    pub(in crate::agent) fn open(&self, at: SocketAddr) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(at)
    }

    /// It is closed.
    pub(in crate::agent) fn closed(&self, at: SocketAddr) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&at);
    }

    /// Whether somebody may ask.
    pub(super) fn is_allowed(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let all = self.directors.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().any(|directors| directors.contains(&client))
    }

    /// Changes when somebody asks.
    pub(in crate::agent) fn watch(&self) -> watch::Receiver<()> {
        self.query_signal.subscribe()
    }

    /// The answer to a question of this method, if it is one of these.
    pub(super) fn answer(&self, method: &str, client: IpAddr) -> Option<Response> {
        if Verb::of(method) != Some(Verb::LoadQuery) {
            return None;
        }
        if !self.is_allowed(client) {
            return Some(Response::sentence(403, FORBIDDEN));
        }
        self.query_signal.send_replace(());
        Some(Response::empty(204))
    }
}

/// Answers those alone who may ask, and this question alone, at an address, for as long as it
/// lives.
pub(in crate::agent) async fn serve(at: SocketAddr, queries: Arc<QueryAccess>, tls: Option<TlsAcceptor>) {
    let mut again = RetryDelay::default();
    let listener = loop {
        match TcpListener::bind(at).await {
            Ok(listener) => break listener,
            Err(error) => {
                if again.wait().await {
                    tracing::warn!(address = %at, %error, "the group's director can't ask for this server's load here; it is tried again");
                }
            }
        }
    };
    let limit = ConnectionLimit::new(AT_ONCE);
    let next = || async {
        let (stream, client) = loop {
            let (stream, client) = listener.accept().await?;
            if queries.is_allowed(client.ip()) {
                break (stream, client.ip());
            }
        };
        Ok((stream, client, limit.acquire(client).await))
    };
    accept(next, |(stream, client, mut slot)| {
        let (queries, tls) = (Arc::clone(&queries), tls.clone());
        let answering = tokio::time::timeout(TIMEOUT, async move {
            match tls {
                Some(tls) => talk(tls.accept(stream).await?, client, &queries).await,
                None => talk(stream, client, &queries).await,
            }
            io::Result::Ok(())
        });
        // A bad or slow query has no answer.
        async move { drop(slot.unless_needed(answering).await) }
    })
    .await;
}

async fn talk(stream: impl AsyncRead + AsyncWrite + Unpin, client: IpAddr, queries: &QueryAccess) {
    let answer = |request: Request<Incoming>| async move {
        let other = || {
            let response = Response::sentence(405, "Only LOAD-QUERY is answered here.");
            response.with("Allow", Verb::LoadQuery.name().to_owned())
        };
        to_hyper(queries.answer(request.method().as_str(), client).unwrap_or_else(other))
    };
    server::serve(stream, &ONE_REQUEST, answer, |_, _| {}).await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::request_heads::{Expected, vectors};

    const DIRECTOR: [u8; 4] = [192, 0, 2, 2];

    fn queries() -> QueryAccess {
        let queries = QueryAccess::new();
        queries.permit(0, BTreeSet::from([DIRECTOR.into()]));
        queries
    }

    async fn status_of(queries: &QueryAccess, from: [u8; 4], question: &[u8]) -> u16 {
        let (mut client, server) = duplex(64 * 1024);
        client.write_all(question).await.unwrap();
        client.shutdown().await.unwrap();
        talk(server, from.into(), queries).await;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer[9..12].parse().unwrap()
    }

    #[tokio::test]
    async fn only_directors_may_query() {
        let queries = queries();
        let watch = queries.watch();
        let question = b"LOAD-QUERY / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(status_of(&queries, [192, 0, 2, 3], question).await, 403);
        assert_eq!(status_of(&queries, DIRECTOR, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await, 405);
        assert_eq!(status_of(&queries, DIRECTOR, b"load-query / HTTP/1.1\r\nHost: a\r\n\r\n").await, 405);
        assert!(!watch.has_changed().unwrap());
        assert_eq!(status_of(&queries, DIRECTOR, question).await, 204);
        assert!(watch.has_changed().unwrap());
        queries.forget(0);
        assert!(!queries.is_allowed(DIRECTOR.into()));
    }

    #[tokio::test]
    async fn questions_are_judged_as_at_every_door() {
        for vector in vectors() {
            let status = status_of(&queries(), DIRECTOR, &vector.bytes).await;
            match vector.expected {
                Expected::Accepted { .. } => assert_eq!(status, 405, "{}", vector.text),
                Expected::Refused { status: expected, .. } => assert_eq!(status, expected, "{}", vector.text),
            }
        }
    }
}
