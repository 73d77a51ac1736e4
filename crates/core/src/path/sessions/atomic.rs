//! Atomics of the tables. Under loom they are the model checker's, which tries all interleavings of
//! threads (`make model`).

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
