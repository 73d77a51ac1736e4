//! How a packet came to this host, where every host decides: from a client, or passed on by another
//! host.
//!
//! A packet is passed on once, and a second time only to a host that another ring names: this
//! host's own, or the one before its last change (Distributed Packet Rewriting has no such rule:
//! its hosts agree on one ring). So it can't go in circles, whatever hosts know of each other: who
//! gets it has to see how often it was passed on. On the link the frame's source tells, which is
//! then another host's MAC; out of a tunnel, whoever opened it says so in the source's place, by
//! the tunnel's mark ([`crate::path::mark`]). A packet that comes by a wire with such a source is
//! dropped by the host that opens tunnels. A stranger on the link who writes another host's MAC
//! gains that the packet is served here, and changes no session of another host's.

use crate::net::wire::Mac;
use crate::path::mark::{ForwardCount, PASSED, PASSED_TWICE};
use crate::path::tables::{Forwarding, NO_SERVER, ServerEntry, Tables, Vip};

/// How a packet came to this host.
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

    /// Whether a packet that came so may go on to this server.
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
