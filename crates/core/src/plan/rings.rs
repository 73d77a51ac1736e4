//! The tables that a service's servers are picked from, and, where every host decides, the memory of the last.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Plan;
use crate::policy::{self, Policy, Weighted};
use crate::tables::{HASH_SLOTS, NO_SERVER, Ring, SERVER_SLOTS};

/// Who is picked from a ring.
pub(super) struct Members<'a> {
    pub(super) policy: &'a dyn Policy,
    /// With the weights that all hosts know.
    pub(super) chosen: &'a [Weighted],
    /// With their shares of what this host is asked for.
    pub(super) shares: &'a [Weighted],
}

/// This host among the servers of a service.
pub(super) struct Standing {
    /// Its slot.
    pub(super) own: u16,
    /// The slots of other hosts that are alive, each with that of the way there that is a packet's last.
    pub(super) last_ways: BTreeMap<u16, u16>,
}

/// The ring of service `number`, from the previous plan as far as it would come out the same.
pub(super) fn ring(
    previous: Option<&Plan>,
    number: u16,
    members: &Members<'_>,
    standing: Option<&Standing>,
) -> Arc<Ring> {
    let known = previous.and_then(|previous| previous.tables.rings.get(&number));
    let before = previous
        .and_then(|previous| previous.services.get(&number))
        .filter(|before| before.policy == members.policy.name() && before.ring_members == members.chosen);
    let order = known.filter(|_| before.is_some_and(|before| before.shares == members.shares));
    let hash = known.filter(|_| before.is_some());
    let remembered = |hash: &[u16]| match (known, standing) {
        (Some(known), Some(standing)) => remember(known, hash, standing),
        _ => Vec::new(),
    };
    if let Some(known) = order
        && known.previous == remembered(&known.hash)
    {
        return Arc::clone(known);
    }
    let hash = hash.map_or_else(|| policy::maglev(members.chosen, HASH_SLOTS), |known| known.hash.clone());
    let order = order.map_or_else(|| members.policy.order(members.shares), |known| known.order.clone());
    Arc::new(Ring { previous: remembered(&hash), order, hash })
}

/// What is left of the hash table before this one: it lasts until the next change.
///
/// Hosts that are gone are left out, since nobody can be sent to them, and their numbers may become others'.
fn remember(known: &Ring, hash: &[u16], standing: &Standing) -> Vec<u16> {
    let Standing { own, last_ways } = standing;
    let same = known.hash == hash;
    let old = if same { &known.previous } else { &known.hash };
    // What stands for each slot of the old table.
    let mut now = alloc::vec![NO_SERVER; SERVER_SLOTS];
    let ways = last_ways.iter().map(|(slot, way)| (if same { *way } else { *slot }, *way));
    for (slot, stands_for) in ways.chain([(*own, *own)]) {
        if let Some(place) = now.get_mut(usize::from(slot)) {
            *place = stands_for;
        }
    }
    let kept = old.iter().map(|slot| now.get(usize::from(*slot)).copied().unwrap_or(NO_SERVER));
    let kept: Vec<u16> = kept.collect();
    if kept.iter().all(|slot| *slot == NO_SERVER) { Vec::new() } else { kept }
}
