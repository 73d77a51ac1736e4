//! Selects a server for a client's packet: the server of the packet's session, by policy for a new
//! session, or by the hash table (LSMAC, section 3.1).

use super::flow::Flow;
use super::follow::{PacketSide, first_mark};
use super::{Decide, Reason};
use crate::path::affinity::AffinityClient;
use crate::path::arrival::Arrival;
use crate::path::select::{by_hash, by_previous, select};
use crate::path::sessions::{FlowHash, FoundSession, SessionKey, State, Value};
use crate::path::tables::{ALL_FULL, Forwarding, NO_SERVER, Ring, ServerEntry, Vip};

/// Server selected for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selected {
    /// The server's slot, [`NO_SERVER`] or [`ALL_FULL`].
    pub server: u16,
    /// Session that the packet opens.
    pub opens: Opens,
    /// Reason of the selection that is counted besides the verdict's reason: [`Reason::TableFull`],
    /// [`Reason::NoSession`], [`Reason::SecondChance`], [`Reason::Punted`] or
    /// [`Reason::RouteMismatch`].
    pub also_counted: Option<Reason>,
    /// Value of the packet's session after this packet. `None` without a session.
    pub(super) session: Option<Value>,
}

/// Session that a packet opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// The packet opens no session.
    Nothing,
    /// The packet opens a session on a server that the service's policy selects.
    Session,
    /// The packet opens a session on a server that the client's request selects (method `handoff`).
    Request {
        /// Number of the route. `None` if no route matched.
        route: Option<u16>,
    },
}

impl Selected {
    /// Selection of no server.
    pub const NONE: Selected = Selected::of(NO_SERVER);

    pub(super) const fn of(server: u16) -> Selected {
        Selected { server, opens: Opens::Nothing, also_counted: None, session: None }
    }
}

/// True if a session decides the destination of its packet. A packet that another host forwarded is
/// for this host, even if the session on this host names a third host.
pub(super) fn session_applies(arrival: Arrival, vip: &Vip, session: Value) -> bool {
    arrival == Arrival::Direct || session.server() == vip.own
}

/// Returns the side for a client's packet. Replies pass this host if the server's forwarding is
/// NAT.
pub(super) fn client_side(server: Option<&ServerEntry>) -> PacketSide {
    PacketSide::Client {
        sees_answers: server.is_some_and(|server| matches!(server.forwarding, Forwarding::Nat { .. })),
    }
}

impl Decide<'_, '_> {
    /// Selects the server of a client's packet.
    pub(super) fn choose(&self, flow: &Flow<'_>) -> Selected {
        let found = self.memory.sessions.find(flow.key, flow.hash, flow.now);
        let applies = |session: &FoundSession<'_>| {
            session_applies(flow.arrival, flow.vip, session.value)
                && !self.selects_new_server(flow, session.value)
        };
        if let Some(session) = found.filter(applies) {
            let server = session.value.server();
            let value = self.follow(flow, client_side(self.tables.servers.get(&server)), session);
            if value.state().is_assured() && !session.value.state().is_assured() {
                self.record_client(flow, server);
            }
            return Selected { session: Some(value), ..Selected::of(server) };
        }
        match flow.opens() {
            true => self.open_session(flow, found),
            false => self.select_without_session(flow.vip, flow.key, flow.arrival),
        }
    }

    /// Selects the server of a packet that has no session and opens none.
    ///
    /// The hash table names the server. If the table names this host, or another host has forwarded
    /// the packet, this host doesn't know the flow. The flow may be older than the last change of
    /// hosts. So the packet gets a second chance: it goes to the host in [`Ring::previous`], which
    /// serves the packet.
    pub(super) fn select_without_session(&self, vip: &Vip, key: SessionKey, arrival: Arrival) -> Selected {
        let counted = |server, reason| Selected { also_counted: Some(reason), ..Selected::of(server) };
        let Some(ring) = self.tables.rings.get(&vip.service) else {
            return counted(vip.own, Reason::NoSession);
        };
        let hash = vip.ring_hash(key, self.memory.ring_seed);
        if arrival == Arrival::Direct {
            let server = self.by_tables(vip, ring, hash);
            if server == NO_SERVER || server != vip.own {
                // In a stateless service a missing session is normal, so it is not counted.
                return if vip.stateless { Selected::of(server) } else { counted(server, Reason::NoSession) };
            }
        }
        if arrival != Arrival::PassedTwice {
            let server = by_previous(ring, hash);
            if self.tables.servers.get(&server).is_some_and(|server| !server.local) {
                return counted(server, Reason::SecondChance);
            }
        }
        counted(vip.own, Reason::NoSession)
    }

    /// Returns the server of a flow without a session. A director uses [`Ring::previous`], the
    /// table that ignores drains, so that directors agree even if their operators have drained
    /// different servers.
    fn by_tables(&self, vip: &Vip, ring: &Ring, hash: FlowHash) -> u16 {
        let previous = by_previous(ring, hash);
        let goes_by_previous = vip.own == NO_SERVER && self.tables.servers.contains_key(&previous);
        if goes_by_previous { previous } else { by_hash(ring, hash) }
    }

    /// True if a packet that has a session selects a new server. The session's server may be gone.
    /// Or the packet may open a session, and the old connection has ended or the server has failed.
    ///
    /// Unless the connection has ended, a SYN stays with the session's server while the server
    /// accepts new sessions. Otherwise an attacker's RST and SYN would move an open connection.
    /// Packets of a stateless service follow the hash.
    pub(super) fn selects_new_server(&self, flow: &Flow<'_>, value: Value) -> bool {
        let Some(server) = self.tables.servers.get(&value.server()) else {
            return true;
        };
        flow.opens()
            && match value.state() {
                _ if value.has_ended() => true,
                State::New
                | State::Answered
                | State::UdpNew
                | State::UdpAnswered
                | State::Udp
                | State::UdpReplicated => !server.up,
                State::HalfClosed | State::ServerClosed => {
                    flow.vip.stateless || !server.up || server.weight == 0
                }
                State::Free
                | State::Claimed
                | State::Established
                | State::Replicated
                | State::Closing
                | State::Affinity => false,
            }
    }

    /// True if an open session must survive a SYN that another host seems to have forwarded. Any
    /// host on the link can forge such a frame.
    fn stands(&self, flow: &Flow<'_>, value: Value) -> bool {
        let is_open = value.state().is_assured() || value.state().is_ending() && !value.has_ended();
        is_open
            && !session_applies(flow.arrival, flow.vip, value)
            && self.tables.servers.contains_key(&value.server())
    }

    /// Opens a session, and replaces `found` if there is one.
    fn open_session(&self, flow: &Flow<'_>, found: Option<FoundSession<'_>>) -> Selected {
        let ring_hash = flow.vip.ring_hash(flow.key, self.memory.ring_seed);
        let server = match flow.arrival {
            Arrival::Direct => self.former_server(flow).unwrap_or_else(|| {
                select(self.tables, self.memory.counts, flow.vip.service, flow.vip.pick, ring_hash)
            }),
            Arrival::Passed | Arrival::PassedTwice => flow.vip.own,
        };
        if server == NO_SERVER
            || server == ALL_FULL
            || found.is_some_and(|session| self.stands(flow, session.value))
        {
            return Selected::of(server);
        }
        let state = if flow.is_udp() { State::UdpNew } else { State::New };
        let value = flow.value(server, state).with_mark(first_mark(flow));
        let selected = Selected { opens: Opens::Session, ..Selected::of(server) };
        // A packet that follows the hash needs no session (Distributed Packet Rewriting, section
        // 3). But an old session that contradicts the hash must be changed.
        if flow.vip.stateless && server != flow.vip.own && found.is_none() {
            return selected;
        }
        let Err(reason) = self.put_session(flow, found, value) else {
            return Selected { session: Some(value), ..selected };
        };
        let server = match self.tables.rings.get(&flow.vip.service) {
            // Without a session, this is the server that the flow's next packets find.
            Some(ring) if flow.arrival == Arrival::Direct => self.by_tables(flow.vip, ring, ring_hash),
            None if flow.arrival == Arrival::Direct => NO_SERVER,
            _ => server,
        };
        Selected { server, also_counted: Some(reason), ..selected }
    }

    fn affinity_client(&self, flow: &Flow<'_>) -> Option<AffinityClient<'_>> {
        AffinityClient::of(flow.vip, flow.key.client, self.memory.sessions, self.memory.seed, flow.now)
    }

    /// Returns the server of the client's former sessions, if it accepts a new one.
    fn former_server(&self, flow: &Flow<'_>) -> Option<u16> {
        self.affinity_client(flow)?.server(self.tables, self.memory.counts)
    }

    /// Records the server of a client who has just completed a handshake, for the client's next
    /// sessions.
    fn record_client(&self, flow: &Flow<'_>, server: u16) {
        if let Some(client) = self.affinity_client(flow) {
            client.record(self.tables, server);
        }
    }

    /// Writes a flow's new session, and replaces `found` if there is one.
    ///
    /// # Errors
    /// [`Reason::NoSession`] if another CPU changed `found` in the meantime. The other CPU's change
    /// stands. [`Reason::TableFull`] if there is no room for a new session.
    pub(super) fn put_session(
        &self,
        flow: &Flow<'_>,
        found: Option<FoundSession<'_>>,
        value: Value,
    ) -> Result<(), Reason> {
        let sessions = &self.memory.sessions;
        match found {
            Some(session) if sessions.change(session, value) => Ok(()),
            Some(_) => Err(Reason::NoSession),
            None => sessions.insert(flow.key, flow.hash, value, flow.now).map_err(|_| Reason::TableFull),
        }
    }
}
