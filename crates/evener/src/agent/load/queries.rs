//! LOAD-QUERY: a group's director queries a member's load. The member answers with a separate
//! message.

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

/// Maximum number of connections. If all slots are taken, a new connection evicts a connection of
/// the source with the most connections.
const AT_ONCE: usize = 16;
/// Timeout of a connection.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Clients that may query, and the signal of a query.
#[derive(Debug)]
pub(in crate::agent) struct QueryAccess {
    /// Addresses of each group's directors, by the group's number.
    directors: Mutex<BTreeMap<usize, BTreeSet<IpAddr>>>,
    query_signal: watch::Sender<()>,
    /// Sockets that are open only for queries.
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

    /// Sets the addresses that may query for a group.
    pub(in crate::agent) fn permit(&self, group: usize, directors: BTreeSet<IpAddr>) {
        let mut all = self.directors.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(group, directors);
    }

    /// Removes a group's permissions.
    pub(in crate::agent) fn forget(&self, group: usize) {
        self.directors.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
    }

    /// Registers a socket before it is opened. Returns false if there is one already.
    pub(in crate::agent) fn open(&self, at: SocketAddr) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(at)
    }

    /// Unregisters a closed socket.
    pub(in crate::agent) fn closed(&self, at: SocketAddr) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&at);
    }

    /// True if the client may query.
    pub(super) fn is_allowed(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let all = self.directors.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().any(|directors| directors.contains(&client))
    }

    /// Returns a receiver that changes at each query.
    pub(in crate::agent) fn watch(&self) -> watch::Receiver<()> {
        self.query_signal.subscribe()
    }

    /// Answers a LOAD-QUERY. Returns `None` for another method.
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

/// Answers only LOAD-QUERY of permitted clients, at an address, until dropped.
pub(in crate::agent) async fn serve(at: SocketAddr, queries: Arc<QueryAccess>, tls: Option<TlsAcceptor>) {
    let mut again = RetryDelay::default();
    let listener = loop {
        match TcpListener::bind(at).await {
            Ok(listener) => break listener,
            Err(error) => {
                if again.wait().await {
                    tracing::warn!(address = %at, %error, "failed to listen for load queries of the group's director; retrying");
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
        // An invalid or slow query gets no response.
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
