//! The loop's part in names: their own servers are probed, and whoever answers goes by what is known of all of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use evener_core::director::{ServerState, Snapshot};
use evener_core::dns::{self, Address, Balanced};
use evener_core::path::sessions::Seed;
use tokio::sync::mpsc;

mod candidates;
mod own;
mod ranking;

use candidates::{Candidate, of_service};
use own::OwnServers;
pub(super) use own::Told;
use ranking::{RankFiles, Ranking};

use super::groups::moment;
use super::reading::{DnsFileError, DnsFiles};
use crate::config::{Config, DnsConfig, From, NameConfig};
use crate::events::Bus;
use crate::names::{Answering, NamesError, Opened, Servers, Shown, ShownAddress, ShownName, ShownNames};
use crate::redirect::ShownGroup;

/// Results of probes that wait for the loop.
const RESULTS: usize = 256;

/// Why names can't be answered for.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// Queries can't be heard.
    #[error(transparent)]
    Sockets(#[from] NamesError),
    /// A zone can't be had, or another file.
    #[error(transparent)]
    File(#[from] DnsFileError),
}

/// What a file's names need, before anybody answers by it.
pub(super) struct OpenedNames {
    sockets: Opened,
    files: DnsFiles,
}

/// A balanced name.
struct Running {
    config: NameConfig,
    /// Its own servers, if it has some.
    own: Option<OwnServers>,
    /// How often addresses were given, by server.
    given: BTreeMap<(String, IpAddr), Arc<AtomicU64>>,
    ranking: Ranking,
}

/// All that names are answered by.
pub(super) struct Names {
    dns: DnsConfig,
    read: DnsFiles,
    /// In the order of the file.
    running: Vec<Running>,
    servers: Servers,
    answering: Arc<Answering>,
    key: Seed,
    bus: Bus,
    results: mpsc::Sender<Told>,
    pub(super) told: mpsc::Receiver<Told>,
    shown: Arc<Shown>,
    files: RankFiles,
    /// By what was answered last.
    seen: Option<(Arc<Snapshot>, Arc<Vec<ShownGroup>>)>,
}

impl Names {
    /// None yet.
    pub(super) fn new(key: Seed, bus: Bus) -> Names {
        let (results, told) = mpsc::channel(RESULTS);
        let shown: Arc<Shown> = Arc::default();
        let nobody = dns::Names::new([], Vec::new(), key, "");
        let answering = Arc::new(Answering::new(nobody, key, Arc::clone(&shown.counts)));
        Names {
            dns: DnsConfig::default(),
            read: DnsFiles::default(),
            running: Vec::new(),
            servers: Servers::new(Arc::clone(&answering)),
            answering,
            key,
            bus,
            results,
            told,
            shown,
            files: RankFiles::default(),
            seen: None,
        }
    }

    /// Where it is to be seen what they are.
    pub(super) fn shown(&self) -> Arc<Shown> {
        Arc::clone(&self.shown)
    }

    /// Gets all that a file's names need and that can be refused; nothing changes by that.
    ///
    /// # Errors
    /// What is refused.
    pub(super) fn open(&self, config: &Config, files: DnsFiles) -> Result<OpenedNames, OpenError> {
        Ok(OpenedNames { sockets: self.servers.open(&config.dns.listen)?, files })
    }

    /// Goes on with the names of a file; what is known of servers that stay is kept.
    pub(super) fn follow(&mut self, config: &Config, opened: OpenedNames) {
        let now = moment();
        let mut before: BTreeMap<dns::Name, Running> = std::mem::take(&mut self.running)
            .into_iter()
            .map(|running| (running.config.settings.name.clone(), running))
            .collect();
        self.running = config
            .dns
            .names
            .iter()
            .map(|name| {
                let known = before.remove(&name.settings.name);
                let (own, given) = known.map_or((None, BTreeMap::new()), |known| (known.own, known.given));
                let own = match (&name.from, own) {
                    (From::Services { .. }, _) => None,
                    (From::Servers { group, report }, None) => {
                        Some(OwnServers::new(now, group, report.as_ref(), self.key))
                    }
                    (From::Servers { group, report }, Some(mut own)) => {
                        own.reload(now, group, report.as_ref());
                        Some(own)
                    }
                };
                Running { config: name.clone(), own, given, ranking: Ranking::default() }
            })
            .collect();
        self.dns = config.dns.clone();
        self.read = opened.files;
        self.seen = None;
        self.answering.limit.store(Arc::new(self.dns.limit));
        if let Err(error) = self.servers.follow(opened.sockets, &self.dns.listen) {
            tracing::error!("{error}");
        }
        self.settle();
    }

    /// It is known how servers are, or it was waited for long enough: queries are answered from now on.
    pub(super) fn begin(&mut self) {
        if let Err(error) = self.servers.begin() {
            tracing::error!("{error}");
        }
    }

    /// A server of a name alone has answered, or hasn't.
    pub(super) fn told(&mut self, told: Told) {
        let running =
            self.running.iter_mut().find(|running| running.config.settings.name.to_string() == told.name);
        if let Some(own) = running.and_then(|running| running.own.as_mut())
            && own.take(moment(), told, &self.bus)
        {
            self.seen = None;
        }
        self.settle();
    }

    /// Time has passed.
    pub(super) fn time(&mut self) {
        let now_ms = moment().now_ms;
        if self.next_at() <= now_ms {
            self.settle();
        }
        if self.ranks_due_ms() <= now_ms {
            self.seen = None;
        }
    }

    /// When there is something to do next, in milliseconds of the monotonic clock.
    pub(super) fn next_at(&self) -> u64 {
        self.own().map(OwnServers::next_at).min().unwrap_or(u64::MAX).min(self.ranks_due_ms())
    }

    fn ranks_due_ms(&self) -> u64 {
        self.running.iter().map(|running| running.ranking.due_ms(&running.config)).min().unwrap_or(u64::MAX)
    }

    fn own(&self) -> impl Iterator<Item = &OwnServers> {
        self.running.iter().filter_map(|running| running.own.as_ref())
    }

    /// Whether it is known of every server whether it lives.
    pub(super) fn are_settled(&self) -> bool {
        self.own().all(|own| own.are_known(moment()))
    }

    /// Carries out what is ordered for names' own servers.
    fn settle(&mut self) {
        for own in self.running.iter_mut().filter_map(|running| running.own.as_mut()) {
            if own.settle(moment(), &self.bus, &self.results) {
                self.seen = None;
            }
        }
    }

    /// Answers by what is known now, if that is something else than before.
    pub(super) fn refresh(&mut self, snapshot: &Arc<Snapshot>, groups: &Arc<Vec<ShownGroup>>) {
        let is_seen = |(seen, shown): &(Arc<Snapshot>, Arc<Vec<ShownGroup>>)| {
            Arc::ptr_eq(seen, snapshot) && Arc::ptr_eq(shown, groups)
        };
        if self.dns.zones.is_empty() && self.read.zones.is_empty() || self.seen.as_ref().is_some_and(is_seen)
        {
            return;
        }
        let before = self.answering.names.load_full();
        let (mut balanced, mut names) = (Vec::new(), Vec::new());
        for (number, running) in self.running.iter_mut().enumerate() {
            let turns = before.balanced().get(number).map_or([0, 0], |balanced| balanced.turns());
            let shown = running.look(snapshot, groups);
            let addresses: Vec<Address> = shown.addresses.iter().map(address).collect();
            self.files.write(&running.config, &shown);
            balanced.push(Arc::new(Balanced::new(running.config.settings.clone(), &addresses, turns)));
            names.push(shown);
        }
        let zones = self.read.zones.iter().cloned();
        let names = dns::Names::new(zones, balanced, self.key, &self.dns.nsid);
        self.answering.names.store(Arc::new(names.with_cookie_secrets(&self.read.cookie_secrets)));
        self.shown.publish(ShownNames { names, at_ms: moment().now_ms });
        self.seen = Some((Arc::clone(snapshot), Arc::clone(groups)));
    }
}

fn address(shown: &ShownAddress) -> Address {
    Address {
        address: shown.address,
        share: shown.share,
        lives: shown.state == ServerState::Up.name(),
        given: Arc::clone(&shown.given),
    }
}

impl Running {
    fn look(&mut self, snapshot: &Snapshot, groups: &[ShownGroup]) -> ShownName {
        let candidates: Vec<Candidate> = match (&self.config.from, &self.own) {
            (From::Services { names, own }, _) => {
                names.iter().flat_map(|name| of_service(name, *own, snapshot, groups)).collect()
            }
            (From::Servers { .. }, own) => own.iter().flat_map(|own| own.candidates(moment())).collect(),
        };
        let ranked = self.ranking.rank(&self.config, candidates, moment().now_ms);
        let addresses = ranked.into_iter().map(|(candidate, ranked)| {
            let Candidate { server, address, state, known, reason, .. } = candidate;
            let given = self.given.entry((server.clone(), address)).or_default();
            let (share, cause) = match ranked {
                Some(ranked) => (ranked.share, ranked.cause),
                // What lives no more keeps its weight, for when nobody does.
                None => (known.weight, reason.unwrap_or_else(|| state.to_owned())),
            };
            ShownAddress {
                address,
                state,
                share,
                given: Arc::clone(given),
                report: known.signals.report,
                age_ms: known.signals.age_ms,
                cause,
                server,
            }
        });
        let addresses = addresses.collect();
        let settings = &self.config.settings;
        ShownName {
            name: settings.name.to_string(),
            policy: self.config.policy.name,
            ttl_s: settings.ttl_s,
            draw: settings.draw,
            addresses,
        }
    }
}
