//! Origin of a packet in an every-host farm: a client, or another host that forwarded the packet.
//!
//! A host forwards a client's packet once. The receiver forwards the packet a second time only if
//! its own ring, or its ring before the last change, selects a third host. So packets can't loop,
//! even if the hosts' rings differ. (Distributed Packet Rewriting needs no such rule, since its
//! hosts agree on one ring.) The receiver must know how often a packet was forwarded. On a link the
//! source MAC of the frame shows this: it belongs to another host. The GUE header of a tunnel has a
//! mark with the count. The host that decapsulates the packet writes the count into the source MAC
//! ([`crate::path::mark`]).
//!
//! This host drops packets that arrive from a wire with one of these source MACs. An attacker on
//! the link who forges another host's MAC only makes this host serve the packet. No session of
//! another host changes.

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
    /// Returns the origin by the frame's source MAC. For a service with placement `director`, the
    /// origin is always [`Arrival::Direct`].
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
