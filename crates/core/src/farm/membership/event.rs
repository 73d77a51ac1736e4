//! Events of a membership, with text for the log.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use super::binding::LinkAddress;
use super::neighbour_reply::NeighbourReply;

/// An event with the name of its service. The name is `None` for an event of the whole farm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNotice {
    pub service: Option<String>,
    pub event: MembershipEvent,
}

/// Event of a server, or of a host that claims to be a server. All except
/// [`MembershipEvent::AddressConflict`] and [`MembershipEvent::Refused`] require a new plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipEvent {
    /// A server answered for the first time, or its next hop became known.
    Joined {
        server: String,
        /// MAC address that answered, or next hop.
        place: LinkAddress,
    },
    /// A server has been silent for several rounds and takes no new sessions.
    Silent { server: String },
    /// A silent server answered again.
    Returned { server: String },
    /// A server was removed.
    Removed { server: String, why: Removal },
    /// Another place claims the server's address, but the server still answers from its own place.
    /// The claim is ignored.
    AddressConflict {
        server: String,
        /// Place of the server.
        from: LinkAddress,
        /// Place that claims the address.
        to: LinkAddress,
    },
    /// The server was silent for several rounds, and packets now go to another place that answers
    /// for the server's address.
    Moved {
        server: String,
        /// Place of the server before.
        from: LinkAddress,
        /// Place of the server now.
        to: LinkAddress,
    },
    /// The next hop of a server behind a router changed.
    Rerouted {
        server: String,
        /// Next hop of the server before.
        from: LinkAddress,
        /// Next hop of the server now.
        to: LinkAddress,
    },
    /// An answer was refused. The event is published once for each MAC address and reason.
    Refused { reply: NeighbourReply, refusal: ReplyRefusal },
}

/// Reason why a server was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The server was silent for twice the rounds that drain it.
    Silent,
    /// The MAC address of the discovered server is that of the listed server with this name.
    Listed(String),
    /// The MAC address of the server is a router's or the director's.
    NotAServer,
    /// The configuration no longer lists or allows the server.
    Configuration,
}

/// Reason why an answer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyRefusal {
    /// The MAC address is not on the `allow` list, or not the configured one.
    NotAllowed,
    /// The service has `servers_max` servers.
    Full,
    /// The answer claims an address of the director's host.
    ClaimsDirector,
    /// The answer claims a router's address.
    ClaimsRouter,
    /// A router claims a server's or service's address, as proxy ARP does.
    IsRouter,
    /// The MAC address is a group address or zero.
    MulticastMac,
    /// The MAC address is the director's.
    OwnMac,
    /// The answer claims an address that the director itself announces.
    Announced,
    /// The frame violates RFC 826 for IPv4 over Ethernet, or RFC 4861, section 7.1.2.
    Malformed,
}

impl ReplyRefusal {
    pub const ALL: [ReplyRefusal; 9] = [
        ReplyRefusal::NotAllowed,
        ReplyRefusal::Full,
        ReplyRefusal::ClaimsDirector,
        ReplyRefusal::ClaimsRouter,
        ReplyRefusal::IsRouter,
        ReplyRefusal::MulticastMac,
        ReplyRefusal::OwnMac,
        ReplyRefusal::Announced,
        ReplyRefusal::Malformed,
    ];

    /// Name in status output and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            ReplyRefusal::NotAllowed => "not_allowed",
            ReplyRefusal::Full => "full",
            ReplyRefusal::ClaimsDirector => "claims_director",
            ReplyRefusal::ClaimsRouter => "claims_router",
            ReplyRefusal::IsRouter => "is_router",
            ReplyRefusal::MulticastMac => "multicast_mac",
            ReplyRefusal::OwnMac => "own_mac",
            ReplyRefusal::Announced => "announced",
            ReplyRefusal::Malformed => "malformed",
        }
    }
}

impl MembershipEvent {
    /// True if servers changed, so that a new plan is due.
    pub fn changes_servers(&self) -> bool {
        !matches!(self, MembershipEvent::AddressConflict { .. } | MembershipEvent::Refused { .. })
    }
}

impl ServiceNotice {
    /// Returns the event as a text. `interface` returns the name of an interface index.
    pub fn sentence(&self, interface: impl Fn(u32) -> Option<String>) -> String {
        let at = |place: &LinkAddress| match interface(place.ifindex) {
            Some(name) => format!("{} on {name}", place.mac),
            None => place.to_string(),
        };
        let event = EventText { event: &self.event, at: &at };
        match &self.service {
            Some(service) => format!("service {service}: {event}"),
            None => event.to_string(),
        }
    }
}

impl fmt::Display for ServiceNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence(|_| None))
    }
}

impl fmt::Display for MembershipEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EventText { event: self, at: &LinkAddress::to_string }.fmt(f)
    }
}

/// An event, and the function that formats the places in its text.
struct EventText<'a> {
    event: &'a MembershipEvent,
    at: &'a dyn Fn(&LinkAddress) -> String,
}

impl fmt::Display for EventText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at;
        match self.event {
            MembershipEvent::Joined { server, place } => write!(f, "server {server} joined at {}", at(place)),
            MembershipEvent::Silent { server } => {
                write!(f, "server {server} does not answer any more; it gets no new sessions")
            }
            MembershipEvent::Returned { server } => write!(f, "server {server} answers again"),
            MembershipEvent::Removed { server, why } => write!(f, "server {server} removed: {why}"),
            MembershipEvent::AddressConflict { server, from, to } => {
                write!(f, "{} answers for server {server}, which is at {}; not followed", at(to), at(from))
            }
            MembershipEvent::Moved { server, from, to } => {
                write!(
                    f,
                    "server {server} moved from {}, where it no longer answers, to {}",
                    at(from),
                    at(to)
                )
            }
            MembershipEvent::Rerouted { server, from, to } => {
                let (from, to) = (at(from), at(to));
                write!(f, "the way to server {server} leads over {to} now, and no longer over {from}")
            }
            MembershipEvent::Refused { reply, refusal } => {
                let protocol = if reply.address.is_ipv4() { "ARP" } else { "neighbour discovery" };
                write!(
                    f,
                    "{} answered {protocol} for {}: refused, {refusal}",
                    at(&reply.place),
                    reply.address
                )
            }
        }
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Removal::Silent => f.write_str("it stayed silent"),
            Removal::Listed(name) => write!(f, "its MAC is that of the listed server {name}"),
            Removal::NotAServer => f.write_str("its MAC is a router's or the director's"),
            Removal::Configuration => f.write_str("the configuration no longer has or allows it"),
        }
    }
}

impl fmt::Display for ReplyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReplyRefusal::NotAllowed => "its MAC is not allowed; add it to `allow` if it is a server",
            ReplyRefusal::Full => "the service has as many servers as `servers_max` allows",
            ReplyRefusal::ClaimsDirector => "that is the director's own address",
            ReplyRefusal::ClaimsRouter => "that is a router's address, and the router has another MAC",
            ReplyRefusal::IsRouter => "that MAC is a router's; switch off proxy ARP there",
            ReplyRefusal::MulticastMac => "a group or zero MAC address names no server",
            ReplyRefusal::OwnMac => "that MAC is the director's own",
            ReplyRefusal::Announced => "the director announces that address; servers must keep silent for it",
            ReplyRefusal::Malformed => "not a well-formed ARP reply or neighbour advertisement",
        })
    }
}
