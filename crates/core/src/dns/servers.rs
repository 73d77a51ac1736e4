//! Servers that are listed for one name alone: whether they work, what they say of their load, and what is due.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::AtomicU64;

use crate::farm::group::{MemberChange, State};
use crate::pool::health::{self, Failure, Health};
use crate::pool::report::{BadReport, Report};
use crate::pool::reports::{Change, Heard};
use crate::pool::shares::Known;
use crate::pool::signals::Signals;
use crate::pool::{HealthCheck, Reporting};

/// Shares of who starts slowly are made anew so often, in milliseconds.
const RENEW_MS: u64 = 500;

/// A server of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnServer {
    /// Its name, unique among the servers of a name; `None`: its address is its name.
    pub name: Option<Arc<str>>,
    /// Where it is, with the port that is probed.
    pub address: SocketAddr,
    /// Its share relative to the others; 0 drains.
    pub weight: u16,
}

impl OwnServer {
    /// What it is called.
    pub fn name(&self) -> Cow<'_, str> {
        match &self.name {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(self.address.ip().to_string()),
        }
    }
}

/// The servers of a name, as the file has them. Settings are shared by all names that have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerList {
    /// In the order of the file.
    pub servers: Box<[OwnServer]>,
    /// How they are probed.
    pub health: Arc<HealthCheck>,
    /// How they are asked for their load, if they are.
    pub report: Option<Arc<Reporting>>,
    /// How long one takes to its whole share once it works, in milliseconds; 0 for at once.
    pub slow_start_ms: u64,
}

impl ServerList {
    /// Where a server stands that was at `place` when its address was this one.
    pub fn place_of(&self, place: usize, address: SocketAddr) -> Option<usize> {
        let is_there = self.servers.get(place).is_some_and(|server| server.address == address);
        let found = || self.servers.iter().position(|server| server.address == address);
        if is_there { Some(place) } else { found() }
    }
}

/// A question to a server, by its place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Probe it.
    Probe(usize),
    /// Ask it for its load.
    Ask(usize),
}

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// How long a probe took in microseconds, or why it failed.
    Probed(Result<u64, Failure>),
    /// What the server says of its load, or why that isn't believed.
    Reported(Result<Report, BadReport>),
}

/// What a fact, or the want of one, changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Shares or states are others than before.
    pub is_news: bool,
    /// The server came or went.
    pub member: Option<MemberChange>,
    /// It wants no more clients, or wants them again.
    pub refuses: Option<bool>,
    /// Its reports are believed again (`None` within), or no more, and why.
    pub reports: Option<Option<BadReport>>,
}

/// One server, as it is now.
#[derive(Debug)]
struct OneState {
    health: Health,
    /// What it said of its load, if it is asked.
    heard: Option<Box<Heard>>,
    is_drained: bool,
    given: Arc<AtomicU64>,
}

/// One server for whoever shows it, or gives its address.
#[derive(Clone, Debug)]
pub struct ServerView<'a> {
    /// How it is.
    pub state: State,
    /// What its share is made of.
    pub known: Known,
    /// What its last failed probe met, where it is down.
    pub failure: Option<&'a Failure>,
    /// Whether its own report drains it.
    pub refuses: bool,
    /// How often its address was given first.
    pub given: &'a Arc<AtomicU64>,
}

/// The servers of a name as they are now, in the order of their list, which is given with each call.
#[derive(Debug)]
pub struct ServerStates {
    states: Box<[OneState]>,
    /// When shares are made anew because somebody starts slowly, in milliseconds.
    renew_at_ms: u64,
}

impl ServerStates {
    /// Of servers that nothing is known of. `seed` is another number for each name: it spreads their probes.
    pub fn new(list: &ServerList, seed: u64, now_ms: u64) -> ServerStates {
        let mut states = ServerStates { states: Box::default(), renew_at_ms: u64::MAX };
        states.follow(list, list, seed, now_ms);
        states
    }

    /// Goes on with another list; what is known of servers whose addresses stay is kept.
    pub fn follow(&mut self, before: &ServerList, list: &ServerList, seed: u64, now_ms: u64) {
        let mut known: BTreeMap<SocketAddr, Vec<OneState>> = BTreeMap::new();
        let states = core::mem::take(&mut self.states).into_iter();
        for (state, server) in states.zip(&before.servers).rev() {
            known.entry(server.address).or_default().push(state);
        }
        let is_asked_otherwise = before.report != list.report;
        let states = (1..).zip(&list.servers).map(|(number, server)| {
            let seed = seed.wrapping_add(u64::wrapping_mul(number, 0x9e37_79b9_7f4a_7c15));
            let mut state = match known.get_mut(&server.address).and_then(Vec::pop) {
                Some(mut state) => {
                    state.health.reconfigure_sharing(now_ms, &list.health);
                    state
                }
                None => OneState {
                    health: Health::sharing(&list.health, seed),
                    heard: None,
                    is_drained: false,
                    given: Arc::default(),
                },
            };
            if is_asked_otherwise || state.heard.is_none() {
                let heard = |settings: &Arc<Reporting>| Box::new(Heard::new(settings, seed, now_ms));
                state.heard = list.report.as_ref().map(heard);
            }
            state
        });
        self.states = states.collect();
        self.renew_at_ms = self.renewed_at(list, now_ms);
    }

    /// When [`ServerStates::poll`] has something to do, in milliseconds.
    pub fn next_at(&self) -> u64 {
        let of = |one: &OneState| {
            let asking = one.heard.as_ref().map_or(u64::MAX, |heard| heard.ask_at_ms());
            asking.min(one.health.next_probe_at())
        };
        self.states.iter().map(of).min().unwrap_or(u64::MAX).min(self.renew_at_ms)
    }

    /// What is to be asked now, and what has changed by time alone, by places in the list.
    pub fn poll(&mut self, list: &ServerList, now_ms: u64) -> (Vec<Order>, Vec<(usize, Effect)>) {
        let (mut orders, mut effects) = (Vec::new(), Vec::new());
        for (place, one) in self.states.iter_mut().enumerate() {
            if one.health.next_probe_at() <= now_ms {
                one.health.started(now_ms);
                orders.push(Order::Probe(place));
            }
            if let (Some(settings), Some(heard)) = (&list.report, &mut one.heard)
                && heard.ask_at_ms() <= now_ms
            {
                effects.push((place, Effect::of(heard.asked(settings, now_ms))));
                orders.push(Order::Ask(place));
            }
        }
        if self.renew_at_ms <= now_ms {
            self.renew_at_ms = self.renewed_at(list, now_ms);
            // It is nobody's in particular: shares of all of them are others.
            effects.push((0, Effect { is_news: true, ..Effect::default() }));
        }
        (orders, effects)
    }

    fn renewed_at(&self, list: &ServerList, now_ms: u64) -> u64 {
        let starts = |one: &OneState| one.percent(list, now_ms) < 100;
        if self.states.iter().any(starts) { now_ms.saturating_add(RENEW_MS) } else { u64::MAX }
    }

    /// Takes in what came of a question.
    pub fn take(&mut self, list: &ServerList, place: usize, fact: Fact, now_ms: u64) -> Effect {
        let Some(one) = self.states.get_mut(place) else { return Effect::default() };
        match fact {
            Fact::Probed(result) => {
                let Some(transition) = one.health.result(now_ms, result) else { return Effect::default() };
                let member = match (transition.to, transition.reason) {
                    (health::State::Up, _) => Some(MemberChange::Up),
                    (_, reason) => reason.map(MemberChange::Down),
                };
                self.renew_at_ms = self.renew_at_ms.min(self.renewed_at(list, now_ms));
                Effect { is_news: true, member, ..Effect::default() }
            }
            Fact::Reported(result) => match &mut one.heard {
                Some(heard) => Effect::of(heard.take(result, now_ms)),
                // It came late: the file says no more that it is to be asked.
                None => Effect::default(),
            },
        }
    }

    /// The operator wants no more clients to come to a server, or wants them again. True if that is news.
    pub fn drain(&mut self, place: usize, is_drained: bool) -> bool {
        let before =
            self.states.get_mut(place).map(|one| core::mem::replace(&mut one.is_drained, is_drained));
        before.is_some_and(|before| before != is_drained)
    }

    /// Of how many servers it isn't known yet whether they work.
    pub fn unknown(&self) -> usize {
        let is_unknown = |one: &&OneState| {
            one.health.status().state == health::State::Unknown && one.health.last_failure().is_none()
        };
        self.states.iter().filter(is_unknown).count()
    }

    /// All of them, in the order of the list.
    pub fn views<'a>(
        &'a self,
        list: &'a ServerList,
        now_ms: u64,
    ) -> impl Iterator<Item = (&'a OwnServer, ServerView<'a>)> {
        let all = || self.states.iter().zip(&list.servers);
        // Reports alone leave no name without servers.
        let may_refuse = all().any(|(one, server)| one.is_up(server) && !one.refuses());
        all().map(move |(one, server)| (server, one.view(server, list, may_refuse, now_ms)))
    }
}

impl OneState {
    /// Whether it works and its operator wants clients to come.
    fn is_up(&self, server: &OwnServer) -> bool {
        !self.is_drained && server.weight > 0 && self.health.status().state == health::State::Up
    }

    fn refuses(&self) -> bool {
        self.heard.as_ref().is_some_and(|heard| heard.refuses())
    }

    fn percent(&self, list: &ServerList, now_ms: u64) -> u64 {
        let status = self.health.status();
        if status.state == health::State::Up {
            status.slow_start_percent(now_ms, list.slow_start_ms)
        } else {
            100
        }
    }

    fn view(&self, server: &OwnServer, list: &ServerList, may_refuse: bool, now_ms: u64) -> ServerView<'_> {
        let refuses = may_refuse && self.is_up(server) && self.refuses();
        let state = match self.health.status().state {
            _ if self.is_drained || server.weight == 0 || refuses => State::Draining,
            health::State::Up => State::Up,
            health::State::Down | health::State::Unknown => State::Down,
        };
        let latest = self.heard.as_ref().and_then(|heard| heard.latest(now_ms));
        let wanted = self.heard.as_ref().map_or(10, |heard| heard.tenths());
        let tenths = u16::try_from(self.percent(list, now_ms).div_ceil(10)).unwrap_or(10);
        let signals = Signals {
            latency_us: self.health.latency_us(),
            report: latest.map(|(report, _)| report).unwrap_or_default(),
            age_ms: latest.map(|(_, age_ms)| age_ms),
            ..Signals::default()
        };
        let failure = self.health.last_failure().map(|(_, failure)| failure);
        ServerView {
            state,
            known: Known { weight: server.weight, tenths: tenths.min(wanted), signals },
            failure: failure.filter(|_| state == State::Down),
            refuses,
            given: &self.given,
        }
    }
}

impl Effect {
    fn of(change: Change) -> Effect {
        Effect { is_news: change.is_news, member: None, refuses: change.refuses, reports: change.turned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{HealthKind, ReportKind};
    use alloc::vec;

    fn list(addresses: &[&str], kind: HealthKind) -> ServerList {
        let server = |address: &&str| OwnServer { name: None, address: address.parse().unwrap(), weight: 1 };
        ServerList {
            servers: addresses.iter().map(server).collect(),
            health: Arc::new(HealthCheck {
                kind,
                interval_ms: 1_000,
                timeout_ms: 500,
                rise: 1,
                fall: 1,
                jitter_percent: 0,
                port: None,
            }),
            report: None,
            slow_start_ms: 0,
        }
    }

    fn states(states: &ServerStates, list: &ServerList, now_ms: u64) -> Vec<&'static str> {
        states.views(list, now_ms).map(|(_, view)| view.state.name()).collect()
    }

    #[test]
    fn servers_are_probed_when_they_are_due_and_follow_their_answers() {
        let list = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::Tcp);
        let mut servers = ServerStates::new(&list, 7, 0);
        assert_eq!((servers.next_at(), servers.unknown()), (0, 2));
        assert_eq!(servers.poll(&list, 0).0, [Order::Probe(0), Order::Probe(1)]);
        assert_eq!(servers.next_at(), u64::MAX, "nothing is due while probes are under way");
        let up = servers.take(&list, 0, Fact::Probed(Ok(5)), 3);
        assert_eq!((up.is_news, up.member), (true, Some(MemberChange::Up)));
        let down = servers.take(&list, 1, Fact::Probed(Err(Failure::Refused)), 4);
        assert_eq!(down.member, Some(MemberChange::Down(Failure::Refused)));
        assert_eq!((states(&servers, &list, 5), servers.unknown()), (vec!["up", "down"], 0));
        assert_eq!(servers.next_at(), 1_000);
        assert_eq!(servers.take(&list, 9, Fact::Probed(Ok(5)), 5), Effect::default());
    }

    #[test]
    fn servers_that_are_not_probed_are_up_and_never_due() {
        let list = list(&["192.0.2.1:80"], HealthKind::None);
        let servers = ServerStates::new(&list, 7, 0);
        assert_eq!((servers.next_at(), servers.unknown()), (u64::MAX, 0));
        assert_eq!(states(&servers, &list, 0), ["up"]);
    }

    #[test]
    fn a_reload_keeps_what_is_known_of_addresses_that_stay() {
        let before = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::Tcp);
        let mut servers = ServerStates::new(&before, 7, 0);
        servers.poll(&before, 0);
        servers.take(&before, 1, Fact::Probed(Ok(5)), 3);
        let after = list(&["192.0.2.2:80", "192.0.2.3:80"], HealthKind::Tcp);
        servers.follow(&before, &after, 7, 10);
        assert_eq!((states(&servers, &after, 10), servers.unknown()), (vec!["up", "down"], 1));
        assert_eq!(after.place_of(1, "192.0.2.2:80".parse().unwrap()), Some(0));
        assert_eq!(after.place_of(0, "192.0.2.1:80".parse().unwrap()), None);
    }

    #[test]
    fn a_drained_server_drains_until_it_is_wanted_again() {
        let list = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::None);
        let mut servers = ServerStates::new(&list, 7, 0);
        assert!(servers.drain(0, true) && !servers.drain(0, true) && !servers.drain(9, true));
        assert_eq!(states(&servers, &list, 0), ["draining", "up"]);
        assert!(servers.drain(0, false));
        assert_eq!(states(&servers, &list, 0), ["up", "up"]);
    }

    #[test]
    fn reports_drain_a_server_as_long_as_another_takes_clients() {
        let kind = ReportKind::AgentCheck;
        let report = Reporting { kind, port: 9, interval_ms: 1_000, timeout_ms: 100 };
        let list = ServerList {
            report: Some(Arc::new(report)),
            ..list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::None)
        };
        let mut servers = ServerStates::new(&list, 7, 0);
        let refusal = || Fact::Reported(Ok(Report { percent: Some(0), ..Report::default() }));
        let effect = servers.take(&list, 0, refusal(), 1);
        assert_eq!((effect.is_news, effect.refuses), (true, Some(true)));
        assert_eq!(states(&servers, &list, 1), ["draining", "up"]);
        servers.take(&list, 1, refusal(), 1);
        assert_eq!(states(&servers, &list, 1), ["up", "up"]);
        servers.drain(1, true);
        assert_eq!(states(&servers, &list, 1), ["up", "draining"]);
        assert_eq!(servers.poll(&list, 1_000).0.len(), 2, "both are asked again");
    }

    #[test]
    fn who_starts_slowly_is_shown_anew_until_it_has_its_whole_share() {
        let list = ServerList { slow_start_ms: 1_000, ..list(&["192.0.2.1:80"], HealthKind::Tcp) };
        let mut servers = ServerStates::new(&list, 7, 0);
        servers.poll(&list, 1);
        servers.take(&list, 0, Fact::Probed(Ok(5)), 1);
        let tenths =
            |servers: &ServerStates, now_ms| servers.views(&list, now_ms).next().unwrap().1.known.tenths;
        assert_eq!((tenths(&servers, 1), servers.next_at()), (1, 501));
        assert!(servers.poll(&list, 501).1.iter().any(|(_, effect)| effect.is_news));
        assert_eq!((tenths(&servers, 501), tenths(&servers, 1_001)), (5, 10));
        servers.poll(&list, 1_001);
        assert_ne!(servers.next_at(), 1_501, "it has its whole share");
    }
}
