//! Failed probes in a row: a working server goes down after the configured number of failures, and
//! not earlier.

use std::collections::{BTreeMap, BTreeSet};

use evener_core::director::{Event, Input, MemberFact, NameFact, Snapshot};
use evener_core::farm::group::MemberChange;
use evener_core::farm::plan::ServerName;
use evener_core::pool::Fact;
use evener_core::pool::health::HealthState;

use crate::check::{Broken, Promise};
use crate::coverage::Coverage;

/// Number of failed probes that take a server down, in all files.
pub(crate) const FALL: u32 = 2;

/// Failed probes of a server in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    now: u32,
    /// Largest number since the server was last reported up. A director reports a transition late
    /// if a change is running.
    most: u32,
}

/// Failed probes of all servers of a node, for each consumer.
#[derive(Debug, Default)]
pub(crate) struct Streaks {
    of: BTreeMap<ServerName, Streak>,
    /// Members, and servers of names, that were reported up.
    up: BTreeSet<ServerName>,
}

impl Streaks {
    /// Resets the state at the start of a daemon.
    pub(crate) fn clear(&mut self) {
        *self = Streaks::default();
    }

    /// Records that another file is in force: a server that returns counts as new.
    pub(crate) fn reload(&mut self) {
        self.up.clear();
    }

    /// Records a probe result that a director gets.
    pub(crate) fn told(&mut self, input: &Input, shown: &Snapshot) {
        let Some((name, is_good)) = probed(input, shown) else { return };
        let streak = self.of.entry(name).or_default();
        streak.now = if is_good { 0 } else { streak.now + 1 };
        streak.most = streak.most.max(streak.now);
    }

    /// Checks an event of a director.
    pub(crate) fn happened(&mut self, event: &Event, coverage: &Coverage) -> Result<(), Broken> {
        let (server, is_up) = match event {
            Event::Health { server, transition } => match transition.to {
                HealthState::Down => (server, transition.from == HealthState::Up),
                _ => return self.works(server),
            },
            Event::Member { member, change: MemberChange::Up } => {
                self.up.insert(member.clone());
                return self.works(member);
            }
            Event::Suspended { server, .. } => return self.begins(server),
            Event::Member {
                member,
                change:
                    MemberChange::Joined | MemberChange::Left | MemberChange::Removed | MemberChange::Refused,
            } => return self.begins(member),
            Event::Member { member, change: MemberChange::Down(_) } => (member, self.up.remove(member)),
            _ => return Ok(()),
        };
        let failed = self.of.get(server).map_or(0, |streak| streak.most);
        coverage.checked(Promise::Early);
        match is_up && failed < FALL {
            true => Err(Promise::Early
                .broken(format!("{} of {} after {failed} of {FALL} probes", server.server, server.service))),
            false => Ok(()),
        }
    }

    /// Forgets the state of a server.
    fn begins(&mut self, server: &ServerName) -> Result<(), Broken> {
        self.up.remove(server);
        Ok(())
    }

    /// Records that a server was reported up.
    fn works(&mut self, server: &ServerName) -> Result<(), Broken> {
        if let Some(streak) = self.of.get_mut(server) {
            streak.most = streak.now;
        }
        Ok(())
    }
}

/// Returns the probed server, and true if the probe passed.
fn probed(input: &Input, shown: &Snapshot) -> Option<(ServerName, bool)> {
    match input {
        Input::Probed { server, result } => Some((server.clone(), result.is_ok())),
        Input::Name { name, fact: NameFact::Server(place, Fact::Probed(result)) } => {
            let server = name.list()?.servers.get(*place)?.name().to_string();
            Some((ServerName { service: name.settings.name.to_string(), server }, result.is_ok()))
        }
        Input::Member { group, member, fact: MemberFact::Server(Fact::Probed(result)) } => {
            let of_group = shown.groups.iter().find(|one| one.group.name == **group)?;
            let server = of_group.members.iter().find(|one| one.id == *member)?.name.clone();
            Some((ServerName { service: group.clone(), server }, result.is_ok()))
        }
        _ => None,
    }
}
