//! Servers of a name alone: they are probed, and asked for their load, from here.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use evener_core::director::{LoadQuery, ServerState};
use evener_core::farm::Reporting;
use evener_core::farm::group::{Group, MemberState, Members, Moment, Order};
use evener_core::farm::health::Failure;
use evener_core::farm::heard::{Change, Heard};
use evener_core::farm::plan::{ServerName, identity};
use evener_core::farm::report::{BadReport, Report};
use evener_core::net::http::Url;
use evener_core::path::sessions::Seed;
use tokio::sync::mpsc;

use super::candidates::{Candidate, of_member};
use crate::control::groups::is_known;
use crate::events::{Bus, Event};
use crate::io::report;
use crate::redirect::probe_member;

/// What came of a question to one server.
pub(in crate::control) struct Told {
    pub(super) name: String,
    server: usize,
    what: What,
}

enum What {
    Probed(Result<u64, Failure>),
    Reported(Result<Report, BadReport>),
}

/// The servers of one name.
pub(super) struct OwnServers {
    group: Group,
    report: Option<Reporting>,
    members: Members,
    /// What they said of their load, by their numbers.
    heard: BTreeMap<usize, Heard>,
}

impl OwnServers {
    pub(super) fn new(now: Moment, group: &Group, report: Option<&Reporting>, key: Seed) -> OwnServers {
        let members = Members::new(now, group, key, None);
        let mut own =
            OwnServers { group: group.clone(), report: report.cloned(), members, heard: BTreeMap::new() };
        own.match_heard(now);
        own
    }

    /// Goes on with another file's; what is known of servers that stay is kept.
    pub(super) fn reload(&mut self, now: Moment, group: &Group, report: Option<&Reporting>) {
        self.members.reload(now, group);
        self.group = group.clone();
        if self.report.as_ref() != report {
            self.heard.clear();
            self.report = report.cloned();
        }
        self.match_heard(now);
    }

    fn match_heard(&mut self, now: Moment) {
        let Some(settings) = &self.report else { return };
        let mut before = std::mem::take(&mut self.heard);
        for member in self.members.snapshot(now) {
            let spread = identity(&self.group.name, &member.name);
            let heard = before.remove(&member.id);
            let heard = heard.unwrap_or_else(|| Heard::new(settings, spread, now.now_ms));
            self.heard.insert(member.id, heard);
        }
    }

    /// When there is something to do next, in milliseconds of the monotonic clock.
    pub(super) fn next_at(&self) -> u64 {
        let asking = self.heard.values().map(Heard::ask_at_ms).min();
        asking.unwrap_or(u64::MAX).min(self.members.poll_timeout())
    }

    /// Whether it is known of every server whether it lives.
    pub(super) fn are_known(&self, now: Moment) -> bool {
        self.members.snapshot(now).iter().all(is_known)
    }

    /// Takes in an answer, or that there was none. True if that is news.
    pub(super) fn take(&mut self, now: Moment, told: Told, bus: &Bus) -> bool {
        match told.what {
            What::Probed(result) => {
                self.members.probed(now, told.server, result);
                false
            }
            What::Reported(result) => {
                let change = self.heard.get_mut(&told.server).map(|heard| heard.take(result, now.now_ms));
                self.tell(now, told.server, change.unwrap_or_default(), bus)
            }
        }
    }

    fn tell(&self, now: Moment, server: usize, change: Change, bus: &Bus) -> bool {
        let member = self.members.snapshot(now).into_iter().find(|member| member.id == server);
        if let Some(member) = member {
            let server = ServerName { service: self.group.name.clone(), server: member.name };
            if let Some(refuses) = change.refuses {
                let event = evener_core::director::Event::Wished { server: server.clone(), refuses };
                bus.tell(Event::Farm(event));
            }
            if let Some(error) = change.turned {
                bus.tell(Event::Farm(evener_core::director::Event::Reports { server, error }));
            }
        }
        change.is_news
    }

    /// Asks whoever is due. True if something is known that was not.
    pub(super) fn settle(&mut self, now: Moment, bus: &Bus, results: &mpsc::Sender<Told>) -> bool {
        let mut is_news = false;
        for order in self.members.poll(now) {
            match order {
                Order::Probe { member, url, .. } => self.probe(member, url, results),
                Order::Tell(event) => {
                    bus.tell(Event::Member { service: self.group.name.clone(), event: Box::new(event) });
                }
                Order::Publish => is_news = true,
                // Nobody joins, and nobody is asked by the group's messages.
                Order::Save | Order::Query { .. } => {}
            }
        }
        let Some(settings) = self.report.clone() else { return is_news };
        let due = |(server, heard): (&usize, &Heard)| (heard.ask_at_ms() <= now.now_ms).then_some(*server);
        let due: Vec<usize> = self.heard.iter().filter_map(due).collect();
        for server in due {
            let change = self.heard.get_mut(&server).map(|heard| heard.asked(&settings, now.now_ms));
            is_news |= self.tell(now, server, change.unwrap_or_default(), bus);
            self.ask(now, server, settings.clone(), results);
        }
        is_news
    }

    fn probe(&self, server: usize, url: Url, results: &mpsc::Sender<Told>) {
        let (results, group) = (results.clone(), self.group.clone());
        tokio::spawn(async move {
            let what = What::Probed(probe_member(&url, None, &group.health, &[]).await);
            // The loop ends first only when the daemon does.
            let _ = results.send(Told { name: group.name, server, what }).await;
        });
    }

    fn ask(&self, now: Moment, server: usize, settings: Reporting, results: &mpsc::Sender<Told>) {
        let members = self.members.snapshot(now);
        let member = members.iter().find(|member| member.id == server);
        let Some((member, address)) = member.and_then(|member| Some((member, member.joiner.url.address()?)))
        else {
            return;
        };
        let name = ServerName { service: self.group.name.clone(), server: member.name.clone() };
        let query = LoadQuery { server: name, to: SocketAddr::new(address, settings.port), settings };
        let results = results.clone();
        tokio::spawn(async move {
            let what = What::Reported(report::ask(&query).await);
            let _ = results.send(Told { name: query.server.service, server, what }).await;
        });
    }

    /// Who may be given.
    pub(super) fn candidates(&self, now: Moment) -> Vec<Candidate> {
        let members = self.members.snapshot(now);
        let all = |may_refuse| -> Vec<Candidate> {
            members.iter().filter_map(|member| self.candidate(member, may_refuse, now)).collect()
        };
        let willing = all(true);
        // Reports alone leave no name without servers.
        if willing.iter().any(|candidate| candidate.lives) { willing } else { all(false) }
    }

    fn candidate(&self, member: &MemberState, may_refuse: bool, now: Moment) -> Option<Candidate> {
        let mut candidate = of_member(member)?;
        let Some(heard) = self.heard.get(&member.id) else { return Some(candidate) };
        if let Some((report, age_ms)) = heard.latest(now.now_ms) {
            candidate.known.signals.report = report;
            candidate.known.signals.age_ms = Some(age_ms);
        }
        candidate.known.tenths = candidate.known.tenths.min(heard.tenths());
        if candidate.lives && may_refuse && heard.refuses() {
            candidate.lives = false;
            candidate.state = ServerState::Draining.name();
            candidate.reason = Some("drained by its own report".to_owned());
        }
        Some(candidate)
    }
}
