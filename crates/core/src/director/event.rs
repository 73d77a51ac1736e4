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

/// Something that happened. Its text names neither service nor server, which stand beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Of who the servers are.
    Membership {
        /// The notice.
        notice: membership::ServiceNotice,
        /// In words, with names of interfaces.
        text: String,
    },
    /// Of other hosts.
    Hosts(peers::PeerEvent),
    /// A datagram was refused.
    DatagramRefused {
        /// Where it is said to be from: that can't be believed, but it is where to look.
        from: SocketAddr,
        /// Why.
        notice: peers::PeerEvent,
    },
    /// Somebody answers for an address that is this host's to own.
    Answered {
        /// The MAC of the sender.
        mac: Mac,
        /// For what.
        notice: peers::PeerEvent,
    },
    /// A server's state has changed.
    Health {
        /// Which.
        server: ServerName,
        /// From what to what.
        transition: Transition,
    },
    /// Nobody has found a server for a while.
    NotFound {
        /// Which.
        server: ServerName,
        /// Why, in words.
        why: String,
    },
    /// It is found.
    Found {
        /// Which.
        server: ServerName,
    },
    /// A service's last server is gone from its ring.
    NoServers {
        /// Which service.
        service: String,
    },
    /// It has one again.
    ServersAgain {
        /// Which service.
        service: String,
    },
    /// Too few of its servers work, and some that failed, or refuse, serve.
    Degraded {
        /// Which service.
        service: String,
    },
    /// Some work again.
    Recovered {
        /// Which service.
        service: String,
    },
    /// No number is left for a server.
    SlotsExhausted {
        /// Which.
        server: ServerName,
    },
    /// An interface that packets are taken from is not as it was.
    Link {
        /// Its name.
        interface: String,
        /// How it is.
        now: LinkState,
    },
    /// Packets are taken from one more interface.
    Attached {
        /// Its name.
        interface: String,
    },
    /// The engine takes no packets from one that came up.
    Unattached {
        /// Its name.
        interface: String,
        /// Why.
        error: String,
    },
    /// The operator's order.
    Drained {
        /// Which server.
        server: ServerName,
        /// Whether it takes no new sessions from now on.
        drain: bool,
    },
    /// The operator's order that a server be neither probed nor asked for its load, or the end of
    /// that.
    Suspended {
        /// Which server.
        server: ServerName,
        /// Whether it is left alone from now on.
        is_suspended: bool,
    },
    /// A server's own report says that it takes no new sessions, or takes them again.
    Wished {
        /// Which.
        server: ServerName,
        /// Whether it takes none.
        refuses: bool,
    },
    /// A server's reports of its load fail, or come again.
    Reports {
        /// The server.
        server: ServerName,
        /// Why the last one isn't believed.
        error: Option<BadReport>,
    },
    /// A member of a group, or a server that is listed for a name alone, came, went, or is
    /// otherwise than it was.
    Member {
        /// Which.
        member: ServerName,
        /// How.
        change: MemberChange,
    },
    /// The path to a server can't be probed, or can be again.
    Path {
        /// The server.
        address: IpAddr,
        /// Why not.
        error: Option<String>,
    },
    /// Ranks that somebody else makes for a name aren't believed, or are again.
    Ranks {
        /// The name.
        name: String,
        /// The file.
        from: String,
        /// Why not.
        error: Option<BadRanks>,
    },
    /// A router said what it can pass on to a server.
    PathMtu {
        /// The server.
        server: IpAddr,
        /// In bytes.
        mtu: u16,
    },
    /// New connections of a server go nowhere, unlike those of others.
    Stalling {
        /// The server.
        server: ServerName,
        /// How many, in words.
        text: String,
    },
    /// That is over.
    Continuing {
        /// The server.
        server: ServerName,
    },
    /// The engine refused a change.
    NotApplied {
        /// Why.
        error: String,
    },
}

/// How an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It isn't there any more.
    Gone,
    /// It is switched off.
    Down,
    /// There is no cable, or nothing at its other end.
    NoCarrier,
    /// It works again.
    Up,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It is as it should be.
    Info,
    /// Someone may have to look.
    Warning,
    /// Something was not done.
    Error,
}

impl Event {
    /// An event of a server of a service.
    pub(super) fn of_server(server: ServerName, event: ServerEvent) -> Event {
        match event {
            ServerEvent::Health(transition) => Event::Health { server, transition },
            ServerEvent::Refuses(refuses) => Event::Wished { server, refuses },
            ServerEvent::Reports(error) => Event::Reports { server, error },
            ServerEvent::Drained(drain) => Event::Drained { server, drain },
            ServerEvent::Suspended(is_suspended) => Event::Suspended { server, is_suspended },
        }
    }

    /// An event of a member of a group, or of a name's own server. `None` if the member went down
    /// without a failed probe.
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

    /// How much it matters.
    pub fn level(&self) -> Level {
        let is_bad = match self {
            Event::NotApplied { .. } => return Level::Error,
            Event::Membership { notice, .. } => matches!(
                notice.event,
                membership::MembershipEvent::Refused { .. }
                    | membership::MembershipEvent::Moved { .. }
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
            | Event::Answered { .. }
            | Event::NotFound { .. }
            | Event::NoServers { .. }
            | Event::Degraded { .. }
            | Event::Stalling { .. }
            | Event::Unattached { .. }
            | Event::Reports { error: Some(_), .. }
            | Event::Path { error: Some(_), .. }
            | Event::Ranks { error: Some(_), .. }
            | Event::SlotsExhausted { .. } => true,
            Event::Found { .. }
            | Event::Continuing { .. }
            | Event::ServersAgain { .. }
            | Event::Recovered { .. }
            | Event::Attached { .. }
            | Event::Drained { .. }
            | Event::Suspended { .. }
            | Event::Wished { .. }
            | Event::Reports { error: None, .. }
            | Event::Path { error: None, .. }
            | Event::Ranks { error: None, .. }
            | Event::PathMtu { .. } => false,
        };
        if is_bad { Level::Warning } else { Level::Info }
    }

    /// The service that it is about.
    pub fn service(&self) -> Option<&str> {
        match self {
            Event::NoServers { service }
            | Event::ServersAgain { service }
            | Event::Degraded { service }
            | Event::Recovered { service } => Some(service),
            _ => self.server().map(|server| server.service.as_str()),
        }
    }

    /// The server that it is about.
    pub fn server(&self) -> Option<&ServerName> {
        match self {
            Event::Health { server, .. }
            | Event::NotFound { server, .. }
            | Event::Found { server }
            | Event::Stalling { server, .. }
            | Event::Continuing { server }
            | Event::SlotsExhausted { server }
            | Event::Drained { server, .. }
            | Event::Suspended { server, .. }
            | Event::Wished { server, .. }
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
            Event::Hosts(notice) | Event::DatagramRefused { notice, .. } | Event::Answered { notice, .. } => {
                notice.fmt(f)
            }
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
                write!(f, "{text}, unlike those of other servers: `evener doctor` says what may be wrong")
            }
            Event::Continuing { .. } => f.write_str("new connections continue as those of other servers do"),
            Event::NoServers { .. } => {
                f.write_str("no server takes new sessions: new connections are dropped")
            }
            Event::ServersAgain { .. } => f.write_str("servers take new sessions again"),
            Event::Degraded { .. } => f.write_str(
                "too few servers work or want new sessions: some that fail or refuse take them too",
            ),
            Event::Recovered { .. } => f.write_str("servers work again"),
            Event::SlotsExhausted { .. } => f.write_str("no room for this server: the farm is full"),
            Event::Link { now, .. } => f.write_str(match now {
                LinkState::Gone => "the interface is gone",
                LinkState::Down => "the interface is switched off",
                LinkState::NoCarrier => "the interface has no carrier: look at the cable, or its other end",
                LinkState::Up => "the interface works again",
            }),
            Event::Attached { .. } => f.write_str("packets are taken from here, too"),
            Event::Unattached { interface, error } => {
                write!(f, "no packets can be taken from {interface}: {error}")
            }
            Event::Drained { drain: true, .. } => {
                f.write_str("the operator's order: drained: it keeps its sessions and takes no new ones")
            }
            Event::Drained { drain: false, .. } => {
                f.write_str("the operator's order: takes new sessions again")
            }
            Event::Suspended { is_suspended: true, .. } => {
                f.write_str("the operator's order: in maintenance: neither probed nor asked for its load")
            }
            Event::Suspended { is_suspended: false, .. } => {
                f.write_str("the operator's order: maintenance is over; its next probe decides")
            }
            Event::Wished { refuses: true, .. } => {
                f.write_str("its own report: it keeps its sessions and takes no new ones")
            }
            Event::Wished { refuses: false, .. } => f.write_str("its own report: takes new sessions again"),
            Event::Reports { error: Some(bad), .. } => write!(f, "its load isn't known: {}", bad.sentence()),
            Event::Reports { error: None, .. } => f.write_str("it says its load again"),
            Event::Member { member: ServerName { service, server }, change } => {
                write!(f, "{service}: {server}: {change}")
            }
            Event::Path { address, error: Some(error) } => {
                write!(f, "the path to {address} can't be probed: {error}; it is tried again")
            }
            Event::Path { address, error: None } => write!(f, "the path to {address} is known again"),
            Event::Ranks { name, from, error: Some(bad) } => write!(
                f,
                "{name}: ranks of {from} aren't believed: {bad}; those before count for three periods, then weights"
            ),
            Event::Ranks { name, from, error: None } => write!(f, "{name}: ranks of {from} are believed"),
            Event::PathMtu { server, mtu } => {
                write!(f, "a router on the way to {server} takes no packets longer than {mtu} bytes")
            }
            Event::NotApplied { error } => {
                write!(f, "{error}; what was in force stays, and it is tried again")
            }
        }
    }
}
