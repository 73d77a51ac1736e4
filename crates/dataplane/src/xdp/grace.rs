//! Waits until no packet uses the previous tables.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys as sys};

use super::program::refused;
use crate::EngineError;

/// Map of maps, written only because the update waits. Since Linux 4.20 an update of a map of maps
/// returns when every program that began earlier has ended, so that user space may rely on it
/// (`maybe_wait_bpf_programs` in kernel/bpf/syscall.c: `synchronize_rcu`). Programs run between
/// `rcu_read_lock` and `rcu_read_unlock`. membarrier(2) happens to wait for these programs, too,
/// but does not guarantee that. Besides, membarrier does nothing on one CPU and fails under
/// `nohz_full`.
pub(super) struct GraceMap {
    outer: MapHandle,
    inner: MapHandle,
}

impl GraceMap {
    pub(super) fn new() -> Result<GraceMap, EngineError> {
        let made = |error| refused("making the map to wait by", error);
        let word = size_of::<u32>() as u32;
        let mut options = sys::bpf_map_create_opts {
            sz: size_of::<sys::bpf_map_create_opts>() as sys::size_t,
            ..Default::default()
        };
        let name = Some("evener_grace");
        let inner = MapHandle::create(MapType::Array, name, word, word, 1, &options).map_err(made)?;
        options.inner_map_fd = inner.as_fd().as_raw_fd() as u32;
        let outer = MapHandle::create(MapType::ArrayOfMaps, name, word, word, 1, &options).map_err(made)?;
        Ok(GraceMap { outer, inner })
    }

    /// Waits until every packet that arrived before the call is processed.
    pub(super) fn wait(&self) -> Result<(), EngineError> {
        let inner = self.inner.as_fd().as_raw_fd().to_ne_bytes();
        self.outer
            .update(&0u32.to_ne_bytes(), &inner, MapFlags::ANY)
            .map_err(|error| refused("waiting for packets on their way", error))
    }
}

/// Grace period after a change, in which packets may still use the previous tables. The wait takes
/// milliseconds, so a separate thread starts it at once. Mostly it has ended before a caller needs
/// the result.
#[derive(Default)]
pub(super) struct GracePeriod(Option<Option<JoinHandle<Result<(), EngineError>>>>);

impl GracePeriod {
    /// Starts a grace period after a change of the tables.
    pub(super) fn begin(&mut self, grace: &Arc<GraceMap>) {
        let grace = Arc::clone(grace);
        // Without a thread, `end` waits itself.
        self.0 = Some(thread::Builder::new().name("grace".into()).spawn(move || grace.wait()).ok());
    }

    /// Waits until the grace period is over.
    pub(super) fn end(&mut self, grace: &GraceMap) -> Result<(), EngineError> {
        if let Some(waiter) = &mut self.0 {
            let known = waiter.take().and_then(|waiter| waiter.join().ok());
            known.and_then(Result::ok).map_or_else(|| grace.wait(), Ok)?;
            self.0 = None;
        }
        Ok(())
    }
}
