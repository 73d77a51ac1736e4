//! What a director orders.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::event::Event;
use super::probe::{LoadQuery, Probe};
use crate::farm::plan::PlanError;
use crate::path::select::Score;
use crate::path::tables::Tables;

/// An order, to be carried out in turn.
#[derive(Clone, Debug)]
pub enum Output {
    /// Put these tables in force, and say by [`super::Input::Applied`] what became of that.
    Apply {
        /// Greater than all before.
        generation: u64,
        /// What is to be in force.
        tables: Arc<Tables>,
    },
    /// There are no tables for this farm: what was in force stays. Only a reload can lead to it.
    Unplanned(PlanError),
    /// Servers or service addresses are gone: end what is left of their sessions, add up the counters of these slots, clear them, and
    /// say so by [`super::Input::Released`].
    Forget {
        /// What was in force before.
        before: Arc<Tables>,
        /// Slots whose servers are gone.
        retired: Vec<u16>,
    },
    /// Let the data plane answer for the addresses that this host owns for so long from now.
    Lease {
        /// In milliseconds; 0 ends it.
        ms: u64,
    },
    /// Send a datagram to another host.
    Send {
        /// Its address.
        to: IpAddr,
        /// The datagram.
        datagram: Vec<u8>,
    },
    /// Ask everyone on a link who has an address.
    Ask {
        /// The link.
        ifindex: u32,
        /// For which address of this host's; `None` asks as who is about to take the address (RFC 5227, section 2.1.1; RFC 4862,
        /// section 5.4.2).
        sender: Option<IpAddr>,
        /// The address.
        target: IpAddr,
    },
    /// Tell everyone on all links that these addresses are here.
    Announce(BTreeSet<IpAddr>),
    /// Have the kernel find out the MAC of a next hop, or confirm it.
    Resolve {
        /// The link.
        ifindex: u32,
        /// The next hop.
        address: IpAddr,
    },
    /// Probe a server, and say by [`super::Input::Probed`] what came of it.
    Probe(Probe),
    /// Ask a server for its load, and say by [`super::Input::Reported`] what came of it.
    LoadQuery(LoadQuery),
    /// Give servers these scores, by slot: see [`crate::path::select::Counts::score`].
    Score(Vec<(u16, Score)>),
    /// Something that people, or whoever watches, may want to know.
    Event(Event),
}
