//! Reads counters and session memory from the kernel while the engine works.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use evener_core::path::decide::{Memory, Reason};
use evener_core::path::tables::NO_SERVER;
use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys as sys};

use super::grace::GraceMap;
use super::memory::KernelMemory;
use super::program::refused;
use crate::{Counters, DataPlane, EngineError, ServerCounters};

/// Largest gap of unused slots that is read together with the slots around it.
const GAP_MAX: u16 = 8;
/// Maximum number of slots per system call.
const TOGETHER_MAX: usize = 1024;

/// Per-CPU maps of counters, and the counters of user space.
pub(super) struct KernelReadings {
    pub(super) memory: Arc<KernelMemory>,
    pub(super) grace: Arc<GraceMap>,
    pub(super) server_stats: MapHandle,
    pub(super) reasons: MapHandle,
    /// Slots of servers in force, and of removed servers that still have counters.
    pub(super) slots: ArcSwap<Vec<u16>>,
}

impl KernelReadings {
    /// Returns a server's counters: the sum of the kernel's counters and of user space's counters.
    pub(super) fn server(&self, slot: u16) -> Result<ServerCounters, EngineError> {
        let values = per_cpu(&self.server_stats, "server_stats", slot.into())?;
        Ok(server_counters(values.iter().map(Vec::as_slice)) + self.memory.counted(slot))
    }

    /// Returns the counters of all servers. One system call reads neighbouring slots.
    fn servers(&self) -> Result<BTreeMap<u16, ServerCounters>, EngineError> {
        let mut slots = Vec::clone(&self.slots.load());
        slots.sort_unstable();
        let mut servers = BTreeMap::new();
        for run in slots.chunk_by(|slot, next| next - slot <= GAP_MAX) {
            for run in run.chunks(TOGETHER_MAX) {
                let values = values_of(&self.server_stats, run);
                for slot in run {
                    let counted = match &values {
                        Some(values) => server_counters(values.of(*slot)) + self.memory.counted(*slot),
                        // Single reads return the cause, or work without batches.
                        None => self.server(*slot)?,
                    };
                    servers.insert(*slot, counted);
                }
            }
        }
        Ok(servers)
    }
}

/// Returns the sum of a server's counters over all CPUs.
fn server_counters<'v>(values: impl Iterator<Item = &'v [u8]>) -> ServerCounters {
    values.fold(ServerCounters::default(), |sum, value| {
        sum + ServerCounters { packets: word(value, 0), bytes: word(value, 1), connections: word(value, 2) }
    })
}

/// Values of consecutive keys.
struct Values {
    first: u16,
    /// Size of a value in bytes, for one CPU and for all.
    sizes: [usize; 2],
    bytes: Vec<u8>,
}

impl Values {
    /// Returns the values of a key, one per CPU.
    fn of(&self, key: u16) -> impl Iterator<Item = &[u8]> {
        let [one, all] = self.sizes;
        let at = usize::from(key.saturating_sub(self.first)) * all;
        self.bytes.get(at..at + all).unwrap_or_default().chunks_exact(one)
    }
}

/// Reads the values from the first to the last of the ordered keys with one system call. Returns
/// `None` if the kernel does not support batches.
fn values_of(map: &MapHandle, keys: &[u16]) -> Option<Values> {
    let (&first, &last) = keys.first().zip(keys.last())?;
    let count = usize::from(last - first) + 1;
    let one = (map.value_size() as usize).next_multiple_of(8);
    let all = one * libbpf_rs::num_possible_cpus().ok()?;
    let (mut found, mut bytes) = (vec![0_u32; count], vec![0_u8; count * all]);
    // The kernel continues after this key, or starts with the first key.
    let mut before = first.checked_sub(1).map(u32::from);
    let before = before.as_mut().map_or(null_mut(), |key| std::ptr::from_mut(key).cast());
    let (mut behind, mut done) = (0_u32, count as u32);
    let options = sys::bpf_map_batch_opts {
        sz: size_of::<sys::bpf_map_batch_opts>() as sys::size_t,
        ..Default::default()
    };
    // SAFETY: the kernel writes `done` keys and values at most, for which `found` and `bytes` have
    // room: a value of such a map has a part for each possible processor, each a multiple of eight
    // bytes long. All that it is given lives until it returns.
    let result = unsafe {
        sys::bpf_map_lookup_batch(
            map.as_fd().as_raw_fd(),
            before,
            std::ptr::from_mut(&mut behind).cast(),
            found.as_mut_ptr().cast(),
            bytes.as_mut_ptr().cast(),
            &mut done,
            &options,
        )
    };
    // ENOENT means that the end of the map was reached.
    let is_whole = (result == 0 || result == -nix::libc::ENOENT) && done as usize == count;
    (is_whole && found.first() == Some(&first.into())).then_some(Values { first, sizes: [one, all], bytes })
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
        counters.servers = self.servers()?;
        // The programs do not count forwarded packets: every packet sent to a server is already
        // counted for the server.
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

/// Returns the word at an index of a value.
fn word(value: &[u8], at: usize) -> u64 {
    value.get(at * 8..at * 8 + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use libbpf_rs::MapType;

    use super::*;

    /// Keys at both ends, adjacent keys, and gaps around [`GAP_MAX`].
    #[test]
    fn values_read_together_are_those_read_one_by_one() {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let options = sys::bpf_map_create_opts {
            sz: size_of::<sys::bpf_map_create_opts>() as sys::size_t,
            ..Default::default()
        };
        let map =
            MapHandle::create(MapType::PercpuArray, Some("evener_test"), 4, 24, 4096, &options).unwrap();
        let processors = libbpf_rs::num_possible_cpus().unwrap();
        for key in 0..4096_u32 {
            let value = |cpu: usize| {
                let words = [u64::from(key), 1_000 + cpu as u64, u64::from(key) << 32];
                words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>()
            };
            let values: Vec<_> = (0..processors).map(value).collect();
            map.update_percpu(&key.to_ne_bytes(), &values, MapFlags::ANY).unwrap();
        }
        let alone = |key: u16| {
            let values = per_cpu(&map, "evener_test", key.into()).unwrap();
            server_counters(values.iter().map(Vec::as_slice))
        };
        let runs: [&[u16]; 5] = [&[0], &[0, 1, 2, 10], &[7, 8, 16], &[3_000, 3_001], &[4_094, 4_095]];
        for run in runs {
            let together = values_of(&map, run).expect("Linux 5.13 and later read such maps in portions");
            for key in run {
                let counted = server_counters(together.of(*key));
                assert_eq!((counted, counted.packets), (alone(*key), u64::from(*key) * processors as u64));
            }
        }
        assert!(values_of(&map, &[4_095, 4_096]).is_none(), "what isn't there is no value");
    }
}
