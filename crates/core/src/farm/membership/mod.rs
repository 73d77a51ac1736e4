//! Membership: the servers of services and their MAC addresses. They are found by ARP and neighbour
//! discovery (LSMAC, section 3.1), or by routes.
//!
//! The director requests a service address on its links. Every MAC address that answers is a
//! server. Listed servers are requested by their own address. A silent server is drained. If it was
//! discovered, it is removed later. An answer proves no identity, so it is checked against an
//! `allow` list, a limit, and [`LocalNetwork`]. If a second host claims a server's address, the
//! claim is logged. The membership follows the claim only once the server is silent.
//!
//! Servers of methods `nat` and `tunnel` may be on other networks, so they are not requested. The
//! operator lists these servers. Their next hops arrive in [`LocalNetwork::hops`], and only probes
//! show if they work.
//!
//! [`Membership`] is a state machine. Its inputs are frames and the time. Its outputs are addresses
//! to request and [`ServiceNotice`]s. [`Membership::members`] returns its state.

mod binding;
mod event;
mod members;
mod neighbour_reply;
mod record;
mod refusal_log;
mod surroundings;
#[cfg(test)]
mod tests;

pub use binding::LinkAddress;
pub use event::{MembershipEvent, Removal, ReplyRefusal, ServiceNotice};
pub use neighbour_reply::NeighbourReply;
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

/// Origin of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerOrigin {
    /// The operator has listed the server.
    Listed,
    /// The server answered for a service address. Its name is its MAC address.
    Discovered,
}

/// A server of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Unique within its service.
    pub name: String,
    /// Own address; `None` for discovered servers.
    pub address: Option<IpAddr>,
    /// Destination MAC address of frames to the server. `None` until it is known, and if the server
    /// is this host.
    pub mac: Option<Mac>,
    /// Interface that leads to the server; `None` if `mac` is `None`.
    pub ifindex: Option<u32>,
    /// Next hop; `None` unless the server is found by routes.
    pub hop: Option<ServerRoute>,
    /// Share of new sessions; 1 for discovered servers.
    pub weight: u16,
    /// True if the server takes new sessions only while no server can that is not a backup.
    pub backup: bool,
    /// True if the server is this host itself.
    pub local: bool,
    /// True if the server has been silent for so long that it takes no new sessions.
    pub draining: bool,
    pub source: ServerOrigin,
    /// Time at which the server last joined, became silent or returned, in milliseconds.
    pub since_ms: u64,
    /// Time of the last answer in milliseconds; `None` for servers found by routes.
    pub last_seen_ms: Option<u64>,
}

/// Requests and results of a discovery round.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DiscoveryRound {
    /// Addresses to request on every interface, by ARP or neighbour solicitation.
    pub requests: Vec<IpAddr>,
    /// Events caused by silence since the last round.
    pub notices: Vec<ServiceNotice>,
}

/// A server in the tables of a running data plane, restored after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredServer {
    /// Name of the service.
    pub service: String,
    /// Name of a listed server, or MAC address of a discovered server.
    pub server: String,
    /// Destination of frames to the server.
    pub place: LinkAddress,
    /// Next hop; `None` unless the server is found by routes.
    pub hop: Option<ServerRoute>,
}

/// Servers of all services.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    surroundings: LocalNetwork,
    services: BTreeMap<String, ServiceMembers>,
    /// Refused answers that claim an address of the director or of a router.
    address_refusals: RefusalLog,
}

impl Membership {
    /// Maximum number of pairs of MAC address and reason that `address_refusals` remembers. Further
    /// refusals are counted but not logged.
    const ADDRESS_REFUSALS_MAX: usize = 4 * SERVICE_SERVERS_MAX;

    /// Returns the membership of a farm before any answer.
    pub fn new(services: &[farm::Service], surroundings: LocalNetwork, now_ms: u64) -> Membership {
        let address_refusals = RefusalLog::new(Self::ADDRESS_REFUSALS_MAX);
        let mut membership = Membership { surroundings, services: BTreeMap::new(), address_refusals };
        membership.reconfigure(services, now_ms);
        membership
    }

    /// Applies the services of a reload. Servers stay if the new settings of their service still
    /// allow them.
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

    /// Applies changes of the director's interfaces, addresses, routers and next hops. A server
    /// that turns out to be a router is removed.
    pub fn surroundings(&mut self, surroundings: LocalNetwork, now_ms: u64) -> Vec<ServiceNotice> {
        let moved = self.surroundings.interfaces != surroundings.interfaces;
        self.surroundings = surroundings;
        if moved {
            self.services.values_mut().for_each(|members| members.start_round(now_ms));
        }
        self.each_service(|members, surroundings| members.surroundings_changed(surroundings, now_ms))
    }

    /// Restores a server of a running data plane after a restart. The server has as many rounds to
    /// answer as other servers. Servers that the services neither list nor discover are ignored.
    pub fn resume(&mut self, known: &RestoredServer, now_ms: u64) {
        if let Some(members) = self.services.get_mut(&known.service) {
            members.resume(known, &self.surroundings, now_ms);
        }
    }

    /// Applies a received frame. Other frames than ARP replies and neighbour advertisements are
    /// ignored, and so are frames about addresses that no service needs.
    pub fn frame(&mut self, now_ms: u64, ifindex: u32, frame: &[u8]) -> Vec<ServiceNotice> {
        match NeighbourReply::read(ifindex, frame) {
            Ok(Some(reply)) => self.answer(now_ms, reply),
            Ok(None) => Vec::new(),
            Err(malformed) => self.impostor(malformed, ReplyRefusal::Malformed),
        }
    }

    /// Applies an answer: a MAC address claims an IP address.
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

    /// Time of the next round in milliseconds; `None` if no service needs rounds.
    pub fn next_round_at(&self) -> Option<u64> {
        self.services.values().filter_map(ServiceMembers::next_round_at).min()
    }

    /// Ends the current round and starts the next round of each service whose round is due. Servers
    /// that were silent in the ended round may be drained or removed.
    pub fn round(&mut self, now_ms: u64) -> DiscoveryRound {
        let mut requests = BTreeSet::new();
        let notices = self.each_service(|members, _| {
            let due = members.next_round_at().is_some_and(|at| at <= now_ms);
            if due { members.round(now_ms, &mut requests) } else { Vec::new() }
        });
        DiscoveryRound { requests: requests.into_iter().collect(), notices }
    }

    /// Returns the servers of a service, sorted by name.
    pub fn members(&self, service: &str) -> Vec<Member> {
        self.services.get(service).map(ServiceMembers::members).unwrap_or_default()
    }

    pub fn member(&self, service: &str, server: &str) -> Option<Member> {
        self.services.get(service)?.member(server)
    }

    /// Returns the numbers of refused answers by reason. For `None`, these are the answers that
    /// claimed an address of the director or of a router.
    pub fn refused(&self, service: Option<&str>) -> RefusalCounts {
        match service {
            None => self.address_refusals.refused(),
            Some(name) => self.services.get(name).map(ServiceMembers::refused).unwrap_or_default(),
        }
    }

    fn impostor(&mut self, reply: NeighbourReply, refusal: ReplyRefusal) -> Vec<ServiceNotice> {
        let event = self.address_refusals.refuse(reply, refusal);
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
