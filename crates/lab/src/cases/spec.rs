//! Cases on the core: the specification itself.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::Result;
use evener_core::decide::{Memory, Verdict, decide};
use evener_core::select::Counts;
use evener_core::sessions::{Bucket, Sessions, State, buckets_for, ticks};
use evener_core::tables::{SERVER_SLOTS, Tables};

use super::{Case, Exit, Packet, SEED, Seen, Subject};

/// [`decide`] with memory and a clock of its own.
#[derive(Debug, Default)]
pub struct Spec {
    tables: Arc<Tables>,
    buckets: Vec<Bucket>,
    active: Vec<AtomicU64>,
    cursors: Vec<AtomicU64>,
    now: u32,
}

impl Spec {
    fn memory(&self) -> Memory<'_> {
        Memory {
            sessions: Sessions::new(&self.buckets, &self.active),
            counts: Counts { cursors: &self.cursors, active: &self.active },
            seed: SEED,
        }
    }
}

impl Subject for Spec {
    fn name(&self) -> &'static str {
        "core"
    }

    fn frame_lens(&self) -> RangeInclusive<usize> {
        0..=usize::MAX
    }

    fn begin(&mut self, case: &Case) -> Result<()> {
        *self = Spec {
            tables: Arc::clone(&case.tables),
            buckets: (0..buckets_for(case.sessions_max)).map(|_| Bucket::default()).collect(),
            active: (0..SERVER_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            cursors: case.tables.rings.keys().map(|_| AtomicU64::new(0)).collect(),
            // The clock may stand anywhere: shortly before it wraps is the likeliest place for a mistake.
            now: u32::MAX - 50,
        };
        Ok(())
    }

    fn change(&mut self, tables: &Arc<Tables>) -> Result<()> {
        self.tables = Arc::clone(tables);
        Ok(())
    }

    fn meet(&mut self, packet: &Packet) -> Result<Seen> {
        let mut frame = packet.frame.clone();
        let decision = decide(&self.tables, &self.memory(), &mut frame, packet.ingress, self.now);
        let exit = match decision.verdict {
            Verdict::Forward { ifindex } => Exit::Interface(ifindex),
            Verdict::Pass => Exit::Host,
            Verdict::Drop => Exit::Nowhere,
        };
        let counted = [Some(decision.reason), decision.beside];
        let reasons: BTreeMap<_, _> = counted.into_iter().flatten().map(|reason| (reason, 1)).collect();
        Ok(Seen { exit, reasons, frame })
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now.wrapping_add(ticks(ms) + 1);
    }

    fn sessions(&self) -> Vec<State> {
        self.memory().sessions.list(self.now).map(|session| session.value.state()).collect()
    }
}
