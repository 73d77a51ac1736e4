//! Events of an every-host farm's hosts, with text for the log.

use alloc::string::String;
use core::fmt;
use core::net::IpAddr;

use crate::node::association::Refusal;

/// Event for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A host sends datagrams for the first time, or again after a silence.
    Answers { host: String },
    /// A host is silent.
    Silent { host: String },
    /// A host has left the farm, by its own report.
    Left { host: String },
    /// A host that had left takes part again.
    Returned { host: String },
    /// A host has had another configuration than this host for a while.
    Differs {
        host: String,
        /// Digest of the host's configuration.
        generation: u64,
    },
    /// This host was alone, and takes part again after it has received other hosts' reports.
    Rejoins,
    /// A host has the same configuration as this host again.
    Agrees { host: String },
    /// A datagram was refused. The event is published once per host and reason, until the host's
    /// next accepted datagram.
    Refused {
        /// Sender of the datagram; `None` if the sender is not certain.
        host: Option<String>,
        refusal: Refusal,
    },
    /// This host owns an address from now on.
    Claimed { address: IpAddr },
    /// This host no longer owns an address.
    Released {
        address: IpAddr,
        /// New owner; `None` if the address was removed from the configuration.
        to: Option<String>,
    },
    /// This host should claim an address, but another host answers ARP for the address.
    ClaimDeferred { address: IpAddr },
    /// Another host answers ARP for an address that this host owns.
    AddressConflict { address: IpAddr },
}

/// Names of the reasons for which a datagram may be refused.
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
            PeerEvent::Answers { host } => write!(f, "host {host} sends reports"),
            PeerEvent::Silent { host } => write!(f, "host {host} sends no more reports; it counts as down"),
            PeerEvent::Left { host } => write!(f, "host {host} takes no part now; it gets no new sessions"),
            PeerEvent::Returned { host } => write!(f, "host {host} takes part again"),
            PeerEvent::Rejoins => f.write_str(
                "this host was disconnected from the others; it serves again once it has their reports",
            ),
            PeerEvent::Differs { host, generation } => write!(
                f,
                "host {host} runs another configuration (generation {generation:016x}): its load and health are ignored until the files agree"
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
            PeerEvent::ClaimDeferred { address } => {
                write!(f, "this host should own {address}, but another host answers for it; retrying later")
            }
            PeerEvent::AddressConflict { address } => write!(
                f,
                "another host answers for {address}, which this host owns: look for the address on other hosts' interfaces, and for hosts with another configuration"
            ),
        }
    }
}
