//! The servers and their MAC addresses, by ARP and neighbour discovery (LSMAC,
//! section 3.1), or from the routes to them.
//!
//! The director asks everyone on its links for a service address; every MAC that answers is a
//! server. Servers the operator listed are asked for by their own address. A silent server is
//! drained, then removed. Discovery is not identity: answers pass an `allow` list, a cap, and
//! [`LocalNetwork`], and whoever claims another's place is logged first and followed only when the
//! other is gone.
//!
//! Servers of methods `nat` and `tunnel` may be on other networks, where nobody answers: they are
//! listed, the way to each comes in with [`LocalNetwork::hops`], and only probes tell whether they
//! work.
//!
//! [`Membership`] is a state machine: frames and the time go in, addresses to ask for and
//! [`ServiceNotice`]s come out, [`Membership::members`] is the state.

mod answer;
mod binding;
mod event;
mod members;
mod record;
mod refusal_log;
mod surroundings;
#[cfg(test)]
mod tests;

pub use answer::NeighbourReply;
pub use binding::LinkAddress;
pub use event::{MembershipEvent, Removal, ReplyRefusal, ServiceNotice};
pub use refusal_log::RefusalCounts;
pub use surroundings::{LocalNetwork, Router, ServerRoute};

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::farm;
use crate::net::wire::Mac;
use crate::path::tables::SERVICE_SERVERS_MAX;
use members::ServiceMembers;
use refusal_log::RefusalLog;

/// Where a server is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOrigin {
    /// The operator listed it.
    Listed,
    /// It answered for the service address; its name is its MAC.
    Discovered,
}

/// A server of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Unique within its service.
    pub name: String,
    /// Its own address; not known of discovered servers.
    pub address: Option<IpAddr>,
    /// Where its frames go; `None` until that is known, and for a local server.
    pub mac: Option<Mac>,
    /// The interface that leads to it; as `mac`.
    pub ifindex: Option<u32>,
    /// The way to it, if it is reached by routes and not on the link.
    pub hop: Option<ServerRoute>,
    /// Share of new sessions; 1 for discovered servers.
    pub weight: u16,
    /// Whether it takes new sessions only while no server without this can serve.
    pub backup: bool,
    /// Whether it is this host itself.
    pub local: bool,
    /// Whether it has been silent for so long that it takes no new sessions.
    pub draining: bool,
    /// Where it is known from.
    pub source: ServerOrigin,
    /// When it last joined, fell silent or returned, in milliseconds.
    pub since_ms: u64,
    /// When it last answered, in milliseconds; never for one that is reached by routes.
    pub last_seen_ms: Option<u64>,
}

/// The questions of a round of discovery.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DiscoveryRound {
    /// Addresses to ask everyone for, on every interface: by ARP, or by neighbour solicitation.
    pub requests: Vec<IpAddr>,
    /// The meaning of the silence since the last round.
    pub notices: Vec<ServiceNotice>,
}

/// A server that a running data plane already sends to, known again after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredServer {
    /// Its service.
    pub service: String,
    /// Its name: a listed server's, or the MAC of a discovered one.
    pub server: String,
    /// Where its frames go.
    pub place: LinkAddress,
    /// The way to it, if it is reached by routes.
    pub hop: Option<ServerRoute>,
}

/// The servers of all services.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    surroundings: LocalNetwork,
    services: BTreeMap<String, ServiceMembers>,
    /// The hosts that claimed a place of the director or a router.
    impostors: RefusalLog,
}

impl Membership {
    /// The most impostors remembered, beyond which they are counted but not logged.
    const IMPOSTORS_MAX: usize = 4 * SERVICE_SERVERS_MAX;

    /// A farm of these services, none of whose servers has been heard of.
    pub fn new(services: &[farm::Service], surroundings: LocalNetwork, now_ms: u64) -> Membership {
        let impostors = RefusalLog::new(Self::IMPOSTORS_MAX);
        let mut membership = Membership { surroundings, services: BTreeMap::new(), impostors };
        membership.reconfigure(services, now_ms);
        membership
    }

    /// Goes on with other services after a reload. Servers of services that stay, stay.
    pub fn reconfigure(&mut self, services: &[farm::Service], now_ms: u64) -> Vec<ServiceNotice> {
        let mut old = core::mem::take(&mut self.services);
        let mut notices = Vec::new();
        for service in services {
            let members = match old.remove(&service.name) {
                Some(mut members) => {
                    let events = members.reconfigure(service, &self.surroundings, now_ms);
                    notices.extend(about(&service.name, events));
                    members
                }
                None => ServiceMembers::new(service, &self.surroundings, now_ms),
            };
            self.services.insert(service.name.clone(), members);
        }
        notices
    }

    /// Takes in what is newly known of the director's interfaces, its addresses, the routers and
    /// the ways to servers. A host that turns out to be a router is a server no longer.
    pub fn surroundings(&mut self, surroundings: LocalNetwork, now_ms: u64) -> Vec<ServiceNotice> {
        let moved = self.surroundings.interfaces != surroundings.interfaces;
        self.surroundings = surroundings;
        if moved {
            self.services.values_mut().for_each(|members| members.start_round(now_ms));
        }
        self.each_service(|members, surroundings| members.surroundings_changed(surroundings, now_ms))
    }

    /// Takes back, after a restart, a server that the data plane already sends to. It has as many
    /// rounds to answer as any other. Those of services and servers that are gone are ignored.
    pub fn resume(&mut self, known: &RestoredServer, now_ms: u64) {
        if let Some(members) = self.services.get_mut(&known.service) {
            members.resume(known, &self.surroundings, now_ms);
        }
    }

    /// Takes in a frame received on an interface. Frames that answer neither ARP nor neighbour
    /// discovery, or are about addresses that mean nothing to the farm, change nothing.
    pub fn frame(&mut self, now_ms: u64, ifindex: u32, frame: &[u8]) -> Vec<ServiceNotice> {
        match NeighbourReply::read(ifindex, frame) {
            Ok(Some(reply)) => self.answer(now_ms, reply),
            Ok(None) => Vec::new(),
            Err(malformed) => self.impostor(malformed, ReplyRefusal::Malformed),
        }
    }

    /// Takes in an answer: this MAC says that it has this address.
    pub fn answer(&mut self, now_ms: u64, reply: NeighbourReply) -> Vec<ServiceNotice> {
        let concerns_servers = self.services.values().any(|members| members.is_concerned(reply.address));
        if !concerns_servers && !self.surroundings.is_concerned(reply.address) {
            return Vec::new();
        }
        let service_address = self.services.values().any(|members| members.has_address(reply.address));
        if let Err(refusal) = self.surroundings.judge(&reply, service_address) {
            return self.impostor(reply, refusal);
        }
        self.each_service(|members, _| members.note_reply(now_ms, &reply))
    }

    /// When the next round is due, in milliseconds; `None` if no service ever asks.
    pub fn next_round_at(&self) -> Option<u64> {
        self.services.values().filter_map(ServiceMembers::next_round_at).min()
    }

    /// Draws the conclusions from the silence since the last round, and begins the next, for each
    /// service whose time it is.
    pub fn round(&mut self, now_ms: u64) -> DiscoveryRound {
        let mut requests = BTreeSet::new();
        let notices = self.each_service(|members, _| {
            let due = members.next_round_at().is_some_and(|at| at <= now_ms);
            if due { members.round(now_ms, &mut requests) } else { Vec::new() }
        });
        DiscoveryRound { requests: requests.into_iter().collect(), notices }
    }

    /// The servers of a service, in order of name.
    pub fn members(&self, service: &str) -> Vec<Member> {
        self.services.get(service).map(ServiceMembers::members).unwrap_or_default()
    }

    /// One of them.
    pub fn member(&self, service: &str, server: &str) -> Option<Member> {
        self.services.get(service)?.member(server)
    }

    /// How many answers were refused, by reason: those of a service, or with `None` those refused
    /// whatever the service.
    pub fn refused(&self, service: Option<&str>) -> RefusalCounts {
        match service {
            None => self.impostors.refused(),
            Some(name) => self.services.get(name).map(ServiceMembers::refused).unwrap_or_default(),
        }
    }

    fn impostor(&mut self, reply: NeighbourReply, refusal: ReplyRefusal) -> Vec<ServiceNotice> {
        let event = self.impostors.refuse(reply, refusal);
        event.map(|event| ServiceNotice { service: None, event }).into_iter().collect()
    }

    fn each_service(
        &mut self,
        mut act: impl FnMut(&mut ServiceMembers, &LocalNetwork) -> Vec<MembershipEvent>,
    ) -> Vec<ServiceNotice> {
        let mut notices = Vec::new();
        for (name, members) in &mut self.services {
            notices.extend(about(name, act(members, &self.surroundings)));
        }
        notices
    }
}

fn about(service: &str, events: Vec<MembershipEvent>) -> impl Iterator<Item = ServiceNotice> {
    events.into_iter().map(move |event| ServiceNotice { service: Some(service.into()), event })
}
