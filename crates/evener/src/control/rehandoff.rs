//! The control loop's part in rehandoff, when a later request belongs to another server. Segments
//! that the data plane holds are examined by the loop, which then lets their connection be moved.

use std::collections::BTreeSet;
use std::sync::Arc;

use evener_core::net::packet::{HEADROOM, Packet};
use evener_core::path::decide::{self, Decision, Memory, Reason, Verdict};
use evener_core::path::parse::{Parsed, TcpHeader, parse};
use evener_core::path::sessions::{SessionKey, Value};
use evener_core::path::tables::{Tables, Vip};
use evener_dataplane::RehandoffSegment;
use tokio::sync::mpsc;

use super::executor::Executor;
use super::handoff::session_key;
use super::now_ms;
use crate::handoff::{FourTuple, HeldSegment, Rehandoff};

/// Capacity of the queue of held segments.
const HELD: usize = 4_096;
impl Executor {
    /// Makes the data plane send held segments to the returned receiver.
    pub(super) fn held(&mut self) -> mpsc::Receiver<HeldSegment> {
        let (sender, held) = mpsc::channel(HELD);
        self.handing.again = Some(sender.clone());
        let mover = Arc::new(
            move |RehandoffSegment { reason, ifindex, server, frame, is_whole }: RehandoffSegment<'_>| {
                // If the queue is full, the segment's connection becomes an orphan: see
                // `Executor::keeps_back`.
                let _ =
                    sender.try_send(HeldSegment { reason, ifindex, server, frame: frame.to_vec(), is_whole });
            },
        );
        if let Some(engine) = self.engine.here() {
            engine.moves(mover);
        }
        held
    }

    /// Examines a segment that the data plane has held. Returns the rehandoff if the segment may
    /// begin a request for another server. Otherwise handles the segment and returns `None`.
    pub(super) fn examine(&mut self, held: HeldSegment) -> Option<Rehandoff> {
        let own = self.director.links().get(&held.ifindex).copied();
        let Parsed::Segment(segment) = parse(&held.frame, own) else { return None };
        let ends = FourTuple::of(&segment);
        let vip = self.vip_of(&ends)?;
        let header = TcpHeader::read(&held.frame, &segment.at)?;
        let payload = TcpHeader::payload(&held.frame, &segment.at).to_vec();
        let server = held.server;
        if held.reason == Reason::RehandoffBuffered {
            self.keep(&ends, &vip, held);
            return None;
        }
        if !held.is_whole {
            // The checksum is wrong, so the segment is dropped. The sender retransmits it.
            self.finish_session(&ends, &vip, server);
            return None;
        }
        match self.address_of(server) {
            Some(at) => {
                self.begin_buffering(&ends, &vip);
                Some(Rehandoff { ends, at, header, payload, held })
            }
            // A connection that this host splices stays with this host.
            None if self.director.plan().tables.pools.get(&server) == Some(&u64::MAX) => {
                self.note_session(&ends, &vip, server);
                self.forward_held(held);
                self.release(&ends);
                None
            }
            None => {
                self.end(&ends, held);
                None
            }
        }
    }

    /// Leaves a connection with its server, and sends it the held segments.
    pub(super) fn pass(&mut self, ends: &FourTuple, held: HeldSegment) {
        self.reassign(ends, held.server);
        self.forward_held(held);
        self.release(ends);
    }

    /// Sends a held segment to the connection's server.
    fn forward_held(&mut self, held: HeldSegment) {
        self.carry_out(held, decide::stay);
    }

    /// Resets a client's connection. The session stays for the last packets, which go to its
    /// server. The segment may have been forged, so the client's own stack decides if it accepts
    /// the reset.
    pub(super) fn end(&mut self, ends: &FourTuple, held: HeldSegment) {
        self.reassign(ends, held.server);
        if let Some(vip) = self.vip_of(ends) {
            self.handing.segment_buffer.get_mut().end(&session_key(ends, &vip));
        }
        self.carry_out(held, decide::end);
    }

    /// Assigns a buffered connection to its previous server again, unless the client has begun
    /// another connection meanwhile.
    pub(super) fn reassign(&mut self, ends: &FourTuple, server: u16) {
        let Some(vip) = self.vip_of(ends) else { return };
        let (memory, key) = (self.engine.plane.memory(), session_key(ends, &vip));
        let found = memory.sessions.find(key, key.hash(memory.seed), self.engine.plane.now());
        let blackhole = vip.handoff.map(|handoff| handoff.held);
        if found.map(|found| found.value.server()) == blackhole {
            self.note_session(ends, &vip, server);
        }
    }

    /// Starts to buffer a connection's segments until this host has decided.
    pub(super) fn begin_buffering(&self, ends: &FourTuple, vip: &Vip) {
        self.handing.segment_buffer.borrow_mut().begin(session_key(ends, vip), now_ms());
    }

    /// Buffers a segment until its connection has a server. If the connection already has a server,
    /// the segment is decided again.
    fn keep(&mut self, ends: &FourTuple, vip: &Vip, held: HeldSegment) {
        let free = self.handing.segment_buffer.get_mut().keep(&session_key(ends, vip), held);
        if let Some(held) = free {
            self.decide_again(held);
        }
    }

    /// Sends the buffered segments of a connection that has a server now.
    pub(super) fn release(&mut self, ends: &FourTuple) {
        let Some(vip) = self.vip_of(ends) else { return };
        let kept = self.handing.segment_buffer.get_mut().end(&session_key(ends, &vip));
        kept.into_iter().for_each(|held| self.decide_again(held));
    }

    /// Decides a segment again, as if it had just arrived.
    fn decide_again(&mut self, held: HeldSegment) {
        if !held.is_whole {
            return;
        }
        let mut buffer = [&[0; HEADROOM][..], &held.frame].concat();
        let mut packet = Packet::new(&mut buffer, HEADROOM, held.ifindex);
        let decision = decide::decide(
            &self.director.plan().tables,
            &self.engine.plane.memory(),
            &mut packet,
            self.engine.plane.now(),
        );
        match (decision.verdict, decision.reason) {
            (Verdict::Hold, Reason::Rehandoff) => {
                let moving = HeldSegment { reason: Reason::Rehandoff, server: decision.server(), ..held };
                self.handing.again.as_ref().map(|again| again.try_send(moving));
            }
            _ => self.send_decided(&decision, &mut packet),
        }
    }

    /// Returns a predicate that is false for orphans: connections that no server and no task of
    /// this host owns.
    pub(super) fn is_not_orphan(&self, tables: &Tables) -> impl Fn(SessionKey, Value) -> bool {
        let handoffs = tables.vips.values().filter_map(|vip| vip.handoff);
        let blackholes: BTreeSet<u16> = handoffs.map(|handoff| handoff.held).collect();
        let now = now_ms();
        move |key, value| {
            !blackholes.contains(&value.server())
                || !self.handing.segment_buffer.borrow_mut().is_orphan(key, now)
        }
    }

    fn carry_out(
        &mut self,
        held: HeldSegment,
        decide: fn(&Tables, &Memory<'_>, &mut Packet<'_>, u32) -> Decision,
    ) {
        let mut buffer = [&[0; HEADROOM][..], &held.frame].concat();
        let mut packet = Packet::new(&mut buffer, HEADROOM, held.ifindex);
        let decision = decide(
            &self.director.plan().tables,
            &self.engine.plane.memory(),
            &mut packet,
            self.engine.plane.now(),
        );
        self.send_decided(&decision, &mut packet);
    }
}
