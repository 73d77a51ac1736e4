//! Rows of the table of policies, with one column per consumer.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::path::tables::Pick;
use crate::pool::signals::{Candidate, Signal, Signals};

pub const SHARE_MAX: u16 = 1_000;

/// A policy, with a column for each kind of consumer. [`Consumer`](super::Consumer) decides which
/// policies a consumer supports.
pub struct Policy {
    /// Name in the farm file, in status output and in metrics.
    pub name: &'static str,
    /// Description in one line, for the documentation.
    pub about: &'static str,
    /// Signals of servers that the policy uses for packets.
    pub needs: &'static [Signal],
    /// Column for packets: for directors and the hosts of every-host farms.
    pub packets: Option<PacketPolicy>,
    pub redirect: Option<RedirectPolicy>,
    pub names: Option<NamePolicy>,
}

/// Rows are equal only to themselves.
impl PartialEq for Policy {
    fn eq(&self, other: &Policy) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Layout of the data plane's tables. They are computed when the farm changes and not per packet.
#[derive(Clone, Copy)]
pub struct PacketPolicy {
    /// Selection from the tables by the data plane.
    pub pick: Pick,
    /// Returns the ring as slots, at most [`crate::path::tables::ORDER_MAX`], without members of
    /// weight 0.
    pub order: fn(&[Weighted]) -> Vec<u16>,
    /// Load by which [`Pick::Two`] weighs servers' sessions ([`score`](super::score)); `None` if
    /// the policy doesn't depend on load.
    pub weighing: Option<&'static Weighing>,
    /// Returns a new state for a service, which computes shares that [`PacketPolicy::order`] uses
    /// in place of weights. `None` if the policy uses weights.
    pub sharing: Option<fn() -> Box<dyn Sharing>>,
}

/// Selection of the member for a client's request, in a group.
#[derive(Clone, Copy)]
pub struct RedirectPolicy {
    pub choice: Choice,
    /// Load that reduces a member's share; `None` if the policy uses neither reports nor latency.
    pub weighing: Option<&'static Weighing>,
}

/// Selection of a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// By reports of the members. [`crate::farm::group::LoadReading`] decides if the least loaded
    /// member or the next one by share is selected.
    Head,
    /// Of two random members, the one with fewer redirects.
    Two,
    /// In turn, in proportion to share.
    Turn,
    /// By hash of the client's address, the same on every director.
    Hash,
    /// Random, in proportion to share.
    Random,
}

/// Selection of the address for a client, in answers of a name.
#[derive(Clone, Copy)]
pub struct NamePolicy {
    /// Selection of the first address of an answer.
    pub draw: Selection,
    /// Load that determines addresses' shares or order; `None` if the policy doesn't depend on
    /// load.
    pub weighing: Option<&'static Weighing>,
}

/// Selection of the first address of an answer. It is followed by the addresses that would be
/// selected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// In turn, in proportion to share.
    RoundRobin,
    /// Random, in proportion to share.
    Random,
    /// By hash of the client's network, the same on every DNS server.
    SourceHash,
    /// The first working server in the order of the list or of ranks.
    Failover,
}

/// Computes a server's load from its signals.
#[derive(Debug)]
pub struct Weighing {
    /// Signals from which the load is computed.
    pub needs: &'static [Signal],
    /// Returns the load, which is above 0 and comparable with the load of other servers of the
    /// service. `None` if a signal is missing.
    pub load: fn(&Signals) -> Option<u64>,
    /// Returns the load in words.
    pub describe: fn(&Signals) -> Option<String>,
    /// Fills in missing signals of a name's servers from the signals of the other servers. `None`
    /// if servers are weighed independently.
    pub complete: Option<fn(&mut [Signals])>,
}

/// Computes shares of new sessions from servers' signals. It may have state for hysteresis.
pub trait Sharing: fmt::Debug + Send + Sync {
    /// Returns the share of each server, from 0 to [`SHARE_MAX`], in the order of `servers`. At
    /// least one share is above 0, unless no server has a weight.
    fn share_out(&mut self, servers: &[Candidate]) -> Vec<u16>;
    /// Clones the computation with its state.
    fn boxed(&self) -> Box<dyn Sharing>;
}

impl Clone for Box<dyn Sharing> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

/// A server that may be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighted {
    /// Slot of the server in the tables.
    pub slot: u16,
    /// Share relative to the other servers. A server with weight 0 is never selected.
    pub weight: u16,
    /// Hash seed of the server's identity, so that restarts and other directors compute the same
    /// table.
    pub seed: u64,
}
