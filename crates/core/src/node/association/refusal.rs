//! Reasons why a node's message is refused, and counters.

use core::fmt;

/// Reason why a message or its content was refused. A message is *authentic* if its tag is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The message has a wrong format.
    Malformed,
    /// The tag is wrong.
    Forged,
    /// The message is authentic, but its key is that of another hour, so the clocks differ.
    Key {
        /// Hours by which the sender's clock is ahead of this node's; negative if behind.
        ahead_h: i64,
    },
    /// The message is authentic, but of another protocol version.
    Version {
        /// Version of the sender.
        theirs: u8,
        /// Version of this node.
        ours: u8,
    },
    /// The message is meant for another host.
    Misdirected,
    /// The sender is not in the configuration.
    Stranger,
    /// Two running nodes have the same name.
    Namesake,
    /// The message was received before, or arrived after later messages.
    Replayed,
    /// The message belongs to a life of its sender that ended before the accepted life.
    Ended,
    /// The message echoes a message that was sent too long ago, so it may have been delayed.
    Stale,
    /// The message is meant for an earlier life of this node, or for no life.
    Former,
    /// The sender's life is unknown, and the message is not part of a handshake.
    Unknown,
    /// The message is for a component that this node doesn't have.
    Receptor,
    /// The sender has another configuration. It is alive, but its load and health are not used.
    Generation,
}

impl Refusal {
    /// Names of all refusals, by index.
    pub const NAMES: [&str; 14] = [
        "malformed",
        "forged",
        "key",
        "version",
        "misdirected",
        "stranger",
        "namesake",
        "replayed",
        "ended",
        "stale",
        "former",
        "unknown",
        "receptor",
        "generation",
    ];

    /// Name of the refusal in status output and metrics.
    pub const fn name(self) -> &'static str {
        Refusal::NAMES[self.index()]
    }

    const fn index(self) -> usize {
        match self {
            Refusal::Malformed => 0,
            Refusal::Forged => 1,
            Refusal::Key { .. } => 2,
            Refusal::Version { .. } => 3,
            Refusal::Misdirected => 4,
            Refusal::Stranger => 5,
            Refusal::Namesake => 6,
            Refusal::Replayed => 7,
            Refusal::Ended => 8,
            Refusal::Stale => 9,
            Refusal::Former => 10,
            Refusal::Unknown => 11,
            Refusal::Receptor => 12,
            Refusal::Generation => 13,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Malformed => {
                "malformed message, ignored; another program may use the port or the IP protocol number"
            }
            Refusal::Forged => {
                "its tag is wrong, ignored: it has another farm's secret, or its address was translated on the way; all nodes need \
                 the same `[farm] secret_file`"
            }
            Refusal::Key { ahead_h } => {
                let (hours, way) = (ahead_h.unsigned_abs(), if *ahead_h > 0 { "ahead of" } else { "behind" });
                return write!(
                    f,
                    "its clock is about {hours} hours {way} this node's, or what it sent was held up for as long, ignored; set the \
                     clocks, best by NTP"
                );
            }
            Refusal::Version { theirs, ours } => {
                let older = if theirs < ours { "it" } else { "this node" };
                return write!(
                    f,
                    "it has protocol version {theirs}, this node has version {ours}: its messages are ignored until both run the same release of Evener; upgrade {older}"
                );
            }
            Refusal::Misdirected => "it was meant for another host, ignored; compare the hosts' addresses",
            Refusal::Stranger => "its sender is not in the configuration, ignored; compare the hosts' files",
            Refusal::Namesake => {
                "two nodes use this name or address; one of them is ignored: give each node its own"
            }
            Refusal::Replayed => "a message came twice or late, and was ignored",
            Refusal::Ended => {
                "a message of a life that it has ended since came late, or was played back, and was ignored"
            }
            Refusal::Stale => "a message was long on its way, and was ignored",
            Refusal::Former => "a message was meant for this node before its last start, and was ignored",
            Refusal::Unknown => "an unknown node: a handshake was started, and it will send its message again",
            Refusal::Receptor => "this node has no such component, ignored; compare the files",
            Refusal::Generation => {
                "it runs another configuration: its messages are ignored until the files agree"
            }
        })
    }
}

/// Numbers of sent, accepted and refused messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MessageCounters {
    /// Number of messages sent.
    pub sent: u64,
    /// Number of accepted messages.
    pub accepted: u64,
    /// Number of authentic first messages of nodes that have received no message of this node.
    pub hellos: u64,
    refused: [u64; Refusal::NAMES.len()],
}

impl MessageCounters {
    /// Number of refusals for this reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused.get(refusal.index()).copied().unwrap_or_default()
    }

    /// Returns the number of refusals for each reason, with the name of the reason.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Refusal::NAMES.into_iter().zip(self.refused)
    }

    /// Returns all counters by name. Refusals are included only if their name is in `refusals`.
    pub fn named(&self, refusals: &[&str]) -> impl Iterator<Item = (&'static str, u64)> {
        let rest = self.refusals().filter(|(name, _)| refusals.contains(name));
        [("sent", self.sent), ("accepted", self.accepted), ("hellos", self.hellos)].into_iter().chain(rest)
    }

    /// Adds another node's counters.
    pub fn add(&mut self, other: &MessageCounters) {
        self.sent += other.sent;
        self.accepted += other.accepted;
        self.hellos += other.hellos;
        self.refused.iter_mut().zip(other.refused).for_each(|(count, more)| *count += more);
    }
}

/// Counters of a sender, and the refusals that were reported.
#[derive(Clone, Debug, Default)]
pub(in crate::node) struct SenderCounts {
    pub(in crate::node) counters: MessageCounters,
    /// Bit `i`: the refusal with index `i` was reported.
    reported: u16,
}

impl SenderCounts {
    /// Counts a refusal. True if it has to be reported: once per reason.
    pub(in crate::node) fn refuse(&mut self, refusal: Refusal) -> bool {
        let index = refusal.index();
        if let Some(count) = self.counters.refused.get_mut(index) {
            *count = count.saturating_add(1);
        }
        let before = self.reported;
        self.reported |= 1 << index;
        self.reported != before
    }

    /// Allows each reason to be reported once more.
    pub(in crate::node) fn reset_logged(&mut self) {
        self.reported = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn refusal_has_name_and_is_reported_once() {
        let mut tally = SenderCounts::default();
        let version = Refusal::Version { theirs: 2, ours: 1 };
        let told = [version, Refusal::Forged, version].map(|refusal| tally.refuse(refusal));
        assert_eq!(told, [true, true, false]);
        let mut twice = tally.counters;
        twice.add(&MessageCounters { sent: 5, ..tally.counters });
        let named: std::vec::Vec<_> = twice.named(&["version", "key"]).collect();
        assert_eq!(named, [("sent", 5), ("accepted", 0), ("hellos", 0), ("key", 0), ("version", 4)]);
        tally.reset_logged();
        assert!(tally.refuse(version));
    }

    #[test]
    fn refusal_names_older_version_and_wrong_clock() {
        let said = |refusal: Refusal| refusal.to_string();
        assert!(said(Refusal::Version { theirs: 1, ours: 2 }).ends_with("upgrade it"));
        assert!(said(Refusal::Version { theirs: 3, ours: 2 }).ends_with("upgrade this node"));
        assert!(said(Refusal::Key { ahead_h: 24 }).contains("24 hours ahead of this node's"));
        assert!(said(Refusal::Key { ahead_h: -24 }).contains("24 hours behind this node's"));
    }
}
