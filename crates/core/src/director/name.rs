//! Names and subjects of events. Programs depend on these names, so they must not change.

use alloc::string::{String, ToString};
use core::net::IpAddr;

use super::event::{Event, LinkState};
use crate::farm::group::MemberChange;
use crate::farm::membership;
use crate::node::peers;
use crate::pool::health::HealthState;

/// All event names with descriptions.
pub const EVENTS: &[(&str, &str)] = &[
    ("server_up", "The server's probes succeed."),
    ("server_down", "The server's probes fail; `reason` has the cause."),
    ("server_unknown", "The server's state became unknown; it is probed again."),
    ("server_joined", "Discovery, a route or a neighbour entry has led to a new server."),
    ("server_silent", "A discovered server did not answer the last rounds: it is drained."),
    ("server_returned", "A silent server answers again."),
    (
        "server_removed",
        "A server was removed from the service: it was silent for too long, or the operator removed it.",
    ),
    (
        "server_address_conflict",
        "Another MAC address answers for a server's address; the daemon waits before it follows.",
    ),
    ("server_moved", "A server has another MAC address, and packets go there."),
    ("server_rerouted", "The route to a server leads another way."),
    ("server_found", "A listed server's MAC address is known."),
    ("server_not_found", "Nothing answers ARP or neighbour discovery for a listed server."),
    (
        "server_connections_stall",
        "New connections of a server stall (with nat: get no reply), unlike those of other servers.",
    ),
    ("server_connections_continue", "New connections of a server no longer stall."),
    ("server_slots_exhausted", "No slot is left for a server: the farm is full."),
    ("server_drained", "The operator drained a server."),
    ("server_undrained", "The operator ended a drain."),
    ("server_in_maintenance", "The operator has a server neither probed nor asked for its load."),
    ("server_maintenance_over", "The operator ended that; the next probe decides whether it is up."),
    ("server_refuses", "A server's own report refuses new sessions."),
    ("server_takes", "A server's own report accepts new sessions again."),
    ("reports_fail", "Load reports of a server do not come, or are refused."),
    ("reports_come", "Load reports of a server are valid again."),
    (
        "service_without_servers",
        "A service has no server that takes new sessions: new connections are dropped.",
    ),
    ("service_with_servers", "A service has a server again."),
    (
        "service_degraded",
        "Too few servers work or want new sessions: some that fail or refuse serve (`keep_last`, `panic_threshold`).",
    ),
    ("service_recovered", "Servers of a degraded service work again."),
    ("member_joined", "A member joined a server group, or a server of a name was added."),
    ("member_left", "A member left its group."),
    (
        "member_cut",
        "A member that had joined claimed more paths, hosts or weight than its credential allows: it has lost them.",
    ),
    ("member_silent", "A member has not reported for `query_after`: the director asks it for its load."),
    ("member_removed", "A member was removed, after `remove_after` or because it refused to answer."),
    ("member_up", "Probes of a member, or of a name's server, succeed."),
    ("member_down", "They fail."),
    ("member_drained", "A member, or a name's server, was drained."),
    ("member_undrained", "Its drain ended."),
    ("link_removed", "An interface that packets are received from does not exist any more."),
    ("link_down", "An interface that packets are received from was switched off."),
    ("link_no_carrier", "An interface that packets are received from has no carrier."),
    ("link_up", "An interface works again."),
    ("link_attached", "Packets are received from one more interface."),
    ("link_refused", "The engine can't receive packets from an interface that came up."),
    ("path_mtu", "A router on the path to a server reported this path MTU."),
    ("path_unknown", "The path to a server of a name can't be probed."),
    ("path_known", "The path can be probed again."),
    ("ranks_rejected", "The file of `rank_from` can't be used."),
    ("ranks_accepted", "The file of `rank_from` is used again."),
    ("arp_refused", "An answer to ARP or neighbour discovery was refused."),
    ("host_responding", "Another host of an every-host farm sends datagrams."),
    ("host_silent", "Another host is silent, and counts as down."),
    ("host_left", "Another host reported that it stops."),
    ("host_returned", "A silent host is back."),
    ("host_config_differs", "Another host has another configuration."),
    ("host_config_matches", "Another host has the same configuration again."),
    (
        "host_rejoins",
        "This host was disconnected from the others; it serves again once it has reports of all others.",
    ),
    ("datagram_refused", "A datagram in another host's name was refused."),
    ("address_claimed", "This host owns a service address, and announces it."),
    ("address_here", "Another program gave a service address to this host."),
    ("address_elsewhere", "Another program took a service address away from this host."),
    ("address_released", "This host gave a service address to another one."),
    ("address_claim_deferred", "A claim of a service address waits, since another station answers for it."),
    ("address_conflict", "Two hosts own one service address."),
    ("change_refused", "The engine refused a change; it is retried."),
];

/// Subject of an event. A field is `None` if the event concerns no such object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventSubject<'e> {
    pub service: Option<&'e str>,
    /// Name of the server within its service.
    pub server: Option<&'e str>,
    pub host: Option<&'e str>,
    pub address: Option<IpAddr>,
    pub interface: Option<&'e str>,
    /// Reason of the event; `None` if the event's text contains the reason or there is none.
    pub reason: Option<String>,
}

impl Event {
    /// Name of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Membership { notice, .. } => of_members(&notice.event),
            Event::Hosts(notice)
            | Event::DatagramRefused { notice, .. }
            | Event::AddressContested { notice, .. } => of_hosts(notice),
            Event::Health { transition, .. } => match transition.to {
                HealthState::Unknown => "server_unknown",
                HealthState::Up => "server_up",
                HealthState::Down => "server_down",
            },
            Event::NotFound { .. } => "server_not_found",
            Event::Found { .. } => "server_found",
            Event::Stalling { .. } => "server_connections_stall",
            Event::StallEnded { .. } => "server_connections_continue",
            Event::NoServers { .. } => "service_without_servers",
            Event::ServersAgain { .. } => "service_with_servers",
            Event::Degraded { .. } => "service_degraded",
            Event::Recovered { .. } => "service_recovered",
            Event::SlotsExhausted { .. } => "server_slots_exhausted",
            Event::Link { now, .. } => match now {
                LinkState::Gone => "link_removed",
                LinkState::Down => "link_down",
                LinkState::NoCarrier => "link_no_carrier",
                LinkState::Up => "link_up",
            },
            Event::AddressMoved { here: true, .. } => "address_here",
            Event::AddressMoved { here: false, .. } => "address_elsewhere",
            Event::Attached { .. } => "link_attached",
            Event::AttachFailed { .. } => "link_refused",
            Event::Drained { drain: true, .. } => "server_drained",
            Event::Drained { drain: false, .. } => "server_undrained",
            Event::Suspended { is_suspended: true, .. } => "server_in_maintenance",
            Event::Suspended { is_suspended: false, .. } => "server_maintenance_over",
            Event::RefusalReported { refuses: true, .. } => "server_refuses",
            Event::RefusalReported { refuses: false, .. } => "server_takes",
            Event::Reports { error: Some(_), .. } => "reports_fail",
            Event::Reports { error: None, .. } => "reports_come",
            Event::Member { change, .. } => match change {
                MemberChange::Joined => "member_joined",
                MemberChange::Left => "member_left",
                MemberChange::Cut => "member_cut",
                MemberChange::Silent => "member_silent",
                MemberChange::Removed | MemberChange::Refused => "member_removed",
                MemberChange::Up => "member_up",
                MemberChange::Down(_) => "member_down",
                MemberChange::Drained => "member_drained",
                MemberChange::Undrained => "member_undrained",
            },
            Event::Path { error: Some(_), .. } => "path_unknown",
            Event::Path { error: None, .. } => "path_known",
            Event::Ranks { error: Some(_), .. } => "ranks_rejected",
            Event::Ranks { error: None, .. } => "ranks_accepted",
            Event::PathMtu { .. } => "path_mtu",
            Event::NotApplied { .. } => "change_refused",
        }
    }

    /// Subject of the event.
    pub fn about(&self) -> EventSubject<'_> {
        let service = self.service();
        let about = EventSubject {
            service,
            server: self.server().map(|server| &*server.server),
            ..EventSubject::default()
        };
        match self {
            Event::Membership { notice, .. } => {
                EventSubject { service: notice.service.as_deref(), server: server_of(&notice.event), ..about }
            }
            Event::Hosts(notice) | Event::AddressContested { notice, .. } => about_hosts(notice),
            Event::DatagramRefused { from, notice } => {
                EventSubject { address: Some(from.ip()), ..about_hosts(notice) }
            }
            Event::Health { transition, .. } => {
                EventSubject { reason: transition.reason.as_ref().map(ToString::to_string), ..about }
            }
            Event::Link { interface, .. }
            | Event::Attached { interface }
            | Event::AttachFailed { interface, .. } => EventSubject { interface: Some(interface), ..about },
            Event::PathMtu { server: address, .. }
            | Event::Path { address, .. }
            | Event::AddressMoved { address, .. } => EventSubject { address: Some(*address), ..about },
            Event::Ranks { name, .. } => EventSubject { service: Some(name), ..about },
            Event::NotFound { .. }
            | Event::Found { .. }
            | Event::Stalling { .. }
            | Event::StallEnded { .. }
            | Event::NoServers { .. }
            | Event::ServersAgain { .. }
            | Event::Degraded { .. }
            | Event::Recovered { .. }
            | Event::SlotsExhausted { .. }
            | Event::Drained { .. }
            | Event::Suspended { .. }
            | Event::RefusalReported { .. }
            | Event::Reports { .. }
            | Event::Member { .. }
            | Event::NotApplied { .. } => about,
        }
    }
}

fn of_members(event: &membership::MembershipEvent) -> &'static str {
    match event {
        membership::MembershipEvent::Joined { .. } => "server_joined",
        membership::MembershipEvent::Silent { .. } => "server_silent",
        membership::MembershipEvent::Returned { .. } => "server_returned",
        membership::MembershipEvent::Removed { .. } => "server_removed",
        membership::MembershipEvent::AddressConflict { .. } => "server_address_conflict",
        membership::MembershipEvent::Moved { .. } => "server_moved",
        membership::MembershipEvent::Rerouted { .. } => "server_rerouted",
        membership::MembershipEvent::Refused { .. } => "arp_refused",
    }
}

fn server_of(event: &membership::MembershipEvent) -> Option<&str> {
    match event {
        membership::MembershipEvent::Joined { server, .. }
        | membership::MembershipEvent::Silent { server }
        | membership::MembershipEvent::Returned { server }
        | membership::MembershipEvent::Removed { server, .. }
        | membership::MembershipEvent::AddressConflict { server, .. }
        | membership::MembershipEvent::Moved { server, .. }
        | membership::MembershipEvent::Rerouted { server, .. } => Some(server),
        membership::MembershipEvent::Refused { .. } => None,
    }
}

fn of_hosts(notice: &peers::PeerEvent) -> &'static str {
    match notice {
        peers::PeerEvent::Answers { .. } => "host_responding",
        peers::PeerEvent::Silent { .. } => "host_silent",
        peers::PeerEvent::Left { .. } => "host_left",
        peers::PeerEvent::Returned { .. } => "host_returned",
        peers::PeerEvent::Differs { .. } => "host_config_differs",
        peers::PeerEvent::Agrees { .. } => "host_config_matches",
        peers::PeerEvent::Rejoins => "host_rejoins",
        peers::PeerEvent::Refused { .. } => "datagram_refused",
        peers::PeerEvent::Claimed { .. } => "address_claimed",
        peers::PeerEvent::Released { .. } => "address_released",
        peers::PeerEvent::ClaimDeferred { .. } => "address_claim_deferred",
        peers::PeerEvent::AddressConflict { .. } => "address_conflict",
    }
}

fn about_hosts(notice: &peers::PeerEvent) -> EventSubject<'_> {
    let (host, address) = match notice {
        peers::PeerEvent::Answers { host }
        | peers::PeerEvent::Silent { host }
        | peers::PeerEvent::Left { host }
        | peers::PeerEvent::Returned { host }
        | peers::PeerEvent::Differs { host, .. }
        | peers::PeerEvent::Agrees { host } => (Some(host.as_str()), None),
        peers::PeerEvent::Refused { host, .. } => (host.as_deref(), None),
        peers::PeerEvent::Rejoins => (None, None),
        peers::PeerEvent::Released { address, to } => (to.as_deref(), Some(*address)),
        peers::PeerEvent::Claimed { address }
        | peers::PeerEvent::ClaimDeferred { address }
        | peers::PeerEvent::AddressConflict { address } => (None, Some(*address)),
    };
    EventSubject { host, address, ..EventSubject::default() }
}
