//! Attaches a server's programs by BPF links. A pin keeps a link alive after the agent's end.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;

/// Program of `bpf/server/server.bpf.c` that creates connections; not every kernel can load it.
pub(super) const ACCEPT: &str = "accept";
/// Program that reads connections; not every kernel can load it.
pub(super) const LOOK: &str = "look";
/// Maximum number of programs read per interface, more than a kernel allows.
const PROGRAMS_MAX: usize = 64;

/// Point in the kernel where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP in the driver, before the kernel builds a packet from the frame.
    Native,
    /// TC ingress, behind GRO; kernels since 6.6 support links.
    Tc,
    /// XDP behind the driver, one segment at a time.
    Generic,
    Egress,
    /// TC ingress, behind all programs that select a server.
    Accept,
}

impl Hook {
    const ALL: [Hook; 5] = [Hook::Native, Hook::Tc, Hook::Generic, Hook::Egress, Hook::Accept];

    /// Name in views and pins.
    pub const fn name(self) -> &'static str {
        match self {
            Hook::Native => "native",
            Hook::Tc => "tc",
            Hook::Generic => "generic",
            Hook::Egress => "egress",
            Hook::Accept => "accept",
        }
    }

    pub(super) fn named(name: &str) -> Option<Hook> {
        Hook::ALL.into_iter().find(|hook| hook.name() == name)
    }

    /// True if a program's verdict lets the frame continue: XDP_PASS, or TC_ACT_UNSPEC, with which
    /// the next program runs.
    pub(super) const fn goes_on(self, verdict: u32) -> bool {
        match self {
            Hook::Native | Hook::Generic => verdict == 2,
            Hook::Tc | Hook::Egress | Hook::Accept => verdict == u32::MAX,
        }
    }

    /// Program of `bpf/server/server.bpf.c` for this hook.
    pub(super) const fn program(self) -> &'static str {
        match self {
            Hook::Native | Hook::Generic => "decap_xdp",
            Hook::Tc => "decap_tc",
            Hook::Egress => "outgoing",
            Hook::Accept => ACCEPT,
        }
    }

    const fn kind(self) -> (sys::bpf_attach_type, u32) {
        match self {
            Hook::Native => (sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE),
            Hook::Generic => (sys::BPF_XDP, sys::XDP_FLAGS_SKB_MODE),
            // Before a director's program, which decides the decapsulated packet.
            Hook::Tc => (sys::BPF_TCX_INGRESS, sys::BPF_F_BEFORE),
            Hook::Egress => (sys::BPF_TCX_EGRESS, 0),
            Hook::Accept => (sys::BPF_TCX_INGRESS, sys::BPF_F_AFTER),
        }
    }
}

/// Program attached to an interface; detached when dropped, unless pinned.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl Link {
    pub(super) fn create(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> io::Result<Link> {
        let (kind, flags) = hook.kind();
        let options = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
            flags,
            ..Default::default()
        };
        // SAFETY: the options live through the call and begin with their own size.
        owned(unsafe { sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &options) })
    }

    pub(super) fn open(path: &Path) -> io::Result<Link> {
        let path = c_path(path)?;
        // SAFETY: a NUL-terminated path that lives through the call.
        owned(unsafe { sys::bpf_obj_get(path.as_ptr()) })
    }

    pub(super) fn pin(&self, path: &Path) -> io::Result<()> {
        let path = c_path(path)?;
        // SAFETY: a NUL-terminated path that lives through the call.
        check(unsafe { sys::bpf_obj_pin(self.0.as_raw_fd(), path.as_ptr()) })
    }

    /// Replaces the program of the link atomically.
    pub(super) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: two open descriptors, and no options.
        check(unsafe { sys::bpf_link_update(self.0.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) })
    }

    /// Detaches the program now. Without this call the kernel detaches some time after the last
    /// reference is gone, and meanwhile the same program can't be attached again.
    pub(super) fn detach(&self) -> io::Result<()> {
        // SAFETY: an open descriptor of a link.
        check(unsafe { sys::bpf_link_detach(self.0.as_raw_fd()) })
    }

    /// Interface of the link; 0 if the interface is gone.
    pub(super) fn ifindex(&self) -> io::Result<u32> {
        // SAFETY: the link is of XDP or TC. Both fields of the union begin with the interface
        // index, for which any bits are valid.
        Ok(unsafe { self.info()?.__bindgen_anon_1.xdp.ifindex })
    }

    /// True if this link's program runs before the program of `other` on packets received on the
    /// interface.
    pub(super) fn is_before(&self, other: &Link, ifindex: u32) -> io::Result<bool> {
        let order = programs(ifindex)?;
        let (this, other) = (self.info()?.prog_id, other.info()?.prog_id);
        let place = |id| order.iter().position(|there| *there == id);
        Ok(matches!((place(this), place(other)), (Some(this), Some(other)) if this < other))
    }

    fn info(&self) -> io::Result<sys::bpf_link_info> {
        let mut info = sys::bpf_link_info::default();
        let mut len = size_of::<sys::bpf_link_info>() as u32;
        // SAFETY: `info` is as long as `len` says and lives through the call.
        check(unsafe {
            sys::bpf_obj_get_info_by_fd(self.0.as_raw_fd(), (&raw mut info).cast(), &raw mut len)
        })?;
        Ok(info)
    }
}

/// Returns the ids of the TC ingress programs of an interface, in order of execution.
fn programs(ifindex: u32) -> io::Result<Vec<u32>> {
    let mut ids = vec![0; PROGRAMS_MAX];
    let mut options = sys::bpf_prog_query_opts {
        sz: size_of::<sys::bpf_prog_query_opts>() as sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = PROGRAMS_MAX as u32;
    // SAFETY: the options begin with their own size, and `prog_ids` has room for `count` ids.
    check(unsafe { sys::bpf_prog_query_opts(ifindex as i32, sys::BPF_TCX_INGRESS, &raw mut options) })?;
    // SAFETY: both fields of the union are the same number.
    ids.truncate(unsafe { options.__bindgen_anon_1.count } as usize);
    Ok(ids)
}

fn owned(fd: i32) -> io::Result<Link> {
    check(fd)?;
    // SAFETY: the call has just returned this descriptor.
    Ok(Link(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Converts libbpf's negative errno.
fn check(answer: i32) -> io::Result<()> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(()) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
