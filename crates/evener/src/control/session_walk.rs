//! Walks the session tables, a tenth of them each second. Frees expired sessions, and counts each
//! server's sessions and its stalled embryonic sessions.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use evener_core::director::{STALLED_AFTER_MS, SessionWalk};
use evener_core::path::sessions::{
    ResizeStep, SessionKey, Sessions, State, TableResizer, Value, buckets_for, ticks,
};
use evener_dataplane::DataPlane;

use crate::config::EngineConfig;

/// Pauses of the resizing of session tables. FIT_SOON precedes the next sample while a table fills,
/// and FIT_LATER otherwise. FIT_ON separates two portions that are moved.
const FIT_SOON: Duration = Duration::from_millis(20);
const FIT_LATER: Duration = Duration::from_millis(100);
const FIT_ON: Duration = Duration::from_millis(1);
/// Number of portions of a walk, and so of the calls in which each session is visited once.
const PORTIONS: usize = 10;

/// Maintenance of the session tables.
#[derive(Default)]
pub(super) struct SessionUpkeep {
    pub(super) walker: SessionWalker,
    fitting: TableResizer,
}

impl SessionUpkeep {
    /// Resizes the session tables by one step, to fit their number of sessions. Returns the pause
    /// before the next step.
    pub(super) fn fit(&mut self, plane: &dyn DataPlane, config: &EngineConfig) -> Duration {
        let buckets = [buckets_for(config.sessions_max), buckets_for(config.sessions6_max)];
        let memory = plane.memory();
        match self.fitting.step(&memory.sessions, buckets, memory.seed, plane.now()) {
            ResizeStep::Rest => FIT_LATER,
            ResizeStep::Watch => FIT_SOON,
            ResizeStep::Walk => FIT_ON,
            ResizeStep::Settle => match plane.synchronize() {
                Ok(()) => {
                    self.fitting.settled();
                    Duration::ZERO
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to resize the session table; retrying later");
                    FIT_LATER
                }
            },
        }
    }
}

/// State of a walk.
#[derive(Default)]
pub(super) struct SessionWalker {
    /// First bucket of the next portion.
    next: usize,
    found: SessionWalk,
    /// Time of each portion's last visit, in ticks.
    visits: [Option<u32>; PORTIONS],
}

impl SessionWalker {
    /// Visits the next portion. Frees sessions that have expired or for which `keep` is false.
    /// `syn_idle` is the lifetime of embryonic sessions by VIP, in ticks. Returns the walk's
    /// results after the last portion.
    pub(super) fn step(
        &mut self,
        sessions: &Sessions<'_>,
        now: u32,
        syn_idle: &BTreeMap<u16, u32>,
        keep: impl Fn(SessionKey, Value) -> bool,
    ) -> Option<SessionWalk> {
        let buckets = sessions.buckets();
        let Range { start, end } = self.next..(self.next + buckets.div_ceil(PORTIONS)).min(buckets);
        let visited = self.visits.get_mut(start * PORTIONS / buckets.max(1)).and_then(|at| at.replace(now));
        let found = &mut self.found.stalled;
        sessions.sweep(start..end, now, |key, value| {
            let keeps = keep(key, value);
            let idle = syn_idle.get(&key.vip).filter(|_| keeps && value.state() == State::New);
            // On the first visit of a portion, a new stall can't be distinguished from an old
            // stall.
            let is_new =
                idle.zip(visited).is_some_and(|(idle, visited)| has_stalled(value, *idle, visited, now));
            if is_new {
                found.entry(value.server()).or_default().add(key.client);
            }
            keeps
        });
        self.next = if end >= buckets { 0 } else { end };
        (self.next == 0).then(|| std::mem::take(&mut self.found))
    }
}

/// True if an embryonic session has stalled since the last visit: its last SYN is old enough now,
/// and was not at the last visit.
fn has_stalled(value: Value, idle: u32, visited: u32, now: u32) -> bool {
    let last_syn = value.expires().wrapping_sub(idle);
    let age = |at: u32| at.wrapping_sub(last_syn).cast_signed();
    let enough = ticks(STALLED_AFTER_MS).cast_signed();
    age(now) >= enough && age(visited) < enough
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use evener_core::path::seed::Seed;
    use evener_core::path::sessions::{Bucket4, Counted};

    use super::*;

    #[test]
    fn sessions_of_syns_alone_are_counted_once() {
        let seed = Seed(0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9);
        let buckets: Vec<Bucket4> = (0..64).map(|_| Bucket4::default()).collect();
        let sessions = Sessions::new(&buckets, &[], Counted::NOTHING);
        let (idle, start) = (ticks(30_000), u32::MAX - ticks(3_000));
        let insert = |client: u8, state: State, at: u32| {
            let key = SessionKey { client: IpAddr::from([192, 0, 2, client]), port: 1, vip: 7 };
            let value = Value::new(u16::from(client), state, at.wrapping_add(idle));
            assert!(sessions.insert(key, key.hash(seed), value, at).is_ok());
        };
        let mut walker = SessionWalker::default();
        let mut counts: BTreeMap<u16, u64> = BTreeMap::new();
        for second in 0..50 {
            let now = start.wrapping_add(ticks(second * 1_000));
            if second == 10 {
                for client in 0..40 {
                    insert(client, if client % 2 == 0 { State::New } else { State::Established }, now);
                }
            }
            let idle = BTreeMap::from([(7, idle)]);
            let is_kept = |key: SessionKey, _| key.client != IpAddr::from([192, 0, 2, 0]);
            if let Some(walk) = walker.step(&sessions, now, &idle, is_kept) {
                for (server, stalled) in walk.stalled {
                    *counts.entry(server).or_default() += stalled.count;
                }
            }
        }
        // The first session is freed and not counted.
        assert_eq!(counts, (2..40).step_by(2).map(|server| (server, 1)).collect());
    }
}
