//! Consumers: the groups and names of a farm, which use servers as services do. The director passes
//! inputs to the groups and names, and passes their orders to the caller. It reports readiness when
//! all services, groups and names are ready.

use alloc::sync::Arc;

use super::groups::Groups;
use super::names::Names;
use super::{Director, Moment, Output};
use crate::dns::BalancedName;
use crate::farm::group::{Group, Members};
use crate::pool::ClockReading;

/// Time after the start at which the director is ready even if some servers have no probe result,
/// in milliseconds.
pub(super) const READY_AFTER_MS: u64 = 3_000;

impl Director {
    /// Applies a message of a member or of the operator to a group, if it exists. A refused message
    /// (`Err`) changes nothing.
    pub fn message<T>(
        &mut self,
        now: Moment,
        group: &str,
        message: impl FnOnce(ClockReading, &Group, &mut Members) -> Result<T, T>,
    ) -> Option<T> {
        let answer = self.groups.message(now, group, message);
        self.follow_consumers(now);
        answer
    }

    pub fn group(&self, name: &str) -> Option<&Members> {
        self.groups.members(name)
    }

    /// Returns the balanced name with this spelling; `None` if the farm has no such name.
    pub fn name(&self, name: &str) -> Option<&Arc<BalancedName>> {
        self.names.find(name)
    }

    /// True if a working server has one of the name's addresses.
    pub fn has_living(&self, name: &str, now: Moment) -> bool {
        self.names.has_living(name, now.ms)
    }

    /// Returns a copy of the director without groups and names, for a trial plan of the services.
    pub(super) fn without_consumers(&mut self) -> Director {
        let others = Groups::new(self.seed);
        let groups = core::mem::replace(&mut self.groups, others);
        let others = Names::new(self.seed);
        let names = core::mem::replace(&mut self.names, others);
        let tried = self.clone();
        (self.groups, self.names) = (groups, names);
        tried
    }

    /// Collects orders, events and snapshots of groups and names, and reports readiness.
    pub(super) fn follow_consumers(&mut self, now: Moment) {
        self.outputs.extend(self.groups.take_events().into_iter().map(Output::Event));
        while let Some((group, order)) = self.groups.poll_order() {
            self.outputs.push_back(Output::Group { group, order });
        }
        if let Some(groups) = self.groups.snapshot() {
            Arc::make_mut(&mut self.snapshot).groups = groups.into();
        }
        let is_ready = self.become_ready(now);
        let names = self.names.follow(&self.snapshot, now);
        self.outputs.extend(self.names.take_events().into_iter().map(Output::Event));
        while let Some(order) = self.names.poll_order() {
            self.outputs.push_back(Output::Name(order));
        }
        if let Some(names) = names {
            Arc::make_mut(&mut self.snapshot).names = names;
        }
        if is_ready {
            self.outputs.push_back(Output::Ready { serving: self.is_serving(now) });
        }
    }

    /// Returns true only once: when this host serves and all servers were probed, or when
    /// [`READY_AFTER_MS`] has passed.
    fn become_ready(&mut self, now: Moment) -> bool {
        let is_settled = || self.is_serving(now) && self.is_settled();
        if self.ready_at_ms == u64::MAX || now.ms <= self.ready_at_ms && !is_settled() {
            return false;
        }
        self.ready_at_ms = u64::MAX;
        self.names.begin();
        true
    }
}
