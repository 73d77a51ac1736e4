//! XDP engine: `bpf/director/director.bpf.c` or its TC variant on every interface that receives
//! service traffic.
//!
//! Maps and links are pinned, so traffic continues while the daemon is stopped, killed or upgraded.
//! The next daemon adopts the running programs and replaces them atomically by its own.

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
use program::{DataPlaneOptions, Program};
use punt::PuntThread;

pub use attach::{Hook, Mode};
pub use detached::{DetachedProgram, try_load};
pub use verify::{Verification, verify};
/// Start options of the XDP engine.
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
    /// Attach mode; `None` selects a mode for each interface.
    pub mode: Option<Mode>,
    /// Folder for pins. With `None` nothing is pinned, and the data plane ends with the engine.
    pub pins: Option<PathBuf>,
}

pub struct XdpEngine {
    program: Program,
    mode: Option<Mode>,
    pins: Option<PathBuf>,
    links: BTreeMap<u32, (Link, Mode)>,
    /// Reader of punted frames, once the first interface is attached.
    held: Option<PuntThread>,
    /// Invalidates cached routes when routes change.
    _fib_epoch: FibEpoch,
    moves: Arc<RehandoffSlot>,
    running: Option<Tables>,
    /// True if programs are attached exactly to the interfaces of the tables, and the maps hold no
    /// stale entries.
    is_settled: bool,
    /// True if a reader of trace events exists.
    is_read: bool,
}

impl XdpEngine {
    /// Loads the programs and adopts the pins of an earlier daemon. Programs are attached when the
    /// first tables name interfaces.
    ///
    /// # Errors
    /// Fails if privileges are missing, the kernel is too old, or memory for the session table is
    /// short.
    pub fn start(options: Options) -> Result<Self, EngineError> {
        Self::start_by(options, false)
    }

    /// For tests: starts with a clock that stands still until [`XdpEngine::set_clock`] moves it.
    ///
    /// # Errors
    /// See [`XdpEngine::start`].
    pub fn start_at(options: Options, now: u32) -> Result<Self, EngineError> {
        let engine = Self::start_by(options, true)?;
        engine.set_clock(now);
        Ok(engine)
    }

    /// Sets the clock of an engine of [`XdpEngine::start_at`], in ticks.
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
        let size = DataPlaneOptions { sessions_max, sessions6_max, seed, ring_seed, clock_is_given };
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

    /// For test runs: [`Engine::apply`] without attaching programs or releasing held frames.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn load_tables(&mut self, tables: &Arc<Tables>) -> Result<(), EngineError> {
        self.program.apply(tables)
    }

    /// For tests: returns the tables in the kernel's maps, without routes, which can't be decoded.
    pub fn read_again(&self) -> Tables {
        self.program.read_again().0
    }

    /// For tests: runs one frame through the program for `hook`, as if received on the loopback
    /// interface (index 1). Returns the verdict and the resulting frame. A held frame is reported
    /// as dropped. If the egress interface is unknown, as in TC, the verdict is to forward to index
    /// 0.
    ///
    /// # Errors
    /// Fails if the kernel refuses, for instance a frame shorter than an Ethernet header.
    pub fn test_run(&self, hook: Hook, frame: &[u8]) -> Result<(Verdict, Vec<u8>), EngineError> {
        test_run::director(&self.program, hook, frame)
    }

    /// For tests: returns the kernel's id of the program for `hook`, for inspection.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn program_id(&self, hook: Hook) -> Result<u32, EngineError> {
        let program = self.program.deciding(hook)?;
        crate::test_run::id(program)
            .map_err(|error| EngineError::system("looking at a program", "CAP_BPF", error))
    }

    /// Attaches a program to an interface, or replaces the attached one by a better mode, if
    /// possible. A mode set in the file is used, or an error is returned.
    fn attach(&mut self, ifindex: u32) -> Result<(), EngineError> {
        let name = name_of(ifindex);
        let modes = self.mode.map_or_else(|| preferred(&name), |mode| vec![mode]);
        let attached = self.links.get(&ifindex).map(|(_, mode)| *mode);
        // Modes that are preferred to the current one.
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
                    tracing::debug!(interface = name, mode = mode.name(), %error, "failed to attach in this mode");
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

    /// Attaches programs to these interfaces. A program passes every frame until the tables name
    /// its interface.
    ///
    /// # Errors
    /// Fails if an interface refuses all modes, or if the kernel refuses the program.
    pub fn attach_to(&mut self, interfaces: impl IntoIterator<Item = u32>) -> Result<(), EngineError> {
        interfaces.into_iter().try_for_each(|ifindex| self.attach(ifindex))
    }

    /// Attaches in this mode. An interface has room for one XDP program in one mode, so the old
    /// program is detached before another mode is attached. Meanwhile a TC program, where
    /// supported, keeps packets from the host's stack.
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

    /// Stores and pins a link in place of the interface's previous link, which runs until then.
    fn keep(&mut self, ifindex: u32, link: Link, mode: Mode) -> Result<(), EngineError> {
        if let Some(dir) = &self.pins {
            pins::pin_link(dir, ifindex, &link)
                .map_err(|e| EngineError::system("pinning a link", "CAP_SYS_ADMIN", e))?;
        }
        self.links.insert(ifindex, (link, mode));
        Ok(())
    }

    /// True if the kernel still holds this part as the engine set it up.
    fn is_there(&self, part: &Part) -> bool {
        match part {
            // An interface that is gone lacks no program; the next tables omit it.
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

    /// Detaches from interfaces that are not in the tables in force.
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

/// Attaches a program that passes every frame. The peer of a veth pair requires such a program to
/// receive frames that native XDP sends. The program stays until the interface is gone or the
/// result is [dropped](std::mem::drop).
///
/// # Errors
/// Fails like attaching the engine.
pub fn attach_pass(ifindex: u32) -> Result<impl Send, EngineError> {
    lift_memlock();
    let (seed, clock_is_given) = (Seed(0, 0), false);
    let size = DataPlaneOptions { sessions_max: 2, sessions6_max: 2, seed, ring_seed: None, clock_is_given };
    let program = Program::load(size, None)?;
    Link::create(program.fd("pass_all")?, ifindex, Mode::Native)
        .map_err(|error| attach_error(&name_of(ifindex), error))
}

/// Attaches a caller's program at TC ingress, as the engine attaches its own. The program stays
/// until the interface is gone or the result is [dropped](std::mem::drop).
///
/// # Errors
/// Fails like attaching the engine.
pub fn attach_tc(program: BorrowedFd<'_>, ifindex: u32) -> Result<impl Send + use<>, EngineError> {
    Link::create(program, ifindex, Mode::Tc).map_err(|error| attach_error(&name_of(ifindex), error))
}

/// Logs why an interface does not have its preferred mode.
fn log_refused_mode(interface: &str, mode: Mode, refused: Mode, error: &EngineError) {
    let remedy = match error {
        EngineError::System { source, .. } if refused == Mode::Native => {
            format!("; {}", ethtool::remedy(interface, source))
        }
        _ => String::new(),
    };
    tracing::info!(
        interface,
        "attached in mode {}, since mode {} failed: {error}{remedy}",
        mode.name(),
        refused.name()
    );
}

fn no_traffic_control() -> EngineError {
    let (major, minor) = TRAFFIC_CONTROL.since;
    let missing =
        format!("TC programs need Linux {major}.{minor} (TCX); `xdp_mode = \"auto\"` uses generic XDP");
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

/// Returns the attach modes of an interface in order of preference. Native XDP on a veth delivers
/// only if the peer, in another namespace, has a program too, and it loses partial checksums. A
/// tun's frames are already the kernel's own packets. Elsewhere native mode is the fastest. Kernels
/// before 6.6 have no tcx.
fn preferred(name: &str) -> Vec<Mode> {
    match ethtool::driver(name).as_deref() {
        Ok("veth" | "tun") => vec![Mode::Tc, Mode::Generic],
        _ => vec![Mode::Native, Mode::Tc, Mode::Generic],
    }
}

/// Kernels before 5.11 count maps against the limit on locked memory. If the limit can't be lifted,
/// the kernel refuses the maps later.
fn lift_memlock() {
    use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// True if the pins in `dir` can be adopted.
fn is_adoptable(dir: &Path) -> bool {
    let is_there = |map: &str| dir.join(map).exists();
    if !program::PINNED.iter().filter(|map| !program::NEW.contains(*map)).all(|map| is_there(map)) {
        return false;
    }
    match program::pinned_settings(dir) {
        Ok(settings) if [abi::ABI_VERSION, abi::ABI_WITHOUT_AFFINITY].contains(&settings.abi_version) => true,
        Ok(settings) => {
            let (theirs, ours) = (settings.abi_version, abi::ABI_VERSION);
            tracing::warn!(
                theirs,
                ours,
                "the running data plane has another version: it was replaced, and its sessions are lost"
            );
            false
        }
        Err(error) => {
            tracing::warn!(%error, "failed to adopt the running data plane: it was replaced, and its sessions are lost");
            false
        }
    }
}

impl Engine for XdpEngine {
    fn kind(&self) -> &'static str {
        "xdp"
    }

    fn sends_by_stack(&self) -> Vec<u32> {
        // TC programs resolve the next hop by the kernel instead.
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
        // The program passes every frame on an interface that is not in the tables in force.
        let attached = tables.interfaces.keys().try_for_each(|ifindex| self.attach(*ifindex));
        let applied = attached.and_then(|()| self.program.apply(tables));
        // Everything else follows the tables in force, also after an error.
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
