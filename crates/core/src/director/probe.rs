//! Starts due probes and applies their results. A probe takes the path of clients' packets where
//! the method permits it. With `nat`, and to this host itself, it passes through this host's stack.

use alloc::string::String;
use core::net::{IpAddr, SocketAddr};

use super::{
    Adjacency, Director, Event, LoadQuery, Moment, Output, Probe, ProbePath, Target, why_not_itself,
};
use crate::farm::Service;
use crate::farm::membership::Member;
use crate::farm::plan::ServerName;
use crate::net::wire::Mac;
use crate::pool::health::Failure;
use crate::pool::{Effect, Fact, HealthKind, ServerChange};

impl Director {
    /// Starts the probes and report queries that are due, and applies changes that depend on time
    /// alone.
    pub(super) fn run_due_checks(&mut self, now: Moment) {
        for (server, due) in self.pools.poll(now.clocks()) {
            // Each host of an every-host farm queries only its own server.
            if due.query && self.other_host(&server).is_none() {
                self.request_load(&server);
            }
            self.follow_change(&server, due.change);
            if due.probe {
                self.probe(server, now.ms);
            }
        }
    }

    /// Applies the result of a probe or a report query.
    pub(super) fn learn(&mut self, server: &ServerName, fact: Fact, now_ms: u64) {
        if let Some(change) = self.pools.apply_fact(server, fact, now_ms) {
            self.follow_change(server, change);
        }
    }

    pub(super) fn follow_change(&mut self, server: &ServerName, change: ServerChange) {
        self.scores.has_news |= change.effect >= Effect::Load;
        self.replan_wanted |= change.effect >= Effect::Weight;
        self.has_changed |= change.effect >= Effect::Weight;
        for event in change.events {
            self.emit(Event::of_server(server.clone(), event));
        }
        if change.effect >= Effect::Weight {
            self.send_own_report();
        }
    }

    fn probe(&mut self, server: ServerName, now_ms: u64) {
        let service = self.farm.service(&server.service);
        match self.target(&server).zip(service) {
            Some((target, service)) => {
                let handed_over = service.method.hands_over();
                let settings = service.health.clone();
                self.outputs.push_back(Output::Probe(Probe { server, target, handed_over, settings }));
            }
            None => {
                let failure = not_found(service);
                self.learn(&server, Fact::Probed(Err(failure)), now_ms);
            }
        }
    }

    fn request_load(&mut self, server: &ServerName) {
        let settings = self.farm.service(&server.service).and_then(|service| service.report.clone());
        let member = self.membership.member(&server.service, &server.server);
        let to = member.and_then(|member| member.address.or_else(|| self.known_address(&member)));
        if let Some((settings, to)) = settings.zip(to) {
            let to = SocketAddr::new(to, settings.port);
            self.outputs.push_back(Output::LoadQuery(LoadQuery { server: server.clone(), to, settings }));
        }
    }

    /// Reason why this host can't answer clients as this member. `None` if it can, or if the member
    /// is another host.
    pub(super) fn why_not_here(&self, service: &Service, member: &Member) -> Option<String> {
        member.local.then(|| why_not_itself(service, &member.name, &self.network))?
    }

    fn target(&self, name: &ServerName) -> Option<Target> {
        let service = self.farm.service(&name.service)?;
        let member = self.membership.member(&name.service, &name.server)?;
        service.addresses.iter().find_map(|address| {
            let destination = service.probe_address(*address);
            let way = self.probe_way(service, &member, destination)?;
            Some(Target { destination, way })
        })
    }

    /// Returns the path of a probe to a server: that of clients' packets, except with `nat` and to
    /// this host.
    fn probe_way(&self, service: &Service, member: &Member, destination: SocketAddr) -> Option<ProbePath> {
        let vip = destination.ip();
        if service.method.translates() && !member.local {
            let port = service.health.port.or(service.server_port(&member.name))?;
            let listed = service.servers.iter().find(|listed| listed.name == member.name);
            let address = listed.and_then(|listed| listed.health_address).or(member.address)?;
            return Some(ProbePath::Direct { to: SocketAddr::new(address, port) });
        }
        if let Some(way) = self.handed_to_itself(service, member, vip) {
            return Some(way);
        }
        if member.local {
            // If this host is the server, it answers from the service address when its stack has
            // that address, else from its own.
            let own = member.address.filter(|_| !self.network.is_local(vip)).unwrap_or(vip);
            return Some(ProbePath::Local { to: SocketAddr::new(own, destination.port()) });
        }
        let (mac, ifindex) = (member.mac?, member.ifindex?);
        let hop = Adjacency { ifindex, mac, own_mac: *self.links.get(&ifindex)? };
        let beyond = service.goes_by_link() && member.hop.is_some_and(|hop| !hop.on_link);
        if service.method.encapsulates() || beyond {
            let (to, from) = (member.address?, member.hop?.tunnel);
            let source = if from.is_ipv4() == vip.is_ipv4() {
                Some(from)
            } else {
                self.network.source_for(ifindex, vip)
            };
            let encapsulation = service.encapsulation;
            return Some(ProbePath::Tunnel { hop, source: source?, encapsulation, from, to });
        }
        // The source is an address of this host on the server's link. If that interface has no
        // address, another address of this host is used, which the server reaches by routing. An
        // ARP probe resolves the server's own address, whose family may differ from the service's.
        let by_arp = service.health.kind == HealthKind::Arp;
        let fits = |address: &IpAddr| by_arp || address.is_ipv4() == vip.is_ipv4();
        let towards = member.address.filter(fits).unwrap_or(vip);
        let source = self.network.source_for(ifindex, towards)?;
        Some(ProbePath::Link { hop, source, server: member.address })
    }

    /// Returns the path of a probe that hands off a connection to this host itself, in an
    /// every-host farm. This path is the loopback interface.
    fn handed_to_itself(&self, service: &Service, member: &Member, vip: IpAddr) -> Option<ProbePath> {
        if !service.method.hands_over() || !service.is_on_every_host() || !member.local {
            return None;
        }
        let (&ifindex, _) = self.network.interfaces.iter().find(|(_, found)| found.loopback)?;
        let own = member.address.filter(|own| own.is_ipv4() == vip.is_ipv4());
        let mut links = self.links.keys();
        let source = own.or_else(|| links.find_map(|link| self.network.source_for(*link, vip)))?;
        let hop = Adjacency { ifindex, mac: Mac::default(), own_mac: Mac::default() };
        Some(ProbePath::Link { hop, source, server: member.address })
    }
}

/// True if the member can be probed. True for this host itself, and for a server if its MAC address
/// or that of its next hop is known. In an every-host farm each host probes only itself.
pub(super) fn can_be_probed(service: &Service, member: &Member) -> bool {
    member.local || member.mac.is_some() && !service.is_on_every_host()
}

/// Reason why a server can't be probed.
fn not_found(service: Option<&Service>) -> Failure {
    let ipv4 = |service: &Service| service.addresses.first().is_none_or(SocketAddr::is_ipv4);
    match service {
        Some(service) if !service.method.needs_link_layer() => Failure::NoWay,
        Some(service) if !ipv4(service) => Failure::NoNeighbour,
        _ => Failure::NoArp,
    }
}
