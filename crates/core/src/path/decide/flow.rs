//! A packet of a session, and whether its session's new value is worth a write.

use super::Decide;
use crate::net::Protocol;
use crate::net::wire::{TCP_ACK, TCP_SYN};
use crate::path::arrival::Arrival;
use crate::path::parse::Segment;
use crate::path::sessions::{FlowHash, SessionKey, State, Value};
use crate::path::tables::Vip;

/// Greatest distance of a sequence number from the expected one, in units of `near_mark`: 64 KB. No
/// more is in flight before the first acknowledgment, or behind the last byte.
pub(super) const NEAR: u16 = 64;
/// Of the mark of a session that is half-closed: the end is plausible.
pub(super) const PLAUSIBLE: u16 = 1 << (Value::MARK_BITS - 1);
pub(super) const NEAR_MASK: u16 = PLAUSIBLE - 1;

/// A packet of a session, on its way to the server or back.
pub(super) struct Flow<'a> {
    pub(super) vip: &'a Vip,
    pub(super) segment: &'a Segment,
    pub(super) key: SessionKey,
    pub(super) hash: FlowHash,
    pub(super) arrival: Arrival,
    pub(super) now: u32,
}

impl Decide<'_, '_> {
    /// The flow of a client's packet.
    pub(super) fn client_flow<'f>(&self, segment: &'f Segment, vip: &'f Vip) -> Flow<'f> {
        let key = SessionKey { client: segment.at.src, port: segment.src_port, vip: vip.id };
        self.flow(key, segment, vip)
    }

    pub(super) fn flow<'f>(&self, key: SessionKey, segment: &'f Segment, vip: &'f Vip) -> Flow<'f> {
        let (hash, arrival) = (key.hash(self.memory.seed), self.arrival(vip));
        Flow { vip, segment, key, hash, arrival, now: self.now }
    }
}

impl Flow<'_> {
    pub(super) fn is_udp(&self) -> bool {
        self.segment.protocol == Protocol::Udp
    }

    /// True if the session's mark is that of the connection's cookie, which packets don't change.
    pub(super) fn keeps_mark(&self) -> bool {
        self.vip.handoff.is_some()
    }

    /// True if this packet may begin a session: any UDP packet, or a TCP SYN without ACK.
    pub(super) fn opens(&self) -> bool {
        self.is_udp() || self.segment.flags & (TCP_SYN | TCP_ACK) == TCP_SYN
    }

    pub(super) fn value(&self, server: u16, state: State) -> Value {
        Value::new(server, state, self.now.wrapping_add(state.idle(&self.vip.idle)))
    }

    /// True if a session's new value must replace the old one.
    pub(super) fn is_stale(&self, old: Value, new: Value) -> bool {
        let gained = new.expires().wrapping_sub(old.expires()) as i32;
        let step = new.state().step(&self.vip.idle) as i32;
        let is_marked_anew = match new.state() {
            State::Established => has_moved_on(old.mark(), new.mark()),
            _ => old.mark() != new.mark(),
        };
        is_marked_anew || (old.state(), old.server()) != (new.state(), new.server()) || gained > step
    }
}

/// True if a client has sent so much that its mark must be stored anew, so that later packets still
/// match.
pub(super) fn has_moved_on(old: u16, new: u16) -> bool {
    new.wrapping_sub(old).wrapping_add(NEAR / 4) & NEAR_MASK > NEAR / 2
}
