//! Members of a group: a state machine of listed and joined members (section 3.3 of the paper).
//!
//! Facts go in with the time: messages of members, results of probes, operator's states and
//! reloads. [`Members::poll`] returns orders, and [`Members::dispatch`] the selection in force.

mod choosing;
mod joining;
mod learned;
mod load;
mod member;
mod operator;
mod queries;
mod record;
mod refused;
mod routes;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use member::{MemberSnapshot, Standing, thousandths};
pub use queries::QueryResult;
pub use record::{drained_in_record, without_drains};
pub use refused::MemberRefusal;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::dispatch::Dispatch;
use super::joiner::Joiner;
use super::model::{Group, GroupMember};
use super::reach::Reach;
use crate::net::http::{RedirectStatus, Url};
use crate::path::seed::Seed;
use crate::pool::health::Failure;
use crate::pool::{
    ClockReading, HealthCheck, OperatorState, Pool, PoolServer, Reporting, ServerEvent, ServerState,
};
use member::{MemberSettings, TrackedMember};

/// Maximum number of joined members of one group. Listed members don't count.
pub const MEMBERS_MAX: usize = 1_024;
/// Maximum number of routes that the members of one group announce.
pub const ROUTES_MAX: usize = 4_096;
/// Maximum load in a report, in the paper's unit.
pub const LOAD_MAX: u32 = 1_000_000_000;
/// Maximum lead of a member's clock over this host's, in milliseconds.
const AHEAD_MAX_MS: u64 = 300_000;
/// Time for which reports are collected before they are put in force, in milliseconds.
const GATHER_MS: u64 = 50;
/// Interval at which loads are estimated anew, in milliseconds.
const RENEW_MS: u64 = 500;

/// A member's report of its load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadInform {
    /// Load in the paper's unit.
    pub load: f64,
    /// Time of the load by the member's clock, in milliseconds since 1970.
    pub stamp_ms: Option<u64>,
    /// URL of the member, which it must send if its source address belongs to several members.
    pub url: Option<Url>,
}

/// Result of a GROUP-ADD message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinResult {
    /// Number of new members.
    pub new: usize,
    /// Number of members that had joined before and were updated.
    pub known: usize,
}

/// Order of a group to its caller.
#[derive(Clone, Debug)]
pub enum MemberOrder {
    /// Probe a member, and return the result to [`Members::apply_fact`].
    Probe {
        /// Number of the member: [`MemberSnapshot::id`].
        member: usize,
        /// URL at which the member is probed.
        url: Url,
        /// Address to probe in place of the URL's address, if configured.
        address: Option<IpAddr>,
        /// Kind and timeout of the probe.
        check: Arc<HealthCheck>,
        /// Addresses to which the caller may connect; `None` for any.
        reach: Option<Reach>,
    },
    /// Send a LOAD-QUERY to a member, which answers with a message of its own. The result of the
    /// query goes to [`Members::queried`].
    Query {
        /// Number of the member: [`MemberSnapshot::id`].
        member: usize,
        /// URL at which the member is queried.
        url: Url,
        /// True if the member or the operator named this URL for load queries, so the server there
        /// must support LOAD-QUERY.
        is_named: bool,
        /// Addresses to which the caller may connect; `None` for any.
        reach: Option<Reach>,
    },
    /// Query a member's load as configured by the group's `report`, and return the result to
    /// [`Members::apply_fact`].
    FetchReport {
        /// Number of the member: [`MemberSnapshot::id`].
        member: usize,
        /// URL whose host is queried.
        url: Url,
        /// Settings of the query.
        settings: Arc<Reporting>,
        /// Addresses to which the caller may connect; `None` for any.
        reach: Option<Reach>,
    },
    /// Save this record for the next start, when [`Members::new`] reads it.
    Save {
        /// Text with a line per member.
        record: String,
    },
    /// Redirect clients by these rules from now on.
    Publish(GroupRules),
}

/// Rules and data on which redirects depend.
#[derive(Clone, Debug)]
pub struct GroupRules {
    pub status: RedirectStatus,
    pub dispatch: Arc<Dispatch>,
    /// Names of members, by [`MemberCandidate::id`](super::MemberCandidate::id).
    pub names: BTreeMap<usize, String>,
    /// Value of the Retry-After header of a response while no member works, in seconds.
    pub retry_after_s: u64,
}

/// Event of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// The member joined, left or changed.
    Changed(MemberChange),
    /// The server of the member changed, as servers of services do.
    Server(ServerEvent),
}

/// Changes of a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberChange {
    /// A new member joined, or a listed member that had left.
    #[error("joined")]
    Joined,
    /// The member sent GROUP-EXIT.
    #[error("left")]
    Left,
    /// The member's credential no longer allows all of its claims.
    #[error("cut: its credential no longer allows all of its paths, hosts or weight")]
    Cut,
    /// The member did not report in time, and a LOAD-QUERY was sent.
    #[error("no load report in time: the director asks for one")]
    Silent,
    /// The member stayed silent after the LOAD-QUERY.
    #[error("removed: no load report for too long (`evener agent` joins again by itself)")]
    Removed,
    /// The member refused the LOAD-QUERY.
    #[error(
        "removed: no load report in time, and the request for one failed (`evener agent` joins again by itself)"
    )]
    Refused,
    #[error("up")]
    Up,
    #[error("down: {0}")]
    Down(Failure),
    /// The operator drains the member.
    #[error("drained")]
    Drained,
    /// The operator has ended the drain.
    #[error("no longer drained")]
    Undrained,
}

/// Members of a group.
#[derive(Clone, Debug)]
pub struct Members {
    group: Group,
    settings: MemberSettings,
    seed: Seed,
    /// Members by their number.
    members: Pool<usize, TrackedMember>,
    by_url: BTreeMap<Url, usize>,
    next_id: usize,
    /// Operator's states by name or URL; they also apply to members that return.
    operator: BTreeMap<String, OperatorState>,
    /// Selection in force, and the number of its requests that members' loads include already, by
    /// the member's number.
    in_force: Option<(Arc<Dispatch>, BTreeMap<usize, u64>)>,
    /// Events with the names of their members.
    events: Vec<(String, MemberEvent)>,
    is_to_save: bool,
    publish_at_ms: u64,
}

impl Members {
    /// Returns the listed members, and the members that had joined according to the saved record.
    pub fn new(now: ClockReading, group: &Group, seed: Seed, record: Option<&str>) -> Members {
        let mut members = Members {
            group: group.clone(),
            settings: MemberSettings::of(group),
            seed,
            members: Pool::default(),
            by_url: BTreeMap::new(),
            next_id: 0,
            operator: BTreeMap::new(),
            in_force: None,
            events: Vec::new(),
            is_to_save: false,
            publish_at_ms: 0,
        };
        // With a record this is a restart, so members that are not in the record are new and start
        // slowly.
        members.list(now, record.is_some());
        record::read(record.unwrap_or_default()).into_iter().for_each(|one| members.remember(now, one));
        members
    }

    /// Applies the settings of a reload.
    pub fn reload(&mut self, now: ClockReading, group: &Group) {
        self.absorb(now);
        self.group = group.clone();
        self.settings = MemberSettings::of(group);
        self.list(now, true);
        for member in self.members.values_mut() {
            let settings = self.settings.settings(member.listed.is_none());
            member.server.reconfigure(settings, seed_of(self.seed, member.id), now.now_ms);
            member.check_address(now, group);
        }
        self.changed(now);
    }

    /// Adds newly listed members. Removes members that are no longer listed, unless they have
    /// joined.
    fn list(&mut self, now: ClockReading, is_new: bool) {
        let listed: BTreeSet<&Url> = self.group.members.iter().map(|member| &member.url).collect();
        for member in self.members.values_mut().filter(|member| !listed.contains(&member.joiner.url)) {
            (member.listed, member.backup, member.health_address) = (None, false, None);
        }
        for one in self.group.members.clone() {
            match self.by_url.get(&one.url).and_then(|id| self.members.get_mut(id)) {
                Some(member) => member.list(&one),
                None => {
                    let joiner = Joiner::new(one.url.clone());
                    self.add(now, joiner, Some(&one), is_new);
                }
            }
        }
        self.members.retain(|member| member.listed.is_some() || (member.joined && !member.left));
        self.by_url.retain(|_, id| self.members.get(id).is_some());
    }

    fn remember(&mut self, now: ClockReading, one: record::MemberRecord) {
        let id = match self.by_url.get(&one.joiner.url) {
            Some(id) => *id,
            None if one.joined && self.joined_count() < MEMBERS_MAX => {
                self.add(now, one.joiner.clone(), None, false)
            }
            None => return,
        };
        let Some(member) = self.members.get_mut(&id) else { return };
        if one.joined {
            member.describe(&one.joiner);
        }
        (member.joined, member.origin) = (one.joined, one.origin);
        member.left = one.left && member.listed.is_some();
        member.load.stamp_ms = one.stamp_ms;
        if one.was_up {
            member.server.resume();
        }
        member.check_address(now, &self.group);
    }

    /// Adds a listed or joining member and returns its number. `is_new` is true for a member of a
    /// running group.
    fn add(
        &mut self,
        now: ClockReading,
        joiner: Joiner,
        listed: Option<&GroupMember>,
        is_new: bool,
    ) -> usize {
        let id = self.next_id;
        self.next_id += 1;
        let settings = self.settings.settings(listed.is_none());
        let server = PoolServer::new(settings, seed_of(self.seed, id), now.now_ms, is_new);
        let mut member = TrackedMember::new(id, joiner, listed.is_none(), server, now);
        if let Some(listed) = listed {
            member.list(listed);
        }
        if let Some((_, state)) = self.operator.iter().find(|(name, _)| member.is_called(name)) {
            member.server.set_operator_state(*state, now.now_ms);
        }
        self.by_url.insert(member.joiner.url.clone(), id);
        self.members.insert(id, member);
        id
    }

    fn joined_count(&self) -> usize {
        self.members.values().filter(|member| member.listed.is_none()).count()
    }

    /// Applies a load report. A report never changes a member's state to up; only probes do.
    ///
    /// # Errors
    /// The report is rejected.
    pub fn inform(
        &mut self,
        now: ClockReading,
        from: Option<IpAddr>,
        report: &LoadInform,
    ) -> Result<(), MemberRefusal> {
        let load = in_thousandths(report.load).ok_or(MemberRefusal::Load)?;
        let id = self.reporter(from, report.url.as_ref())?;
        self.absorb(now);
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        if let Some(stamp_ms) = report.stamp_ms {
            if stamp_ms > now.unix_ms.saturating_add(AHEAD_MAX_MS) {
                return Err(MemberRefusal::Ahead);
            }
            if member.load.stamp_ms.is_some_and(|last_ms| stamp_ms <= last_ms) {
                return Err(MemberRefusal::Stale);
            }
        }
        let was_silent = member.is_silent(now, self.group.joining.query_after_ms);
        member.load.report(now, load, report.stamp_ms);
        member.note_message(now);
        self.is_to_save |= was_silent;
        self.learn(now, id, load);
        // With more members, a new selection takes longer to compute, so more reports share one.
        let gather_ms = GATHER_MS.saturating_add(self.members.values().len() as u64);
        self.publish_at_ms = self.publish_at_ms.min(now.now_ms.saturating_add(gather_ms));
        Ok(())
    }

    /// Returns the member that a report belongs to.
    ///
    /// # Errors
    /// The report matches no member or several members.
    pub fn reporter(&self, from: Option<IpAddr>, url: Option<&Url>) -> Result<usize, MemberRefusal> {
        if let Some(url) = url {
            let found = self.by_url.get(url).and_then(|id| self.members.get(id));
            let found = found.filter(|member| !member.left).map(|member| member.id);
            return found.ok_or_else(|| MemberRefusal::Unknown(url.to_string()));
        }
        let from = from.map(|from| from.to_canonical());
        let here = || self.members.values().filter(|member| from.is_some() && !member.left);
        let own = |member: &&TrackedMember| {
            let own = member.joiner.url.host().parse::<IpAddr>().ok();
            own.map(|own| own.to_canonical()) == from
        };
        // A host may also have joined other hosts as members. So a member whose URL contains this
        // address comes before members that joined from this address.
        let mut found: Vec<&TrackedMember> = here().filter(own).collect();
        if found.is_empty() {
            let came_from = |member: &&TrackedMember| member.origin.from.map(|at| at.to_canonical()) == from;
            found = here().filter(came_from).collect();
        }
        let mut found = found.into_iter();
        match (found.next(), found.next()) {
            (Some(member), None) => Ok(member.id),
            (Some(_), Some(_)) => Err(MemberRefusal::Several),
            (None, _) => Err(MemberRefusal::Unknown(
                from.map_or_else(|| "nobody".to_string(), |from| from.to_string()),
            )),
        }
    }

    /// Returns the URL of the member that a report belongs to, so that the caller can check the
    /// credential.
    ///
    /// # Errors
    /// The report matches no member or several members.
    pub fn reporter_url(&self, from: Option<IpAddr>, url: Option<&Url>) -> Result<&Url, MemberRefusal> {
        let id = self.reporter(from, url)?;
        let member = self.members.get(&id).map(|member| &member.joiner.url);
        member.ok_or_else(|| MemberRefusal::Unknown(String::new()))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.values().map(TrackedMember::name)
    }

    /// True if a member works, or if the group has no members. A group without members is ready,
    /// since it waits for members to join.
    pub fn are_serving(&self, now: ClockReading) -> bool {
        let query_after_ms = self.group.joining.query_after_ms;
        let mut members = self.members.values();
        members.len() == 0 || members.any(|member| member.state(now, query_after_ms) == ServerState::Up)
    }

    /// True if every member that may get requests has a probe result.
    pub fn are_settled(&self) -> bool {
        !self.members.values().any(|member| member.is_wanted() && member.server.is_unknown())
    }

    /// Returns the orders due now.
    pub fn poll(&mut self, now: ClockReading) -> Vec<MemberOrder> {
        let mut orders = Vec::new();
        self.query_silent(now, &mut orders);
        self.order_due_checks(now, &mut orders);
        if core::mem::take(&mut self.is_to_save) {
            orders.push(MemberOrder::Save { record: self.record() });
        }
        if self.publish_at_ms <= now.now_ms {
            self.publish_at_ms = match self.is_renewed(now) {
                true => now.now_ms.saturating_add(RENEW_MS),
                false => u64::MAX,
            };
            orders.push(MemberOrder::Publish(self.rules(now)));
        }
        orders
    }

    pub fn take_events(&mut self) -> Vec<(String, MemberEvent)> {
        core::mem::take(&mut self.events)
    }

    fn rules(&mut self, now: ClockReading) -> GroupRules {
        let names = self.members.iter().map(|(id, member)| (*id, member.name().to_string()));
        GroupRules {
            status: self.group.status,
            names: names.collect(),
            dispatch: self.dispatch(now),
            retry_after_s: self.retry_after_s(),
        }
    }

    fn query_silent(&mut self, now: ClockReading, orders: &mut Vec<MemberOrder>) {
        let joining = self.group.joining;
        let gone = |member: &&TrackedMember| {
            member.joined && now.now_ms.saturating_sub(member.reported_ms) >= joining.remove_after_ms
        };
        let gone: Vec<(usize, bool)> =
            self.members.values().filter(gone).map(|member| (member.id, member.listed.is_some())).collect();
        for (id, is_listed) in gone {
            match self.members.get_mut(&id).filter(|_| is_listed) {
                // A listed member stays, and no longer has to report.
                Some(member) => {
                    (member.joined, member.reported_ms, member.load.report) = (false, now.now_ms, None);
                }
                None => self.remove_member(id, MemberChange::Removed),
            }
            self.changed(now);
        }
        let mut newly_silent = Vec::new();
        for member in self.members.values_mut().filter(|member| member.is_silent(now, joining.query_after_ms))
        {
            if member.queried_ms.is_none() {
                newly_silent.push(member.name().to_string());
            }
            if member.queried_ms.is_none_or(|at_ms| now.now_ms.saturating_sub(at_ms) >= joining.report_ms) {
                member.queried_ms = Some(now.now_ms);
                let (url, reach) = (member.control().clone(), member.control_reach(&self.group));
                let is_named = member.joiner.control.is_some();
                orders.push(MemberOrder::Query { member: member.id, url, is_named, reach });
            }
        }
        newly_silent.into_iter().for_each(|name| self.push_event(name, MemberChange::Silent));
    }

    /// Time of the next work for [`Members::poll`], in milliseconds.
    pub fn poll_timeout(&self) -> u64 {
        if self.is_to_save {
            return 0;
        }
        let joining = self.group.joining;
        let of = |member: &TrackedMember| {
            let removal = if member.joined {
                member.reported_ms.saturating_add(joining.remove_after_ms)
            } else {
                u64::MAX
            };
            let question = match member.queried_ms {
                _ if !member.is_to_report() => u64::MAX,
                None => member.reported_ms.saturating_add(joining.query_after_ms),
                Some(queried_ms) => queried_ms.saturating_add(joining.report_ms),
            };
            removal.min(question)
        };
        let messages = self.members.values().map(of).min().unwrap_or(u64::MAX);
        messages.min(self.members.next_at()).min(self.publish_at_ms)
    }

    fn changed(&mut self, now: ClockReading) {
        self.is_to_save = true;
        self.publish_at_ms = self.publish_at_ms.min(now.now_ms);
    }

    fn push_event(&mut self, member: String, what: MemberChange) {
        self.events.push((member, MemberEvent::Changed(what)));
    }

    /// Returns all members in the order of joining.
    pub fn snapshot(&self, now: ClockReading) -> Vec<MemberSnapshot> {
        let median = self.median(now);
        let parts = self.parts(now);
        let standings = self.standings();
        let view = |member: &TrackedMember| {
            let (load, part) = (self.load_of(now, member, median), parts.get(&member.id));
            let standing = standings.get(&member.id).copied().unwrap_or_default();
            member.view(now, &self.group, load, part, standing)
        };
        self.members.values().map(view).collect()
    }

    /// Returns the record that [`Members::new`] reads at the next start.
    pub fn record(&self) -> String {
        record::write(self.members.values())
    }

    /// Value of the Retry-After header of a response while no member works, in seconds.
    fn retry_after_s(&self) -> u64 {
        let settings = &self.group.health;
        settings.interval_ms.saturating_mul(u64::from(settings.rise)).div_ceil(1_000).clamp(1, 60)
    }
}

/// Seed of a member, by which probes are spread over time.
fn seed_of(seed: Seed, id: usize) -> u64 {
    seed.0 ^ (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Converts a load to thousandths; `None` for an invalid load.
fn in_thousandths(load: f64) -> Option<u64> {
    let good = load.is_finite() && (0.0..=f64::from(LOAD_MAX)).contains(&load);
    // The product is between 0 and 10^12. Its fraction is dropped.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    good.then_some((load * 1_000.0) as u64)
}
