//! Groups and names beside the services of a farm: their facts and orders go the director's way,
//! and all of them are ready together.

use alloc::sync::Arc;

use super::groups::Groups;
use super::names::Names;
use super::{Director, Moment, Output};
use crate::dns::BalancedName;
use crate::farm::group::{self, Group, Members};

/// How long a new director may look for servers before it is ready all the same, in milliseconds.
pub(super) const READY_AFTER_MS: u64 = 3_000;

impl Director {
    /// Has a message of a member, or of the operator, do what it says, if there is such a group.
    /// One that is refused (`Err`) has changed nothing.
    pub fn message<T>(
        &mut self,
        now: Moment,
        group: &str,
        message: impl FnOnce(group::ClockReading, &Group, &mut Members) -> Result<T, T>,
    ) -> Option<T> {
        let answer = self.groups.message(now, group, message);
        self.follow_consumers(now);
        answer
    }

    /// The members of a group.
    pub fn group(&self, name: &str) -> Option<&Members> {
        self.groups.members(name)
    }

    /// The name that is written so, if it is one of the farm's.
    pub fn name(&self, name: &str) -> Option<&Arc<BalancedName>> {
        self.names.find(name)
    }

    /// Whether a name has an address of a server that lives.
    pub fn has_living(&self, name: &str, now: Moment) -> bool {
        self.names.has_living(name, now.ms)
    }

    /// The same director without groups and names, to try services with.
    pub(super) fn without_consumers(&mut self) -> Director {
        let others = Groups::new(self.seed);
        let groups = core::mem::replace(&mut self.groups, others);
        let others = Names::new(self.seed);
        let names = core::mem::replace(&mut self.names, others);
        let tried = self.clone();
        (self.groups, self.names) = (groups, names);
        tried
    }

    /// Takes over what groups and names order, and how they are.
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

    /// True once: when it is known how all servers are, or that was waited for long enough.
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
