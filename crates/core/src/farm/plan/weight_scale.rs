//! Weights of servers that work again and take their share little by little.

use super::MemberState;
use crate::pool::FULL_WEIGHT;

/// How finely the weights of a service are written down.
pub(super) struct Scale(u16);

impl Scale {
    /// All of a service are ten times as large while one of them rises, since a tenth of 1 is to be
    /// told from 1. Where there is no room for that, weights are large enough to be cut.
    pub(super) fn of(members: &[MemberState]) -> Scale {
        let rises = members.iter().any(|member| member.tenths < FULL_WEIGHT);
        let fits = members.iter().all(|member| member.member.weight <= u16::MAX / FULL_WEIGHT);
        Scale(if rises && fits { FULL_WEIGHT } else { 1 })
    }

    /// A server's weight now. A server that has one keeps one.
    pub(super) fn weight(&self, member: &MemberState) -> u16 {
        let whole = u64::from(member.member.weight);
        let risen =
            whole * u64::from(self.0) * u64::from(member.tenths.min(FULL_WEIGHT)) / u64::from(FULL_WEIGHT);
        // At most the whole weight, or ten times one that leaves room for it.
        u16::try_from(risen).unwrap_or(u16::MAX).max(u16::from(whole > 0))
    }
}
