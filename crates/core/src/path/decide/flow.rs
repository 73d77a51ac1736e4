//! A packet of a session, and the check whether the session's new value must be stored.

use super::Decide;
use crate::net::Protocol;
use crate::net::wire::{TCP_ACK, TCP_SYN};
use crate::path::arrival::Arrival;
use crate::path::parse::Segment;
use crate::path::sessions::{FlowHash, PLAUSIBLE, SessionKey, State, Value};
use crate::path::tables::Vip;

/// Maximum distance of a sequence number from the expected one, in kilobytes, the unit of
/// `near_mark`. No more data is in flight before the first acknowledgment, or after the last byte.
pub(super) const NEAR: u16 = 64;
pub(super) const NEAR_MASK: u16 = PLAUSIBLE - 1;

/// A packet of a session, from the client or from the server.
pub(super) struct Flow<'a> {
    pub(super) vip: &'a Vip,
    pub(super) segment: &'a Segment,
    pub(super) key: SessionKey,
    pub(super) hash: FlowHash,
    pub(super) arrival: Arrival,
    pub(super) now: u32,
}

impl Decide<'_, '_> {
    /// Returns the flow of a client's packet.
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

    /// True if the session's mark contains bits of the connection's cookie, so packets must not
    /// change it.
    pub(super) fn keeps_mark(&self) -> bool {
        self.vip.handoff.is_some()
    }

    /// True if this packet may open a session: any UDP packet, or a TCP SYN without ACK.
    pub(super) fn opens(&self) -> bool {
        self.is_udp() || self.segment.flags & (TCP_SYN | TCP_ACK) == TCP_SYN
    }

    pub(super) fn value(&self, server: u16, state: State) -> Value {
        Value::new(server, state, self.now.wrapping_add(state.idle(&self.vip.idle)))
    }

    /// True if a session's new value must be stored.
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

/// True if a client has sent so much data that the session's mark must be updated. Otherwise the
/// mark would no longer match the client's next packets.
pub(super) fn has_moved_on(old: u16, new: u16) -> bool {
    new.wrapping_sub(old).wrapping_add(NEAR / 4) & NEAR_MASK > NEAR / 2
}
