//! The atomics that tables are made of: those of a model checker where it tries all orders in which
//! threads may meet (`make model`).

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
