//! Least connections: the server with the fewest active sessions for its weight.

use alloc::vec::Vec;

use super::{PacketPolicy, Policy, Weighted};
use crate::path::tables::{ORDER_MAX, Pick};
use crate::pool::signals::Signal;

/// Selects the server with the fewest active sessions for its weight.
pub(super) static LEAST_CONNECTIONS: Policy = Policy {
    name: "least-connections",
    about: "the server with the fewest active sessions for its weight; for sessions of uneven length",
    needs: &[Signal::Active],
    packets: Some(PacketPolicy { pick: Pick::Least, order: each_once, weighing: None, sharing: None }),
    redirect: None,
    names: None,
};

/// Returns the slot of each member with a weight above 0 once, at most [`ORDER_MAX`] slots. The
/// data plane compares all these servers for each new session.
pub(super) fn each_once(members: &[Weighted]) -> Vec<u16> {
    members.iter().filter(|m| m.weight > 0).map(|m| m.slot).take(ORDER_MAX).collect()
}
