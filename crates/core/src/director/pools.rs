//! The pools of services: each a pool of the servers that its membership has, by their names.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::operator::OperatorStates;
use crate::farm::Service;
use crate::farm::plan::{ServerName, identity};
use crate::pool::health::{self, HealthStatus};
use crate::pool::{DueChecks, Fact, Pool, PoolServer, PoolSettings, ServerChange};

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    pools: BTreeMap<String, ServicePool>,
}

/// The servers of a service, and how they are looked after.
#[derive(Clone, Debug)]
struct ServicePool {
    settings: Arc<PoolSettings>,
    servers: Pool<String>,
}

/// A server that a pool is to have.
pub(super) struct DesiredServer {
    pub(super) name: String,
    /// Whether a probe can be sent to it.
    pub(super) is_reachable: bool,
}

impl Pools {
    /// Goes on with the services of another farm; what is known of servers that stay is kept.
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

    /// Goes on with these servers of a service, in the order of their names. Those that come to a
    /// farm in force are new.
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

    /// A server.
    pub(super) fn server(&self, name: &ServerName) -> Option<&PoolServer> {
        self.pools.get(&name.service)?.servers.get(&name.server)
    }

    /// How a server is by its probes.
    pub(super) fn status(&self, name: &ServerName) -> Option<HealthStatus> {
        self.server(name).map(|server| server.health().status())
    }

    /// How many servers there are.
    pub(super) fn len(&self) -> usize {
        self.pools.values().map(|pool| pool.servers.values().len()).sum()
    }

    /// Whether every server that can be probed was.
    pub(super) fn are_settled(&self) -> bool {
        let mut servers = self.pools.values().flat_map(|pool| pool.servers.values());
        servers.all(|server| {
            let health = server.health();
            let is_probed = health.is_reachable() && !server.operator_state().is_suspended();
            !is_probed || health.status().state != health::HealthState::Unknown
        })
    }

    /// When [`Pools::poll`] has something to do, in milliseconds.
    pub(super) fn next_at(&self) -> u64 {
        self.pools.values().map(|pool| pool.servers.next_at()).min().unwrap_or(u64::MAX)
    }

    /// The questions due now.
    pub(super) fn poll(&mut self, now_ms: u64) -> Vec<(ServerName, DueChecks)> {
        let due = self.pools.iter_mut().flat_map(|(service, pool)| {
            let named = |(server, due)| (ServerName { service: service.clone(), server }, due);
            pool.servers.poll(now_ms).into_iter().map(named)
        });
        due.collect()
    }

    /// Takes in what came of a question to a server; nothing where it is none any more.
    pub(super) fn apply_fact(&mut self, name: &ServerName, fact: Fact, now_ms: u64) -> Option<ServerChange> {
        self.pools.get_mut(&name.service)?.servers.apply_fact(&name.server, fact, now_ms)
    }

    /// Whether it is out of service so.
    pub(super) fn is_ejected(&self, name: &ServerName, now_ms: u64) -> bool {
        self.server(name).is_some_and(|server| server.health().is_ejected(now_ms))
    }

    /// Changes a server, if a pool has it.
    pub(super) fn change<T>(
        &mut self,
        name: &ServerName,
        change: impl FnOnce(&mut PoolServer) -> T,
    ) -> Option<T> {
        self.pools.get_mut(&name.service)?.servers.change(&name.server, change)
    }
}
