//! Taking open connections: the client's segments once more, into this host's own stack, where the
//! program that accepts what is handed over makes a socket of them. That it is there is what is
//! acknowledged.

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

/// When a connection is looked for, in milliseconds since it was looked for before. After the first
/// look, and each fourth from there, what is missing is put into the stack. A server with many
/// connections to take may be late; who gives one waits for longer.
const LOOKS_MS: [u64; 12] = [0, 0, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640];
/// Data and options of a segment that any stack takes, in bytes.
const SEGMENT_MAX: u16 = 1_400;

/// Where connections are taken.
pub(super) struct HandoffReceiver {
    /// The way into this host's own stack.
    stack: LinkSocket,
    incoming: Mutex<IncomingHandoffs>,
    releases: Mutex<Releases>,
    /// The programs' view of connections here, once they run.
    connections: Mutex<Option<Connections>>,
}

impl HandoffReceiver {
    /// Opens the way into the stack.
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

    /// Takes connections to these from now on.
    pub(super) fn serve(&self, services: BTreeSet<SocketAddr>) {
        self.incoming().serve(services);
    }

    /// Goes by these from now on.
    pub(super) fn look_at(&self, connections: Connections) {
        *self.connections.lock().unwrap_or_else(PoisonError::into_inner) = Some(connections);
    }

    /// The programs' view of connections here, once they run.
    pub(super) fn connections(&self) -> Option<Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether connections to a service are taken here.
    pub(super) fn serves(&self, service: SocketAddr) -> bool {
        self.incoming().serves(service)
    }

    /// Forgets what nobody asks for again.
    pub(super) fn forget_old(&self, now_ms: u64) {
        self.incoming().forget_old(now_ms);
        self.releases().forget_old(now_ms);
    }

    /// The recently released connections.
    pub(super) fn releases(&self) -> MutexGuard<'_, Releases> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn incoming(&self) -> MutexGuard<'_, IncomingHandoffs> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts one packet of the client's there.
    pub(super) fn inject(&self, packet: &[u8]) {
        if let Err(error) = self.stack.send(&framed(LOOPBACK, packet)) {
            tracing::debug!(%error, "a segment of a connection was not put in");
        }
    }

    /// Makes the connection's socket. `None`: it is there, and lacks bytes, or this can't be told.
    async fn restore(&self, socket: SocketId, saved: &Saved) -> Option<Result<(), ErrorCode>> {
        let connections = self.connections();
        // No cookie vouches for what is in the middle of its life, or was silent for long.
        if let Some(Err(error)) = connections.as_ref().map(|connections| connections.expect(saved)) {
            tracing::debug!(%error, "a connection is not expected");
        }
        let mut last = None;
        for (look, after_ms) in LOOKS_MS.into_iter().enumerate() {
            if after_ms > 0 {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
            }
            let seen = Self::find_socket(socket, connections.as_ref(), saved)?;
            match seen.outcome(saved.unread.len()) {
                ReplayOutcome::Taken => return Some(Ok(())),
                // Bytes that were put in may be on their way yet.
                ReplayOutcome::Lacks { from } if look % 4 == 0 => self.put_in(saved, from),
                ReplayOutcome::Lacks { .. } => {}
            }
            last = Some(seen);
        }
        (last? == LocalSocket::Nothing).then_some(Err(ErrorCode::NotRestored))
    }

    /// The socket of a connection; `None` if that can't be found out.
    fn find_socket(
        socket: SocketId,
        connections: Option<&Connections>,
        saved: &Saved,
    ) -> Option<LocalSocket> {
        let seen = diag::find(socket).and_then(|found| match found {
            FoundSocket::Connection { received } => Ok(LocalSocket::Connection { received }),
            // Asked for last: what wasn't there may have been made, and gone, since.
            _ => match connections.map(|connections| connections.was_made(saved)).transpose()? {
                Some(true) => Ok(LocalSocket::Gone),
                _ => Ok(LocalSocket::Nothing),
            },
        });
        let unknown =
            |error: &io::Error| tracing::warn!(%error, "whether a connection is here can't be told");
        seen.inspect_err(unknown).ok()
    }

    /// Puts the client's segments into this host's stack, as if they came in by the loopback
    /// interface: those behind so many bytes that it has.
    fn put_in(&self, saved: &Saved, from: usize) {
        let left = Saved { unread: saved.unread.get(from..).unwrap_or_default().to_vec(), ..saved.clone() };
        repair::replay(&left, SEGMENT_MAX).iter().for_each(|packet| self.inject(packet));
    }
}

/// The socket of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalSocket {
    /// No socket, and there was none.
    Nothing,
    /// Its socket, which has so many of the client's bytes.
    Connection { received: u64 },
    /// No socket any more.
    Gone,
}

/// The result for the client's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayOutcome {
    /// They are with the server's program, or were.
    Taken,
    /// Those behind so many bytes are missing: the stack had no room, or they are on their way to
    /// it.
    Lacks { from: usize },
}

impl LocalSocket {
    /// Nothing is put twice into a stack that made a socket of it. The server's program may have
    /// answered, and ended the connection at once, and would answer again. Behind the first segment
    /// no socket is made of anything.
    fn outcome(self, len: usize) -> ReplayOutcome {
        let received = match self {
            LocalSocket::Gone => return ReplayOutcome::Taken,
            LocalSocket::Nothing => return ReplayOutcome::Lacks { from: 0 },
            LocalSocket::Connection { received } => usize::try_from(received).unwrap_or(usize::MAX),
        };
        match received >= len {
            true => ReplayOutcome::Taken,
            // Its first segment is on its way through the stack just now.
            false => ReplayOutcome::Lacks { from: if received == 0 { len } else { received } },
        }
    }
}

impl LccpState {
    /// Takes a piece of a connection, and answers once there is something to say.
    pub(super) fn receive_handoff(
        self: &Arc<Self>,
        way: AddressPair,
        message: LccpMessage,
        socket: SocketId,
        piece: Piece,
    ) {
        let Some(taker) = &self.taker else {
            let body = MessageBody::Error { socket: Some(socket), code: ErrorCode::NotRestored };
            return self.answer(way, &message, Receptor::Distributor, body);
        };
        let len = piece.state().queued_len();
        let action = taker.incoming().receive_piece(way.node, socket, piece, now_ms());
        let saved = match action {
            HandoffAction::Answer(body) => return self.answer(way, &message, Receptor::Distributor, body),
            HandoffAction::Wait => return,
            HandoffAction::Restore(handed) => saved(socket, handed),
        };
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let Some(taker) = &shared.taker else { return };
            let restored = taker.restore(socket, &saved).await;
            taker.incoming().end(way.node, socket, restored, now_ms());
            let body = match restored {
                Some(Ok(())) => {
                    shared.counts.taken.fetch_add(1, Relaxed);
                    MessageBody::HandoffAck { socket, missing: len }
                }
                Some(Err(code)) => {
                    shared.counts.handoffs_refused.fetch_add(1, Relaxed);
                    tracing::debug!(client = %socket.client(), "a connection could not be had here");
                    MessageBody::Error { socket: Some(socket), code }
                }
                // The giver says it again.
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
        // The first segment is what sockets are made of.
        assert_eq!([seen(0), seen(1_388)].map(|seen| seen == ReplayOutcome::Lacks { from: 0 }), [false; 2]);
        assert_eq!(seen(1_388), ReplayOutcome::Lacks { from: 1_388 });
    }
}
