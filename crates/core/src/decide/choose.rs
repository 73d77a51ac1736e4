//! Which server a client's packet goes to: its session's, a new one's, or the hash's (LSMAC, section 3.1).

use super::{Memory, Reason};
use crate::farm::Protocol;
use crate::parse::Segment;
use crate::select::{by_hash, select};
use crate::sessions::{FlowHash, Found, Seed, SessionKey, State, Value};
use crate::tables::{NO_SERVER, Tables, Vip};
use crate::wire::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};

/// A packet of a session, on its way to the server or back.
pub(super) struct Flow<'a> {
    vip: &'a Vip,
    pub(super) key: SessionKey,
    pub(super) hash: FlowHash,
    udp: bool,
    flags: u8,
    pub(super) now: u32,
}

impl<'a> Flow<'a> {
    pub(super) fn new(seed: Seed, segment: &Segment, vip: &'a Vip, now: u32) -> Self {
        let key = SessionKey { client: segment.at.src, port: segment.src_port, vip: vip.id };
        Flow::of(key, seed, segment, vip, now)
    }

    pub(super) fn of(key: SessionKey, seed: Seed, segment: &Segment, vip: &'a Vip, now: u32) -> Self {
        let udp = segment.protocol == Protocol::Udp;
        Flow { vip, key, hash: key.hash(seed), udp, flags: segment.flags, now }
    }

    /// Whether this packet may begin a session: any of UDP's, a SYN without ACK of TCP's.
    fn opens(&self) -> bool {
        self.udp || self.flags & (TCP_SYN | TCP_ACK) == TCP_SYN
    }

    fn value(&self, server: u16, state: State) -> Value {
        Value::new(server, state, self.now.wrapping_add(state.idle(&self.vip.idle)))
    }

    /// A cache line written for every packet would travel between CPUs: every few seconds is enough, a 64th
    /// of the idle time at the most.
    pub(super) fn is_stale(&self, old: Value, new: Value) -> bool {
        let gained = new.expires().wrapping_sub(old.expires()) as i32;
        let step = (new.state().idle(&self.vip.idle) >> 6).min(1 << 12) as i32;
        (old.state(), old.server()) != (new.state(), new.server()) || gained > step
    }

    /// The server that the flow has without any memory of it.
    fn hash_choice(&self, tables: &Tables) -> u16 {
        tables.rings.get(&self.vip.service).map_or(NO_SERVER, |ring| by_hash(ring, self.hash))
    }
}

/// What was chosen.
pub(super) struct Choice {
    pub(super) server: u16,
    pub(super) new_session: bool,
    pub(super) beside: Option<Reason>,
    /// The session as it now is; `None` if there is none.
    pub(super) session: Option<Value>,
}

impl Choice {
    fn unnoted(server: u16, new_session: bool, beside: Option<Reason>) -> Choice {
        Choice { server, new_session, beside, session: None }
    }
}

pub(super) fn choose(tables: &Tables, memory: &Memory<'_>, flow: &Flow<'_>) -> Choice {
    let found = memory.sessions.find(flow.key, flow.hash, flow.now);
    match found {
        Some(found) if !chooses_anew(tables, flow, found.value) => {
            let session = Some(follow(memory, flow, found));
            Choice { server: found.value.server(), new_session: false, beside: None, session }
        }
        _ if !flow.opens() => Choice::unnoted(flow.hash_choice(tables), false, Some(Reason::NoSession)),
        _ => open(tables, memory, flow, found),
    }
}

/// Whether a packet gets a new choice although its session is known: the server is gone; a client's
/// port is used again while the old connection closes; or a first try meets a server that has failed.
fn chooses_anew(tables: &Tables, flow: &Flow<'_>, value: Value) -> bool {
    let Some(server) = tables.servers.get(&value.server()) else {
        return true;
    };
    flow.opens()
        && match value.state() {
            State::Closing => true,
            State::New | State::Udp => !server.up,
            State::Free | State::Claimed | State::Established => false,
        }
}

/// Keeps a session alive and moves its state on, whichever side the packet is from.
pub(super) fn follow(memory: &Memory<'_>, flow: &Flow<'_>, found: Found<'_>) -> Value {
    let was = found.value.state();
    let state = match was {
        State::New | State::Established if flow.flags & (TCP_FIN | TCP_RST) != 0 => State::Closing,
        State::New if flow.flags & TCP_SYN == 0 => State::Established,
        same => same,
    };
    let value = flow.value(found.value.server(), state);
    if flow.is_stale(found.value, value) {
        memory.sessions.change(found, value);
    }
    value
}

/// Begins a session, in the place of `found` if there was one.
fn open(tables: &Tables, memory: &Memory<'_>, flow: &Flow<'_>, found: Option<Found<'_>>) -> Choice {
    let server = select(tables, memory.counts, flow.vip, flow.hash);
    if server == NO_SERVER {
        return Choice::unnoted(server, false, None);
    }
    let value = flow.value(server, if flow.udp { State::Udp } else { State::New });
    let unnoted = match found {
        // Changed by another CPU meanwhile: that one's choice is the session's.
        Some(found) => (!memory.sessions.change(found, value)).then_some(Reason::NoSession),
        None => memory.sessions.insert(flow.key, flow.hash, value, flow.now).err().map(|_| Reason::TableFull),
    };
    match unnoted {
        None => Choice { server, new_session: true, beside: None, session: Some(value) },
        // The hash is what the flow's next packets will find as well.
        beside => Choice::unnoted(flow.hash_choice(tables), true, beside),
    }
}
