//! Atomic types of the session tables. Under `cfg(loom)` they are those of the model checker loom,
//! which tries all interleavings of threads (`make model`).

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
