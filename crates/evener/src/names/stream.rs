//! Queries by TCP (RFC 7766), each with a length prefix. A client's queries are answered in order.
//!
//! The number of connections on all addresses is limited by the process's descriptors.
//! If all slots are taken, a new connection evicts the longest idle connection of the network with
//! the most connections.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use evener_core::dns::Transport;
use evener_core::net::prefix::client_network;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::QueryContext;
use crate::runtime::accept::accept;
use crate::runtime::connection_limit::{ConnectionLimit, ConnectionSlot};

/// Time limit of a query, and of sending its answer.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// Buffer of an answer.
    static ANSWER: RefCell<Vec<u8>> = RefCell::new(vec![0; 65_535]);
}

/// Accepts connections forever. Dropping the future ends all connections.
pub(super) async fn serve(listener: TcpListener, answering: Arc<QueryContext>, limit: ConnectionLimit) {
    let next = || async {
        let (stream, client) = listener.accept().await?;
        Ok((stream, client, limit.acquire(client_network(client.ip())).await))
    };
    accept(next, |(stream, client, slot)| talk(stream, client, slot, Arc::clone(&answering))).await;
}

async fn talk(
    mut stream: TcpStream,
    client: SocketAddr,
    mut slot: ConnectionSlot,
    answering: Arc<QueryContext>,
) {
    let mut query = Vec::new();
    loop {
        match slot.unless_evicted(exchange(&mut stream, client, &mut query, &answering)).await {
            Some(Ok(true)) => slot.renew(),
            Some(Ok(false)) => return,
            Some(Err(error)) => return tracing::debug!(%error, %client, "a connection ended"),
            None => return answering.counts.evict(),
        }
    }
}

/// Reads a query and answers it. False at the end of the connection.
async fn exchange(
    stream: &mut TcpStream,
    client: SocketAddr,
    query: &mut Vec<u8>,
    answering: &QueryContext,
) -> io::Result<bool> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    let len = match timeout(PATIENCE, stream.read_u16()).await.map_err(late)? {
        Ok(len) => usize::from(len),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        Err(error) => return Err(error),
    };
    query.resize(len, 0);
    timeout(PATIENCE, stream.read_exact(query)).await.map_err(late)??;
    let answer = ANSWER.with_borrow_mut(|answer| {
        let len = answering.answer(query, client.ip(), Transport::Tcp, None, answer)?;
        let bytes = answer.get(..len)?;
        let mut framed = u16::try_from(len).ok()?.to_be_bytes().to_vec();
        framed.extend_from_slice(bytes);
        Some(framed)
    });
    // Without an answer the connection ends.
    let Some(answer) = answer else { return Ok(false) };
    timeout(PATIENCE, stream.write_all(&answer)).await.map_err(late)??;
    Ok(true)
}
