//! What events are called, and what they are about: for programs, so it stays as it is.

use alloc::string::{String, ToString};
use core::net::IpAddr;

use super::event::{Event, Link};
use crate::farm::group::MemberChange;
use crate::farm::membership;
use crate::node::peers;
use crate::pool::health::State;

/// What an event is about, as far as it is about anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About<'e> {
    /// A service.
    pub service: Option<&'e str>,
    /// A server, of it where that is known.
    pub server: Option<&'e str>,
    /// Another host.
    pub host: Option<&'e str>,
    /// An address.
    pub address: Option<IpAddr>,
    /// An interface.
    pub interface: Option<&'e str>,
    /// Why, where that isn't in the event's own words.
    pub reason: Option<String>,
}

impl Event {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Membership { notice, .. } => of_members(&notice.event),
            Event::Hosts(notice) | Event::DatagramRefused { notice, .. } | Event::Answered { notice, .. } => {
                of_hosts(notice)
            }
            Event::Health { transition, .. } => match transition.to {
                State::Unknown => "server_unknown",
                State::Up => "server_up",
                State::Down => "server_down",
            },
            Event::NotFound { .. } => "server_not_found",
            Event::Found { .. } => "server_found",
            Event::NoServers { .. } => "service_without_servers",
            Event::ServersAgain { .. } => "service_with_servers",
            Event::Degraded { .. } => "service_degraded",
            Event::Recovered { .. } => "service_recovered",
            Event::NoRoom { .. } => "server_left_out",
            Event::Link { now, .. } => match now {
                Link::Gone => "link_gone",
                Link::Down => "link_down",
                Link::NoCarrier => "link_no_carrier",
                Link::Up => "link_up",
            },
            Event::Attached { .. } => "link_attached",
            Event::Unattached { .. } => "link_refused",
            Event::Drained { drain: true, .. } => "server_drained",
            Event::Drained { drain: false, .. } => "server_undrained",
            Event::Wished { refuses: true, .. } => "server_refuses",
            Event::Wished { refuses: false, .. } => "server_takes",
            Event::Reports { error: Some(_), .. } => "reports_fail",
            Event::Reports { error: None, .. } => "reports_come",
            Event::Member { change, .. } => match change {
                MemberChange::Joined => "member_joined",
                MemberChange::Left => "member_left",
                MemberChange::Silent => "member_silent",
                MemberChange::Removed | MemberChange::Refused => "member_removed",
                MemberChange::Up => "member_up",
                MemberChange::Down(_) => "member_down",
                MemberChange::Drained => "member_drained",
                MemberChange::Undrained => "member_undrained",
            },
            Event::Path { error: Some(_), .. } => "path_unknown",
            Event::Path { error: None, .. } => "path_known",
            Event::Ranks { error: Some(_), .. } => "ranks_fail",
            Event::Ranks { error: None, .. } => "ranks_come",
            Event::PathMtu { .. } => "path_mtu",
            Event::NotApplied { .. } => "change_refused",
        }
    }

    /// What it is about.
    pub fn about(&self) -> About<'_> {
        let service = self.service();
        let about =
            About { service, server: self.server().map(|server| &*server.server), ..About::default() };
        match self {
            Event::Membership { notice, .. } => {
                About { service: notice.service.as_deref(), server: server_of(&notice.event), ..about }
            }
            Event::Hosts(notice) | Event::Answered { notice, .. } => about_hosts(notice),
            Event::DatagramRefused { from, notice } => {
                About { address: Some(from.ip()), ..about_hosts(notice) }
            }
            Event::Health { transition, .. } => {
                About { reason: transition.reason.as_ref().map(ToString::to_string), ..about }
            }
            Event::Link { interface, .. }
            | Event::Attached { interface }
            | Event::Unattached { interface, .. } => About { interface: Some(interface), ..about },
            Event::PathMtu { server: address, .. } | Event::Path { address, .. } => {
                About { address: Some(*address), ..about }
            }
            Event::Ranks { name, .. } => About { service: Some(name), ..about },
            Event::NotFound { .. }
            | Event::Found { .. }
            | Event::NoServers { .. }
            | Event::ServersAgain { .. }
            | Event::Degraded { .. }
            | Event::Recovered { .. }
            | Event::NoRoom { .. }
            | Event::Drained { .. }
            | Event::Wished { .. }
            | Event::Reports { .. }
            | Event::Member { .. }
            | Event::NotApplied { .. } => about,
        }
    }
}

fn of_members(event: &membership::Event) -> &'static str {
    match event {
        membership::Event::Joined { .. } => "server_joined",
        membership::Event::Silent { .. } => "server_silent",
        membership::Event::Returned { .. } => "server_returned",
        membership::Event::Removed { .. } => "server_removed",
        membership::Event::Moved { .. } => "server_claimed",
        membership::Event::Followed { .. } => "server_moved",
        membership::Event::Rerouted { .. } => "server_rerouted",
        membership::Event::Refused { .. } => "arp_refused",
    }
}

fn server_of(event: &membership::Event) -> Option<&str> {
    match event {
        membership::Event::Joined { server, .. }
        | membership::Event::Silent { server }
        | membership::Event::Returned { server }
        | membership::Event::Removed { server, .. }
        | membership::Event::Moved { server, .. }
        | membership::Event::Followed { server, .. }
        | membership::Event::Rerouted { server, .. } => Some(server),
        membership::Event::Refused { .. } => None,
    }
}

fn of_hosts(notice: &peers::Notice) -> &'static str {
    match notice {
        peers::Notice::Heard { .. } => "host_heard",
        peers::Notice::Silent { .. } => "host_silent",
        peers::Notice::Left { .. } => "host_left",
        peers::Notice::Returned { .. } => "host_returned",
        peers::Notice::Differs { .. } => "host_differs",
        peers::Notice::Agrees { .. } => "host_agrees",
        peers::Notice::Rejoins => "host_rejoins",
        peers::Notice::Refused { .. } => "datagram_refused",
        peers::Notice::Claimed { .. } => "address_claimed",
        peers::Notice::Released { .. } => "address_released",
        peers::Notice::PutOff { .. } => "address_put_off",
        peers::Notice::ClaimedTwice { .. } => "address_claimed_twice",
    }
}

fn about_hosts(notice: &peers::Notice) -> About<'_> {
    let (host, address) = match notice {
        peers::Notice::Heard { host }
        | peers::Notice::Silent { host }
        | peers::Notice::Left { host }
        | peers::Notice::Returned { host }
        | peers::Notice::Differs { host, .. }
        | peers::Notice::Agrees { host } => (Some(host.as_str()), None),
        peers::Notice::Refused { host, .. } => (host.as_deref(), None),
        peers::Notice::Rejoins => (None, None),
        peers::Notice::Released { address, to } => (to.as_deref(), Some(*address)),
        peers::Notice::Claimed { address }
        | peers::Notice::PutOff { address }
        | peers::Notice::ClaimedTwice { address } => (None, Some(*address)),
    };
    About { host, address, ..About::default() }
}
