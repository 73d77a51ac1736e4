//! Who chooses by policies, and what each of them knows of servers: one table, from which it follows which policies it takes.

use core::fmt;

use super::{POLICIES, Policy, by_name};
use crate::pool::signals::Signal;

/// Who chooses among servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consumer {
    /// A director, of packets and connections, by whichever method.
    Director,
    /// Each host, where every host decides.
    EveryHost,
    /// A group, whose clients are told by HTTP whom to ask.
    Redirect,
    /// A name, whose clients are told addresses.
    Names,
}

/// A row of the table.
struct Row {
    /// What it is called in what people read.
    called: &'static str,
    /// What it can know of servers.
    signals: &'static [Signal],
    /// Policies of its own, which go by what it does itself: [`POLICIES`] has them not, or as something else.
    own: &'static [&'static str],
    /// The policy where the file has none.
    default: &'static str,
}

impl Consumer {
    /// All of them.
    pub const ALL: [Consumer; 4] =
        [Consumer::Director, Consumer::EveryHost, Consumer::Redirect, Consumer::Names];

    const fn row(self) -> Row {
        match self {
            // All methods have sessions, of UDP too, and none of them needs to see what servers answer for these.
            Consumer::Director => Row {
                called: "a director",
                signals: &[Signal::Active, Signal::Latency, Signal::Load],
                own: &[],
                default: "power-of-two",
            },
            // Hosts tell each other their sessions, and ask nobody. Whoever takes over the address of a host that is gone finds the servers of
            // that one's connections by the hash alone: nobody else knows its sessions.
            Consumer::EveryHost => Row {
                called: "a host of placement \"every-host\"",
                signals: &[Signal::Active, Signal::Reported],
                own: &[],
                default: "hash",
            },
            // Clients are seen no more once they are sent on: what counts as power-of-two there is how many were.
            Consumer::Redirect => Row {
                called: "method \"redirect\"",
                signals: &[Signal::Latency, Signal::Load],
                own: &["power-of-two", "random"],
                default: "least-load",
            },
            // Every answer another draw: clients share resolvers, whose turns would not be theirs.
            Consumer::Names => Row {
                called: "a name",
                signals: &[Signal::Latency, Signal::Load],
                own: &["random", "failover"],
                default: "random",
            },
        }
    }

    /// Whether it can know this of servers, if they tell.
    pub fn knows(self, signal: Signal) -> bool {
        self.row().signals.contains(&signal)
    }

    /// What a policy needs and isn't known here, if there is something.
    pub fn lacks(self, policy: &dyn Policy) -> Option<Signal> {
        policy.needs().iter().copied().find(|signal| !self.knows(*signal))
    }

    /// The policy of a service, or a name, for which the file has none.
    pub fn default_policy(self) -> &'static str {
        self.row().default
    }

    /// The names of the policies that it takes, in the order in which people are told of them.
    pub fn policies(self) -> impl Iterator<Item = &'static str> {
        let known = POLICIES.iter().filter(move |policy| self.lacks(**policy).is_none());
        self.row().own.iter().copied().chain(known.map(|policy| policy.name()))
    }

    /// Those of them that don't go by this signal.
    pub fn policies_without(self, signal: Signal) -> impl Iterator<Item = &'static str> {
        let goes_by = move |name: &str| by_name(name).is_some_and(|policy| policy.needs().contains(&signal));
        self.policies().filter(move |name| !goes_by(name))
    }
}

impl fmt::Display for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().called)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::farm::REDIRECT;
    use crate::farm::group::GroupPolicy;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn everybody_takes_its_own_default() {
        for consumer in Consumer::ALL {
            let names: Vec<&str> = consumer.policies().collect();
            assert!(names.contains(&consumer.default_policy()), "{consumer}: {names:?}");
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{consumer}: {names:?}");
        }
        assert!(Consumer::Redirect.row().called.contains(REDIRECT));
    }

    #[test]
    fn what_a_policy_needs_is_known_somewhere() {
        let somewhere = |policy: &&dyn Policy| Consumer::ALL.iter().any(|one| one.lacks(*policy).is_none());
        assert!(POLICIES.iter().all(somewhere));
    }

    #[test]
    fn who_sees_no_sessions_takes_no_policy_by_them() {
        for consumer in [Consumer::Redirect, Consumer::Names] {
            assert_eq!(consumer.lacks(by_name("power-of-two").unwrap()), Some(Signal::Active));
            assert!(!consumer.policies().any(|name| ["least-connections", "overflow"].contains(&name)));
        }
        assert_eq!(Consumer::Director.lacks(by_name("overflow").unwrap()), Some(Signal::Reported));
        assert_eq!(Consumer::EveryHost.lacks(by_name("peak-ewma").unwrap()), Some(Signal::Latency));
        assert!(!Consumer::Director.policies_without(Signal::Load).any(|name| name == "utilisation"));
    }

    #[test]
    fn groups_take_all_that_the_table_says_and_nothing_else() {
        let names: Vec<&str> = Consumer::Redirect.policies().collect();
        assert!(GroupPolicy::ALL.iter().all(|policy| names.contains(&policy.name())), "{names:?}");
        assert_eq!(names.len(), GroupPolicy::ALL.len(), "{names:?}");
        assert_eq!(GroupPolicy::ALL[0].name(), Consumer::Redirect.default_policy());
    }
}
