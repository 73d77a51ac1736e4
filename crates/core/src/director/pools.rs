//! Pools of services. Each service has one pool, with the servers of its membership by name.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::operator::OperatorStates;
use crate::farm::Service;
use crate::farm::plan::{ServerName, identity};
use crate::pool::health::{self, HealthStatus};
use crate::pool::{ClockReading, DueChecks, Fact, Pool, PoolServer, PoolSettings, ServerChange};

#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    pools: BTreeMap<String, ServicePool>,
}

/// Servers of a service with their settings.
#[derive(Clone, Debug)]
struct ServicePool {
    settings: Arc<PoolSettings>,
    servers: Pool<String>,
}

/// A server that a pool must have.
pub(super) struct DesiredServer {
    pub(super) name: String,
    /// True if a probe can be sent to the server.
    pub(super) is_reachable: bool,
}

impl Pools {
    /// Applies the services of a reloaded farm. Servers of services that the new farm still has
    /// keep their state.
    pub(super) fn reload(&mut self, services: &[Service], now_ms: u64) {
        let mut known = core::mem::take(&mut self.pools);
        for service in services {
            let Service { health, report, slow_start_ms, .. } = service;
            let settings = Arc::new(PoolSettings::of(health, report.as_ref(), *slow_start_ms));
            let mut servers = Pool::default();
            if let Some(before) = known.remove(&service.name) {
                servers = before.servers;
                if before.settings != settings {
                    let seed = |server: &String| identity(&service.name, server);
                    for (name, server) in servers.iter_mut() {
                        server.reconfigure(&settings, seed(name), now_ms);
                    }
                }
            }
            self.pools.insert(service.name.clone(), ServicePool { settings, servers });
        }
    }

    /// Applies the servers of a service, sorted by name. Servers that are added to a farm in force
    /// are new, so they get few sessions at first (slow start).
    pub(super) fn follow(
        &mut self,
        service: &str,
        servers: &[DesiredServer],
        operator: &OperatorStates,
        is_in_force: bool,
        now_ms: u64,
    ) {
        let Some(pool) = self.pools.get_mut(service) else { return };
        pool.servers.follow(servers.iter().map(|server| server.name.clone()), |server| {
            let mut new = PoolServer::new(&pool.settings, identity(service, server), now_ms, is_in_force);
            let name = ServerName { service: service.into(), server: server.clone() };
            new.set_operator_state(operator.get(&name).copied().unwrap_or_default(), now_ms);
            new
        });
        for DesiredServer { name, is_reachable } in servers {
            pool.servers.change(name, |server| server.set_reachable(*is_reachable));
        }
    }

    pub(super) fn server(&self, name: &ServerName) -> Option<&PoolServer> {
        self.pools.get(&name.service)?.servers.get(&name.server)
    }

    /// Health of a server by its probes; `None` if no pool has the server.
    pub(super) fn status(&self, name: &ServerName) -> Option<HealthStatus> {
        self.server(name).map(|server| server.health().status())
    }

    pub(super) fn len(&self) -> usize {
        self.pools.values().map(|pool| pool.servers.values().len()).sum()
    }

    /// True if every server that can be probed and is not suspended has a probe result.
    pub(super) fn are_settled(&self) -> bool {
        let mut servers = self.pools.values().flat_map(|pool| pool.servers.values());
        servers.all(|server| {
            let health = server.health();
            let is_probed = health.is_reachable() && !server.operator_state().is_suspended();
            !is_probed || health.status().state != health::HealthState::Unknown
        })
    }

    /// Time of the next work for [`Pools::poll`], in milliseconds.
    pub(super) fn next_at(&self) -> u64 {
        self.pools.values().map(|pool| pool.servers.next_at()).min().unwrap_or(u64::MAX)
    }

    pub(super) fn poll(&mut self, now: ClockReading) -> Vec<(ServerName, DueChecks)> {
        let due = self.pools.iter_mut().flat_map(|(service, pool)| {
            let named = |(server, due)| (ServerName { service: service.clone(), server }, due);
            pool.servers.poll(now).into_iter().map(named)
        });
        due.collect()
    }

    /// Applies the result of a check. Returns the change of the server, or `None` if the server was
    /// removed.
    pub(super) fn apply_fact(&mut self, name: &ServerName, fact: Fact, now_ms: u64) -> Option<ServerChange> {
        self.pools.get_mut(&name.service)?.servers.apply_fact(&name.server, fact, now_ms)
    }

    pub(super) fn is_ejected(&self, name: &ServerName, now_ms: u64) -> bool {
        self.server(name).is_some_and(|server| server.health().is_ejected(now_ms))
    }

    pub(super) fn change<T>(
        &mut self,
        name: &ServerName,
        change: impl FnOnce(&mut PoolServer) -> T,
    ) -> Option<T> {
        self.pools.get_mut(&name.service)?.servers.change(&name.server, change)
    }
}
