//! Cases on the C, frame by frame through the kernel's test runs: nothing is attached anywhere.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evener_core::decide::{Reason, Verdict};
use evener_core::sessions::State;
use evener_core::tables::{Delta, Tables};
use evener_core::wire::Mac;
use evener_dataplane::xdp::{Options, XdpEngine};
use evener_dataplane::{Engine, EngineError};

use super::{Case, Exit, Packet, SEED, Seen, Subject};

/// Test runs come in by the loopback interface.
const LOOPBACK: u32 = 1;
/// Where the other interfaces' numbers begin; none of these exists.
const ELSEWHERE: u32 = 100;
/// How coarse the kernel's clock of sessions may be, in milliseconds: one jiffy at 100 Hz, rounded up.
const JIFFY_MS: u64 = 11;

/// The kernel engine, loaded and not attached.
pub struct Kernel {
    engine: XdpEngine,
    /// As the case has them.
    tables: Arc<Tables>,
    /// As the kernel has them: the interface that frames come in by is the loopback there.
    loaded: Arc<Tables>,
    ingress: u32,
}

impl Kernel {
    /// Loads the program.
    ///
    /// # Errors
    /// As [`XdpEngine::start`].
    pub fn new() -> Result<Kernel, EngineError> {
        let engine = start(2)?;
        Ok(Kernel { engine, tables: Arc::default(), loaded: Arc::default(), ingress: LOOPBACK })
    }

    /// Brings the kernel's tables up to date.
    fn load(&mut self) -> Result<()> {
        let number =
            |interface: u32| if interface == self.ingress { LOOPBACK } else { ELSEWHERE + interface };
        let mut tables = (*self.tables).clone();
        tables.interfaces =
            tables.interfaces.iter().map(|(interface, mac)| (number(*interface), *mac)).collect();
        for server in tables.servers.values_mut() {
            server.ifindex = number(server.ifindex);
        }
        let delta = Delta::between(&self.loaded, &tables);
        let tables = Arc::new(tables);
        self.engine.load_tables(&delta, &tables)?;
        self.loaded = tables;
        Ok(())
    }

    /// The interface that has the address a frame was sent from.
    fn sender(&self, frame: &[u8]) -> Option<u32> {
        let src = Mac(frame.get(6..12)?.try_into().ok()?);
        self.tables.interfaces.iter().find(|(_, mac)| **mac == src).map(|(interface, _)| *interface)
    }

    fn reasons(&self) -> Result<BTreeMap<Reason, u64>> {
        Ok(self.engine.counters()?.reasons)
    }
}

fn start(sessions_max: usize) -> Result<XdpEngine, EngineError> {
    XdpEngine::start(Options { sessions_max, seed: SEED, mode: None, pins: None })
}

/// What was counted meanwhile.
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
        "xdp"
    }

    /// A test run takes no less than an Ethernet header, and no more than a page with the kernel's notes.
    fn frame_lens(&self) -> RangeInclusive<usize> {
        14..=3000
    }

    fn begin(&mut self, case: &Case) -> Result<()> {
        self.engine = start(case.sessions_max)?;
        (self.tables, self.loaded) = (Arc::clone(&case.tables), Arc::default());
        self.load()
    }

    fn change(&mut self, tables: &Arc<Tables>) -> Result<()> {
        self.tables = Arc::clone(tables);
        self.load()
    }

    fn meet(&mut self, packet: &Packet) -> Result<Seen> {
        if self.ingress != packet.ingress {
            self.ingress = packet.ingress;
            self.load()?;
        }
        let before = self.reasons()?;
        let (verdict, frame) = self.engine.test_run(&packet.frame)?;
        let reasons = counted(&before, &self.reasons()?);
        let exit = match verdict {
            Verdict::Forward { ifindex: LOOPBACK } => Exit::Interface(self.ingress),
            // A test run doesn't tell where else a frame is sent, but who it says it is from.
            Verdict::Forward { .. } => {
                let interface =
                    self.sender(&frame).context("The frame was sent by none of our interfaces")?;
                ensure!(interface != self.ingress, "The frame was redirected to the interface it came in by");
                Exit::Interface(interface)
            }
            Verdict::Pass => Exit::Host,
            Verdict::Drop => Exit::Nowhere,
        };
        Ok(Seen { exit, reasons, frame })
    }

    fn wait(&mut self, ms: u64) {
        sleep(Duration::from_millis(ms + JIFFY_MS));
    }

    fn sessions(&self) -> Vec<State> {
        self.engine.memory().sessions.list(self.engine.now()).map(|session| session.value.state()).collect()
    }
}
