//! Server groups of a farm, with their members and orders.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::event::Event;
use super::moment::Moment;
use super::operator::OperatorStates;
use crate::farm::group::{Group, MemberEvent, MemberOrder, MemberSnapshot, Members, QueryResult};
use crate::farm::plan::ServerName;
use crate::path::seed::Seed;
use crate::pool::{ClockReading, Fact, OperatorState};

#[derive(Clone, Debug)]
pub enum MemberFact {
    /// Result of a probe or of a report query.
    Server(Fact),
    /// Result of a LOAD-QUERY message to a member.
    Queried(QueryResult),
}

/// State of a group at one time.
#[derive(Clone, Debug)]
pub struct GroupSnapshot {
    /// Settings of the group.
    pub group: Arc<Group>,
    /// Members in the order of joining.
    pub members: Vec<MemberSnapshot>,
    /// Time of the snapshot, in milliseconds.
    pub at_ms: u64,
}

#[derive(Clone, Debug)]
struct GroupState {
    group: Arc<Group>,
    members: Members,
    /// Time of the next work, in milliseconds.
    due_ms: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Groups {
    running: BTreeMap<String, GroupState>,
    seed: Seed,
    snapshots: BTreeMap<String, Arc<GroupSnapshot>>,
    has_changed: bool,
    orders: VecDeque<(String, MemberOrder)>,
    events: Vec<Event>,
}

impl Groups {
    /// Returns an empty set. `seed` is the secret for random choices.
    pub(super) fn new(seed: Seed) -> Groups {
        Groups {
            running: BTreeMap::new(),
            seed,
            snapshots: BTreeMap::new(),
            has_changed: true,
            orders: VecDeque::new(),
            events: Vec::new(),
        }
    }

    /// Applies the groups of a reloaded file. Known members stay. A new group restores its members
    /// from its saved state.
    pub(super) fn reload(
        &mut self,
        now: Moment,
        groups: &[Arc<Group>],
        kept: &BTreeMap<String, String>,
        operator: &OperatorStates,
    ) {
        self.running.retain(|name, _| groups.iter().any(|group| group.name == *name));
        self.snapshots.retain(|name, _| self.running.contains_key(name));
        self.has_changed = true;
        for group in groups {
            match self.running.get_mut(&group.name) {
                Some(running) => {
                    running.group = Arc::clone(group);
                    running.members.reload(now.clocks(), group);
                }
                None => {
                    let record = kept.get(&group.name).map(String::as_str);
                    let mut members = Members::new(now.clocks(), group, self.seed, record);
                    for (server, state) in operator.iter().filter(|(server, _)| server.service == *group.name)
                    {
                        members.set_operator_state(now.clocks(), &server.server, *state);
                    }
                    let running = GroupState { group: Arc::clone(group), members, due_ms: 0 };
                    self.running.insert(group.name.clone(), running);
                }
            }
            self.settle(now, &group.name);
        }
    }

    /// True if the farm has a group of this name.
    pub(super) fn has(&self, group: &str) -> bool {
        self.running.contains_key(group)
    }

    /// Applies the result of a group's order.
    pub(super) fn apply_fact(&mut self, now: Moment, group: &str, member: usize, fact: MemberFact) {
        let Some(running) = self.running.get_mut(group) else { return };
        match fact {
            MemberFact::Server(fact) => running.members.apply_fact(now.clocks(), member, fact),
            MemberFact::Queried(queried) => running.members.queried(now.clocks(), member, queried),
        }
        self.settle(now, group);
    }

    /// Calls `message`, which applies a request to the members of a group. Returns `None` if there
    /// is no such group. If the request is refused (`Err`), nothing changes.
    pub(super) fn message<T>(
        &mut self,
        now: Moment,
        group: &str,
        message: impl FnOnce(ClockReading, &Group, &mut Members) -> Result<T, T>,
    ) -> Option<T> {
        let running = self.running.get_mut(group)?;
        match message(now.clocks(), &running.group, &mut running.members) {
            Ok(answer) => {
                self.settle(now, group);
                Some(answer)
            }
            Err(answer) => Some(answer),
        }
    }

    pub(super) fn set_operator_state(&mut self, now: Moment, server: &ServerName, state: OperatorState) {
        if let Some(running) = self.running.get_mut(&server.service) {
            running.members.set_operator_state(now.clocks(), &server.server, state);
            self.settle(now, &server.service);
        }
    }

    pub(super) fn members(&self, group: &str) -> Option<&Members> {
        self.running.get(group).map(|running| &running.members)
    }

    /// Does the due work of all groups.
    pub(super) fn time(&mut self, now: Moment) {
        let due = self.running.iter().filter(|(_, running)| running.due_ms <= now.ms);
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        due.iter().for_each(|name| self.settle(now, name));
    }

    /// Time of the next work, in milliseconds.
    pub(super) fn next_at(&self) -> u64 {
        self.running.values().map(|running| running.due_ms).min().unwrap_or(u64::MAX)
    }

    /// True if each group has a working member, or no members at all.
    pub(super) fn are_serving(&self, now: Moment) -> bool {
        self.running.values().all(|running| running.members.are_serving(now.clocks()))
    }

    /// True if every member has a probe result.
    pub(super) fn are_settled(&self) -> bool {
        self.running.values().all(|running| running.members.are_settled())
    }

    pub(super) fn poll_order(&mut self) -> Option<(String, MemberOrder)> {
        self.orders.pop_front()
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.events)
    }

    /// Returns the snapshots of all groups, sorted by name; `None` if no group has changed since
    /// the last call.
    pub(super) fn snapshot(&mut self) -> Option<Vec<Arc<GroupSnapshot>>> {
        core::mem::take(&mut self.has_changed).then(|| self.snapshots.values().cloned().collect())
    }

    /// Collects the orders and events of a group and updates its snapshot.
    fn settle(&mut self, now: Moment, name: &str) {
        let Some(running) = self.running.get_mut(name) else { return };
        let orders = running.members.poll(now.clocks());
        self.orders.extend(orders.into_iter().map(|order| (name.to_string(), order)));
        for (member, event) in running.members.take_events() {
            let server = ServerName { service: name.to_string(), server: member };
            self.events.extend(match event {
                MemberEvent::Changed(change) => Some(Event::Member { member: server, change }),
                MemberEvent::Server(event) => Event::of_member(server, event),
            });
        }
        running.due_ms = running.members.poll_timeout();
        let snapshot = GroupSnapshot {
            group: Arc::clone(&running.group),
            members: running.members.snapshot(now.clocks()),
            at_ms: now.ms,
        };
        self.snapshots.insert(name.to_string(), Arc::new(snapshot));
        self.has_changed = true;
    }
}
