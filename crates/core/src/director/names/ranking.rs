//! Shares of a name's addresses in the name's answers. They are computed in every call or once per
//! period.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::candidate::AddressCandidate;
use crate::dns::BalancedName;
use crate::pool::policy::{Selection, Weighing};
use crate::pool::shares::{PoolMember, shares};

/// Share of a working candidate in the answers, and the values from which it was computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerShare {
    pub(super) share: u16,
    /// Effective weight in thousandths of the configured weight.
    pub(super) permille: u32,
    /// Signals at the time of the computation.
    pub(super) known: PoolMember,
    load: Option<u64>,
}

/// Server and address of a working candidate, and whether its load was known.
type WorkingAddress = (Option<Arc<str>>, IpAddr, bool);

/// Result of one computation of shares. It is valid only for the working addresses in `of`.
#[derive(Clone, Debug)]
struct ShareRun {
    at_ms: u64,
    /// Period of validity, in milliseconds.
    for_ms: u64,
    of: Vec<WorkingAddress>,
    ranked: Vec<AnswerShare>,
}

/// Cache of one name's shares; empty if they are computed in every call.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareCache {
    last: Option<Box<ShareRun>>,
}

impl ShareCache {
    /// Time of the next computation, in milliseconds.
    pub(super) fn due_ms(&self) -> u64 {
        self.last.as_ref().map_or(u64::MAX, |last| last.at_ms.saturating_add(last.for_ms))
    }

    /// Returns the candidates in the order of answers, with shares for the working ones. Shares are
    /// computed once in `for_ms` milliseconds, or in every call if `for_ms` is 0. A change of the
    /// set of working addresses, or of the addresses whose load is known, causes a new computation
    /// at once. Other changes of load take effect at the next computation.
    pub(super) fn rank(
        &mut self,
        name: &BalancedName,
        candidates: Vec<AddressCandidate>,
        for_ms: u64,
        now_ms: u64,
    ) -> Vec<(AddressCandidate, Option<AnswerShare>)> {
        let weighing = name.weighing();
        let make = || {
            let known: Vec<PoolMember> =
                candidates.iter().filter(|one| one.lives()).map(|one| one.known).collect();
            rank(weighing, name.report_gain_percent, known)
        };
        let ranked = if for_ms == 0 {
            self.last = None;
            make()
        } else {
            let of = alive(weighing, &candidates);
            let lasts = |last: &ShareRun| last.of == of && now_ms.saturating_sub(last.at_ms) < last.for_ms;
            let last = self.last.take().filter(|last| lasts(last));
            let last =
                last.unwrap_or_else(|| Box::new(ShareRun { at_ms: now_ms, for_ms, of, ranked: make() }));
            self.last.insert(last).ranked.clone()
        };
        let mut ranked = ranked.into_iter();
        let next = |candidate: AddressCandidate| {
            let ranked = if candidate.lives() { ranked.next() } else { None };
            (candidate, ranked)
        };
        let mut all: Vec<_> = candidates.into_iter().map(next).collect();
        if name.settings.draw == Selection::Failover && weighing.is_some() {
            // Of addresses with equal load, those whose path is unmeasured come first, since only
            // clients' traffic measures a path.
            all.sort_by_key(|(candidate, ranked)| {
                let load = ranked.as_ref().map_or(u64::MAX, |one| one.load.unwrap_or(0));
                (load, candidate.known.signals.report.available_bps.is_some())
            });
        }
        all
    }
}

fn alive(weighing: Option<&Weighing>, candidates: &[AddressCandidate]) -> Vec<WorkingAddress> {
    let is_known =
        |one: &AddressCandidate| weighing.is_some_and(|by| (by.load)(&one.known.signals).is_some());
    let alive = candidates.iter().filter(|candidate| candidate.lives());
    alive.map(|one| (one.server.clone(), one.address, is_known(one))).collect()
}

fn rank(weighing: Option<&Weighing>, gain_percent: u64, known: Vec<PoolMember>) -> Vec<AnswerShare> {
    let shared = shares(weighing, gain_percent, &known);
    let ranked = known.into_iter().zip(shared).map(|(known, share)| AnswerShare {
        share: share.share,
        permille: u32::try_from(share.permille).unwrap_or(u32::MAX),
        known,
        load: share.load,
    });
    ranked.collect()
}
