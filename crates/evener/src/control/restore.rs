//! The farm that a daemon starts with: the file with the stored run-time changes over it.

use std::path::Path;

use super::{clocks, former_drains};
use crate::config::{Config, LoadedConfig, Problems};
use crate::events::{Bus, DaemonEvent};
use crate::state::store::{AuditEntry, Store};
use crate::state::{self, FarmState, RebasedFile, Record, places};

pub(super) struct RestoredFarm {
    pub(super) state: FarmState,
    pub(super) config: Config,
    /// Reason why stored changes are not in force.
    pub(super) trouble: Option<String>,
}

/// Applies the stored changes to a file. Changes that the file has overruled are dropped
/// permanently.
///
/// # Errors
/// Errors of the file alone. Changes that don't fit the file are set aside.
pub(super) fn restore(
    store: &Store,
    file: LoadedConfig,
    directory: &Path,
    bus: &Bus,
) -> Result<RestoredFarm, Problems> {
    let (RebasedFile { state, config, dropped }, trouble) = rebased(store, file)?;
    if !dropped.is_empty() {
        let entry = AuditEntry::dropped(clocks().unix_ms, &dropped, "a start", state.record.generation);
        if let Err(error) = store.write(&state.record).and_then(|()| store.log(&[entry])) {
            tracing::error!("failed to remove run-time changes that the farm file overrides: {error}");
        }
        bus.publish(DaemonEvent::ChangesDropped { places: places(&dropped) });
    }
    if let Some(trouble) = &trouble {
        tracing::error!("{trouble}");
    }
    let state = former_drains::import(store, state, &config, directory);
    Ok(RestoredFarm { state, config, trouble })
}

fn rebased(store: &Store, file: LoadedConfig) -> Result<(RebasedFile, Option<String>), Problems> {
    let (record, mut trouble) = match store.read() {
        Ok(record) => (record, None),
        Err(error) => (Record::default(), Some(error.to_string())),
    };
    let generation = record.generation;
    if let Ok(rebased) = state::rebase(file.clone(), record) {
        if let Some(trouble) = &mut trouble {
            set_aside(store, trouble);
        }
        return Ok((rebased, trouble));
    }
    let mut why = "the saved run-time changes conflict with the file and are not in force".to_owned();
    set_aside(store, &mut why);
    // A new generation: the tag of an earlier farm must never name another farm.
    let empty = Record { generation: generation + 1, ..Record::default() };
    Ok((state::rebase(file, empty)?, Some(why)))
}

fn set_aside(store: &Store, why: &mut String) {
    match store.set_aside() {
        Ok(path) => why.push_str(&format!("; they are kept in {}", path.display())),
        Err(error) => why.push_str(&format!("; they can't be put aside: {error}")),
    }
}
