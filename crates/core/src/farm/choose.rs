//! Selection of the server for a new connection outside of the data plane, with the reason.
//!
//! The data plane selects the server for a packet, by the same tables. This module selects the
//! server for a request that the daemon has read, for a later request on an open connection, for
//! another node, and for an operator's query.

use core::net::SocketAddr;

use super::plan::{Plan, ServerName};
use crate::path::content::RequestKey;
use crate::path::decide::Memory;
use crate::path::select::{Counts, peek, select};
use crate::path::sessions::{FlowHash, SessionKey};
use crate::path::tables::{Pick, Tables, Vip};

/// Client and request of the connection that needs a server.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionRequest<'a> {
    /// Address and port of the client, if known.
    pub client: Option<SocketAddr>,
    pub content: RequestContent<'a>,
    /// Server named before for this connection, by the dispatching node or by an earlier selection.
    pub named: Option<u16>,
}

/// Content of a client's request. It matters only for services that hand over connections.
#[derive(Clone, Copy, Debug)]
pub enum RequestContent<'a> {
    /// The request was not read.
    Unread,
    /// The request was read. The content is normalised.
    Key(RequestKey<'a>),
    /// The caller has looked up the request in the routes in force, since a lookup in many routes
    /// takes time.
    Routed {
        /// Index of the route; `None` if no route matches.
        route: Option<u16>,
        /// Ring of the servers that may serve the request.
        ring: u16,
    },
}

/// Server selected for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenServer<'p> {
    pub server: u16,
    pub name: &'p ServerName,
    /// Index of the route that matched, if any.
    pub route: Option<u16>,
    /// Reason of the selection.
    pub why: ChoiceReason,
}

/// Reason why a server was selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceReason {
    /// The server was named before and may serve the connection.
    Named,
    /// The flow's hash names this slot of the hash table.
    Hash { slot: usize },
    /// The server was the next one in the ring.
    Turn,
    /// The server has the fewest active sessions for its weight.
    Least,
    /// The flow's hash names this slot of the hash table, which has two candidates. The server is
    /// the one with less load.
    Two { slot: usize },
}

/// Reason why no server was selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoServerReason {
    /// The selection depends on the request, which was not read.
    Unread,
    /// The selection depends on the client's address and port, which are unknown.
    Unnamed,
    /// No server that may serve the connection takes new sessions.
    NoServer,
}

/// Function that selects a server of a ring: [`select`] or [`peek`].
type SelectFn = fn(&Tables, Counts<'_>, u16, Pick, FlowHash) -> u16;

impl Plan {
    /// Selects the server for a new connection to an address of a service, and advances the cursor
    /// of the ring. The data plane would select the same server for the first packet of the
    /// connection.
    ///
    /// # Errors
    /// There is no server, for the returned reason.
    pub fn choose(
        &self,
        memory: &Memory<'_>,
        vip: &Vip,
        request: &ConnectionRequest<'_>,
    ) -> Result<ChosenServer<'_>, NoServerReason> {
        self.draw(memory, vip, request, select)
    }

    /// Returns the server that [`Plan::choose`] would select now, without advancing the cursor of
    /// the ring.
    ///
    /// # Errors
    /// There is no server, for the returned reason.
    pub fn peek(
        &self,
        memory: &Memory<'_>,
        vip: &Vip,
        request: &ConnectionRequest<'_>,
    ) -> Result<ChosenServer<'_>, NoServerReason> {
        self.draw(memory, vip, request, peek)
    }

    fn draw(
        &self,
        memory: &Memory<'_>,
        vip: &Vip,
        request: &ConnectionRequest<'_>,
        draw: SelectFn,
    ) -> Result<ChosenServer<'_>, NoServerReason> {
        let (route, ring) = self.ring(vip, request.content)?;
        let (server, why) = match (request.named.filter(|server| self.is_in(*server, ring)), request.client) {
            (Some(named), _) => (named, ChoiceReason::Named),
            (None, None) if matches!(vip.pick, Pick::Hash | Pick::Two) => {
                return Err(NoServerReason::Unnamed);
            }
            (None, client) => {
                let key = client.map(|at| SessionKey { client: at.ip(), port: at.port(), vip: vip.id });
                let hash = key.map_or(FlowHash(0), |key| vip.ring_hash(key, memory.ring_seed));
                let why = match vip.pick {
                    Pick::Hash => ChoiceReason::Hash { slot: hash.hash_slot() },
                    Pick::Cursor => ChoiceReason::Turn,
                    Pick::Least => ChoiceReason::Least,
                    Pick::Two => ChoiceReason::Two { slot: hash.hash_slot() },
                };
                (draw(&self.tables, memory.counts, ring, vip.pick, hash), why)
            }
        };
        let known = self.servers.get(&server).filter(|_| self.tables.servers.contains_key(&server));
        known.map(|name| ChosenServer { server, name, route, why }).ok_or(NoServerReason::NoServer)
    }

    /// Returns the route that matches a request, and the ring of the servers that may serve the
    /// request.
    fn ring(&self, vip: &Vip, content: RequestContent<'_>) -> Result<(Option<u16>, u16), NoServerReason> {
        match (self.tables.routes.get(&vip.service), content) {
            // If the service has no routes, the selection does not depend on the request.
            (None, _) => Ok((None, vip.service)),
            (Some(_), RequestContent::Unread) => Err(NoServerReason::Unread),
            (Some(routes), RequestContent::Key(key)) => Ok(routes.find_all(&key)),
            (Some(_), RequestContent::Routed { route, ring }) => Ok((route, ring)),
        }
    }

    /// True if a ring contains this server.
    fn is_in(&self, server: u16, ring: u16) -> bool {
        let planned = self.services.get(&ring).or_else(|| self.pools.get(&ring));
        planned.is_some_and(|planned| {
            planned.ring_members.iter().any(|one| one.slot == server && one.weight > 0)
        })
    }
}
