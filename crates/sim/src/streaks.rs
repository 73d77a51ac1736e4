//! Probes that failed one after the other: a server that works counts as failing after as many as
//! its file wants, and not before.

use std::collections::{BTreeMap, BTreeSet};

use evener_core::director::{Event, Input, MemberFact, NameFact, Snapshot};
use evener_core::farm::group::MemberChange;
use evener_core::farm::plan::ServerName;
use evener_core::pool::Fact;
use evener_core::pool::health::HealthState;

use crate::check::{Broken, Promise};
use crate::coverage::Coverage;

/// So many probes must fail one after the other, by all files.
pub(crate) const FALL: u32 = 2;

/// The probes of a server that failed one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Streak {
    /// Of the last ones.
    now: u32,
    /// At most, since it was last said to work: a director says what it knows later, while tables
    /// are on their way.
    most: u32,
}

/// Those of all servers of a node, for each consumer.
#[derive(Debug, Default)]
pub(crate) struct Streaks {
    of: BTreeMap<ServerName, Streak>,
    /// The members, and servers of names, that were said to work.
    up: BTreeSet<ServerName>,
}

impl Streaks {
    /// Its daemon begins, and knows of no probe.
    pub(crate) fn clear(&mut self) {
        *self = Streaks::default();
    }

    /// Another file is in force: a server that comes back is a new one.
    pub(crate) fn reload(&mut self) {
        self.up.clear();
    }

    /// A director is told something, which shows this.
    pub(crate) fn told(&mut self, input: &Input, shown: &Snapshot) {
        let Some((name, is_good)) = probed(input, shown) else { return };
        let streak = self.of.entry(name).or_default();
        streak.now = if is_good { 0 } else { streak.now + 1 };
        streak.most = streak.most.max(streak.now);
    }

    /// A director says that something has happened.
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

    /// Of a server nothing is known from now on.
    fn begins(&mut self, server: &ServerName) -> Result<(), Broken> {
        self.up.remove(server);
        Ok(())
    }

    /// A server is said to work.
    fn works(&mut self, server: &ServerName) -> Result<(), Broken> {
        if let Some(streak) = self.of.get_mut(server) {
            streak.most = streak.now;
        }
        Ok(())
    }
}

/// The server whose probe has ended, and whether it was good.
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
