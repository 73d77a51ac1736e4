//! Events of a farm, for logs and subscribers.

use alloc::string::String;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use crate::dns::BadRanks;
use crate::farm::group::MemberChange;
use crate::farm::membership;
use crate::farm::plan::ServerName;
use crate::net::wire::Mac;
use crate::node::peers;
use crate::pool::ServerEvent;
use crate::pool::health::{HealthState, Transition};
use crate::pool::report::BadReport;

/// An event. The text of most events names neither service nor server, since both are printed
/// beside the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The servers of a service changed.
    Membership {
        notice: membership::ServiceNotice,
        /// Text of the notice, with names of interfaces instead of their indexes.
        text: String,
    },
    Hosts(peers::PeerEvent),
    /// A datagram was refused.
    DatagramRefused {
        /// Claimed source address, which may be forged.
        from: SocketAddr,
        notice: peers::PeerEvent,
    },
    /// Another host answers for an address that this host owns.
    AddressContested {
        /// MAC address of the sender.
        mac: Mac,
        notice: peers::PeerEvent,
    },
    Health {
        server: ServerName,
        transition: Transition,
    },
    /// A server's MAC address or next hop was not found in three checks, one a second.
    NotFound {
        server: ServerName,
        why: String,
    },
    /// The server reported by [`Event::NotFound`] was found.
    Found {
        server: ServerName,
    },
    /// A service has no server in its ring any more.
    NoServers {
        service: String,
    },
    /// The service has a server in its ring again.
    ServersAgain {
        service: String,
    },
    /// Too few servers of the service work, so servers that are down or refuse new sessions get new
    /// sessions, too.
    Degraded {
        service: String,
    },
    /// Enough servers of the service work again.
    Recovered {
        service: String,
    },
    /// No slot is left for a server.
    SlotsExhausted {
        server: ServerName,
    },
    /// The state of an interface that the engine uses changed.
    Link {
        interface: String,
        now: LinkState,
    },
    /// Another program gave a service address to this host, or took it away.
    AddressMoved {
        service: String,
        address: IpAddr,
        /// True if this host has the address now.
        here: bool,
    },
    /// The engine has attached to an interface.
    Attached {
        interface: String,
    },
    /// The engine failed to attach to an interface that came up.
    AttachFailed {
        interface: String,
        error: String,
    },
    /// The operator drained a server or ended the drain.
    Drained {
        server: ServerName,
        /// True if the server takes no new sessions from now on.
        drain: bool,
    },
    /// The operator suspended probes and report queries of a server, or resumed them.
    Suspended {
        server: ServerName,
        /// True if the server is suspended.
        is_suspended: bool,
    },
    /// A server's report refuses new sessions, or accepts them again.
    RefusalReported {
        server: ServerName,
        /// True if the server refuses.
        refuses: bool,
    },
    /// A server's reports are missing or invalid, or are valid again.
    Reports {
        server: ServerName,
        /// Reason of the failure; `None` if reports are valid again.
        error: Option<BadReport>,
    },
    /// A member of a group changed, or a server that is listed for a name only.
    Member {
        member: ServerName,
        change: MemberChange,
    },
    /// The path to a server can't be probed, or can be again.
    Path {
        /// Address of the server.
        address: IpAddr,
        /// Reason; `None` if the path can be probed again.
        error: Option<String>,
    },
    /// An external file of ranks for a name is invalid, or is valid again.
    Ranks {
        name: String,
        from: String,
        /// Reason; `None` if the file is valid again.
        error: Option<BadRanks>,
    },
    /// A router reported a path MTU: the largest packet that passes from this host to a server.
    PathMtu {
        server: IpAddr,
        /// Path MTU in bytes.
        mtu: u16,
    },
    /// New connections of a server or of its service stall much more often than the others.
    Stalling {
        server: ServerName,
        /// First part of the event's text, with the number of stalled connections.
        text: String,
    },
    /// New connections of a server no longer stall.
    StallEnded {
        server: ServerName,
    },
    /// The engine refused a change.
    NotApplied {
        error: String,
    },
}

/// State of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The interface no longer exists.
    Gone,
    /// The interface is administratively down.
    Down,
    /// No carrier: no cable, or no link partner.
    NoCarrier,
    /// The interface is up again.
    Up,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No action is needed.
    Info,
    /// The operator may have to act.
    Warning,
    Error,
}

impl Event {
    /// Returns the event for a change of a service's server.
    pub(super) fn of_server(server: ServerName, event: ServerEvent) -> Event {
        match event {
            ServerEvent::Health(transition) => Event::Health { server, transition },
            ServerEvent::Refuses(refuses) => Event::RefusalReported { server, refuses },
            ServerEvent::Reports(error) => Event::Reports { server, error },
            ServerEvent::Drained(drain) => Event::Drained { server, drain },
            ServerEvent::Suspended(is_suspended) => Event::Suspended { server, is_suspended },
        }
    }

    /// Returns the event for a member of a group, or for a server listed for a name. Returns `None`
    /// if the member went down without a failed probe.
    pub(super) fn of_member(member: ServerName, event: ServerEvent) -> Option<Event> {
        let change = match event {
            ServerEvent::Health(Transition { to: HealthState::Up, .. }) => MemberChange::Up,
            ServerEvent::Health(transition) => MemberChange::Down(transition.reason?),
            ServerEvent::Drained(true) => MemberChange::Drained,
            ServerEvent::Drained(false) => MemberChange::Undrained,
            event => return Some(Event::of_server(member, event)),
        };
        Some(Event::Member { member, change })
    }

    pub fn level(&self) -> Level {
        let is_bad = match self {
            Event::NotApplied { .. } => return Level::Error,
            Event::Membership { notice, .. } => matches!(
                notice.event,
                membership::MembershipEvent::Refused { .. }
                    | membership::MembershipEvent::AddressConflict { .. }
                    | membership::MembershipEvent::Silent { .. }
            ),
            Event::Hosts(notice) => !matches!(
                notice,
                peers::PeerEvent::Answers { .. }
                    | peers::PeerEvent::Returned { .. }
                    | peers::PeerEvent::Agrees { .. }
                    | peers::PeerEvent::Claimed { .. }
                    | peers::PeerEvent::Released { .. }
            ),
            Event::Health { transition, .. } => transition.to == HealthState::Down,
            Event::Member { change, .. } => matches!(
                change,
                MemberChange::Cut
                    | MemberChange::Silent
                    | MemberChange::Removed
                    | MemberChange::Refused
                    | MemberChange::Down(_)
            ),
            Event::Link { now, .. } => *now != LinkState::Up,
            Event::DatagramRefused { .. }
            | Event::AddressContested { .. }
            | Event::NotFound { .. }
            | Event::NoServers { .. }
            | Event::Degraded { .. }
            | Event::Stalling { .. }
            | Event::AttachFailed { .. }
            | Event::Reports { error: Some(_), .. }
            | Event::Path { error: Some(_), .. }
            | Event::Ranks { error: Some(_), .. }
            | Event::SlotsExhausted { .. } => true,
            Event::Found { .. }
            | Event::StallEnded { .. }
            | Event::AddressMoved { .. }
            | Event::ServersAgain { .. }
            | Event::Recovered { .. }
            | Event::Attached { .. }
            | Event::Drained { .. }
            | Event::Suspended { .. }
            | Event::RefusalReported { .. }
            | Event::Reports { error: None, .. }
            | Event::Path { error: None, .. }
            | Event::Ranks { error: None, .. }
            | Event::PathMtu { .. } => false,
        };
        if is_bad { Level::Warning } else { Level::Info }
    }

    /// Service that the event concerns, alone or with one of its servers.
    pub fn service(&self) -> Option<&str> {
        match self {
            Event::NoServers { service }
            | Event::ServersAgain { service }
            | Event::Degraded { service }
            | Event::Recovered { service }
            | Event::AddressMoved { service, .. } => Some(service),
            _ => self.server().map(|server| server.service.as_str()),
        }
    }

    /// Server that the event concerns.
    pub fn server(&self) -> Option<&ServerName> {
        match self {
            Event::Health { server, .. }
            | Event::NotFound { server, .. }
            | Event::Found { server }
            | Event::Stalling { server, .. }
            | Event::StallEnded { server }
            | Event::SlotsExhausted { server }
            | Event::Drained { server, .. }
            | Event::Suspended { server, .. }
            | Event::RefusalReported { server, .. }
            | Event::Reports { server, .. }
            | Event::Member { member: server, .. } => Some(server),
            _ => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Membership { text, .. } => f.write_str(text),
            Event::Hosts(notice)
            | Event::DatagramRefused { notice, .. }
            | Event::AddressContested { notice, .. } => notice.fmt(f),
            Event::Health { transition, .. } => {
                let to = match transition.to {
                    HealthState::Unknown => "unknown",
                    HealthState::Up => "up",
                    HealthState::Down => "down",
                };
                write!(f, "server is {to}")
            }
            Event::NotFound { why, .. } => write!(f, "server can't be found: {why}"),
            Event::Found { .. } => f.write_str("server is found"),
            Event::Stalling { text, .. } => {
                write!(f, "{text}, unlike those of other servers; run `evener doctor`")
            }
            Event::StallEnded { .. } => f.write_str("new connections work again"),
            Event::NoServers { .. } => {
                f.write_str("no server accepts new sessions: new connections are dropped")
            }
            Event::ServersAgain { .. } => f.write_str("servers accept new sessions again"),
            Event::Degraded { .. } => f.write_str(
                "too few servers work and accept new sessions: servers that are down or refuse them get some too",
            ),
            Event::Recovered { .. } => f.write_str("servers work again"),
            Event::SlotsExhausted { .. } => f.write_str("no room for this server: the farm is full"),
            Event::Link { now, .. } => f.write_str(match now {
                LinkState::Gone => "the interface is gone",
                LinkState::Down => "the interface is switched off",
                LinkState::NoCarrier => "the interface has no carrier: look at the cable, or its other end",
                LinkState::Up => "the interface works again",
            }),
            Event::AddressMoved { address, here: true, .. } => {
                write!(f, "this host has {address} now: its clients are served here")
            }
            Event::AddressMoved { address, here: false, .. } => {
                write!(f, "this host no longer has {address}: another one serves its clients")
            }
            Event::Attached { .. } => f.write_str("packets are received from this interface too"),
            Event::AttachFailed { interface, error } => {
                write!(f, "failed to receive packets from {interface}: {error}")
            }
            Event::Drained { drain: true, .. } => {
                f.write_str("drained by the operator: it keeps its sessions and gets no new ones")
            }
            Event::Drained { drain: false, .. } => {
                f.write_str("the operator ended the drain or maintenance: it gets new sessions again")
            }
            Event::Suspended { is_suspended: true, .. } => {
                f.write_str("the operator's order: in maintenance: neither probed nor asked for its load")
            }
            Event::Suspended { is_suspended: false, .. } => {
                f.write_str("the operator's order: maintenance is over; its next probe decides")
            }
            Event::RefusalReported { refuses: true, .. } => {
                f.write_str("drained by its own report: it keeps its sessions and gets no new ones")
            }
            Event::RefusalReported { refuses: false, .. } => {
                f.write_str("its own report ended the drain: it gets new sessions again")
            }
            Event::Reports { error: Some(bad), .. } => write!(f, "its load isn't known: {}", bad.sentence()),
            Event::Reports { error: None, .. } => f.write_str("its load reports are valid again"),
            Event::Member { member: ServerName { service, server }, change } => {
                write!(f, "{service}: {server}: {change}")
            }
            Event::Path { address, error: Some(error) } => {
                write!(f, "failed to probe the path to {address}: {error}; retrying")
            }
            Event::Path { address, error: None } => write!(f, "the path to {address} can be probed again"),
            Event::Ranks { name, from, error: Some(bad) } => write!(
                f,
                "{name}: ranks from {from} are invalid: {bad}; the previous ranks apply for three periods, then the weights"
            ),
            Event::Ranks { name, from, error: None } => write!(f, "{name}: ranks from {from} are valid again"),
            Event::PathMtu { server, mtu } => {
                write!(f, "a router on the path to {server} accepts packets of at most {mtu} bytes")
            }
            Event::NotApplied { error } => {
                write!(f, "{error}; the previous tables stay in force; retrying")
            }
        }
    }
}
