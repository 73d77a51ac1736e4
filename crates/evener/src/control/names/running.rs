//! A balanced name while it is answered for.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use evener_core::dns::{Address, Balanced, Draw, RanksChange, ServerStates, Settings};
use evener_core::pool::State;
use evener_core::pool::signals::Signals;

use super::candidates::{Candidate, Followed, of_own};
use super::own::list_of;
use super::probing::Probing;
use super::ranking::{Ranked, Ranking};
use super::ranks_from::RanksFrom;
use crate::config::NameConfig;
use crate::names::{Load, ShownAddress, ShownName};

/// A balanced name. There may be hundreds of thousands: what is the same for many is shared, and what is only shown isn't kept.
pub(super) struct Running {
    pub(super) config: Arc<NameConfig>,
    pub(super) servers: Source,
    pub(super) ranking: Ranking,
    /// Ranks that somebody else makes.
    pub(super) ranks_from: Option<Box<RanksFrom>>,
    /// What it is answered by.
    pub(super) balanced: Arc<Balanced>,
    /// When there is something to do next, in milliseconds of the monotonic clock.
    pub(super) due_ms: u64,
    /// Whether it is to be looked at anew.
    pub(super) is_dirty: bool,
}

/// Whose addresses it has.
pub(super) enum Source {
    /// Of servers of its own.
    Own(ServerStates),
    /// Of services that are followed, by their places.
    Services {
        followed: Box<[usize]>,
        /// How often their addresses were given, in order.
        given: Vec<Given>,
    },
}

/// How often an address of a service's server was given first for this name.
pub(super) struct Given {
    server: Option<Arc<str>>,
    address: IpAddr,
    count: Arc<AtomicU64>,
}

impl Running {
    /// Takes in how its servers are now, and says how it is answered and shown from now on.
    pub(super) fn look(
        &mut self,
        followed: &[Followed],
        probing: &Probing,
        now_ms: u64,
    ) -> (Arc<Balanced>, Arc<ShownName>) {
        let mut candidates = self.candidates(followed, now_ms);
        if self.config.probe.is_some() {
            for one in &mut candidates {
                one.probed_ms = probing.complete(&mut one.known.signals.report, one.address, now_ms);
            }
        }
        let mut ranked = self.ranking.rank(&self.config, candidates, now_ms);
        let mut settings = Arc::clone(&self.config.settings);
        if let Some(ranks_from) = &self.ranks_from {
            match ranks_from.order(now_ms) {
                // Whoever isn't ranked comes last, in the order of the file.
                Some(order) => ranked.sort_by_key(|(candidate, _)| {
                    order.iter().position(|one| *one == candidate.address).unwrap_or(usize::MAX)
                }),
                None => settings = Arc::new(Settings { draw: Draw::Random, ..Settings::clone(&settings) }),
            }
        }
        let addresses: Box<[ShownAddress]> =
            ranked.into_iter().map(|(candidate, ranked)| self.shown(candidate, ranked)).collect();
        let given: Vec<Address> = addresses.iter().map(address).collect();
        let balanced = Balanced::new(settings, &given, self.balanced.turns());
        self.balanced = Arc::new(balanced);
        let NameConfig { settings, policy, .. } = &*self.config;
        let shown = ShownName {
            settings: Arc::clone(settings),
            policy: policy.name,
            weighing: self.config.weighing(),
            addresses,
            at_ms: now_ms,
        };
        (Arc::clone(&self.balanced), Arc::new(shown))
    }

    /// Whether the path to a server is probed for it. Services' servers may be anywhere.
    pub(super) fn probes(&self, server: IpAddr) -> bool {
        let has = list_of(&self.config)
            .is_none_or(|list| list.servers.iter().any(|one| one.address.ip() == server));
        self.config.probe.is_some() && has
    }

    /// All that may be given.
    fn candidates(&self, followed: &[Followed], now_ms: u64) -> Vec<Candidate> {
        match &self.servers {
            Source::Own(states) => {
                list_of(&self.config).map_or_else(Vec::new, |list| of_own(list, states, now_ms))
            }
            Source::Services { followed: places, .. } => {
                let followed = places.iter().filter_map(|place| followed.get(*place));
                followed.flat_map(|followed| followed.candidates.iter().cloned()).collect()
            }
        }
    }

    /// Takes ranks that were read.
    pub(super) fn take_ranks(
        &mut self,
        followed: &[Followed],
        now_ms: u64,
        read: Result<String, String>,
    ) -> RanksChange {
        let servers: Vec<IpAddr> =
            self.candidates(followed, now_ms).into_iter().map(|candidate| candidate.address).collect();
        let Some(ranks) = &mut self.ranks_from else { return RanksChange::default() };
        ranks.take(&self.config, now_ms, read, |address| servers.contains(&address))
    }

    fn shown(&mut self, candidate: Candidate, ranked: Option<Ranked>) -> ShownAddress {
        let given = self.given(&candidate);
        let Candidate { server, address, state, known, reason, probed_ms, .. } = candidate;
        let weighs = self.config.weighing().is_some();
        let weighed = ranked.map(|ranked| ranked.known).filter(|_| weighs);
        let Signals { report, age_ms, .. } = known.signals;
        let load = (weighed.is_some() || age_ms.is_some() || probed_ms.is_some()).then(|| {
            let weighed = weighed.map_or(Signals::default(), |known| known.signals);
            Box::new(Load { report, age_ms, probed_ms, weighed })
        });
        let known = ranked.map_or(known, |ranked| ranked.known);
        ShownAddress {
            address,
            server,
            state,
            // What lives no more keeps its weight, for when nobody does.
            share: ranked.map_or(known.weight, |ranked| ranked.share),
            weight: known.weight,
            tenths: known.tenths,
            permille: ranked.map(|ranked| ranked.permille),
            given,
            reason: reason.filter(|_| ranked.is_none()).map(Into::into),
            load,
        }
    }

    fn given(&mut self, candidate: &Candidate) -> Arc<AtomicU64> {
        if let Some(given) = &candidate.given {
            return Arc::clone(given);
        }
        let Source::Services { given, .. } = &mut self.servers else { return Arc::default() };
        let key = (&candidate.server, candidate.address);
        let at = given.binary_search_by(|one| (&one.server, one.address).cmp(&key)).unwrap_or_else(|at| {
            let new =
                Given { server: candidate.server.clone(), address: candidate.address, count: Arc::default() };
            given.insert(at, new);
            at
        });
        given.get(at).map(|one| Arc::clone(&one.count)).unwrap_or_default()
    }

    /// When there is something to do next, in milliseconds of the monotonic clock.
    pub(super) fn next_at(&self) -> u64 {
        let servers = match &self.servers {
            Source::Own(states) => states.next_at(),
            Source::Services { .. } => u64::MAX,
        };
        // A look makes ranks anew, and then they are due later.
        let servers = servers.min(self.ranks_from.as_ref().map_or(u64::MAX, |ranks| ranks.due_ms()));
        if self.is_dirty { servers } else { servers.min(self.ranking.due_ms()) }
    }

    /// Of how many servers of its own it isn't known yet whether they work.
    pub(super) fn unknown(&self) -> usize {
        match &self.servers {
            Source::Own(states) => states.unknown(),
            Source::Services { .. } => 0,
        }
    }
}

fn address(shown: &ShownAddress) -> Address {
    Address {
        address: shown.address,
        share: shown.share,
        lives: shown.state == State::Up.name(),
        given: Arc::clone(&shown.given),
    }
}
