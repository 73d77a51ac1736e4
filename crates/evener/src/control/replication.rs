//! Sessions that directors tell each other, so that connections go on at another director
//! (docs/how-it-works/directors.md).

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use evener_core::farm::plan::Plan;
use evener_core::net::Protocol;
use evener_core::node::directors::{Directors, ReplicatedSession, SessionPlace};
use evener_core::path::affinity::AffinityClient;
use evener_core::path::sessions::{
    Lasting, LastingSessions, RefreshPeriods, Session, SessionKey, State, Value, ticks,
};
use evener_core::path::tables::{Forwarding, NO_SERVER, Tables, Vip, VipKey};

use super::executor::Executor;
use super::now_ms;

/// Time between two turns.
pub(super) const TURN: Duration = Duration::from_millis(20);
/// Number of turns in which all sessions are visited.
const TURNS: usize = 25;
/// Maximum number of sessions that are told in a turn, and of one network of clients: IPv4 /24,
/// IPv6 /56. The rest waits for the next visit.
const REPLICATED_MAX: u32 = 800;
const REPLICATED_BY_SOURCE_MAX: u16 = 80;
/// Number of counters of networks.
const SOURCES: usize = 1 << 12;
/// Time between two passes, in ticks.
const PASS: u32 = ticks(TURN.as_millis() as u64 * TURNS as u64);
/// Maximum number of passes after which told sessions are told again: five minutes, a third of the
/// default idle time of connections.
const REFRESH_PASSES: u32 = 600;
/// Number of buckets of a bulk that are read at once, and maximum number of such reads in a turn.
const BULK_BUCKETS: usize = 256;
const BULK_READS: usize = 6;

/// Finds the sessions to tell.
#[derive(Default)]
pub(super) struct SessionReplicator {
    lasting: LastingSessions,
    /// Next bucket to visit.
    next: usize,
    /// Number of the pass.
    pass: u32,
    replicated_by_source: Vec<u16>,
}

impl SessionReplicator {
    /// Visits the next part of the sessions, and tells those that have lasted or ended. Fills bulks
    /// that have room.
    pub(super) fn turn(&mut self, directors: &mut Directors, executor: &Executor) {
        let (tables, memory) = (executor.engine.tables(), executor.engine.plane.memory());
        let Some(tables) = tables.filter(|_| directors.has_listeners()) else { return };
        let (sessions, now) = (&memory.sessions, executor.engine.plane.now());
        let buckets = sessions.buckets();
        let Range { start, end } = self.next.min(buckets)..(self.next + buckets.div_ceil(TURNS)).min(buckets);
        let (periods, places) = (periods(tables), LazyCell::new(|| Places::of(tables)));
        self.replicated_by_source.clear();
        self.replicated_by_source.resize(SOURCES, 0);
        let (mut count_all, by_source) = (0, &mut self.replicated_by_source);
        self.lasting.visit(sessions, start..end, (now, self.pass), periods, |session, what| {
            let Some(place) = places.find(&session) else { return true };
            let source = by_source.get_mut(source_of(session.key.client));
            let source =
                source.filter(|count| **count < REPLICATED_BY_SOURCE_MAX && count_all < REPLICATED_MAX);
            let Some(count) = source else { return false };
            (*count, count_all) = (*count + 1, count_all + 1);
            directors.replicate(&of(&session, what, place));
            true
        });
        self.next = if end >= buckets { 0 } else { end };
        if self.next == 0 {
            self.pass = self.pass.wrapping_add(1);
        }
        let mut reads = 0..BULK_READS;
        while let Some((to, from)) = reads.next().and_then(|_| directors.bulks().first().copied()) {
            let end = (from + BULK_BUCKETS).min(buckets);
            let mut sessions_of_bulk = Vec::new();
            sessions.visit(from..end, now, |session| {
                let what = Lasting::of(session.value).filter(|what| *what != Lasting::Ended);
                if let Some((what, place)) = what.zip(places.find(&session)) {
                    sessions_of_bulk.push(of(&session, what, place));
                }
            });
            directors.replicate_bulk(to, &sessions_of_bulk, (end < buckets).then_some(end));
        }
    }
}

/// Returns the refresh periods: of each kind, a third of the shortest lifetime of all VIPs.
fn periods(tables: &Tables) -> RefreshPeriods {
    let of = |lifetime: &dyn Fn(&Vip) -> u32| {
        let shortest = tables.vips.values().map(lifetime).min().unwrap_or(u32::MAX);
        (shortest / 3 / PASS).clamp(1, REFRESH_PASSES)
    };
    RefreshPeriods {
        tcp: of(&|vip| vip.idle.tcp),
        udp: of(&|vip| vip.idle.udp),
        affinity: of(&|vip| vip.affinity.map_or(u32::MAX, |affinity| affinity.lifetime)),
    }
}

fn of(session: &Session, what: Lasting, place: SessionPlace) -> ReplicatedSession {
    let SessionKey { client, port, .. } = session.key;
    let port = if what == Lasting::Affinity { 0 } else { port };
    ReplicatedSession { what, client, port, place, mark: session.value.mark() }
}

fn source_of(client: IpAddr) -> usize {
    let network = match client {
        IpAddr::V4(client) => u64::from(client.to_bits() >> 8),
        IpAddr::V6(client) => (client.to_bits() >> 72) as u64,
    };
    (network.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % SOURCES
}

/// Places of sessions by names that all directors know.
struct Places<'a> {
    tables: &'a Tables,
    /// VIPs by their id.
    vips: BTreeMap<u16, (&'a VipKey, &'a Vip)>,
    /// One VIP of each service with affinity entries, by `vip` and `port` of their keys.
    of_entries: BTreeMap<(u16, u16), (&'a VipKey, &'a Vip)>,
}

impl<'a> Places<'a> {
    fn of(tables: &'a Tables) -> Places<'a> {
        let vips = || tables.vips.iter();
        let of_entries = vips().filter_map(|(key, vip)| Some((vip.entry_numbers()?, (key, vip))));
        let vips = vips().map(|(key, vip)| (vip.id, (key, vip)));
        Places { tables, vips: vips.collect(), of_entries: of_entries.collect() }
    }

    /// Returns the place of a session or affinity entry. `None` if a session can't move to another
    /// director: its replies come to a port of this one, or a connection is being read or moved
    /// here. Hosts of an every-host farm know each other's sessions otherwise.
    fn find(&self, session: &Session) -> Option<SessionPlace> {
        let is_entry = session.value.state() == State::Affinity;
        let (key, vip) = match is_entry {
            true => self.of_entries.get(&(session.key.vip, session.key.port))?,
            false => self.vips.get(&session.key.vip)?,
        };
        let server = self.tables.servers.get(&session.value.server())?;
        let is_bound = !is_entry && matches!(server.forwarding, Forwarding::Nat { source_nat: true, .. });
        let can_move = vip.own == NO_SERVER && !is_bound && !server.is_down() && !server.is_punt();
        can_move.then_some(SessionPlace { vip: **key, server: server.identity })
    }
}

/// Enters the sessions that other directors have told. Returns false while the tables change.
pub(super) fn enter(replicated: &[ReplicatedSession], executor: &Executor) -> bool {
    let (Some(tables), memory) = (executor.engine.tables(), executor.engine.plane.memory()) else {
        return false;
    };
    let (sessions, now) = (&memory.sessions, executor.engine.plane.now());
    let plan = executor.director.plan();
    let slots: BTreeMap<u64, u16> =
        tables.servers.iter().map(|(slot, server)| (server.identity, *slot)).collect();
    for one in replicated {
        let vip = tables.vips.get(&one.place.vip).filter(|vip| vip.own == NO_SERVER);
        let Some((vip, slot)) = vip.zip(slots.get(&one.place.server)) else { continue };
        if !serves(plan, vip.service, *slot) {
            continue;
        }
        if one.what == Lasting::Affinity {
            if let Some(client) = AffinityClient::of(vip, one.client, *sessions, memory.seed, now) {
                client.replicate(*slot);
            }
            continue;
        }
        let state = match one.place.vip.protocol {
            Protocol::Tcp => State::Replicated,
            Protocol::Udp => State::UdpReplicated,
        };
        let value = Value::new(*slot, state, now.wrapping_add(state.idle(&vip.idle))).with_mark(one.mark);
        let key = SessionKey { client: one.client, port: one.port, vip: vip.id };
        let hash = key.hash(memory.seed);
        let known = sessions.find(key, hash, now);
        match (known, one.what) {
            // A full table has no room for other directors' sessions.
            (None, Lasting::Lives) => drop(sessions.insert(key, hash, value, now)),
            (Some(found), Lasting::Lives) if found.value.state() == state => {
                sessions.change(found, value);
            }
            (Some(found), Lasting::Ended)
                if found.value.state() == state && found.value.server() == *slot =>
            {
                sessions.remove(found);
            }
            // This director has seen the session itself.
            (Some(_), _) | (None, Lasting::Ended | Lasting::Affinity) => {}
        }
    }
    true
}

/// True if a server belongs to a service.
fn serves(plan: &Plan, service: u16, slot: u16) -> bool {
    let name = plan.services.get(&service).map(|service| &service.name);
    name.zip(plan.servers.get(&slot)).is_some_and(|(name, server)| *name == server.service)
}

/// Progress of the entry into the farm's sessions.
pub(super) struct JoiningState {
    start_ms: u64,
    is_over: bool,
}

/// Time for which a director waits for the sessions of others.
const JOINING_MS: u64 = 10_000;

impl JoiningState {
    /// Begins, unless the sessions are those of the daemon before.
    pub(super) fn begin(has_sessions: bool) -> JoiningState {
        JoiningState { start_ms: now_ms(), is_over: has_sessions }
    }

    /// Returns why this director isn't ready yet, if so.
    pub(super) fn obstacle(&mut self, directors: Option<&Directors>) -> Option<String> {
        if self.is_over {
            return None;
        }
        let waits_for = directors.map(Directors::incomplete).unwrap_or_default();
        self.is_over |= waits_for.is_empty() || now_ms() >= self.start_ms + JOINING_MS;
        let others: Vec<String> = waits_for.iter().map(ToString::to_string).collect();
        (!self.is_over).then(|| {
            format!(
                "its sessions are being learned from director {}, for {} s at most",
                others.join(", "),
                JOINING_MS / 1_000
            )
        })
    }
}
