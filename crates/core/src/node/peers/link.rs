//! One other host, and what it said last.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::net::wire::Mac;
use crate::node::association::Association;

/// A host's last report that was to be believed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct LastReport {
    pub(super) ready: bool,
    pub(super) load: u32,
    pub(super) up: u64,
    pub(super) draining: u64,
    pub(super) owned: BTreeSet<IpAddr>,
}

/// Another host.
#[derive(Clone, Debug)]
pub(super) struct PeerState {
    pub(super) name: String,
    pub(super) address: IpAddr,
    pub(super) association: Association,
    /// When it began to be alive, or ended.
    pub(super) since_ms: u64,
    /// Since when it is present: see [`PeerState::is_present`].
    pub(super) present_since_ms: Option<u64>,
    pub(super) content: Option<LastReport>,
    pub(super) macs: Vec<Mac>,
    /// The configuration of its last report; `None` after one of another version.
    pub(super) generation: Option<u64>,
    /// Since when that is another than this host's.
    pub(super) differs_since_ms: Option<u64>,
    pub(super) reported_difference: bool,
    /// Whether it took part no longer, by its own word.
    pub(super) left: bool,
}

impl PeerState {
    pub(super) fn new(name: &str, address: IpAddr, association: Association, now_ms: u64) -> PeerState {
        PeerState {
            name: name.into(),
            address,
            association,
            since_ms: now_ms,
            present_since_ms: None,
            content: None,
            macs: Vec::new(),
            generation: None,
            differs_since_ms: None,
            reported_difference: false,
            left: false,
        }
    }

    /// Whether it may be the rightful owner of an address. A host that runs another configuration
    /// and has never said whether it takes part, may: an address that nobody owns is better than
    /// one that two hosts do.
    pub(super) fn is_present(&self) -> bool {
        self.association.is_alive() && self.content.as_ref().is_none_or(|content| content.ready)
    }

    /// Whether it takes part, as far as it was believed.
    pub(super) fn is_ready(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.ready)
    }

    /// Keeps [`PeerState::present_since_ms`] true to its name.
    pub(super) fn note_presence(&mut self, now_ms: u64) {
        self.present_since_ms = if self.is_present() { self.present_since_ms.or(Some(now_ms)) } else { None };
    }

    /// How many things are remembered of it.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.association.memory().max(self.macs.len())
    }

    /// Whether its last report was of this generation.
    pub(super) fn agrees(&self, generation: u64) -> bool {
        self.generation == Some(generation)
    }
}
