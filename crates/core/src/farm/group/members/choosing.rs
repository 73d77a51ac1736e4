//! Computes the [`Dispatch`] in force: which members are candidates, and their shares.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::learned::{Reporter, learn};
use super::load;
use super::member::{Standing, TrackedMember};
use super::{Members, routes};
use crate::farm::group::dispatch::{Dispatch, MemberCandidate};
use crate::farm::group::model::LoadReading;
use crate::pool::ClockReading;
use crate::pool::health;
use crate::pool::policy::Choice;
use crate::pool::serving::{Candidate, Condition, Serving, ServingRule, serving};
use crate::pool::shares::{MemberShare, PERMILLE, PoolMember, shares};
use crate::pool::signals::Signal;

impl Members {
    /// Returns the [`Dispatch`] to put in force. Before, the requests that the previous one
    /// dispatched are added to members' loads.
    pub fn dispatch(&mut self, now: ClockReading) -> Arc<Dispatch> {
        self.absorb(now);
        let median = self.median(now);
        let chosen = self.chosen();
        let starts_slowly = chosen.iter().any(|member| member.server.slow_start_percent(now.now_ms) < 100);
        let parts = self.parts(now);
        let candidates = chosen.iter().map(|member| MemberCandidate {
            id: member.id,
            url: Arc::new(member.joiner.url.clone()),
            anonymous: member.joiner.anonymous,
            // Only requests for anonymous members are proxied, so only these members need the
            // allowed addresses.
            reach: member.reach(&self.group).filter(|_| member.joiner.anonymous).map(Arc::new),
            backup: member.backup,
            weight: match starts_slowly {
                true => self.slow_weight(now, member),
                false => member.joiner.weight,
            },
            permille: parts.get(&member.id).map_or(PERMILLE, |share| share.permille),
            load: self.load_of(now, member, median),
            dispatched: Arc::clone(&member.dispatched),
        });
        let candidates: Vec<MemberCandidate> = candidates.collect();
        let places: BTreeMap<usize, usize> =
            candidates.iter().enumerate().map(|(at, candidate)| (candidate.id, at)).collect();
        let all: Vec<&TrackedMember> = self.members.values().collect();
        let routes = routes::all(&self.group, &all, |member| places.get(&member.id).copied());
        let choice = if self.learns() { Choice::Turn } else { self.group.choice() };
        let mut dispatch = Dispatch::new(choice, self.gain_percent(), candidates, &routes, self.seed);
        if let Some((before, _)) = &self.in_force {
            dispatch = dispatch.continuing(before);
        }
        let dispatch = Arc::new(dispatch);
        self.in_force = Some((Arc::clone(&dispatch), BTreeMap::new()));
        dispatch
    }

    /// Returns the members that may be selected: the serving members, and all working backups,
    /// which routes may need. If there are none, returns the members without any probe result.
    fn chosen(&self) -> Vec<&TrackedMember> {
        let (serving, conditions) = (self.serving(), self.members.values().map(Self::candidate));
        let chosen = self.members.values().zip(conditions).zip(serving.serves);
        let chosen: Vec<&TrackedMember> = chosen
            .filter(|((_, one), serves)| *serves || one.condition == Condition::Working)
            .map(|((member, _), _)| member)
            .collect();
        if !chosen.is_empty() {
            return chosen;
        }
        let unknown = |member: &&TrackedMember| Self::candidate(member).condition == Condition::Unknown;
        self.members.values().filter(unknown).filter(|member| member.may_be_tried()).collect()
    }

    /// Returns which members serve requests without a route, by the serving rule.
    fn serving(&self) -> Serving {
        let candidates: Vec<Candidate> = self.members.values().map(Self::candidate).collect();
        let panic_percent = self.group.panic_percent;
        let rule = ServingRule { panic_percent, keeps_refusing: true, ..ServingRule::default() };
        serving(rule, &candidates)
    }

    /// Returns for each member, by its number, how serving differs from health.
    pub(super) fn standings(&self) -> BTreeMap<usize, Standing> {
        let of = |(member, serves): (&TrackedMember, bool)| {
            let standing = match (Self::candidate(member).condition, serves) {
                (Condition::Working, false) => Standing::WaitingBackup,
                (Condition::Failed { .. }, true) => Standing::Disbelieved,
                _ => Standing::Normal,
            };
            (member.id, standing)
        };
        self.members.values().zip(self.serving().serves).map(of).collect()
    }

    fn candidate(member: &TrackedMember) -> Candidate {
        let condition = match member.server.health().status().state {
            _ if !member.is_wanted() => Condition::Unwanted,
            health::HealthState::Unknown => Condition::Unknown,
            // A member at a forbidden address is never used.
            health::HealthState::Down if member.is_forbidden() => Condition::Unwanted,
            health::HealthState::Down => Condition::Failed { since_ms: None },
            health::HealthState::Up if member.server.refuses() => Condition::Refusing,
            health::HealthState::Up => Condition::Working,
        };
        Candidate { backup: member.backup, condition }
    }

    /// Returns the member's weight in force. Its scale is up to 20 times finer, so that a small
    /// weight can rise in steps.
    fn slow_weight(&self, now: ClockReading, member: &TrackedMember) -> u16 {
        let percent = member.server.slow_start_percent(now.now_ms);
        let largest = self.members.values().map(|member| u64::from(member.joiner.weight)).max().unwrap_or(1);
        let fine = (u64::from(u16::MAX) / largest.max(1)).clamp(1, 20);
        let weight = u64::from(member.joiner.weight) * fine * percent / 100;
        u16::try_from(weight.max(1)).unwrap_or(u16::MAX)
    }

    /// Returns the part of its weight that each member gets, by number. The map is empty if each
    /// member gets its whole weight.
    pub(super) fn parts(&self, now: ClockReading) -> BTreeMap<usize, MemberShare> {
        if self.learns() {
            return self.learned_parts(now);
        }
        let weighing = self.group.weighing();
        let members = || self.members.values().filter(|member| member.is_wanted());
        let any_slow = members().any(|member| member.server.wanted_tenths() < 10);
        if weighing.is_none() && !any_slow {
            return BTreeMap::new();
        }
        let known = |member: &TrackedMember| PoolMember {
            weight: member.joiner.weight,
            tenths: member.server.wanted_tenths(),
            signals: member.server.signals(now.now_ms),
        };
        let known: Vec<PoolMember> = members().map(known).collect();
        let parts = shares(weighing, self.group.report_gain_percent, &known);
        members().map(|member| member.id).zip(parts).collect()
    }

    /// Returns the parts of the weight that were learned from members' own reports. A member
    /// without a current report gets the median of the others.
    fn learned_parts(&self, now: ClockReading) -> BTreeMap<usize, MemberShare> {
        let for_ms = self.group.joining.remove_after_ms;
        let part = |member: &TrackedMember| {
            member.load.fresh(now, for_ms).map(|load| (load, member.load.learned.permille()))
        };
        let median = load::median(self.members.values().filter_map(part).map(|(_, part)| part).collect());
        let none_reports = self.members.values().all(|member| part(member).is_none());
        let share = |member: &TrackedMember| {
            let found = part(member);
            let of_most = if none_reports { PERMILLE } else { median };
            let permille =
                found.map_or(of_most, |(_, part)| part) * u64::from(member.server.wanted_tenths()) / 10;
            MemberShare { share: 0, permille, is_known: found.is_some(), load: found.map(|(load, _)| load) }
        };
        self.members.values().map(|member| (member.id, share(member))).collect()
    }

    /// True if the parts of the weight are learned from reports.
    fn learns(&self) -> bool {
        (self.group.choice(), self.group.load) == (Choice::Head, LoadReading::Aged)
    }

    /// Limit of the requests that a member gains by its reports, in percent. Gains by the
    /// director's own measurements have no limit.
    fn gain_percent(&self) -> u64 {
        match self.group.weighing() {
            Some(weighing) if !weighing.needs.contains(&Signal::Load) => u64::MAX,
            _ => self.group.report_gain_percent,
        }
    }

    /// Updates the parts of the weight after a member's new report.
    pub(super) fn learn(&mut self, now: ClockReading, id: usize, load: u64) {
        if !self.learns() {
            return;
        }
        let (for_ms, report_ms) = (self.group.joining.remove_after_ms, self.group.joining.report_ms);
        let counts =
            |member: &&mut TrackedMember| member.is_wanted() && member.load.fresh(now, for_ms).is_some();
        let reporters = self.members.values_mut().filter(counts).map(|member| Reporter {
            weight: member.joiner.weight,
            is_new: member.id == id,
            learned: &mut member.load.learned,
        });
        let mut reporters: Vec<Reporter<'_>> = reporters.collect();
        learn(&mut reporters, now.now_ms, load, report_ms, self.group.report_gain_percent);
    }

    /// Returns the current estimate of a member's load, in thousandths of the paper's unit.
    pub(super) fn load_of(&self, now: ClockReading, member: &TrackedMember, median: u64) -> u64 {
        let for_ms = self.group.joining.remove_after_ms;
        match (self.group.choice(), self.group.load) {
            (Choice::Head, LoadReading::Paper) => member.load.as_in_the_paper(now, for_ms, median),
            (Choice::Head, LoadReading::Aged) => member.load.fresh(now, for_ms).unwrap_or(median),
            _ => member.load.added(),
        }
    }

    /// Returns the median of the members' current reports.
    pub(super) fn median(&self, now: ClockReading) -> u64 {
        let for_ms = self.group.joining.remove_after_ms;
        load::median(self.members.values().filter_map(|member| member.load.fresh(now, for_ms)).collect())
    }

    /// Adds the requests that were dispatched since the last call to members' loads.
    pub(super) fn absorb(&mut self, now: ClockReading) {
        let joining = self.group.joining;
        let is_paper = (self.group.choice(), self.group.load) == (Choice::Head, LoadReading::Paper);
        for member in self.members.values_mut() {
            // As in the paper, a dispatched request counts as load until the member's next report.
            // Without a current report this load decays, or the member would soon get no requests.
            if !is_paper || member.load.fresh(now, joining.remove_after_ms).is_none() {
                member.load.fade(now, joining.report_ms);
            }
        }
        let Some((dispatch, known)) = &mut self.in_force else { return };
        for (id, given) in dispatch.given() {
            let before = known.insert(id, given).unwrap_or_default();
            if let Some(member) = self.members.get_mut(&id) {
                member.load.given(now, given.saturating_sub(before));
            }
        }
    }

    /// True if the [`Dispatch`] in force must be renewed periodically, since loads or slow starts
    /// change with time.
    pub(super) fn is_renewed(&self, now: ClockReading) -> bool {
        let by_load =
            self.group.weighing().is_some() || [Choice::Head, Choice::Two].contains(&self.group.choice());
        let slow = |member: &TrackedMember| member.server.slow_start_percent(now.now_ms) < 100;
        self.members.values().len() > 0 && (by_load || self.members.values().any(slow))
    }
}
