//! Check that this kernel can create connections from handed-off segments.

use crate::requirements::HANDOFF;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoffUnsupported {
    /// The kernel has no BTF, so its functions are unknown.
    #[error(
        "this kernel can't accept handed-off connections: it has no BTF ({0}); CONFIG_DEBUG_INFO_BTF is needed"
    )]
    Btf(String),
    /// The kernel lacks the function that creates a connection from a segment.
    #[error(
        "this kernel can't accept handed-off connections: it has no {}; Linux {}.{} or later with \
         CONFIG_SYN_COOKIES is needed", HANDOFF.function, HANDOFF.since.0, HANDOFF.since.1
    )]
    Function,
}

/// Checks the kernel's BTF for the required function. The version is no evidence, since vendors
/// backport features.
///
/// # Errors
/// Returns the missing feature.
pub fn handoff_support() -> Result<(), HandoffUnsupported> {
    match HANDOFF.is_met() {
        Ok(true) => Ok(()),
        Ok(false) => Err(HandoffUnsupported::Function),
        Err(error) => Err(HandoffUnsupported::Btf(error.to_string())),
    }
}
