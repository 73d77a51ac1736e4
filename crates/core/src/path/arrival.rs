//! Origin of a packet where every host decides: a client, or another host that passed it on.
//!
//! A packet is passed on once, and a second time only to a host that another ring names: this
//! host's own ring, or the one before its last change. (Distributed Packet Rewriting has no such
//! rule, since its hosts agree on one ring.) So packets can't circulate, whatever hosts know of
//! each other: the receiver has to see how often a packet was passed on. On the link the source MAC
//! of the frame shows that, since it is another host's. Behind a tunnel the host that opened the
//! tunnel writes the count in the place of the source, by the tunnel's mark
//! ([`crate::path::mark`]).
//!
//! A host that opens tunnels drops packets that arrive from a wire with such a source. A stranger
//! on the link who writes another host's MAC gains only that the packet is served here; no session
//! of another host changes.

use crate::net::wire::Mac;
use crate::path::mark::{ForwardCount, PASSED, PASSED_TWICE};
use crate::path::tables::{Forwarding, NO_SERVER, ServerEntry, Tables, Vip};

/// Origin of a packet: a client, or another host that passed it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// From a client, or a router before it.
    Direct,
    /// Another host chose this one.
    Passed,
    /// The second host that had it did.
    PassedTwice,
}

impl Arrival {
    /// By the frame's source; always direct for a service that a director alone decides.
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
