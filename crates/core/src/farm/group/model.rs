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

/// A group of web servers that clients are redirected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Unique among the services of a farm.
    pub name: String,
    /// Addresses for clients. At least one.
    pub addresses: Vec<SocketAddr>,
    pub status: RedirectStatus,
    /// Policy that selects members, one that supports groups.
    pub policy: &'static Policy,
    /// With [`Choice::Head`]: use of load reports.
    pub load: LoadReading,
    /// Limit of the requests that a member gains by its reports, in percent of its fair share. Not
    /// used with [`LoadReading::Paper`].
    pub report_gain_percent: u64,
    /// Settings of report queries to members, if enabled.
    pub report: Option<Reporting>,
    /// Duration of the slow start, in milliseconds; 0 for none.
    pub slow_start_ms: u64,
    /// Percentage of working members below which probes are not trusted; 0 for never.
    pub panic_percent: u8,
    pub joining: Joining,
    /// Claims of members that join with a certificate, or without credential.
    pub claims: Claims,
    /// Networks in which joining members must be. Empty: their source address, and known members'
    /// addresses.
    pub allow: Vec<Prefix>,
    /// Members listed by the operator.
    pub members: Vec<GroupMember>,
    /// Routes: the first match counts; requests without a route go to all members.
    pub routes: RouteList,
    pub health: HealthCheck,
}

impl Group {
    /// Returns how the policy selects a member.
    pub fn choice(&self) -> Choice {
        self.policy.redirect.map_or(Choice::Turn, |by| by.choice)
    }

    /// Returns the load that reduces a member's turns, if the policy depends on reports or latency.
    pub fn weighing(&self) -> Option<&'static Weighing> {
        self.policy.redirect?.weighing
    }
}

/// A member listed by the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Unique within its group.
    pub name: String,
    /// URL that clients are redirected to.
    pub url: Url,
    /// Share relative to the others; 0 drains.
    pub weight: u16,
    /// True if the member serves only while no other one can.
    pub backup: bool,
    /// Address to probe, if it isn't that of the URL.
    pub health_address: Option<IpAddr>,
    /// True if clients must not learn the URL: their requests are proxied.
    pub anonymous: bool,
    /// URL for load queries, if it isn't the member's own URL.
    pub control: Option<Url>,
}

/// Use of load reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadReading {
    /// Reports gradually change the shares of members. Selecting the least loaded member by an old
    /// report would send all clients there (Mitzenmacher, *How useful is old information?*).
    Aged,
    /// As in the paper: the last report, and the head of the queue.
    Paper,
}

/// Settings of joining, and duties of members that joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joining {
    /// True if any host may join.
    pub insecure: bool,
    /// Interval of members' reports, in milliseconds.
    pub report_ms: u64,
    /// Silence after which a LOAD-QUERY is sent to a member, in milliseconds.
    pub query_after_ms: u64,
    /// Silence after which a member is removed, in milliseconds.
    pub remove_after_ms: u64,
}
