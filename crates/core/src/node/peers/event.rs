//! Events between hosts, in words for the log.

use alloc::string::String;
use core::fmt;
use core::net::IpAddr;

use crate::node::association::Refusal;

/// Something that the operator may want to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A host is heard, for the first time or again.
    Answers {
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
        /// The sender, where that is known for certain.
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
        /// The host that is to own it; `None` if the configuration doesn't have it any more.
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

/// The names of the reasons for which a datagram may be refused.
pub const REFUSALS: [&str; 10] = [
    Refusal::Malformed.name(),
    Refusal::Forged.name(),
    Refusal::Misdirected.name(),
    Refusal::Stranger.name(),
    Refusal::Namesake.name(),
    Refusal::Replayed.name(),
    Refusal::Ended.name(),
    Refusal::Stale.name(),
    Refusal::Version { theirs: 0, ours: 0 }.name(),
    Refusal::Generation.name(),
];

impl fmt::Display for PeerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerEvent::Answers { host } => write!(f, "host {host} is heard"),
            PeerEvent::Silent { host } => write!(f, "host {host} is not heard any more; it counts as down"),
            PeerEvent::Left { host } => write!(f, "host {host} takes no part now; it gets no new sessions"),
            PeerEvent::Returned { host } => write!(f, "host {host} takes part again"),
            PeerEvent::Rejoins => {
                f.write_str("this host was alone, and finds others that are together; it takes part once it has heard them")
            }
            PeerEvent::Differs { host, generation } => write!(
                f,
                "host {host} runs another configuration (generation {generation:016x}): what it says of load and \
                 health is ignored until the files agree"
            ),
            PeerEvent::Agrees { host } => write!(f, "host {host} runs the same configuration again"),
            PeerEvent::Refused { host: Some(host), refusal } => write!(f, "host {host}: {refusal}"),
            PeerEvent::Refused { host: None, refusal } => write!(f, "a datagram from a host: {refusal}"),
            PeerEvent::Claimed { address } => write!(f, "this host owns {address} now"),
            PeerEvent::Released { address, to: Some(to) } => {
                write!(f, "this host leaves {address} to host {to}")
            }
            PeerEvent::Released { address, to: None } => {
                write!(f, "this host does not own {address} any more")
            }
            PeerEvent::PutOff { address } => {
                write!(
                    f,
                    "{address} is this host's to own, but somebody else answers for it; asked again later"
                )
            }
            PeerEvent::ClaimedTwice { address } => write!(
                f,
                "somebody else answers for {address}, which this host owns; only one may: look for the address on \
                 other hosts' interfaces, and for hosts with another configuration"
            ),
        }
    }
}
