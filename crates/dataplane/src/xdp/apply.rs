//! The kernel's maps, kept in step with [`Tables`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use evener_core::tables::{Delta, Ring, ServerEntry, Tables};
use evener_core::wire::Mac;
use libbpf_rs::{MapCore, MapFlags};

use super::abi;
use super::program::Program;
use crate::EngineError;

/// A packet in flight has left the old halves after this long; only then may they be written again.
pub(super) const GRACE: Duration = Duration::from_millis(5);

impl Program {
    /// What a data plane that was adopted is using.
    pub(super) fn adopted(&mut self) -> Tables {
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
        let half = (self.commit[0].load(Relaxed) & 1) as usize;
        let handoffs = &self.handoffs[half * abi::VIP_PLACES * abi::HANDOFF_WORDS..];
        let (mut generations, mut ring_halves) = (BTreeSet::new(), 0);
        for (place, beside) in self.vips[half * size..][..size]
            .chunks_exact(abi::VIP_WORDS)
            .zip(handoffs.chunks_exact(abi::HANDOFF_WORDS))
        {
            if let Some((key, mut vip, ring)) = abi::vip_of(&load(place)) {
                if let Some((handoff, in_force)) = abi::handoff_of(&load(beside)) {
                    vip.handoff = Some(handoff);
                    generations.insert(in_force.generation);
                    ring_halves = in_force.ring_halves;
                }
                self.halves.insert(vip.service, ring);
                tables.vips.insert(key, vip);
            }
        }
        for (service, half) in &self.halves {
            let at = (usize::from(*service) * 2 + usize::from(*half)) * abi::RING_WORDS;
            let previous_at = usize::from(*service) * abi::PREVIOUS_WORDS;
            // Numbers that are none of ours name nothing.
            let words = self.rings.get(at..at + abi::RING_WORDS);
            let previous = self.previous.get(previous_at..previous_at + abi::PREVIOUS_WORDS);
            let ring = words.zip(previous).map(|(ring, before)| abi::ring_of(&load(ring), &load(before)));
            tables.rings.extend(ring.map(|ring| (*service, Arc::new(ring))));
        }
        let endpoints = self.borrowed("endpoints");
        for key in endpoints.keys() {
            let value = endpoints.lookup(&key, MapFlags::ANY).ok().flatten();
            tables
                .endpoints
                .extend(abi::endpoint_key_of(&key).zip(value.as_deref().and_then(abi::endpoint_of)));
        }
        // Rings that only routes name are written anew, to the halves that are not in force.
        for ring in 0..abi::SERVICES_MAX as u16 {
            self.halves.entry(ring).or_insert((ring_halves >> ring & 1) as u8);
        }
        self.adopt_routes(&generations);
        tables.peers = self.adopted_peers();
        let pools = (0u16..).zip(self.pools.iter().map(|word| word.load(Relaxed)));
        tables.pools = pools.filter(|(_, rings)| *rings != 0).collect();
        self.tables = Arc::new(tables.clone());
        tables
    }

    /// Makes the maps say what `tables` says. Rings and VIPs are written beside those in force and come into
    /// force all at once.
    pub(super) fn apply(&mut self, delta: &Delta, tables: &Arc<Tables>) -> Result<(), EngineError> {
        if let Some(wait) = GRACE.checked_sub(self.committed.elapsed()) {
            std::thread::sleep(wait);
        }
        for (ifindex, mac) in &delta.interfaces {
            self.write_interface(*ifindex, *mac)?;
        }
        let interfaces: BTreeMap<u32, Mac> = delta.interfaces.iter().copied().collect();
        for (slot, server) in &tables.servers {
            // A server's entry holds the MAC of its interface too.
            if delta.servers.iter().any(|(changed, _)| changed == slot)
                || interfaces.contains_key(&server.ifindex)
            {
                self.write_server(*slot, server, tables);
            }
        }
        for (service, ring) in &delta.rings {
            self.write_ring(*service, ring)?;
        }
        if let Some(peers) = &delta.peers {
            self.write_peers(peers)?;
        }
        if let Some(pools) = &delta.pools {
            for (slot, word) in (0u16..).zip(self.pools.iter()) {
                word.store(pools.get(&slot).copied().unwrap_or_default(), Relaxed);
            }
        }
        self.write_routes(delta)?;
        let same_routes = delta.routes.is_empty() && delta.routes_removed.is_empty();
        if !(delta.rings.is_empty() && delta.vips.is_empty() && delta.vips_removed.is_empty() && same_routes)
        {
            self.write_vips(tables)?;
        }
        self.forget_routes()?;
        for (key, behind) in &delta.endpoints {
            self.update("endpoints", &abi::endpoint_key(key), &abi::endpoint(behind))?;
        }
        let vips = delta.vips.iter().map(|(key, _)| key).chain(&delta.vips_removed);
        let endpoints = delta.endpoints.iter().map(|(key, _)| key).chain(&delta.endpoints_removed);
        for key in vips.chain(endpoints) {
            self.write_address(key.address, tables)?;
        }
        // Where the count says that there are none, none is looked for.
        self.answering[0].store(tables.endpoints.len() as u64, Release);
        for key in &delta.endpoints_removed {
            self.delete("endpoints", &abi::endpoint_key(key))?;
        }
        for slot in &delta.servers_removed {
            self.clear_server(*slot);
        }
        for ifindex in &delta.interfaces_removed {
            self.clear_interface(*ifindex);
        }
        self.tables = tables.clone();
        Ok(())
    }

    fn interface_words(&self, ifindex: u32) -> &[AtomicU64] {
        let place = ifindex as usize % abi::INTERFACE_PLACES;
        &self.interfaces[place * abi::INTERFACE_WORDS..][..abi::INTERFACE_WORDS]
    }

    fn write_interface(&self, ifindex: u32, mac: Mac) -> Result<(), EngineError> {
        let place = self.interface_words(ifindex);
        let there = place[1].load(Relaxed) as u32;
        if there != 0 && there != ifindex && self.tables.interfaces.contains_key(&there) {
            return Err(EngineError::Interface {
                interface: format!("number {ifindex}"),
                why: format!(
                    "its number and that of interface {there} are equal modulo {}",
                    abi::INTERFACE_PLACES
                ),
            });
        }
        for (word, value) in place.iter().zip(abi::interface(ifindex, mac)) {
            word.store(value, Release);
        }
        Ok(())
    }

    fn clear_interface(&self, ifindex: u32) {
        let number = &self.interface_words(ifindex)[1];
        if number.load(Relaxed) as u32 == ifindex {
            number.store(0, Release);
        }
    }

    fn write_server(&self, slot: u16, server: &ServerEntry, tables: &Tables) {
        let src = tables.interfaces.get(&server.ifindex).copied().unwrap_or_default();
        let words = abi::server(server, src);
        let at = usize::from(slot) * abi::SERVER_WORDS;
        let flags = &self.servers[at + abi::SERVER_FLAGS_WORD];
        // One way's addresses must not be taken for another's.
        if !abi::same_way(flags.load(Relaxed), words[abi::SERVER_FLAGS_WORD]) {
            flags.store(0, Release);
        }
        // The flags' word last: until it says "present", nothing reads the others.
        for word in
            (0..abi::SERVER_WORDS).filter(|w| *w != abi::SERVER_FLAGS_WORD).chain([abi::SERVER_FLAGS_WORD])
        {
            self.servers[at + word].store(words[word], Release);
        }
    }

    /// Writes the half that is not in force. The VIPs that name it come next. There is one memory of the table
    /// before: for the instant between, what it names is as good a second chance as what it named.
    fn write_ring(&mut self, service: u16, ring: &Ring) -> Result<(), EngineError> {
        if usize::from(service) >= abi::SERVICES_MAX {
            return Err(EngineError::Capacity(format!("the tables hold {} services", abi::SERVICES_MAX)));
        }
        let half = 1 - self.halves.get(&service).copied().unwrap_or(1);
        let at = (usize::from(service) * 2 + usize::from(half)) * abi::RING_WORDS;
        for (place, word) in self.rings[at..at + abi::RING_WORDS].iter().zip(abi::ring(ring)) {
            place.store(word, Release);
        }
        let at = usize::from(service) * abi::PREVIOUS_WORDS;
        for (place, word) in self.previous[at..at + abi::PREVIOUS_WORDS].iter().zip(abi::previous(ring)) {
            place.store(word, Release);
        }
        self.halves.insert(service, half);
        Ok(())
    }

    /// Writes all VIPs to the half that is not in force, each to a place of its own, and switches.
    fn write_vips(&mut self, tables: &Tables) -> Result<(), EngineError> {
        let keys: Vec<u64> = tables.vips.keys().map(abi::vip_bits).collect();
        let multiplier = separating::<{ abi::VIP_PLACES }>(&keys, self.commit[0].load(Relaxed))
            .ok_or_else(|| EngineError::Capacity(format!("no room for {} service addresses", keys.len())))?;
        let half = (self.commit[0].load(Relaxed) & 1) ^ 1;
        let size = abi::VIP_PLACES * abi::VIP_WORDS;
        let places = &self.vips[half as usize * size..][..size];
        for word in places {
            word.store(0, Relaxed);
        }
        let handoffs = &self.handoffs[half as usize * abi::VIP_PLACES * abi::HANDOFF_WORDS..];
        for word in &handoffs[..abi::VIP_PLACES * abi::HANDOFF_WORDS] {
            word.store(0, Relaxed);
        }
        let mut by_id = [0u16; abi::VIP_IDS];
        for (key, vip) in &tables.vips {
            let ring = self.halves.get(&vip.service).copied().unwrap_or_default();
            let place = abi::place_of::<{ abi::VIP_PLACES }>(abi::vip_bits(key), multiplier);
            for (word, value) in places[place * abi::VIP_WORDS..].iter().zip(abi::vip(key, vip, ring)) {
                word.store(value, Relaxed);
            }
            if let Some(handoff) = &vip.handoff {
                let (in_force, routes) = self.in_force(vip.service, tables);
                let words = abi::handoff(handoff, routes.as_deref(), in_force);
                for (word, value) in handoffs[place * abi::HANDOFF_WORDS..].iter().zip(words) {
                    word.store(value, Relaxed);
                }
            }
            let number = by_id.get_mut(usize::from(vip.id));
            *number.ok_or_else(|| EngineError::Capacity(format!("no VIP can have number {}", vip.id)))? =
                place as u16;
        }
        let by_id = abi::vip_places(&by_id);
        let ids = &self.vip_places[half as usize * by_id.len()..];
        for (word, value) in ids.iter().zip(by_id) {
            word.store(value, Relaxed);
        }
        self.commit[0].store((multiplier & !1) | half, Release);
        self.committed = Instant::now();
        Ok(())
    }

    fn write_address(&self, address: IpAddr, tables: &Tables) -> Result<(), EngineError> {
        let key = abi::address_key(address);
        match abi::address(address, tables) {
            Some(flags) => self.update("addresses", &key, &flags),
            None => self.delete("addresses", &key),
        }
    }

    fn clear_server(&self, slot: u16) {
        let at = usize::from(slot) * abi::SERVER_WORDS;
        self.servers[at + abi::SERVER_FLAGS_WORD].store(0, Release);
    }
}

/// A multiplier that gives every key one of so many places of its own, looked for from `from` on.
pub(super) fn separating<const PLACES: usize>(keys: &[u64], from: u64) -> Option<u64> {
    let mut multiplier = from;
    let mut taken = vec![false; PLACES];
    for _ in 0..100_000 {
        // Any sequence that tries many will do; this is Knuth's linear congruential one.
        multiplier =
            multiplier.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        taken.fill(false);
        let place = |bits: &u64| abi::place_of::<PLACES>(*bits, multiplier);
        if !keys.iter().any(|bits| std::mem::replace(&mut taken[place(bits)], true)) {
            return Some(multiplier);
        }
    }
    None
}
