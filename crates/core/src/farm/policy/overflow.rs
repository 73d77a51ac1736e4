//! Overflow: a host keeps what comes to it until it is loaded above the farm's average (Distributed Packet
//! Rewriting, section 4.1).

use alloc::vec::Vec;

use super::{Policy, RoundRobin, Weighted};
use crate::path::tables::Pick;

/// A host keeps its sessions, unless others have less to do.
pub struct Overflow;

impl Policy for Overflow {
    fn name(&self) -> &'static str {
        "overflow"
    }

    fn about(&self) -> &'static str {
        "a host keeps what comes to it, and passes on only while it is loaded above the average; with every-host"
    }

    fn pick(&self) -> Pick {
        Pick::Cursor
    }

    /// In turn, by the shares of [`crate::farm::load::Balance`], which stand in the weights' place.
    fn order(&self, members: &[Weighted]) -> Vec<u16> {
        RoundRobin.order(members)
    }

    fn by_load(&self) -> bool {
        true
    }
}
