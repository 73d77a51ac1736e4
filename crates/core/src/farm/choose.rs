//! Which server a new connection gets, and why: one function for all who ask.
//!
//! The data plane chooses for packets, by the same tables. This module makes the choices that it
//! leaves open: for the process that reads requests, for a later request on an open connection, by
//! another node, and by people who want to know beforehand.

use core::net::SocketAddr;

use super::plan::{Plan, ServerName};
use crate::path::content::RequestKey;
use crate::path::decide::Memory;
use crate::path::select::{Counts, peek, select};
use crate::path::sessions::{FlowHash, SessionKey};
use crate::path::tables::{Pick, Tables, Vip};

/// A client and its request.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionRequest<'a> {
    /// The client's address and port, if they are known.
    pub client: Option<SocketAddr>,
    /// Its content.
    pub content: RequestContent<'a>,
    /// The server that was named for it already: by a node that decides for all, or when it was
    /// asked before.
    pub named: Option<u16>,
}

/// The content of a client's request. It matters to services that hand connections over, and to no
/// others.
#[derive(Clone, Copy, Debug)]
pub enum RequestContent<'a> {
    /// Nobody has read it.
    Unread,
    /// As it was read, in its normal form.
    Key(RequestKey<'a>),
    /// The same by the routes in force: looking through many of them takes a while, and was done
    /// elsewhere.
    Routed {
        /// Counted from 0; `None` where no route takes it.
        route: Option<u16>,
        /// The ring of the servers that may have it.
        ring: u16,
    },
}

/// The server for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenServer<'p> {
    /// Its slot.
    pub server: u16,
    /// Its name.
    pub name: &'p ServerName,
    /// The route that says who may have it, counted from 0.
    pub route: Option<u16>,
    /// Why it and none of the others that may.
    pub why: ChoiceReason,
}

/// Why a server was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceReason {
    /// It was named already, and may have the connection.
    Named,
    /// The client's address and port fall in this slot of the hash table.
    Hash {
        /// Its number.
        slot: usize,
    },
    /// It is its turn.
    Turn,
    /// It has the fewest active sessions for its weight.
    Least,
    /// It is the better of the two that the client's address and port name, in this slot of the
    /// hash table.
    Two {
        /// Its number.
        slot: usize,
    },
}

/// Why there is no server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoServerReason {
    /// It depends on what the client asks for, which isn't known.
    Unread,
    /// It depends on the client's address and port, which aren't known.
    Unnamed,
    /// None of those that may have it takes new sessions.
    NoServer,
}

/// How one of a ring's servers is drawn: [`select`] or [`foretell`].
type SelectFn = fn(&Tables, Counts<'_>, u16, Pick, FlowHash) -> u16;

impl Plan {
    /// The server for a new connection to an address of a service, which has its turn with that:
    /// the one that the data plane gives to the first packet of such a connection.
    ///
    /// # Errors
    /// Why there is none.
    pub fn choose(
        &self,
        memory: &Memory<'_>,
        vip: &Vip,
        request: &ConnectionRequest<'_>,
    ) -> Result<ChosenServer<'_>, NoServerReason> {
        self.draw(memory, vip, request, select)
    }

    /// The server that [`Plan::choose`] would give now. Nobody's turn is over by that.
    ///
    /// # Errors
    /// Why there is none.
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
                let hash = key.map_or(FlowHash(0), |key| key.ring_hash(memory.ring_seed));
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

    /// The route that takes a request, and the ring of the servers that may have it.
    fn ring(&self, vip: &Vip, content: RequestContent<'_>) -> Result<(Option<u16>, u16), NoServerReason> {
        match (self.tables.routes.get(&vip.service), content) {
            // Nobody looks at what is asked for.
            (None, _) => Ok((None, vip.service)),
            (Some(_), RequestContent::Unread) => Err(NoServerReason::Unread),
            (Some(routes), RequestContent::Key(key)) => Ok(routes.find_all(&key)),
            (Some(_), RequestContent::Routed { route, ring }) => Ok((route, ring)),
        }
    }

    /// Whether a server is one of those that a ring is drawn from.
    fn is_in(&self, server: u16, ring: u16) -> bool {
        let planned = self.services.get(&ring).or_else(|| self.pools.get(&ring));
        planned.is_some_and(|planned| {
            planned.ring_members.iter().any(|one| one.slot == server && one.weight > 0)
        })
    }
}
