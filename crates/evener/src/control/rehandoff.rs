//! The director's part where later requests are for other servers: what the data plane holds is looked at once more, and
//! then its connection is to leave its server.

use std::net::SocketAddr;
use std::sync::Arc;

use evener_core::decide::{self, Decision, Memory, Verdict};
use evener_core::packet::{HEADROOM, Packet};
use evener_core::parse::{Parsed, TcpHeader, parse};
use evener_core::tables::Tables;
use evener_dataplane::Moving;
use tokio::sync::mpsc;

use super::director::Director;
use crate::handoff::{Ends, Held, Judged, Move, judge};

/// Segments that wait for the loop.
const HELD: usize = 4_096;

impl Director {
    /// Has the data plane give what it holds to whoever reads this.
    pub(super) fn held(&mut self) -> mpsc::Receiver<Held> {
        let (sender, held) = mpsc::channel(HELD);
        self.engine.moves(Arc::new(move |Moving { ifindex, server, frame }| {
            // The client sees no more of a connection that finds no room here.
            let _ = sender.try_send(Held { ifindex, server, frame: frame.to_vec() });
        }));
        held
    }

    /// Looks at a later request that the data plane has held. `None`: nothing is to be moved, and what could be done is done.
    pub(super) fn take_up(&mut self, held: Held) -> Option<Move> {
        let own = self.interfaces.get(&held.ifindex).copied();
        let Parsed::Segment(segment) = parse(&held.frame, own) else { return None };
        let ends = Ends {
            client: SocketAddr::new(segment.at.src, segment.src_port),
            service: SocketAddr::new(segment.at.dst, segment.dst_port),
        };
        let vip = self.vip_of(&ends)?;
        let header = TcpHeader::read(&held.frame, &segment.at)?;
        let payload = TcpHeader::payload(&held.frame, &segment.at).to_vec();
        let server = held.server;
        if self.answers(server, vip.service, &payload) {
            self.note(&ends, &vip, server);
            self.let_pass(held);
            return None;
        }
        match self.address_of(server) {
            Some(at) => Some(Move { ends, at, header, payload, held }),
            None => {
                self.end(&ends, held);
                None
            }
        }
    }

    /// Whether a server answers what the client wants after all: here complex routes are looked up, too.
    fn answers(&self, server: u16, service: u16, wants: &[u8]) -> bool {
        let Judged::Wanted(wanted) = judge(wants) else { return false };
        let Some(routes) = self.plan.tables.routes.get(&service) else { return false };
        let (_, ring) = routes.find_all(&wanted.asked());
        let rings = self.plan.tables.pools.get(&server).copied().unwrap_or_default();
        rings.checked_shr(ring.into()).unwrap_or_default() & 1 == 1
    }

    /// Sends on what was held, to the server that the connection has.
    fn let_pass(&mut self, held: Held) {
        self.carry_out(held, decide::stay);
    }

    /// Tells a client that its connection is over, which then has a session no longer than its last packets need. They go to
    /// its server: the segment may have been forged, by somebody whom the client doesn't believe either.
    pub(super) fn end(&mut self, ends: &Ends, held: Held) {
        if let Some(vip) = self.vip_of(ends) {
            self.note(ends, &vip, held.server);
        }
        self.carry_out(held, decide::end);
    }

    fn carry_out(&mut self, held: Held, decide: fn(&Tables, &Memory<'_>, &mut Packet<'_>, u32) -> Decision) {
        let mut buffer = [&[0; HEADROOM][..], &held.frame].concat();
        let mut packet = Packet::new(&mut buffer, HEADROOM, held.ifindex);
        let decision = decide(&self.plan.tables, &self.engine.memory(), &mut packet, self.engine.now());
        match decision.verdict {
            Verdict::Forward { ifindex } => self.send_by(ifindex, packet.frame()),
            _ => tracing::debug!(reason = decision.reason.name(), "a later request is lost"),
        }
    }
}
