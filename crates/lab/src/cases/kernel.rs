//! Runs cases on the C programs, frame by frame with BPF_PROG_TEST_RUN and without attaching them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use evener_core::net::wire::Mac;
use evener_core::path::cookie::{Keys, Schedule};
use evener_core::path::decide::{HELD_FRAME_MAX, Reason, Verdict};
use evener_core::path::fragments::{FragmentKey, Track};
use evener_core::path::parse::{Parsed, Segment, parse};
use evener_core::path::sessions::State;
use evener_core::path::tables::Tables;
use evener_dataplane::events::TraceFilter;
use evener_dataplane::xdp::{Hook, Options, XdpEngine};
use evener_dataplane::{Engine, EngineError};

use super::ground::{FIRST, Ground};
use super::{
    Case, CaseFile, Exit, FIRST_EPOCH, Lease, MARKER, Packet, SEED, Seen, Subject, Tally, keys, run,
};

/// Interface on which test runs receive frames.
const LOOPBACK: u32 = 1;
/// Resolution of the kernel's session clock in milliseconds: one jiffy at 100 Hz, rounded up.
const JIFFY_MS: u64 = 11;

/// Runs a case file on the program for `hook`, in a namespace with the file's routes.
///
/// # Errors
/// Fails without root, or if the kernel refuses the programs.
pub fn play(file: &CaseFile, hook: Hook) -> Result<Tally> {
    let ground = Ground::lay(file, true)?;
    // Adds a route for each service address: the kernel's lookup for the host's own addresses needs
    // one.
    let vips: BTreeSet<IpAddr> =
        file.cases.iter().flat_map(|case| case.tables.vips.keys()).map(|vip| vip.address).collect();
    ground.netns.ip(&vips.iter().map(|vip| format!("route replace {vip} dev in1")).collect::<Vec<_>>())?;
    ground.netns.enter(|| -> Result<Tally> {
        let engine = start(2)?;
        let tables = Arc::<Tables>::default();
        let (ingress, held, fragmented) = (LOOPBACK, Vec::new(), BTreeSet::new());
        let mut kernel = Kernel { engine, hook, tables, ingress, held, fragmented, sessions_max: 2 };
        Ok(run(file, &mut kernel))
    })?
}

/// XDP engine, loaded but not attached.
struct Kernel {
    engine: XdpEngine,
    hook: Hook,
    /// Tables of the case.
    tables: Arc<Tables>,
    ingress: u32,
    /// Held frames with their ingress interface. The engine's own queue works only while it is
    /// attached.
    held: Vec<(u32, Vec<u8>)>,
    /// Fragmented packets, whose entries must be removed: in the engine they outlive a case.
    fragmented: BTreeSet<FragmentKey>,
    sessions_max: usize,
}

impl Kernel {
    /// Writes the case's tables to the kernel.
    fn load(&mut self) -> Result<()> {
        let number = |interface: u32| if interface == self.ingress { LOOPBACK } else { FIRST + interface };
        let mut tables = (*self.tables).clone();
        tables.interfaces =
            tables.interfaces.iter().map(|(interface, mac)| (number(*interface), *mac)).collect();
        for server in tables.servers.values_mut().filter(|server| !server.is_down()) {
            server.ifindex = number(server.ifindex);
        }
        Ok(self.engine.load_tables(&Arc::new(tables))?)
    }

    /// Returns the interface whose MAC is the source of a frame.
    fn sender(&self, frame: &[u8]) -> Option<u32> {
        let src = Mac(frame.get(6..12)?.try_into().ok()?);
        self.tables.interfaces.iter().find(|(_, mac)| **mac == src).map(|(interface, _)| *interface)
    }

    fn one(&mut self, ingress: u32, frame: &[u8]) -> Result<Seen> {
        if self.ingress != ingress {
            let (here, there) = (FIRST + ingress, FIRST + self.ingress);
            self.engine.memory().ports.renumber(self.engine.now(), |link| match link {
                LOOPBACK => there,
                link if link == here => LOOPBACK,
                link => link,
            });
            self.ingress = ingress;
            self.load()?;
        }
        let own = self.tables.interfaces.get(&ingress).copied();
        if let Parsed::Segment(Segment { at, .. }) = parse(frame, own) {
            self.fragmented.extend(at.fragment.map(|fragment| FragmentKey::of(&at, fragment.id)));
        }
        let before = self.engine.counters()?.reasons;
        let may_be_held = frame.len() <= HELD_FRAME_MAX;
        let (verdict, frame) = self.engine.test_run(self.hook, frame)?;
        let reasons = counted(&before, &self.engine.counters()?.reasons);
        let exit = match verdict {
            Verdict::Forward { ifindex: LOOPBACK } => Exit::Interface(self.ingress),
            // TC sends to the host's stack only to resolve the neighbour.
            Verdict::Forward { .. } if reasons.contains_key(&Reason::HostStack) => Exit::Host,
            // A test run does not report the egress interface; the frame's source MAC identifies
            // it.
            Verdict::Forward { .. } => {
                Exit::Interface(self.sender(&frame).context("The frame was sent by none of our interfaces")?)
            }
            Verdict::Pass | Verdict::HostStack { .. } => Exit::Host,
            // A test run does not report held frames either.
            Verdict::Drop | Verdict::Hold
                if may_be_held
                    && reasons.keys().any(|r| {
                        matches!(r, Reason::FragmentHeld | Reason::Rehandoff | Reason::RehandoffBuffered)
                    }) =>
            {
                Exit::Held
            }
            Verdict::Drop | Verdict::Hold => Exit::Nowhere,
        };
        Ok(Seen { exit, reasons, frame, released: Vec::new() })
    }
}

fn start(sessions_max: usize) -> Result<XdpEngine, EngineError> {
    let options = Options {
        sessions_max,
        sessions6_max: sessions_max,
        seed: SEED,
        ring_seed: None,
        mode: None,
        pins: None,
    };
    XdpEngine::start(options)
}

/// Returns the increases of counters.
pub(super) fn counted(
    before: &BTreeMap<Reason, u64>,
    after: &BTreeMap<Reason, u64>,
) -> BTreeMap<Reason, u64> {
    let since =
        |(reason, count): (&Reason, &u64)| (*reason, count - before.get(reason).copied().unwrap_or(0));
    after.iter().map(since).filter(|(_, count)| *count != 0).collect()
}

impl Subject for Kernel {
    fn name(&self) -> &'static str {
        match self.hook {
            Hook::Xdp => "xdp",
            Hook::Tc => "tc",
        }
    }

    /// A test run requires at least an Ethernet header. For TC, it also requires the IP header that
    /// the EtherType announces. The maximum is a page without the kernel's own data.
    fn takes(&self, frame: &[u8]) -> bool {
        let least = match (self.hook, frame.get(12..14)) {
            (Hook::Tc, Some([0x08, 0x00])) => 34,
            (Hook::Tc, Some([0x86, 0xdd])) => 54,
            (Hook::Tc, _) => 15,
            (Hook::Xdp, _) => 14,
        };
        (least..=3000).contains(&frame.len())
    }

    /// Loading and verifying takes a while, so the programs are reused.
    fn begin(&mut self, case: &Case) -> Result<()> {
        self.tables = Arc::clone(&case.tables);
        self.held.clear();
        if case.sessions_max != self.sessions_max {
            self.engine = start(case.sessions_max)?;
            self.sessions_max = case.sessions_max;
        }
        let (memory, now) = (self.engine.memory(), self.engine.now());
        memory.sessions.clear(now);
        memory.ports.clear(now);
        memory.lease.set(None);
        memory.cookies.set(&Schedule::fixed(&keys(FIRST_EPOCH), now));
        memory.marker.set(&MARKER);
        memory.counts.limit(&case.limits);
        for key in mem::take(&mut self.fragmented) {
            if let Some(track) = memory.fragments.find(&key) {
                memory.fragments.note(&key, Track { expires: now.wrapping_sub(1), ..track });
            }
        }
        let words = memory.counts.cursors.iter().chain(memory.unmatched.0).chain(memory.guesses.0);
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        self.trace(&BTreeSet::new())?;
        self.load()
    }

    fn change(&mut self, tables: &Arc<Tables>) -> Result<()> {
        self.tables = Arc::clone(tables);
        self.load()
    }

    fn lease(&mut self, lease: Lease) -> Result<()> {
        self.engine.memory().lease.set(lease.until(self.engine.now()));
        Ok(())
    }

    fn keys(&mut self, keys: &Keys) -> Result<()> {
        self.engine.memory().cookies.set(&Schedule::fixed(keys, self.engine.now()));
        Ok(())
    }

    fn guessed(&mut self) -> Result<()> {
        self.engine.memory().guesses.use_up(self.engine.now());
        Ok(())
    }

    fn trace(&mut self, clients: &BTreeSet<IpAddr>) -> Result<()> {
        Ok(self.engine.watch(&TraceFilter { connections: false, clients: clients.clone() })?)
    }

    fn meet(&mut self, packet: &Packet) -> Result<Seen> {
        let mut seen = self.one(packet.ingress, &packet.frame)?;
        // A moving connection's frame does not wait for another packet.
        if seen.reasons.contains_key(&Reason::FragmentHeld) {
            self.held.push((packet.ingress, packet.frame.clone()));
            return Ok(seen);
        }
        for (ingress, frame) in mem::take(&mut self.held) {
            let again = self.one(ingress, &frame)?;
            if again.exit == Exit::Held {
                self.held.push((ingress, frame));
                continue;
            }
            for (reason, count) in again.reasons {
                *seen.reasons.entry(reason).or_default() += count;
            }
            seen.released.push((again.exit, again.frame));
        }
        Ok(seen)
    }

    fn wait(&mut self, ms: u64) {
        sleep(Duration::from_millis(ms + JIFFY_MS));
    }

    fn sessions(&self) -> Vec<State> {
        self.engine.memory().sessions.list(self.engine.now()).map(|session| session.value.state()).collect()
    }
}
