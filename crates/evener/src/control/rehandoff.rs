//! The director's part where later requests are for other servers: what the data plane holds is looked at once more, and
//! then its connection is to leave its server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::path::cookie;
use evener_core::path::decide::{self, Decision, Memory, Reason, Verdict};
use evener_core::path::parse::{Parsed, TcpHeader, parse};
use evener_core::path::sessions::{SessionKey, Value};
use evener_core::path::tables::{Tables, Vip};
use evener_dataplane::Moving;
use tokio::sync::mpsc;

use super::executor::Executor;
use super::handoff::session_key;
use super::now_ms;
use crate::handoff::{FourTuple, Held, Move};

/// Segments that wait for the loop.
const HELD: usize = 4_096;
/// Segments that are kept of a connection while it moves, and of all together: 8 MB at the most.
const KEPT_MAX: usize = 32;
const KEPT_OF_ALL_MAX: usize = 4_096;
/// Longer than anything takes that connections are kept back for, in milliseconds.
const KEPT_BACK_MS: u64 = 15_000;

/// Longer than a segment waits for the loop that is to move its connection, and shorter than a pass of the sweep takes.
const ORPHANED_MS: u64 = 5_000;
/// By then the sweep has come by again, or the session is gone.
const UNSEEN_MS: u64 = 60_000;

/// Connections that the sweep has met with nobody. One of them may be somebody's yet: the segment that says so waits still.
#[derive(Default)]
pub(super) struct Orphans {
    /// Since when, in milliseconds of the monotonic clock.
    since_ms: BTreeMap<SessionKey, u64>,
}

impl Orphans {
    /// Whether a connection that has nobody now had nobody either when the sweep came by before.
    fn is_one(&mut self, key: SessionKey, now_ms: u64) -> bool {
        let is_one = now_ms >= *self.since_ms.entry(key).or_insert(now_ms) + ORPHANED_MS;
        if is_one {
            self.since_ms.remove(&key);
        }
        is_one
    }

    /// Somebody has it after all.
    fn is_somebodys(&mut self, key: &SessionKey) {
        self.since_ms.remove(key);
    }

    /// Forgets those that the sweep meets no more.
    fn forget(&mut self, now_ms: u64) {
        self.since_ms.retain(|_, since| now_ms < *since + UNSEEN_MS);
    }
}

/// A connection that somebody here has, and that no server has meanwhile.
#[derive(Default)]
pub(super) struct KeptBack {
    /// Since when, in milliseconds of the monotonic clock.
    since_ms: u64,
    /// What its client has said since.
    frames: Vec<Held>,
}

impl Executor {
    /// Has the data plane give what it holds to whoever reads this.
    pub(super) fn held(&mut self) -> mpsc::Receiver<Held> {
        let (sender, held) = mpsc::channel(HELD);
        self.handing.again = Some(sender.clone());
        self.engine.moves(Arc::new(move |Moving { reason, ifindex, server, frame, is_whole }| {
            // What finds no room is an orphan: see `Executor::keeps_back`.
            let _ = sender.try_send(Held { reason, ifindex, server, frame: frame.to_vec(), is_whole });
        }));
        held
    }

    /// Looks at a segment that the data plane has held: it may begin a later request that other servers are for. `None`: it doesn't, and
    /// what could be done is done.
    pub(super) fn take_up(&mut self, held: Held) -> Option<Move> {
        let own = self.director.links().get(&held.ifindex).copied();
        let Parsed::Segment(segment) = parse(&held.frame, own) else { return None };
        let cookie::FourTuple { client, service } = cookie::FourTuple::of(&segment);
        let ends = FourTuple { client, service };
        let vip = self.vip_of(&ends)?;
        let header = TcpHeader::read(&held.frame, &segment.at)?;
        let payload = TcpHeader::payload(&held.frame, &segment.at).to_vec();
        let server = held.server;
        if held.reason == Reason::KeptBack {
            self.keep(&ends, &vip, held);
            return None;
        }
        if !held.is_whole {
            // It comes again, as what its sender has said.
            self.settle(&ends, &vip, server);
            return None;
        }
        match self.address_of(server) {
            Some(at) => {
                self.keep_back(&ends, &vip);
                Some(Move { ends, at, header, payload, held })
            }
            // What this host carries stays here.
            None if self.director.plan().tables.pools.get(&server) == Some(&u64::MAX) => {
                self.note(&ends, &vip, server);
                self.let_pass(held);
                self.release(&ends);
                None
            }
            None => {
                self.end(&ends, held);
                None
            }
        }
    }

    /// Whether a server answers what this ring is for.
    pub(super) fn answers(&self, server: u16, ring: u16) -> bool {
        let rings = self.director.plan().tables.pools.get(&server).copied().unwrap_or_default();
        rings.checked_shr(ring.into()).unwrap_or_default() & 1 == 1
    }

    /// Has a connection stay with the server that it has, which gets what was held.
    pub(super) fn pass(&mut self, ends: &FourTuple, held: Held) {
        self.give_back(ends, held.server);
        self.let_pass(held);
        self.release(ends);
    }

    /// Sends on what was held, to the server that the connection has.
    fn let_pass(&mut self, held: Held) {
        self.carry_out(held, decide::stay);
    }

    /// Tells a client that its connection is over, which then has a session no longer than its last packets need. They go to
    /// its server: the segment may have been forged, by somebody whom the client doesn't believe either.
    pub(super) fn end(&mut self, ends: &FourTuple, held: Held) {
        self.give_back(ends, held.server);
        if let Some(vip) = self.vip_of(ends) {
            self.handing.kept_back.remove(&session_key(ends, &vip));
        }
        self.carry_out(held, decide::end);
    }

    /// Has a connection that was kept back stay with the server that it had. Meanwhile the client may have begun another one.
    pub(super) fn give_back(&mut self, ends: &FourTuple, server: u16) {
        let Some(vip) = self.vip_of(ends) else { return };
        let (memory, key) = (self.engine.memory(), session_key(ends, &vip));
        let found = memory.sessions.find(key, key.hash(memory.seed), self.engine.now());
        let nobody = vip.handoff.map(|handoff| handoff.held);
        if found.map(|found| found.value.server()) == nobody {
            self.note(ends, &vip, server);
        }
    }

    /// Notes that a connection is kept back until this host has done something about it.
    pub(super) fn keep_back(&mut self, ends: &FourTuple, vip: &Vip) {
        let key = session_key(ends, vip);
        self.handing.orphans.borrow_mut().is_somebodys(&key);
        self.handing.kept_back.entry(key).or_default().since_ms = now_ms();
    }

    /// Forgets those of which nobody has said what came of them.
    pub(super) fn forget_kept_back(&mut self) {
        let now = now_ms();
        self.handing.kept_back.retain(|_, kept| now < kept.since_ms + KEPT_BACK_MS);
        self.handing.orphans.borrow_mut().forget(now);
    }

    /// Keeps a segment until its connection has a server. By now it may have one.
    fn keep(&mut self, ends: &FourTuple, vip: &Vip, held: Held) {
        let of_all = self.handing.kept_back.values().map(|kept| kept.frames.len()).sum::<usize>();
        match self.handing.kept_back.get_mut(&session_key(ends, vip)) {
            Some(kept) if kept.frames.len() < KEPT_MAX && of_all < KEPT_OF_ALL_MAX => kept.frames.push(held),
            // It comes again, as if it were lost.
            Some(_) => {}
            None => self.decide_again(held),
        }
    }

    /// Sends on what was kept of a connection that has a server now.
    pub(super) fn release(&mut self, ends: &FourTuple) {
        let Some(vip) = self.vip_of(ends) else { return };
        let kept = self.handing.kept_back.remove(&session_key(ends, &vip)).unwrap_or_default();
        kept.frames.into_iter().for_each(|held| self.decide_again(held));
    }

    /// Decides a segment once more, as if it came now.
    fn decide_again(&mut self, held: Held) {
        if !held.is_whole {
            return;
        }
        let mut buffer = [&[0; HEADROOM][..], &held.frame].concat();
        let mut packet = Packet::new(&mut buffer, HEADROOM, held.ifindex);
        let decision = decide::decide(
            &self.director.plan().tables,
            &self.engine.memory(),
            &mut packet,
            self.engine.now(),
        );
        match (decision.verdict, decision.reason) {
            (Verdict::Hold, Reason::Moves) => {
                let moving = Held { reason: Reason::Moves, server: decision.server, ..held };
                self.handing.again.as_ref().map(|again| again.try_send(moving));
            }
            _ => self.send_decided(&decision, &mut packet),
        }
    }

    /// Whether somebody here has a connection that is kept back, or may be about to. Others are orphans: of a daemon that was
    /// killed, or of what found no room.
    pub(super) fn keeps_back(&self) -> impl Fn(SessionKey, Value) -> bool {
        let handoffs = self.engine.tables().vips.values().filter_map(|vip| vip.handoff);
        let nobodies: BTreeSet<u16> = handoffs.map(|handoff| handoff.held).collect();
        let now = now_ms();
        move |key, value| {
            !nobodies.contains(&value.server())
                || self.handing.kept_back.contains_key(&key)
                || !self.handing.orphans.borrow_mut().is_one(key, now)
        }
    }

    fn carry_out(&mut self, held: Held, decide: fn(&Tables, &Memory<'_>, &mut Packet<'_>, u32) -> Decision) {
        let mut buffer = [&[0; HEADROOM][..], &held.frame].concat();
        let mut packet = Packet::new(&mut buffer, HEADROOM, held.ifindex);
        let decision =
            decide(&self.director.plan().tables, &self.engine.memory(), &mut packet, self.engine.now());
        self.send_decided(&decision, &mut packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_orphan_was_met_by_two_passes_of_the_sweep() {
        let key = |port| SessionKey { client: [203, 0, 113, 7].into(), port, vip: 1 };
        let mut orphans = Orphans::default();
        assert!(!orphans.is_one(key(1), 1_000), "its segment may wait still");
        assert!(!orphans.is_one(key(1), 1_010), "a reload sweeps too, at any time");
        assert!(!orphans.is_one(key(2), 6_000));
        assert!(orphans.is_one(key(1), 11_000));
        // Taken up meanwhile, and with nobody once more.
        orphans.is_somebodys(&key(2));
        assert!(!orphans.is_one(key(2), 16_000));
        assert!(orphans.is_one(key(2), 26_000));
        // One that was seen long ago is another connection's by now.
        orphans.forget(100_000);
        assert!(!orphans.is_one(key(2), 100_000));
    }
}
