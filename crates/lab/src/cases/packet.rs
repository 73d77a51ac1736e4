//! Cases on the packet engine: real frames over real cables, in a network namespace of their own.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evener_core::decide::Reason;
use evener_core::sessions::State;
use evener_core::tables::{Delta, Tables};
use evener_dataplane::Engine;
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_dataplane::packet::{Options, PacketEngine};
use nix::net::if_::if_nametoindex;

use super::xdp::counted;
use super::{Case, CaseFile, Exit, Packet, SEED, Seen, Subject, Tally, run};
use crate::netns::{Netns, ip_batch};
use crate::owner;

/// Where the interfaces' numbers begin: the loopback interface has number 1 already.
const FIRST: u32 = 100;
const MTU: usize = 3_000;
/// How long a frame may be on its way on a busy machine before it is missed.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to look for a frame that should not come.
const GRACE: Duration = Duration::from_millis(1);
/// How coarse the engine's clock may be, in milliseconds: one jiffy at 100 Hz, rounded up.
const JIFFY_MS: u64 = 11;

/// A namespace in which every interface of a file is one end of a cable, and we are at the other.
#[derive(Debug)]
pub struct Cables {
    prefix: String,
    netns: Netns,
}

impl Cables {
    /// Lays the cables.
    ///
    /// # Errors
    /// Without root.
    pub fn lay(file: &CaseFile) -> Result<Cables> {
        let prefix = owner::next_prefix()?;
        let cables = Cables { netns: Netns::new(format!("{prefix}cases")), prefix };
        ip_batch(&[], &[format!("netns add {}", cables.netns.name())])?;
        // A kernel without IPv6 has nothing to say of its own.
        let silence = ["all", "default"].map(|which| format!("ipv6/conf/{which}/disable_ipv6"));
        let settings = [(silence[0].as_str(), "1"), (silence[1].as_str(), "1")];
        let _ = cables.netns.sysctl(&settings);
        let mut lines = vec!["link set lo up".to_owned()];
        for (number, mac) in &file.interfaces {
            let index = FIRST + number;
            lines.extend([
                format!("link add in{number} mtu {MTU} address {mac} index {index} type veth peer name out{number}"),
                format!("link set out{number} mtu {MTU} up"),
                format!("link set in{number} up"),
            ]);
        }
        cables.netns.ip(&lines)?;
        Ok(cables)
    }

    /// Plays the file that the cables were laid for.
    ///
    /// # Errors
    /// When our ends of the cables can't be opened.
    pub fn run(&self, file: &CaseFile) -> Result<Tally> {
        let session_file = owner::directory().join(format!("{}sessions", self.prefix));
        fs::create_dir_all(owner::directory())?;
        self.netns.enter(|| -> Result<Tally> {
            let mut ends = vec![(Exit::Host, open("lo")?)];
            for number in file.interfaces.keys() {
                ends.push((Exit::Interface(*number), open(&format!("out{number}"))?));
            }
            let mut bench = Bench { ends, session_file, engine: None, tables: Arc::default() };
            let tally = run(file, &mut bench);
            bench.leave()?;
            Ok(tally)
        })?
    }
}

impl Drop for Cables {
    fn drop(&mut self) {
        owner::reap(&self.prefix);
    }
}

fn open(name: &str) -> Result<LinkSocket> {
    LinkSocket::open(if_nametoindex(name)?, EtherType::All)
        .with_context(|| format!("Opening a socket on {name} failed"))
}

/// The engine, and our ends of its cables.
struct Bench {
    /// What the engine sends up its host's own stack is to be seen on the loopback interface.
    ends: Vec<(Exit, LinkSocket)>,
    session_file: PathBuf,
    engine: Option<Box<PacketEngine>>,
    tables: Arc<Tables>,
}

impl Bench {
    fn engine(&self) -> Result<&PacketEngine> {
        self.engine.as_deref().context("No case has begun")
    }

    fn leave(&mut self) -> Result<()> {
        if let Some(engine) = self.engine.take() {
            engine.leave(false)?;
        }
        // What was still on its way belongs to no packet of the next case.
        let late = self.frames()?;
        ensure!(late.is_empty(), "After the last case {} more frames were sent", late.len());
        Ok(())
    }

    /// The frames that have come out by now.
    fn frames(&self) -> Result<Vec<(Exit, Vec<u8>)>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; 2 * MTU];
        for (exit, socket) in &self.ends {
            loop {
                match socket.recv(&mut buffer) {
                    Ok((_, about)) if about.outgoing => {}
                    Ok((len, _)) => frames.push((*exit, buffer.get(..len).unwrap_or_default().to_vec())),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).context("Receiving a frame failed"),
                }
            }
        }
        Ok(frames)
    }

    fn reasons(&self) -> Result<BTreeMap<Reason, u64>> {
        Ok(self.engine()?.counters()?.reasons)
    }
}

/// What was seen of a frame that came in as `packet`.
fn seen(packet: &Packet, frames: &[(Exit, Vec<u8>)], reasons: BTreeMap<Reason, u64>) -> Result<Seen> {
    let (exit, frame) = match frames {
        [] if reasons.contains_key(&Reason::Local) => (Exit::Nowhere, Vec::new()),
        [] => (Exit::Unseen, Vec::new()),
        [(Exit::Host, frame)] => (Exit::Host, readdressed(packet, frame)?),
        [(exit, frame)] => (*exit, frame.clone()),
        _ => bail!("{} frames came out: {frames:02x?}", frames.len()),
    };
    Ok(Seen { exit, reasons, frame })
}

/// On its way up by the loopback interface a frame has that one's address, all zeros.
fn readdressed(packet: &Packet, frame: &[u8]) -> Result<Vec<u8>> {
    let (dst, rest) = frame.split_at_checked(6).context("A runt came out")?;
    ensure!(dst == [0; 6], "What goes up the host's own stack is addressed to another: {frame:02x?}");
    Ok([packet.frame.get(..6).unwrap_or_default(), rest].concat())
}

impl Subject for Bench {
    fn name(&self) -> &'static str {
        "packet"
    }

    /// A link sends no less than an Ethernet header, and no more than its MTU behind that.
    fn frame_lens(&self) -> RangeInclusive<usize> {
        14..=14 + MTU
    }

    fn begin(&mut self, case: &Case) -> Result<()> {
        self.leave()?;
        let (sessions_max, session_file) = (case.sessions_max, self.session_file.clone());
        let engine = PacketEngine::start(Options { sessions_max, seed: SEED, threads: 1, session_file })?;
        self.engine = Some(Box::new(engine));
        self.tables = Arc::default();
        self.change(&case.tables)
    }

    fn change(&mut self, tables: &Arc<Tables>) -> Result<()> {
        let mut real = (**tables).clone();
        real.interfaces = real.interfaces.iter().map(|(number, mac)| (FIRST + number, *mac)).collect();
        for server in real.servers.values_mut() {
            server.ifindex += FIRST;
        }
        let real = Arc::new(real);
        let delta = Delta::between(&self.tables, &real);
        self.engine.as_mut().context("No case has begun")?.apply(&delta, &real)?;
        self.tables = real;
        Ok(())
    }

    fn meet(&mut self, packet: &Packet) -> Result<Seen> {
        let mut frames = self.frames()?;
        ensure!(frames.is_empty(), "One more frame came out for the packet before this one: {frames:02x?}");
        let before = self.reasons()?;
        let ingress = Exit::Interface(packet.ingress);
        let (_, cable) = self.ends.iter().find(|(end, _)| *end == ingress).context("No such cable")?;
        cable.send(&packet.frame).context("Sending the frame failed")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let reasons = counted(&before, &self.reasons()?);
            frames.extend(self.frames()?);
            if seen(packet, &frames, reasons)?.agrees(&packet.expected) || Instant::now() > deadline {
                break;
            }
            sleep(Duration::from_micros(100));
        }
        sleep(GRACE);
        frames.extend(self.frames()?);
        seen(packet, &frames, counted(&before, &self.reasons()?))
    }

    fn wait(&mut self, ms: u64) {
        sleep(Duration::from_millis(ms + JIFFY_MS));
    }

    fn sessions(&self) -> Vec<State> {
        let Some(engine) = &self.engine else { return Vec::new() };
        engine.memory().sessions.list(engine.now()).map(|session| session.value.state()).collect()
    }
}
