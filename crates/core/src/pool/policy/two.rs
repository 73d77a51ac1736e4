//! Policies that choose between two candidates. They differ in what they weigh a server's sessions
//! with, and each says that in a file of its own.

use super::least_connections::each_once;
use super::{Choice, NamePolicy, PacketPolicy, Policy, RedirectPolicy, Selection, Weighing};
use crate::path::tables::Pick;

/// Of two servers that the flow's hash names, the one with less to do. They stand in the hash table
/// and beside it; the order is for flows
/// whose server is full.
pub(super) const TWO: PacketPolicy =
    PacketPolicy { pick: Pick::Two, order: each_once, weighing: None, sharing: None };

/// A policy by load: of two servers the one with less load times sessions. Groups and names, which
/// see no sessions, give a server less the more load it has.
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
