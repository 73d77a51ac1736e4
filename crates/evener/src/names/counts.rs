//! Counters of queries.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evener_core::dns::{Rcode, ResponseOutcome, Transport};

/// Counters since the start of the daemon.
#[derive(Debug, Default)]
pub(crate) struct QueryCounts {
    udp: AtomicU64,
    tcp: AtomicU64,
    rcodes: [AtomicU64; Rcode::ALL.len()],
    truncated: AtomicU64,
    limited: AtomicU64,
    unanswered: AtomicU64,
    evicted: AtomicU64,
}

impl QueryCounts {
    /// Counts a query, with its outcome if it was answered.
    pub(super) fn count(&self, transport: Transport, outcome: Option<ResponseOutcome>) {
        let queries = match transport {
            Transport::Udp => &self.udp,
            Transport::Tcp => &self.tcp,
        };
        queries.fetch_add(1, Relaxed);
        let Some(ResponseOutcome { rcode, truncated, limited }) = outcome else {
            self.unanswered.fetch_add(1, Relaxed);
            return;
        };
        if limited {
            self.limited.fetch_add(1, Relaxed);
            return;
        }
        if truncated {
            self.truncated.fetch_add(1, Relaxed);
        }
        let of_rcode = Rcode::ALL.iter().zip(&self.rcodes).find(|(known, _)| **known == rcode);
        if let Some((_, count)) = of_rcode {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts an evicted connection.
    pub(super) fn evict(&self) {
        self.evicted.fetch_add(1, Relaxed);
    }

    /// Returns all counters, by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let rcodes = Rcode::ALL.iter().map(|rcode| rcode.name()).zip(&self.rcodes);
        let others = [
            ("queries_udp", &self.udp),
            ("queries_tcp", &self.tcp),
            ("truncated", &self.truncated),
            ("limited", &self.limited),
            ("unanswered", &self.unanswered),
            ("evicted", &self.evicted),
        ];
        rcodes.chain(others).map(|(name, count)| (name, count.load(Relaxed)))
    }
}
