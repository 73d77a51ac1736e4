//! Reads the maps of an adopted data plane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evener_core::path::tables::{ReplyOrigin, Tables, VipKey};
use libbpf_rs::{MapCore, MapFlags};

use super::abi;
use super::program::Program;

impl Program {
    /// Adopts the maps of a running data plane. Returns its tables.
    pub(super) fn adopt(&mut self) -> Tables {
        let (tables, halves, generations) = self.read_again();
        self.halves = halves;
        self.adopt_routes(&generations);
        self.tables = Arc::new(tables.clone());
        self.count_servers();
        self.reset_others();
        tables
    }

    /// Returns the tables in the kernel's maps without routes, the active half of each ring, and
    /// the generations of routes.
    pub(super) fn read_again(&self) -> (Tables, BTreeMap<u16, u8>, BTreeSet<u32>) {
        let mut halves = BTreeMap::new();
        let load =
            |place: &[AtomicU64]| -> Vec<u64> { place.iter().map(|word| word.load(Relaxed)).collect() };
        let mut tables = Tables::default();
        for (slot, place) in self.servers.chunks_exact(abi::SERVER_WORDS).enumerate() {
            tables.servers.extend(abi::server_of(&load(place)).map(|server| (slot as u16, server)));
        }
        for place in self.interfaces.chunks_exact(abi::INTERFACE_WORDS) {
            tables.interfaces.extend(abi::interface_of(&load(place)));
        }
        let size = abi::VIP_PLACES * abi::VIP_WORDS;
        let half = abi::half_of::<{ abi::VIP_PLACES }>(self.commit[0].load(Relaxed));
        let handoffs = &self.handoffs[half * abi::VIP_PLACES * abi::HANDOFF_WORDS..];
        let (mut generations, mut ring_halves) = (BTreeSet::new(), 0);
        for (place, stored) in self.vips[half * size..][..size]
            .chunks_exact(abi::VIP_WORDS)
            .zip(handoffs.chunks_exact(abi::HANDOFF_WORDS))
        {
            if let Some((key, mut vip, ring)) = abi::vip_of(&load(place)) {
                if let Some((handoff, in_force)) = abi::handoff_of(&load(stored)) {
                    vip.handoff = Some(handoff);
                    generations.insert(in_force.generation);
                    ring_halves = in_force.ring_halves;
                }
                let client = self.clients.chunks_exact(abi::AFFINITY_ENTRY_WORDS).nth(vip.id.into());
                vip.affinity = client.and_then(|client| abi::affinity_of(&key, &load(client)));
                halves.insert(vip.service, ring);
                tables.vips.insert(key, vip);
            }
        }
        for (service, half) in &halves {
            let at = (usize::from(*service) * 2 + usize::from(*half)) * abi::RING_WORDS;
            let previous_at = usize::from(*service) * abi::PREVIOUS_WORDS;
            // Service numbers out of range have no ring.
            let words = self.rings.get(at..at + abi::RING_WORDS);
            let previous = self.previous.get(previous_at..previous_at + abi::PREVIOUS_WORDS);
            let ring = words.zip(previous).map(|(ring, before)| abi::ring_of(&load(ring), &load(before)));
            tables.rings.extend(ring.map(|ring| (*service, Arc::new(ring))));
        }
        tables.endpoints = self.held_endpoints();
        // Rings that only routes refer to are written again, to their inactive half.
        for ring in 0..abi::SERVICES_MAX as u16 {
            halves.entry(ring).or_insert((ring_halves >> ring & 1) as u8);
        }
        tables.peers = self.adopted_peers();
        let pools = (0u16..).zip(self.pools.iter().map(|word| word.load(Relaxed)));
        tables.pools = pools.filter(|(_, rings)| *rings != 0).collect();
        (tables, halves, generations)
    }

    /// Returns the endpoints in the kernel's map.
    pub(super) fn held_endpoints(&self) -> BTreeMap<VipKey, Vec<ReplyOrigin>> {
        let endpoints = self.borrowed("endpoints");
        let held = endpoints.keys().filter_map(|key| {
            let value = endpoints.lookup(&key, MapFlags::ANY).ok().flatten();
            abi::endpoint_key_of(&key).zip(value.as_deref().and_then(abi::endpoint_of))
        });
        held.collect()
    }
}
