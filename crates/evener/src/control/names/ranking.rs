//! How often each address of a name is given and who ranks first: anew with every change, or once in a period; and in files, for others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evener_core::dns::Draw;
use evener_core::pool::policy::Weighing;
use evener_core::pool::shares::{Known, shares};

use super::candidates::Candidate;
use crate::config::NameConfig;
use crate::control::groups::replace;
use crate::names::ShownName;
use crate::runtime::day::second_of_day;

/// What became of a candidate that lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    pub(super) share: u16,
    /// What of its weight that is, in thousandths.
    pub(super) permille: u32,
    /// What was known of it then.
    pub(super) known: Known,
    load: Option<u64>,
}

/// Who lived, and whether its load was known.
type Alive = (Option<Arc<str>>, IpAddr, bool);

/// Who lived, and what became of it.
#[derive(Debug)]
struct Made {
    at_ms: u64,
    /// How long they count, in milliseconds.
    for_ms: u64,
    of: Vec<Alive>,
    ranked: Vec<Ranked>,
}

/// The ranks of one name, where they are made once in a period.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    last: Option<Box<Made>>,
}

impl Ranking {
    /// When they are made anew whatever happens, in milliseconds of the monotonic clock.
    pub(super) fn due_ms(&self) -> u64 {
        self.last.as_ref().map_or(u64::MAX, |last| last.at_ms.saturating_add(last.for_ms))
    }

    /// The same candidates with what becomes of those that live, in the order in which answers have them. Who comes or goes, or is heard for the first time, counts
    /// at once; other loads when they are due.
    pub(super) fn rank(
        &mut self,
        config: &NameConfig,
        candidates: Vec<Candidate>,
        now_ms: u64,
    ) -> Vec<(Candidate, Option<Ranked>)> {
        let weighing = config.weighing();
        let make = || {
            let alive = candidates.iter().filter(|candidate| candidate.lives);
            rank(weighing, config.report_gain_percent, alive)
        };
        let for_ms = period_ms(config);
        let ranked = if for_ms == 0 {
            self.last = None;
            make()
        } else {
            let of = alive(weighing, &candidates);
            let lasts = |last: &Made| last.of == of && now_ms.saturating_sub(last.at_ms) < last.for_ms;
            let last = self.last.take().filter(|last| lasts(last));
            let last = last.unwrap_or_else(|| Box::new(Made { at_ms: now_ms, for_ms, of, ranked: make() }));
            self.last.insert(last).ranked.clone()
        };
        let mut ranked = ranked.into_iter();
        let next = |candidate: Candidate| {
            let ranked = if candidate.lives { ranked.next() } else { None };
            (candidate, ranked)
        };
        let mut all: Vec<_> = candidates.into_iter().map(next).collect();
        if config.settings.draw == Draw::First && weighing.is_some() {
            // Of those that rank alike first whose path is unknown: only clients make it known.
            all.sort_by_key(|(candidate, ranked)| {
                let load = ranked.as_ref().map_or(u64::MAX, |one| one.load.unwrap_or(0));
                (load, candidate.known.signals.report.available_bps.is_some())
            });
        }
        all
    }
}

/// How long ranks of a name count that are made now, in milliseconds; 0: until loads change.
pub(super) fn period_ms(config: &NameConfig) -> u64 {
    // Most names have none that depends on it, and there may be hundreds of thousands.
    let second = if config.period.is_by_time_of_day() { second_of_day() } else { 0 };
    config.period.ms_at(second)
}

fn alive(weighing: Option<&Weighing>, candidates: &[Candidate]) -> Vec<Alive> {
    let is_known = |one: &Candidate| weighing.is_some_and(|by| (by.load)(&one.known.signals).is_some());
    let alive = candidates.iter().filter(|candidate| candidate.lives);
    alive.map(|one| (one.server.clone(), one.address, is_known(one))).collect()
}

fn rank<'a>(
    weighing: Option<&Weighing>,
    gain_percent: u64,
    alive: impl Iterator<Item = &'a Candidate>,
) -> Vec<Ranked> {
    let known: Vec<Known> = alive.map(|one| one.known).collect();
    let shared = shares(weighing, gain_percent, &known);
    let ranked = known.into_iter().zip(shared).map(|(known, share)| Ranked {
        share: share.share,
        permille: u32::try_from(share.permille).unwrap_or(u32::MAX),
        known,
        load: share.load,
    });
    ranked.collect()
}

/// The files that others read ranks from, as they were written last.
#[derive(Debug, Default)]
pub(super) struct RankFiles {
    written: BTreeMap<PathBuf, String>,
    failed: BTreeSet<PathBuf>,
}

impl RankFiles {
    /// Writes those of a name anew, each whole or not at all, if they say something else than before.
    pub(super) fn write(&mut self, config: &NameConfig, shown: &ShownName) {
        if let Some(path) = &config.rank_file {
            self.replace(path, lines(shown));
        }
        if let Some(path) = &config.gdnsd_file {
            self.replace(path, extfile(shown));
        }
    }

    fn replace(&mut self, path: &Path, text: String) {
        if self.written.get(path) == Some(&text) {
            return;
        }
        match replace(path, &text) {
            Ok(()) => {
                if self.failed.remove(path) {
                    tracing::info!(path = %path.display(), "ranks are written again");
                }
                self.written.insert(path.to_owned(), text);
            }
            // It is tried again with each change, and told once.
            Err(error) => {
                if self.failed.insert(path.to_owned()) {
                    tracing::warn!(path = %path.display(), %error, "ranks can't be written; answers go on");
                }
            }
        }
    }
}

/// The paper's file: servers with their ranks, the best first. Who isn't given isn't in it.
fn lines(shown: &ShownName) -> String {
    let ranked = shown.addresses.iter().filter_map(|one| Some((shown.rank(one)?, one.address)));
    let mut ranked: Vec<(u64, IpAddr)> = ranked.collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.iter().map(|(rank, address)| format!("{} {address} {rank}\n", shown.settings.name)).collect()
}

/// gdnsd-plugin-extfile(8): the state of each address, and for how long an answer with it may be kept.
fn extfile(shown: &ShownName) -> String {
    let mut states: BTreeMap<IpAddr, bool> = BTreeMap::new();
    for one in &shown.addresses {
        *states.entry(one.address).or_default() |= shown.rank(one).is_some();
    }
    let state = |up: bool| if up { "UP" } else { "DOWN" };
    states
        .iter()
        .map(|(address, up)| format!("{address} => {}/{}\n", state(*up), shown.settings.ttl_s))
        .collect()
}
