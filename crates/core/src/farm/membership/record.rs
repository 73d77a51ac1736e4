//! State of one server of a service.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;

use super::binding::{Binding, BindingChange, LinkAddress};
use super::event::{MembershipEvent, Removal};
use super::surroundings::{LocalNetwork, ServerRoute};
use super::{Member, RestoredServer, ServerOrigin};
use crate::farm;
use crate::net::wire::Mac;

/// A listed or discovered server.
#[derive(Clone, Debug)]
pub(super) struct ServerRecord {
    pub(super) name: String,
    pub(super) address: Option<IpAddr>,
    pub(super) weight: u16,
    pub(super) backup: bool,
    pub(super) source: ServerOrigin,
    pub(super) local: bool,
    /// MAC address configured by the operator.
    pub(super) fixed: Option<Mac>,
    pub(super) draining: bool,
    /// True if the server is found by routes. Then ARP is not needed, and `hop` is the next hop.
    routed: bool,
    hop: Option<ServerRoute>,
    binding: Binding,
    since_ms: u64,
    last_seen_ms: Option<u64>,
}

impl ServerRecord {
    pub(super) fn listed(
        server: &farm::Server,
        routed: bool,
        around: &LocalNetwork,
        now_ms: u64,
    ) -> ServerRecord {
        let mut record = ServerRecord {
            name: server.name.clone(),
            address: Some(server.address),
            weight: server.weight,
            backup: server.backup,
            source: ServerOrigin::Listed,
            local: around.is_local(server.address),
            fixed: server.mac,
            draining: false,
            routed,
            hop: around.hops.get(&server.address).copied().filter(|_| routed),
            binding: Binding::default(),
            since_ms: now_ms,
            last_seen_ms: None,
        };
        record.place_fixed(around);
        record
    }

    pub(super) fn discovered(place: LinkAddress, now_ms: u64) -> ServerRecord {
        ServerRecord {
            name: place.mac.to_string(),
            address: None,
            weight: 1,
            backup: false,
            source: ServerOrigin::Discovered,
            local: false,
            fixed: None,
            draining: false,
            routed: false,
            hop: None,
            binding: Binding::at(place),
            since_ms: now_ms,
            last_seen_ms: None,
        }
    }

    /// True if the record matches the server as listed by the operator. Weight and `backup` may
    /// differ.
    pub(super) fn is_listed_as(&self, server: &farm::Server, routed: bool) -> bool {
        self.source == ServerOrigin::Listed
            && self.address == Some(server.address)
            && self.fixed == server.mac
            && self.routed == routed
    }

    /// Place of the server; `None` if the place is unknown or the server is this host.
    pub(super) fn place(&self) -> Option<LinkAddress> {
        if self.routed { self.hop.filter(|_| !self.local).map(|hop| hop.place) } else { self.binding.place() }
    }

    /// True if this MAC address is the server's own. For a server that is found by routes, only a
    /// configured MAC address counts, since the next hop's may be a router's.
    pub(super) fn has_mac(&self, mac: Mac) -> bool {
        let found = self.place().is_some_and(|place| place.mac == mac);
        self.fixed == Some(mac) || (found && !self.routed)
    }

    /// Address to request in each round; `None` if the server needs no request.
    pub(super) fn address_to_resolve(&self) -> Option<IpAddr> {
        self.address.filter(|_| !self.local && !self.routed)
    }

    /// True if the place of the server is not known yet.
    pub(super) fn is_missing(&self) -> bool {
        !self.local && self.place().is_none()
    }

    /// True if the server is this host, or resolved and not silent.
    pub(super) fn is_present(&self) -> bool {
        self.local || (self.place().is_some() && !self.draining)
    }

    /// Applies an answer for the server.
    pub(super) fn note_reply(&mut self, place: LinkAddress, now_ms: u64) -> Option<MembershipEvent> {
        let server = self.name.clone();
        match self.binding.note_reply(place) {
            BindingChange::First => {
                self.last_seen_ms = Some(now_ms);
                self.since_ms = now_ms;
                Some(MembershipEvent::Joined { server, place })
            }
            BindingChange::Again => {
                self.last_seen_ms = Some(now_ms);
                self.draining.then(|| {
                    self.draining = false;
                    self.since_ms = now_ms;
                    MembershipEvent::Returned { server }
                })
            }
            BindingChange::Landed { from } => {
                self.last_seen_ms = Some(now_ms);
                self.since_ms = now_ms;
                self.draining = false;
                Some(MembershipEvent::Moved { server, from, to: place })
            }
            BindingChange::Claim { from } => {
                Some(MembershipEvent::AddressConflict { server, from, to: place })
            }
            BindingChange::OldClaim => None,
        }
    }

    /// Ends a round. Applies a new place if the server has moved, and drains the server if it was
    /// silent for `rounds`.
    ///
    /// Silence means nothing for a server with a configured MAC address, or for one that is found
    /// by routes. For these only probes count.
    pub(super) fn end_round(&mut self, rounds: u32, now_ms: u64) -> Option<MembershipEvent> {
        if let Some((from, to)) = self.binding.end_round(rounds) {
            self.draining = false;
            self.since_ms = now_ms;
            return Some(MembershipEvent::Moved { server: self.name.clone(), from, to });
        }
        let silent = self.fixed.is_none() && self.binding.silent_rounds() >= rounds;
        (silent && !self.draining).then(|| {
            self.draining = true;
            self.since_ms = now_ms;
            MembershipEvent::Silent { server: self.name.clone() }
        })
    }

    /// True if the server was discovered, and was silent for twice the rounds that drain it.
    pub(super) fn is_gone(&self, rounds: u32) -> bool {
        self.source == ServerOrigin::Discovered && self.binding.silent_rounds() >= rounds.saturating_mul(2)
    }

    /// Restores the place from a running data plane.
    pub(super) fn resume(&mut self, known: &RestoredServer) {
        if !self.is_missing() || self.fixed.is_some_and(|fixed| fixed != known.place.mac) {
            return;
        }
        match self.routed {
            true => self.hop = known.hop,
            false => self.binding = Binding::at(known.place),
        }
    }

    pub(super) fn is_routed(&self) -> bool {
        self.routed
    }

    /// Applies the next hop of a server that is found by routes. While the next hop is unresolved,
    /// the last one stays, since the kernel resolves it again and probes show if it works. The
    /// source address of existing sessions stays as long as this host has it.
    fn follow(&mut self, around: &LocalNetwork, now_ms: u64) -> Option<MembershipEvent> {
        let mut hop = *around.hops.get(&self.address?)?;
        if let Some(before) = self.hop.filter(|before| before.place.ifindex == hop.place.ifindex)
            && around.is_local(before.own)
        {
            hop.own = before.own;
        }
        let from = self.place();
        self.hop = Some(hop);
        if self.local || from == Some(hop.place) {
            return None;
        }
        self.since_ms = now_ms;
        let (server, place) = (self.name.clone(), hop.place);
        Some(match from {
            None => MembershipEvent::Joined { server, place },
            Some(from) => MembershipEvent::Rerouted { server, from, to: place },
        })
    }

    /// Applies a changed network. Forgets the server's place if no server can be there, and updates
    /// `local`.
    pub(super) fn surroundings_changed(
        &mut self,
        around: &LocalNetwork,
        now_ms: u64,
    ) -> Vec<MembershipEvent> {
        let mut events = Vec::new();
        let local = self.address.is_some_and(|address| around.is_local(address));
        if self.routed {
            self.local = local;
            return self.follow(around, now_ms).into_iter().collect();
        }
        let misplaced = self.place().is_some_and(|place| around.excludes(place.mac));
        if misplaced || local != self.local {
            if !local && !self.is_missing() {
                let why = if misplaced { Removal::NotAServer } else { Removal::Configuration };
                events.push(MembershipEvent::Removed { server: self.name.clone(), why });
            }
            self.local = local;
            self.draining = false;
            self.since_ms = now_ms;
            self.binding.clear();
        }
        if self.place().is_some_and(|place| !around.interfaces.contains_key(&place.ifindex)) {
            self.binding.strand();
        }
        if !misplaced {
            self.place_fixed(around);
        }
        events
    }

    /// Sets the place without a request, if the MAC address is configured and there is only one
    /// interface.
    fn place_fixed(&mut self, around: &LocalNetwork) {
        let mut interfaces = around.interfaces.keys();
        if let (Some(mac), Some(&ifindex), None, true) =
            (self.fixed, interfaces.next(), interfaces.next(), self.is_missing() && !self.routed)
        {
            self.binding = Binding::at(LinkAddress { mac, ifindex });
        }
    }

    pub(super) fn member(&self) -> Member {
        let place = self.place();
        Member {
            name: self.name.clone(),
            address: self.address,
            mac: place.map(|place| place.mac),
            ifindex: place.map(|place| place.ifindex),
            hop: self.hop.filter(|_| !self.local),
            weight: self.weight,
            backup: self.backup,
            local: self.local,
            draining: self.draining,
            source: self.source,
            since_ms: self.since_ms,
            last_seen_ms: self.last_seen_ms,
        }
    }
}
