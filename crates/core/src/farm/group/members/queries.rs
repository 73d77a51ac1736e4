//! Results of load queries and checks of members.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{MemberChange, MemberEvent, MemberOrder, Members};
use crate::pool::{ClockReading, DueChecks, Effect, Fact, ServerChange, ServerEvent};

/// Result of sending a LOAD-QUERY. The load itself arrives in a separate message of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryResult {
    /// The connection was refused, or the URL that is named for load queries answered with a client
    /// error.
    Refused,
    /// The query was received, or it is unknown if it was received.
    Unanswered,
}

impl QueryResult {
    /// Returns the result for the HTTP status of the response. At a URL that is not named for
    /// queries, a server without support answers 405, 501 or 404, which is no refusal by the
    /// member.
    pub fn of_status(status: u16, is_named: bool) -> QueryResult {
        if is_named && (400..500).contains(&status) { QueryResult::Refused } else { QueryResult::Unanswered }
    }
}

impl Members {
    /// Applies the result of a LOAD-QUERY to a silent member. As in the paper, a member that
    /// refuses the query is removed, and may join again. Listed members are never removed.
    pub fn queried(&mut self, now: ClockReading, member: usize, queried: QueryResult) {
        let joining = self.group.joining;
        let is_gone = self.members.get(&member).is_some_and(|member| {
            // A member that has reported since the query is alive.
            member.joined && member.listed.is_none() && member.is_silent(now, joining.query_after_ms)
        });
        if is_gone && queried == QueryResult::Refused {
            self.remove_member(member, MemberChange::Refused);
            self.changed(now);
        }
    }

    /// Applies the result of a probe or a report query.
    pub fn apply_fact(&mut self, now: ClockReading, member: usize, fact: Fact) {
        if let Some(change) = self.members.apply_fact(&member, fact, now.now_ms) {
            self.follow_change(now, member, change);
        }
    }

    /// Orders the probes and report queries that are due.
    pub(super) fn order_due_checks(&mut self, now: ClockReading, orders: &mut Vec<MemberOrder>) {
        for (id, DueChecks { probe, query, change }) in self.members.poll(now) {
            let Some(member) = self.members.get(&id) else { continue };
            let to = || (member.joiner.url.clone(), member.reach(&self.group));
            if probe {
                let ((url, reach), address) = (to(), member.health_address);
                let check = Arc::clone(self.settings.check());
                orders.push(MemberOrder::Probe { member: id, url, address, check, reach });
            }
            if let Some(settings) = self.settings.report().filter(|_| query) {
                let ((url, reach), settings) = (to(), Arc::clone(settings));
                orders.push(MemberOrder::FetchReport { member: id, url, settings, reach });
            }
            self.follow_change(now, id, change);
        }
    }

    /// Publishes the events of a member's change, and replaces the selection if needed.
    pub(super) fn follow_change(&mut self, now: ClockReading, member: usize, change: ServerChange) {
        let Some(member) = self.members.get(&member) else { return };
        let event = |event| (member.name().to_string(), MemberEvent::Server(event));
        self.is_to_save |= change.events.iter().any(|event| matches!(event, ServerEvent::Health(_)));
        self.events.extend(change.events.into_iter().map(event));
        if change.effect >= Effect::Weight {
            self.publish_at_ms = self.publish_at_ms.min(now.now_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use core::net::IpAddr;

    use super::*;
    use crate::farm::group::{DispatchRequest, Group, GroupMember, Joiner, MessageOrigin, example};
    use crate::net::http::Url;
    use crate::path::seed::Seed;
    use crate::pool::ServerState;
    use crate::pool::policy::by_name;
    use crate::pool::report::Report;
    use crate::pool::{Period, ReportKind, Reporting};

    fn at(now_ms: u64) -> ClockReading {
        ClockReading { now_ms, unix_ms: 1_800_000_000_000 + now_ms, ..ClockReading::default() }
    }

    fn listed(name: &str) -> GroupMember {
        let url = Url::parse(&alloc::format!("http://{name}")).unwrap();
        GroupMember {
            name: name.into(),
            url,
            weight: 1,
            backup: false,
            health_address: None,
            anonymous: false,
            control: None,
        }
    }

    fn silent(listed_too: bool) -> (Members, usize) {
        let members = if listed_too { vec![listed("192.0.2.31")] } else { vec![] };
        let group = Group { members, ..example::group() };
        let mut members = Members::new(at(0), &group, Seed(1, 2), None);
        let origin = MessageOrigin { from: Some(IpAddr::from([192, 0, 2, 31])), ..MessageOrigin::default() };
        members.join(at(0), &origin, &[Joiner::parse("http://192.0.2.31").unwrap()]).unwrap();
        let orders = members.poll(at(50_000));
        assert!(
            orders.iter().any(|order| matches!(order, MemberOrder::Query { is_named: false, .. })),
            "{orders:?}"
        );
        (members, 0)
    }

    #[test]
    fn member_refusing_queries_is_removed_unless_listed_or_reporting() {
        let (mut members, id) = silent(false);
        members.queried(at(50_001), id, QueryResult::Unanswered);
        assert_eq!(members.snapshot(at(50_001)).len(), 1);
        members.queried(at(50_001), id, QueryResult::Refused);
        assert!(members.snapshot(at(50_001)).is_empty());
        members.queried(at(50_001), id, QueryResult::Refused);

        let (mut members, id) = silent(true);
        members.queried(at(50_001), id, QueryResult::Refused);
        assert_eq!(members.snapshot(at(50_001)).len(), 1);

        let (mut members, id) = silent(false);
        let url = Some(Url::parse("http://192.0.2.31").unwrap());
        let report = super::super::LoadInform { load: 1.0, stamp_ms: None, url };
        members.inform(at(50_001), None, &report).unwrap();
        members.queried(at(50_002), id, QueryResult::Refused);
        assert_eq!(members.snapshot(at(50_002)).len(), 1, "its report came first");
    }

    #[test]
    fn statuses_refuse_where_the_member_named_the_place() {
        assert_eq!(QueryResult::of_status(404, true), QueryResult::Refused);
        for (status, is_named) in [(204, true), (501, true), (503, true), (404, false), (405, false)] {
            assert_eq!(QueryResult::of_status(status, is_named), QueryResult::Unanswered, "{status}");
        }
    }

    fn asking(policy: &str) -> Members {
        let policy = by_name(policy).unwrap();
        let report = Reporting {
            kind: ReportKind::AgentCheck,
            port: 9,
            interval: Period::always(1_000),
            timeout_ms: 100,
        };
        let members = vec![listed("192.0.2.31"), listed("192.0.2.32")];
        let group = Group { policy, members, report: Some(report), ..example::group() };
        Members::new(at(0), &group, Seed(1, 2), None)
    }

    fn shares(members: &mut Members, now_ms: u64) -> [usize; 2] {
        let dispatch = members.dispatch(at(now_ms));
        let wanted = DispatchRequest { client: [10, 0, 0, 1].into(), method: "GET", host: b"h", target: "/" };
        let first = (0..300).filter(|_| dispatch.choose(&wanted).unwrap().id == 0).count();
        [first, 300 - first]
    }

    #[test]
    fn due_members_are_queried_and_answers_set_turns() {
        let mut members = asking("utilisation");
        assert_eq!(shares(&mut members, 0), [150, 150]);
        let queried = |orders: Vec<MemberOrder>| {
            orders.iter().filter(|order| matches!(order, MemberOrder::FetchReport { .. })).count()
        };
        assert_eq!(queried(members.poll(at(1_000))), 2);
        assert_eq!(queried(members.poll(at(1_001))), 0);
        assert!(members.poll_timeout() <= 2_000);
        let utilised = |permille| Report { utilisation_permille: Some(permille), ..Report::default() };
        members.apply_fact(at(1_100), 0, Fact::Reported(Ok(utilised(200))));
        members.apply_fact(at(1_100), 1, Fact::Reported(Ok(utilised(400))));
        let [first, second] = shares(&mut members, 1_100);
        assert!(first.abs_diff(200) <= 2 && second.abs_diff(100) <= 2, "{first} {second}");
        assert!(
            members.snapshot(at(1_200))[1].cause.starts_with("reported 0.40 0 s ago, 50 % of its weight")
        );
        assert_eq!(queried(members.poll(at(20_000))), 2);
        assert_eq!(shares(&mut members, 20_000), [150, 150], "they said nothing for too long");
    }

    #[test]
    fn answers_drain_a_member_as_long_as_another_takes_clients() {
        let mut members = asking("round-robin");
        let refusal = || Ok(Report { percent: Some(0), ..Report::default() });
        members.apply_fact(at(1), 0, Fact::Reported(refusal()));
        assert_eq!(shares(&mut members, 1), [0, 300]);
        assert_eq!(members.snapshot(at(1))[0].state, ServerState::Draining);
        let events = members.take_events();
        assert!(
            events.iter().any(|(_, event)| *event == MemberEvent::Server(ServerEvent::Refuses(true))),
            "{events:?}"
        );
        members.apply_fact(at(2), 1, Fact::Reported(refusal()));
        assert_eq!(shares(&mut members, 2), [150, 150]);
        members.apply_fact(at(3), 0, Fact::Reported(Ok(Report { percent: Some(50), ..Report::default() })));
        members.apply_fact(at(3), 1, Fact::Reported(Ok(Report { percent: Some(100), ..Report::default() })));
        let [first, second] = shares(&mut members, 3);
        assert!(first.abs_diff(100) <= 2, "{first} {second}");
    }
}
