//! Which servers serve: one rule for packets, groups and names.
//!
//! Health is believed as long as what it says is likely. First the servers without `backup` are
//! looked at, then the others, and the first of the two that has a working server serves.

use alloc::vec::Vec;

/// Why a backup that works serves nobody, in words.
pub const STANDS_BY: &str = "backup: the others can serve";

/// Why a server that fails its probes serves, in words.
pub const DISBELIEVED: &str = "too few servers work for probes to be believed";

/// A server as the rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Whether it serves only while no server without this can.
    pub backup: bool,
    /// How it is.
    pub condition: Condition,
}

impl Candidate {
    fn has_failed(&self) -> bool {
        matches!(self.condition, Condition::Failed { .. })
    }
}

/// How a server is, for the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its operator, or its weight, drains it: it never serves.
    Unwanted,
    /// Nobody knows yet whether it works.
    Unknown,
    /// It doesn't work.
    Failed {
        /// Since when, in milliseconds, if it ever worked.
        since_ms: Option<u64>,
    },
    /// It works, and by its own report wants nothing new.
    Refusing,
    /// It works.
    Working,
}

/// When servers serve that don't work, or don't want to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServingRule {
    /// Where a smaller share of the wanted servers works, in percent, probes aren't believed, and
    /// those that failed serve too (Envoy's panic threshold). 0: they always are.
    pub panic_percent: u8,
    /// Where none works, those that refuse serve: reports alone leave nothing empty.
    pub keeps_refusing: bool,
    /// Where all have failed, the last that worked serve: those that failed within so many
    /// milliseconds of the last one. None: nobody.
    pub keeps_last_ms: Option<u64>,
}

impl ServingRule {
    /// Whether too few of these servers work for probes to be believed.
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

/// The servers that serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// By place among the candidates, whether each serves.
    pub serves: Vec<bool>,
    /// Whether they do against their health, or their reports.
    pub degraded: bool,
}

/// The servers that serve, of these.
pub fn serving(rule: ServingRule, candidates: &[Candidate]) -> Serving {
    let found = first(rule, candidates, |one| one.condition == Condition::Working);
    if let Some((serves, panics)) = found {
        return Serving { serves, degraded: panics };
    }
    let refusing = || first(rule, candidates, |one| one.condition == Condition::Refusing);
    // A server that works and refuses is better than one that has failed.
    let kept = rule.keeps_refusing.then(refusing).flatten();
    let failed = || first(rule, candidates, Candidate::has_failed).filter(|(_, panics)| *panics);
    let kept = kept.or_else(failed).map(|(serves, _)| serves);
    let kept = kept.or_else(|| rule.keeps_last_ms.and_then(|within_ms| last(candidates, within_ms)));
    let degraded = kept.is_some();
    Serving { serves: kept.unwrap_or_else(|| of(candidates, |_| false)), degraded }
}

/// The servers that are so, backups only where no other is, and whether those that failed serve
/// with them.
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

/// The last that worked. No two servers are seen to fail in the same instant: those that failed
/// within the time it takes to notice, counted back from the last, failed at once with it.
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
