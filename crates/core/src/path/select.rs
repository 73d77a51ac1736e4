//! Which server a new session gets, from the ring that a policy filled.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::path::sessions::FlowHash;
use crate::path::tables::{NO_SERVER, Pick, Ring, SERVICE_SERVERS_MAX, Tables};

/// What selection reads and moves on: the rings' cursors by service, active sessions by server slot.
#[derive(Clone, Copy, Debug)]
pub struct Counts<'a> {
    /// Where each service's ring stands; grows by one with each pick.
    pub cursors: &'a [AtomicU64],
    /// Active sessions of each server.
    pub active: &'a [AtomicU64],
}

/// Picks a server for a new session from ring `service`, or [`NO_SERVER`]. `hash` is
/// [`crate::path::sessions::SessionKey::ring_hash`].
pub fn select(tables: &Tables, counts: Counts<'_>, service: u16, pick: Pick, hash: FlowHash) -> u16 {
    draw(tables, counts, service, pick, hash, next)
}

/// The server that [`select`] would pick now. The ring's cursor stays where it is.
pub fn foretell(tables: &Tables, counts: Counts<'_>, service: u16, pick: Pick, hash: FlowHash) -> u16 {
    draw(tables, counts, service, pick, hash, standing)
}

fn draw(
    tables: &Tables,
    counts: Counts<'_>,
    service: u16,
    pick: Pick,
    hash: FlowHash,
    turn: fn(Counts<'_>, u16) -> u64,
) -> u16 {
    let Some(ring) = tables.rings.get(&service) else {
        return NO_SERVER;
    };
    match (pick, ring.order.len()) {
        (Pick::Hash, _) => by_hash(ring, hash),
        (Pick::Cursor | Pick::Least, 0) => NO_SERVER,
        (Pick::Cursor, len) => ring.order[(turn(counts, service) % len as u64) as usize],
        (Pick::Least, len) => {
            let len = len.min(SERVICE_SERVERS_MAX);
            least(tables, counts, ring, len, (turn(counts, service) % len as u64) as usize)
        }
    }
}

/// The server that the hash table names: the choice that needs no memory.
pub fn by_hash(ring: &Ring, hash: FlowHash) -> u16 {
    ring.hash.get(hash.hash_slot()).copied().unwrap_or(NO_SERVER)
}

/// The host that may know a flow that this one doesn't: see [`Ring::previous`].
pub fn by_previous(ring: &Ring, hash: FlowHash) -> u16 {
    ring.previous.get(hash.hash_slot()).copied().unwrap_or(NO_SERVER)
}

fn next(counts: Counts<'_>, service: u16) -> u64 {
    counts.cursors.get(usize::from(service)).map_or(0, |cursor| cursor.fetch_add(1, Relaxed))
}

fn standing(counts: Counts<'_>, service: u16) -> u64 {
    counts.cursors.get(usize::from(service)).map_or(0, |cursor| cursor.load(Relaxed))
}

/// Of the first `len` servers the one with the fewest active sessions for its weight. Looking begins at the cursor, so that
/// equals take turns.
fn least(tables: &Tables, counts: Counts<'_>, ring: &Ring, len: usize, start: usize) -> u16 {
    let mut best = NO_SERVER;
    let (mut best_active, mut best_weight) = (0, 0);
    for step in 0..len {
        let at = if start + step >= len { start + step - len } else { start + step };
        let slot = ring.order[at];
        let (Some(server), Some(active)) = (tables.servers.get(&slot), counts.active.get(usize::from(slot)))
        else {
            continue;
        };
        let (active, weight) = (active.load(Relaxed), u64::from(server.weight));
        // active / weight < best_active / best_weight, without dividing
        if best == NO_SERVER || active * best_weight < best_active * weight {
            (best, best_active, best_weight) = (slot, active, weight);
        }
    }
    best
}
