//! The kernel's side of a server: `bpf/server/server.bpf.c`, which takes packets out of tunnels
//! from the farm's directors, keeps the segments that the server offers small enough for the
//! tunnel, and makes connections of what directors hand off.
//!
//! Maps and links are pinned, so all of it works on while the agent is stopped, killed or upgraded;
//! the next one adopts what runs.

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

/// The mark of what a director that is this host sends by itself: no reset of the stack's, so it
/// goes out at once (`bpf/server/server.bpf.c`, `outgoing`).
pub const SENT_ON: u16 = crate::numbers::server::SENT_ON as u16;

/// Where the programs shall run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachPoints {
    /// Interfaces that tunnels come in by, and whether each is hardware, whose driver may run the
    /// program.
    pub tunnels: BTreeMap<u32, bool>,
    /// Interfaces that answers leave by, where segment sizes are lowered.
    pub answers: BTreeSet<u32>,
    /// Interfaces that handed-off segments come in by.
    pub accept: BTreeSet<u32>,
    /// How tunnels are opened; `None` is as early as is good for each interface.
    pub hook: Option<Hook>,
}

/// Where the kernel describes itself.
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Why a server's programs can't do what they should.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel does not let this process.
    #[error("{what} needs CAP_BPF and CAP_NET_ADMIN; run as root or grant them ({answer})")]
    Privilege {
        /// The step that was tried.
        what: String,
        /// The kernel's answer.
        answer: String,
    },
    /// The kernel can't.
    #[error("this kernel can't run a server's BPF programs: {what}: {answer}")]
    Kernel {
        /// The step that was tried.
        what: String,
        /// Its answer.
        answer: String,
    },
    /// The kernel's verifier refuses a program.
    #[error("{0}")]
    Refused(Refusal),
    /// The kernel doesn't describe itself, and the programs call functions of its own.
    #[error(
        "this host can't take packets out of tunnels, nor connections that are handed over: there is no {BTF}; use a kernel built with \
         CONFIG_DEBUG_INFO_BTF, or mount /sys"
    )]
    NoBtf,
    /// The kernel can take packets out of tunnels, but make no connections of what is handed off.
    #[error(transparent)]
    Handoff(#[from] HandoffUnsupported),
    /// An interface refuses the program.
    #[error("the server's program can't be attached to interface {ifindex}: {source}")]
    Attach {
        /// The interface's number.
        ifindex: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The folder for pins.
    #[error(transparent)]
    Pins(#[from] EngineError),
    /// Something in it.
    #[error("{what}: {source}")]
    Io {
        /// The step that was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl ProgramError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| ProgramError::Io { what, source }
    }
}

/// A server's programs at work.
pub struct ServerPrograms {
    program: Program,
    /// Whether that for handoffs is among the programs.
    handoff: Result<(), HandoffUnsupported>,
    dir: PathBuf,
    links: BTreeMap<(u32, ProgramUse), (Link, Hook)>,
    /// Interfaces where segment sizes can't be lowered, which was said.
    unclamped: BTreeSet<u32>,
}

/// The use of a program on an interface.
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

/// The folder for a server's pins in this network namespace: beside that of the director, which
/// clears its own.
///
/// # Errors
/// When there is no BPF file system and none can be mounted.
pub fn directory() -> Result<PathBuf, EngineError> {
    let director = pins::directory()?;
    let name = director.file_name().unwrap_or_default().to_string_lossy().replace("net-", "server-");
    Ok(director.with_file_name(name))
}

/// The same folder if there is one; for who only looks, and mounts nothing.
pub fn existing_directory() -> Option<PathBuf> {
    let name = format!("evener/server-{}", pins::network_namespace().ok()?);
    pins::roots().into_iter().map(|root| root.join(&name)).find(|dir| dir.is_dir())
}

/// A number that no other network namespace has had or will have until the next boot: inode numbers
/// are used again.
///
/// # Errors
/// When the kernel is older than 5.14.
pub fn namespace_cookie() -> io::Result<u64> {
    /// asm-generic/socket.h.
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

/// The counts since the programs were first loaded.
#[derive(Debug)]
pub struct ProgramCounters(libbpf_rs::MapHandle);

impl ProgramCounters {
    /// By reason.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn read(&self) -> Result<BTreeMap<Reason, u64>, ProgramError> {
        program::counted(&self.0)
    }
}

/// The counts of the programs pinned in `dir`; `None` where there are none.
pub fn counters(dir: &Path) -> Option<BTreeMap<Reason, u64>> {
    program::pinned_counters(dir)
}

/// Where the programs pinned in `dir` run.
pub fn attached(dir: &Path) -> Vec<(u32, Hook)> {
    pinned_links(dir)
        .into_iter()
        .filter(|(ifindex, ..)| *ifindex != 0)
        .map(|(i, hook, ..)| (i, hook))
        .collect()
}

/// Detaches and forgets what is pinned in `dir`.
///
/// # Errors
/// When it can't be removed.
pub fn clear(dir: &Path) -> Result<(), ProgramError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(ProgramError::io(format!("unpinning {}", dir.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Loads the program for `hook` without attaching it: whether this kernel takes it.
///
/// # Errors
/// Missing privileges, or the kernel's refusal.
pub fn try_load(hook: Hook) -> Result<(), ProgramError> {
    program::try_load(hook)
}

impl ServerPrograms {
    /// Makes the maps; programs are loaded as places want them, those for handoffs where the kernel
    /// can. Pins of an earlier agent in `dir` are adopted, and go on until
    /// [`ServerPrograms::apply`] says otherwise.
    ///
    /// # Errors
    /// Missing privileges, or a kernel too old.
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
            // Its interface is gone, or the program in it has no place any more: it is made anew.
            let loaded = hook != Hook::Accept || handoff.is_ok();
            if ifindex == 0 || !loaded || link.update(program.fd(hook.program())?).is_err() {
                let _ = fs::remove_file(path);
                continue;
            }
            links.insert((ifindex, ProgramUse::of(hook)), (link, hook));
        }
        Ok(ServerPrograms { program, handoff, dir, links, unclamped: BTreeSet::new() })
    }

    /// Makes the programs go by `tables` and run at `places`. Where something is refused the rest
    /// is done all the same.
    ///
    /// # Errors
    /// The first refusal.
    pub fn apply(&mut self, tables: &Tables, places: &AttachPoints) -> Result<(), ProgramError> {
        self.program.pin(&self.dir)?;
        // No packet comes by an interface before the tables are there.
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
                // Without it a farm works, for clients that ICMP reaches.
                (Err(error @ ProgramError::Attach { .. }), ProgramUse::Answers) => {
                    if self.unclamped.insert(ifindex) {
                        tracing::warn!("{error}: segment sizes are not lowered there");
                    }
                }
                (attached, _) => done = done.and(attached),
            }
        }
        done
    }

    /// Has these keys' cookies believed from now on, also when nobody is there any more who says
    /// so. Ticks are those of [`crate::now_ticks`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_cookie_keys(&self, keys: &Schedule) -> Result<(), ProgramError> {
        self.program.write_keys(keys)
    }

    /// The connections that the programs know of.
    ///
    /// # Errors
    /// When the kernel can't make connections of what is handed off, or refuses.
    pub fn connections(&self) -> Result<Connections, ProgramError> {
        self.handoff.clone()?;
        let look = self.program.fd(attach::LOOK)?.try_clone_to_owned();
        let look = look.map_err(ProgramError::io("opening the program that looks at connections"))?;
        Ok(Connections::new(look, self.program.map(program::EXPECTED)?))
    }

    /// Runs one frame through the program for `hook`, as if it came in by, or left by, the loopback
    /// interface of the thread's network namespace: whether it goes on, and as it then stands. For
    /// tests.
    ///
    /// # Errors
    /// When the kernel refuses, as it does frames shorter than an Ethernet header, and sooner for
    /// TC.
    pub fn test_run(&self, hook: Hook, frame: &[u8]) -> Result<(bool, Vec<u8>), ProgramError> {
        let mut out = vec![0; frame.len() + 256];
        let run = test_run::run(self.program.fd(hook.program())?, frame, &mut out)
            .map_err(ProgramError::io("running a program on a frame"))?;
        out.truncate(run.len);
        Ok((hook.goes_on(run.verdict), out))
    }

    /// Where the programs run.
    pub fn attached(&self) -> impl Iterator<Item = (u32, Hook)> {
        self.links.iter().map(|((ifindex, _), (_, hook))| (*ifindex, *hook))
    }

    /// The counts since the programs were first loaded; they survive restarts of the agent.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counters(&self) -> Result<BTreeMap<Reason, u64>, ProgramError> {
        self.program.counters()
    }

    /// The same for who reads them on other threads.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn tally(&self) -> Result<ProgramCounters, ProgramError> {
        Ok(ProgramCounters(self.program.map(program::REASONS)?))
    }

    /// Ends the programs, unless they shall work on without the agent.
    ///
    /// # Errors
    /// When something stays attached.
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
                    tracing::debug!(ifindex, hook = hook.name(), %error, "not here");
                    refusal = error;
                }
            }
        }
        Err(ProgramError::Attach { ifindex, source: refusal })
    }

    /// Another host's agent may just have cleared the folder, since it was that of a namespace that
    /// is gone and had this one's number.
    fn pin(&mut self, link: &Link, path: &Path) -> Result<(), ProgramError> {
        let mut pinned = link.pin(path);
        if pinned.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            self.program.pin(&self.dir)?;
            pinned = link.pin(path);
        }
        pinned.map_err(ProgramError::io(format!("pinning {}", path.display())))
    }

    /// Pins the links that somebody has unpinned: a later agent finds them by that alone.
    fn pin_again(&self) -> Result<(), ProgramError> {
        self.links.iter().try_for_each(|((ifindex, _), (link, hook))| {
            let path = link_path(&self.dir, *ifindex, *hook);
            if path.exists() {
                return Ok(());
            }
            tracing::warn!(path = %path.display(), "somebody had removed this pin: it is restored");
            link.pin(&path).map_err(ProgramError::io(format!("pinning {}", path.display())))
        })
    }

    fn detach(&mut self, place: (u32, ProgramUse)) {
        if let Some((link, hook)) = self.links.remove(&place) {
            // A link whose interface is gone is detached already.
            if let Err(error) = link.detach() {
                tracing::debug!(ifindex = place.0, hook = hook.name(), %error, "not to be detached");
            }
            let _ = fs::remove_file(link_path(&self.dir, place.0, hook));
        }
    }

    /// A director that came later stands behind the program for handoffs, which must not see what
    /// is not decided: that one goes, to be attached again at the end.
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

    /// An interface that comes back has another number, or the same and no program.
    fn forget_vanished(&mut self) {
        let vanished = |link: &Link| matches!(link.ifindex(), Ok(0));
        let gone: Vec<_> =
            self.links.iter().filter(|(_, (link, _))| vanished(link)).map(|(place, _)| *place).collect();
        gone.into_iter().for_each(|place| self.detach(place));
    }
}

/// A driver runs the program earliest; TC sees segments put together; generic XDP takes them apart.
fn in_order(hardware: bool) -> Vec<Hook> {
    let all = [Hook::Native, Hook::Tc, Hook::Generic];
    all.into_iter().filter(|hook| hardware || *hook != Hook::Native).collect()
}

fn link_path(dir: &Path, ifindex: u32, hook: Hook) -> PathBuf {
    dir.join(format!("link-{ifindex}-{}", hook.name()))
}

/// Where the director of the same namespace pins its link, beside this server's own folder.
fn director_link_path(dir: &Path, ifindex: u32) -> PathBuf {
    let own = dir.file_name().unwrap_or_default().to_string_lossy();
    dir.with_file_name(own.replace("server-", "net-")).join(format!("link-{ifindex}"))
}

/// The links pinned in `dir`, with the interface each is attached to: 0 where that is gone.
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

/// Clears what namespaces that are gone have left.
fn clear_stale(own: &Path) {
    pins::clear_gone(own, |dir| {
        let found = pinned_links(dir);
        let is_server = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("server-"));
        is_server && !found.is_empty() && found.iter().all(|(ifindex, ..)| *ifindex == 0)
    });
}
