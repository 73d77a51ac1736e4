//! The director's view of the other hosts of an every-host farm, and its reports to them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::hosts::{self, LocalHost};
use super::{Director, Event, Output};
use crate::farm::membership::{Member, NeighbourReply};
use crate::farm::plan::{self, MemberState, ServerName};
use crate::farm::{Farm, Server, Service};
use crate::node::peers::{BITS, DatagramEffect, HostedServer, KnownHost, OwnStatus, PeerEvent, Tick};
use crate::path::tables::{NO_SERVER, Tables};
use crate::pool::FULL_WEIGHT;
use crate::pool::PoolServer;
use crate::pool::health::{self, HealthState};
use crate::pool::policy;
use crate::pool::signals::Candidate;

/// Number of report intervals for which a host only receives reports after its lease expired. Then
/// it renews the lease.
const REPORTS_BEFORE_FIRST: u64 = 2;
/// Number of times that a claimed address is announced, once with each report (RFC 5227, section
/// 2.3).
const ANNOUNCEMENTS: u32 = 3;
/// Unit of the load: hundredths of a session. Sessions come and go many times between two reports.
/// Therefore each report moves the load only by a quarter of the way to the current value.
const LOAD_UNIT: u64 = 100;
const LOAD_STEP: u64 = 4;
/// A server that was full takes new sessions again once this part of its `max_connections` is free.
const FULL_UNTIL: u64 = 10;

impl Director {
    /// Returns the position of an `every-host` service in reports; `None` for other services.
    fn place(&self, service: &str) -> Option<u8> {
        (0..).zip(self.farm.every_host()).find(|(_, known)| known.name == service).map(|(at, _)| at)
    }

    /// Returns the known state of a host's server of an `every-host` service. `None` if nothing is
    /// known of it.
    pub(super) fn hosted_server<'k>(
        &self,
        known: &'k [KnownHost],
        name: &ServerName,
    ) -> Option<&'k HostedServer> {
        let at = self.place(&name.service)?;
        known.iter().find(|host| host.name == name.server)?.servers.get(&at)
    }

    /// Returns the names of the services for which a host reports such a server.
    pub(super) fn services_of(&self, host: &KnownHost, is: fn(&HostedServer) -> bool) -> Vec<String> {
        let numbered = (0..).zip(self.farm.every_host());
        let reported = numbered.filter(|(at, _)| host.servers.get(at).is_some_and(is));
        reported.map(|(_, service)| service.name.clone()).collect()
    }

    /// Returns the state of a host as a server. For this host the state comes from its own probes,
    /// for other hosts from their reports.
    pub(super) fn host_state(
        &self,
        hosts: &LocalHost,
        known: &[KnownHost],
        service: &Service,
        member: Member,
    ) -> MemberState {
        let name = ServerName { service: service.name.clone(), server: member.name.clone() };
        let known_host = known.iter().find(|host| host.name == member.name);
        let hosted = self.hosted_server(known, &name);
        let takes_part = |host: &KnownHost| host.alive && host.ready;
        // While no other host takes sessions, this host uses its own probes even before it is
        // ready.
        let ready = known_host.is_some_and(takes_part) || !known.iter().any(takes_part);
        let health = match self.pools.status(&name) {
            Some(own) if member.local && ready => own,
            // Before this host is ready, its own ring contains only other hosts. When this host
            // joins the ring, the entries that it replaces become second chances (see `plan`).
            _ if member.local => health::HealthStatus::UNKNOWN,
            _ => known_host.map_or(health::HealthStatus::UNKNOWN, |host| status(host, hosted)),
        };
        let drained = self.operator.contains_key(&name);
        MemberState {
            health,
            admin_draining: if member.local {
                drained
            } else {
                hosted.is_some_and(|hosted| hosted.is_drained)
            },
            refuses: hosted.is_some_and(|hosted| hosted.refuses),
            is_full: hosted.is_some_and(|hosted| hosted.is_full),
            share: hosts.shares.get(&name).copied(),
            tenths: hosted.map_or(FULL_WEIGHT, |hosted| hosted.tenths.clamp(1, FULL_WEIGHT)),
            member: Member {
                weight: hosted.and_then(|hosted| hosted.weight).unwrap_or(member.weight),
                ..member
            },
        }
    }

    /// Returns all hosts of an every-host farm; empty in other farms.
    pub(super) fn known_hosts(&self) -> Vec<KnownHost> {
        self.hosts.as_ref().map(|hosts| hosts.peers.hosts()).unwrap_or_default()
    }

    /// Returns this host's part of the plan's input.
    pub(super) fn planned_hosts(&self, known: &[KnownHost]) -> plan::Hosts {
        let own =
            plan::Hosts { reads_punted: self.farm.hands_over(), seed: self.seed, ..plan::Hosts::default() };
        let Some(hosts) = &self.hosts else { return own };
        let others = || known.iter().filter(|host| !host.own);
        let unheard = others().any(|host| host.alive && host.received_ms.is_none());
        let adopted = hosts.adopted_macs.iter().filter(|_| unheard).copied();
        plan::Hosts {
            owned: hosts.peers.owned().clone(),
            macs: others().flat_map(|host| &host.macs).copied().chain(adopted).collect(),
            ..own
        }
    }

    /// Returns the addresses that this host owns while its lease holds. Addresses claimed while its
    /// link was down may have another owner now.
    pub(super) fn answered_for(&self) -> impl Iterator<Item = IpAddr> {
        let hosts = self.hosts.iter().filter(|_| self.lease_holds);
        hosts.flat_map(|hosts| hosts.peers.owned().iter().copied())
    }

    /// Applies a datagram of another host, and queues the answer to it.
    pub(super) fn receive_host_datagram(&mut self, from: SocketAddr, datagram: &[u8], now_ms: u64) {
        let Some(hosts) = &mut self.hosts else { return };
        let DatagramEffect { notices, answer, changed } = hosts.peers.receive(now_ms, datagram);
        for notice in notices {
            self.emit(match notice {
                PeerEvent::Refused { .. } => Event::DatagramRefused { from, notice },
                _ => Event::Hosts(notice),
            });
        }
        self.replan_wanted |= changed;
        // The answer acknowledges the datagram, so [`Director::hold_back`] delays it until the
        // tables that follow from the datagram are in force.
        self.outputs.extend(answer.map(|(to, datagram)| Output::Send { to, datagram }));
    }

    /// Applies another host's ARP or neighbour discovery reply for a service address.
    pub(super) fn answered(&mut self, answer: NeighbourReply, now_ms: u64) {
        let mac = answer.place.mac;
        let Some(hosts) = self.hosts.as_mut().filter(|_| self.links.values().all(|own| *own != mac)) else {
            return;
        };
        for notice in hosts.peers.answered(now_ms, answer.address) {
            self.emit(Event::AddressContested { mac, notice });
        }
    }

    /// Time of the next report to the other hosts, in milliseconds; `u64::MAX` if the farm is not
    /// every-host.
    pub(super) fn next_report_at(&self) -> u64 {
        self.hosts.as_ref().map_or(u64::MAX, |hosts| hosts.peers.next_at())
    }

    /// Sends a report to the other hosts if it is due, and evaluates the received reports.
    pub(super) fn report(&mut self, now_ms: u64) {
        if self.next_report_at() > now_ms {
            return;
        }
        self.renew_lease(now_ms);
        let own_sessions: u64 = self.own_slots().iter().filter_map(|slot| self.active.get(slot)).sum();
        if let Some(hosts) = &mut self.hosts {
            hosts.load = (hosts.load * (LOAD_STEP - 1) + own_sessions * LOAD_UNIT) / LOAD_STEP;
        }
        self.send_own_report();
        let Some(hosts) = &mut self.hosts else { return };
        let Tick { datagrams, probes, claimed, notices, changed } = hosts.peers.tick(now_ms);
        hosts.to_announce.extend(claimed.into_iter().map(|address| (address, ANNOUNCEMENTS)));
        self.emit_all(notices.into_iter().map(Event::Hosts));
        let sent = datagrams.into_iter().map(|(to, datagram)| Output::Send { to, datagram });
        self.outputs.extend(sent);
        self.replan_wanted |= self.share_out(now_ms) || changed;
        for target in probes {
            let probes = self.links.keys().map(|&ifindex| Output::Solicit { ifindex, sender: None, target });
            self.outputs.extend(probes);
        }
        let announcements = self.due_announcements();
        self.announce(announcements);
    }

    /// Returns the owned addresses that are still to be announced.
    fn due_announcements(&mut self) -> BTreeSet<IpAddr> {
        let answered: BTreeSet<IpAddr> = self.answered_for().collect();
        let Some(hosts) = &mut self.hosts else { return BTreeSet::new() };
        let owned = hosts.peers.owned();
        hosts.to_announce.retain(|address, left| *left > 0 && owned.contains(address));
        let due = hosts.to_announce.iter_mut().filter(|(address, _)| answered.contains(address));
        due.map(|(address, left)| {
            *left -= 1;
            *address
        })
        .collect()
    }

    /// Renews the lease. While the lease holds, the engine answers ARP for the owned addresses. The
    /// lease is shorter than the time after which other hosts consider this host dead.
    ///
    /// A host without carrier doesn't renew the lease. Once the lease has expired, because the
    /// daemon was stopped or the link had no carrier, other hosts may own its addresses. So this
    /// host only receives reports at first. The wait is measured in time and not in own reports,
    /// since each change causes an extra report.
    fn renew_lease(&mut self, now_ms: u64) {
        let mut links = self.links.keys().filter_map(|ifindex| self.network.interfaces.get(ifindex));
        let has_carrier = links.any(|link| link.carrier);
        let Some(hosts) = &mut self.hosts else { return };
        if !has_carrier {
            hosts.listens_since_ms = None;
            return;
        }
        let since_ms = *hosts.listens_since_ms.get_or_insert(now_ms);
        let wait_ms = self.farm.peers.interval_ms.saturating_mul(REPORTS_BEFORE_FIRST);
        if self.lease_holds || now_ms.saturating_sub(since_ms) >= wait_ms {
            hosts.listens_since_ms = None;
            self.lease_holds = true;
            self.outputs.push_back(Output::Lease { ms: self.farm.lease_ms() });
        }
    }

    /// Updates this host's report. A changed report is sent soon.
    pub(super) fn send_own_report(&mut self) {
        let Some(hosts) = &self.hosts else { return };
        let mut servers = BTreeMap::new();
        for (at, service) in (0..BITS as u8).zip(self.farm.every_host()) {
            let name = ServerName { service: service.name.clone(), server: hosts.name.clone() };
            let listed = service.servers.iter().find(|listed| listed.name == name.server);
            servers.extend(
                listed.map(|listed| (at, self.hosted(&name, service, listed, hosts.peers.own_server(at)))),
            );
        }
        let load = u32::try_from(hosts.load.div_ceil(LOAD_UNIT)).unwrap_or(u32::MAX);
        let macs = self.links.values().copied().collect();
        let Some(hosts) = &mut self.hosts else { return };
        self.replan_wanted |= hosts.peers.set_own(OwnStatus { load, macs, servers });
    }

    /// Returns the report on this host's own server of a service. `before` is the report in force.
    fn hosted(
        &self,
        name: &ServerName,
        service: &Service,
        listed: &Server,
        before: Option<&HostedServer>,
    ) -> HostedServer {
        let own = self.pools.server(name);
        let weighing = policy::for_packets(service.policy).and_then(|packets| packets.weighing);
        let limit = u64::from(listed.max_connections);
        let active = || self.slots_by_identity().of(name).and_then(|slot| self.active.get(&slot).copied());
        // A host that would be full and not full in turn would change the tables of all hosts each
        // time, so some sessions have to end before it takes new ones again.
        let least =
            if before.is_some_and(|before| before.is_full) { limit - limit / FULL_UNTIL } else { limit };
        HostedServer {
            is_up: own.is_some_and(PoolServer::is_up),
            is_drained: self.operator.contains_key(name),
            weight: Some(listed.weight),
            tenths: own.map_or(FULL_WEIGHT, PoolServer::tenths),
            refuses: own.is_some_and(PoolServer::refuses),
            is_full: limit > 0 && active().is_some_and(|active| active >= least),
            load: own.zip(weighing).and_then(|(own, weighing)| own.load(weighing)),
        }
    }

    /// Returns the slots of this host itself.
    fn own_slots(&self) -> BTreeSet<u16> {
        self.plan.tables.vips.values().map(|vip| vip.own).filter(|own| *own != NO_SERVER).collect()
    }

    /// Updates how the hosts share the sessions that reach this host, for policies with `sharing`.
    /// Returns true if a share changed.
    fn share_out(&mut self, now_ms: u64) -> bool {
        let Some(hosts) = &self.hosts else { return false };
        let (mut known, mut wanted) = (None, Vec::new());
        for service in self.farm.every_host() {
            let sharing = policy::for_packets(service.policy).and_then(|packets| packets.sharing);
            let Some(new) = sharing else { continue };
            let known = known.get_or_insert_with(|| hosts.peers.hosts());
            let candidates = self.candidates(service, known, now_ms);
            wanted.push(((service.name.clone(), service.policy), new, candidates));
        }
        let Some(hosts) = &mut self.hosts else { return false };
        let (mut shares, mut sharings) = (BTreeMap::new(), BTreeMap::new());
        for (key, new, candidates) in wanted {
            let (names, candidates): (Vec<ServerName>, Vec<Candidate>) = candidates.into_iter().unzip();
            if candidates.iter().any(|candidate| candidate.own) {
                let mut sharing = hosts.sharings.remove(&key).unwrap_or_else(new);
                shares.extend(names.into_iter().zip(sharing.share_out(&candidates)));
                sharings.insert(key, sharing);
            }
        }
        hosts.sharings = sharings;
        let changed = hosts.shares != shares;
        hosts.shares = shares;
        changed
    }

    /// Returns the members that may get new sessions, with their signals.
    fn candidates(
        &self,
        service: &Service,
        known: &[KnownHost],
        now_ms: u64,
    ) -> Vec<(ServerName, Candidate)> {
        let slots = self.slots_by_identity();
        let members = self.usable_members(service, known).into_iter();
        let candidates = members.map(|Member { name, local, weight, .. }| {
            let name = ServerName { service: service.name.clone(), server: name };
            let server = self.pools.server(&name);
            let signals = self.signals(&name, server, slots.of(&name), known, now_ms);
            (name, Candidate { own: local, weight, signals })
        });
        candidates.collect()
    }

    /// Returns the members that may get new sessions. This host is always one of them.
    fn usable_members(&self, service: &Service, known: &[KnownHost]) -> Vec<Member> {
        let usable = |state: &MemberState| {
            state.member.local || state.health.state == HealthState::Up && !state.admin_draining
        };
        self.member_states(service, known).into_iter().filter(usable).map(|state| state.member).collect()
    }

    /// Returns the name of the host that a server of an `every-host` service runs on. `None` if
    /// that is this host, or if the service has another placement.
    pub fn other_host<'s>(&self, server: &'s ServerName) -> Option<&'s str> {
        let hosts = self.hosts.as_ref().filter(|_| self.place(&server.service).is_some())?;
        (hosts.name != server.server).then_some(server.server.as_str())
    }

    /// Applies the settings of a reloaded farm to the exchange of reports. Returns the notices to
    /// publish.
    pub(super) fn reconfigure_hosts(&mut self, now_ms: u64) -> Vec<PeerEvent> {
        let Some(hosts) = &mut self.hosts else { return Vec::new() };
        let settings = hosts::settings(&self.farm, &hosts.name, hosts.key);
        hosts.peers.reconfigure(settings, now_ms)
    }

    /// Resumes from the data plane of an earlier daemon. Takes over the hosts in its tables, and
    /// the addresses that this host answered ARP for.
    pub(super) fn resume_hosts(&mut self, running: &Tables, now_ms: u64) {
        let announced =
            running.vips.iter().filter(|(_, vip)| vip.announce && vip.own != NO_SERVER && self.lease_holds);
        let owned: BTreeSet<IpAddr> = announced.map(|(key, _)| key.address).collect();
        let serving = serving_hosts(&self.farm, running);
        if let Some(hosts) = self.hosts.as_mut().filter(|_| !serving.is_empty()) {
            hosts.adopted_macs.clone_from(&running.peers);
            hosts.peers.resume(now_ms, serving.into_iter(), &owned);
        }
    }

    /// Reports to the other hosts that this host leaves, and stops answering ARP for its addresses.
    /// This host still forwards packets until the new owners have taken over.
    pub(super) fn leave(&mut self, now_ms: u64) {
        let Some(hosts) = &mut self.hosts else { return };
        let sent = hosts.peers.leave(now_ms);
        self.outputs.extend(sent.into_iter().map(|(to, datagram)| Output::Send { to, datagram }));
        self.lease_holds = false;
        self.outputs.push_back(Output::Lease { ms: 0 });
    }
}

/// Returns the health of a host's own server from its report.
fn status(host: &KnownHost, hosted: Option<&HostedServer>) -> health::HealthStatus {
    let was_received = host.believed && host.received_ms.is_some();
    let state = match (host.alive, host.ready, hosted.is_some_and(|hosted| hosted.is_up)) {
        (true, true, true) => HealthState::Up,
        // A host that is alive but leaves or is not ready has not failed.
        (true, false, _) => HealthState::Unknown,
        (false, ..) if !was_received => HealthState::Unknown,
        _ => HealthState::Down,
    };
    health::HealthStatus { state, since_ms: host.since_ms, was_up: was_received }
}

/// Returns the hosts that get new sessions from a running data plane, with the servers that get
/// them.
fn serving_hosts<'a>(farm: &'a Farm, running: &Tables) -> BTreeMap<&'a str, BTreeMap<u8, HostedServer>> {
    let serving = running.servers.values().filter(|entry| entry.weight > 0);
    let serving: BTreeSet<u64> = serving.map(|entry| entry.identity).collect();
    let mut hosts = BTreeMap::<&str, BTreeMap<u8, HostedServer>>::new();
    for (at, service) in (0..BITS as u8).zip(farm.every_host()) {
        for server in &service.servers {
            // A host without any report gets no sessions, but doesn't count as failed.
            if serving.contains(&plan::identity(&service.name, &server.name)) {
                hosts.entry(&server.name).or_default().insert(at, HostedServer::HEALTHY);
            }
        }
    }
    hosts
}
