//! Serving rule: decides which servers serve. The rule is the same for services, groups and names.
//!
//! Probes are trusted as long as their results are plausible. Servers that are no backups are
//! considered first, then backups. The first of these two sets that has a working server serves.

use alloc::vec::Vec;

/// Reason why a working backup does not serve.
pub const STANDS_BY: &str = "backup: the others can serve";

/// Reason why a server that fails its probes serves.
pub const DISBELIEVED: &str = "too few servers work for probes to be believed";

/// A server as input of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// True if the server serves only while no server can that is not a backup.
    pub backup: bool,
    pub condition: Condition,
}

impl Candidate {
    fn has_failed(&self) -> bool {
        matches!(self.condition, Condition::Failed { .. })
    }
}

/// Condition of a server, as input of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The operator or weight 0 drains the server, so it never serves.
    Unwanted,
    /// The server has no probe result yet.
    Unknown,
    Failed {
        /// Time of the failure in milliseconds; `None` if the server was never up.
        since_ms: Option<u64>,
    },
    /// Probes succeed, but the server's report refuses new sessions.
    Refusing,
    Working,
}

/// Settings of the rule: when failed or refusing servers serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServingRule {
    /// If less than this percentage of the wanted servers works, probes are not trusted and failed
    /// servers serve too (Envoy's panic threshold). 0 means that probes are always trusted.
    pub panic_percent: u8,
    /// If every working server refuses, refusing servers serve, so that reports alone never leave a
    /// service without servers.
    pub keeps_refusing: bool,
    /// If all servers have failed, the servers that failed within this many milliseconds before the
    /// last failure serve. `None` means that no server serves then.
    pub keeps_last_ms: Option<u64>,
}

impl ServingRule {
    /// True if too few of these servers work for probes to be trusted.
    fn panics<'c>(self, candidates: impl Iterator<Item = &'c Candidate>) -> bool {
        let (mut working, mut known) = (0, 0);
        for one in candidates {
            let works = matches!(one.condition, Condition::Working | Condition::Refusing);
            working += usize::from(works);
            known += usize::from(works || one.has_failed());
        }
        working * 100 < known * usize::from(self.panic_percent)
    }
}

/// Result of the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// For each candidate, true if it serves.
    pub serves: Vec<bool>,
    /// True if some servers serve although their probes fail or they refuse.
    pub degraded: bool,
}

/// Returns which of these servers serve.
pub fn serving(rule: ServingRule, candidates: &[Candidate]) -> Serving {
    let found = first(rule, candidates, |one| one.condition == Condition::Working);
    if let Some((serves, panics)) = found {
        return Serving { serves, degraded: panics };
    }
    let refusing = || first(rule, candidates, |one| one.condition == Condition::Refusing);
    // A refusing server that works is better than a failed one.
    let kept = rule.keeps_refusing.then(refusing).flatten();
    let failed = || first(rule, candidates, Candidate::has_failed).filter(|(_, panics)| *panics);
    let kept = kept.or_else(failed).map(|(serves, _)| serves);
    let kept = kept.or_else(|| rule.keeps_last_ms.and_then(|within_ms| last(candidates, within_ms)));
    let degraded = kept.is_some();
    Serving { serves: kept.unwrap_or_else(|| of(candidates, |_| false)), degraded }
}

/// Returns the servers that satisfy `is_one`. These are backups only if no other server satisfies
/// it. The flag is true if failed servers serve with them.
fn first(
    rule: ServingRule,
    candidates: &[Candidate],
    is_one: impl Fn(&Candidate) -> bool,
) -> Option<(Vec<bool>, bool)> {
    let backup = candidates.iter().filter(|one| is_one(one)).map(|one| one.backup).min()?;
    let panics = rule.panics(candidates.iter().filter(|one| one.backup == backup));
    let serves = |one: &Candidate| one.backup == backup && (is_one(one) || panics && one.has_failed());
    Some((of(candidates, serves), panics))
}

/// Returns the servers that failed last. It takes some time until a simultaneous failure of all
/// servers is noticed. So servers that failed within `within_ms` before the last failure count as
/// failed together.
fn last(candidates: &[Candidate], within_ms: u64) -> Option<Vec<bool>> {
    let since = |one: &Candidate| match one.condition {
        Condition::Failed { since_ms } => since_ms,
        _ => None,
    };
    let from_ms = candidates.iter().filter_map(since).max()?.saturating_sub(within_ms);
    let is_last = |one: &Candidate| since(one).is_some_and(|since_ms| since_ms >= from_ms);
    let backup = candidates.iter().filter(|one| is_last(one)).all(|one| one.backup);
    Some(of(candidates, |one| is_last(one) && one.backup == backup))
}

fn of(candidates: &[Candidate], serves: impl Fn(&Candidate) -> bool) -> Vec<bool> {
    candidates.iter().map(serves).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Condition::{Failed, Refusing, Unknown, Unwanted, Working};
    use alloc::vec;

    const KEEP: ServingRule =
        ServingRule { panic_percent: 0, keeps_refusing: true, keeps_last_ms: Some(100) };

    fn servers(conditions: &[Condition], backups: &[Condition]) -> Vec<Candidate> {
        let of = |backup| move |condition: &Condition| Candidate { backup, condition: *condition };
        conditions.iter().map(of(false)).chain(backups.iter().map(of(true))).collect()
    }

    fn places(rule: ServingRule, conditions: &[Condition], backups: &[Condition]) -> (Vec<usize>, bool) {
        let Serving { serves, degraded } = serving(rule, &servers(conditions, backups));
        ((0..serves.len()).filter(|place| serves[*place]).collect(), degraded)
    }

    const fn failed(since_ms: u64) -> Condition {
        Failed { since_ms: Some(since_ms) }
    }

    #[test]
    fn backups_serve_while_no_other_works() {
        assert_eq!(places(KEEP, &[Working, failed(1)], &[Working]), (vec![0], false));
        assert_eq!(places(KEEP, &[failed(9), Unwanted, Unknown], &[Working, Unwanted]), (vec![3], false));
        assert_eq!(places(KEEP, &[Refusing], &[Working]), (vec![1], false), "who refuses can't serve");
        assert_eq!(places(KEEP, &[Refusing], &[failed(1)]), (vec![0], true));
        assert_eq!(places(KEEP, &[Unwanted], &[Refusing]), (vec![1], true));
    }

    #[test]
    fn the_last_that_worked_are_kept_without_backups_among_them() {
        assert_eq!(places(KEEP, &[failed(500), failed(450), failed(300)], &[]), (vec![0, 1], true));
        assert_eq!(places(KEEP, &[failed(500)], &[failed(550)]), (vec![0], true), "all failed at once");
        assert_eq!(places(KEEP, &[failed(500)], &[failed(900)]), (vec![1], true), "the backup served last");
        assert_eq!(places(KEEP, &[Failed { since_ms: None }, Unknown], &[]), (vec![], false));
        assert_eq!(places(ServingRule::default(), &[failed(500), Refusing], &[]), (vec![], false));
    }

    #[test]
    fn failed_servers_serve_below_the_threshold() {
        let half = ServingRule { panic_percent: 50, ..KEEP };
        assert_eq!(places(half, &[Working, failed(1)], &[]), (vec![0], false), "half is enough");
        assert_eq!(places(half, &[Working, failed(1), failed(900)], &[]), (vec![0, 1, 2], true));
        assert_eq!(places(half, &[Working, Unwanted, Unknown, failed(1)], &[]), (vec![0], false));
        let never = Failed { since_ms: None };
        assert_eq!(places(half, &[failed(1), never, Unwanted, Unknown], &[]), (vec![0, 1], true));
        assert_eq!(places(half, &[Working, Refusing, failed(1)], &[]), (vec![0], false), "both work");
        assert_eq!(places(half, &[Working, failed(1), failed(1)], &[Working]), (vec![0, 1, 2], true));
        assert_eq!(places(half, &[failed(1), failed(1)], &[Working]), (vec![2], false), "the backup works");
        assert_eq!(places(half, &[Unwanted], &[failed(1), failed(1)]), (vec![1, 2], true));
        let strict = ServingRule { panic_percent: 50, ..ServingRule::default() };
        assert_eq!(places(strict, &[failed(1), failed(900)], &[]), (vec![0, 1], true));
    }
}
