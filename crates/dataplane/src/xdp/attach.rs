//! Attaches programs to interfaces by BPF links. A pin keeps a link alive after the daemon's end.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;

/// Point in the kernel where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// XDP in the driver, before the kernel builds a packet from the frame.
    Native,
    /// TC ingress, behind the driver (tcx, Linux 6.6). Merged frames stay merged, and nothing is
    /// copied.
    Tc,
    /// XDP behind the driver. Every interface supports it, at the cost of a copy.
    Generic,
}

impl Mode {
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Tc => "tc",
            Mode::Generic => "generic",
        }
    }

    /// Returns the kind of program for this mode.
    pub(super) const fn hook(self) -> Hook {
        match self {
            Mode::Native | Mode::Generic => Hook::Xdp,
            Mode::Tc => Hook::Tc,
        }
    }

    const fn flag(self) -> u32 {
        match self {
            Mode::Native => sys::XDP_FLAGS_DRV_MODE,
            Mode::Generic => sys::XDP_FLAGS_SKB_MODE,
            Mode::Tc => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP, native or generic.
    Xdp,
    Tc,
}

impl Hook {
    const fn attach_type(self) -> sys::bpf_attach_type {
        match self {
            Hook::Xdp => sys::BPF_XDP,
            Hook::Tc => sys::BPF_TCX_INGRESS,
        }
    }
}

/// Program attached to an interface; detached when dropped, unless pinned.
#[derive(Debug)]
pub(super) struct Link {
    fd: OwnedFd,
}

impl Link {
    pub(super) fn create(program: BorrowedFd<'_>, ifindex: u32, mode: Mode) -> io::Result<Link> {
        let options = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
            flags: mode.flag(),
            ..Default::default()
        };
        let kind = mode.hook().attach_type();
        // SAFETY: the options live through the call and begin with their own size.
        let fd = unsafe { sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &options) };
        owned(fd)
    }

    pub(super) fn open(path: &Path) -> io::Result<Link> {
        let path = c_path(path)?;
        // SAFETY: a NUL-terminated path that lives through the call.
        owned(unsafe { sys::bpf_obj_get(path.as_ptr()) })
    }

    pub(super) fn pin(&self, path: &Path) -> io::Result<()> {
        let path = c_path(path)?;
        // SAFETY: a NUL-terminated path that lives through the call.
        check(unsafe { sys::bpf_obj_pin(self.fd.as_raw_fd(), path.as_ptr()) })
    }

    /// Replaces the program of the link atomically.
    pub(super) fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: two open descriptors, and no options.
        check(unsafe { sys::bpf_link_update(self.fd.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) })
    }

    /// Returns interface and mode of the link as the kernel reports them; `None` if the interface
    /// is gone.
    pub(super) fn place(&self) -> io::Result<Option<(u32, Mode)>> {
        let mut info = sys::bpf_link_info::default();
        let mut len = size_of::<sys::bpf_link_info>() as u32;
        // SAFETY: `info` is as long as `len` says and lives through the call.
        check(unsafe {
            sys::bpf_obj_get_info_by_fd(self.fd.as_raw_fd(), (&raw mut info).cast(), &raw mut len)
        })?;
        // SAFETY: both are fields of plain numbers, and the link's type selects the valid one.
        let (ifindex, hook) = unsafe {
            match info.type_ {
                sys::BPF_LINK_TYPE_XDP => (info.__bindgen_anon_1.xdp.ifindex, Hook::Xdp),
                sys::BPF_LINK_TYPE_TCX => (info.__bindgen_anon_1.tcx.ifindex, Hook::Tc),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        };
        match (ifindex, hook) {
            (0, _) => Ok(None),
            (_, Hook::Tc) => Ok(Some((ifindex, Mode::Tc))),
            (_, Hook::Xdp) => Ok(Some((ifindex, xdp_mode(ifindex)?))),
        }
    }
}

/// Returns the XDP mode of the program on an interface. The kernel reports the mode with the
/// interface and not with the link (IFLA_XDP).
fn xdp_mode(ifindex: u32) -> io::Result<Mode> {
    let mut about = sys::bpf_xdp_query_opts {
        sz: size_of::<sys::bpf_xdp_query_opts>() as sys::size_t,
        ..Default::default()
    };
    // SAFETY: `about` begins with its own size and lives through the call.
    check(unsafe { sys::bpf_xdp_query(ifindex as i32, 0, &raw mut about) })?;
    // XDP_ATTACHED_SKB of linux/if_link.h.
    const SKB: u8 = 2;
    Ok(if about.attach_mode == SKB { Mode::Generic } else { Mode::Native })
}

fn owned(fd: i32) -> io::Result<Link> {
    check(fd)?;
    // SAFETY: the call has just returned this descriptor.
    Ok(Link { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
}

/// Converts libbpf's negative errno.
fn check(answer: i32) -> io::Result<()> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(()) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
