//! Queries by TCP (RFC 7766): each behind its length, as many as a client has, answered in their order.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evener_core::dns::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::Answering;
use crate::runtime::shares::{Shares, source};

/// Connections at a time. Who comes then takes the place of who has most.
const PLACES: usize = 1_000;
/// How long a client may take to a whole query, and to read its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// When none can be taken, for want of descriptors or such, it is tried again after this time.
const PAUSE: Duration = Duration::from_millis(100);

thread_local! {
    /// An answer while it is made.
    static ANSWER: RefCell<Vec<u8>> = RefCell::new(vec![0; 65_535]);
}

/// Connections that are served, and of how many it is known.
#[derive(Default)]
struct Held {
    shares: Shares<AbortHandle>,
    count: usize,
}

/// Takes connections, forever.
pub(super) async fn serve(listener: TcpListener, answering: Arc<Answering>) {
    let held = Arc::new(Mutex::new(Held::default()));
    loop {
        match listener.accept().await {
            Ok((stream, client)) => begin(stream, client, &answering, &held),
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn begin(stream: TcpStream, client: SocketAddr, answering: &Arc<Answering>, held: &Arc<Mutex<Held>>) {
    let from = source(client.ip());
    let mut holding = held.lock().unwrap_or_else(PoisonError::into_inner);
    if holding.count >= PLACES
        && let Some((_, evicted)) = holding.shares.take_away()
    {
        evicted.abort();
        holding.count -= 1;
        answering.counts.evict();
    }
    let ticket = holding.shares.ticket();
    let (answering, all) = (Arc::clone(answering), Arc::clone(held));
    let task = tokio::spawn(async move {
        if let Err(error) = talk(stream, client, &answering).await {
            tracing::debug!(%error, %client, "a connection ended");
        }
        let mut holding = all.lock().unwrap_or_else(PoisonError::into_inner);
        if holding.shares.give_back(from, ticket).is_some() {
            holding.count -= 1;
        }
    });
    // It waits for the lock before it gives the place back.
    holding.shares.hold(from, ticket, task.abort_handle());
    holding.count += 1;
}

async fn talk(mut stream: TcpStream, client: SocketAddr, answering: &Answering) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let mut query = Vec::new();
    loop {
        let len = match timeout(PATIENCE, stream.read_u16()).await.map_err(late)? {
            Ok(len) => usize::from(len),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        query.resize(len, 0);
        timeout(PATIENCE, stream.read_exact(&mut query)).await.map_err(late)??;
        let answer = ANSWER.with_borrow_mut(|answer| {
            let len = answering.answer(&query, client.ip(), Transport::Tcp, None, answer)?;
            let bytes = answer.get(..len)?;
            let mut framed = u16::try_from(len).ok()?.to_be_bytes().to_vec();
            framed.extend_from_slice(bytes);
            Some(framed)
        });
        // Who sends no query has no answer to wait for.
        let Some(answer) = answer else { return Ok(()) };
        timeout(PATIENCE, stream.write_all(&answer)).await.map_err(late)??;
    }
}
