//! Consumers: the parts of the program that select servers by a policy. A consumer supports a
//! policy if the policy has a column for the consumer in [`POLICIES`], and the consumer knows the
//! signals that the policy needs.

use core::fmt;

use super::hash::HASH;
use super::least_load::LEAST_LOAD;
use super::power_of_two::POWER_OF_TWO;
use super::random::RANDOM;
use super::{POLICIES, Policy};
use crate::pool::signals::Signal;

/// Part of the program that selects servers by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consumer {
    /// A director, for packets and connections, by any method.
    Director,
    /// Each host of an every-host farm.
    EveryHost,
    /// A server group, which redirects clients by HTTP.
    Redirect,
    /// A DNS name, which answers with addresses.
    Names,
}

/// Properties of a consumer.
struct ConsumerRow {
    /// Name in documents and messages.
    called: &'static str,
    /// Signals of servers that the consumer knows.
    signals: &'static [Signal],
    /// Policy for a service or name for which the file names no policy.
    default: &'static Policy,
}

impl Consumer {
    pub const ALL: [Consumer; 4] =
        [Consumer::Director, Consumer::EveryHost, Consumer::Redirect, Consumer::Names];

    fn row(self) -> ConsumerRow {
        match self {
            // All methods store sessions, also for UDP, and need not see the servers' replies to do
            // so. So the number of active sessions is always known.
            Consumer::Director => ConsumerRow {
                called: "a director",
                signals: &[Signal::Active, Signal::Latency, Signal::Load],
                default: &POWER_OF_TWO,
            },
            // Hosts send each other their session counts, and what their own servers report. If a
            // host takes over another host's address, the sessions are lost, so the host finds the
            // servers of open connections by hash alone.
            Consumer::EveryHost => ConsumerRow {
                called: "a host of placement \"every-host\"",
                signals: &[Signal::Active, Signal::Reported, Signal::Load],
                default: &HASH,
            },
            // The group does not see clients after the redirect, so it knows no sessions.
            Consumer::Redirect => ConsumerRow {
                called: "method \"redirect\"",
                signals: &[Signal::Latency, Signal::Load],
                default: &LEAST_LOAD,
            },
            // The default is random and not round-robin, since clients share resolvers: one answer
            // of a rotation may serve many clients.
            Consumer::Names => {
                ConsumerRow { called: "a name", signals: &[Signal::Latency, Signal::Load], default: &RANDOM }
            }
        }
    }

    /// True if the consumer knows this signal of servers that provide the signal.
    pub fn knows(self, signal: Signal) -> bool {
        self.row().signals.contains(&signal)
    }

    /// Returns the signals that a policy uses with this consumer; `None` if the policy is not
    /// supported. Groups and names need only load signals, since they count their own selections.
    pub fn needs(self, policy: &Policy) -> Option<&'static [Signal]> {
        let weighing = match self {
            Consumer::Director | Consumer::EveryHost => return policy.packets.map(|_| policy.needs),
            Consumer::Redirect => policy.redirect?.weighing,
            Consumer::Names => policy.names?.weighing,
        };
        Some(weighing.map_or(&[], |weighing| weighing.needs))
    }

    /// Returns the first signal that a policy needs and this consumer does not know.
    pub fn lacks(self, policy: &Policy) -> Option<Signal> {
        self.needs(policy).unwrap_or(policy.needs).iter().copied().find(|signal| !self.knows(*signal))
    }

    /// Returns the policy of a service or name for which the file names no policy.
    pub fn default_policy(self) -> &'static Policy {
        self.row().default
    }

    /// Returns the supported policies, in the order of the documentation.
    pub fn policies(self) -> impl Iterator<Item = &'static Policy> {
        let takes = move |policy: &&Policy| self.needs(policy).is_some() && self.lacks(policy).is_none();
        POLICIES.iter().copied().filter(takes)
    }

    /// Returns the supported policies that do not use this signal.
    pub fn policies_without(self, signal: Signal) -> impl Iterator<Item = &'static Policy> {
        self.policies().filter(move |policy| !self.goes_by(policy, signal))
    }

    /// True if a policy uses this signal with this consumer.
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
