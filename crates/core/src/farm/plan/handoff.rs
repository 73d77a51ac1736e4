//! Tables of a service that hands off connections: routes, a ring for each set of servers in
//! routes, and the slots for punted and for held packets.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::members::{configured, members_by};
use super::rings::{self, RingPolicy};
use super::{MemberState, PlannedService, Planner, ServiceState, WeightedServer, digest, forwarding};
use crate::farm::{self, RouteList};
use crate::net::tcp::TCP_LEN;
use crate::net::wire::Mac;
use crate::path::content::{HashKey, RouteIndex, RoutePattern};
use crate::path::cookie::mss_min;
use crate::path::mark::PUNTED;
use crate::path::rewrite::outer_len;
use crate::path::tables::{Forwarding, Handoff, NO_SERVER, RehandoffMode, ServerEntry};
use crate::pool::policy::Weighted;
use crate::pool::serving::ServingRule;

/// Default and maximum MTU of the paths to servers, in bytes.
const MTU: u16 = 1500;

/// Returns the parameters with which this host accepts connections of the service.
pub(super) fn terms(state: &ServiceState<'_>, v6: bool, own: HandoffSlots) -> Handoff {
    let header_len = if v6 { 40 } else { 20 } + TCP_LEN;
    let overhead = |member: &MemberState| match forwarding::forwarding(state.service, &member.member)? {
        Forwarding::Tunnel { encapsulation, to, mtu, mark, .. } => {
            Some(usize::from(mtu) - outer_len(encapsulation, to, mark.is_some()))
        }
        _ => member.member.hop.map(|hop| usize::from(hop.mtu)),
    };
    let most =
        state.members.iter().filter_map(overhead).min().unwrap_or(usize::from(MTU)).min(usize::from(MTU));
    Handoff {
        mss: (most.saturating_sub(header_len) as u16).max(mss_min(v6)),
        punt: own.punt,
        held: own.held,
        later: state.service.later_requests,
    }
}

/// Slots of a service that belong to no server. A slot is [`NO_SERVER`] if no slot was left.
#[derive(Clone, Copy)]
pub(super) struct HandoffSlots {
    /// Slot of this host's own process, which reads punted packets.
    punt: u16,
    /// Slot of connections that no host owns. Their packets are held.
    held: u16,
}

/// Input of compiled routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompiledRoutes {
    routes: RouteList,
    /// Number of the ring of each set of servers; `None` if no number was left.
    rings: Vec<Option<u16>>,
}

impl Planner<'_> {
    /// Adds the routes of service `number` to the tables. Returns the input of the compiled routes,
    /// and the slots that belong to no server.
    pub(super) fn hand_off(
        &mut self,
        state: &ServiceState<'_>,
        number: u16,
        servers: &[WeightedServer<'_>],
        members: &RingPolicy<'_>,
    ) -> (CompiledRoutes, HandoffSlots) {
        let service = state.service;
        self.pool(service, number, |_| true);
        let sets = service.routes.sets().iter();
        let rings = sets.map(|names| self.set_of_servers(state, names, number, servers, members)).collect();
        let compiled = CompiledRoutes { routes: service.routes.clone(), rings };
        let routes = self.compile(number, &compiled);
        self.tables.routes.insert(number, routes);
        if !self.hosts.reads_punted {
            return (compiled, HandoffSlots { punt: NO_SERVER, held: NO_SERVER });
        }
        // No interface leads to this slot, so its packets are buffered.
        let held = self.place(service, "held", false).unwrap_or(NO_SERVER);
        (compiled, HandoffSlots { punt: self.place(service, "punt", true).unwrap_or(NO_SERVER), held })
    }

    /// Returns the compiled routes. If the input is unchanged, returns the previous routes, so that
    /// nothing is compiled or compared twice.
    fn compile(&self, number: u16, compiled: &CompiledRoutes) -> Arc<RouteIndex> {
        let key = HashKey::new(self.hosts.seed);
        let known = self.previous.and_then(|previous| {
            let before = previous.services.get(&number)?.compiled.as_ref()?;
            let is_same = before.routes.is(&compiled.routes) && before.rings == compiled.rings;
            previous.tables.routes.get(&number).filter(|known| is_same && known.key == key)
        });
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let ring = |set: usize| compiled.rings.get(set).copied().flatten();
        let routes = compiled.routes.with_sets().map(|(route, set)| RoutePattern {
            host: route.host.clone(),
            path: route.path.clone(),
            methods: route.methods.clone(),
            // A route without a ring has no servers. The check of the farm file reports this.
            ring: ring(set).unwrap_or(u16::MAX),
        });
        let routes = RouteIndex::compile(&routes.collect::<Vec<_>>(), number, key);
        let known = self.previous.and_then(|previous| previous.tables.routes.get(&number));
        match known {
            Some(known) if **known == routes => Arc::clone(known),
            _ => Arc::new(routes),
        }
    }

    /// Adds the ring of a set of servers. Returns its number, or `None` if no number is left.
    fn set_of_servers(
        &mut self,
        state: &ServiceState<'_>,
        names: &[String],
        number: u16,
        servers: &[WeightedServer<'_>],
        of_service: &RingPolicy<'_>,
    ) -> Option<u16> {
        let service = state.service;
        let is_named = |server: &String| names.binary_search(server).is_ok();
        let of_set =
            |one: &&Weighted| self.plan.servers.get(&one.slot).is_some_and(|name| is_named(&name.server));
        let mut members: Vec<Weighted> = of_service.chosen.iter().filter(of_set).copied().collect();
        if members.is_empty() {
            // While no other server of the set can serve, backups of the set serve. The service's
            // other servers don't matter.
            let of_set = servers.iter().filter(|server| is_named(&server.state.member.name));
            (members, _) = members_by(ServingRule::default(), of_set);
        }
        let shares: Vec<Weighted> = of_service.shares.iter().filter(of_set).copied().collect();
        let shares = if shares.iter().any(|one| one.weight > 0) { shares } else { members.clone() };
        let ring = self.slots.pool(number, names)?;
        let configured = configured(state, servers, &members, is_named);
        let among = RingPolicy {
            configured: &configured,
            working: &members,
            chosen: &members,
            shares: &shares,
            ..*of_service
        };
        self.tables.rings.insert(ring, rings::ring(self.previous, self.fills, ring, &among, None));
        let planned = PlannedService {
            name: service.name.clone(),
            policy: service.policy,
            working: members.clone(),
            ring_members: members,
            configured,
            shares,
            degraded: false,
            standing: None,
            compiled: None,
        };
        self.plan.pools.insert(ring, planned);
        self.pool(service, ring, is_named);
        Some(ring)
    }

    /// Records which servers answer a ring's requests, if the service reads later requests on open
    /// connections.
    fn pool(&mut self, service: &farm::Service, ring: u16, is_one: impl Fn(&String) -> bool) {
        if service.later_requests == RehandoffMode::Stay {
            return;
        }
        let named = self.plan.servers.iter().filter(|(_, name)| name.service == service.name);
        for (slot, _) in named.filter(|(_, name)| is_one(&name.server)) {
            *self.tables.pools.entry(*slot).or_default() |= 1 << ring;
        }
    }

    /// Returns a slot of the service that belongs to no server.
    fn place(&mut self, service: &farm::Service, what: &str, local: bool) -> Option<u16> {
        // No server has the identity of this name, since no server's name begins with a slash.
        let identity = digest(&format!("{}//{what}", service.name));
        let slot = self.slots.server(identity)?;
        let entry = ServerEntry {
            identity,
            mac: if local { PUNTED } else { Mac::default() },
            ifindex: 0,
            weight: 1,
            up: true,
            local,
            forwarding: Forwarding::Link,
        };
        self.tables.servers.insert(slot, entry);
        if service.later_requests != RehandoffMode::Stay {
            self.tables.pools.insert(slot, u64::MAX);
        }
        Some(slot)
    }
}
