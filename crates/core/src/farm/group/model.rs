//! The meaning of a valid service of method `redirect`.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::claims::Claims;
use crate::farm::RouteList;
use crate::net::http::{RedirectStatus, Url};
use crate::net::prefix::Prefix;
use crate::pool::policy::{Choice, Policy, Weighing};
use crate::pool::{HealthCheck, Reporting};

/// Web servers that clients are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Unique among the services of a farm.
    pub name: String,
    /// Where clients come to. At least one.
    pub addresses: Vec<SocketAddr>,
    /// By what clients are sent on.
    pub status: RedirectStatus,
    /// The policy that chooses among its members: one that groups take.
    pub policy: &'static Policy,
    /// With [`Choice::Head`]: how reports of load are read.
    pub load: LoadReading,
    /// The most that a member gains by what it reports, in percent of its fair share. The paper's
    /// reading doesn't know it.
    pub report_gain_percent: u64,
    /// How members are asked for what they know of their load, if they are.
    pub report: Option<Reporting>,
    /// How long a member takes to its whole share once it works, in milliseconds; 0 for at once.
    pub slow_start_ms: u64,
    /// Where a smaller share of its members works, in percent, probes aren't believed; 0 for never.
    pub panic_percent: u8,
    /// How members join, and what is expected of them.
    pub joining: Joining,
    /// The claims of members that join by a certificate, or by nothing.
    pub claims: Claims,
    /// The networks that members who join by themselves are in. None: where they join from, and
    /// where they are known to be.
    pub allow: Vec<Prefix>,
    /// Those that the operator listed.
    pub members: Vec<GroupMember>,
    /// Which of them serve what. The first that fits counts; what none fits goes to all.
    pub routes: RouteList,
    /// How members are probed.
    pub health: HealthCheck,
}

impl Group {
    /// How its members are picked.
    pub fn choice(&self) -> Choice {
        self.policy.redirect.map_or(Choice::Turn, |by| by.choice)
    }

    /// By what its members have fewer turns, if its policy goes by what they answer or how soon
    /// they do.
    pub fn weighing(&self) -> Option<&'static Weighing> {
        self.policy.redirect?.weighing
    }
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
    /// Whether clients are sent to it only while no member without this can serve.
    pub backup: bool,
    /// Where it is probed, if not at the address of its URL.
    pub health_address: Option<IpAddr>,
    /// Whether clients never learn of it: what they ask for is fetched for them.
    pub anonymous: bool,
    /// Where it is asked for its load, if not at its own URL.
    pub control: Option<Url>,
}

/// How reports of load are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadReading {
    /// Little by little they change how many turns a member has: who always chooses the least
    /// loaded by an old report sends everybody there (Mitzenmacher, *How useful is old
    /// information?*).
    Aged,
    /// As the paper has it: the last report, and the head of the queue.
    Paper,
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
