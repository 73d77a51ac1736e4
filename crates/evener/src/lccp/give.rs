//! Giving an open connection to a server, until it says that it has it.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use evener_core::node::lccp::{Body, ErrorCode, Receptor};
use evener_dataplane::repair::Saved;
use tokio::time::{Instant, timeout_at};

use super::Speaker;
use super::state::transfer;

/// What isn't acknowledged is said again after these times, in milliseconds; after the last it is given up. The client's
/// packets are held meanwhile, so nothing can have come of the connection that is not there any more.
const REPEATS_MS: [u64; 6] = [20, 40, 140, 400, 800, 1_600];

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// The server has its socket.
    Taken,
    /// The server has none, and will make none of it.
    Refused,
    /// It is the server's if it gets what was said to it, which nobody knows.
    Unanswered,
    /// Nothing was said: the server doesn't speak the protocol.
    Unspoken,
}

impl Speaker {
    /// Gives a connection to a node.
    pub(crate) async fn give(&self, server: IpAddr, saved: &Saved) -> Given {
        let counts = &self.0.counts;
        if !self.0.speaks(server, Receptor::Distributor) {
            return Given::Unspoken;
        }
        let Some((socket, transfer)) = transfer(saved) else { return Given::Unspoken };
        let mut wait = self.0.wait(server, socket);
        let (mut missing, mut is_full) = (0, false);
        for pause_ms in REPEATS_MS {
            for piece in transfer.pieces(missing) {
                self.0.say(server, Receptor::Distributor, Body::Handoff { socket, piece });
            }
            // Who says nothing may have started anew, and misses everything.
            missing = 0;
            let until = Instant::now() + Duration::from_millis(pause_ms);
            while let Ok(Some(answer)) = timeout_at(until, wait.answers.recv()).await {
                match answer {
                    Body::HandoffAck { missing: first, .. } if transfer.is_complete(first) => {
                        counts.given.fetch_add(1, Relaxed);
                        return Given::Taken;
                    }
                    Body::HandoffAck { missing: first, .. } => {
                        (missing, is_full) = (missing.max(first), false);
                    }
                    // It has nothing of it, and may have room in a moment.
                    Body::Error { code: ErrorCode::NoRoom, .. } => is_full = true,
                    Body::Error { code, .. } => {
                        counts.not_restored.fetch_add(1, Relaxed);
                        tracing::debug!(%server, ?code, "a connection was not taken");
                        return Given::Refused;
                    }
                    _ => {}
                }
            }
        }
        if is_full {
            counts.not_restored.fetch_add(1, Relaxed);
            tracing::debug!(%server, "a connection was not taken: there is no room");
            return Given::Refused;
        }
        counts.unanswered.fetch_add(1, Relaxed);
        tracing::debug!(%server, "nothing was said of a connection");
        Given::Unanswered
    }
}
