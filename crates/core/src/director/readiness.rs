//! Readiness of services, computed from a snapshot. Routing daemons and VRRP use it to announce or
//! withdraw a service's addresses.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::Snapshot;
use crate::farm::Announce;
use crate::pool::ServerState;

/// Maximum number of servers named in [`ServiceReadiness::obstacle`].
const NAMED_MAX: usize = 3;

/// Readiness of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReadiness {
    pub service: String,
    pub addresses: Vec<SocketAddr>,
    /// True if a routing daemon announces the addresses while they are ready.
    pub needs_route: bool,
    /// True if the daemon itself answers clients, so that the data plane alone is not enough.
    pub needs_daemon: bool,
    /// Reason in words why the service is not ready; `None` if the service is ready.
    pub obstacle: Option<String>,
}

impl Snapshot {
    /// Returns the readiness of services and groups. A service is ready if the tables in force have
    /// a working server that takes new sessions. Servers that get sessions only because the service
    /// is degraded do not count. A group is ready if a member works.
    pub fn readiness(&self) -> Vec<ServiceReadiness> {
        let services = self.farm.services.iter().zip(&*self.services).map(|(service, shown)| {
            let servers = shown.servers.iter().map(|server| SeenServer {
                name: &server.name.server,
                state: server.state,
                is_reachable: server.slot.is_some(),
                reason: server.reason.as_deref(),
            });
            let addresses = service.addresses.clone();
            let (service, needs_route) = (service.name.clone(), service.announce == Announce::Route);
            ServiceReadiness {
                service,
                addresses,
                needs_route,
                needs_daemon: false,
                obstacle: obstacle(servers),
            }
        });
        let groups = self.groups.iter().map(|shown| {
            let servers = shown.members.iter().map(|member| SeenServer {
                name: &member.name,
                state: member.state,
                is_reachable: true,
                reason: None,
            });
            let (service, addresses) = (shown.group.name.clone(), shown.group.addresses.clone());
            let obstacle = obstacle(servers);
            ServiceReadiness { service, addresses, needs_route: false, needs_daemon: true, obstacle }
        });
        services.chain(groups).collect()
    }
}

/// Server of a service or member of a group.
#[derive(Clone, Copy)]
struct SeenServer<'a> {
    name: &'a str,
    state: ServerState,
    /// True if packets can be sent to the server.
    is_reachable: bool,
    reason: Option<&'a str>,
}

fn obstacle<'a>(servers: impl Iterator<Item = SeenServer<'a>> + Clone) -> Option<String> {
    let works = |server: SeenServer<'_>| server.state == ServerState::Up && server.is_reachable;
    if servers.clone().any(works) {
        return None;
    }
    let count = servers.clone().count();
    if count == 0 {
        return Some("it has no server".to_string());
    }
    let mut parts: Vec<String> = servers.take(NAMED_MAX).map(|server| in_words(&server)).collect();
    if count > NAMED_MAX {
        parts.push(format!("{} more", count - NAMED_MAX));
    }
    Some(format!("no server works: {}", parts.join(", ")))
}

fn in_words(server: &SeenServer<'_>) -> String {
    let SeenServer { name, state, is_reachable, reason } = server;
    match (state, reason) {
        (ServerState::Up, _) if !is_reachable => format!("{name} can't be reached"),
        (state, Some(reason)) => format!("{name} is {} ({reason})", state.name()),
        (state, None) => format!("{name} is {}", state.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, state: ServerState) -> SeenServer<'_> {
        SeenServer { name, state, is_reachable: true, reason: None }
    }

    fn found<const N: usize>(servers: [(&str, ServerState); N]) -> Option<String> {
        obstacle(servers.iter().map(|(name, state)| server(name, *state)))
    }

    #[test]
    fn one_working_server_is_enough() {
        assert_eq!(found([("a", ServerState::Down), ("b", ServerState::Up)]), None);
    }

    #[test]
    fn obstacle_names_three_servers_and_counts_the_rest() {
        let down = ServerState::Down;
        assert_eq!(found([]).as_deref(), Some("it has no server"));
        let servers =
            [("a", down), ("b", ServerState::Draining), ("c", ServerState::Maintenance), ("d", down)];
        let words = "no server works: a is down, b is draining, c is maintenance, 1 more";
        assert_eq!(found(servers).as_deref(), Some(words));
    }

    #[test]
    fn working_server_that_cannot_be_reached_is_an_obstacle() {
        let far = SeenServer { is_reachable: false, ..server("a", ServerState::Up) };
        let words = obstacle([far].into_iter());
        assert_eq!(words.as_deref(), Some("no server works: a can't be reached"));
    }
}
