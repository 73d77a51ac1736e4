//! A service of method `redirect`, as the farm file describes it.

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
    /// Addresses for clients. There is at least one.
    pub addresses: Vec<SocketAddr>,
    pub status: RedirectStatus,
    /// Policy that selects members. It must support groups.
    pub policy: &'static Policy,
    /// Use of load reports, if the policy's choice is [`Choice::Head`].
    pub load: LoadReading,
    /// Limit of the requests that a member gains by its reports, in percent of its fair share.
    /// [`LoadReading::Paper`] has no such limit.
    pub report_gain_percent: u64,
    /// Settings of report queries to members, if enabled.
    pub report: Option<Reporting>,
    /// Duration of the slow start, in milliseconds; 0 for none.
    pub slow_start_ms: u64,
    /// If the percentage of working members falls below this value, failed members get requests,
    /// too. 0 disables this.
    pub panic_percent: u8,
    pub joining: Joining,
    /// Claims allowed to members that join with a certificate, or without a credential.
    pub claims: Claims,
    /// Networks in which joining members must be. If empty, a member must have its message's source
    /// address, a host of its credential, or a listed member's address.
    pub allow: Vec<Prefix>,
    /// Members listed by the operator.
    pub members: Vec<GroupMember>,
    /// Routes, of which the first match counts. Requests that match no route go to all members.
    pub routes: RouteList,
    pub health: HealthCheck,
}

impl Group {
    /// Returns how the policy selects a member.
    pub fn choice(&self) -> Choice {
        self.policy.redirect.map_or(Choice::Turn, |by| by.choice)
    }

    /// Returns how load reduces a member's share; `None` if the policy uses neither reports nor
    /// latency.
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
    /// Share of requests relative to the other members; 0 drains the member.
    pub weight: u16,
    /// True if the member serves only while no member can that is not a backup.
    pub backup: bool,
    /// Address to probe; `None` for the URL's address.
    pub health_address: Option<IpAddr>,
    /// True if clients must not learn the URL, so that their requests are proxied.
    pub anonymous: bool,
    /// URL for load queries, if it isn't the member's own URL.
    pub control: Option<Url>,
}

/// Use of load reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadReading {
    /// Reports gradually change the shares of members. If an old report selected the least loaded
    /// member, all clients would go to that member (Mitzenmacher, *How useful is old
    /// information?*).
    Aged,
    /// As in the paper, the member with the least load in its last report gets the request.
    Paper,
}

/// Settings for joining, and for members that have joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joining {
    /// True if hosts may join without a credential.
    pub insecure: bool,
    /// Interval of members' reports, in milliseconds.
    pub report_ms: u64,
    /// Silence after which a LOAD-QUERY is sent to a member, in milliseconds.
    pub query_after_ms: u64,
    /// Silence after which a member is removed, in milliseconds.
    pub remove_after_ms: u64,
}
