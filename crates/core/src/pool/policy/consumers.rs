//! Those who choose by policies, and the signals of servers that each of them knows. From these,
//! and from the columns of [`POLICIES`], it follows which policies each takes.

use core::fmt;

use super::hash::HASH;
use super::least_load::LEAST_LOAD;
use super::power_of_two::POWER_OF_TWO;
use super::random::RANDOM;
use super::{POLICIES, Policy};
use crate::pool::signals::Signal;

/// The parts of the program that choose among servers.
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
struct ConsumerRow {
    /// Its name in documents and messages.
    called: &'static str,
    /// The signals that it can know of servers.
    signals: &'static [Signal],
    /// The policy where the file has none.
    default: &'static Policy,
}

impl Consumer {
    /// All of them.
    pub const ALL: [Consumer; 4] =
        [Consumer::Director, Consumer::EveryHost, Consumer::Redirect, Consumer::Names];

    fn row(self) -> ConsumerRow {
        match self {
            // All methods have sessions, of UDP too, and none of them needs to see what servers
            // answer for these.
            Consumer::Director => ConsumerRow {
                called: "a director",
                signals: &[Signal::Active, Signal::Latency, Signal::Load],
                default: &POWER_OF_TWO,
            },
            // Hosts tell each other their sessions, and ask nobody. A host that takes over the
            // address of another finds the servers of that one's connections by the hash alone:
            // nobody else knows its sessions.
            Consumer::EveryHost => ConsumerRow {
                called: "a host of placement \"every-host\"",
                signals: &[Signal::Active, Signal::Reported],
                default: &HASH,
            },
            // Clients are seen no more once they are sent on.
            Consumer::Redirect => ConsumerRow {
                called: "method \"redirect\"",
                signals: &[Signal::Latency, Signal::Load],
                default: &LEAST_LOAD,
            },
            // Every answer another draw: clients share resolvers, whose turns would not be theirs.
            Consumer::Names => {
                ConsumerRow { called: "a name", signals: &[Signal::Latency, Signal::Load], default: &RANDOM }
            }
        }
    }

    /// Whether it can know this of servers, if they tell.
    pub fn knows(self, signal: Signal) -> bool {
        self.row().signals.contains(&signal)
    }

    /// The signals that a policy goes by here; `None` if it isn't carried out here at all. Groups
    /// and names need none but those of loads: they count by themselves how often they chose each.
    pub fn needs(self, policy: &Policy) -> Option<&'static [Signal]> {
        let weighing = match self {
            Consumer::Director | Consumer::EveryHost => return policy.packets.map(|_| policy.needs),
            Consumer::Redirect => policy.redirect?.weighing,
            Consumer::Names => policy.names?.weighing,
        };
        Some(weighing.map_or(&[], |weighing| weighing.needs))
    }

    /// The first signal that a policy needs and that isn't known here, if there is one.
    pub fn lacks(self, policy: &Policy) -> Option<Signal> {
        self.needs(policy).unwrap_or(policy.needs).iter().copied().find(|signal| !self.knows(*signal))
    }

    /// The policy of a service, or a name, for which the file has none.
    pub fn default_policy(self) -> &'static Policy {
        self.row().default
    }

    /// The policies that it takes, in the order in which people read of them.
    pub fn policies(self) -> impl Iterator<Item = &'static Policy> {
        let takes = move |policy: &&Policy| self.needs(policy).is_some() && self.lacks(policy).is_none();
        POLICIES.iter().copied().filter(takes)
    }

    /// Those of them that don't go by this signal.
    pub fn policies_without(self, signal: Signal) -> impl Iterator<Item = &'static Policy> {
        self.policies().filter(move |policy| !self.goes_by(policy, signal))
    }

    /// Whether a policy goes by this signal here.
    pub fn goes_by(self, policy: &Policy, signal: Signal) -> bool {
        self.needs(policy).is_some_and(|needs| needs.contains(&signal))
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
    use crate::pool::policy::by_name;
    use alloc::vec::Vec;

    #[test]
    fn everybody_takes_its_own_default() {
        for consumer in Consumer::ALL {
            assert!(consumer.policies().any(|policy| policy == consumer.default_policy()), "{consumer}");
        }
        assert!(Consumer::Redirect.row().called.contains(REDIRECT));
    }

    #[test]
    fn every_policy_has_a_consumer_and_matching_columns() {
        for policy in POLICIES {
            assert!(
                Consumer::ALL.iter().any(|one| one.policies().any(|taken| taken == *policy)),
                "{policy:?}"
            );
            for consumer in [Consumer::Redirect, Consumer::Names] {
                assert!(consumer.needs(policy).is_none() || consumer.lacks(policy).is_none(), "{policy:?}");
            }
        }
    }

    #[test]
    fn consumer_without_sessions_has_no_session_policy() {
        assert_eq!(Consumer::Names.lacks(&POWER_OF_TWO), Some(Signal::Active));
        assert_eq!(Consumer::Redirect.lacks(&POWER_OF_TWO), None, "it counts what it gave");
        for consumer in [Consumer::Redirect, Consumer::Names] {
            assert_eq!(consumer.lacks(by_name("least-connections").unwrap()), Some(Signal::Active));
            assert!(
                !consumer.policies().any(|policy| ["least-connections", "overflow"].contains(&policy.name))
            );
        }
        assert_eq!(Consumer::Director.lacks(by_name("overflow").unwrap()), Some(Signal::Reported));
        assert_eq!(Consumer::EveryHost.lacks(by_name("peak-ewma").unwrap()), Some(Signal::Latency));
    }

    #[test]
    fn policies_without_a_signal_exclude_those_that_need_it() {
        let names = |signal| -> Vec<&str> {
            Consumer::Director.policies_without(signal).map(|policy| policy.name).collect()
        };
        let all: Vec<&str> = Consumer::Director.policies().map(|policy| policy.name).collect();
        let load = names(Signal::Load);
        assert!(all.contains(&"utilisation") && !load.contains(&"utilisation"));
        assert!(load.contains(&"least-connections") && load.contains(&"hash"));
        assert!(!names(Signal::Active).contains(&"least-connections"));
        assert_eq!(names(Signal::Reported), all, "none of a director's goes by what hosts report");
    }
}
