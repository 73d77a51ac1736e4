//! Kernel programs of a server: `bpf/server/server.bpf.c`. The programs decapsulate packets from
//! the farm's directors, and clamp the server's announced MSS so that segments fit the tunnel. They
//! also create connections from segments that directors hand off.
//!
//! Maps and links are pinned, so the programs run on while the agent is stopped, killed or
//! upgraded. The next agent adopts them.

mod attach;
mod connections;
mod handoff_support;
mod program;
mod reason;
mod socket_snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use evener_core::path::cookie::Schedule;

use crate::EngineError;
use crate::load::Refusal;
use crate::test_run;
use crate::xdp::pins;
use attach::Link;
use program::Program;

pub use attach::Hook;
pub use connections::{ConnectionState, Connections, Idle};
pub use evener_core::server::{Offer, Reason, Tables};
pub use handoff_support::{HandoffUnsupported, handoff_support};

/// Mark of packets that a director on this host sends itself. The `outgoing` program of
/// `bpf/server/server.bpf.c` sends such packets at once, because they are no resets of the stack.
pub const SENT_ON: u16 = crate::numbers::server::SENT_ON as u16;

/// Interfaces and hooks to which a server's programs are attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachPoints {
    /// Interfaces that receive tunnel packets. The value is true for hardware, whose driver may run
    /// the program.
    pub tunnels: BTreeMap<u32, bool>,
    /// Interfaces that send replies, where the MSS is clamped.
    pub answers: BTreeSet<u32>,
    /// Interfaces that receive handed-off segments.
    pub accept: BTreeSet<u32>,
    /// Hook for decapsulation; `None` selects the earliest suitable hook of each interface.
    pub hook: Option<Hook>,
}

/// Path of the kernel's BTF.
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Cause why a server's programs failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("{what} needs CAP_BPF and CAP_NET_ADMIN; run as root or grant them ({answer})")]
    Privilege { what: String, answer: String },
    /// The kernel lacks a feature.
    #[error("this kernel can't run a server's BPF programs: {what}: {answer}")]
    Kernel { what: String, answer: String },
    #[error("{0}")]
    Refused(Refusal),
    /// The kernel has no BTF, which the programs need to call kernel functions.
    #[error(
        "this host can't decapsulate tunnel packets or accept handed-off connections: there is no {BTF}; use a kernel with CONFIG_DEBUG_INFO_BTF, or mount /sys"
    )]
    NoBtf,
    /// The kernel supports decapsulation, but can't create connections from handed-off segments.
    #[error(transparent)]
    Handoff(#[from] HandoffUnsupported),
    /// A program can't be attached to an interface.
    #[error("the server's program can't be attached to interface {ifindex}: {source}")]
    Attach {
        /// Index of the interface.
        ifindex: u32,
        source: io::Error,
    },
    /// The folder for pins is unusable.
    #[error(transparent)]
    Pins(#[from] EngineError),
    /// An operation on a file in the folder failed.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl ProgramError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| ProgramError::Io { what, source }
    }
}

/// Loaded programs of a server.
pub struct ServerPrograms {
    program: Program,
    /// `Ok` if the program for handoffs is loaded.
    handoff: Result<(), HandoffUnsupported>,
    dir: PathBuf,
    links: BTreeMap<(u32, ProgramUse), (Link, Hook)>,
    /// Interfaces where the MSS can't be clamped and a warning has been logged.
    unclamped: BTreeSet<u32>,
}

/// Use of a program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ProgramUse {
    Tunnels,
    Answers,
    Handoffs,
}

impl ProgramUse {
    fn of(hook: Hook) -> ProgramUse {
        match hook {
            Hook::Native | Hook::Tc | Hook::Generic => ProgramUse::Tunnels,
            Hook::Egress => ProgramUse::Answers,
            Hook::Accept => ProgramUse::Handoffs,
        }
    }
}

/// Returns the folder for a server's pins in this network namespace, beside the director's folder,
/// which the director clears.
///
/// # Errors
/// Fails if no BPF file system is mounted and none can be mounted.
pub fn directory() -> Result<PathBuf, EngineError> {
    let director = pins::directory()?;
    let name = director.file_name().unwrap_or_default().to_string_lossy().replace("net-", "server-");
    Ok(director.with_file_name(name))
}

/// Returns the folder if it exists; mounts nothing.
pub fn existing_directory() -> Option<PathBuf> {
    let name = format!("evener/server-{}", pins::network_namespace().ok()?);
    pins::roots().into_iter().map(|root| root.join(&name)).find(|dir| dir.is_dir())
}

/// Returns the cookie of the network namespace, unique until the next boot. Inode numbers are
/// reused.
///
/// # Errors
/// Fails on kernels before 5.14.
pub fn namespace_cookie() -> io::Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: an open socket; the kernel writes at most `len` bytes to `cookie`, which is as long.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// Counters since the programs were first loaded.
#[derive(Debug)]
pub struct ProgramCounters(libbpf_rs::MapHandle);

impl ProgramCounters {
    /// Returns the counters by reason.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn read(&self) -> Result<BTreeMap<Reason, u64>, ProgramError> {
        program::counted(&self.0)
    }
}

/// Returns the counters of the programs pinned in `dir`; `None` without pinned programs.
pub fn counters(dir: &Path) -> Option<BTreeMap<Reason, u64>> {
    program::pinned_counters(dir)
}

/// Returns interfaces and hooks of the programs pinned in `dir`.
pub fn attached(dir: &Path) -> Vec<(u32, Hook)> {
    pinned_links(dir)
        .into_iter()
        .filter(|(ifindex, ..)| *ifindex != 0)
        .map(|(i, hook, ..)| (i, hook))
        .collect()
}

/// Detaches the programs pinned in `dir` and removes the folder.
///
/// # Errors
/// Fails if the folder can't be removed.
pub fn clear(dir: &Path) -> Result<(), ProgramError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(ProgramError::io(format!("unpinning {}", dir.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Loads the program for `hook` without attaching it, to test the kernel.
///
/// # Errors
/// Fails if privileges are missing or the kernel refuses the program.
pub fn try_load(hook: Hook) -> Result<(), ProgramError> {
    program::try_load(hook)
}

impl ServerPrograms {
    /// Creates the maps. Most programs are loaded on first use, those for handoffs only if the
    /// kernel supports them. Pins of an earlier agent in `dir` are adopted and stay in force until
    /// [`ServerPrograms::apply`].
    ///
    /// # Errors
    /// Fails if privileges are missing or the kernel is too old.
    pub fn start(dir: PathBuf) -> Result<Self, ProgramError> {
        clear_stale(&dir);
        let adopt = program::is_adoptable(&dir);
        if !adopt {
            clear(&dir)?;
        }
        let handoff = handoff_support();
        let program = Program::load(&dir, adopt)?;
        let mut links = BTreeMap::new();
        for (ifindex, hook, path, link) in pinned_links(&dir) {
            // The interface is gone or the program can't be updated; `apply` attaches it again.
            let loaded = hook != Hook::Accept || handoff.is_ok();
            if ifindex == 0 || !loaded || link.update(program.fd(hook.program())?).is_err() {
                let _ = fs::remove_file(path);
                continue;
            }
            links.insert((ifindex, ProgramUse::of(hook)), (link, hook));
        }
        Ok(ServerPrograms { program, handoff, dir, links, unclamped: BTreeSet::new() })
    }

    /// Writes `tables` and attaches the programs at `places`. A failure does not stop the remaining
    /// operations.
    ///
    /// # Errors
    /// Returns the first failure.
    pub fn apply(&mut self, tables: &Tables, places: &AttachPoints) -> Result<(), ProgramError> {
        self.program.pin(&self.dir)?;
        // The tables are written before the first packet can arrive.
        self.program.write_tables(tables)?;
        self.forget_vanished();
        self.pin_again()?;
        self.make_way_for_directors();
        let wanted: BTreeMap<(u32, ProgramUse), Vec<Hook>> = places
            .tunnels
            .iter()
            .map(|(ifindex, hardware)| {
                let hooks = places.hook.map_or_else(|| in_order(*hardware), |hook| vec![hook]);
                ((*ifindex, ProgramUse::Tunnels), hooks)
            })
            .chain(places.answers.iter().map(|ifindex| ((*ifindex, ProgramUse::Answers), vec![Hook::Egress])))
            .chain(places.accept.iter().map(|ifindex| ((*ifindex, ProgramUse::Handoffs), vec![Hook::Accept])))
            .collect();
        let stays = |place, hook| wanted.get(place).is_some_and(|hooks: &Vec<Hook>| hooks.contains(hook));
        let links = self.links.iter();
        let gone: Vec<_> =
            links.filter(|(place, (_, hook))| !stays(place, hook)).map(|(place, _)| *place).collect();
        for place in gone {
            self.detach(place);
        }
        let mut done = Ok(());
        for ((ifindex, use_), hooks) in wanted {
            if self.links.contains_key(&(ifindex, use_)) {
                continue;
            }
            match (self.attach(ifindex, &hooks), use_) {
                // Without MSS clamping the farm works for clients that ICMP reaches.
                (Err(error @ ProgramError::Attach { .. }), ProgramUse::Answers) => {
                    if self.unclamped.insert(ifindex) {
                        tracing::warn!("{error}: the TCP segment size is not lowered on this interface");
                    }
                }
                (attached, _) => done = done.and(attached),
            }
        }
        done
    }

    /// Sets the keys of SYN cookies that the programs accept. The schedule stays in force without
    /// the agent. Ticks are those of [`crate::now_ticks`].
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn set_cookie_keys(&self, keys: &Schedule) -> Result<(), ProgramError> {
        self.program.write_keys(keys)
    }

    /// Returns access to the connections of this host's services.
    ///
    /// # Errors
    /// Fails if the kernel does not support handoffs, or refuses.
    pub fn connections(&self) -> Result<Connections, ProgramError> {
        self.handoff.clone()?;
        let look = self.program.fd(attach::LOOK)?.try_clone_to_owned();
        let look = look.map_err(ProgramError::io("opening the program that reads connections"))?;
        Ok(Connections::new(look, self.program.map(program::EXPECTED)?))
    }

    /// For tests: runs one frame through the program for `hook`, on the loopback interface of the
    /// thread's network namespace. Returns true if the frame continues, and the resulting frame.
    ///
    /// # Errors
    /// Fails if the kernel refuses: for instance a frame shorter than an Ethernet header, or a
    /// somewhat longer one for TC.
    pub fn test_run(&self, hook: Hook, frame: &[u8]) -> Result<(bool, Vec<u8>), ProgramError> {
        let mut out = vec![0; frame.len() + 256];
        let run = test_run::run(self.program.fd(hook.program())?, frame, &mut out)
            .map_err(ProgramError::io("running a program on a frame"))?;
        out.truncate(run.len);
        Ok((hook.goes_on(run.verdict), out))
    }

    /// Interfaces and hooks of the attached programs.
    pub fn attached(&self) -> impl Iterator<Item = (u32, Hook)> {
        self.links.iter().map(|((ifindex, _), (_, hook))| (*ifindex, *hook))
    }

    /// Counters since the programs were first loaded; restarts of the agent don't reset them.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn counters(&self) -> Result<BTreeMap<Reason, u64>, ProgramError> {
        self.program.counters()
    }

    /// Returns access to the counters for other threads.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn tally(&self) -> Result<ProgramCounters, ProgramError> {
        Ok(ProgramCounters(self.program.map(program::REASONS)?))
    }

    /// Ends the agent's control. Without `keep` the programs are detached.
    ///
    /// # Errors
    /// Fails if a pin can't be removed.
    pub fn leave(self, keep: bool) -> Result<(), ProgramError> {
        if keep { Ok(()) } else { clear(&self.dir) }
    }

    fn attach(&mut self, ifindex: u32, hooks: &[Hook]) -> Result<(), ProgramError> {
        if hooks.contains(&Hook::Accept) {
            self.handoff.clone()?;
        }
        let mut refusal = io::Error::from(io::ErrorKind::Unsupported);
        for &hook in hooks {
            match Link::create(self.program.fd(hook.program())?, ifindex, hook) {
                Ok(link) => {
                    self.pin(&link, &link_path(&self.dir, ifindex, hook))?;
                    self.links.insert((ifindex, ProgramUse::of(hook)), (link, hook));
                    return Ok(());
                }
                Err(error) => {
                    tracing::debug!(ifindex, hook = hook.name(), %error, "failed to attach this way; trying the next one");
                    refusal = error;
                }
            }
        }
        Err(ProgramError::Attach { ifindex, source: refusal })
    }

    /// Pins a link. The agent of another network namespace may just have removed the folder, as
    /// remains of a removed namespace with the same inode number. Then the folder is created again.
    fn pin(&mut self, link: &Link, path: &Path) -> Result<(), ProgramError> {
        let mut pinned = link.pin(path);
        if pinned.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            self.program.pin(&self.dir)?;
            pinned = link.pin(path);
        }
        pinned.map_err(ProgramError::io(format!("pinning {}", path.display())))
    }

    /// Pins links again whose pin has been removed, since a later agent finds links only by their
    /// pins.
    fn pin_again(&self) -> Result<(), ProgramError> {
        self.links.iter().try_for_each(|((ifindex, _), (link, hook))| {
            let path = link_path(&self.dir, *ifindex, *hook);
            if path.exists() {
                return Ok(());
            }
            tracing::warn!(path = %path.display(), "another program removed this pin; it is restored");
            link.pin(&path).map_err(ProgramError::io(format!("pinning {}", path.display())))
        })
    }

    fn detach(&mut self, place: (u32, ProgramUse)) {
        if let Some((link, hook)) = self.links.remove(&place) {
            // A link whose interface is gone is already detached.
            if let Err(error) = link.detach() {
                tracing::debug!(ifindex = place.0, hook = hook.name(), %error, "failed to detach");
            }
            let _ = fs::remove_file(link_path(&self.dir, place.0, hook));
        }
    }

    /// Detaches handoff programs that run before a director attached later. A handoff program must
    /// not see packets that the director has not decided. The caller attaches the programs again at
    /// the end.
    fn make_way_for_directors(&mut self) {
        let comes_early = |place: &&(u32, ProgramUse), link: &Link| {
            let director = Link::open(&director_link_path(&self.dir, place.0));
            director.is_ok_and(|director| link.is_before(&director, place.0).unwrap_or_default())
        };
        let handoffs = self.links.iter().filter(|((_, use_), _)| *use_ == ProgramUse::Handoffs);
        let early = handoffs.filter(|(place, (link, _))| comes_early(place, link));
        let early: Vec<_> = early.map(|(place, _)| *place).collect();
        early.into_iter().for_each(|place| self.detach(place));
    }

    /// Removes links of interfaces that are gone. An interface that is created again has a new
    /// index, or the same index without the program.
    fn forget_vanished(&mut self) {
        let vanished = |link: &Link| matches!(link.ifindex(), Ok(0));
        let gone: Vec<_> =
            self.links.iter().filter(|(_, (link, _))| vanished(link)).map(|(place, _)| *place).collect();
        gone.into_iter().for_each(|place| self.detach(place));
    }
}

/// Hooks in order of preference: the driver runs the program earliest, TC sees merged segments, and
/// generic XDP splits them.
fn in_order(hardware: bool) -> Vec<Hook> {
    let all = [Hook::Native, Hook::Tc, Hook::Generic];
    all.into_iter().filter(|hook| hardware || *hook != Hook::Native).collect()
}

fn link_path(dir: &Path, ifindex: u32, hook: Hook) -> PathBuf {
    dir.join(format!("link-{ifindex}-{}", hook.name()))
}

/// Path of the pin of the director's link in the same namespace, beside this server's folder.
fn director_link_path(dir: &Path, ifindex: u32) -> PathBuf {
    let own = dir.file_name().unwrap_or_default().to_string_lossy();
    dir.with_file_name(own.replace("server-", "net-")).join(format!("link-{ifindex}"))
}

/// Returns the links pinned in `dir` with their interface; 0 if the interface is gone.
fn pinned_links(dir: &Path) -> Vec<(u32, Hook, PathBuf, Link)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let link = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let hook = name.to_str()?.strip_prefix("link-")?.split('-').nth(1).and_then(Hook::named)?;
        let link = Link::open(&entry.path()).ok()?;
        Some((link.ifindex().unwrap_or_default(), hook, entry.path(), link))
    };
    entries.filter_map(link).collect()
}

/// Removes the pins of network namespaces that are gone.
fn clear_stale(own: &Path) {
    pins::clear_gone(own, |dir| {
        let found = pinned_links(dir);
        let is_server = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("server-"));
        is_server && !found.is_empty() && found.iter().all(|(ifindex, ..)| *ifindex == 0)
    });
}
