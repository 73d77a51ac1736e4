//! Accepts open connections. The client's segments are injected into this host's own stack. In the
//! stack, the program for handoffs creates a socket from these segments. The acknowledgment
//! confirms that the socket exists.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evener_core::node::lccp::wire::LccpMessage;
use evener_core::node::lccp::{
    ErrorCode, HandoffAction, IncomingHandoffs, MessageBody, Piece, Receptor, Releases, SocketId,
};
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_dataplane::repair::{self, Saved};
use evener_dataplane::server::Connections;

use super::state::saved;
use super::{AddressPair, LccpState, now_ms};
use crate::handoff::{LOOPBACK, framed};
use crate::io::diag::{self, FoundSocket};
use crate::io::network::Network;

/// Pauses before each lookup of a connection's socket, in milliseconds. After every fourth lookup,
/// from the first one on, missing segments are injected. The lookups last more than a second, since
/// a server with many handoffs may be slow. The sender's timeout is longer.
const LOOKS_MS: [u64; 12] = [0, 0, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640];
/// Maximum segment size including options that any stack accepts, in bytes.
const SEGMENT_MAX: u16 = 1_400;

pub(super) struct HandoffReceiver {
    /// Socket that injects packets into this host's stack.
    stack: LinkSocket,
    incoming: Mutex<IncomingHandoffs>,
    releases: Mutex<Releases>,
    /// The programs' view of connections, once the programs run.
    connections: Mutex<Option<Connections>>,
}

impl HandoffReceiver {
    /// Opens the socket for injection.
    pub(super) fn open(network: &Network) -> io::Result<HandoffReceiver> {
        diag::check()?;
        let loopback = network.interfaces.iter().find(|(_, interface)| interface.loopback);
        let (ifindex, _) = loopback.ok_or_else(|| io::Error::other("there is no loopback interface"))?;
        Ok(HandoffReceiver {
            stack: LinkSocket::open(*ifindex, EtherType::None)?,
            incoming: Mutex::default(),
            releases: Mutex::default(),
            connections: Mutex::default(),
        })
    }

    /// Sets the services whose connections are accepted.
    pub(super) fn serve(&self, services: BTreeSet<SocketAddr>) {
        self.incoming().serve(services);
    }

    /// Sets the programs' view of connections.
    pub(super) fn look_at(&self, connections: Connections) {
        *self.connections.lock().unwrap_or_else(PoisonError::into_inner) = Some(connections);
    }

    /// Returns the programs' view of connections, once the programs run.
    pub(super) fn connections(&self) -> Option<Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if connections of a service are accepted here.
    pub(super) fn serves(&self, service: SocketAddr) -> bool {
        self.incoming().serves(service)
    }

    /// Removes old state that no retransmission needs.
    pub(super) fn forget_old(&self, now_ms: u64) {
        self.incoming().forget_old(now_ms);
        self.releases().forget_old(now_ms);
    }

    /// Returns the recently released connections.
    pub(super) fn releases(&self) -> MutexGuard<'_, Releases> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn incoming(&self) -> MutexGuard<'_, IncomingHandoffs> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Injects one packet of the client.
    pub(super) fn inject(&self, packet: &[u8]) {
        if let Err(error) = self.stack.send(&framed(LOOPBACK, packet)) {
            tracing::debug!(%error, "failed to replay a segment of a connection");
        }
    }

    /// Makes the connection's socket. `None` if the socket lacks bytes, or if the result is
    /// unknown.
    async fn restore(&self, socket: SocketId, saved: &Saved) -> Option<Result<(), ErrorCode>> {
        let connections = self.connections();
        // The kernel program accepts a connection without a valid cookie only if the connection is
        // announced. After a long silence, or in the middle of a connection, no cookie is valid.
        if let Some(Err(error)) = connections.as_ref().map(|connections| connections.expect(saved)) {
            tracing::debug!(%error, "failed to announce a connection to the kernel program");
        }
        let mut last = None;
        for (look, after_ms) in LOOKS_MS.into_iter().enumerate() {
            if after_ms > 0 {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
            }
            let seen = Self::find_socket(socket, connections.as_ref(), saved)?;
            match seen.outcome(saved.unread.len()) {
                ReplayOutcome::Taken => return Some(Ok(())),
                // Injected bytes may still be in flight.
                ReplayOutcome::Lacks { from } if look % 4 == 0 => self.put_in(saved, from),
                ReplayOutcome::Lacks { .. } => {}
            }
            last = Some(seen);
        }
        (last? == LocalSocket::Nothing).then_some(Err(ErrorCode::NotRestored))
    }

    /// Finds a connection's socket. `None` if the lookup fails.
    fn find_socket(
        socket: SocketId,
        connections: Option<&Connections>,
        saved: &Saved,
    ) -> Option<LocalSocket> {
        let seen = diag::find(socket).and_then(|found| match found {
            FoundSocket::Connection { received } => Ok(LocalSocket::Connection { received }),
            // Queried last: a socket that was missing before may have been made and closed since.
            _ => match connections.map(|connections| connections.was_made(saved)).transpose()? {
                Some(true) => Ok(LocalSocket::Gone),
                _ => Ok(LocalSocket::Nothing),
            },
        });
        let unknown =
            |error: &io::Error| tracing::warn!(%error, "failed to read whether a connection has arrived");
        seen.inspect_err(unknown).ok()
    }

    /// Injects the client's segments through the loopback interface, without the first `from`
    /// bytes, which the socket has.
    fn put_in(&self, saved: &Saved, from: usize) {
        let left = Saved { unread: saved.unread.get(from..).unwrap_or_default().to_vec(), ..saved.clone() };
        repair::replay(&left, SEGMENT_MAX).iter().for_each(|packet| self.inject(packet));
    }
}

/// State of a connection's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalSocket {
    /// There is no socket, and there was none.
    Nothing,
    /// There is a socket, which has received this number of the client's bytes.
    Connection { received: u64 },
    /// The socket existed, and is closed.
    Gone,
}

/// Progress of the injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayOutcome {
    /// The server's program has got all bytes.
    Taken,
    /// The bytes after `from` are missing: the stack had no room, or they are in flight.
    Lacks { from: usize },
}

impl LocalSocket {
    /// Returns the progress of an injection of `len` bytes. Bytes that a socket has received are
    /// never injected again. The server's program may have answered and closed the connection, and
    /// would answer twice. Only a first segment makes a socket.
    fn outcome(self, len: usize) -> ReplayOutcome {
        let received = match self {
            LocalSocket::Gone => return ReplayOutcome::Taken,
            LocalSocket::Nothing => return ReplayOutcome::Lacks { from: 0 },
            LocalSocket::Connection { received } => usize::try_from(received).unwrap_or(usize::MAX),
        };
        match received >= len {
            true => ReplayOutcome::Taken,
            // If no byte has arrived, the first segment is still passing through the stack.
            false => ReplayOutcome::Lacks { from: if received == 0 { len } else { received } },
        }
    }
}

impl LccpState {
    /// Handles a piece of a handoff, and sends the answer.
    pub(super) fn receive_handoff(
        self: &Arc<Self>,
        way: AddressPair,
        message: LccpMessage,
        socket: SocketId,
        piece: Piece,
    ) {
        let Some(receiver) = &self.receiver else {
            let body = MessageBody::Error { socket: Some(socket), code: ErrorCode::NotRestored };
            return self.answer(way, &message, Receptor::Distributor, body);
        };
        let len = piece.state().queued_len();
        let action = receiver.incoming().receive_piece(way.node, socket, piece, now_ms());
        let saved = match action {
            HandoffAction::Answer(body) => return self.answer(way, &message, Receptor::Distributor, body),
            HandoffAction::Wait => return,
            HandoffAction::Restore(handed) => saved(socket, handed),
        };
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let Some(receiver) = &shared.receiver else { return };
            let restored = receiver.restore(socket, &saved).await;
            receiver.incoming().end(way.node, socket, restored, now_ms());
            let body = match restored {
                Some(Ok(())) => {
                    shared.counts.taken.fetch_add(1, Relaxed);
                    MessageBody::HandoffAck { socket, missing: len }
                }
                Some(Err(code)) => {
                    shared.counts.handoffs_refused.fetch_add(1, Relaxed);
                    tracing::debug!(client = %socket.client(), "failed to restore a connection on this host");
                    MessageBody::Error { socket: Some(socket), code }
                }
                // The sender retransmits.
                None => return,
            };
            shared.answer(way, &message, Receptor::Distributor, body);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_resumes_behind_received_bytes() {
        let seen = |received| LocalSocket::Connection { received }.outcome(3_000);
        assert_eq!(LocalSocket::Nothing.outcome(3_000), ReplayOutcome::Lacks { from: 0 });
        assert_eq!(LocalSocket::Gone.outcome(3_000), ReplayOutcome::Taken);
        assert_eq!([seen(3_000), seen(5_000)], [ReplayOutcome::Taken; 2]);
        // Only the first segment makes a socket.
        assert_eq!([seen(0), seen(1_388)].map(|seen| seen == ReplayOutcome::Lacks { from: 0 }), [false; 2]);
        assert_eq!(seen(1_388), ReplayOutcome::Lacks { from: 1_388 });
    }
}
