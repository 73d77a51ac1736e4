//! Rings of a service, and tables for flows without a session. On a director, such a table includes
//! drained servers. In an every-host farm it contains second chances: the hosts that get a packet
//! which another host has forwarded to this host because of a different table.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::hint::select_unpredictable;

use super::Plan;
use crate::path::tables::{NO_SERVER, Pick, Ring, SERVER_SLOTS, place};
use crate::pool::policy::{Fills, PacketPolicy, Weighted, second_candidates};

/// Policy and members of a ring.
pub(super) struct RingPolicy<'a> {
    /// Name of the policy.
    pub(super) policy: &'static str,
    pub(super) packets: &'static PacketPolicy,
    /// Members and all servers that may replace them, with configured weights.
    pub(super) configured: &'a [Weighted],
    /// Configured servers that work, even if drained.
    pub(super) working: &'a [Weighted],
    /// Members with the weights that all hosts know.
    pub(super) chosen: &'a [Weighted],
    /// Members with their shares of the load that reaches this host.
    pub(super) shares: &'a [Weighted],
}

/// Bit of an entry that was already a second chance in the previous table.
const KEPT: u16 = SERVER_SLOTS as u16;

/// This host among the servers of a service, and the last hops to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnPlace {
    /// Slot of this host.
    pub(super) own: u16,
    /// Last hops: by the slot of each other reachable host, the slot of its second entry. A packet
    /// that is forwarded by the second entry must not be forwarded again.
    pub(super) last_hops: BTreeMap<u16, u16>,
}

/// Returns the ring of service `number`, reusing unchanged parts of the previous plan.
pub(super) fn ring(
    previous: Option<&Plan>,
    fills: &mut Fills,
    number: u16,
    members: &RingPolicy<'_>,
    standing: Option<&OwnPlace>,
) -> Arc<Ring> {
    let known = previous.and_then(|previous| previous.tables.rings.get(&number));
    let before = previous
        .and_then(|previous| previous.services.get(&number).or(previous.pools.get(&number)))
        .filter(|before| before.policy == members.policy && before.ring_members == members.chosen)
        .filter(|before| before.configured == members.configured);
    let order = known.filter(|_| before.is_some_and(|before| before.shares == members.shares));
    let hash = known.filter(|_| before.is_some());
    // If neither the members nor the last hops have changed, the second chances are the same, too.
    if let Some(known) = order
        && before
            .is_some_and(|before| before.standing.as_ref() == standing && before.working == members.working)
    {
        return Arc::clone(known);
    }
    let same_hash = hash;
    let table = || fills.table(members.configured, members.chosen);
    let hash = same_hash.map_or_else(table, |known| Arc::clone(&known.hash));
    let order = order.map_or_else(|| (members.packets.order)(members.shares), |known| known.order.clone());
    let second = match (members.packets.pick, same_hash) {
        (Pick::Two, Some(known)) => Arc::clone(&known.second),
        (Pick::Two, None) => second_candidates(&hash),
        _ => Arc::default(),
    };
    let previous = match standing {
        Some(standing) => second_chances(known.map(|known| &**known), &hash, standing),
        None => of_older_flows(fills, members, &hash),
    };
    Arc::new(Ring { previous, order, hash, second })
}

/// Returns the table for flows without a session; empty if it equals the hash table in force.
fn of_older_flows(fills: &mut Fills, members: &RingPolicy<'_>, hash: &Arc<[u16]>) -> Arc<[u16]> {
    if members.working == members.chosen {
        return Arc::default();
    }
    let older = fills.table(members.configured, members.working);
    if older == *hash { Arc::default() } else { older }
}

/// Returns the second chances. For each slot of the hash table, this is the host for packets that
/// another host has forwarded to this host because its table is newer or older.
///
/// If this host's table assigns a flow to another host, the packet is forwarded there, since the
/// tables of the two hosts differ. If this host's table assigns the flow to this host, the packet
/// is forwarded to the host that the table named before, until the entry changes again. Unreachable
/// hosts are left out, since nothing can be forwarded to them and their slots may be reused.
fn second_chances(known: Option<&Ring>, hash: &[u16], standing: &OwnPlace) -> Arc<[u16]> {
    let OwnPlace { own, last_hops } = standing;
    if last_hops.is_empty() {
        return Arc::default();
    }
    let whole = |table: &&[u16]| table.len() == hash.len();
    let before = known.map(|known| &*known.hash).filter(whole).unwrap_or_default();
    let kept = known.map(|known| &*known.previous).filter(whole).unwrap_or_default();
    let mut chances: Arc<[u16]> = hash.into();
    let slots = Arc::make_mut(&mut chances);
    // The passes have no branches, since branches on hash table entries are unpredictable. If there
    // was no table before, this host counts as the previous host.
    for (slot, before) in slots.iter_mut().zip(before) {
        *slot = select_unpredictable(slot == own, *before, *slot);
    }
    for (slot, kept) in slots.iter_mut().zip(kept) {
        *slot = select_unpredictable(slot == own, KEPT | *kept, *slot);
    }
    // The first half translates slots of hosts to last hops. The second half keeps earlier second
    // chances whose last hop still exists.
    let mut ways = [NO_SERVER; 2 * SERVER_SLOTS];
    for (slot, way) in last_hops {
        ways[place(*slot)] = *way;
        ways[place(*way) + SERVER_SLOTS] = *way;
    }
    slots.iter_mut().for_each(|slot| *slot = ways[usize::from(*slot) % ways.len()]);
    if chances.iter().all(|slot| *slot == NO_SERVER) { Arc::default() } else { chances }
}
