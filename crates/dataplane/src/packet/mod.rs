//! Packet engine: the papers' program in user space, on AF_PACKET rings. It requires only
//! CAP_NET_RAW, also in a user namespace.
//!
//! Each interface has threads that share its frames by flow. A thread reads a batch of frames from
//! the ring that it shares with the kernel ([`ring`]). `evener-core` decides each frame in place
//! ([`frame`]), and one call sends the batch ([`outbox`]). Sessions and counters are in a mapped
//! file ([`store`]), which a restarted daemon adopts. [`guard`] drops the engine's packets before
//! the host's own stack receives them.

mod fragments;
mod frame;
mod guard;
pub(crate) mod outbox;
mod ring;
mod rules;
mod segments;
mod store;
mod tally;
mod trace;
mod virtio;
mod worker;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;
use evener_core::farm::plan::VIPS_MAX;
use evener_core::path::decide::Memory;
use evener_core::path::seed::Seed;
use evener_core::path::tables::SERVICES_MAX;
use evener_core::path::tables::{SERVER_SLOTS, Tables};
use nix::net::if_::if_nametoindex;

use crate::events::{EventSource, TraceFilter};
use crate::installed::{MissingPart, Part};
use crate::kernel_routes::HostRoutes;
use crate::link::name_of;
use crate::rehandoff::RehandoffSlot;
use crate::{Counters, DataPlane, Engine, EngineError, RehandoffSink};
use fragments::FirstFragments;
use guard::Guard;
use store::Store;
use trace::EventReceiver;
use worker::{WorkerShared, Workers};

pub(crate) use virtio::VIRTIO_LEN;

/// Maximum number of destinations in the route cache.
const ROUTES_MAX: usize = 65_536;

/// Start options of the packet engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of IPv4 sessions that the table is sized for.
    pub sessions_max: usize,
    /// Number of IPv6 sessions that the table is sized for.
    pub sessions6_max: usize,
    /// Key of the flow hash, for a new table.
    pub seed: Seed,
    /// Key of the hash that picks from hash tables; `None` for the key of the flow hash.
    pub ring_seed: Option<Seed>,
    /// Number of threads per interface; 0 means 1.
    pub threads: usize,
    /// File of sessions and counters. Its folder must exist on a tmpfs.
    pub session_file: PathBuf,
}

#[derive(Debug)]
pub struct PacketEngine {
    common: Arc<WorkerShared>,
    workers: BTreeMap<u32, Workers>,
    guard: Guard,
    threads: usize,
    tables: Arc<Tables>,
    running: Option<Tables>,
    /// `None` once a caller has taken the reader.
    receiver: Option<EventReceiver>,
}

/// Removes the session file and the guard that an earlier packet engine left, when another engine
/// starts.
pub fn clear_left(session_file: &Path) {
    if std::fs::remove_file(session_file).is_ok() {
        guard::remove_stale();
    }
}

impl PacketEngine {
    /// Opens the session file and adopts the state that an earlier daemon left in it. The engine
    /// receives frames once the first tables name interfaces. Routes come from the network
    /// namespace of the calling thread. Worker threads belong to the namespace of the thread that
    /// applies tables, so both must be the same.
    ///
    /// # Errors
    /// Fails if privileges are missing or the session file is unusable.
    pub fn start(options: Options) -> Result<Self, EngineError> {
        // Packets will need the privilege, so a missing one is reported before anything changes.
        crate::link::packet_socket()
            .map_err(|error| EngineError::system("opening a packet socket", "CAP_NET_RAW", error))?;
        let loopback = if_nametoindex("lo").map_err(|_| EngineError::Interface {
            interface: "lo".into(),
            why: "it is missing; frames for a server on this host go by it".into(),
        })?;
        let routes = HostRoutes::open(ROUTES_MAX)
            .map_err(|error| EngineError::system("asking for routes", "access to netlink", error))?;
        let (store, running) = Store::open(&options)?;
        let (event_sender, receiver) = trace::channel();
        let common = Arc::new(WorkerShared {
            tables: ArcSwap::default(),
            withheld: ArcSwap::default(),
            store,
            fragments: FirstFragments::default(),
            routes,
            loopback,
            event_sender,
            moves: RehandoffSlot::default(),
        });
        Ok(PacketEngine {
            common,
            workers: BTreeMap::new(),
            guard: Guard::after(running.is_some()),
            threads: options.threads.max(1),
            tables: Arc::new(running.clone().unwrap_or_default()),
            running,
            receiver: Some(receiver),
        })
    }

    /// Starts workers for interfaces that have none. Until the new tables are in force, the workers
    /// pass the frames of these interfaces.
    fn workers_for(&self, tables: &Tables) -> Result<BTreeMap<u32, Workers>, EngineError> {
        let new = tables.interfaces.keys().filter(|ifindex| !self.workers.contains_key(ifindex));
        new.map(|ifindex| {
            let workers = Workers::start(&self.common, *ifindex, self.threads);
            Ok((*ifindex, workers.map_err(|error| attach_error(*ifindex, error))?))
        })
        .collect()
    }
}

impl Engine for PacketEngine {
    fn kind(&self) -> &'static str {
        "packet"
    }

    fn describe(&self) -> String {
        let names: Vec<_> = self.workers.keys().map(|ifindex| name_of(*ifindex)).collect();
        let (threads, guard) = (self.threads, self.guard.describe());
        format!("packet ({} on {threads} threads each, {guard})", names.join(", "))
    }

    fn running(&self) -> Option<&Tables> {
        self.running.as_ref()
    }

    fn now(&self) -> u32 {
        crate::now_ticks()
    }

    fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    fn apply(&mut self, tables: &Arc<Tables>) -> Result<(), EngineError> {
        check(tables)?;
        let workers = self.workers_for(tables)?;
        // The guard is changed before the tables. A packet that reaches neither the stack nor a
        // server is retransmitted, but a connection that the stack resets is lost. No later
        // operation can fail.
        let withheld = self.guard.apply(tables)?;
        self.common.withheld.store(Arc::new(withheld));
        self.common.store.record(tables);
        self.common.tables.store(Arc::clone(tables));
        self.tables = Arc::clone(tables);
        self.workers.extend(workers);
        self.workers.retain(|ifindex, _| tables.interfaces.contains_key(ifindex));
        self.running = None;
        Ok(())
    }

    fn installed(&self) -> Vec<Part> {
        self.guard.has_rules().then_some(Part::Guard).into_iter().collect()
    }

    fn restore(&mut self) -> Vec<MissingPart> {
        self.guard.restore().map(|restored| MissingPart { part: Part::Guard, restored }).into_iter().collect()
    }

    fn memory(&self) -> Memory<'_> {
        self.common.memory()
    }

    fn counters(&self) -> Result<Counters, EngineError> {
        Ok(self.common.store.counters())
    }

    fn data_plane(&self) -> Arc<dyn DataPlane> {
        Arc::clone(&self.common) as Arc<dyn DataPlane>
    }

    fn reset_server(&mut self, slot: u16) -> Result<(), EngineError> {
        if usize::from(slot) < SERVER_SLOTS {
            self.common.store.reset_server(slot);
        }
        Ok(())
    }

    fn buckets(&self) -> [usize; 2] {
        self.common.store.buckets()
    }

    fn moves(&mut self, mover: RehandoffSink) {
        self.common.moves.set(mover);
    }

    fn watch(&mut self, watch: &TraceFilter) -> Result<(), EngineError> {
        watch.check()?;
        self.common.event_sender.watch.store(Arc::new(watch.clone()));
        Ok(())
    }

    fn events(&mut self) -> Result<Box<dyn EventSource>, EngineError> {
        let receiver = self.receiver.take().ok_or_else(crate::events::read_already)?;
        Ok(Box::new(receiver))
    }

    /// Stops the workers, so the engine forwards nothing. With `keep`, the session file and the
    /// guard stay for the next daemon: packets that arrive meanwhile are retransmitted and not
    /// reset.
    fn leave(mut self: Box<Self>, keep: bool) -> Result<(), EngineError> {
        self.workers.clear();
        if keep {
            return Ok(());
        }
        let unguarded = self.guard.remove();
        let removed = self.common.store.remove();
        unguarded?;
        removed.map_err(|error| EngineError::system("removing the session file", "access", error))
    }
}

impl DataPlane for WorkerShared {
    fn memory(&self) -> Memory<'_> {
        WorkerShared::memory(self)
    }

    fn now(&self) -> u32 {
        crate::now_ticks()
    }

    fn counters(&self) -> Result<Counters, EngineError> {
        Ok(self.store.counters())
    }

    fn count_choice(&self, slot: u16) {
        if usize::from(slot) < SERVER_SLOTS {
            let [_, _, connections] = self.store.server(slot);
            connections.fetch_add(1, Relaxed);
        }
    }
}

/// Checks that the session file has room for these tables.
fn check(tables: &Tables) -> Result<(), EngineError> {
    let check_capacity = |what: &str, needed: usize, max: usize| match needed > max {
        true => {
            Err(EngineError::Capacity(format!("the tables hold {max} {what}, and {needed} are asked for")))
        }
        false => Ok(()),
    };
    let slots = tables.servers.keys().last().map_or(0, |slot| usize::from(*slot) + 1);
    let services = tables.rings.keys().last().map_or(0, |service| usize::from(*service) + 1);
    check_capacity("service addresses", tables.vips.len(), VIPS_MAX)?;
    check_capacity("services", services, SERVICES_MAX)?;
    check_capacity("servers", slots, SERVER_SLOTS)
}

fn attach_error(ifindex: u32, error: io::Error) -> EngineError {
    let refuse = |why: &str| EngineError::Interface { interface: name_of(ifindex), why: why.into() };
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => refuse("it is gone"),
        Some(libc::ENETDOWN) => refuse("it is down; set it up first"),
        Some(libc::ENOMEM) => refuse("there is no memory for its ring of 8 MiB a thread; use fewer threads"),
        _ => EngineError::system(format!("taking frames from {}", name_of(ifindex)), "CAP_NET_RAW", error),
    }
}
