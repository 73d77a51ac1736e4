//! What a service that hands connections over has besides: routes, a ring for each set of servers that they name, and
//! the process that is asked.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::rings::{self, Members};
use super::slots::pool_names;
use super::{MemberState, PlannedService, Planner, ServiceState, digest, ways};
use crate::farm;
use crate::farm::policy::Weighted;
use crate::net::wire::Mac;
use crate::path::arrival::PUNTED;
use crate::path::content::{HashKey, Route, Routes};
use crate::path::cookie::mss_min;
use crate::path::parse::TCP_LEN;
use crate::path::rewrite::outer_len;
use crate::path::tables::{Forwarding, Handoff, Later, NO_SERVER, ServerEntry};

/// The longest packet of a link that says nothing else.
const MTU: u16 = 1500;

/// How the connections of a service are accepted.
pub(super) fn terms(state: &ServiceState<'_>, v6: bool, own: Places) -> Handoff {
    let header_len = if v6 { 40 } else { 20 } + TCP_LEN;
    let room = |member: &MemberState| match ways::way(state.service, &member.member)? {
        Forwarding::Tunnel { encapsulation, to, mtu, mark, .. } => {
            Some(usize::from(mtu) - outer_len(encapsulation, to, mark.is_some()))
        }
        _ => member.member.hop.map(|hop| usize::from(hop.mtu)),
    };
    let most = state.members.iter().filter_map(room).min().unwrap_or(usize::from(MTU)).min(usize::from(MTU));
    Handoff {
        mss: (most.saturating_sub(header_len) as u16).max(mss_min(v6)),
        punt: own.punt,
        held: own.held,
        later: state.service.later_requests,
    }
}

/// Slots of a service that stand for none of its servers; [`NO_SERVER`] for what there is not.
#[derive(Clone, Copy)]
pub(super) struct Places {
    /// For this host's own process, which is asked.
    punt: u16,
    /// For nobody.
    held: u16,
}

impl Planner<'_> {
    /// Lays out the routes of service `number`; the slots that stand for no server of its.
    pub(super) fn hand_off(
        &mut self,
        state: &ServiceState<'_>,
        number: u16,
        members: &Members<'_>,
    ) -> Places {
        let service = state.service;
        self.pool(service, number, |_| true);
        let routes: Vec<Route> =
            service.routes.iter().map(|route| self.route(service, route, number, members)).collect();
        let routes = Routes::compile(&routes, number, HashKey::new(self.hosts.seed));
        let known = self.previous.and_then(|previous| previous.tables.routes.get(&number));
        // The same again is the same object: nothing has to be compared twice.
        let routes = match known {
            Some(known) if **known == routes => Arc::clone(known),
            _ => Arc::new(routes),
        };
        self.plan.tables.routes.insert(number, routes);
        if !self.hosts.asks {
            return Places { punt: NO_SERVER, held: NO_SERVER };
        }
        // No interface leads there: what is for it is kept back.
        let held = self.place(service, "held", false).unwrap_or(NO_SERVER);
        Places { punt: self.place(service, "asked", true).unwrap_or(NO_SERVER), held }
    }

    fn route(
        &mut self,
        service: &farm::Service,
        route: &farm::Route,
        number: u16,
        of_service: &Members<'_>,
    ) -> Route {
        let names = pool_names(route);
        let of_route = |one: &&Weighted| {
            self.plan.servers.get(&one.slot).is_some_and(|server| names.contains(&server.server))
        };
        let members: Vec<Weighted> = of_service.chosen.iter().filter(of_route).copied().collect();
        let shares: Vec<Weighted> = of_service.shares.iter().filter(of_route).copied().collect();
        let shares = if shares.iter().any(|one| one.weight > 0) { shares } else { members.clone() };
        // Without room the route is as if it had no servers: an operator is told by `check`.
        let ring = self.slots.pool(number, &names);
        if let Some(ring) = ring.filter(|ring| !self.plan.tables.rings.contains_key(ring)) {
            let policy = of_service.policy;
            let among = Members { policy, chosen: &members, shares: &shares };
            self.plan.tables.rings.insert(ring, rings::ring(self.previous, self.fills, ring, &among, None));
            let planned = PlannedService {
                name: service.name.clone(),
                policy: policy.name(),
                ring_members: members,
                shares,
                degraded: false,
                standing: None,
            };
            self.plan.pools.insert(ring, planned);
        }
        if let Some(ring) = ring {
            self.pool(service, ring, |server| names.iter().any(|name| name == server));
        }
        Route {
            host: route.host.clone(),
            path: route.path.clone(),
            methods: route.methods.clone(),
            ring: ring.unwrap_or(u16::MAX),
        }
    }

    /// Notes that these servers of a service answer a ring's requests, where it matters on connections that are open.
    fn pool(&mut self, service: &farm::Service, ring: u16, is_one: impl Fn(&str) -> bool) {
        if service.later_requests == Later::Stay {
            return;
        }
        let named = self.plan.servers.iter().filter(|(_, name)| name.service == service.name);
        for (slot, _) in named.filter(|(_, name)| is_one(&name.server)) {
            *self.plan.tables.pools.entry(*slot).or_default() |= 1 << ring;
        }
    }

    /// A slot that stands for no server of the service.
    fn place(&mut self, service: &farm::Service, what: &str, local: bool) -> Option<u16> {
        // No server is called so.
        let identity = digest(&format!("{}//{what}", service.name));
        let slot = self.slots.server(identity)?;
        let entry = ServerEntry {
            identity,
            mac: if local { PUNTED } else { Mac::default() },
            ifindex: 0,
            weight: 1,
            up: true,
            local,
            way: Forwarding::Link,
        };
        self.plan.tables.servers.insert(slot, entry);
        if service.later_requests != Later::Stay {
            self.plan.tables.pools.insert(slot, u64::MAX);
        }
        Some(slot)
    }
}
