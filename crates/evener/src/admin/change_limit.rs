//! Rate limit of changes for holders of role `operate`. Each change is a line of the audit log,
//! which a single holder must not fill.

use std::collections::BTreeMap;

/// Maximum number of changes per minute and holder.
pub(super) const CHANGES_A_MINUTE: u32 = 60;
const MINUTE_MS: u64 = 60_000;

/// Start of each holder's current minute, and the changes in it. Only the operator's tokens and
/// certificates have holders, so the map stays small.
#[derive(Debug, Default)]
pub(super) struct ChangeLimit(BTreeMap<String, (u64, u32)>);

impl ChangeLimit {
    /// Counts a change, unless the limit is reached.
    ///
    /// # Errors
    /// The time to wait, in seconds.
    pub(super) fn count(&mut self, now_ms: u64, holder: &str) -> Result<(), u64> {
        let (since_ms, changes) = self.0.entry(holder.to_owned()).or_insert((now_ms, 0));
        let age_ms = now_ms.saturating_sub(*since_ms);
        if age_ms >= MINUTE_MS {
            (*since_ms, *changes) = (now_ms, 0);
        } else if *changes >= CHANGES_A_MINUTE {
            return Err((MINUTE_MS - age_ms).div_ceil(1_000));
        }
        *changes += 1;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_refused_until_its_minute_is_over() {
        let mut limit = ChangeLimit::default();
        assert!((0..CHANGES_A_MINUTE).all(|at| limit.count(u64::from(at) * 500, "ops").is_ok()));
        assert_eq!(limit.count(30_000, "ops"), Err(30));
        assert_eq!(limit.count(59_999, "ops"), Err(1));
        assert_eq!(limit.count(30_000, "others"), Ok(()));
        assert_eq!(limit.count(60_000, "ops"), Ok(()));
    }
}
