//! The kernel's counts and memory, for whoever reads them while the engine works.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use evener_core::path::decide::{Memory, Reason};
use evener_core::path::tables::NO_SERVER;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::grace::GraceMap;
use super::memory::KernelMemory;
use super::program::refused;
use crate::{Counters, DataPlane, EngineError, ServerCounters};

/// Maps of counts for each processor, with what user space counts beside them.
pub(super) struct KernelReadings {
    pub(super) memory: Arc<KernelMemory>,
    pub(super) grace: Arc<GraceMap>,
    pub(super) server_stats: MapHandle,
    pub(super) reasons: MapHandle,
    /// Slots that are servers' in force, or of servers that are gone and whose counts stand there
    /// yet.
    pub(super) slots: ArcSwap<Vec<u16>>,
}

impl KernelReadings {
    /// A server's counts, by the kernel and by user space.
    pub(super) fn server(&self, slot: u16) -> Result<ServerCounters, EngineError> {
        let values = per_cpu(&self.server_stats, "server_stats", slot.into())?;
        let sum = |at| values.iter().map(|value| word(value, at)).sum();
        let kernel = ServerCounters { packets: sum(0), bytes: sum(1), connections: sum(2) };
        Ok(kernel + self.memory.counted(slot))
    }
}

impl DataPlane for KernelReadings {
    fn memory(&self) -> Memory<'_> {
        self.memory.memory()
    }

    fn now(&self) -> u32 {
        self.memory.now()
    }

    fn counters(&self) -> Result<Counters, EngineError> {
        let mut counters = Counters { gone: self.memory.counted(NO_SERVER), ..Counters::default() };
        for (reason, apart) in Reason::ALL.iter().zip(self.memory.reasons.iter()) {
            let values = per_cpu(&self.reasons, "reasons", *reason as u32)?;
            let kernel: u64 = values.iter().map(|value| word(value, 0)).sum();
            counters.reasons.insert(*reason, kernel + apart.load(Relaxed));
        }
        for slot in self.slots.load().iter() {
            counters.servers.insert(*slot, self.server(*slot)?);
        }
        // The program spares a second counter for what every packet given to a server counts
        // already.
        let given: u64 = counters.servers.values().map(|server| server.packets).sum();
        let local = counters.reasons.get(&Reason::Local).copied().unwrap_or_default();
        counters.reasons.insert(Reason::Forwarded, (given + counters.gone.packets).saturating_sub(local));
        Ok(counters)
    }

    fn count_choice(&self, slot: u16) {
        self.memory.count(slot, ServerCounters { connections: 1, ..ServerCounters::default() });
    }

    fn synchronize(&self) -> Result<(), EngineError> {
        self.grace.wait()
    }
}

fn per_cpu(map: &MapHandle, name: &str, key: u32) -> Result<Vec<Vec<u8>>, EngineError> {
    let values = map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY);
    values.map(Option::unwrap_or_default).map_err(|error| refused(format!("reading map {name}"), error))
}

/// A word of a value.
fn word(value: &[u8], at: usize) -> u64 {
    value.get(at * 8..at * 8 + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}
