//! Whether this kernel can make connections of segments that are handed off.

use libbpf_rs::btf::{Btf, types};

/// The kernel function that `bpf/server/accept.h` calls.
const MAKES_CONNECTIONS: &str = "bpf_sk_assign_tcp_reqsk";

/// The feature that the kernel lacks for handoffs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoffUnsupported {
    /// It doesn't describe itself, so nothing is known of what it can.
    #[error(
        "this kernel can't accept handed-off connections: it has no BTF ({0}), as CONFIG_DEBUG_INFO_BTF gives"
    )]
    Btf(String),
    /// The function that makes a connection of a segment.
    #[error(
        "this kernel can't accept handed-off connections: it has no {MAKES_CONNECTIONS}; Linux 6.9 or later with \
         CONFIG_SYN_COOKIES is needed"
    )]
    Function,
}

/// Asks the kernel itself, by what it says that programs may call: vendors bring such things to
/// older versions.
///
/// # Errors
/// The missing part.
pub fn handoff_support() -> Result<(), HandoffUnsupported> {
    let kernel = Btf::from_vmlinux().map_err(|error| HandoffUnsupported::Btf(error.to_string()))?;
    let found = kernel.type_by_name::<types::Func<'_>>(MAKES_CONNECTIONS);
    found.map(drop).ok_or(HandoffUnsupported::Function)
}
