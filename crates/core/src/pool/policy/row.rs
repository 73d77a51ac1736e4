//! A row of the table of policies, and its columns: one for each way to choose.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::path::tables::Pick;
use crate::pool::signals::{Candidate, Signal, Signals};

/// The largest share.
pub const SHARE_MAX: u16 = 1_000;

/// A policy: whether and how each of those who choose carries it out. [`Consumer`](super::Consumer)
/// says who takes which.
pub struct Policy {
    /// Its name in configuration, views and metrics.
    pub name: &'static str,
    /// One line for the documentation.
    pub about: &'static str,
    /// The signals of servers that it goes by, where packets are sent on.
    pub needs: &'static [Signal],
    /// Of a director and of each host where every host decides, for packets and connections.
    pub packets: Option<PacketPolicy>,
    /// Of a group.
    pub redirect: Option<RedirectPolicy>,
    /// Of a name.
    pub names: Option<NamePolicy>,
}

/// Its own row alone.
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

/// How tables are laid out for the data plane: when the farm changes, not when a packet comes.
#[derive(Clone, Copy)]
pub struct PacketPolicy {
    /// How the data plane draws from the tables.
    pub pick: Pick,
    /// The ring to draw from in order, as slots; at most [`crate::path::tables::ORDER_MAX`].
    /// Members of weight 0 are not in it.
    pub order: fn(&[Weighted]) -> Vec<u16>,
    /// By what [`Pick::Two`] weighs servers' sessions ([`score`](super::score)), if the policy goes
    /// by load.
    pub weighing: Option<&'static Weighing>,
    /// By what shares [`PacketPolicy::order`] goes instead of weights, if it goes by what is known
    /// of servers. Of each service anew.
    pub sharing: Option<fn() -> Box<dyn Sharing>>,
}

/// How a group chooses the member that a client is sent to.
#[derive(Clone, Copy)]
pub struct RedirectPolicy {
    /// How one is picked.
    pub choice: Choice,
    /// By what members have fewer turns, if the policy goes by what they answer or how soon they
    /// do.
    pub weighing: Option<&'static Weighing>,
}

/// How one of a group's members is picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// By what members report by themselves: the head of the paper's queue, or in turn, as often as
    /// reports teach.
    Head,
    /// Of two random members the one that was given less.
    Two,
    /// In turn, as often as their shares say.
    Turn,
    /// By the client's address, the same whoever decides.
    Hash,
    /// Anyone, as often as their shares say.
    Random,
}

/// How a name chooses the address that a client is given.
#[derive(Clone, Copy)]
pub struct NamePolicy {
    /// How the one is drawn that comes first in an answer.
    pub draw: Selection,
    /// By what shares are made or servers ranked, if the policy goes by load.
    pub weighing: Option<&'static Weighing>,
}

/// How the address is drawn that comes first. Behind it are those whose turn would be next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Servers in turn, as often as their share says.
    RoundRobin,
    /// Anyone, as often as their share says.
    Random,
    /// By the client's network, the same whoever answers.
    SourceHash,
    /// The first in order that lives.
    Failover,
}

/// How a server's load is made of what is known of it.
#[derive(Debug)]
pub struct Weighing {
    /// The signals that it is made of.
    pub needs: &'static [Signal],
    /// The load by what is known of a server, larger than 0 and comparable with other servers' of
    /// its service; `None` where a signal is missing.
    pub load: fn(&Signals) -> Option<u64>,
    /// The same in words.
    pub describe: fn(&Signals) -> Option<String>,
    /// Fills in signals that some servers of a name lack, by those that the others have; `None`
    /// where each is weighed alone.
    pub complete: Option<fn(&mut [Signals])>,
}

/// How new sessions are shared out by what is known of servers. It may remember what it came to, so
/// that it doesn't waver.
pub trait Sharing: fmt::Debug + Send + Sync {
    /// The share of each server, in their order; 0 to [`SHARE_MAX`]. Unless nobody has a weight,
    /// not all are 0.
    fn share_out(&mut self, servers: &[Candidate]) -> Vec<u16>;
    /// The same once more, with what it remembers.
    fn boxed(&self) -> Box<dyn Sharing>;
}

impl Clone for Box<dyn Sharing> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

/// A server that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighted {
    /// Its number in the tables.
    pub slot: u16,
    /// Its share relative to the others; 0 is never chosen.
    pub weight: u16,
    /// The source of its place in hash tables: its identity, so that restarts and other directors
    /// arrive at the same table.
    pub seed: u64,
}
