//! Origin of a packet in placement `every-host`: a client, or another host that forwarded it.
//!
//! A packet is forwarded once. It is forwarded a second time only to the host that another ring
//! selects: this host's own ring, or the ring before its last change. (Distributed Packet Rewriting
//! has no such rule, since its hosts agree on one ring.) So packets can't loop, even if hosts
//! disagree. The receiver must know how often a packet was forwarded. On a link the source MAC of
//! the frame shows this, since it belongs to another host. From a tunnel, the host that
//! decapsulates writes the count of the tunnel's mark into the source MAC ([`crate::path::mark`]).
//!
//! A host that decapsulates drops packets that arrive from a wire with such a source MAC. An
//! attacker on the link who forges another host's MAC gains only that this host serves the packet.
//! No session of another host changes.

use crate::net::wire::Mac;
use crate::path::mark::{ForwardCount, PASSED, PASSED_TWICE};
use crate::path::tables::{Forwarding, NO_SERVER, ServerEntry, Tables, Vip};

/// Origin of a packet: a client, or another host that forwarded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// From a client or a router.
    Direct,
    /// Forwarded once, by the host that received the client's packet.
    Passed,
    /// Forwarded twice, by two hosts.
    PassedTwice,
}

impl Arrival {
    /// Returns the origin by the frame's source MAC. Always direct for a service in placement
    /// `director`.
    pub fn of(tables: &Tables, vip: &Vip, src: Mac) -> Arrival {
        if vip.own == NO_SERVER {
            Arrival::Direct
        } else if src == PASSED_TWICE {
            Arrival::PassedTwice
        } else if src == PASSED || tables.peers.contains(&src) {
            Arrival::Passed
        } else {
            Arrival::Direct
        }
    }

    /// True if a packet of this origin may be forwarded to this server.
    pub fn may_go_to(self, server: &ServerEntry) -> bool {
        match self {
            Arrival::Direct => true,
            Arrival::Passed => {
                server.local
                    || matches!(server.forwarding, Forwarding::Tunnel { mark: Some(ForwardCount::Twice), .. })
            }
            Arrival::PassedTwice => server.local,
        }
    }
}
