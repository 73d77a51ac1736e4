//! Membership in a group, as the member runs it (section 3.3 of the paper). The member joins once
//! its own server answers. Then it reports its load, and joins again if the director has forgotten
//! it. The caller passes the result of each order before it polls the next order.

use core::fmt;

/// Maximum interval of probes while this host's own server fails, in milliseconds.
const PROBE_MS: u64 = 1_000;
/// Minimum interval between two exchanges with the director because of a LOAD-QUERY, in
/// milliseconds.
const QUERIED_MS: u64 = 1_000;

/// Order to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipOrder {
    /// Probe this host's own server at its URL, and return the result to
    /// [`GroupMembership::probed`].
    Probe,
    /// Send GROUP-ADD, and return the answer to [`GroupMembership::answered`].
    Join,
    /// Send LOAD-INFORM, and return the answer to [`GroupMembership::answered`].
    Report {
        /// True if the message must have a time stamp. The director refuses time stamps of a wrong
        /// clock, and then messages have none.
        is_stamped: bool,
    },
}

/// Answer of the director.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectorAnswer {
    Status(u16),
    /// The director is unreachable or did not answer in time.
    NoAnswer,
    /// The message was not sent, since this host lacks a resource.
    Unsent,
}

/// Reason why this host isn't a member, or may soon not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipTrouble {
    /// This host's own server doesn't answer, so no messages are sent.
    Server,
    /// The director refuses the member, or can't be reached.
    Director(DirectorAnswer),
}

impl fmt::Display for MembershipTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MembershipTrouble::Server => {
                f.write_str("the server doesn't answer at its URL, so no report goes out")
            }
            MembershipTrouble::Director(DirectorAnswer::NoAnswer) => {
                f.write_str("the director can't be reached")
            }
            MembershipTrouble::Director(DirectorAnswer::Unsent) => {
                f.write_str("nothing can be sent to the director")
            }
            MembershipTrouble::Director(DirectorAnswer::Status(status)) => {
                write!(f, "the director refuses it ({status})")
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinState {
    Idle,
    Probing,
    Joining,
    Reporting,
}

/// State of a member, or of a host that wants to join.
#[derive(Clone, Debug)]
pub struct GroupMembership {
    report_ms: u64,
    step: JoinState,
    due_ms: u64,
    is_member: bool,
    /// True if the director may count this host as a member, perhaps by a message whose answer was
    /// lost.
    may_be_known: bool,
    is_stamped: bool,
    joined_ms: Option<u64>,
    /// Start of the last exchange with the director, in milliseconds.
    polled_ms: Option<u64>,
    trouble: Option<MembershipTrouble>,
    /// Last trouble that [`GroupMembership::news`] returned.
    reported_problem: Option<MembershipTrouble>,
}

impl GroupMembership {
    /// Returns the state of a host that joins as soon as its own server answers. `report_ms` is the
    /// interval of its reports.
    pub fn new(now_ms: u64, report_ms: u64) -> GroupMembership {
        GroupMembership {
            report_ms,
            step: JoinState::Idle,
            due_ms: now_ms,
            is_member: false,
            may_be_known: false,
            is_stamped: true,
            joined_ms: None,
            polled_ms: None,
            trouble: None,
            reported_problem: None,
        }
    }

    /// Returns the order that is due; `None` if none is due.
    pub fn poll(&mut self, now_ms: u64) -> Option<MembershipOrder> {
        if self.step != JoinState::Idle || now_ms < self.due_ms {
            return None;
        }
        (self.step, self.polled_ms) = (JoinState::Probing, Some(now_ms));
        Some(MembershipOrder::Probe)
    }

    /// Time of the next work for [`GroupMembership::poll`], in milliseconds.
    pub fn poll_timeout(&self) -> u64 {
        if self.step == JoinState::Idle { self.due_ms } else { u64::MAX }
    }

    /// Applies the result of a probe of this host's own server. Returns the order that follows at
    /// once, if there is one.
    pub fn probed(&mut self, now_ms: u64, works: bool) -> Option<MembershipOrder> {
        if self.step != JoinState::Probing {
            return None;
        }
        if works {
            return Some(self.next_message());
        }
        self.trouble = Some(MembershipTrouble::Server);
        self.rest(now_ms, self.report_ms.min(PROBE_MS));
        None
    }

    fn next_message(&mut self) -> MembershipOrder {
        self.may_be_known = true;
        if self.is_member {
            self.step = JoinState::Reporting;
            MembershipOrder::Report { is_stamped: self.is_stamped }
        } else {
            self.step = JoinState::Joining;
            MembershipOrder::Join
        }
    }

    fn rest(&mut self, now_ms: u64, for_ms: u64) {
        (self.step, self.due_ms) = (JoinState::Idle, now_ms.saturating_add(for_ms));
    }

    /// Applies the director's answer to the last message. Returns the order that follows at once,
    /// if there is one. `draw` is a random number. It spreads over time the messages of members
    /// that started together.
    pub fn answered(&mut self, now_ms: u64, answer: DirectorAnswer, draw: u64) -> Option<MembershipOrder> {
        let was = core::mem::replace(&mut self.step, JoinState::Idle);
        let is_good = matches!(answer, DirectorAnswer::Status(200..=299));
        self.trouble = match self.trouble {
            // Status 429 (too many requests) does not replace the earlier trouble.
            Some(MembershipTrouble::Director(DirectorAnswer::Status(_)))
                if answer == DirectorAnswer::Status(429) =>
            {
                self.trouble
            }
            _ => (!is_good).then_some(MembershipTrouble::Director(answer)),
        };
        let order = match (was, answer) {
            (JoinState::Joining, _) if is_good => {
                (self.is_member, self.is_stamped, self.joined_ms) = (true, true, Some(now_ms));
                // A first report follows at once, so that the member is selected by load.
                Some(self.next_message())
            }
            // The director has forgotten the member. The member joins again at once, unless it
            // joined only a short time ago.
            (JoinState::Reporting, DirectorAnswer::Status(409)) => {
                self.is_member = false;
                let joined_ms = self.joined_ms.unwrap_or_default();
                let again = now_ms.saturating_sub(joined_ms) >= self.report_ms;
                again.then(|| self.next_message())
            }
            // The director refuses the time stamp, probably because a clock was set. Reports
            // without a time stamp are accepted.
            (JoinState::Reporting, DirectorAnswer::Status(422)) => {
                self.is_stamped = false;
                None
            }
            _ => None,
        };
        if order.is_none() {
            let tenth = self.report_ms / 10;
            self.rest(now_ms, self.report_ms - tenth + draw % (2 * tenth + 1));
        }
        order
    }

    /// Applies a LOAD-QUERY of the director. The next exchange is then due soon.
    pub fn queried(&mut self, now_ms: u64) {
        let least_ms = self.polled_ms.map_or(now_ms, |at_ms| at_ms.saturating_add(QUERIED_MS));
        self.due_ms = self.due_ms.min(least_ms.max(now_ms));
    }

    /// Applies a change of the member's own URL. The member then has to join again.
    pub fn rejoin(&mut self) {
        self.is_member = false;
    }

    /// True if GROUP-EXIT has to be sent on leaving.
    pub fn is_to_leave(&self) -> bool {
        self.may_be_known
    }

    /// True if the director has accepted the member, and has not refused it since.
    pub fn is_member(&self) -> bool {
        self.is_member
    }

    /// Reason why this host isn't a member, or may soon not be.
    pub fn trouble(&self) -> Option<MembershipTrouble> {
        self.trouble
    }

    /// Returns the current trouble if it changed since the last call. The inner `None` stands for
    /// no trouble.
    pub fn news(&mut self) -> Option<Option<MembershipTrouble>> {
        let is_news = self.reported_problem != self.trouble;
        self.reported_problem = self.trouble;
        is_news.then_some(self.trouble)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::DirectorAnswer::{NoAnswer, Status};
    use super::MembershipOrder::{Join, Probe, Report};
    use super::*;

    const REPORT: MembershipOrder = Report { is_stamped: true };

    /// Returns a member that joined at time 0 and has reported.
    fn member() -> GroupMembership {
        let mut member = GroupMembership::new(0, 15_000);
        assert_eq!(member.poll(0), Some(Probe));
        assert_eq!(member.probed(0, true), Some(Join));
        assert_eq!(member.answered(0, Status(201), 0), Some(REPORT));
        assert_eq!(member.answered(0, Status(204), 1_500), None);
        member
    }

    #[test]
    fn a_member_joins_when_its_server_answers_and_reports_at_once_and_then_in_intervals() {
        let mut member = GroupMembership::new(0, 15_000);
        assert_eq!((member.poll(0), member.poll(0)), (Some(Probe), None));
        assert_eq!((member.probed(5, false), member.poll_timeout()), (None, 1_005));
        assert_eq!(member.news(), Some(Some(MembershipTrouble::Server)));
        assert!(!member.is_to_leave(), "nobody was told of it");
        assert_eq!((member.poll(1_005), member.probed(1_006, true)), (Some(Probe), Some(Join)));
        assert!(member.is_to_leave());
        assert_eq!(member.answered(1_010, Status(201), 0), Some(REPORT));
        assert_eq!((member.answered(1_020, Status(204), 0), member.poll_timeout()), (None, 1_020 + 13_500));
        assert_eq!((member.news(), member.news()), (Some(None), None));
        assert_eq!(member.poll(14_519), None);
        assert_eq!((member.poll(14_520), member.probed(14_530, true)), (Some(Probe), Some(REPORT)));
        assert_eq!(
            (member.answered(14_530, Status(204), 3_000), member.poll_timeout()),
            (None, 14_530 + 16_500)
        );
    }

    #[test]
    fn a_dead_server_is_not_reported_for() {
        let mut member = member();
        assert_eq!(member.poll(20_000), Some(Probe));
        assert_eq!(member.probed(20_000, false), None);
        assert_eq!((member.poll(21_000), member.probed(21_000, true)), (Some(Probe), Some(REPORT)));
    }

    #[test]
    fn forgetful_director_makes_member_rejoin_with_backoff() {
        let mut member = member();
        assert_eq!((member.poll(20_000), member.probed(20_000, true)), (Some(Probe), Some(REPORT)));
        assert_eq!(member.answered(20_001, Status(409), 0), Some(Join));
        assert_eq!(member.answered(20_002, Status(200), 0), Some(REPORT));
        assert_eq!(member.answered(20_003, Status(409), 0), None);
        assert_eq!(member.poll_timeout(), 20_003 + 13_500);
        assert!(!member.is_member());
    }

    #[test]
    fn refusal_is_reported_once_and_join_retried_after_interval() {
        let mut member = GroupMembership::new(0, 15_000);
        for (times, status) in [401, 401, 429, 403, 413, 503].into_iter().enumerate() {
            let now_ms = times as u64 * 20_000;
            assert_eq!((member.poll(now_ms), member.probed(now_ms, true)), (Some(Probe), Some(Join)));
            assert_eq!(member.answered(now_ms, Status(status), 1_500), None);
            assert_eq!(member.poll_timeout(), now_ms + 15_000);
            let reported_problem = Some(Some(MembershipTrouble::Director(Status(status))));
            assert_eq!(
                member.news(),
                if [1, 2].contains(&times) { None } else { reported_problem },
                "{status}"
            );
        }
        assert_eq!((member.poll(200_000), member.probed(200_000, true)), (Some(Probe), Some(Join)));
        assert_eq!(member.answered(200_000, NoAnswer, 0), None);
        assert!(member.is_to_leave(), "the message may have come there");
    }

    #[test]
    fn refused_timestamp_is_omitted_until_rejoin() {
        let mut member = member();
        assert_eq!((member.poll(20_000), member.probed(20_000, true)), (Some(Probe), Some(REPORT)));
        assert_eq!((member.answered(20_000, Status(422), 0), member.poll_timeout()), (None, 33_500));
        let unstamped = Some(Report { is_stamped: false });
        assert_eq!((member.poll(40_000), member.probed(40_000, true)), (Some(Probe), unstamped));
        assert_eq!(member.answered(40_000, Status(409), 0), Some(Join));
        assert_eq!(member.answered(40_000, Status(201), 0), Some(REPORT));
    }

    #[test]
    fn a_query_is_answered_by_a_report_and_many_by_one_in_a_second() {
        let mut member = member();
        member.queried(100);
        assert_eq!((member.poll(999), member.poll(1_000)), (None, Some(Probe)));
        member.queried(1_001);
        assert_eq!(member.poll(1_002), None, "one is under way");
        assert_eq!(member.probed(1_003, true), Some(REPORT));
        assert_eq!(member.answered(1_003, Status(204), 0), None);
        (0..100).for_each(|_| member.queried(1_004));
        assert_eq!((member.poll(1_999), member.poll(2_000)), (None, Some(Probe)));
        assert_eq!(member.probed(2_001, false), None);
        (0..100).for_each(|_| member.queried(2_002));
        assert_eq!(
            (member.poll(2_999), member.poll(3_000)),
            (None, Some(Probe)),
            "nor is a dead server asked more often"
        );
    }

    proptest! {
        #[test]
        fn messages_go_out_no_faster_than_in_intervals_and_never_end(
            answers in proptest::collection::vec((prop_oneof![Just(None), (200u16..600).prop_map(Some)], any::<bool>(), any::<u64>()), 1..60),
            report_ms in 100u64..60_000,
        ) {
            let mut member = GroupMembership::new(0, report_ms);
            let mut sent = Vec::new();
            let mut now_ms = 0;
            for (answer, works, draw) in answers {
                now_ms = now_ms.max(member.poll_timeout());
                prop_assert!(now_ms != u64::MAX);
                prop_assert_eq!(member.poll(now_ms), Some(Probe));
                let mut order = member.probed(now_ms, works);
                let mut burst = 0;
                while order.is_some() {
                    burst += 1;
                    sent.push(now_ms);
                    order = member.answered(now_ms, answer.map_or(NoAnswer, Status), draw);
                }
                prop_assert!(burst <= 3, "a report, a join and a report");
                prop_assert!(member.poll_timeout() > now_ms);
            }
            let all = sent.len() as u64;
            let intervals = now_ms / (report_ms - report_ms / 10) + 1;
            prop_assert!(all <= 3 * intervals);
        }
    }
}
