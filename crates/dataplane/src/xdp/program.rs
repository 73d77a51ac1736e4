//! Loader of the director's programs and maps.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use evener_core::path::cookie;
use evener_core::path::decide::{Memory, Reason};
use evener_core::path::guesses;
use evener_core::path::mark;
use evener_core::path::ports::{POOL_BUCKETS, POOLS};
use evener_core::path::seed::Seed;
use evener_core::path::sessions::{AFFINITY_WORDS, FIRST_BUCKETS, SHARE_WORDS, buckets_for, extent_for};
use evener_core::path::tables::{NO_SERVER, SERVER_SLOTS, Tables};
use evener_core::path::unmatched;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};

use super::abi::{self, Settings};
use super::attach::Hook;
use super::content_routes::Generations;
use super::grace::{GraceMap, GracePeriod};
use super::memory::{FragmentMap, KernelMemory, STAT_WORDS};
use super::readings::KernelReadings;
use crate::kernel_routes::HostRoutes;
use crate::load::{LoadError, Refusal, load};
use crate::shared::Shared;
use crate::{Counters, DataPlane, EngineError, ServerCounters};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/director.bpf.o"));
/// Program in `OBJECT` that decides packets; the others are small.
const DIRECTOR: &str = "director";
/// Object with the TC program.
const OBJECT_TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/director_tc.bpf.o"));
const CAPABILITY: &str = "CAP_BPF and CAP_NET_ADMIN";
/// Maximum number of destinations in the route cache of user space, which is used only for packets
/// from `held`.
const ROUTES_MAX: usize = 256;

/// Maps that outlive the daemon, by their pins. Constants and internal maps do not.
pub(super) const PINNED: [&str; 45] = [
    "about",
    "commit",
    "vips",
    "handoffs",
    "vip_places",
    "answering",
    "returns",
    "fib_epoch",
    "fib_clients",
    "fib_hops",
    "addresses",
    "endpoints",
    "interfaces",
    "peers",
    "peers_in",
    "lease",
    "cookies",
    "marker",
    "unmatched",
    "guesses",
    "pools",
    "routes",
    "rings",
    "previous",
    "servers",
    "sessions",
    "sessions6",
    "ports",
    "fragments",
    "held",
    "events",
    "watch",
    "active",
    "scores",
    "limits",
    "given_now",
    "shares",
    "clients",
    "affinities",
    "extents",
    "cursors",
    "server_stats",
    "user_stats",
    "user_count",
    "reasons",
];

/// Maps that [`abi::ABI_WITHOUT_AFFINITY`] lacks. An adopted data plane without them gets new ones.
pub(super) const NEW: [&str; 2] = ["clients", "affinities"];

/// Sizes and keys of a new data plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataPlaneOptions {
    pub(super) sessions_max: usize,
    pub(super) sessions6_max: usize,
    pub(super) seed: Seed,
    /// Key of the hash tables, also for an adopted data plane. `None` means the seed of the
    /// sessions: `seed` for a new data plane, and the pinned one for an adopted one.
    pub(super) ring_seed: Option<Seed>,
    /// True if a test sets the clock.
    pub(super) clock_is_given: bool,
}

pub(super) struct Program {
    object: Object,
    /// Deciding programs by hook, loaded on first use: verifying one takes a tenth of a second. A
    /// refusal is final.
    deciding: [OnceCell<Result<Object, Refusal>>; 2],
    settings: Settings,
    maps: BTreeMap<&'static str, MapHandle>,
    memory: Arc<KernelMemory>,
    readings: Arc<KernelReadings>,
    pub(super) rings: Shared<AtomicU64>,
    pub(super) previous: Shared<AtomicU64>,
    pub(super) servers: Shared<AtomicU64>,
    pub(super) vips: Shared<AtomicU64>,
    pub(super) clients: Shared<AtomicU64>,
    pub(super) handoffs: Shared<AtomicU64>,
    pub(super) vip_places: Shared<AtomicU64>,
    pub(super) answering: Shared<AtomicU64>,
    pub(super) returns: Shared<AtomicU64>,
    pub(super) pools: Shared<AtomicU64>,
    pub(super) commit: Shared<AtomicU64>,
    pub(super) given_now: Shared<AtomicU64>,
    pub(super) interfaces: Shared<AtomicU64>,
    pub(super) peers: Shared<AtomicU64>,
    pub(super) peers_in: Shared<AtomicU64>,
    pub(super) watch: Shared<AtomicU64>,
    /// Active half of each service's ring.
    pub(super) halves: BTreeMap<u16, u8>,
    pub(super) generations: Generations,
    /// Slots of removed servers whose counters are still stored.
    pub(super) departed: BTreeSet<u16>,
    pub(super) grace: Arc<GraceMap>,
    pub(super) passing: GracePeriod,
    pub(super) tables: Arc<Tables>,
    /// True if hash maps may differ from the tables: after a failed change or an earlier daemon.
    pub(super) is_stale: bool,
}

pub(super) fn refused(what: impl Into<String>, error: libbpf_rs::Error) -> EngineError {
    // The verifier also returns EPERM, for reasons other than privileges.
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied if !may_load() => {
            EngineError::Privilege { what: what.into(), capability: CAPABILITY }
        }
        _ => EngineError::Kernel { engine: "xdp", missing: format!("{}: {error:#}", what.into()) },
    }
}

pub(super) fn not_loaded(what: &str, error: LoadError) -> EngineError {
    match error {
        LoadError::Refused(refusal) => EngineError::Refused(refusal),
        LoadError::Failed(error) => refused(what, error),
    }
}

/// True if this thread has CAP_BPF, or CAP_SYS_ADMIN, which includes it (linux/capability.h).
fn may_load() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    effective & (1 << 39 | 1 << 21) != 0
}

impl Program {
    /// Loads the programs, with the maps pinned in `adopt` or with new maps.
    pub(super) fn load(size: DataPlaneOptions, adopt: Option<&Path>) -> Result<Self, EngineError> {
        let mut settings = match adopt {
            Some(dir) => pinned_settings(dir)?,
            None => Settings {
                abi_version: abi::ABI_VERSION,
                buckets: buckets(size.sessions_max)?,
                seed: size.seed,
                jiffy_ns: if size.clock_is_given { 0 } else { abi::jiffy_ns() },
                buckets6: buckets(size.sessions6_max)?,
                fib_parts: fib_parts()?,
                ring_seed: size.seed,
            },
        };
        settings.ring_seed = size.ring_seed.unwrap_or(settings.seed);
        settings.abi_version = abi::ABI_VERSION;
        let open = || {
            let mut open = opened(OBJECT, |program| program != DIRECTOR)?;
            prepare(&mut open, settings, adopt)?;
            Ok(open)
        };
        let object = load(open, |error| not_loaded("loading the BPF programs", error))?;
        let program = Self::over(object, settings)?;
        if adopt.is_none() {
            for (word, buckets) in program.memory.extents.iter().zip(program.buckets()) {
                word.store(extent_for(FIRST_BUCKETS, buckets), Relaxed);
            }
        }
        Ok(program)
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
        let words = |name: &str, len: usize| shared(&maps, name, len);
        let clock = program_fd(&object, "clock")?.try_clone_to_owned();
        let failed = |what: &'static str| move |error| EngineError::system(what, CAPABILITY, error);
        let memory = KernelMemory {
            seed: settings.seed,
            ring_seed: settings.ring_seed,
            sessions: shared(&maps, "sessions", settings.buckets as usize)?,
            shares: words("shares", SHARE_WORDS)?,
            affinities: words("affinities", AFFINITY_WORDS)?,
            extents: words("extents", 2)?,
            sessions6: shared(&maps, "sessions6", settings.buckets6 as usize)?,
            ports: shared(&maps, "ports", POOLS * POOL_BUCKETS)?,
            active: words("active", SERVER_SLOTS)?,
            scores: shared(&maps, "scores", SERVER_SLOTS)?,
            limits: shared(&maps, "limits", SERVER_SLOTS)?,
            cursors: words("cursors", abi::SERVICES_MAX)?,
            lease: words("lease", 1)?,
            cookies: words("cookies", cookie::WORDS)?,
            marker: words("marker", mark::WORDS)?,
            unmatched: words("unmatched", unmatched::PLACES)?,
            guesses: words("guesses", guesses::WORDS)?,
            stats: words("user_stats", SERVER_SLOTS * STAT_WORDS)?,
            reasons: words("user_count", Reason::ALL.len())?,
            fragments: FragmentMap(second(&maps["fragments"])?),
            routes: HostRoutes::open(ROUTES_MAX).map_err(failed("asking for routes"))?,
            clock: clock.map_err(failed("keeping the clock"))?,
        };
        let memory = Arc::new(memory);
        let grace = Arc::new(GraceMap::new()?);
        let readings = KernelReadings {
            memory: Arc::clone(&memory),
            grace: Arc::clone(&grace),
            server_stats: second(&maps["server_stats"])?,
            reasons: second(&maps["reasons"])?,
            slots: ArcSwap::default(),
        };
        let mut passing = GracePeriod::default();
        // Packets may still use the tables of an earlier daemon.
        passing.begin(&grace);
        let program = Program {
            settings,
            memory,
            readings: Arc::new(readings),
            previous: words("previous", abi::SERVICES_MAX * abi::PREVIOUS_WORDS)?,
            peers: words("peers", 2 * abi::PEER_PLACES)?,
            peers_in: words("peers_in", 1)?,
            watch: words("watch", abi::WATCH_WORDS)?,
            rings: words("rings", 2 * abi::SERVICES_MAX * abi::RING_WORDS)?,
            servers: words("servers", SERVER_SLOTS * abi::SERVER_WORDS)?,
            vips: words("vips", 2 * abi::VIP_PLACES * abi::VIP_WORDS)?,
            clients: words("clients", abi::VIP_IDS * abi::AFFINITY_ENTRY_WORDS)?,
            handoffs: words("handoffs", 2 * abi::VIP_PLACES * abi::HANDOFF_WORDS)?,
            vip_places: words("vip_places", 2 * abi::VIP_PLACE_WORDS)?,
            answering: words("answering", 1)?,
            returns: words("returns", abi::RETURN_WORDS)?,
            pools: words("pools", SERVER_SLOTS)?,
            commit: words("commit", 1)?,
            given_now: words("given_now", 1)?,
            interfaces: words("interfaces", abi::INTERFACE_PLACES * abi::INTERFACE_WORDS)?,
            halves: BTreeMap::new(),
            generations: Generations::default(),
            departed: BTreeSet::new(),
            grace,
            passing,
            is_stale: true,
            tables: Arc::default(),
            deciding: Default::default(),
            object,
            maps,
        };
        program.update("about", &0u32.to_ne_bytes(), &settings.to_bytes())?;
        Ok(program)
    }

    /// Returns the deciding program for this hook, and loads it if necessary.
    pub(super) fn deciding(&self, hook: Hook) -> Result<BorrowedFd<'_>, EngineError> {
        let (object, name) = match hook {
            Hook::Xdp => (OBJECT, DIRECTOR),
            Hook::Tc => (OBJECT_TC, "director_tc"),
        };
        let place = &self.deciding[hook as usize];
        if place.get().is_none() {
            let open = || {
                let mut open = opened(object, |program| program == name)?;
                self.share(&mut open).map_err(|error| refused(format!("preparing {name}"), error))?;
                Ok(open)
            };
            let loaded = match load(open, |error| not_loaded(&format!("loading {name}"), error)) {
                Ok(object) => Ok(object),
                Err(EngineError::Refused(refusal)) => Err(refusal),
                Err(error) => return Err(error),
            };
            // The cell is still empty.
            let _ = place.set(loaded);
        }
        match place.get() {
            Some(Err(refusal)) => Err(EngineError::Refused(refusal.clone())),
            Some(Ok(object)) => program_fd(object, name),
            None => program_fd(&self.object, name),
        }
    }

    /// Copies the settings to another object, and shares maps of the same name with it.
    pub(super) fn share(&self, open: &mut OpenObject) -> libbpf_rs::Result<()> {
        for mut map in open.maps_mut() {
            let name = table_name(map.name());
            if name.ends_with(".rodata") {
                let value = map.initial_value_mut().unwrap_or_default();
                if let Some(place) = value.get_mut(..abi::SETTINGS_LEN) {
                    place.copy_from_slice(&self.settings.to_bytes());
                }
            } else if let Some(ours) = self.maps.get(name.as_str()) {
                map.reuse_fd(ours.as_fd())?;
            }
        }
        Ok(())
    }

    /// Returns the file descriptor of a small program, for attaching or running.
    pub(super) fn fd(&self, name: &str) -> Result<BorrowedFd<'_>, EngineError> {
        program_fd(&self.object, name)
    }

    /// Returns another handle of a map.
    pub(super) fn map(&self, name: &str) -> Result<MapHandle, EngineError> {
        second(&self.maps[name])
    }

    /// Maps the trace filter and the count of lost events again, for the reader.
    pub(super) fn second_watch(&self) -> Result<Shared<AtomicU64>, EngineError> {
        shared(&self.maps, "watch", abi::WATCH_WORDS)
    }

    /// Maps the epoch of route changes again, for the monitor.
    pub(super) fn second_fib_epoch(&self) -> Result<Shared<AtomicU64>, EngineError> {
        shared(&self.maps, "fib_epoch", 1)
    }

    /// Returns a map for iteration.
    pub(super) fn borrowed(&self, name: &str) -> &MapHandle {
        &self.maps[name]
    }

    /// Pins the maps in `dir` that are not pinned yet.
    pub(super) fn pin_maps(&mut self, dir: &Path) -> Result<(), EngineError> {
        std::fs::create_dir_all(dir).map_err(|error| super::pins::refused(dir, error))?;
        for (name, map) in self.maps.iter_mut().filter(|(name, _)| !dir.join(name).exists()) {
            map.pin(dir.join(name)).map_err(|error| refused(format!("pinning map {name}"), error))?;
        }
        Ok(())
    }

    pub(super) fn update(&self, map: &'static str, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.maps[map].update(key, value, MapFlags::ANY).map_err(|e| refused(format!("writing map {map}"), e))
    }

    pub(super) fn delete(&self, map: &'static str, key: &[u8]) -> Result<(), EngineError> {
        match self.maps[map].delete(key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(refused(format!("writing map {map}"), error))
            }
            _ => Ok(()),
        }
    }

    /// Current time of the sessions' clock, in ticks.
    pub(super) fn now(&self) -> u32 {
        self.memory.now()
    }

    pub(super) fn memory(&self) -> Memory<'_> {
        self.memory.memory()
    }

    /// Returns the session memory for another thread.
    pub(super) fn shared_memory(&self) -> Arc<KernelMemory> {
        Arc::clone(&self.memory)
    }

    pub(super) fn counters(&self) -> Result<Counters, EngineError> {
        self.readings.counters()
    }

    /// Returns counters and session memory for other threads.
    pub(super) fn readings(&self) -> &Arc<KernelReadings> {
        &self.readings
    }

    /// Makes readers read the counters of all servers in force, and of removed servers that still
    /// have counters.
    pub(super) fn count_servers(&self) {
        let slots = self.tables.servers.keys().chain(&self.departed);
        self.readings.slots.store(Arc::new(slots.copied().collect()));
    }

    /// Adds a server's counters to the counters of removed servers, and resets the server's
    /// counters.
    pub(super) fn reset_server(&mut self, slot: u16) -> Result<(), EngineError> {
        let had = self.readings.server(slot)?;
        let cpus = libbpf_rs::num_possible_cpus().map_err(|error| refused("counting CPUs", error))?;
        let zeros = vec![vec![0u8; STAT_WORDS * size_of::<u64>()]; cpus];
        self.maps["server_stats"]
            .update_percpu(&u32::from(slot).to_ne_bytes(), &zeros, MapFlags::ANY)
            .map_err(|error| refused("writing map server_stats", error))?;
        self.memory.clear(slot);
        self.memory.count(NO_SERVER, had);
        self.departed.remove(&slot);
        self.count_servers();
        Ok(())
    }

    /// Number of buckets of the session tables.
    pub(super) fn buckets(&self) -> [usize; 2] {
        [self.memory.sessions.len(), self.memory.sessions6.len()]
    }

    /// Resets counters of slots without a server, which an earlier daemon left.
    pub(super) fn reset_others(&mut self) {
        for slot in NO_SERVER + 1..SERVER_SLOTS as u16 {
            let is_others = !self.tables.servers.contains_key(&slot)
                && self.readings.server(slot).is_ok_and(|counted| counted != ServerCounters::default());
            if is_others && let Err(error) = self.reset_server(slot) {
                tracing::warn!(%error, "failed to clear the counters of a removed server");
            }
        }
    }
}

/// Number of parts of 32 KB in each CPU's route cache. With few CPUs the cache is enough for a
/// hundred thousand clients. With many CPUs all caches together have at most 32 MB.
pub(super) fn fib_parts() -> Result<u32, EngineError> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(|error| refused("counting CPUs", error))?;
    Ok((1024 / cpus.max(1)).clamp(1, 32) as u32)
}

pub(super) fn buckets(sessions_max: usize) -> Result<u32, EngineError> {
    u32::try_from(buckets_for(sessions_max))
        .map_err(|_| EngineError::Capacity(format!("{sessions_max} sessions are too many")))
}

/// Opens an object with all its maps, and with autoload only for `wanted` programs.
fn opened(object: &[u8], wanted: impl Fn(&str) -> bool) -> Result<OpenObject, EngineError> {
    let mut open = ObjectBuilder::default()
        .name("evener")
        .and_then(|builder| builder.open_memory(object))
        .map_err(|error| refused("opening the BPF object", error))?;
    for mut program in open.progs_mut() {
        let is_wanted = program.name().to_str().is_some_and(&wanted);
        program.set_autoload(is_wanted);
    }
    Ok(open)
}

fn program_fd<'o>(object: &'o Object, name: &str) -> Result<BorrowedFd<'o>, EngineError> {
    object
        .progs()
        .find(|program| program.name() == OsStr::new(name))
        // SAFETY: the descriptor belongs to the object, which the borrow doesn't outlive.
        .map(|program| unsafe { BorrowedFd::borrow_raw(program.as_fd().as_raw_fd()) })
        .ok_or_else(|| EngineError::Capacity(format!("the BPF object has no program {name}")))
}

fn second(map: &MapHandle) -> Result<MapHandle, EngineError> {
    MapHandle::try_from(map).map_err(|error| refused("opening a map", error))
}

fn shared<T: crate::shared::Plain>(
    maps: &BTreeMap<&'static str, MapHandle>,
    name: &str,
    len: usize,
) -> Result<Shared<T>, EngineError> {
    Shared::map(maps[name].as_fd(), len)
        .map_err(|error| EngineError::system(format!("mapping {name}"), CAPABILITY, error))
}

/// Returns a map's name in [`PINNED`]. The compiler names a global array's map after its section,
/// with a prefix. The BPF file system allows no dot in names.
pub(super) fn table_name(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    name.strip_prefix(".bss.").unwrap_or(&name).to_owned()
}

/// Sets settings and map sizes of an object before it is loaded.
pub(super) fn prepare(
    open: &mut OpenObject,
    settings: Settings,
    adopt: Option<&Path>,
) -> Result<(), EngineError> {
    for mut map in open.maps_mut() {
        let name = table_name(map.name());
        if name.ends_with(".rodata") {
            let value = map.initial_value_mut().unwrap_or_default();
            let built = Settings::from_bytes(value).map(|settings| settings.abi_version);
            assert_eq!(built, Some(abi::ABI_VERSION), "abi.rs and abi.h name one version");
            value[..abi::SETTINGS_LEN].copy_from_slice(&settings.to_bytes());
        }
        let entries = match name.as_str() {
            "sessions" => Some(settings.buckets),
            "sessions6" => Some(settings.buckets6),
            "fib_clients" => Some(settings.fib_parts),
            _ => None,
        };
        if let Some(entries) = entries {
            map.set_max_entries(entries).map_err(|error| refused(format!("sizing {name}"), error))?;
        }
        if let Some(dir) = adopt
            && PINNED.contains(&&*name)
            && (!NEW.contains(&&*name) || dir.join(&name).exists())
        {
            map.reuse_pinned_map(dir.join(&name)).map_err(|e| refused(format!("adopting map {name}"), e))?;
        }
    }
    Ok(())
}

/// Returns the settings with which the data plane pinned in `dir` was loaded.
pub(super) fn pinned_settings(dir: &Path) -> Result<Settings, EngineError> {
    let about =
        MapHandle::from_pinned_path(dir.join("about")).map_err(|e| refused("opening the pinned maps", e))?;
    about
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| refused("reading the pinned maps", error))?
        .as_deref()
        .and_then(Settings::from_bytes)
        .ok_or_else(|| EngineError::Capacity("the pinned maps have no version".into()))
}
