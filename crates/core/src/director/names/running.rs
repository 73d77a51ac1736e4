//! State of one balanced name.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::candidate::{AddressCandidate, WatchedService};
use super::own::OwnServers;
use super::ranking::{AnswerShare, ShareCache};
use crate::director::Moment;
use crate::dns::{
    Address, AddressCounts, AddressPool, AddressSnapshot, BadRanks, BalancedName, FileRanks, LoadSnapshot,
    NameSettings, NameSnapshot, PathProber, RanksChange, read_ranks,
};
use crate::pool::ServerState;
use crate::pool::policy::Selection;
use crate::pool::signals::Signals;

/// Interval at which the file of ranks is read if the name has no `period`, in milliseconds.
const READ_MS: u64 = 5_000;

/// A balanced name. A farm may have hundreds of thousands of names, so equal parts are shared, and
/// data that only views need isn't stored.
#[derive(Clone, Debug)]
pub(super) struct NameState {
    pub(super) name: Arc<BalancedName>,
    pub(super) servers: AddressSource,
    ranking: ShareCache,
    /// State of the file of ranks, if one is configured.
    ranks: Option<Box<FileRanking>>,
    /// Address pool from which queries are answered.
    balanced: Arc<AddressPool>,
    /// Time of the next work, in milliseconds.
    pub(super) due_ms: u64,
    /// True if the name's answers must be recomputed.
    pub(super) is_dirty: bool,
}

/// Origin of a name's addresses.
#[derive(Clone, Debug)]
pub(super) enum AddressSource {
    /// Servers of the name's own list.
    Own(OwnServers),
    /// Servers of services, as indexes into [`super::Names::followed`].
    Services {
        followed: Box<[usize]>,
        /// Counters of the services' addresses, sorted by server and address.
        counts: Vec<ServiceAddressCounts>,
    },
}

/// Counters of one address of a service's server, for this name only.
#[derive(Clone, Debug)]
pub(super) struct ServiceAddressCounts {
    server: Option<Arc<str>>,
    address: IpAddr,
    counts: Arc<AddressCounts>,
}

/// State of a name that survives a reload, without its servers.
#[derive(Clone, Debug)]
pub(super) struct RetainedName {
    rank_from: Option<String>,
    ranks: Option<Box<FileRanking>>,
    balanced: Arc<AddressPool>,
}

/// State of the file that ranks a name's addresses.
#[derive(Clone, Debug)]
struct FileRanking {
    file: FileRanks,
    /// Time of the next read in milliseconds; `None` during a read.
    due_ms: Option<u64>,
}

impl NameState {
    /// Returns the state of a name with these servers. `kept` is the state from before a reload.
    pub(super) fn new(
        name: &Arc<BalancedName>,
        kept: Option<RetainedName>,
        servers: AddressSource,
        now_ms: u64,
    ) -> NameState {
        let new = || AddressPool::new(Arc::clone(&name.settings), &[], [0, 0]);
        let RetainedName { rank_from, ranks, balanced } =
            kept.unwrap_or_else(|| RetainedName { rank_from: None, ranks: None, balanced: Arc::new(new()) });
        let new = || Box::new(FileRanking { file: FileRanks::default(), due_ms: Some(now_ms) });
        let ranks = ranks.filter(|_| rank_from == name.rank_from);
        NameState {
            servers,
            ranking: ShareCache::default(),
            ranks: name.rank_from.as_ref().map(|_| ranks.unwrap_or_else(new)),
            balanced,
            due_ms: u64::MAX,
            is_dirty: false,
            name: Arc::clone(name),
        }
    }

    /// Splits the state into its servers and the parts that a reload keeps.
    pub(super) fn into_parts(self) -> (Arc<BalancedName>, AddressSource, RetainedName) {
        let NameState { name, servers, ranks, balanced, .. } = self;
        let kept = RetainedName { rank_from: name.rank_from.clone(), ranks, balanced };
        (name, servers, kept)
    }

    /// Computes the answers and the snapshot from the current servers.
    pub(super) fn rank(
        &mut self,
        followed: &[WatchedService],
        paths: &PathProber,
        now: Moment,
    ) -> (Arc<AddressPool>, Arc<NameSnapshot>) {
        let mut candidates = self.candidates(followed, now.ms);
        if self.name.probe.is_some() {
            for one in &mut candidates {
                one.probed_ms = paths.complete(&mut one.known.signals.report, one.address, now.ms);
            }
        }
        let for_ms = self.name.period.ms_at(now.second_of_day);
        let mut ranked = self.ranking.rank(&self.name, candidates, for_ms, now.ms);
        let mut settings = Arc::clone(&self.name.settings);
        if let Some(ranks) = &self.ranks {
            match ranks.file.order(now.ms) {
                // Addresses that the file does not rank come last, in the order of the list.
                Some(order) => ranked.sort_by_key(|(candidate, _)| {
                    order.iter().position(|one| *one == candidate.address).unwrap_or(usize::MAX)
                }),
                None => {
                    settings =
                        Arc::new(NameSettings { draw: Selection::Random, ..NameSettings::clone(&settings) })
                }
            }
        }
        let addresses: Box<[AddressSnapshot]> =
            ranked.into_iter().map(|(candidate, ranked)| self.snapshot_of(candidate, ranked)).collect();
        let given: Vec<Address> = addresses.iter().map(address).collect();
        self.balanced = Arc::new(AddressPool::new(settings, &given, self.balanced.turns()));
        let snapshot = NameSnapshot { name: Arc::clone(&self.name), addresses, at_ms: now.ms };
        (Arc::clone(&self.balanced), Arc::new(snapshot))
    }

    /// True if the name may use the path to this server. For a name that uses services, this is
    /// true for every address.
    pub(super) fn probes(&self, server: IpAddr) -> bool {
        let list = self.name.list();
        let has = list.is_none_or(|list| list.servers.iter().any(|one| one.address.ip() == server));
        self.name.probe.is_some() && has
    }

    fn candidates(&self, followed: &[WatchedService], now_ms: u64) -> Vec<AddressCandidate> {
        match &self.servers {
            AddressSource::Own(servers) => {
                self.name.list().map_or_else(Vec::new, |list| servers.candidates(list, now_ms))
            }
            AddressSource::Services { followed: places, .. } => {
                let followed = places.iter().filter_map(|place| followed.get(*place));
                followed.flat_map(|followed| followed.candidates.iter().cloned()).collect()
            }
        }
    }

    /// True if at least one of the name's addresses belongs to a working server.
    pub(super) fn has_living(&self, followed: &[WatchedService], now_ms: u64) -> bool {
        self.candidates(followed, now_ms).iter().any(AddressCandidate::lives)
    }

    /// Returns true if the file of ranks must be read now. From then on the read counts as started.
    pub(super) fn begins_to_read(&mut self, now_ms: u64) -> bool {
        let due = self.ranks.as_mut().filter(|ranks| ranks.due_ms.is_some_and(|due_ms| due_ms <= now_ms));
        due.is_some_and(|ranks| ranks.due_ms.take().is_some())
    }

    /// Applies the text of the file of ranks.
    pub(super) fn take_ranks(
        &mut self,
        followed: &[WatchedService],
        now: Moment,
        read: Result<String, String>,
    ) -> RanksChange {
        let servers: Vec<IpAddr> =
            self.candidates(followed, now.ms).into_iter().map(|candidate| candidate.address).collect();
        let Some(ranks) = &mut self.ranks else { return RanksChange::default() };
        let for_ms = self.name.period.ms_at(now.second_of_day);
        let for_ms = if for_ms > 0 { for_ms } else { READ_MS };
        ranks.due_ms = Some(now.ms.saturating_add(for_ms));
        let text = read.map_err(BadRanks::Unread);
        let is_server = |address| servers.contains(&address);
        let read = text.and_then(|text| read_ranks(&text, &self.name.settings.name, is_server));
        ranks.file.apply_read(now.ms, for_ms, read)
    }

    fn snapshot_of(&mut self, candidate: AddressCandidate, ranked: Option<AnswerShare>) -> AddressSnapshot {
        let counts = self.counts(&candidate);
        let AddressCandidate { server, address, state, known, reason, probed_ms, stands_by, .. } = candidate;
        let weighs = self.name.weighing().is_some();
        let weighed = ranked.map(|ranked| ranked.known).filter(|_| weighs);
        let Signals { report, age_ms, .. } = known.signals;
        let load = (weighed.is_some() || age_ms.is_some() || probed_ms.is_some()).then(|| {
            let weighed = weighed.map_or(Signals::default(), |known| known.signals);
            Box::new(LoadSnapshot { report, age_ms, probed_ms, weighed })
        });
        let known = ranked.map_or(known, |ranked| ranked.known);
        AddressSnapshot {
            address,
            server,
            state,
            // A failed server gets its weight as share, in case all servers fail. A backup that is
            // not needed gets share 0.
            share: ranked.map_or(if stands_by { 0 } else { known.weight }, |ranked| ranked.share),
            weight: known.weight,
            tenths: known.tenths,
            permille: ranked.map(|ranked| ranked.permille),
            counts,
            reason: reason.filter(|_| ranked.is_none()).map(Into::into),
            load,
        }
    }

    fn counts(&mut self, candidate: &AddressCandidate) -> Arc<AddressCounts> {
        if let Some(counts) = &candidate.counts {
            return Arc::clone(counts);
        }
        let AddressSource::Services { counts, .. } = &mut self.servers else { return Arc::default() };
        let key = (&candidate.server, candidate.address);
        let at = counts.binary_search_by(|one| (&one.server, one.address).cmp(&key)).unwrap_or_else(|at| {
            let new = ServiceAddressCounts {
                server: candidate.server.clone(),
                address: candidate.address,
                counts: Arc::default(),
            };
            counts.insert(at, new);
            at
        });
        counts.get(at).map(|one| Arc::clone(&one.counts)).unwrap_or_default()
    }

    /// True if the next computation of shares is due.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.ranking.due_ms() <= now_ms
    }

    /// Time of the next work, in milliseconds.
    pub(super) fn next_at(&self) -> u64 {
        let servers = match &self.servers {
            AddressSource::Own(servers) => servers.0.next_at(),
            AddressSource::Services { .. } => u64::MAX,
        };
        let ranks = self.ranks.as_ref().and_then(|ranks| ranks.due_ms).unwrap_or(u64::MAX);
        // A dirty name is recomputed anyway, which also sets the time of the next computation of
        // shares.
        let ranking = if self.is_dirty { u64::MAX } else { self.ranking.due_ms() };
        servers.min(ranks).min(ranking)
    }

    /// Number of the name's own servers without any probe result.
    pub(super) fn unknown(&self) -> usize {
        match &self.servers {
            AddressSource::Own(servers) => servers.unknown(),
            AddressSource::Services { .. } => 0,
        }
    }
}

fn address(seen: &AddressSnapshot) -> Address {
    Address {
        address: seen.address,
        share: seen.share,
        healthy: seen.state == ServerState::Up,
        counts: Arc::clone(&seen.counts),
    }
}
