//! Kernel programs that track each connection's pending response: `bpf/server/pending.bpf.c`
//! follows requests where the host's own sockets receive and send packets.
//!
//! Nothing is pinned: the programs are detached when the [`PendingPrograms`] is dropped. The
//! programs' state of a connection is in socket storage, and sock_diag(7) returns this state
//! together with the TCP state.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use evener_core::server::{Behind, Pending, ResponseProgress};
use libbpf_rs::{Error, ErrorKind, Link, Map, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::load::{LoadError, Refusal, load};
use crate::numbers::pending::{
    BEHIND_NOTHING, BEHIND_REQUEST, BEHIND_UNKNOWN, COUNT_REQUESTS, COUNT_SENT, COUNT_UNFOLLOWED,
    COUNT_UNREAD, LINE_MAX, PENDING_KNOWN, PENDING_UNKNOWN, PENDING_WAITING, PORT_WORDS,
};
use crate::server::namespace_cookie;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pending.bpf.o"));
/// Mount points of cgroup v2: alone, or beside cgroup v1.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Name of the map of requests in the BPF object.
const PENDING: &str = "pending";

/// Cause why requests can't be tracked.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The programs are attached to a control group.
    #[error("requests can't be tracked: there is no cgroup v2 hierarchy at {}, and mounting one failed: {source}", CGROUPS.join(" or "))]
    Cgroup {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel's verifier refuses a program.
    #[error("requests can't be tracked: {0}")]
    Verifier(Refusal),
    #[error("requests can't be tracked: {what}: {source}")]
    Refused { what: &'static str, source: Error },
}

impl FollowError {
    fn refused(what: &'static str) -> impl Fn(Error) -> FollowError {
        move |source| FollowError::Refused { what, source }
    }
}

/// Attached programs, for this network namespace and all processes of this host or container.
#[derive(Debug)]
pub struct PendingPrograms {
    object: Object,
    /// Links; dropping them detaches the programs.
    _links: Vec<Link>,
}

/// Last request of a connection, as read over sock_diag(7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedRequest {
    /// Request and progress of its response.
    pub pending: Pending,
    /// Arrival time in nanoseconds, by the monotonic clock.
    pub since_ns: u64,
    /// Start of the request: its first line, cut to the available room.
    pub line: Vec<u8>,
}

/// `struct pending` of `bpf/server/pending_abi.h`.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PendingRecord {
    begin: u64,
    end: u64,
    since_ns: u64,
    begin_sequence: u32,
    end_sequence: u32,
    answer: u8,
    is_head: u8,
    line_len: u8,
    behind: u8,
    kept: u32,
    next_sequence: u32,
    sent_to: u32,
    line: [u8; LINE_MAX as usize],
}

impl TrackedRequest {
    /// Decodes the socket storage. Returns `None` if the bytes belong to another BPF program.
    pub fn read(bytes: &[u8]) -> Option<TrackedRequest> {
        let (value, _) = PendingRecord::read_from_prefix(bytes).ok()?;
        let answer = match u64::from(value.answer) {
            PENDING_WAITING => ResponseProgress::Waiting,
            PENDING_KNOWN => ResponseProgress::Known,
            PENDING_UNKNOWN => ResponseProgress::Unknown,
            _ => return None,
        };
        let pending = Pending {
            answer,
            is_head: value.is_head != 0,
            begin_sequence: value.begin_sequence,
            end_sequence: value.end_sequence,
            begin: value.begin,
            end: value.end,
            behind: match u64::from(value.behind) {
                BEHIND_NOTHING => Behind::Nothing(value.next_sequence),
                BEHIND_REQUEST => Behind::Request,
                BEHIND_UNKNOWN => Behind::Unknown,
                _ => return None,
            },
        };
        let line = value.line.get(..usize::from(value.line_len))?.to_vec();
        Some(TrackedRequest { pending, since_ns: value.since_ns, line })
    }
}

impl PendingPrograms {
    /// Starts to track requests to these ports.
    ///
    /// # Errors
    /// Fails without CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, without cgroup v2, or if the kernel
    /// lacks a feature.
    pub fn start(ports: &BTreeSet<u16>) -> Result<PendingPrograms, FollowError> {
        let group = cgroup().map_err(|source| FollowError::Cgroup { source })?;
        let cookie = namespace_cookie().unwrap_or_default();
        // Before 6.11, these programs can't read a packet's network namespace. The programs then
        // also track sockets of other namespaces, and the results are ignored.
        let object = loaded(cookie).or_else(|_| loaded(0))?;
        let attach = |program: libbpf_rs::ProgramMut<'_>| program.attach_cgroup(group.as_raw_fd());
        let mut following = PendingPrograms { object, _links: Vec::new() };
        following.follow(ports)?;
        let links: Result<Vec<Link>, Error> = following.object.progs_mut().map(attach).collect();
        following._links =
            links.map_err(FollowError::refused("attaching the programs to the control group"))?;
        Ok(following)
    }

    /// Replaces the ports whose requests are tracked.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    pub fn follow(&self, ports: &BTreeSet<u16>) -> Result<(), FollowError> {
        let missing = || {
            FollowError::refused("writing the ports")(Error::from(io::Error::from(io::ErrorKind::NotFound)))
        };
        let map = self.map("ports").ok_or_else(missing)?;
        let mut words = vec![0u64; PORT_WORDS as usize];
        for port in ports {
            words[usize::from(*port) / 64] |= 1 << (port % 64);
        }
        (0u32..).zip(words).try_for_each(|(at, word)| {
            map.update(&at.to_ne_bytes(), &word.to_ne_bytes(), MapFlags::ANY)
                .map_err(FollowError::refused("writing the ports"))
        })
    }

    /// Map of requests, for sock_diag(7).
    pub fn requests(&self) -> Option<BorrowedFd<'_>> {
        let map = self.map(PENDING)?;
        // SAFETY: the descriptor belongs to an object of `self`, which the borrow doesn't outlive.
        Some(unsafe { BorrowedFd::borrow_raw(map.as_fd().as_raw_fd()) })
    }

    /// Number of bytes that these ports have sent since the start, without retransmissions.
    pub fn sent(&self) -> u64 {
        self.count(COUNT_SENT)
    }

    /// Number of requests since the start that were not tracked for lack of memory.
    pub fn unfollowed(&self) -> u64 {
        self.count(COUNT_UNFOLLOWED)
    }

    /// Number of HTTP/1 requests since the start. Of pipelined requests, at most two count.
    pub fn seen(&self) -> u64 {
        self.count(COUNT_REQUESTS)
    }

    /// Number of connections since the start whose first data isn't an HTTP/1 request, because they
    /// use TLS, HTTP/2 or another protocol.
    pub fn unread(&self) -> u64 {
        self.count(COUNT_UNREAD)
    }

    fn count(&self, number: u64) -> u64 {
        let map = self.map("counts");
        let values =
            map.and_then(|map| map.lookup_percpu(&(number as u32).to_ne_bytes(), MapFlags::ANY).ok()?);
        let words =
            values.into_iter().flatten().filter_map(|value| value.try_into().ok().map(u64::from_ne_bytes));
        words.sum()
    }

    /// Id of the map of requests, for other processes.
    pub fn number(&self) -> Option<u32> {
        self.map(PENDING)?.info().ok().map(|info| info.info.id)
    }

    fn map(&self, name: &str) -> Option<Map<'_>> {
        self.object.maps().find(|map| map.name() == name)
    }
}

/// Opens another process's map of requests by its id ([`PendingPrograms::number`]).
///
/// # Errors
/// Fails without CAP_SYS_ADMIN, or if no such map exists.
pub fn requests_of(number: u32) -> io::Result<OwnedFd> {
    let map = MapHandle::from_map_id(number).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => io::Error::from(io::ErrorKind::PermissionDenied),
        _ => io::Error::other(format!("{error:#}")),
    })?;
    match map.name() == PENDING {
        true => map.as_fd().try_clone_to_owned(),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Opens the root of the cgroup v2 hierarchy. If no mount shows it, as under `ip netns exec`, a
/// detached mount is made.
fn cgroup() -> io::Result<OwnedFd> {
    let is_cgroup = |path: &&&str| {
        statfs(Path::new(path)).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC)
    };
    match CGROUPS.iter().find(is_cgroup) {
        Some(path) => Ok(File::open(path)?.into()),
        None => mount_detached(),
    }
}

/// Mounts cgroup v2 without a path (fsopen(2), fsconfig(2), fsmount(2)). Closing the descriptor
/// unmounts it.
fn mount_detached() -> io::Result<OwnedFd> {
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    let owned = |fd: libc::c_long| -> io::Result<OwnedFd> {
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the call has just returned this descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // SAFETY: the name is a C string; no flags are passed.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), 0) })?;
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: an open descriptor of fsopen(2); this command takes neither key nor value.
    let created =
        unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, null, null, 0) };
    if created < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the same descriptor, with which the file system has been created.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 0, 0) })
}

fn loaded(cookie: u64) -> Result<Object, FollowError> {
    let open = || {
        let mut open = ObjectBuilder::default()
            .name("evener_pending")
            .and_then(|builder| builder.open_memory(OBJECT))
            .map_err(FollowError::refused("opening the BPF object"))?;
        let mut constants = open.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata"));
        let data = constants.as_mut().and_then(|map| map.initial_value_mut());
        let word = data.and_then(|data| data.first_chunk_mut::<8>());
        *word.ok_or_else(|| {
            FollowError::refused("preparing the BPF object")(Error::from(io::Error::other(
                "it has no constants",
            )))
        })? = cookie.to_ne_bytes();
        Ok(open)
    };
    load(open, |error| match error {
        LoadError::Refused(refusal) => FollowError::Verifier(refusal),
        LoadError::Failed(error) => FollowError::refused("loading the BPF programs")(error),
    })
}
