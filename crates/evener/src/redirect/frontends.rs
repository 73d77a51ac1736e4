//! Groups for views: core's snapshot of each, and the counters of its frontend.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwap;
use evener_core::director::{GroupSnapshot, Snapshot};

use super::Frontend;

/// A group at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ShownGroup {
    seen: Arc<GroupSnapshot>,
    pub(crate) front: Arc<Frontend>,
}

impl Deref for ShownGroup {
    type Target = GroupSnapshot;

    fn deref(&self) -> &GroupSnapshot {
        &self.seen
    }
}

/// Frontends of all groups, by name.
#[derive(Debug, Default)]
pub(crate) struct Frontends(ArcSwap<BTreeMap<String, Arc<Frontend>>>);

impl Frontends {
    pub(crate) fn all(&self) -> Arc<BTreeMap<String, Arc<Frontend>>> {
        self.0.load_full()
    }

    /// Returns the frontend of a group.
    pub(crate) fn of(&self, group: &str) -> Option<Arc<Frontend>> {
        self.0.load().get(group).cloned()
    }

    pub(crate) fn publish(&self, fronts: BTreeMap<String, Arc<Frontend>>) {
        self.0.store(Arc::new(fronts));
    }

    /// Returns the groups of a snapshot.
    pub(crate) fn show(&self, snapshot: &Snapshot) -> Vec<ShownGroup> {
        let fronts = self.0.load();
        let shown = snapshot.groups.iter().filter_map(|seen| {
            let front = Arc::clone(fronts.get(&seen.group.name)?);
            Some(ShownGroup { seen: Arc::clone(seen), front })
        });
        shown.collect()
    }
}
