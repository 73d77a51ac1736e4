//! States that the operator sets for members. A state also applies to a member that joins later.

use alloc::string::ToString;

use super::Members;
use crate::pool::ClockReading;
use crate::pool::OperatorState;

impl Members {
    /// Sets the state of the member with this name or URL. For an absent member the state applies
    /// once it joins.
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

    /// Returns the name of the member that the operator means by a name or URL.
    pub fn called(&self, name: &str) -> Option<&str> {
        self.members.values().find(|member| member.is_called(name)).map(|member| member.name())
    }
}
