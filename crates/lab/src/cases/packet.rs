//! Runs cases on the packet engine: real frames over veth pairs, in a separate network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evener_core::net::wire::{icmpv6, protocol};
use evener_core::path::cookie::{Keys, Schedule};
use evener_core::path::decide::Reason;
use evener_core::path::sessions::State;
use evener_core::path::tables::Tables;
use evener_dataplane::Engine;
use evener_dataplane::events::TraceFilter;
use evener_dataplane::link::{EtherType, LinkSocket};
use evener_dataplane::packet::{Options, PacketEngine};
use nix::net::if_::if_nametoindex;

use super::ground::{FIRST, Ground, MTU};
use super::kernel::counted;
use super::sniffer::Sniffer;
use super::{
    Action, Case, CaseFile, Exit, FIRST_EPOCH, Lease, MARKER, Packet, SEED, Seen, Subject, Tally, keys, run,
};
use crate::harness::cleanup;

/// Timeout of a frame on a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time to wait for frames that should not arrive.
const GRACE: Duration = Duration::from_millis(1);
/// Resolution of the engine's clock in milliseconds: one jiffy at 100 Hz, rounded up.
const JIFFY_MS: u64 = 11;

/// Namespace in which each interface of a file is one end of a veth pair; this program uses the
/// other ends.
#[derive(Debug)]
pub struct Cables {
    ground: Ground,
}

impl Cables {
    /// Creates the veth pairs.
    ///
    /// # Errors
    /// Fails without root.
    pub fn lay(file: &CaseFile) -> Result<Cables> {
        // without forwarding, since the kernel's own forwarding would duplicate the engine's
        // packets
        Ok(Cables { ground: Ground::lay(file, false)? })
    }

    /// Runs the file that the veth pairs were created for.
    ///
    /// # Errors
    /// Fails if a socket can't be opened on the other ends.
    pub fn run(&self, file: &CaseFile) -> Result<Tally> {
        let session_file = cleanup::directory().join(format!("{}sessions", self.ground.prefix));
        fs::create_dir_all(cleanup::directory())?;
        self.ground.netns.enter(|| -> Result<Tally> {
            let tags = has_tags(file);
            let mut ends = vec![(Exit::Host, End::open("lo", false)?)];
            for number in file.interfaces.keys() {
                ends.push((Exit::Interface(*number), End::open(&format!("out{number}"), tags)?));
            }
            let mut bench = Bench { ends, session_file, engine: None, tables: Arc::default() };
            let tally = run(file, &mut bench);
            bench.leave()?;
            Ok(tally)
        })?
    }
}

/// This program's end of a veth pair.
struct End {
    socket: LinkSocket,
    /// Receives frames instead of `socket` if frames may have VLAN tags.
    sniffer: Option<Sniffer>,
}

impl End {
    fn open(name: &str, tags: bool) -> Result<End> {
        let socket = LinkSocket::open(if_nametoindex(name)?, EtherType::All)
            .with_context(|| format!("Opening a socket on {name} failed"))?;
        let sniffer = if tags { Some(Sniffer::start(name)?) } else { None };
        Ok(End { socket, sniffer })
    }

    /// Returns the frames received so far.
    fn frames(&self) -> Result<Vec<Vec<u8>>> {
        if let Some(sniffer) = &self.sniffer {
            return Ok(sniffer.frames().collect());
        }
        let mut frames = Vec::new();
        let mut buffer = vec![0; 2 * MTU];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok((_, about)) if about.outgoing => {}
                Ok((len, _)) => frames.push(buffer.get(..len).unwrap_or_default().to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(frames),
                Err(error) => return Err(error).context("Receiving a frame failed"),
            }
        }
    }
}

/// True if a frame of the file has a VLAN tag.
fn has_tags(file: &CaseFile) -> bool {
    let mut steps = file.cases.iter().flat_map(|case| &case.steps);
    steps.any(|step| matches!(&step.action, Action::Packet(packet) if is_tagged(&packet.frame)))
}

fn is_tagged(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]))
}

/// Engine, and this program's ends of the veth pairs.
struct Bench {
    /// The loopback interface shows packets that the engine sends to its host's own stack.
    ends: Vec<(Exit, End)>,
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
        // Late packets must not be attributed to the next case.
        let late = self.frames()?;
        ensure!(late.is_empty(), "After the last case {} more frames were sent", late.len());
        Ok(())
    }

    /// Returns the frames sent by the engine so far.
    fn frames(&self) -> Result<Vec<(Exit, Vec<u8>)>> {
        let mut frames = Vec::new();
        for (exit, end) in &self.ends {
            let own = end.frames()?.into_iter().filter(|frame| !is_hosts_own(frame));
            frames.extend(own.map(|frame| (*exit, frame)));
        }
        Ok(frames)
    }

    fn reasons(&self) -> Result<BTreeMap<Reason, u64>> {
        Ok(self.engine()?.counters()?.reasons)
    }
}

/// True if the host sends the frame by itself and an engine never does: an ARP request, a neighbour
/// solicitation, or an ICMPv6 error to itself.
fn is_hosts_own(frame: &[u8]) -> bool {
    const ARP_REQUEST: [u8; 10] = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1];
    const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let icmpv6 = frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&protocol::ICMPV6);
    let solicitation = icmpv6 && frame.get(54) == Some(&icmpv6::NEIGHBOUR_SOLICITATION);
    let from_itself = icmpv6 && frame.get(22..38) == Some(&LOOPBACK);
    frame.get(12..22) == Some(&ARP_REQUEST) || solicitation || from_itself
}

/// Returns the result of the frame `packet`. Held frames may be released with it.
fn seen(packet: &Packet, frames: &[(Exit, Vec<u8>)], reasons: BTreeMap<Reason, u64>) -> Result<Seen> {
    let released = packet.expected.released.len();
    let (own, besides) = frames.split_at(frames.len().saturating_sub(released));
    let (exit, frame) = match own {
        [] if reasons.contains_key(&Reason::Local) => (Exit::Nowhere, Vec::new()),
        [] => (Exit::Unseen, Vec::new()),
        [(Exit::Host, frame)] => (Exit::Host, readdressed(packet, frame)?),
        [(exit, frame)] => (*exit, frame.clone()),
        _ => bail!("{} frames came out: {frames:02x?}", frames.len()),
    };
    Ok(Seen { exit, reasons, frame, released: besides.to_vec() })
}

/// Restores the destination MAC of a frame on the loopback interface, where the engine sets it to
/// zeros.
fn readdressed(packet: &Packet, frame: &[u8]) -> Result<Vec<u8>> {
    let (dst, rest) = frame.split_at_checked(6).context("A runt came out")?;
    ensure!(dst == [0; 6], "What goes up the host's own stack is addressed to another: {frame:02x?}");
    Ok([packet.frame.get(..6).unwrap_or_default(), rest].concat())
}

impl Subject for Bench {
    fn name(&self) -> &'static str {
        "packet"
    }

    /// A link sends at least an Ethernet header and at most its MTU behind the header. The kernel
    /// removes the first VLAN tag, or drops the frame.
    fn takes(&self, frame: &[u8]) -> bool {
        let least = if is_tagged(frame) { 18 } else { 14 };
        (least..=14 + MTU).contains(&frame.len())
    }

    fn begin(&mut self, case: &Case) -> Result<()> {
        self.leave()?;
        let (sessions_max, session_file) = (case.sessions_max, self.session_file.clone());
        let sessions6_max = sessions_max;
        let options =
            Options { sessions_max, sessions6_max, seed: SEED, ring_seed: None, threads: 1, session_file };
        let engine = PacketEngine::start(options)?;
        self.engine = Some(Box::new(engine));
        self.tables = Arc::default();
        self.engine()?.memory().marker.set(&MARKER);
        self.keys(&keys(FIRST_EPOCH))?;
        self.change(&case.tables)?;
        self.engine()?.memory().counts.limit(&case.limits);
        Ok(())
    }

    fn change(&mut self, tables: &Arc<Tables>) -> Result<()> {
        let mut real = (**tables).clone();
        real.interfaces = real.interfaces.iter().map(|(number, mac)| (FIRST + number, *mac)).collect();
        for server in real.servers.values_mut().filter(|server| !server.is_down()) {
            server.ifindex += FIRST;
        }
        let real = Arc::new(real);
        self.engine.as_mut().context("No case has begun")?.apply(&real)?;
        self.tables = real;
        Ok(())
    }

    fn lease(&mut self, lease: Lease) -> Result<()> {
        let engine = self.engine()?;
        engine.memory().lease.set(lease.until(engine.now()));
        Ok(())
    }

    fn keys(&mut self, keys: &Keys) -> Result<()> {
        let engine = self.engine()?;
        engine.memory().cookies.set(&Schedule::fixed(keys, engine.now()));
        Ok(())
    }

    fn guessed(&mut self) -> Result<()> {
        let engine = self.engine()?;
        engine.memory().guesses.use_up(engine.now());
        Ok(())
    }

    fn trace(&mut self, clients: &BTreeSet<IpAddr>) -> Result<()> {
        let watch = TraceFilter { connections: false, clients: clients.clone() };
        Ok(self.engine.as_mut().context("No case has begun")?.watch(&watch)?)
    }

    fn meet(&mut self, packet: &Packet) -> Result<Seen> {
        let mut frames = self.frames()?;
        ensure!(frames.is_empty(), "One more frame came out for the packet before this one: {frames:02x?}");
        let before = self.reasons()?;
        let ingress = Exit::Interface(packet.ingress);
        let (_, cable) = self.ends.iter().find(|(end, _)| *end == ingress).context("No such cable")?;
        cable.socket.send(&packet.frame).context("Sending the frame failed")?;
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

    fn has_real_clock(&self) -> bool {
        true
    }

    fn sessions(&self) -> Vec<State> {
        let Some(engine) = &self.engine else { return Vec::new() };
        engine.memory().sessions.list(engine.now()).map(|session| session.value.state()).collect()
    }
}
