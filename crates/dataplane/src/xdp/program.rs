//! The kernel's side, loaded: its programs, and its maps kept in step with [`Tables`].

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use evener_core::decide::{Memory, Reason};
use evener_core::select::Counts;
use evener_core::sessions::{Bucket, Seed, Sessions, buckets_for};
use evener_core::tables::{Delta, Ring, SERVER_SLOTS, Tables};
use evener_core::wire::Mac;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};

use super::abi::{self, Settings};
use crate::shared::Shared;
use crate::{Counters, EngineError, ServerCounters};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/director.bpf.o"));
const CAPABILITY: &str = "CAP_BPF and CAP_NET_ADMIN";

/// Maps that outlive the daemon, by their pins. Constants and the like do not.
pub(super) const PINNED: [&str; 12] = [
    "about",
    "commit",
    "vips",
    "addresses",
    "interfaces",
    "rings",
    "servers",
    "sessions",
    "active",
    "cursors",
    "server_stats",
    "reasons",
];

/// A packet in flight has left the old halves after this long; only then may they be written again.
const GRACE: Duration = Duration::from_millis(5);

/// The loaded programs and their maps.
pub(super) struct Program {
    object: Object,
    maps: BTreeMap<&'static str, MapHandle>,
    seed: Seed,
    buckets: Shared<Bucket>,
    active: Shared<AtomicU64>,
    cursors: Shared<AtomicU64>,
    rings: Shared<AtomicU64>,
    servers: Shared<AtomicU64>,
    vips: Shared<AtomicU64>,
    commit: Shared<AtomicU64>,
    interfaces: Shared<AtomicU64>,
    /// Which half of each service's rings is in force.
    halves: BTreeMap<u16, u8>,
    /// When the halves in force came into force.
    committed: Instant,
    /// What the maps hold.
    tables: Arc<Tables>,
}

fn refused(what: impl Into<String>, error: libbpf_rs::Error) -> EngineError {
    // The verifier says "permission denied" too, and that is no matter of privileges.
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied if !may_load() => {
            EngineError::Privilege { what: what.into(), capability: CAPABILITY }
        }
        _ => EngineError::Kernel { engine: "xdp", missing: format!("{}: {error:#}", what.into()) },
    }
}

/// Whether this thread has CAP_BPF, or CAP_SYS_ADMIN, which includes it (linux/capability.h).
fn may_load() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    effective & (1 << 39 | 1 << 21) != 0
}

impl Program {
    /// Loads the programs, over the maps pinned in `adopt` if given, else over new ones for
    /// `sessions_max` sessions.
    pub(super) fn load(sessions_max: usize, seed: Seed, adopt: Option<&Path>) -> Result<Self, EngineError> {
        let settings = match adopt {
            Some(dir) => pinned_settings(dir)?,
            None => Settings {
                abi_version: abi::ABI_VERSION,
                buckets: u32::try_from(buckets_for(sessions_max))
                    .map_err(|_| EngineError::Capacity(format!("{sessions_max} sessions are too many")))?,
                seed,
                jiffy_ns: abi::jiffy_ns(),
            },
        };
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, |_, text| {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
        })));
        let mut open = ObjectBuilder::default()
            .name("evener")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(|error| refused("opening the BPF object", error))?;
        prepare(&mut open, settings, adopt)?;
        let object = open.load().map_err(|error| refused("loading the BPF programs", error))?;
        Self::over(object, settings)
    }

    fn over(object: Object, settings: Settings) -> Result<Self, EngineError> {
        let mut maps = BTreeMap::new();
        for name in PINNED {
            let map = object
                .maps()
                .find(|map| table_name(map.name()) == name)
                .ok_or_else(|| EngineError::Capacity(format!("the BPF object has no map {name}")))?;
            let handle = MapHandle::try_from(&map).map_err(|error| refused(format!("map {name}"), error))?;
            maps.insert(name, handle);
        }
        let map = |name: &str| maps[name].as_fd();
        let shared = |name: &str, len: usize| {
            Shared::map(map(name), len)
                .map_err(|e| EngineError::system(format!("mapping {name}"), CAPABILITY, e))
        };
        let program = Program {
            seed: settings.seed,
            buckets: Shared::map(map("sessions"), settings.buckets as usize)
                .map_err(|e| EngineError::system("mapping sessions", CAPABILITY, e))?,
            active: shared("active", SERVER_SLOTS)?,
            cursors: shared("cursors", abi::SERVICES_MAX)?,
            rings: shared("rings", 2 * abi::SERVICES_MAX * abi::RING_WORDS)?,
            servers: shared("servers", SERVER_SLOTS * abi::SERVER_WORDS)?,
            vips: shared("vips", 2 * abi::VIP_PLACES * abi::VIP_WORDS)?,
            commit: shared("commit", 1)?,
            interfaces: shared("interfaces", abi::INTERFACE_PLACES * abi::INTERFACE_WORDS)?,
            halves: BTreeMap::new(),
            committed: Instant::now(),
            tables: Arc::default(),
            object,
            maps,
        };
        program.update("about", &0u32.to_ne_bytes(), &settings.to_bytes())?;
        Ok(program)
    }

    /// The file descriptor of a program, for attaching or running it.
    pub(super) fn fd(&self, name: &str) -> Result<BorrowedFd<'_>, EngineError> {
        self.object
            .progs()
            .find(|program| program.name() == OsStr::new(name))
            // SAFETY: the descriptor belongs to `self.object`, which the borrow outlives.
            .map(|program| unsafe { BorrowedFd::borrow_raw(program.as_fd().as_raw_fd()) })
            .ok_or_else(|| EngineError::Capacity(format!("the BPF object has no program {name}")))
    }

    pub(super) fn map(&self, name: &str) -> Option<&MapHandle> {
        self.maps.get(name)
    }

    /// Pins every map in `dir`.
    pub(super) fn pin_maps(&mut self, dir: &Path) -> Result<(), EngineError> {
        for (name, map) in &mut self.maps {
            map.pin(dir.join(name)).map_err(|error| refused(format!("pinning map {name}"), error))?;
        }
        Ok(())
    }

    fn update(&self, map: &'static str, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.maps[map].update(key, value, MapFlags::ANY).map_err(|e| refused(format!("writing map {map}"), e))
    }

    fn delete(&self, map: &'static str, key: &[u8]) -> Result<(), EngineError> {
        match self.maps[map].delete(key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(refused(format!("writing map {map}"), error))
            }
            _ => Ok(()),
        }
    }

    /// What a data plane that was adopted is using, but for its rings.
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
        for place in self.vips[half * size..][..size].chunks_exact(abi::VIP_WORDS) {
            if let Some((key, vip, ring)) = abi::vip_of(&load(place)) {
                self.halves.insert(vip.service, ring);
                tables.vips.insert(key, vip);
            }
        }
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
        if !(delta.rings.is_empty() && delta.vips.is_empty() && delta.vips_removed.is_empty()) {
            self.write_vips(tables)?;
        }
        for key in delta.vips.iter().map(|(key, _)| key).chain(&delta.vips_removed) {
            self.write_address(key.address, tables)?;
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

    fn write_server(&self, slot: u16, server: &evener_core::tables::ServerEntry, tables: &Tables) {
        let src = tables.interfaces.get(&server.ifindex).copied().unwrap_or_default();
        let words = abi::server(server, src);
        let at = usize::from(slot) * abi::SERVER_WORDS;
        // The flags' word last: until it says "present", nothing reads the others.
        for word in
            (0..abi::SERVER_WORDS).filter(|w| *w != abi::SERVER_FLAGS_WORD).chain([abi::SERVER_FLAGS_WORD])
        {
            self.servers[at + word].store(words[word], Release);
        }
    }

    /// Writes the half that is not in force. The VIPs that name it come next.
    fn write_ring(&mut self, service: u16, ring: &Ring) -> Result<(), EngineError> {
        if usize::from(service) >= abi::SERVICES_MAX {
            return Err(EngineError::Capacity(format!("the tables hold {} services", abi::SERVICES_MAX)));
        }
        let half = 1 - self.halves.get(&service).copied().unwrap_or(1);
        let at = (usize::from(service) * 2 + usize::from(half)) * abi::RING_WORDS;
        for (place, word) in self.rings[at..at + abi::RING_WORDS].iter().zip(abi::ring(ring)) {
            place.store(word, Release);
        }
        self.halves.insert(service, half);
        Ok(())
    }

    /// Writes all VIPs to the half that is not in force, each to a place of its own, and switches.
    fn write_vips(&mut self, tables: &Tables) -> Result<(), EngineError> {
        let keys: Vec<u64> = tables.vips.keys().map(abi::vip_bits).collect();
        let multiplier = separating(&keys, self.commit[0].load(Relaxed))
            .ok_or_else(|| EngineError::Capacity(format!("no room for {} service addresses", keys.len())))?;
        let half = (self.commit[0].load(Relaxed) & 1) ^ 1;
        let size = abi::VIP_PLACES * abi::VIP_WORDS;
        let places = &self.vips[half as usize * size..][..size];
        for word in places {
            word.store(0, Relaxed);
        }
        for (key, vip) in &tables.vips {
            let ring = self.halves.get(&vip.service).copied().unwrap_or_default();
            let at = abi::vip_place(abi::vip_bits(key), multiplier) * abi::VIP_WORDS;
            for (word, value) in places[at..].iter().zip(abi::vip(key, vip, ring)) {
                word.store(value, Relaxed);
            }
        }
        self.commit[0].store((multiplier & !1) | half, Release);
        self.committed = Instant::now();
        Ok(())
    }

    fn write_address(&self, address: Ipv4Addr, tables: &Tables) -> Result<(), EngineError> {
        if tables.has_address(address) {
            let announce = u32::from(tables.announces(address));
            return self.update("addresses", &address.octets(), &announce.to_ne_bytes());
        }
        self.delete("addresses", &address.octets())
    }

    fn clear_server(&self, slot: u16) {
        let at = usize::from(slot) * abi::SERVER_WORDS;
        self.servers[at + abi::SERVER_FLAGS_WORD].store(0, Release);
    }

    /// The clock that sessions go by.
    pub(super) fn now(&self) -> u32 {
        let frame = [0u8; 64];
        self.fd("clock")
            .and_then(|clock| super::test_run::run(clock.as_raw_fd(), &frame, &mut [0u8; 64], 1))
            // A program that was loaded runs; if ever it doesn't, the clock is merely coarser.
            .map_or_else(|_| crate::now_ticks(), |(ticks, ..)| ticks)
    }

    pub(super) fn memory(&self) -> Memory<'_> {
        Memory {
            sessions: Sessions::new(&self.buckets, &self.active),
            counts: Counts { cursors: &self.cursors, active: &self.active },
            seed: self.seed,
        }
    }

    pub(super) fn counters(&self) -> Result<Counters, EngineError> {
        let per_cpu = |map: &'static str, key: u32| {
            self.maps[map]
                .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
                .map_err(|error| refused(format!("reading map {map}"), error))
                .map(Option::unwrap_or_default)
        };
        let word = |value: &[u8], at: usize| {
            value.get(at * 8..at * 8 + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
        };
        let mut counters = Counters::default();
        for reason in Reason::ALL {
            let values = per_cpu("reasons", *reason as u32)?;
            counters.reasons.insert(*reason, values.iter().map(|value| word(value, 0)).sum());
        }
        for slot in self.tables.servers.keys() {
            let values = per_cpu("server_stats", u32::from(*slot))?;
            let sum = |at| values.iter().map(|value| word(value, at)).sum();
            let server = ServerCounters { packets: sum(0), bytes: sum(1), connections: sum(2) };
            counters.servers.insert(*slot, server);
        }
        // The program spares the second counter for what every forwarded packet counts already.
        let given: u64 = counters.servers.values().map(|server| server.packets).sum();
        let local = counters.reasons.get(&Reason::Local).copied().unwrap_or_default();
        counters.reasons.insert(Reason::Forwarded, given.saturating_sub(local));
        Ok(counters)
    }

    pub(super) fn reset_server(&self, slot: u16) -> Result<(), EngineError> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(|error| refused("counting CPUs", error))?;
        let zeros = vec![vec![0u8; size_of::<[u64; 4]>()]; cpus];
        self.maps["server_stats"]
            .update_percpu(&u32::from(slot).to_ne_bytes(), &zeros, MapFlags::ANY)
            .map_err(|error| refused("writing map server_stats", error))
    }
}

/// A multiplier that gives every key a place of its own, looked for from `from` on.
fn separating(keys: &[u64], from: u64) -> Option<u64> {
    let mut multiplier = from;
    for _ in 0..100_000 {
        // Any sequence that tries many will do; this is Knuth's linear congruential one.
        multiplier =
            multiplier.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut taken = [false; abi::VIP_PLACES];
        let mut place = |bits: &u64| std::mem::replace(&mut taken[abi::vip_place(*bits, multiplier)], true);
        if !keys.iter().any(&mut place) {
            return Some(multiplier);
        }
    }
    None
}

/// A map's name in [`PINNED`]: that of its section without the prefix, where the compiler made the map of an
/// array. The BPF file system takes no name with a dot.
pub(super) fn table_name(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    name.strip_prefix(".bss.").unwrap_or(&name).to_owned()
}

/// Settings and sizes into the object before it is loaded.
fn prepare(open: &mut OpenObject, settings: Settings, adopt: Option<&Path>) -> Result<(), EngineError> {
    for mut map in open.maps_mut() {
        let name = table_name(map.name());
        if name.ends_with(".rodata") {
            let value = map.initial_value_mut().unwrap_or_default();
            let built = Settings::from_bytes(value).map(|settings| settings.abi_version);
            assert_eq!(built, Some(abi::ABI_VERSION), "abi.rs and abi.h name one version");
            value[..abi::SETTINGS_LEN].copy_from_slice(&settings.to_bytes());
        }
        if name == "sessions" {
            map.set_max_entries(settings.buckets).map_err(|error| refused("sizing sessions", error))?;
        }
        if let Some(dir) = adopt.filter(|_| PINNED.contains(&&*name)) {
            map.reuse_pinned_map(dir.join(&name)).map_err(|e| refused(format!("adopting map {name}"), e))?;
        }
    }
    Ok(())
}

/// What the data plane pinned in `dir` was loaded with.
pub(super) fn pinned_settings(dir: &Path) -> Result<Settings, EngineError> {
    let about =
        MapHandle::from_pinned_path(dir.join("about")).map_err(|e| refused("opening the pinned maps", e))?;
    about
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| refused("reading the pinned maps", error))?
        .as_deref()
        .and_then(Settings::from_bytes)
        .ok_or_else(|| EngineError::Capacity("the pinned maps say nothing about themselves".into()))
}
