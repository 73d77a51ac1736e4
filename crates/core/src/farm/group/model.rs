//! What a valid service of method `redirect` means.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use crate::farm::{Health, RouteList};
use crate::net::http::{Status, Url};
use crate::net::prefix::Prefix;

/// Web servers that clients are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Unique among the services of a farm.
    pub name: String,
    /// Where clients come to. At least one.
    pub addresses: Vec<SocketAddr>,
    /// By what clients are sent on.
    pub status: Status,
    /// Who is chosen.
    pub policy: GroupPolicy,
    /// With [`GroupPolicy::LeastLoad`]: how reports of load are read.
    pub load: LoadReading,
    /// How long a member takes to its whole share once it works, in milliseconds; 0 for at once.
    pub slow_start_ms: u64,
    /// How members join, and what is expected of them.
    pub joining: Joining,
    /// The networks that members who join by themselves are in. None: where they join from, and where they are known to be.
    pub allow: Vec<Prefix>,
    /// Those that the operator listed.
    pub members: Vec<GroupMember>,
    /// Which of them serve what. The first that fits counts; what none fits goes to all.
    pub routes: RouteList,
    /// How members are probed.
    pub health: Health,
}

/// A member that the operator listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Unique within its group.
    pub name: String,
    /// Where clients are sent to.
    pub url: Url,
    /// Its share relative to the others; 0 drains.
    pub weight: u16,
    /// Whether clients never learn of it: what they ask for is fetched for them.
    pub anonymous: bool,
    /// Where it is asked for its load, if not at its own URL.
    pub control: Option<Url>,
}

/// Who is chosen for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupPolicy {
    /// The least loaded, by what members report and what they were given since (section 3.4 of the paper).
    LeastLoad,
    /// Of two random members the one that was given less.
    PowerOfTwo,
    /// Members in turn, as often as their weight says.
    RoundRobin,
    /// By the client's address, the same whoever decides.
    Hash,
    /// Anyone, as often as their weight says.
    Random,
}

impl GroupPolicy {
    /// All of them, the default first.
    pub const ALL: [GroupPolicy; 5] = [
        GroupPolicy::LeastLoad,
        GroupPolicy::PowerOfTwo,
        GroupPolicy::RoundRobin,
        GroupPolicy::Hash,
        GroupPolicy::Random,
    ];

    /// Its name in configuration, views and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            GroupPolicy::LeastLoad => "least-load",
            GroupPolicy::PowerOfTwo => "power-of-two",
            GroupPolicy::RoundRobin => "round-robin",
            GroupPolicy::Hash => "hash",
            GroupPolicy::Random => "random",
        }
    }
}

impl fmt::Display for GroupPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How reports of load are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadReading {
    /// A report counts less the older it is, and the lesser of two random members is chosen: who always chooses the least loaded by
    /// an old report sends everybody there (Mitzenmacher, *How useful is old information?*).
    Aged {
        /// The most that a member gains by what it reports, in percent of its fair share.
        gain_percent: u64,
    },
    /// As the paper has it: the last report, and the head of the queue.
    Paper,
}

impl LoadReading {
    /// How far apart two reports are at least that take away what dispatches have added, in milliseconds; 0: each report does. Who reports
    /// nothing all the time would else be given everything; the paper believes that, too.
    pub const fn clears_ms(self, report_ms: u64) -> u64 {
        match self {
            LoadReading::Aged { .. } => report_ms / 2,
            LoadReading::Paper => 0,
        }
    }
}

/// How members join by themselves, and what is expected of them then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joining {
    /// Whether anybody may join.
    pub insecure: bool,
    /// How often members report, in milliseconds.
    pub report_ms: u64,
    /// A member that is silent for so long is asked, in milliseconds.
    pub query_after_ms: u64,
    /// And is removed after this long, in milliseconds.
    pub remove_after_ms: u64,
}
