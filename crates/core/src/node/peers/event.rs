//! What happens between hosts, in words for the log, and what is counted.

use alloc::string::String;
use core::fmt;
use core::net::IpAddr;

/// Something that the operator may want to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A host is heard, for the first time or again.
    Heard {
        /// Its name.
        host: String,
    },
    /// A host has not been heard for the set time.
    Silent {
        /// Its name.
        host: String,
    },
    /// A host takes part no longer, and says so itself.
    Left {
        /// Its name.
        host: String,
    },
    /// A host that took no part takes part again.
    Returned {
        /// Its name.
        host: String,
    },
    /// A host has been running another configuration for a while.
    Differs {
        /// Its name.
        host: String,
        /// Digest of its configuration.
        generation: u64,
    },
    /// This host was alone, and takes part again once it has heard the others.
    Rejoins,
    /// A host runs the same configuration as this one again.
    Agrees {
        /// Its name.
        host: String,
    },
    /// A datagram was refused; told once for each host and reason until the host is heard anew.
    Refused {
        /// Who sent it, where that is known for certain.
        host: Option<String>,
        /// Why.
        refusal: Refusal,
    },
    /// This host owns an address from now on.
    Claimed {
        /// Which.
        address: IpAddr,
    },
    /// This host owns an address no longer.
    Released {
        /// Which.
        address: IpAddr,
        /// Who is to own it; `None` if the configuration doesn't have it any more.
        to: Option<String>,
    },
    /// An address is this host's to claim, but somebody else answers for it.
    PutOff {
        /// Which.
        address: IpAddr,
    },
    /// Somebody else answers for an address that this host owns.
    ClaimedTwice {
        /// Which.
        address: IpAddr,
    },
}

/// Why a datagram, or what it says, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Not the shape of a datagram.
    Malformed,
    /// Its tag is wrong.
    Forged,
    /// Meant for another host.
    Misdirected,
    /// Its sender is no host of the configuration.
    Stranger,
    /// Two hosts run under one name.
    Namesake,
    /// It was received before, or overtaken by a later one, or is of an earlier life of its sender.
    Replayed,
    /// It answers something that was sent too long ago: it may have been held up on the way.
    Stale,
    /// Of another version of the protocol: its sender lives, what it says is not read.
    Version,
    /// Of another configuration: its sender lives, what it says of load and health is not read.
    Generation,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Refusal; 9] = [
        Refusal::Malformed,
        Refusal::Forged,
        Refusal::Misdirected,
        Refusal::Stranger,
        Refusal::Namesake,
        Refusal::Replayed,
        Refusal::Stale,
        Refusal::Version,
        Refusal::Generation,
    ];

    /// Its name in views and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Malformed => "malformed",
            Refusal::Forged => "forged",
            Refusal::Misdirected => "misdirected",
            Refusal::Stranger => "stranger",
            Refusal::Namesake => "namesake",
            Refusal::Replayed => "replayed",
            Refusal::Stale => "stale",
            Refusal::Version => "version",
            Refusal::Generation => "generation",
        }
    }
}

/// What has been counted since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams from hosts that were heard: authentic, in order and fresh.
    pub accepted: u64,
    /// Authentic datagrams of hosts that have not heard this one yet.
    pub hellos: u64,
    /// Addresses that this host began to own.
    pub claims: u64,
    /// Answers of others for an address that this host owns.
    pub claimed_twice: u64,
    refused: [u64; Refusal::ALL.len()],
}

impl Counters {
    /// How many datagrams were refused for this reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused.get(refusal as usize).copied().unwrap_or_default()
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        if let Some(count) = self.refused.get_mut(refusal as usize) {
            *count = count.saturating_add(1);
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Heard { host } => write!(f, "host {host} is heard"),
            Notice::Silent { host } => write!(f, "host {host} is not heard any more; it counts as down"),
            Notice::Left { host } => write!(f, "host {host} takes no part now; it gets no new sessions"),
            Notice::Returned { host } => write!(f, "host {host} takes part again"),
            Notice::Rejoins => {
                f.write_str("this host was alone, and finds others that are together; it takes part once it has heard them")
            }
            Notice::Differs { host, generation } => write!(
                f,
                "host {host} runs another configuration (generation {generation:016x}): what it says of load and \
                 health is ignored until the files agree"
            ),
            Notice::Agrees { host } => write!(f, "host {host} runs the same configuration again"),
            Notice::Refused { host: Some(host), refusal } => write!(f, "host {host}: {refusal}"),
            Notice::Refused { host: None, refusal } => write!(f, "a datagram from a host: {refusal}"),
            Notice::Claimed { address } => write!(f, "this host owns {address} now"),
            Notice::Released { address, to: Some(to) } => {
                write!(f, "this host leaves {address} to host {to}")
            }
            Notice::Released { address, to: None } => {
                write!(f, "this host does not own {address} any more")
            }
            Notice::PutOff { address } => {
                write!(
                    f,
                    "{address} is this host's to own, but somebody else answers for it; asked again later"
                )
            }
            Notice::ClaimedTwice { address } => write!(
                f,
                "somebody else answers for {address}, which this host owns; only one may: look for the address on \
                 other hosts' interfaces, and for hosts with another configuration"
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Malformed => "not a well-formed datagram, ignored; something else may use the port",
            Refusal::Forged => "its tag is wrong, ignored; all hosts need the same `[farm] secret_file`",
            Refusal::Misdirected => "it was meant for another host, ignored; compare the hosts' addresses",
            Refusal::Stranger => "its sender is not in the configuration, ignored; compare the hosts' files",
            Refusal::Namesake => "two hosts run under this name, the other one is ignored; names are unique",
            Refusal::Replayed => "a datagram came twice or late, and was ignored",
            Refusal::Stale => "a datagram was long on its way, and was ignored",
            Refusal::Version => "it runs another version: what it says is ignored until the versions agree",
            Refusal::Generation => {
                "it runs another configuration: what it says is ignored until the files agree"
            }
        })
    }
}
