//! Engine that processes no packets, for a daemon whose file has no service that forwards packets.
//! It needs no privileges.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use evener_core::path::cookie::{SharedKeys, WORDS};
use evener_core::path::decide::{Memory, Reason};
use evener_core::path::fragments::{FragmentKey, Fragments, Track};
use evener_core::path::guesses::Guesses;
use evener_core::path::lease::Lease;
use evener_core::path::mark::{NO_MARKER, SharedMarker};
use evener_core::path::ports::Ports;
use evener_core::path::reply_hops::{FibResult, Routes};
use evener_core::path::seed::Seed;
use evener_core::path::select::Counts;
use evener_core::path::sessions::{AffinityCounts, Bucket4, Bucket6, Counted, SHARE_WORDS, Sessions, Shares};
use evener_core::path::tables::Tables;
use evener_core::path::unmatched::Unmatched;

use crate::events::{EventSource, TraceEvent, TraceFilter};
use crate::installed::{MissingPart, Part};
use crate::{Counters, DataPlane, Engine, EngineError, RehandoffSink};

/// Engine that processes no packets.
#[derive(Debug)]
pub struct IdleEngine {
    tables: Arc<Tables>,
    memory: Arc<EmptyMemory>,
}

/// Empty session memory: tables of one bucket that stays empty.
#[derive(Debug)]
struct EmptyMemory {
    four: [Bucket4; 1],
    six: [Bucket6; 1],
    shares: [AtomicU64; SHARE_WORDS],
    lease: AtomicU64,
    cookies: [AtomicU64; WORDS],
    seed: Seed,
}

impl IdleEngine {
    /// Returns an engine. `seed` is only returned in the engine's memory; nothing is hashed.
    pub fn new(seed: Seed) -> IdleEngine {
        let memory = EmptyMemory {
            four: [Bucket4::default()],
            six: [Bucket6::default()],
            shares: [const { AtomicU64::new(0) }; SHARE_WORDS],
            lease: AtomicU64::new(0),
            cookies: [const { AtomicU64::new(0) }; WORDS],
            seed,
        };
        IdleEngine { tables: Arc::default(), memory: Arc::new(memory) }
    }
}

impl Fragments for EmptyMemory {
    fn find(&self, _: &FragmentKey) -> Option<Track> {
        None
    }
    fn note(&self, _: &FragmentKey, _: Track) {}
}

impl Routes for EmptyMemory {
    fn hop(&self, _: u32, _: IpAddr, _: IpAddr) -> FibResult {
        FibResult::None
    }
    fn mtu(&self, _: u32) -> Option<u16> {
        None
    }
}

impl DataPlane for EmptyMemory {
    fn memory(&self) -> Memory<'_> {
        let counted = Counted { active: &[], shares: Shares(&self.shares), affinity: AffinityCounts(&[]) };
        Memory {
            sessions: Sessions::new(&self.four, &self.six, counted),
            counts: Counts { cursors: &[], active: &[], scores: &[], limits: &[] },
            ports: Ports::new(&[]),
            fragments: self,
            routes: self,
            seed: self.seed,
            ring_seed: self.seed,
            lease: Lease(&self.lease),
            cookies: SharedKeys(&self.cookies),
            marker: SharedMarker(&NO_MARKER),
            unmatched: Unmatched(&[]),
            guesses: Guesses(&[]),
        }
    }

    fn now(&self) -> u32 {
        crate::now_ticks()
    }

    fn counters(&self) -> Result<Counters, EngineError> {
        let reasons = Reason::ALL.iter().map(|reason| (*reason, 0)).collect();
        Ok(Counters { reasons, ..Counters::default() })
    }

    fn count_choice(&self, _: u16) {}
}

/// Event source without events.
struct NoEvents;

impl EventSource for NoEvents {
    fn read(&mut self, patience: Duration) -> io::Result<Vec<TraceEvent>> {
        std::thread::sleep(patience);
        Ok(Vec::new())
    }

    fn lost(&self) -> u64 {
        0
    }
}

impl Engine for IdleEngine {
    fn kind(&self) -> &'static str {
        "none"
    }

    fn describe(&self) -> String {
        "none: no service of this file sends packets on".to_owned()
    }

    fn running(&self) -> Option<&Tables> {
        None
    }

    fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    fn apply(&mut self, tables: &Arc<Tables>) -> Result<(), EngineError> {
        if !tables.vips.is_empty() {
            let why = "this daemon began without services that send packets on, and has no engine for them: restart it";
            return Err(EngineError::Host(why.to_owned()));
        }
        self.tables = Arc::clone(tables);
        Ok(())
    }

    fn installed(&self) -> Vec<Part> {
        Vec::new()
    }

    fn restore(&mut self) -> Vec<MissingPart> {
        Vec::new()
    }

    fn memory(&self) -> Memory<'_> {
        self.memory.memory()
    }

    fn now(&self) -> u32 {
        self.memory.now()
    }

    fn counters(&self) -> Result<Counters, EngineError> {
        self.memory.counters()
    }

    fn data_plane(&self) -> Arc<dyn DataPlane> {
        Arc::clone(&self.memory) as Arc<dyn DataPlane>
    }

    fn reset_server(&mut self, _: u16) -> Result<(), EngineError> {
        Ok(())
    }

    fn buckets(&self) -> [usize; 2] {
        [self.memory.four.len(), self.memory.six.len()]
    }

    fn watch(&mut self, watch: &TraceFilter) -> Result<(), EngineError> {
        watch.check()
    }

    fn events(&mut self) -> Result<Box<dyn EventSource>, EngineError> {
        Ok(Box::new(NoEvents))
    }

    fn moves(&mut self, _: RehandoffSink) {}

    fn leave(self: Box<Self>, _: bool) -> Result<(), EngineError> {
        Ok(())
    }
}
