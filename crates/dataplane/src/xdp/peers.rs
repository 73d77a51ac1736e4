//! MACs of the every-host farm's other hosts. The kernel's programs look up the source of forwarded
//! frames in this table.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::net::wire::Mac;
use evener_core::path::tables::PEERS_MAX;

use super::abi;
use super::apply::separating;
use super::program::Program;
use crate::EngineError;

impl Program {
    /// Writes all peers to the inactive half without collisions. Returns the word that switches to
    /// this half.
    pub(super) fn write_peers(&self, peers: &BTreeSet<Mac>) -> Result<u64, EngineError> {
        if peers.is_empty() {
            return Ok(0);
        }
        let old = self.peers_in[0].load(Relaxed);
        let bits: Vec<u64> = peers.iter().copied().map(abi::mac_bits).collect();
        let too_many = || EngineError::Capacity(format!("{} hosts are more than {PEERS_MAX}", peers.len()));
        let multiplier = separating::<{ abi::PEER_PLACES }>(&bits, old).ok_or_else(too_many)?;
        let half = abi::half_of::<{ abi::PEER_PLACES }>(multiplier);
        let places = &self.peers[half * abi::PEER_PLACES..][..abi::PEER_PLACES];
        for place in places {
            place.store(0, Relaxed);
        }
        for bits in bits {
            places[abi::place_of::<{ abi::PEER_PLACES }>(bits, multiplier)].store(bits, Relaxed);
        }
        Ok(multiplier)
    }

    /// Returns the peers that an earlier daemon has written.
    pub(super) fn adopted_peers(&self) -> BTreeSet<Mac> {
        match self.peers_in[0].load(Relaxed) {
            0 => BTreeSet::new(),
            word => {
                let half = abi::half_of::<{ abi::PEER_PLACES }>(word);
                let half = &self.peers[half * abi::PEER_PLACES..][..abi::PEER_PLACES];
                half.iter().filter_map(|place| abi::mac_of(place.load(Relaxed))).collect()
            }
        }
    }
}
