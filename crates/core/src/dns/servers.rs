//! Servers that are listed for one name alone: whether they work, what they say of their load, and what is due.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::AtomicU64;

use crate::farm::group::MemberChange;
use crate::pool::health::{self, Failure};
use crate::pool::report::BadReport;
use crate::pool::shares::Known;
use crate::pool::{self, Change, Fact, Pool, Server, State};

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
    /// How they are looked after.
    pub settings: Arc<pool::Settings>,
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

/// The servers of a name as they are now, by their places in its list, which is given with each call.
#[derive(Debug)]
pub struct ServerStates {
    pool: Pool<usize>,
    given: Box<[Arc<AtomicU64>]>,
}

impl ServerStates {
    /// Of servers that nothing is known of. `seed` is another number for each name: it spreads their probes.
    pub fn new(list: &ServerList, seed: u64, now_ms: u64) -> ServerStates {
        let mut pool = Pool::default();
        pool.follow(0..list.servers.len(), |place| {
            Server::new(&list.settings, seed_of(seed, *place), now_ms, false)
        });
        ServerStates { pool, given: list.servers.iter().map(|_| Arc::default()).collect() }
    }

    /// Goes on with another list; what is known of servers whose addresses stay is kept.
    #[must_use]
    pub fn follow(self, before: &ServerList, list: &ServerList, seed: u64, now_ms: u64) -> ServerStates {
        let mut known: BTreeMap<SocketAddr, Vec<(Server, Arc<AtomicU64>)>> = BTreeMap::new();
        for ((server, given), listed) in self.pool.into_servers().zip(self.given).zip(&before.servers).rev() {
            known.entry(listed.address).or_default().push((server, given));
        }
        let mut pool = Pool::default();
        let mut all_given = Vec::with_capacity(list.servers.len());
        pool.follow(0..list.servers.len(), |place| {
            let seed = seed_of(seed, *place);
            let listed = list.servers.get(*place).and_then(|listed| known.get_mut(&listed.address)?.pop());
            let is_known = listed.is_some();
            let (mut server, given) =
                listed.unwrap_or_else(|| (Server::new(&list.settings, seed, now_ms, true), Arc::default()));
            if is_known {
                server.reconfigure(&list.settings, seed, now_ms);
            }
            all_given.push(given);
            server
        });
        ServerStates { pool, given: all_given.into() }
    }

    /// When [`ServerStates::poll`] has something to do, in milliseconds.
    pub fn next_at(&self) -> u64 {
        self.pool.next_at()
    }

    /// What is to be asked now, and what has changed by time alone, by places in the list.
    pub fn poll(&mut self, now_ms: u64) -> (Vec<Order>, Vec<(usize, Effect)>) {
        let (mut orders, mut effects) = (Vec::new(), Vec::new());
        for (place, due) in self.pool.poll(now_ms) {
            orders.extend(due.probe.then_some(Order::Probe(place)));
            orders.extend(due.ask.then_some(Order::Ask(place)));
            effects.push((place, Effect::of(due.change)));
        }
        (orders, effects)
    }

    /// Takes in what came of a question.
    pub fn take(&mut self, place: usize, fact: Fact, now_ms: u64) -> Effect {
        self.pool.take(&place, fact, now_ms).map(Effect::of).unwrap_or_default()
    }

    /// The operator wants no more clients to come to a server, or wants them again. True if that is news.
    pub fn drain(&mut self, place: usize, is_drained: bool) -> bool {
        self.pool.change(&place, |server| server.drain(is_drained)).unwrap_or(false)
    }

    /// Of how many servers it isn't known yet whether they work.
    pub fn unknown(&self) -> usize {
        self.pool.iter().filter(|(_, server)| server.is_unknown()).count()
    }

    /// All of them, in the order of the list.
    pub fn views<'a>(
        &'a self,
        list: &'a ServerList,
        now_ms: u64,
    ) -> impl Iterator<Item = (&'a OwnServer, ServerView<'a>)> {
        let all = || self.pool.iter().map(|(_, server)| server).zip(&list.servers);
        // Reports alone leave no name without servers.
        let takes = |(server, listed): (&Server, &OwnServer)| is_wanted(server, listed) && !server.refuses();
        let may_refuse = all().any(takes);
        let view = move |server: &'a Server, listed: &'a OwnServer, given| {
            let refuses = may_refuse && is_wanted(server, listed) && server.refuses();
            let state = server.state(listed.weight, refuses);
            let failure = server.health().last_failure().map(|(_, failure)| failure);
            ServerView {
                state,
                known: Known {
                    weight: listed.weight,
                    tenths: server.tenths(),
                    signals: server.signals(now_ms),
                },
                failure: failure.filter(|_| state == State::Down),
                refuses,
                given,
            }
        };
        all().zip(&self.given).map(move |((server, listed), given)| (listed, view(server, listed, given)))
    }
}

/// Whether it works and its operator wants clients to come.
fn is_wanted(server: &Server, listed: &OwnServer) -> bool {
    server.state(listed.weight, false) == State::Up
}

fn seed_of(seed: u64, place: usize) -> u64 {
    seed.wrapping_add((place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Effect {
    fn of(change: Change) -> Effect {
        let Change { is_news, transition, refuses, reports, .. } = change;
        let member = transition.and_then(|transition| match (transition.to, transition.reason) {
            (health::State::Up, _) => Some(MemberChange::Up),
            (_, reason) => reason.map(MemberChange::Down),
        });
        Effect { is_news, member, refuses, reports }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::report::Report;
    use crate::pool::{HealthCheck, HealthKind, ReportKind, Reporting};
    use alloc::vec;

    fn list(addresses: &[&str], kind: HealthKind) -> ServerList {
        let server = |address: &&str| OwnServer { name: None, address: address.parse().unwrap(), weight: 1 };
        ServerList {
            servers: addresses.iter().map(server).collect(),
            settings: Arc::new(pool::Settings {
                check: Arc::new(HealthCheck {
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
            }),
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
        assert_eq!(servers.poll(0).0, [Order::Probe(0), Order::Probe(1)]);
        assert_eq!(servers.next_at(), u64::MAX, "nothing is due while probes are under way");
        let up = servers.take(0, Fact::Probed(Ok(5)), 3);
        assert_eq!((up.is_news, up.member), (true, Some(MemberChange::Up)));
        let down = servers.take(1, Fact::Probed(Err(Failure::Refused)), 4);
        assert_eq!(down.member, Some(MemberChange::Down(Failure::Refused)));
        assert_eq!((states(&servers, &list, 5), servers.unknown()), (vec!["up", "down"], 0));
        assert_eq!(servers.next_at(), 1_000);
        assert_eq!(servers.take(9, Fact::Probed(Ok(5)), 5), Effect::default());
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
        servers.poll(0);
        servers.take(1, Fact::Probed(Ok(5)), 3);
        let after = list(&["192.0.2.2:80", "192.0.2.3:80"], HealthKind::Tcp);
        let servers = servers.follow(&before, &after, 7, 10);
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
        let mut list = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::None);
        Arc::make_mut(&mut list.settings).report = Some(Arc::new(report));
        let mut servers = ServerStates::new(&list, 7, 0);
        let refusal = || Fact::Reported(Ok(Report { percent: Some(0), ..Report::default() }));
        let effect = servers.take(0, refusal(), 1);
        assert_eq!((effect.is_news, effect.refuses), (true, Some(true)));
        assert_eq!(states(&servers, &list, 1), ["draining", "up"]);
        servers.take(1, refusal(), 1);
        assert_eq!(states(&servers, &list, 1), ["up", "up"]);
        servers.drain(1, true);
        assert_eq!(states(&servers, &list, 1), ["up", "draining"]);
        assert_eq!(servers.poll(1_000).0.len(), 2, "both are asked again");
    }

    #[test]
    fn a_server_that_comes_later_has_its_share_by_tenths() {
        let mut before = list(&["192.0.2.1:80"], HealthKind::Tcp);
        Arc::make_mut(&mut before.settings).slow_start_ms = 1_000;
        let servers = list(&["192.0.2.1:80", "192.0.2.2:80"], HealthKind::Tcp).servers;
        let after = ServerList { servers, settings: Arc::clone(&before.settings) };
        let mut servers = ServerStates::new(&before, 7, 0);
        servers.poll(0);
        servers.take(0, Fact::Probed(Ok(5)), 1);
        let mut servers = servers.follow(&before, &after, 7, 1);
        servers.poll(1);
        servers.take(1, Fact::Probed(Ok(5)), 1);
        let tenths = |servers: &ServerStates| -> Vec<u16> {
            servers.views(&after, 0).map(|(_, view)| view.known.tenths).collect()
        };
        assert_eq!((tenths(&servers), servers.next_at()), (vec![10, 1], 201));
        assert!(servers.poll(501).1.iter().any(|(place, effect)| *place == 1 && effect.is_news));
        assert_eq!(tenths(&servers), [10, 5]);
        servers.poll(1_001);
        assert_eq!(tenths(&servers), [10, 10]);
        assert_ne!(servers.next_at(), 1_101, "it has its whole share");
    }
}
