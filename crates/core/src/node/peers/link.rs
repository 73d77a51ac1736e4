//! State of one other host, with its last report.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::hosted::HostedServer;
use crate::net::wire::Mac;
use crate::node::association::Association;

/// Last accepted report of a host.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct LastReport {
    pub(super) ready: bool,
    pub(super) load: u32,
    pub(super) servers: BTreeMap<u8, HostedServer>,
    pub(super) owned: BTreeSet<IpAddr>,
}

#[derive(Clone, Debug)]
pub(super) struct PeerState {
    pub(super) name: String,
    pub(super) address: IpAddr,
    pub(super) association: Association,
    /// Time of the last change of liveness, in milliseconds.
    pub(super) since_ms: u64,
    /// Time since which the host is present ([`PeerState::is_present`]), in milliseconds.
    pub(super) present_since_ms: Option<u64>,
    pub(super) content: Option<LastReport>,
    pub(super) macs: Vec<Mac>,
    /// Configuration digest of the last report; `None` for another protocol version.
    pub(super) generation: Option<u64>,
    /// Time since which the digest differs from this host's digest, in milliseconds.
    pub(super) differs_since_ms: Option<u64>,
    pub(super) reported_difference: bool,
    /// True if the host has left, as its last report says.
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

    /// True if the host may be the rightful owner of an address. A host without a report that was
    /// used counts, too, since an address with no owner is better than an address with two owners.
    pub(super) fn is_present(&self) -> bool {
        self.association.is_alive() && self.content.as_ref().is_none_or(|content| content.ready)
    }

    /// True if the host takes part according to its last report that was used.
    pub(super) fn is_ready(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.ready)
    }

    /// Starts or clears [`PeerState::present_since_ms`], as the host is present or not.
    pub(super) fn note_presence(&mut self, now_ms: u64) {
        self.present_since_ms = if self.is_present() { self.present_since_ms.or(Some(now_ms)) } else { None };
    }

    /// Number of stored entries, for tests that memory is bounded.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.association.memory().max(self.macs.len())
    }

    /// True if the host's last report was of this generation.
    pub(super) fn agrees(&self, generation: u64) -> bool {
        self.generation == Some(generation)
    }
}
