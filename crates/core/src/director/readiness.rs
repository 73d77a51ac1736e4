//! Whether the services of a director serve, by its snapshot: what a route or a virtual address in
//! front of it goes by.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::Snapshot;
use crate::pool::ServerState;

/// Servers that an obstacle names.
const NAMED_MAX: usize = 3;

/// Whether a service serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReadiness {
    /// The service's name.
    pub service: String,
    /// The service's addresses.
    pub addresses: Vec<SocketAddr>,
    /// Whether the daemon itself answers its clients, so that a data plane alone doesn't do.
    pub needs_daemon: bool,
    /// The reason in words, where the service doesn't serve.
    pub obstacle: Option<String>,
}

impl Snapshot {
    /// The services and groups. One serves if the tables in force have a server of it that works
    /// and takes new sessions; those that get sessions for want of a working one don't count.
    pub fn readiness(&self) -> Vec<ServiceReadiness> {
        let services = self.farm.services.iter().zip(&*self.services).map(|(service, shown)| {
            let servers = shown.servers.iter().map(|server| SeenServer {
                name: &server.name.server,
                state: server.state,
                is_reachable: server.slot.is_some(),
                reason: server.reason.as_deref(),
            });
            let addresses = service.addresses.clone();
            let obstacle = obstacle(servers);
            ServiceReadiness { service: service.name.clone(), addresses, needs_daemon: false, obstacle }
        });
        let groups = self.groups.iter().map(|shown| {
            let servers = shown.members.iter().map(|member| SeenServer {
                name: &member.name,
                state: member.state,
                is_reachable: true,
                reason: None,
            });
            let (service, addresses) = (shown.group.name.clone(), shown.group.addresses.clone());
            ServiceReadiness { service, addresses, needs_daemon: true, obstacle: obstacle(servers) }
        });
        services.chain(groups).collect()
    }
}

/// A server of a service, or a member of a group.
#[derive(Clone, Copy)]
struct SeenServer<'a> {
    name: &'a str,
    state: ServerState,
    /// Whether packets can be sent to it.
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
