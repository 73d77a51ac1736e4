//! Applies [`Tables`] to the kernel's maps. First come the operations that may fail, next to the
//! tables in force; then a switch that can't fail.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

use evener_core::net::wire::Mac;
use evener_core::path::select::Score;
use evener_core::path::tables::{Delta, Ring, ServerEntry, Tables};
use libbpf_rs::{MapCore, MapFlags};

use super::abi::{self, HandoffState};
use super::content_routes::Current;
use super::program::{Program, refused};
use crate::EngineError;

/// Tables that are written but not yet in force.
struct Staged {
    /// Half of each ring that the VIPs will refer to.
    halves: BTreeMap<u16, u8>,
    /// Routes that the VIPs will refer to.
    routes: Current,
    /// Words that switch the VIPs or peers, if those change.
    vips: Option<u64>,
    peers: Option<u64>,
    /// Keys of hash maps that nothing will need.
    gone: Vec<(&'static str, Vec<u8>)>,
}

impl Staged {
    /// Handoff state of the VIPs of this service.
    fn in_force(&self, service: u16) -> HandoffState {
        let halves = self.halves.iter().filter(|(_, half)| **half == 1);
        let ring_halves = halves.fold(0, |bits, (ring, _)| bits | 1 << ring);
        HandoffState {
            generation: self.routes.get(&service).map_or(0, |(generation, _)| *generation),
            ring_halves,
        }
    }
}

/// Entries written to hash maps, with their previous values.
type WrittenEntries = Vec<(&'static str, Vec<u8>, Option<Vec<u8>>)>;

/// Planned entry of a hash map: map, key and value; without a value the key is deleted.
type Entry = (&'static str, Vec<u8>, Option<Vec<u8>>);

impl Program {
    /// Applies `tables`. New rings, VIPs and routes are written next to the active ones. After the
    /// last operation that may fail, all new entries become active at once. So a failure leaves the
    /// active tables unchanged.
    ///
    /// # Errors
    /// Fails if the kernel refuses, or if the maps have too little room.
    pub(super) fn apply(&mut self, tables: &Arc<Tables>) -> Result<(), EngineError> {
        let delta = Delta::between(&self.tables, tables);
        if delta.is_empty() && !self.is_stale {
            return Ok(());
        }
        let mut written = WrittenEntries::new();
        match self.stage(&delta, tables, &mut written) {
            Ok(staged) => {
                let gone = self.switch(&delta, tables, staged);
                self.tidy(&delta, &gone);
                Ok(())
            }
            Err(error) => {
                if !delta.routes.is_empty() {
                    self.withdraw_routes();
                }
                self.withdraw(written);
                Err(error)
            }
        }
    }

    /// True if the maps may hold entries that the tables don't need.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Performs the operations that may fail. Packets don't see their results yet, except single
    /// entries of hash maps that are recorded in `written`.
    fn stage(
        &mut self,
        delta: &Delta,
        tables: &Arc<Tables>,
        written: &mut WrittenEntries,
    ) -> Result<Staged, EngineError> {
        check(tables)?;
        // Packets in progress may still use the halves that are written now.
        self.passing.end(&self.grace)?;
        let mut staged = Staged {
            halves: self.halves.clone(),
            routes: self.stage_routes(delta)?,
            vips: None,
            peers: delta.peers.as_ref().map(|peers| self.write_peers(peers)).transpose()?,
            gone: Vec::new(),
        };
        for (service, ring) in &delta.rings {
            staged.halves.insert(*service, self.write_ring(*service, ring));
        }
        let same_routes = delta.routes.is_empty() && delta.routes_removed.is_empty();
        if !(delta.rings.is_empty() && delta.vips.is_empty() && delta.vips_removed.is_empty() && same_routes)
        {
            staged.vips = Some(self.write_vips(tables, &staged)?);
        }
        for (map, key, value) in self.entries(delta, tables) {
            match value {
                Some(value) => self.put(map, key, &value, written)?,
                None => staged.gone.push((map, key)),
            }
        }
        Ok(staged)
    }

    /// Returns the changed entries of hash maps; all entries if the content of the maps is
    /// uncertain.
    fn entries(&self, delta: &Delta, tables: &Tables) -> Vec<Entry> {
        let addresses: BTreeSet<IpAddr> = match self.is_stale {
            true => tables.vips.keys().chain(tables.endpoints.keys()).map(|key| key.address).collect(),
            false => {
                let vips = delta.vips.iter().map(|(key, _)| key).chain(&delta.vips_removed);
                let endpoints = delta.endpoints.iter().map(|(key, _)| key).chain(&delta.endpoints_removed);
                vips.chain(endpoints).map(|key| key.address).collect()
            }
        };
        let flags = |at: IpAddr| abi::address(at, tables).map(Vec::from);
        let mut entries: Vec<Entry> =
            addresses.into_iter().map(|at| ("addresses", abi::address_key(at).into(), flags(at))).collect();
        if self.is_stale {
            let wanted = &tables.endpoints;
            entries.extend(wanted.iter().map(|(key, behind)| {
                ("endpoints", abi::endpoint_key(key).into(), Some(abi::endpoint(behind).into()))
            }));
            let wanted: BTreeSet<(&str, Vec<u8>)> =
                entries.iter().map(|(map, key, _)| (*map, key.clone())).collect();
            for map in ["addresses", "endpoints"] {
                let held = self.borrowed(map).keys().filter(|key| !wanted.contains(&(map, key.clone())));
                entries.extend(held.map(|key| (map, key, None)));
            }
            return entries;
        }
        entries.extend(delta.endpoints.iter().map(|(key, behind)| {
            ("endpoints", abi::endpoint_key(key).into(), Some(abi::endpoint(behind).into()))
        }));
        let removed = delta.endpoints_removed.iter();
        entries.extend(removed.map(|key| ("endpoints", abi::endpoint_key(key).into(), None)));
        entries
    }

    /// Writes an entry and records the previous value.
    fn put(
        &self,
        map: &'static str,
        key: Vec<u8>,
        value: &[u8],
        written: &mut WrittenEntries,
    ) -> Result<(), EngineError> {
        let was = self.borrowed(map).lookup(&key, MapFlags::ANY);
        let was = was.map_err(|error| refused(format!("reading map {map}"), error))?;
        if was.as_deref() != Some(value) {
            self.update(map, &key, value)?;
            written.push((map, key, was));
        }
        Ok(())
    }

    /// Restores the previous values after a failed change.
    fn withdraw(&mut self, written: WrittenEntries) {
        let back = written.into_iter().rev().try_for_each(|(map, key, was)| match was {
            Some(was) => self.update(map, &key, &was),
            None => self.delete(map, &key),
        });
        if let Err(error) = back {
            tracing::warn!(%error, "a change of the kernel's maps failed halfway and could not be undone: parts of it are in force until the next change succeeds (`evener reload` makes one)");
            let endpoints = self.held_endpoints();
            Arc::make_mut(&mut self.tables).endpoints = endpoints;
            self.is_stale = true;
        }
    }

    /// Brings the staged tables into force. Only stores to memory, which can't fail. Returns keys
    /// that are no longer needed.
    fn switch(
        &mut self,
        delta: &Delta,
        tables: &Arc<Tables>,
        staged: Staged,
    ) -> Vec<(&'static str, Vec<u8>)> {
        for (ifindex, mac) in &delta.interfaces {
            self.write_interface(*ifindex, *mac);
        }
        for (slot, server) in &tables.servers {
            // A server's entry also contains the MAC of its interface.
            if delta.servers.iter().any(|(changed, _)| changed == slot)
                || delta.interfaces.iter().any(|(changed, _)| *changed == server.ifindex)
            {
                self.write_server(*slot, server, tables);
            }
        }
        for (service, ring) in &delta.rings {
            self.write_previous(*service, ring);
        }
        if let Some(pools) = &delta.pools {
            for (slot, word) in (0u16..).zip(self.pools.iter()) {
                word.store(pools.get(&slot).copied().unwrap_or_default(), Relaxed);
            }
        }
        for (place, word) in [(&self.peers_in[0], staged.peers), (&self.commit[0], staged.vips)] {
            if let Some(word) = word {
                place.store(word, Release);
            }
        }
        if staged.peers.or(staged.vips).is_some() {
            self.passing.begin(&self.grace);
        }
        self.memory().sessions.share(tables);
        self.memory().guesses.keep(tables);
        if self.is_stale || !(delta.endpoints.is_empty() && delta.endpoints_removed.is_empty()) {
            for (place, word) in self.returns.iter().zip(abi::hints(&tables.endpoints)) {
                place.store(word, Release);
            }
        }
        // With a count of zero the programs skip the lookup of endpoints.
        self.answering[0].store(tables.endpoints.len() as u64, Release);
        self.halves = staged.halves;
        self.generations.switch(staged.routes);
        self.tables = tables.clone();
        self.departed.retain(|slot| !tables.servers.contains_key(slot));
        staged.gone
    }

    /// Removes entries that the tables in force don't refer to. An entry that stays after an error
    /// is harmless, and the next change removes it.
    fn tidy(&mut self, delta: &Delta, gone: &[(&'static str, Vec<u8>)]) {
        for slot in &delta.servers_removed {
            self.clear_server(*slot);
            self.memory().counts.score(&[(*slot, Score::default())]);
            self.departed.insert(*slot);
        }
        self.count_servers();
        for ifindex in &delta.interfaces_removed {
            self.clear_interface(*ifindex);
        }
        let tidied = gone.iter().try_for_each(|(map, key)| self.delete(map, key));
        let tidied = tidied.and_then(|()| self.forget_routes());
        self.is_stale = tidied.is_err();
        if let Err(error) = tidied {
            tracing::warn!(%error, "failed to remove an old map entry; the next change removes it");
        }
    }

    fn interface_words(&self, ifindex: u32) -> &[AtomicU64] {
        let place = ifindex as usize % abi::INTERFACE_PLACES;
        &self.interfaces[place * abi::INTERFACE_WORDS..][..abi::INTERFACE_WORDS]
    }

    fn write_interface(&self, ifindex: u32, mac: Mac) {
        for (word, value) in self.interface_words(ifindex).iter().zip(abi::interface(ifindex, mac)) {
            word.store(value, Release);
        }
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
        // Clears the flags first, so that a packet never combines the addresses of two forwarding
        // methods.
        if !abi::same_forwarding(flags.load(Relaxed), words[abi::SERVER_FLAGS_WORD]) {
            flags.store(0, Release);
        }
        // The flags word is written last: no program reads the other words before it contains
        // `SERVER_PRESENT`.
        for word in
            (0..abi::SERVER_WORDS).filter(|w| *w != abi::SERVER_FLAGS_WORD).chain([abi::SERVER_FLAGS_WORD])
        {
            self.servers[at + word].store(words[word], Release);
        }
    }

    /// Writes the inactive half of a ring and returns its number.
    fn write_ring(&self, service: u16, ring: &Ring) -> u8 {
        let half = 1 - self.halves.get(&service).copied().unwrap_or(1);
        let at = (usize::from(service) * 2 + usize::from(half)) * abi::RING_WORDS;
        for (place, word) in self.rings[at..at + abi::RING_WORDS].iter().zip(abi::ring(ring)) {
            place.store(word, Release);
        }
        half
    }

    /// Writes the previous hash table, which exists only once. Until the VIPs refer to the new
    /// ring, the old ring is used with the new previous table. That table is an equally good second
    /// choice.
    fn write_previous(&self, service: u16, ring: &Ring) {
        let at = usize::from(service) * abi::PREVIOUS_WORDS;
        for (place, word) in self.previous[at..at + abi::PREVIOUS_WORDS].iter().zip(abi::previous(ring)) {
            place.store(word, Release);
        }
    }

    /// Writes all VIPs to the inactive half without collisions. Returns the word that switches to
    /// this half.
    fn write_vips(&self, tables: &Tables, staged: &Staged) -> Result<u64, EngineError> {
        let keys: Vec<u64> = tables.vips.keys().map(abi::vip_bits).collect();
        let multiplier = separating::<{ abi::VIP_PLACES }>(&keys, self.commit[0].load(Relaxed))
            .ok_or_else(|| EngineError::Capacity(format!("no room for {} service addresses", keys.len())))?;
        let half = abi::half_of::<{ abi::VIP_PLACES }>(multiplier);
        let size = abi::VIP_PLACES * abi::VIP_WORDS;
        let places = &self.vips[half * size..][..size];
        for word in places {
            word.store(0, Relaxed);
        }
        let handoffs = &self.handoffs[half * abi::VIP_PLACES * abi::HANDOFF_WORDS..];
        for word in &handoffs[..abi::VIP_PLACES * abi::HANDOFF_WORDS] {
            word.store(0, Relaxed);
        }
        let mut by_id = [0u16; abi::VIP_IDS];
        for (key, vip) in &tables.vips {
            let ring = staged.halves.get(&vip.service).copied().unwrap_or_default();
            let place = abi::place_of::<{ abi::VIP_PLACES }>(abi::vip_bits(key), multiplier);
            for (word, value) in places[place * abi::VIP_WORDS..].iter().zip(abi::vip(key, vip, ring)) {
                word.store(value, Relaxed);
            }
            let client = self.clients.chunks_exact(abi::AFFINITY_ENTRY_WORDS).nth(vip.id.into());
            for (word, value) in client.unwrap_or_default().iter().zip(abi::affinity(key, vip.affinity)) {
                word.store(value, Relaxed);
            }
            if let Some(handoff) = &vip.handoff {
                let routes = tables.routes.get(&vip.service);
                let words =
                    abi::handoff(handoff, routes.map(|routes| &**routes), staged.in_force(vip.service));
                for (word, value) in handoffs[place * abi::HANDOFF_WORDS..].iter().zip(words) {
                    word.store(value, Relaxed);
                }
            }
            let number = by_id.get_mut(usize::from(vip.id));
            *number.ok_or_else(|| EngineError::Capacity(format!("no VIP can have number {}", vip.id)))? =
                place as u16;
        }
        let by_id = abi::vip_places(&by_id);
        let ids = &self.vip_places[half * by_id.len()..];
        for (word, value) in ids.iter().zip(by_id) {
            word.store(value, Relaxed);
        }
        Ok(multiplier)
    }

    fn clear_server(&self, slot: u16) {
        let at = usize::from(slot) * abi::SERVER_WORDS;
        self.servers[at + abi::SERVER_FLAGS_WORD].store(0, Release);
    }
}

/// Checks that the maps have room for these tables.
fn check(tables: &Tables) -> Result<(), EngineError> {
    if tables.rings.keys().any(|service| usize::from(*service) >= abi::SERVICES_MAX) {
        return Err(EngineError::Capacity(format!("the tables hold {} services", abi::SERVICES_MAX)));
    }
    let entries: usize = tables.routes.values().map(|routes| routes.entries.len()).sum();
    // Active and staged routes are in the map together.
    let entries_max = abi::ROUTE_ENTRIES / 2;
    if entries > entries_max {
        return Err(EngineError::Capacity(format!(
            "the routes of all services take {entries} entries of the kernel's table, one for each route and one for each \
             host that routes name, and a farm can have {entries_max}"
        )));
    }
    let mut places = BTreeMap::new();
    for ifindex in tables.interfaces.keys() {
        if let Some(there) = places.insert(*ifindex as usize % abi::INTERFACE_PLACES, ifindex) {
            return Err(EngineError::Interface {
                interface: format!("number {ifindex}"),
                why: format!(
                    "its number and that of interface {there} are equal modulo {}",
                    abi::INTERFACE_PLACES
                ),
            });
        }
    }
    Ok(())
}

/// Searches for a multiplier that maps all keys to different entries, starting from `from`.
pub(super) fn separating<const PLACES: usize>(keys: &[u64], from: u64) -> Option<u64> {
    let half = 1 - abi::half_of::<PLACES>(from);
    let mut bits = from;
    let mut taken = vec![false; PLACES];
    for _ in 0..100_000 {
        // Any sequence with many values will do; this is Knuth's linear congruential generator.
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let multiplier = abi::multiplier_for::<PLACES>(half, bits);
        taken.fill(false);
        let place = |bits: &u64| abi::place_of::<PLACES>(*bits, multiplier);
        if !keys.iter().any(|bits| std::mem::replace(&mut taken[place(bits)], true)) {
            return Some(multiplier);
        }
    }
    None
}
