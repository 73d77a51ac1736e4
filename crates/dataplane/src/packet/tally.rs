//! The counts of one thread while it works on a batch, before it adds them to the engine's totals.

use std::sync::atomic::Ordering::Relaxed;

use evener_core::path::decide::{Decision, Reason};
use evener_core::path::tables::{NO_SERVER, SERVER_SLOTS};

use super::outbox::BATCH;
use super::store::Store;
use crate::ServerCounters;

/// Counts of one batch. Threads share the totals, so they touch them once a batch, not once a
/// packet.
pub(super) struct Tally {
    reasons: [u64; Reason::ALL.len()],
    servers: Box<[ServerCounters]>,
    /// Servers with counts.
    touched: Vec<u16>,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally {
            reasons: [0; Reason::ALL.len()],
            servers: vec![ServerCounters::default(); SERVER_SLOTS].into(),
            touched: Vec::with_capacity(BATCH),
        }
    }

    /// Counts a reason alone.
    pub(super) fn reason(&mut self, reason: Reason) {
        self.reasons[reason as usize] += 1;
    }

    /// Counts a decision on a frame of `len` bytes.
    pub(super) fn decision(&mut self, decision: &Decision, len: usize) {
        decision.reasons().for_each(|reason| self.reason(reason));
        let slot = decision.server();
        if slot == NO_SERVER {
            return;
        }
        if let Some(server) = self.servers.get_mut(usize::from(slot)) {
            if server.packets == 0 {
                self.touched.push(slot);
            }
            server.packets += 1;
            server.bytes += len as u64;
            server.connections += u64::from(decision.is_new_session());
        }
    }

    /// Adds the counts to the totals and begins anew.
    pub(super) fn flush(&mut self, store: &Store) {
        for (count, total) in self.reasons.iter_mut().zip(store.reasons()) {
            if *count != 0 {
                total.fetch_add(std::mem::take(count), Relaxed);
            }
        }
        for slot in self.touched.drain(..) {
            let count = std::mem::take(&mut self.servers[usize::from(slot)]);
            let [packets, bytes, connections] = store.server(slot);
            packets.fetch_add(count.packets, Relaxed);
            bytes.fetch_add(count.bytes, Relaxed);
            connections.fetch_add(count.connections, Relaxed);
        }
    }
}
