//! The features of newer kernels that the data plane uses: the one list of them.

use libbpf_rs::btf::{Btf, types};

/// Oldest release that all other programs load on, major and minor.
pub const OLDEST_KERNEL: (u32, u32) = (6, 1);

/// A feature that not every kernel from [`OLDEST_KERNEL`] on has.
#[derive(Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Release of Linux that brought the feature, major and minor; vendors bring it to older ones.
    pub since: (u32, u32),
    /// Kernel function by which a kernel is known to have it.
    pub function: &'static str,
    /// Loss for Evener where a kernel lacks the feature, as a sentence's end.
    pub without: &'static str,
}

/// `accept` in `bpf/server/server.bpf.c` makes a connection of a segment that was handed off.
pub const HANDOFF: Requirement = Requirement {
    since: (6, 9),
    function: "bpf_sk_assign_tcp_reqsk",
    without: "a server of method `handoff` can't accept connections",
};

/// Programs are attached to traffic control by links (tcx), in an order that they choose.
pub const TRAFFIC_CONTROL: Requirement = Requirement {
    since: (6, 6),
    function: "bpf_mprog_attach",
    without: "generic XDP takes the place of traffic control, agents don't lower segment sizes, and every-host \
              placement needs the packet engine",
};

/// Every feature, the newest first.
pub const REQUIREMENTS: [&Requirement; 2] = [&HANDOFF, &TRAFFIC_CONTROL];

impl Requirement {
    /// True if this kernel has the feature.
    ///
    /// # Errors
    /// A kernel without BTF says nothing about its functions.
    pub fn is_met(&self) -> Result<bool, libbpf_rs::Error> {
        Ok(Btf::from_vmlinux()?.type_by_name::<types::Func<'_>>(self.function).is_some())
    }
}
