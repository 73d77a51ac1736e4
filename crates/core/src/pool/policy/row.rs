//! Rows of the table of policies, with one column per consumer.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::path::tables::Pick;
use crate::pool::signals::{Candidate, Signal, Signals};

pub const SHARE_MAX: u16 = 1_000;

/// A policy, with a column for each consumer. [`Consumer`](super::Consumer) lists the supported
/// ones.
pub struct Policy {
    /// Name in configuration, views and metrics.
    pub name: &'static str,
    /// Description in one line, for the documentation.
    pub about: &'static str,
    /// Signals of servers that the policy uses for packets.
    pub needs: &'static [Signal],
    /// For directors and `every-host` hosts.
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

/// Layout of the data plane's tables, computed when the farm changes, not per packet.
#[derive(Clone, Copy)]
pub struct PacketPolicy {
    /// How the data plane selects from the tables.
    pub pick: Pick,
    /// Returns the ring as slots, at most [`crate::path::tables::ORDER_MAX`], without members of
    /// weight 0.
    pub order: fn(&[Weighted]) -> Vec<u16>,
    /// Load that weighs servers' sessions with [`Pick::Two`] ([`score`](super::score)), if the
    /// policy depends on load.
    pub weighing: Option<&'static Weighing>,
    /// Makes a new state per service that computes shares for [`PacketPolicy::order`] in place of
    /// weights, if the policy uses signals.
    pub sharing: Option<fn() -> Box<dyn Sharing>>,
}

/// How a group selects the member for a client.
#[derive(Clone, Copy)]
pub struct RedirectPolicy {
    pub choice: Choice,
    /// Load that reduces a member's turns, if the policy depends on reports or latency.
    pub weighing: Option<&'static Weighing>,
}

/// Selection of a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// By reports of the members: the head of the paper's queue, or in turn according to shares by
    /// reports.
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

/// How a name selects the address for a client.
#[derive(Clone, Copy)]
pub struct NamePolicy {
    /// Selection of the first address of an answer.
    pub draw: Selection,
    /// Load that determines shares or ranks, if the policy depends on load.
    pub weighing: Option<&'static Weighing>,
}

/// Selection of the first address of an answer. The addresses of the next turns follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// In turn, in proportion to share.
    RoundRobin,
    /// Random, in proportion to share.
    Random,
    /// By hash of the client's network, the same on every DNS server.
    SourceHash,
    /// The first working server in order.
    Failover,
}

/// Computes a server's load from its signals.
#[derive(Debug)]
pub struct Weighing {
    /// Signals that the load is computed from.
    pub needs: &'static [Signal],
    /// Returns the load, larger than 0 and comparable with that of other servers of the service;
    /// `None` if a signal is missing.
    pub load: fn(&Signals) -> Option<u64>,
    /// Returns the load in words.
    pub describe: fn(&Signals) -> Option<String>,
    /// Fills in missing signals of a name's servers from those of the other servers; `None` if
    /// servers are weighed independently.
    pub complete: Option<fn(&mut [Signals])>,
}

/// Computes shares of new sessions from servers' signals. May keep state for hysteresis.
pub trait Sharing: fmt::Debug + Send + Sync {
    /// Returns the share of each server, in their order; 0 to [`SHARE_MAX`]. At least one is above
    /// 0, unless no server has a weight.
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
    /// Number in the tables.
    pub slot: u16,
    /// Share relative to the other servers; a server with 0 is never selected.
    pub weight: u16,
    /// Hash seed of the server's identity, so that restarts and other directors compute the same
    /// table.
    pub seed: u64,
}
