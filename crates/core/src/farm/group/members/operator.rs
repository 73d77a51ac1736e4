//! The operator's word on members: drained, or left alone.

use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};

use super::{ClockReading, MemberChange, Members};

impl Members {
    /// These were drained by the operator before: those that are here are so now, and others when
    /// they come.
    pub fn keep_drained(&mut self, now: ClockReading, names: BTreeSet<String>) {
        for name in &names {
            self.drain(now, name, true);
        }
        self.drained.extend(names);
    }

    /// The operator wants no more requests to go to a member, or wants it again. `false` where
    /// there is none of this name or URL.
    pub fn drain(&mut self, now: ClockReading, name: &str, is_drained: bool) -> bool {
        let Some(member) = self.members.values_mut().find(|member| member.is_called(name)) else {
            return false;
        };
        match is_drained {
            true => drop(self.drained.insert(name.to_string())),
            false => self.drained.retain(|known| !member.is_called(known)),
        }
        if member.server.drain(is_drained) {
            let name = member.name().to_string();
            self.push_event(name, if is_drained { MemberChange::Drained } else { MemberChange::Undrained });
            self.changed(now);
        }
        true
    }

    /// The operator wants a member neither probed nor asked for its load, or wants that again: one
    /// that isn't here, once it comes.
    pub fn suspend(&mut self, now: ClockReading, name: &str, is_suspended: bool) {
        let member = self.members.values_mut().find(|member| member.is_called(name));
        match (&member, is_suspended) {
            (_, true) => drop(self.suspended.insert(name.to_string())),
            (Some(member), false) => self.suspended.retain(|known| !member.is_called(known)),
            (None, false) => drop(self.suspended.remove(name)),
        }
        if member.is_some_and(|member| member.server.suspend(is_suspended, now.now_ms)) {
            self.changed(now);
        }
    }

    /// The members that the operator has drained, by name or URL, whether they are here or not.
    pub fn drained(&self) -> &BTreeSet<String> {
        &self.drained
    }

    /// The name of the member that its operator means by a name, or by a URL, and whether it is
    /// drained.
    pub fn called(&self, name: &str) -> Option<(&str, bool)> {
        let member = self.members.values().find(|member| member.is_called(name))?;
        Some((member.name(), member.server.is_drained()))
    }
}
