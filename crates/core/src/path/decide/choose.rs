//! Which server a client's packet goes to: its session's, a new one's, or the hash's (LSMAC,
//! section 3.1).

use super::flow::Flow;
use super::follow::{PacketSide, first_mark, follow, has_ended};
use super::{Memory, Reason};
use crate::path::arrival::Arrival;
use crate::path::select::{by_hash, by_previous, select};
use crate::path::sessions::{FlowHash, FoundSession, SessionKey, State, Value};
use crate::path::tables::{ALL_FULL, Forwarding, NO_SERVER, Ring, ServerEntry, Tables, Vip};

/// The choice.
pub(super) struct Selected {
    pub(super) server: u16,
    pub(super) new_session: bool,
    pub(super) also_counted: Option<Reason>,
    /// The session as it now is; `None` if there is none.
    pub(super) session: Option<Value>,
}

impl Selected {
    fn unnoted(server: u16, new_session: bool, also_counted: Option<Reason>) -> Selected {
        Selected { server, new_session, also_counted, session: None }
    }
}

pub(super) fn choose(tables: &Tables, memory: &Memory<'_>, flow: &Flow<'_>) -> Selected {
    let found = memory.sessions.find(flow.key, flow.hash, flow.now);
    match found {
        Some(found)
            if session_applies(flow.arrival, flow.vip, found.value)
                && !chooses_anew(tables, flow, found.value) =>
        {
            let server = tables.servers.get(&found.value.server());
            let session = Some(follow(memory, flow, client_side(server), found));
            Selected { server: found.value.server(), new_session: false, also_counted: None, session }
        }
        _ if !flow.opens() => {
            let (server, also_counted) =
                select_without_session(tables, memory, flow.vip, flow.key, flow.arrival);
            Selected::unnoted(server, false, also_counted)
        }
        _ => open(tables, memory, flow, found),
    }
}

/// Whether a session says where a packet goes. The host that passed the packet on means this host,
/// and knows better than a note here of another one.
pub(super) fn session_applies(arrival: Arrival, vip: &Vip, session: Value) -> bool {
    arrival == Arrival::Direct || session.server() == vip.own
}

/// The server of a packet that no session is known of and that begins none, and what to count
/// beside.
///
/// It is the one that the tables name. Where that is this host itself, which knows nothing of
/// the flow either, or another host has gone by that already, the flow may be older than the last
/// change of hosts: it gets a second chance with the host that the hash table named before, and
/// that one keeps it.
pub(super) fn select_without_session(
    tables: &Tables,
    memory: &Memory<'_>,
    vip: &Vip,
    key: SessionKey,
    arrival: Arrival,
) -> (u16, Option<Reason>) {
    let Some(ring) = tables.rings.get(&vip.service) else {
        return (vip.own, Some(Reason::NoSession));
    };
    let hash = key.ring_hash(memory.ring_seed);
    if arrival == Arrival::Direct {
        let server = by_tables(tables, vip, ring, hash);
        if server == NO_SERVER || server != vip.own {
            // A stateless service needs no session.
            return (server, (!vip.stateless).then_some(Reason::NoSession));
        }
    }
    if arrival != Arrival::PassedTwice {
        let server = by_previous(ring, hash);
        if tables.servers.get(&server).is_some_and(|server| !server.local) {
            return (server, Some(Reason::SecondChance));
        }
    }
    (vip.own, Some(Reason::NoSession))
}

/// The server of a flow without a session. On a director it is the one of before the last drain, so
/// that directors agree about it whatever their operators have drained.
fn by_tables(tables: &Tables, vip: &Vip, ring: &Ring, hash: FlowHash) -> u16 {
    let older = by_previous(ring, hash);
    if vip.own == NO_SERVER && tables.servers.contains_key(&older) { older } else { by_hash(ring, hash) }
}

/// A client's packet, and whether its server's answers come by here.
pub(super) fn client_side(server: Option<&ServerEntry>) -> PacketSide {
    PacketSide::Client {
        sees_answers: server.is_some_and(|server| matches!(server.forwarding, Forwarding::Nat { .. })),
    }
}

/// Whether a packet gets a new choice although its session is known: the server is gone; a client's
/// port is used again after the old connection; or a first try meets a server that has failed.
///
/// Where it isn't plausible that the client has closed, its port stays with the server while that
/// takes new sessions: a stranger's RST and SYN would else move a connection that is open. Packets
/// of a stateless service go by the hash.
pub(super) fn chooses_anew(tables: &Tables, flow: &Flow<'_>, value: Value) -> bool {
    let Some(server) = tables.servers.get(&value.server()) else {
        return true;
    };
    flow.opens()
        && match value.state() {
            _ if has_ended(value) => true,
            State::New | State::Answered | State::UdpNew | State::UdpAnswered | State::Udp => !server.up,
            State::HalfClosed | State::ServerClosed => flow.vip.stateless || !server.up || server.weight == 0,
            State::Free | State::Claimed | State::Established | State::Closing => false,
        }
}

/// Whether a session stands against a SYN that another host seems to have passed on for this one.
/// Anybody on the link can write such a frame; a connection that is open goes on as before.
fn stands(tables: &Tables, flow: &Flow<'_>, value: Value) -> bool {
    let is_open = value.state().is_assured() || value.state().is_ending() && !has_ended(value);
    is_open && !session_applies(flow.arrival, flow.vip, value) && tables.servers.contains_key(&value.server())
}

/// Begins a session, in the place of `found` if there was one.
fn open(tables: &Tables, memory: &Memory<'_>, flow: &Flow<'_>, found: Option<FoundSession<'_>>) -> Selected {
    let ring_hash = flow.key.ring_hash(memory.ring_seed);
    let server = match flow.arrival {
        Arrival::Direct => select(tables, memory.counts, flow.vip.service, flow.vip.pick, ring_hash),
        Arrival::Passed | Arrival::PassedTwice => flow.vip.own,
    };
    if server == NO_SERVER || server == ALL_FULL {
        return Selected::unnoted(server, false, None);
    }
    if found.is_some_and(|found| stands(tables, flow, found.value)) {
        return Selected::unnoted(server, false, None);
    }
    let state = if flow.udp { State::UdpNew } else { State::New };
    let value = flow.value(server, state).with_mark(first_mark(flow));
    let unnoted = match found {
        // Changed by another CPU meanwhile: that one's choice is the session's.
        Some(found) => (!memory.sessions.change(found, value)).then_some(Reason::NoSession),
        // A packet that was passed on goes by the hash (Distributed Packet Rewriting, section 3).
        // Only an old session must not stand against that, so it is changed above.
        None if flow.vip.stateless && server != flow.vip.own => return Selected::unnoted(server, true, None),
        None => memory.sessions.insert(flow.key, flow.hash, value, flow.now).err().map(|_| Reason::TableFull),
    };
    match unnoted {
        None => Selected { server, new_session: true, also_counted: None, session: Some(value) },
        // The entry that the flow's next packets will find as well.
        also_counted if flow.arrival != Arrival::Direct => Selected::unnoted(server, true, also_counted),
        also_counted => {
            let ring = tables.rings.get(&flow.vip.service);
            let by_tables = |ring| by_tables(tables, flow.vip, ring, ring_hash);
            Selected::unnoted(ring.map_or(NO_SERVER, |ring| by_tables(ring)), true, also_counted)
        }
    }
}
