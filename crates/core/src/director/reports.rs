//! Servers' own reports of their load: asked for in turn, believed for a while.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::{Director, Event, Output};
use crate::farm::Reporting;
use crate::farm::plan::{ServerName, WHOLE, identity};
use crate::farm::report::{BadReport, Claim, Report};

/// After so many questions without a good answer a report is too old, and after this time at least, in milliseconds.
const EXPIRES_INTERVALS: u64 = 3;
const EXPIRES_MS: u64 = 10_000;

/// A question that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadQuery {
    /// Whom to ask.
    pub server: ServerName,
    /// Where: the server's own address.
    pub to: SocketAddr,
    /// How, and how long it may take.
    pub settings: Reporting,
}

/// What servers have said.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    servers: BTreeMap<ServerName, Heard>,
    /// No question is due before this time, in milliseconds.
    from_ms: u64,
    /// Whether anything came since the snapshot was made.
    pub(super) news: bool,
}

/// What one server has said.
#[derive(Clone, Debug, Default)]
struct Heard {
    ask_at_ms: u64,
    last: Option<(Report, u64)>,
    wish: Wish,
    /// Of each kind, how many were not believed.
    bad: BTreeMap<BadReport, u64>,
    error: Option<BadReport>,
}

/// How much of its weight a server wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wish {
    tenths: u16,
    refuses: bool,
}

impl Default for Wish {
    fn default() -> Self {
        Wish { tenths: WHOLE, refuses: false }
    }
}

impl Wish {
    /// Rounded to tenths, but for nothing, which only 0 % means: as an agent's 0 % does elsewhere, that drains.
    fn of(report: &Report) -> Wish {
        let percent = report.percent.unwrap_or(100).min(100);
        Wish {
            tenths: ((percent + 5) / 10).clamp(1, WHOLE),
            refuses: percent == 0 || report.claim == Some(Claim::Refuses),
        }
    }
}

/// What is known of a server's reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportsSnapshot {
    /// How many were not believed, by reason.
    pub bad: BTreeMap<BadReport, u64>,
    /// Why the last one wasn't, if it was not.
    pub error: Option<BadReport>,
}

impl Reports {
    /// The last report of a server, and how old it is, in milliseconds.
    pub(super) fn latest(&self, server: &ServerName, now_ms: u64) -> Option<(Report, u64)> {
        let (report, at_ms) = self.servers.get(server)?.last?;
        Some((report, now_ms.saturating_sub(at_ms)))
    }

    /// Of its weight, how many tenths a server wants.
    pub(super) fn tenths(&self, server: &ServerName) -> u16 {
        self.servers.get(server).map_or(WHOLE, |heard| heard.wish.tenths)
    }

    /// Whether a server wants no new sessions.
    pub(super) fn refuses(&self, server: &ServerName) -> bool {
        self.servers.get(server).is_some_and(|heard| heard.wish.refuses)
    }

    /// What became of a server's reports.
    pub(super) fn seen(&self, server: &ServerName) -> ReportsSnapshot {
        let seen = |heard: &Heard| ReportsSnapshot { bad: heard.bad.clone(), error: heard.error };
        self.servers.get(server).map(seen).unwrap_or_default()
    }

    /// When the next question is due, in milliseconds.
    pub(super) fn next_at(&self) -> u64 {
        if self.servers.is_empty() { u64::MAX } else { self.from_ms }
    }
}

impl Director {
    /// Follows who is to be asked. The first questions are spread over an interval, so that not all answers come at once.
    pub(super) fn match_reports(&mut self, now_ms: u64) {
        let mut servers = BTreeMap::new();
        for (service, reporting) in self.farm.services.iter().filter_map(|s| Some((s, s.report.as_ref()?))) {
            for member in self.membership.members(&service.name) {
                let name = ServerName { service: service.name.clone(), server: member.name };
                let first = || {
                    let spread = identity(&name.service, &name.server) % reporting.interval_ms.max(1);
                    Heard { ask_at_ms: now_ms.saturating_add(spread), ..Heard::default() }
                };
                let heard = self.reports.servers.remove(&name).unwrap_or_else(first);
                servers.insert(name, heard);
            }
        }
        self.reports.servers = servers;
        self.schedule_questions();
    }

    /// Asks whoever is due, and forgets what is too old.
    pub(super) fn ask_due(&mut self, now_ms: u64) {
        if now_ms < self.reports.next_at() {
            return;
        }
        let due = self.reports.servers.iter().filter(|(_, heard)| heard.ask_at_ms <= now_ms);
        let due: Vec<ServerName> = due.map(|(name, _)| name.clone()).collect();
        for server in due {
            let Some(settings) = self.reporting(&server).cloned() else { continue };
            self.forget_old_report(&server, &settings, now_ms);
            if let Some(heard) = self.reports.servers.get_mut(&server) {
                heard.ask_at_ms = now_ms.saturating_add(settings.interval_ms.max(1));
            }
            if let Some(to) = self.report_address(&server) {
                let to = SocketAddr::new(to, settings.port);
                self.outputs.push_back(Output::LoadQuery(LoadQuery { server, to, settings }));
            }
        }
        self.schedule_questions();
    }

    /// Takes in an answer, or that there was none.
    pub(super) fn reported(&mut self, server: &ServerName, result: Result<Report, BadReport>, now_ms: u64) {
        let Some(heard) = self.reports.servers.get_mut(server) else { return };
        self.reports.news = true;
        let error = result.err();
        let turned = heard.error != error && heard.error.is_some() != error.is_some();
        heard.error = error;
        match result {
            Ok(report) => {
                heard.last = Some((report, now_ms));
                self.wish(server, Wish::of(&report));
            }
            Err(bad) => *heard.bad.entry(bad).or_default() += 1,
        }
        if turned {
            self.tell(Event::Reports { server: server.clone(), error });
        }
    }

    /// A report that is too old means nothing any more, and what it wished neither.
    fn forget_old_report(&mut self, server: &ServerName, settings: &Reporting, now_ms: u64) {
        let expires_ms = (settings.interval_ms.saturating_mul(EXPIRES_INTERVALS)).max(EXPIRES_MS);
        let is_old = self.reports.latest(server, now_ms).is_some_and(|(_, age_ms)| age_ms >= expires_ms);
        if !is_old {
            return;
        }
        self.reports.news = true;
        if let Some(heard) = self.reports.servers.get_mut(server) {
            heard.last = None;
        }
        self.wish(server, Wish::default());
    }

    /// Follows how much of its weight a server wants.
    fn wish(&mut self, server: &ServerName, wish: Wish) {
        let Some(heard) = self.reports.servers.get_mut(server) else { return };
        let was = core::mem::replace(&mut heard.wish, wish);
        if was.refuses != wish.refuses {
            self.tell(Event::Wished { server: server.clone(), refuses: wish.refuses });
        }
        if was != wish {
            self.replan_wanted = true;
            self.has_changed = true;
        }
    }

    fn reporting(&self, server: &ServerName) -> Option<&Reporting> {
        self.farm.service(&server.service)?.report.as_ref()
    }

    fn report_address(&self, server: &ServerName) -> Option<core::net::IpAddr> {
        let member = self.membership.member(&server.service, &server.server)?;
        member.address.or_else(|| self.known_address(&member))
    }

    fn schedule_questions(&mut self) {
        let next = self.reports.servers.values().map(|heard| heard.ask_at_ms).min();
        self.reports.from_ms = next.unwrap_or(u64::MAX);
    }
}
