//! Servers' own reports of their load: asked for in turn, believed for a while.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::{Director, Event, LoadQuery, Output};
use crate::farm::plan::{ServerName, identity};
use crate::pool::Reporting;
use crate::pool::WHOLE;
use crate::pool::report::{BadReport, Report};
use crate::pool::reports::{Change, Heard, ReportsSnapshot};

/// What servers have said.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    servers: BTreeMap<ServerName, Heard>,
    /// No question is due before this time, in milliseconds.
    from_ms: u64,
    /// Whether anything came since the snapshot was made.
    pub(super) news: bool,
}

impl Reports {
    /// The last report of a server, and how old it is, in milliseconds.
    pub(super) fn latest(&self, server: &ServerName, now_ms: u64) -> Option<(Report, u64)> {
        self.servers.get(server)?.latest(now_ms)
    }

    /// Of its weight, how many tenths a server wants.
    pub(super) fn tenths(&self, server: &ServerName) -> u16 {
        self.servers.get(server).map_or(WHOLE, Heard::tenths)
    }

    /// Whether a server wants no new sessions.
    pub(super) fn refuses(&self, server: &ServerName) -> bool {
        self.servers.get(server).is_some_and(Heard::refuses)
    }

    /// What became of a server's reports.
    pub(super) fn seen(&self, server: &ServerName) -> ReportsSnapshot {
        self.servers.get(server).map(Heard::seen).unwrap_or_default()
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
                let spread = || identity(&name.service, &name.server);
                let heard = self.reports.servers.remove(&name);
                let heard = heard.unwrap_or_else(|| Heard::new(reporting, spread(), now_ms));
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
        let due = self.reports.servers.iter().filter(|(_, heard)| heard.ask_at_ms() <= now_ms);
        let due: Vec<ServerName> = due.map(|(name, _)| name.clone()).collect();
        for server in due {
            let Some(settings) = self.reporting(&server).cloned() else { continue };
            let Some(heard) = self.reports.servers.get_mut(&server) else { continue };
            let change = heard.asked(&settings, now_ms);
            self.follow_change(&server, change);
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
        let change = heard.take(result, now_ms);
        self.follow_change(server, change);
    }

    fn follow_change(&mut self, server: &ServerName, change: Change) {
        self.reports.news |= change.is_news;
        if let Some(refuses) = change.refuses {
            self.tell(Event::Wished { server: server.clone(), refuses });
        }
        if let Some(error) = change.turned {
            self.tell(Event::Reports { server: server.clone(), error });
        }
        self.replan_wanted |= change.wishes;
        self.has_changed |= change.wishes;
    }

    fn reporting(&self, server: &ServerName) -> Option<&Reporting> {
        self.farm.service(&server.service)?.report.as_ref()
    }

    fn report_address(&self, server: &ServerName) -> Option<core::net::IpAddr> {
        let member = self.membership.member(&server.service, &server.server)?;
        member.address.or_else(|| self.known_address(&member))
    }

    fn schedule_questions(&mut self) {
        let next = self.reports.servers.values().map(Heard::ask_at_ms).min();
        self.reports.from_ms = next.unwrap_or(u64::MAX);
    }
}
