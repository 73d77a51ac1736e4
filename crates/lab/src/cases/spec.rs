//! Runs cases on the core, which is the specification.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use evener_core::net::packet::{HEADROOM, Packet as CorePacket};
use evener_core::path::cookie::{Keys, Schedule, SharedKeys, WORDS};
use evener_core::path::decide::{Decision, Memory, Reason, Verdict, decide, slow_path};
use evener_core::path::fragments::{FragmentKey, Fragments, PATIENCE_MS, Track};
use evener_core::path::guesses::{self, Guesses};
use evener_core::path::lease;
use evener_core::path::mark::{self, SharedMarker};
use evener_core::path::ports::{POOL_BUCKETS, POOLS, Ports};
use evener_core::path::select::Counts;
use evener_core::path::sessions::{
    Bucket4, Bucket6, Counted, SHARE_WORDS, Sessions, Shares, State, buckets_for, ticks,
};
use evener_core::path::tables::{SERVER_SLOTS, Tables};
use evener_core::path::unmatched::{self, Unmatched};

use super::routes::{Route, RoutingTable};
use super::{Case, Exit, FIRST_EPOCH, Lease, MARKER, Packet, SEED, Seen, Subject, keys};

/// [`decide`] with its own memory and clock.
#[derive(Debug, Default)]
pub struct Spec {
    tables: Arc<Tables>,
    routes: Arc<Vec<Route>>,
    four: Vec<Bucket4>,
    six: Vec<Bucket6>,
    ports: Vec<Bucket6>,
    fragments: FirstFragments,
    active: Vec<AtomicU64>,
    scores: Vec<AtomicU16>,
    limits: Vec<AtomicU32>,
    shares: Vec<AtomicU64>,
    cursors: Vec<AtomicU64>,
    held: Vec<Held>,
    lease: AtomicU64,
    cookies: [AtomicU64; WORDS],
    marker: [AtomicU64; mark::WORDS],
    unmatched: Vec<AtomicU64>,
    guesses: Vec<AtomicU64>,
    is_traced: bool,
    now: u32,
}

#[derive(Debug)]
struct Held {
    ingress: u32,
    frame: Vec<u8>,
    until: u32,
}

/// First fragments, without a limit.
#[derive(Debug, Default)]
struct FirstFragments(Mutex<BTreeMap<FragmentKey, Track>>);

impl Fragments for FirstFragments {
    fn find(&self, key: &FragmentKey) -> Option<Track> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    fn note(&self, key: &FragmentKey, track: Track) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(*key, track);
    }
}

impl Spec {
    fn decide(&self, ingress: u32, frame: &[u8]) -> (Decision, Vec<u8>) {
        let routes = RoutingTable { routes: &self.routes, interfaces: &self.tables.interfaces };
        let memory = Memory {
            sessions: self.sessions_table(),
            counts: Counts {
                cursors: &self.cursors,
                active: &self.active,
                scores: &self.scores,
                limits: &self.limits,
            },
            ports: Ports::new(&self.ports),
            fragments: &self.fragments,
            routes: &routes,
            seed: SEED,
            ring_seed: SEED,
            lease: lease::Lease(&self.lease),
            cookies: SharedKeys(&self.cookies),
            marker: SharedMarker(&self.marker),
            unmatched: Unmatched(&self.unmatched),
            guesses: Guesses(&self.guesses),
        };
        let mut buffer = [&[0; HEADROOM], frame].concat();
        let mut packet = CorePacket::new(&mut buffer, HEADROOM, ingress);
        let decide = if self.is_traced { slow_path } else { decide };
        let decision = decide(&self.tables, &memory, &mut packet, self.now);
        (decision, packet.frame().to_vec())
    }

    fn sessions_table(&self) -> Sessions<'_> {
        let counted = Counted { active: &self.active, shares: Shares(&self.shares), ..Counted::NOTHING };
        Sessions::new(&self.four, &self.six, counted)
    }

    /// Decides held frames again and returns the released frames.
    fn release(&mut self, reasons: &mut BTreeMap<Reason, u64>) -> Vec<(Exit, Vec<u8>)> {
        let mut released = Vec::new();
        for held in mem::take(&mut self.held) {
            let (decision, frame) = self.decide(held.ingress, &held.frame);
            match exit(decision.verdict) {
                Exit::Held if held.until.wrapping_sub(self.now) as i32 > 0 => self.held.push(held),
                Exit::Held => {}
                exit => {
                    count(&decision, reasons);
                    released.push((exit, frame));
                }
            }
        }
        released
    }
}

fn exit(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Forward { ifindex } => Exit::Interface(ifindex),
        Verdict::Pass | Verdict::HostStack { .. } => Exit::Host,
        Verdict::Drop => Exit::Nowhere,
        Verdict::Hold => Exit::Held,
    }
}

fn count(decision: &Decision, reasons: &mut BTreeMap<Reason, u64>) {
    for reason in decision.reasons() {
        *reasons.entry(reason).or_default() += 1;
    }
}

impl Subject for Spec {
    fn name(&self) -> &'static str {
        "core"
    }

    fn takes(&self, _frame: &[u8]) -> bool {
        true
    }

    fn begin(&mut self, case: &Case) -> Result<()> {
        let buckets = buckets_for(case.sessions_max);
        *self = Spec {
            tables: Arc::clone(&case.tables),
            routes: Arc::clone(&case.routes),
            four: (0..buckets).map(|_| Bucket4::default()).collect(),
            six: (0..buckets).map(|_| Bucket6::default()).collect(),
            ports: (0..POOLS * POOL_BUCKETS).map(|_| Bucket6::default()).collect(),
            active: (0..SERVER_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            scores: (0..SERVER_SLOTS).map(|_| AtomicU16::new(0)).collect(),
            limits: (0..SERVER_SLOTS).map(|_| AtomicU32::new(0)).collect(),
            shares: (0..SHARE_WORDS).map(|_| AtomicU64::new(0)).collect(),
            unmatched: (0..unmatched::PLACES).map(|_| AtomicU64::new(0)).collect(),
            guesses: (0..guesses::WORDS).map(|_| AtomicU64::new(0)).collect(),
            cursors: case.tables.rings.keys().map(|_| AtomicU64::new(0)).collect(),
            // Starts shortly before the clock wraps, where mistakes are most likely.
            now: u32::MAX - 50,
            ..Spec::default()
        };
        for (slot, limit) in &case.limits {
            self.limits[usize::from(*slot)] = AtomicU32::new(*limit);
        }
        self.sessions_table().share(&self.tables);
        SharedMarker(&self.marker).set(&MARKER);
        self.keys(&keys(FIRST_EPOCH))
    }

    fn change(&mut self, tables: &Arc<Tables>) -> Result<()> {
        self.tables = Arc::clone(tables);
        self.sessions_table().share(tables);
        Ok(())
    }

    fn lease(&mut self, lease: Lease) -> Result<()> {
        lease::Lease(&self.lease).set(lease.until(self.now));
        Ok(())
    }

    fn keys(&mut self, keys: &Keys) -> Result<()> {
        SharedKeys(&self.cookies).set(&Schedule::fixed(keys, self.now));
        Ok(())
    }

    fn guessed(&mut self) -> Result<()> {
        Guesses(&self.guesses).use_up(self.now);
        Ok(())
    }

    /// The core has no trace, but traced packets take the slow path.
    fn trace(&mut self, clients: &BTreeSet<IpAddr>) -> Result<()> {
        self.is_traced = !clients.is_empty();
        Ok(())
    }

    fn meet(&mut self, packet: &Packet) -> Result<Seen> {
        let (decision, frame) = self.decide(packet.ingress, &packet.frame);
        let mut reasons = BTreeMap::new();
        count(&decision, &mut reasons);
        let exit = exit(decision.verdict);
        let released = match exit {
            // A moving connection's frame does not wait for another packet.
            Exit::Held if decision.reason == Reason::FragmentHeld => {
                let until = self.now.wrapping_add(ticks(PATIENCE_MS));
                self.held.push(Held { ingress: packet.ingress, frame: frame.clone(), until });
                Vec::new()
            }
            _ => self.release(&mut reasons),
        };
        Ok(Seen { exit, reasons, frame, released })
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now.wrapping_add(ticks(ms) + 1);
    }

    fn sessions(&self) -> Vec<State> {
        self.sessions_table().list(self.now).map(|session| session.value.state()).collect()
    }
}
