//! The kernel engine: `bpf/director/director.bpf.c` or its counterpart for TC on every interface
//! that service traffic comes in by.
//!
//! Maps and links are pinned, so traffic flows on while the daemon is stopped, killed or upgraded;
//! the next one adopts what runs and puts its own program in the place of the old, between two
//! packets.

pub(crate) mod abi;
mod adopt;
mod apply;
mod attach;
mod content_routes;
mod detached;
mod ethtool;
mod events;
mod fib_epoch;
mod grace;
mod memory;
mod peers;
pub mod pins;
mod program;
mod punt;
mod readings;
mod test_run;
mod verify;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::path::decide::{Memory, Verdict};
use evener_core::path::seed::Seed;
use evener_core::path::tables::Tables;
use nix::net::if_::if_indextoname;

use crate::events::{EventSource, TraceFilter};
use crate::installed::{MissingPart, Part};
use crate::link::name_of;
use crate::rehandoff::RehandoffSlot;
use crate::requirements::TRAFFIC_CONTROL;
use crate::{Counters, DataPlane, Engine, EngineError, RehandoffSink};
use attach::Link;
use fib_epoch::FibEpoch;
use program::{Program, TableSizes};
use punt::PuntThread;

pub use attach::{Hook, Mode};
pub use detached::{DetachedProgram, try_load};
pub use verify::{Verification, verify};
/// How the engine starts.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sessions the table is sized for.
    pub sessions_max: usize,
    /// The same for IPv6.
    pub sessions6_max: usize,
    /// Key of the flow hash, for a table made anew.
    pub seed: Seed,
    /// Key of the hash that picks from hash tables; `None`: the flow hash's.
    pub ring_seed: Option<Seed>,
    /// How to attach; `None` picks for each interface.
    pub mode: Option<Mode>,
    /// Where to pin; `None` pins nothing, and all ends with the engine.
    pub pins: Option<PathBuf>,
}

/// The kernel engine.
pub struct XdpEngine {
    program: Program,
    mode: Option<Mode>,
    pins: Option<PathBuf>,
    links: BTreeMap<u32, (Link, Mode)>,
    /// From when the first interface is attached.
    held: Option<PuntThread>,
    /// Ends what is remembered of routes, when they change.
    _fib_epoch: FibEpoch,
    moves: Arc<RehandoffSlot>,
    running: Option<Tables>,
    /// Whether programs are attached where the tables say, and nothing is left of anything else.
    is_settled: bool,
    /// Whether somebody reads what is told.
    is_read: bool,
}

impl XdpEngine {
    /// Loads the programs, adopting what an earlier daemon pinned. Attaches when the first tables
    /// name interfaces.
    ///
    /// # Errors
    /// Missing privileges, a kernel too old, or no memory for the session table.
    pub fn start(options: Options) -> Result<Self, EngineError> {
        Self::start_by(options, false)
    }

    /// The same with a clock that stands until [`XdpEngine::set_clock`] moves it. For tests.
    ///
    /// # Errors
    /// As [`XdpEngine::start`].
    pub fn start_at(options: Options, now: u32) -> Result<Self, EngineError> {
        let engine = Self::start_by(options, true)?;
        engine.set_clock(now);
        Ok(engine)
    }

    /// Says what time it is, in ticks, to an engine of [`XdpEngine::start_at`].
    pub fn set_clock(&self, now: u32) {
        self.program.given_now[0].store(now.into(), Relaxed);
    }

    fn start_by(options: Options, clock_is_given: bool) -> Result<Self, EngineError> {
        lift_memlock();
        if let Some(dir) = &options.pins {
            pins::clear_stale(dir);
        }
        let adopt = options.pins.as_deref().filter(|dir| is_adoptable(dir));
        let Options { sessions_max, sessions6_max, seed, ring_seed, .. } = options;
        let size = TableSizes { sessions_max, sessions6_max, seed, ring_seed, clock_is_given };
        let mut program = Program::load(size, adopt)?;
        let mut links = BTreeMap::new();
        let mut running = None;
        if let Some(dir) = adopt {
            program.pin_maps(dir)?;
            running = Some(program.adopt());
            let failed = |e| EngineError::system("adopting the attached programs", "CAP_SYS_ADMIN", e);
            for pins::PinnedLink { place, path, link } in pins::links(dir).map_err(failed)? {
                let Some((ifindex, mode)) = place else {
                    let _ = std::fs::remove_file(path);
                    continue;
                };
                link.update(program.deciding(mode.hook())?)
                    .map_err(|e| EngineError::system("upgrading the attached program", "CAP_NET_ADMIN", e))?;
                links.insert(ifindex, (link, mode));
            }
        } else if let Some(dir) = &options.pins {
            pins::clear(dir).map_err(|error| pins::refused(dir, error))?;
            if let Err(error) = program.pin_maps(dir) {
                let _ = pins::clear(dir);
                return Err(error);
            }
        }
        let fib_epoch = FibEpoch::start(&program)?;
        Ok(XdpEngine {
            program,
            mode: options.mode,
            pins: options.pins,
            links,
            held: None,
            _fib_epoch: fib_epoch,
            moves: Arc::default(),
            running,
            is_settled: false,
            is_read: false,
        })
    }

    /// [`Engine::apply`] without attaching to the interfaces that the tables name; frames that are
    /// held stay so. For test runs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load_tables(&mut self, tables: &Arc<Tables>) -> Result<(), EngineError> {
        self.program.apply(tables)
    }

    /// The tables of the kernel's side, read from its maps, but for routes, which can't be read
    /// back. For tests.
    pub fn read_back(&self) -> Tables {
        self.program.read_back().0
    }

    /// Runs one frame through the program for `hook`, as if it had come in on the loopback
    /// interface (index 1). Returns the verdict and the frame as it then stands; what is held reads
    /// as dropped, and who knows of no other interface than its own, as TC, forwards to number 0.
    /// For tests.
    ///
    /// # Errors
    /// When the kernel refuses, as it does frames shorter than an Ethernet header.
    pub fn test_run(&self, hook: Hook, frame: &[u8]) -> Result<(Verdict, Vec<u8>), EngineError> {
        test_run::director(&self.program, hook, frame)
    }

    /// The kernel's number of the program for `hook`, by which it can be looked at. For tests.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn program_id(&self, hook: Hook) -> Result<u32, EngineError> {
        let program = self.program.deciding(hook)?;
        crate::test_run::id(program)
            .map_err(|error| EngineError::system("looking at a program", "CAP_BPF", error))
    }

    /// Attaches to an interface, or to one that has a program already in a better way, if there is
    /// any. A mode that the file names it gets, or an error.
    fn attach(&mut self, ifindex: u32) -> Result<(), EngineError> {
        let name = name_of(ifindex);
        let modes = self.mode.map_or_else(|| preferred(&name), |mode| vec![mode]);
        let attached = self.links.get(&ifindex).map(|(_, mode)| *mode);
        // Those before what is there already, if it is among them.
        let better = modes.iter().take_while(|mode| Some(**mode) != attached);
        let mut refusal = None;
        for mode in better.copied() {
            match self.attach_by(ifindex, mode) {
                Ok(()) => {
                    if let Some((refused, error)) = refusal {
                        log_refused_mode(&name, mode, refused, &error);
                    }
                    return Ok(());
                }
                Err(error) => {
                    tracing::debug!(interface = name, mode = mode.name(), %error, "not to be attached so");
                    refusal.get_or_insert((mode, error));
                }
            }
        }
        let refusal = refusal.map(|(_, error)| error);
        match refusal {
            Some(error) if attached.is_none() || self.mode.is_some() => Err(error),
            _ => Ok(()),
        }
    }

    /// Attaches to these interfaces, where the program passes every frame until tables name them.
    ///
    /// # Errors
    /// When an interface takes the program in no mode, or the kernel refuses the program.
    pub fn attach_to(&mut self, interfaces: impl IntoIterator<Item = u32>) -> Result<(), EngineError> {
        interfaces.into_iter().try_for_each(|ifindex| self.attach(ifindex))
    }

    /// An interface has room for one XDP program, in one mode: for another mode the old one makes
    /// room, and meanwhile traffic control keeps packets from the host's stack, where the kernel
    /// has it.
    fn attach_by(&mut self, ifindex: u32, mode: Mode) -> Result<(), EngineError> {
        let attached = self.links.get(&ifindex).map(|(_, mode)| *mode);
        let Some(old) = attached.filter(|old| old.hook() == Hook::Xdp && mode.hook() == Hook::Xdp) else {
            return self.keep(ifindex, self.link(ifindex, mode)?, mode);
        };
        if self.mode.is_none() {
            return Err(attach_error(&name_of(ifindex), std::io::Error::from_raw_os_error(libc::EBUSY)));
        }
        let meanwhile = self.link(ifindex, Mode::Tc);
        self.detach(ifindex);
        let (link, mode, refusal) = match self.link(ifindex, mode) {
            Ok(link) => (link, mode, None),
            Err(error) => (self.link(ifindex, old)?, old, Some(error)),
        };
        self.keep(ifindex, link, mode)?;
        drop(meanwhile);
        refusal.map_or(Ok(()), Err)
    }

    fn link(&self, ifindex: u32, mode: Mode) -> Result<Link, EngineError> {
        let program = self.program.deciding(mode.hook())?;
        Link::create(program, ifindex, mode).map_err(|error| {
            let lacks_tc = mode == Mode::Tc && matches!(TRAFFIC_CONTROL.is_met(), Ok(false));
            if lacks_tc { no_traffic_control() } else { attach_error(&name_of(ifindex), error) }
        })
    }

    /// Keeps a link, in the place of another if there was one: that ran until now.
    fn keep(&mut self, ifindex: u32, link: Link, mode: Mode) -> Result<(), EngineError> {
        if let Some(dir) = &self.pins {
            pins::pin_link(dir, ifindex, &link)
                .map_err(|e| EngineError::system("pinning a link", "CAP_SYS_ADMIN", e))?;
        }
        self.links.insert(ifindex, (link, mode));
        Ok(())
    }

    /// Whether the kernel holds a part as this engine has made it.
    fn is_there(&self, part: &Part) -> bool {
        match part {
            // an interface that is gone has no program to miss: the next tables are without it
            Part::Program(ifindex) => self.links.get(ifindex).is_none_or(|(link, _)| {
                matches!(link.place(), Ok(Some(_))) || if_indextoname(*ifindex).is_err()
            }),
            Part::Pins(dir) => {
                let links = self.links.keys().map(|ifindex| pins::link_path(dir, *ifindex));
                program::PINNED.iter().map(|map| dir.join(map)).chain(links).all(|path| path.exists())
            }
            Part::Guard | Part::Setting(_) => true,
        }
    }

    fn put_back(&mut self, part: &Part) -> Result<(), EngineError> {
        match part {
            Part::Program(ifindex) => {
                let Some((_, mode)) = self.links.get(ifindex) else { return Ok(()) };
                let mode = *mode;
                self.keep(*ifindex, self.link(*ifindex, mode)?, mode)
            }
            Part::Pins(dir) => {
                self.program.pin_maps(dir)?;
                self.links.iter().try_for_each(|(ifindex, (link, _))| {
                    pins::pin_link(dir, *ifindex, link).map_err(|error| pins::refused(dir, error))
                })
            }
            Part::Guard | Part::Setting(_) => Ok(()),
        }
    }

    /// Detaches from interfaces that the tables in force don't name.
    fn detach_others(&mut self) {
        let named = &self.program.tables.interfaces;
        let others: Vec<u32> = self.links.keys().filter(|i| !named.contains_key(i)).copied().collect();
        others.into_iter().for_each(|ifindex| self.detach(ifindex));
    }

    fn detach(&mut self, ifindex: u32) {
        if let Some(dir) = &self.pins {
            let _ = std::fs::remove_file(pins::link_path(dir, ifindex));
        }
        self.links.remove(&ifindex);
    }
}

/// Attaches a program that passes every frame: what the other end of a veth pair needs for frames
/// that native XDP sends out of this end. It stays until the interface goes or [`std::mem::drop`]
/// of the result.
///
/// # Errors
/// As for attaching the engine.
pub fn attach_pass(ifindex: u32) -> Result<impl Send, EngineError> {
    lift_memlock();
    let (seed, clock_is_given) = (Seed(0, 0), false);
    let size = TableSizes { sessions_max: 2, sessions6_max: 2, seed, ring_seed: None, clock_is_given };
    let program = Program::load(size, None)?;
    Link::create(program.fd("pass_all")?, ifindex, Mode::Native)
        .map_err(|error| attach_error(&name_of(ifindex), error))
}

/// Attaches somebody's own program where traffic control begins, as the engine attaches its own. It
/// stays until the interface goes or [`std::mem::drop`] of the result.
///
/// # Errors
/// As for attaching the engine.
pub fn attach_tc(program: BorrowedFd<'_>, ifindex: u32) -> Result<impl Send + use<>, EngineError> {
    Link::create(program, ifindex, Mode::Tc).map_err(|error| attach_error(&name_of(ifindex), error))
}

/// Logs why an interface has another mode than the best one for it.
fn log_refused_mode(interface: &str, mode: Mode, refused: Mode, error: &EngineError) {
    let remedy = match error {
        EngineError::System { source, .. } if refused == Mode::Native => {
            format!("; {}", ethtool::remedy(interface, source))
        }
        _ => String::new(),
    };
    tracing::info!(
        interface,
        "attached in mode {}, since mode {} is refused: {error}{remedy}",
        mode.name(),
        refused.name()
    );
}

fn no_traffic_control() -> EngineError {
    let (major, minor) = TRAFFIC_CONTROL.since;
    let missing = format!(
        "programs are attached to traffic control by links, which came with Linux {major}.{minor}; `xdp_mode = \"auto\"` \
         takes generic XDP"
    );
    EngineError::Kernel { engine: "xdp", missing }
}

fn attach_error(name: &str, error: std::io::Error) -> EngineError {
    let why = match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => {
            "another XDP program is attached to it; detach that one first".into()
        }
        Some(libc::ENODEV) => "it is gone".into(),
        _ => return EngineError::system(format!("attaching to {name}"), "CAP_NET_ADMIN", error),
    };
    EngineError::Interface { interface: name.to_owned(), why }
}

/// How to attach, the best first. Native XDP on a veth delivers only where the peer, in a namespace
/// we can't see, has a program too, and loses checksums that the sender left to the hardware; a
/// tun's frames are the kernel's own already. Elsewhere native is what the driver is made for.
/// Kernels before 6.6 have no tcx.
fn preferred(name: &str) -> Vec<Mode> {
    match ethtool::driver(name).as_deref() {
        Ok("veth" | "tun") => vec![Mode::Tc, Mode::Generic],
        _ => vec![Mode::Native, Mode::Tc, Mode::Generic],
    }
}

/// Kernels before 5.11 count maps against the limit on locked memory; libbpf lifts it where it may,
/// and where it may not the kernel says so when the maps are made.
fn lift_memlock() {
    use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// Whether what is pinned in `dir` can be carried on with.
fn is_adoptable(dir: &Path) -> bool {
    let is_there = |map: &str| dir.join(map).exists();
    if !program::PINNED.iter().filter(|map| **map != program::EXTENTS).all(|map| is_there(map)) {
        return false;
    }
    match program::pinned_settings(dir) {
        // Where there are no extents, nobody has resized the tables yet.
        Ok(settings) if [abi::ABI_VERSION, abi::ABI_WITHOUT_EXTENTS].contains(&settings.abi_version) => true,
        Ok(settings) => {
            let (theirs, ours) = (settings.abi_version, abi::ABI_VERSION);
            tracing::warn!(
                theirs,
                ours,
                "the running data plane is of another version: replaced, sessions are lost"
            );
            false
        }
        Err(error) => {
            tracing::warn!(%error, "the running data plane can't be adopted: replaced, sessions are lost");
            false
        }
    }
}

impl Engine for XdpEngine {
    fn kind(&self) -> &'static str {
        "xdp"
    }

    fn sends_by_stack(&self) -> Vec<u32> {
        // Traffic control asks the kernel for the next hop.
        let links = self.links.iter().filter(|(_, (_, mode))| mode.hook() == Hook::Xdp);
        links.map(|(ifindex, _)| *ifindex).collect()
    }

    fn describe(&self) -> String {
        let interfaces: Vec<_> = self
            .links
            .iter()
            .map(|(ifindex, (_, mode))| format!("{} on {}", mode.name(), name_of(*ifindex)))
            .collect();
        format!("xdp ({})", interfaces.join(", "))
    }

    fn running(&self) -> Option<&Tables> {
        self.running.as_ref()
    }

    fn tables(&self) -> &Arc<Tables> {
        &self.program.tables
    }

    fn apply(&mut self, tables: &Arc<Tables>) -> Result<(), EngineError> {
        if self.is_settled && self.program.tables == *tables {
            return Ok(());
        }
        self.is_settled = false;
        if self.held.is_none() {
            self.held = Some(PuntThread::start(&self.program, &self.program.tables, &self.moves)?);
        }
        // On an interface that the tables in force don't name the program passes every frame.
        let attached = tables.interfaces.keys().try_for_each(|ifindex| self.attach(*ifindex));
        let applied = attached.and_then(|()| self.program.apply(tables));
        // In any case the rest follows the tables in force.
        if let Some(held) = &self.held {
            held.apply(&self.program.tables);
        }
        self.detach_others();
        applied?;
        self.is_settled = !self.program.is_stale();
        self.running = None;
        Ok(())
    }

    fn installed(&self) -> Vec<Part> {
        let programs = self.links.keys().copied().map(Part::Program);
        self.pins.iter().cloned().map(Part::Pins).chain(programs).collect()
    }

    fn restore(&mut self) -> Vec<MissingPart> {
        let missing = self.installed().into_iter().filter(|part| !self.is_there(part)).collect::<Vec<_>>();
        let restored = missing.into_iter().map(|part| MissingPart { restored: self.put_back(&part), part });
        restored.collect()
    }

    fn memory(&self) -> Memory<'_> {
        self.program.memory()
    }

    fn now(&self) -> u32 {
        self.program.now()
    }

    fn counters(&self) -> Result<Counters, EngineError> {
        self.program.counters()
    }

    fn data_plane(&self) -> Arc<dyn DataPlane> {
        Arc::clone(self.program.readings()) as Arc<dyn DataPlane>
    }

    fn reset_server(&mut self, slot: u16) -> Result<(), EngineError> {
        self.program.reset_server(slot)
    }

    fn buckets(&self) -> [usize; 2] {
        self.program.buckets()
    }

    fn moves(&mut self, mover: RehandoffSink) {
        self.moves.set(mover);
    }

    fn watch(&mut self, watch: &TraceFilter) -> Result<(), EngineError> {
        watch.check()?;
        self.program.write_watch(watch);
        Ok(())
    }

    fn events(&mut self) -> Result<Box<dyn EventSource>, EngineError> {
        if self.is_read {
            return Err(crate::events::read_already());
        }
        let reader = self.program.reader()?;
        self.is_read = true;
        Ok(Box::new(reader))
    }

    fn leave(self: Box<Self>, keep: bool) -> Result<(), EngineError> {
        match &self.pins {
            Some(dir) if !keep => pins::clear(dir)
                .map_err(|e| EngineError::system(format!("unpinning {}", dir.display()), "CAP_SYS_ADMIN", e)),
            _ => Ok(()),
        }
    }
}
