//! Counters of one thread for the current batch, which are then added to the engine's counters.

use std::sync::atomic::Ordering::Relaxed;

use evener_core::path::decide::{Decision, Reason};
use evener_core::path::tables::{NO_SERVER, SERVER_SLOTS};

use super::outbox::BATCH;
use super::store::Store;
use crate::ServerCounters;

/// Counters of one batch. Threads share the engine's counters, so they update those once per batch
/// instead of once per packet.
pub(super) struct Tally {
    reasons: [u64; Reason::ALL.len()],
    servers: Box<[ServerCounters]>,
    /// Slots of servers with counts.
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

    /// Adds the counts to the engine's counters and resets them.
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
