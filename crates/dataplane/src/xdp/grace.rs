//! Waiting until no packet is on its way by what was in force before.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys as sys};

use super::program::refused;
use crate::EngineError;

/// A map of one map, written only for the wait that this brings: since Linux 4.20 the kernel
/// returns from an update of a map of maps when every program that began before has ended, so that
/// user space may rely on it (`maybe_wait_bpf_programs` in kernel/bpf/syscall.c:
/// `synchronize_rcu`). Programs run between `rcu_read_lock` and `rcu_read_unlock`. membarrier(2)
/// happens to wait for the same, but promises it nowhere, does nothing on one CPU and is refused
/// under `nohz_full`.
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

    /// Returns when every packet that was met before has been dealt with.
    pub(super) fn wait(&self) -> Result<(), EngineError> {
        let inner = self.inner.as_fd().as_raw_fd().to_ne_bytes();
        self.outer
            .update(&0u32.to_ne_bytes(), &inner, MapFlags::ANY)
            .map_err(|error| refused("waiting for packets on their way", error))
    }
}

/// Packets that may be on their way still by what was in force before. The kernel takes
/// milliseconds to say that there are none, so it is asked at once, on a thread of its own: mostly
/// nobody needs to know it before it is known.
#[derive(Default)]
pub(super) struct GracePeriod(Option<Option<JoinHandle<Result<(), EngineError>>>>);

impl GracePeriod {
    /// From now on packets go by something else.
    pub(super) fn begin(&mut self, grace: &Arc<GraceMap>) {
        let grace = Arc::clone(grace);
        // Without a thread it is asked when somebody needs to know it.
        self.0 = Some(thread::Builder::new().name("grace".into()).spawn(move || grace.wait()).ok());
    }

    /// Returns when they have all been dealt with.
    pub(super) fn end(&mut self, grace: &GraceMap) -> Result<(), EngineError> {
        if let Some(waiter) = &mut self.0 {
            let known = waiter.take().and_then(|waiter| waiter.join().ok());
            known.and_then(Result::ok).map_or_else(|| grace.wait(), Ok)?;
            self.0 = None;
        }
        Ok(())
    }
}
