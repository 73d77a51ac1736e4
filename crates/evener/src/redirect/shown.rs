//! What the control loop publishes of groups, for whoever looks at them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use evener_core::farm::group::{Group, MemberState};

use super::Front;

/// A group at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ShownGroup {
    pub(crate) group: Arc<Group>,
    pub(crate) front: Arc<Front>,
    pub(crate) members: Vec<MemberState>,
    /// When that was, in milliseconds of the monotonic clock.
    pub(crate) at_ms: u64,
}

/// Where it is published.
#[derive(Debug, Default)]
pub(crate) struct Shown(ArcSwap<Vec<ShownGroup>>);

impl Shown {
    /// What was published last.
    pub(crate) fn latest(&self) -> Arc<Vec<ShownGroup>> {
        self.0.load_full()
    }

    pub(crate) fn publish(&self, groups: Vec<ShownGroup>) {
        self.0.store(Arc::new(groups));
    }
}
