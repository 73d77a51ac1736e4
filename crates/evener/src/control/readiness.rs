//! Record of this director's readiness, written each second for programs that can't ask the daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use evener_core::director::Snapshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::executor::{Executor, KERNEL_ENGINE};
use super::now_ms;
use crate::ready::{self, NeededInterface, Record, Seen};

/// Maximum duration of the last write.
const WRITE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct ReadinessRecord {
    path: PathBuf,
    /// True if the state of the servers is known. Until then, the previous daemon's record stays.
    is_known: bool,
    /// Snapshot that the last record follows from, and whether the director was drained.
    followed: Option<(Arc<Snapshot>, bool)>,
    written: Option<Record>,
    /// Write under way. The file system may hang.
    writing: Option<JoinHandle<()>>,
    /// True if the last write failed. Only the first failure is logged.
    has_failed: Arc<AtomicBool>,
}

impl ReadinessRecord {
    pub(super) fn in_folder(directory: &Path) -> ReadinessRecord {
        let path = ready::path(directory);
        let (followed, written, writing) = (None, None, None);
        ReadinessRecord { path, is_known: false, followed, written, writing, has_failed: Arc::default() }
    }

    /// Allows writes: the state of the servers is known.
    pub(super) fn begin(&mut self) {
        self.is_known = true;
    }

    /// Writes the record at once if the readiness has changed.
    pub(super) fn follow(&mut self, executor: &Executor) {
        let (snapshot, is_drained) = (executor.director.snapshot(), executor.is_drained());
        let is_same = |(seen, was): &(Arc<Snapshot>, bool)| Arc::ptr_eq(seen, snapshot) && *was == is_drained;
        if !self.is_known || self.followed.as_ref().is_some_and(is_same) {
            return;
        }
        let record = record(executor);
        let at_ms = record.at_ms;
        let is_written = self.written.as_ref().is_some_and(|last| Record { at_ms, ..last.clone() } == record);
        if is_written || self.write(record) {
            self.followed = Some((Arc::clone(snapshot), is_drained));
        }
    }

    /// Writes the record. Its time also serves as the daemon's heartbeat. Returns false if the last
    /// write is still under way.
    pub(super) fn write(&mut self, record: Record) -> bool {
        if !self.is_known || self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return false;
        }
        self.written = Some(record.clone());
        let (path, has_failed) = (self.path.clone(), Arc::clone(&self.has_failed));
        self.writing = Some(spawn_blocking(move || {
            let written = record.write(&path);
            let failed_before = has_failed.swap(written.is_err(), Relaxed);
            if let Err(error) = written
                && !failed_before
            {
                let path = path.display();
                tracing::error!(
                    "failed to write {path}, so keepalived will consider this director dead: {error}"
                );
            }
        }));
        true
    }

    /// Removes the record: the data plane ends, and no service is ready.
    pub(super) async fn forget(self) {
        // A late write would restore the record.
        if let Some(writing) = self.writing {
            let _ = timeout(WRITE, writing).await;
        }
        let _ = fs::remove_file(self.path);
    }
}

/// Returns this host's network as the daemon knows it. The daemon keeps its programs attached.
pub(super) fn seen_by(executor: &Executor) -> Seen {
    let director = &executor.director;
    Seen::of(&director.network().interfaces, director.links().keys().copied().collect())
}

/// Returns the current record.
pub(super) fn record(executor: &Executor) -> Record {
    let director = &executor.director;
    let interfaces = director.links().keys().map(|ifindex| NeededInterface {
        ifindex: *ifindex,
        name: director
            .network()
            .interfaces
            .get(ifindex)
            .map_or_else(|| format!("number {ifindex}"), |interface| interface.name.clone()),
        is_named: !executor.config.engine.interfaces.is_empty(),
    });
    // An interface that the file names is needed even if it is gone.
    let names = executor.config.engine.interfaces.iter();
    let is_there = |name: &str| director.network().interfaces.values().any(|one| one.name == name);
    let gone = names.filter(|name| !is_there(name)).map(|name| NeededInterface {
        ifindex: 0,
        name: name.clone(),
        is_named: true,
    });
    Record {
        orphan_ms: executor.config.farm.orphan_ms,
        is_in_kernel: executor.engine.kind == KERNEL_ENGINE,
        is_drained: executor.is_drained(),
        announce: Some(executor.config.announce),
        interfaces: interfaces.chain(gone).collect(),
        services: director.snapshot().readiness().into_iter().map(Into::into).collect(),
        ..Record::at(now_ms())
    }
}
