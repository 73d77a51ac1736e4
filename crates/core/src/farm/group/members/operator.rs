//! The operator's word on members, present or not.

use alloc::string::ToString;

use super::{ClockReading, Members};
use crate::pool::OperatorState;

impl Members {
    /// The operator says something of a member, by its name or URL: of one that isn't here, for
    /// when it comes.
    pub fn set_operator_state(&mut self, now: ClockReading, name: &str, state: OperatorState) {
        let member = self.members.values_mut().find(|member| member.is_called(name));
        match &member {
            Some(member) => self.operator.retain(|known, _| !member.is_called(known)),
            None => drop(self.operator.remove(name)),
        }
        if state != OperatorState::Ready {
            self.operator.insert(name.to_string(), state);
        }
        let Some(member) = member else { return };
        let (id, change) = (member.id, member.server.set_operator_state(state, now.now_ms));
        self.follow_change(now, id, change);
    }

    /// The name of the member that its operator means by a name, or by a URL.
    pub fn called(&self, name: &str) -> Option<&str> {
        self.members.values().find(|member| member.is_called(name)).map(|member| member.name())
    }
}
