//! Whether this kernel can make connections of segments that are handed off.

use crate::requirements::HANDOFF;

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
        "this kernel can't accept handed-off connections: it has no {}; Linux {}.{} or later with \
         CONFIG_SYN_COOKIES is needed", HANDOFF.function, HANDOFF.since.0, HANDOFF.since.1
    )]
    Function,
}

/// Asks the kernel itself, by what it says that programs may call: vendors bring such things to
/// older versions.
///
/// # Errors
/// The missing part.
pub fn handoff_support() -> Result<(), HandoffUnsupported> {
    match HANDOFF.is_met() {
        Ok(true) => Ok(()),
        Ok(false) => Err(HandoffUnsupported::Function),
        Err(error) => Err(HandoffUnsupported::Btf(error.to_string())),
    }
}
