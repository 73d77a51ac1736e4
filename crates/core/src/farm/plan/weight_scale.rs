//! Scale of weights, so that servers in slow start can have a part of their weight.

use super::MemberState;
use crate::pool::FULL_WEIGHT;

/// Factor of all weights of a service.
pub(super) struct Scale(u16);

impl Scale {
    /// Returns factor ten while a server of the service has less than its whole weight, so that a
    /// tenth of weight 1 is a whole number. If a weight is too large for the factor, returns factor
    /// one.
    pub(super) fn of(members: &[MemberState]) -> Scale {
        let rises = members.iter().any(|member| member.tenths < FULL_WEIGHT);
        let fits = members.iter().all(|member| member.member.weight <= u16::MAX / FULL_WEIGHT);
        Scale(if rises && fits { FULL_WEIGHT } else { 1 })
    }

    /// Returns the server's weight in force. It is at least 1 unless the configured weight is 0.
    pub(super) fn weight(&self, member: &MemberState) -> u16 {
        let whole = u64::from(member.member.weight);
        let risen =
            whole * u64::from(self.0) * u64::from(member.tenths.min(FULL_WEIGHT)) / u64::from(FULL_WEIGHT);
        // `of` ensures that the product fits.
        u16::try_from(risen).unwrap_or(u16::MAX).max(u16::from(whole > 0))
    }
}
