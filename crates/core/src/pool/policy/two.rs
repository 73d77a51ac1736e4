//! Policies that select one of two candidates. The policies differ in the factor by which they
//! weigh a server's sessions. Each of them has a file of its own.

use super::least_connections::each_once;
use super::{Choice, NamePolicy, PacketPolicy, Policy, RedirectPolicy, Selection, Weighing};
use crate::path::tables::Pick;

/// Selects the less loaded of the two servers that the flow's hash names: one in the hash table and
/// its second candidate. The ring is only used for flows whose server is full.
pub(super) const TWO: PacketPolicy =
    PacketPolicy { pick: Pick::Two, order: each_once, weighing: None, sharing: None };

/// Returns a policy by load. It selects of two servers the one with the smaller product of load and
/// sessions. Groups and names see no sessions, so there the share of a server falls as its load
/// rises.
pub(super) const fn by_load(name: &'static str, about: &'static str, weighing: &'static Weighing) -> Policy {
    Policy {
        name,
        about,
        needs: weighing.needs,
        packets: Some(PacketPolicy { weighing: Some(weighing), ..TWO }),
        redirect: Some(RedirectPolicy { choice: Choice::Turn, weighing: Some(weighing) }),
        names: Some(NamePolicy { draw: Selection::Random, weighing: Some(weighing) }),
    }
}
