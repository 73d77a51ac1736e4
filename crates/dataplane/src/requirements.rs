//! Kernel features that the data plane uses and older kernels lack.

use libbpf_rs::btf::{Btf, types};

/// Oldest release that loads all other programs, major and minor.
pub const OLDEST_KERNEL: (u32, u32) = (6, 1);

/// Feature that some kernels since [`OLDEST_KERNEL`] lack.
#[derive(Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Linux release with the feature, major and minor. Vendors backport features to older
    /// releases.
    pub since: (u32, u32),
    /// Kernel function whose presence proves the feature.
    pub function: &'static str,
    /// Consequence for Evener without the feature, as the end of a sentence.
    pub without: &'static str,
}

/// `accept` in `bpf/server/server.bpf.c` creates a connection from a handed-off segment.
pub const HANDOFF: Requirement = Requirement {
    since: (6, 9),
    function: "bpf_sk_assign_tcp_reqsk",
    without: "a server of method `handoff` can't accept connections",
};

/// Programs attach to traffic control by links (tcx), with an explicit order.
pub const TRAFFIC_CONTROL: Requirement = Requirement {
    since: (6, 6),
    function: "bpf_mprog_attach",
    without: "generic XDP takes the place of traffic control, agents don't lower segment sizes, and every-host \
              placement needs the packet engine",
};

/// All features, newest first.
pub const REQUIREMENTS: [&Requirement; 2] = [&HANDOFF, &TRAFFIC_CONTROL];

impl Requirement {
    /// True if this kernel has the feature.
    ///
    /// # Errors
    /// Fails on a kernel without BTF, which doesn't list its functions.
    pub fn is_met(&self) -> Result<bool, libbpf_rs::Error> {
        Ok(Btf::from_vmlinux()?.type_by_name::<types::Func<'_>>(self.function).is_some())
    }
}
