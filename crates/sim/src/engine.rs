//! Engine in memory: tables, sessions, and writes that fail on request. After a failure the earlier
//! writes either stay in force or are rolled back, because not every real engine can roll back.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::path::content;
use evener_core::path::cookie::{SharedKeys, WORDS};
use evener_core::path::decide::{Decision, Memory, decide};
use evener_core::path::fragments::{FragmentKey, Fragments, Track};
use evener_core::path::guesses::Guesses;
use evener_core::path::lease::Lease;
use evener_core::path::mark::{Marker, SharedMarker, WORDS as MARKER_WORDS};
use evener_core::path::ports::Ports;
use evener_core::path::reply_hops::{FibResult, Routes};
use evener_core::path::seed::Seed;
use evener_core::path::select::Counts;
use evener_core::path::sessions::{Bucket4, Bucket6, Counted, SHARE_WORDS, Sessions, Shares, buckets_for};
use evener_core::path::tables::{Delta, SERVER_SLOTS, Tables};
use evener_core::path::unmatched::Unmatched;

/// Number of sessions of the model, more than its clients ever need.
const SESSIONS: usize = 256;

/// Key of the marks of forwarded packets.
pub(crate) const MARK_KEY: Seed = Seed(9, 10);

/// Memory without fragments and routes: packets of the model are never fragmented, and replies
/// bypass the director.
#[derive(Debug)]
struct Nothing;

impl Fragments for Nothing {
    fn find(&self, _: &FragmentKey) -> Option<Track> {
        None
    }
    fn note(&self, _: &FragmentKey, _: Track) {}
}

impl Routes for Nothing {
    fn hop(&self, _: u32, _: IpAddr, _: IpAddr) -> FibResult {
        FibResult::None
    }
    fn mtu(&self, _: u32) -> Option<u16> {
        None
    }
}

pub(crate) struct Engine {
    pub(crate) tables: Arc<Tables>,
    /// Number of the write at which the next change fails.
    pub(crate) refuse_at: Option<usize>,
    /// Number of failed changes.
    pub(crate) refusals: usize,
    /// Defect for a mutation: expired leases become valid again.
    pub(crate) forgets_ends: bool,
    /// Defect for a mutation: any server gets any request.
    pub(crate) ignores_routes: bool,
    lease: AtomicU64,
    marker: [AtomicU64; MARKER_WORDS],
    cookies: [AtomicU64; WORDS],
    four: Vec<Bucket4>,
    six: Vec<Bucket6>,
    active: Vec<AtomicU64>,
    scores: Vec<AtomicU16>,
    limits: Vec<AtomicU32>,
    cursors: Vec<AtomicU64>,
    shares: Vec<AtomicU64>,
}

impl Engine {
    pub(crate) fn new() -> Engine {
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let marker = [const { AtomicU64::new(0) }; MARKER_WORDS];
        SharedMarker(&marker).set(&Marker { key: MARK_KEY, generation: 1 });
        Engine {
            marker,
            tables: Arc::default(),
            refuse_at: None,
            refusals: 0,
            forgets_ends: false,
            ignores_routes: false,
            lease: AtomicU64::new(0),
            cookies: [const { AtomicU64::new(0) }; WORDS],
            four: (0..buckets_for(SESSIONS)).map(|_| Bucket4::default()).collect(),
            six: (0..buckets_for(1)).map(|_| Bucket6::default()).collect(),
            active: words(SERVER_SLOTS),
            scores: (0..SERVER_SLOTS).map(|_| AtomicU16::new(0)).collect(),
            limits: (0..SERVER_SLOTS).map(|_| AtomicU32::new(0)).collect(),
            cursors: words(64),
            shares: words(SHARE_WORDS),
        }
    }

    pub(crate) fn memory(&self) -> Memory<'_> {
        let counted = Counted { active: &self.active, shares: Shares(&self.shares), ..Counted::NOTHING };
        Memory {
            sessions: Sessions::new(&self.four, &self.six, counted),
            counts: Counts {
                cursors: &self.cursors,
                active: &self.active,
                scores: &self.scores,
                limits: &self.limits,
            },
            // No service of the model uses NAT ports.
            ports: Ports::new(&[]),
            fragments: &Nothing,
            routes: &Nothing,
            // A seed with which sessions spread evenly: a bucket has room for eight.
            seed: Seed(0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03),
            ring_seed: Seed(3, 4),
            lease: Lease(&self.lease),
            cookies: SharedKeys(&self.cookies),
            marker: SharedMarker(&self.marker),
            unmatched: Unmatched(&[]),
            guesses: Guesses(&[]),
        }
    }

    /// Number of a server's active sessions.
    pub(crate) fn active(&self, slot: u16) -> u64 {
        self.active.get(usize::from(slot)).map_or(0, |count| count.load(Relaxed))
    }

    /// Applies tables, or returns an error. [`Engine::tables`] is the result in both cases.
    pub(crate) fn apply(&mut self, tables: &Arc<Tables>) -> Result<(), String> {
        let delta = Delta::between(&self.tables, tables);
        let writes = [
            delta.interfaces.len() + delta.interfaces_removed.len(),
            delta.servers.len() + delta.servers_removed.len(),
            delta.rings.len() + delta.rings_removed.len(),
            delta.vips.len() + delta.vips_removed.len(),
            delta.endpoints.len() + delta.endpoints_removed.len(),
            delta.routes.len() + delta.routes_removed.len(),
            usize::from(delta.peers.is_some()) + usize::from(delta.pools.is_some()),
        ];
        if let Some(at) = self.refuse_at.take_if(|at| *at < writes.iter().sum()) {
            self.refusals += 1;
            if at % 2 == 1 {
                self.tables = Arc::new(half_way(&self.tables, tables, &writes, at));
            }
            return Err(format!("write {at} was refused"));
        }
        self.memory().sessions.share(tables);
        self.tables = Arc::clone(tables);
        Ok(())
    }

    /// Returns the decision on a frame received on an interface.
    pub(crate) fn decide(&self, ifindex: u32, frame: &[u8], now: u32) -> Decision {
        self.decide_frame(ifindex, frame, now).0
    }

    /// Returns the decision and the resulting frame.
    pub(crate) fn decide_frame(&self, ifindex: u32, frame: &[u8], now: u32) -> (Decision, Vec<u8>) {
        let mut buffer = [&[0; HEADROOM][..], frame].concat();
        let mut packet = Packet::new(&mut buffer, HEADROOM, ifindex);
        let unrouted = self.ignores_routes.then(|| self.without_routes());
        let decision = decide(unrouted.as_ref().unwrap_or(&self.tables), &self.memory(), &mut packet, now);
        (decision, packet.frame().to_vec())
    }

    fn without_routes(&self) -> Tables {
        let mut tables = (*self.tables).clone();
        for (number, routes) in &mut tables.routes {
            *routes = Arc::new(content::RouteIndex::compile(&[], *number, routes.key));
        }
        tables
    }

    /// True if the engine answers ARP for an address.
    pub(crate) fn answers(&self, address: IpAddr, now: u32) -> bool {
        let vips = || self.tables.vips.iter().filter(|(key, _)| key.address == address).map(|(_, vip)| vip);
        let is_shared = || vips().any(|vip| vip.own != 0);
        vips().any(|vip| vip.announce) && (!is_shared() || self.lease_holds(now))
    }

    /// True if the lease for shared addresses is valid.
    pub(crate) fn lease_holds(&self, now: u32) -> bool {
        let lease = Lease(&self.lease);
        match lease.until().filter(|_| self.forgets_ends) {
            Some(until) => until.wrapping_sub(now) as i32 > 0,
            None => lease.holds(now),
        }
    }
}

/// Returns the tables in force when the change from `old` to `new` fails at a write: all earlier
/// writes are done. Removals come last, so no entry has been removed.
fn half_way(old: &Tables, new: &Tables, writes: &[usize; 7], at: usize) -> Tables {
    let is_done = |kind: usize| writes.iter().take(kind + 1).sum::<usize>() <= at;
    let mut half = old.clone();
    if is_done(0) {
        half.interfaces.extend(&new.interfaces);
    }
    if is_done(1) {
        half.servers.extend(new.servers.iter().map(|(slot, server)| (*slot, *server)));
    }
    if is_done(2) {
        half.rings.extend(new.rings.iter().map(|(number, ring)| (*number, Arc::clone(ring))));
    }
    if is_done(3) {
        half.vips.extend(new.vips.iter().map(|(key, vip)| (*key, *vip)));
    }
    if is_done(4) {
        half.endpoints.extend(new.endpoints.iter().map(|(key, behind)| (*key, behind.clone())));
    }
    if is_done(5) {
        half.routes.extend(new.routes.iter().map(|(number, routes)| (*number, Arc::clone(routes))));
    }
    half
}
