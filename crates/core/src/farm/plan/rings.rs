//! The tables that a service's servers are picked from, and those that older flows go by: on a
//! director without its drains, and where every host decides with a second chance.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::hint::select_unpredictable;

use super::Plan;
use crate::path::tables::{NO_SERVER, Pick, Ring, SERVER_SLOTS, place};
use crate::pool::policy::{Fills, PacketPolicy, Weighted, second_candidates};

/// The policy of a ring.
pub(super) struct RingPolicy<'a> {
    /// By the policy of this name.
    pub(super) policy: &'static str,
    pub(super) packets: &'static PacketPolicy,
    /// All that could serve in their stead, and they themselves, at their configured weights.
    pub(super) configured: &'a [Weighted],
    /// The configured servers that work, drained ones included.
    pub(super) working: &'a [Weighted],
    /// With the weights that all hosts know.
    pub(super) chosen: &'a [Weighted],
    /// With their shares of what this host is asked for.
    pub(super) shares: &'a [Weighted],
}

/// Marks a slot that was a second chance before.
const KEPT: u16 = SERVER_SLOTS as u16;

/// This host among the servers of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnPlace {
    /// Its slot.
    pub(super) own: u16,
    /// The slots of other hosts that can be reached, each with that of the way there that is a
    /// packet's last.
    pub(super) last_ways: BTreeMap<u16, u16>,
}

/// The ring of service `number`, from the previous plan as far as it would come out the same.
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
    // With the same hash table, and the same ways, second chances come out the same.
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

/// The table of flows that no session is known of; empty where it is the one in force.
fn of_older_flows(fills: &mut Fills, members: &RingPolicy<'_>, hash: &Arc<[u16]>) -> Arc<[u16]> {
    if members.working == members.chosen {
        return Arc::default();
    }
    let older = fills.table(members.configured, members.working);
    if older == *hash { Arc::default() } else { older }
}

/// Where packets get a second chance, by slot of the hash table: who has passed one on to here may
/// know more, or less, than this host.
///
/// A flow that this host's own table gives to another goes there: the host that passed it on has
/// changed its table already. A flow that it gives to this host goes to the server it named before:
/// that lasts until the slot's host changes again. Hosts that can't be reached are left out, since
/// nobody can be sent to them, and their numbers may become others'.
fn second_chances(known: Option<&Ring>, hash: &[u16], standing: &OwnPlace) -> Arc<[u16]> {
    let OwnPlace { own, last_ways } = standing;
    if last_ways.is_empty() {
        return Arc::default();
    }
    let whole = |table: &&[u16]| table.len() == hash.len();
    let before = known.map(|known| &*known.hash).filter(whole).unwrap_or_default();
    let kept = known.map(|known| &*known.previous).filter(whole).unwrap_or_default();
    let mut chances: Arc<[u16]> = hash.into();
    let slots = Arc::make_mut(&mut chances);
    // Step by step and without branches, since nobody can guess who is next in a hash table. Of a
    // slot that isn't known it is as if this host had had it all along.
    for (slot, before) in slots.iter_mut().zip(before) {
        *slot = select_unpredictable(slot == own, *before, *slot);
    }
    for (slot, kept) in slots.iter_mut().zip(kept) {
        *slot = select_unpredictable(slot == own, KEPT | *kept, *slot);
    }
    // The ways to hosts, and behind them those that were second chances before, if they are there
    // still.
    let mut ways = [NO_SERVER; 2 * SERVER_SLOTS];
    for (slot, way) in last_ways {
        ways[place(*slot)] = *way;
        ways[place(*way) + SERVER_SLOTS] = *way;
    }
    slots.iter_mut().for_each(|slot| *slot = ways[usize::from(*slot) % ways.len()]);
    if chances.iter().all(|slot| *slot == NO_SERVER) { Arc::default() } else { chances }
}
