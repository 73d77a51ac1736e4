//! The loop's part in names: their own servers are probed, and whoever answers goes by what is known of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use evener_core::director::Snapshot;
use evener_core::dns::{self, Balanced, MeasuredPath, PathChange, ServerStates};
use evener_core::farm::group::MemberChange;
use evener_core::farm::plan::identity;
use evener_core::node::secret::Key;
use evener_core::path::seed::Seed;
use evener_core::pool::signals::Signals;
use evener_core::pool::{Fact, State};
use evener_dataplane::heap;
use tokio::sync::mpsc;

mod candidates;
mod drained;
mod own;
mod probing;
mod ranking;
mod ranks_from;
mod running;

use candidates::Followed;
use drained::Drained;
pub(super) use own::Told;
use own::{Answer, Questions, list_of};
use probing::Probing;
use ranking::{RankFiles, Ranking};
use ranks_from::RanksFrom;
use running::{Running, Source};

use super::now_ms;
use super::reading::{DnsFileError, DnsFiles};
use crate::agent::path_probe;
use crate::config::{Config, From, NameConfig};
use crate::events::{Bus, Event};
use crate::names::{Answering, NamesError, Opened, Servers, Shown, ShownName};
use crate::runtime::secret::ReadError;
use crate::runtime::spelling::meant;

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
    /// There is no secret, by which agents believe who probes paths.
    #[error(transparent)]
    Secret(#[from] ReadError),
}

/// What a file's names need, before anybody answers by it.
pub(super) struct OpenedNames {
    sockets: Opened,
    files: DnsFiles,
    path_key: Option<Key>,
}

/// All that names are answered by. There may be hundreds of thousands of them: what happens to one costs nothing for the others.
pub(super) struct Names {
    nsid: String,
    read: DnsFiles,
    /// In the order of the file, by which they have their numbers.
    running: Vec<Running>,
    /// Their numbers in the order of their names.
    by_name: Vec<usize>,
    /// Services that some of them follow.
    followed: Vec<Followed>,
    /// When each has something to do next, in milliseconds of the monotonic clock.
    due: BTreeSet<(u64, usize)>,
    /// Those that are to be looked at anew, or all.
    dirty: Vec<usize>,
    is_new: bool,
    is_begun: bool,
    /// Of how many servers it isn't known yet whether they work.
    unknown: usize,
    drained: Drained,
    questions: Questions,
    probing: Probing,
    servers: Servers,
    answering: Arc<Answering>,
    key: Seed,
    bus: Bus,
    pub(super) told: mpsc::Receiver<Told>,
    shown: Arc<Shown>,
    files: RankFiles,
    /// By what was answered last.
    seen: Option<Arc<Snapshot>>,
}

impl Names {
    /// None yet.
    pub(super) fn new(directory: &Path, key: Seed, bus: Bus) -> Names {
        let (results, told) = mpsc::channel(RESULTS);
        let shown: Arc<Shown> = Arc::default();
        let nobody = dns::Names::new([], [], key, "");
        let answering = Arc::new(Answering::new(nobody, key, Arc::clone(&shown.counts)));
        Names {
            nsid: String::new(),
            read: DnsFiles::default(),
            running: Vec::new(),
            by_name: Vec::new(),
            followed: Vec::new(),
            due: BTreeSet::new(),
            dirty: Vec::new(),
            is_new: false,
            is_begun: false,
            unknown: 0,
            drained: Drained::read(directory),
            questions: Questions::new(results),
            probing: Probing::default(),
            servers: Servers::new(Arc::clone(&answering)),
            answering,
            key,
            bus,
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
        let path_key = path_probe::key(config)?;
        Ok(OpenedNames { sockets: self.servers.open(&config.dns.listen)?, files, path_key })
    }

    /// Goes on with the names of a file; what is known of servers that stay is kept.
    pub(super) fn follow(&mut self, config: &Config, opened: OpenedNames) {
        let dns = &config.dns;
        let before = std::mem::take(&mut self.running).into_iter();
        let mut before: BTreeMap<dns::Name, Running> =
            before.map(|running| (running.config.settings.name.clone(), running)).collect();
        self.followed = Vec::new();
        self.running = Vec::with_capacity(dns.names.len());
        let mut places = BTreeMap::new();
        for (number, name) in dns.names.iter().enumerate() {
            let known = before.remove(&name.settings.name);
            let servers = match &name.from {
                From::Services { .. } => self.follow_services(number, name, &mut places),
                From::Servers(_) => Box::default(),
            };
            let running = self.run(name, known, servers);
            self.running.push(running);
        }
        self.by_name = (0..self.running.len()).collect();
        let name = |number: &usize| self.running.get(*number).map(|running| &running.config.settings.name);
        self.by_name.sort_by(|one, other| name(one).cmp(&name(other)));
        self.unknown = self.running.iter().map(Running::unknown).sum();
        self.nsid.clone_from(&dns.nsid);
        self.read = opened.files;
        (self.seen, self.is_new) = (None, true);
        self.dirty.clear();
        self.answering.limit.store(Arc::new(dns.limit));
        if let Err(error) = self.servers.follow(opened.sockets, &dns.listen) {
            tracing::error!("{error}");
        }
        self.due.clear();
        let now_ms = now_ms();
        self.probing.follow(config, opened.path_key, now_ms);
        for number in 0..self.running.len() {
            self.settle(number, now_ms);
        }
    }

    /// Has the services of a name be followed, and says at which places they are.
    fn follow_services(
        &mut self,
        number: usize,
        name: &NameConfig,
        places: &mut BTreeMap<(String, bool, bool), usize>,
    ) -> Box<[usize]> {
        let From::Services { names, own } = &name.from else { return Box::default() };
        let by_load = name.weighing().is_some();
        let place = |service: &String| {
            let place = *places.entry((service.clone(), *own, by_load)).or_insert_with(|| {
                self.followed.push(Followed::new(service.clone(), *own, by_load));
                self.followed.len() - 1
            });
            if let Some(followed) = self.followed.get_mut(place) {
                followed.names.push(number);
            }
            place
        };
        names.iter().map(place).collect()
    }

    /// Begins to answer for a name, or goes on.
    fn run(&self, config: &Arc<NameConfig>, known: Option<Running>, followed: Box<[usize]>) -> Running {
        let now_ms = now_ms();
        let settings = &config.settings;
        let (known, balanced, ranks_from) = match known {
            Some(Running { config, servers, balanced, ranks_from, .. }) => {
                (Some((config, servers)), balanced, ranks_from)
            }
            None => (None, Arc::new(Balanced::new(Arc::clone(settings), &[], [0, 0])), None),
        };
        let is_same = known.as_ref().is_some_and(|(before, _)| before.rank_from == config.rank_from);
        let ranks_from = ranks_from.filter(|_| is_same);
        let ranks_from =
            config.rank_from.as_ref().map(|_| ranks_from.unwrap_or_else(|| Box::new(RanksFrom::new(now_ms))));
        let servers = match (list_of(config), known) {
            (Some(list), known) => {
                let name = settings.name.to_string();
                let seed = identity(&name, "") ^ self.key.0;
                let mut states = match known {
                    Some((before, Source::Own(states))) => {
                        states.follow(list_of(&before).unwrap_or(list), list, seed, now_ms)
                    }
                    _ => ServerStates::new(list, seed, now_ms),
                };
                if !self.drained.is_empty() {
                    for (place, server) in list.servers.iter().enumerate() {
                        states.drain(place, self.drained.contains(&name, &server.name()));
                    }
                }
                Source::Own(states)
            }
            (None, Some((_, Source::Services { given, .. }))) => Source::Services { followed, given },
            (None, _) => Source::Services { followed, given: Vec::new() },
        };
        let config = Arc::clone(config);
        let ranking = Ranking::default();
        Running { config, servers, ranking, ranks_from, balanced, due_ms: u64::MAX, is_dirty: false }
    }

    /// It is known how servers are, or it was waited for long enough: queries are answered from now on.
    pub(super) fn begin(&mut self, snapshot: &Arc<Snapshot>) {
        self.is_begun = true;
        self.refresh(snapshot);
        if let Err(error) = self.servers.begin() {
            tracing::error!("{error}");
        }
    }

    /// The number of a name.
    fn number(&self, name: &dns::Name) -> Option<usize> {
        let of = |number: &usize| self.running.get(*number).map(|running| &running.config.settings.name);
        let at = self.by_name.binary_search_by(|number| of(number).cmp(&Some(name))).ok()?;
        self.by_name.get(at).copied()
    }

    /// A question has come back.
    pub(super) fn told(&mut self, Told { name, answer }: Told) {
        match answer {
            Answer::Server(server, fact) => self.answered(&name, server, fact),
            Answer::Ranks(read) => self.ranks_read(&name, read),
            Answer::Path(address, found) => self.path_probed(address, found),
        }
    }

    /// The path to a server was probed: names that ask for that are looked at anew if it is another one.
    fn path_probed(&mut self, address: IpAddr, found: Result<MeasuredPath, String>) {
        let PathChange { is_news, turned } = self.probing.probed(address, found, now_ms());
        if let Some(error) = turned {
            self.bus.tell(Event::Path { address, error });
        }
        if is_news {
            let asks = |number: &usize| self.running.get(*number).is_some_and(|one| one.probes(address));
            let numbers: Vec<usize> = (0..self.running.len()).filter(asks).collect();
            numbers.into_iter().for_each(|number| self.mark(number));
        }
    }

    /// Ranks that somebody else made were read, or can't be.
    fn ranks_read(&mut self, name: &Arc<NameConfig>, read: Result<String, String>) {
        let Some(number) = self.number(&name.settings.name) else { return };
        let Some(running) = self.running.get_mut(number).filter(|one| one.config.rank_from == name.rank_from)
        else {
            return;
        };
        let change = running.take_ranks(&self.followed, now_ms(), read);
        match change.turned {
            Some(Some(bad)) => {
                let path = name.rank_from.as_deref().unwrap_or(Path::new("")).display();
                tracing::warn!(name = %name.settings.name, %path, "ranks aren't believed: {bad}; those before count for three periods, then weights");
            }
            Some(None) => tracing::info!(name = %name.settings.name, "ranks are believed"),
            None => {}
        }
        if change.is_news {
            self.mark(number);
        }
        self.schedule(number);
    }

    /// A server of a name alone has answered, or hasn't.
    fn answered(&mut self, name: &Arc<NameConfig>, server: usize, fact: Fact) {
        self.questions.ended();
        // After a reload the name may have other servers, or be gone.
        let asked = list_of(name).and_then(|list| list.servers.get(server));
        let Some((asked, number)) = asked.zip(self.number(&name.settings.name)) else { return };
        let Some(running) = self.running.get_mut(number) else { return };
        let config = Arc::clone(&running.config);
        let (Some(list), Source::Own(states)) = (list_of(&config), &mut running.servers) else { return };
        let Some(place) = list.place_of(server, asked.address) else { return };
        let counts = matches!(fact, Fact::Probed(Ok(_))) && goes_by_latency(&config);
        let before = states.unknown();
        let effect = states.take(place, fact, now_ms());
        self.unknown = (self.unknown + states.unknown()).saturating_sub(before);
        if effect.is_news || counts {
            self.mark(number);
        }
        own::tell(&self.bus, &config, place, effect);
        self.schedule(number);
    }

    /// Time has passed.
    pub(super) fn time(&mut self) {
        let now_ms = now_ms();
        self.probing.poll(now_ms, self.questions.results());
        while let Some((_, number)) = self.due.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms) {
            self.settle(number, now_ms);
        }
    }

    /// When there is something to do next, in milliseconds of the monotonic clock.
    pub(super) fn next_at(&self) -> u64 {
        let due_ms = self.due.first().map_or(u64::MAX, |(at_ms, _)| *at_ms);
        due_ms.min(self.probing.next_at())
    }

    /// Whether it is known of every server whether it lives.
    pub(super) fn are_settled(&self) -> bool {
        self.unknown == 0
    }

    /// Does what is due for a name.
    fn settle(&mut self, number: usize, now_ms: u64) {
        let Some(running) = self.running.get_mut(number) else { return };
        let config = Arc::clone(&running.config);
        let mut is_news = running.ranking.due_ms() <= now_ms;
        if let Some(ranks) = &mut running.ranks_from {
            ranks.poll(&config, now_ms, self.questions.results());
        }
        if let Source::Own(states) = &mut running.servers {
            let (orders, effects) = states.poll(now_ms);
            for order in orders {
                self.questions.ask(&config, order);
            }
            for (place, effect) in effects {
                is_news |= effect.is_news;
                own::tell(&self.bus, &config, place, effect);
            }
        }
        if is_news {
            self.mark(number);
        }
        self.schedule(number);
    }

    /// Has a name looked at anew before the next answer.
    fn mark(&mut self, number: usize) {
        if let Some(running) = self.running.get_mut(number).filter(|running| !running.is_dirty) {
            running.is_dirty = true;
            self.dirty.push(number);
        }
    }

    /// Puts a name where it belongs among those that have something to do.
    fn schedule(&mut self, number: usize) {
        let Some(running) = self.running.get_mut(number) else { return };
        let due_ms = running.next_at();
        let before = std::mem::replace(&mut running.due_ms, due_ms);
        if before != due_ms {
            self.due.remove(&(before, number));
        }
        if due_ms != u64::MAX {
            self.due.insert((due_ms, number));
        }
    }

    /// Whether a name of the file is this one.
    pub(super) fn has(&self, name: &str) -> bool {
        dns::Name::parse(name).is_ok_and(|name| self.number(&name).is_some())
    }

    /// Drains a server of a name, or ends that.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn drain(&mut self, name: &str, server: &str, drain: bool) -> Result<String, String> {
        let found = dns::Name::parse(name).ok().and_then(|name| self.number(&name));
        let running = found.and_then(|number| self.running.get_mut(number));
        let (Some(number), Some(running)) = (found, running) else {
            return Err(format!("there is no name {name}"));
        };
        let config = Arc::clone(&running.config);
        let name = config.settings.name.to_string();
        let (Some(list), Source::Own(states)) = (list_of(&config), &mut running.servers) else {
            return Err(format!(
                "{name} has no servers of its own: drain those of its services, as SERVICE/SERVER"
            ));
        };
        let names: Vec<_> = list.servers.iter().map(dns::OwnServer::name).collect();
        let Some(place) = names.iter().position(|known| known == server) else {
            let meant = meant(server, names.iter().map(AsRef::as_ref));
            return Err(format!("name {name} has no server {server}; {meant}"));
        };
        let changed = states.drain(place, drain);
        let others_live = states.views(list, now_ms()).any(|(_, view)| view.state == State::Up);
        if changed {
            let member = Some(if drain { MemberChange::Drained } else { MemberChange::Undrained });
            own::tell(&self.bus, &config, place, dns::Effect { member, ..dns::Effect::default() });
            self.mark(number);
        }
        let full = format!("{name}/{server}");
        self.drained
            .set(&name, server, drain)
            .map_err(|error| format!("{full}: done, but it will be forgotten at a restart: {error}"))?;
        Ok(match (drain, changed) {
            (true, true) if others_live => format!("{full} drains: its address is no longer given"),
            (true, true) => {
                format!("{full} drains; no other server of {name} lives: `none_alive` says what is answered")
            }
            (true, false) => format!("{full} was draining already"),
            (false, true) => format!("{full} is given again"),
            (false, false) => format!("{full} was not drained"),
        })
    }

    /// Has the next daemon know nothing of who is drained.
    pub(super) fn forget_drained(&self) {
        self.drained.forget();
    }

    /// Answers by what is known now, if that is something else than before.
    pub(super) fn refresh(&mut self, snapshot: &Arc<Snapshot>) {
        // Until then each answer of a server would be the reason to make a name anew that nobody is answered by.
        if !self.is_begun {
            return;
        }
        self.look_at_services(snapshot);
        if !self.is_new && self.dirty.is_empty() {
            return;
        }
        let now_ms = now_ms();
        if std::mem::take(&mut self.is_new) {
            self.dirty.clear();
            let all = 0..self.running.len();
            let looks = all.filter_map(|number| self.look(number, now_ms));
            let (balanced, shown): (Vec<_>, Vec<_>) = looks.unzip();
            let zones = self.read.zones.iter().cloned();
            let names = dns::Names::new(zones, balanced, self.key, &self.nsid);
            self.answering.names.store(Arc::new(names.with_cookie_secrets(&self.read.cookie_secrets)));
            self.shown.publish(shown.into_iter().collect());
            heap::give_back();
            return;
        }
        let (mut balanced, mut shown) = (Vec::new(), Vec::new());
        for number in std::mem::take(&mut self.dirty) {
            if let Some((answers, looks)) = self.look(number, now_ms) {
                balanced.push((number, answers));
                shown.push((number, looks));
            }
        }
        self.answering.names.store(Arc::new(self.answering.names.load().with(balanced)));
        self.shown.publish(self.shown.latest().with(shown));
    }

    fn look(&mut self, number: usize, now_ms: u64) -> Option<(Arc<Balanced>, Arc<ShownName>)> {
        let running = self.running.get_mut(number)?;
        running.is_dirty = false;
        let looks = running.look(&self.followed, &self.probing, now_ms);
        self.files.write(&running.config, &looks.1);
        self.schedule(number);
        Some(looks)
    }

    /// Marks names whose services are otherwise than they were.
    fn look_at_services(&mut self, snapshot: &Arc<Snapshot>) {
        let is_seen = |seen: &Arc<Snapshot>| Arc::ptr_eq(seen, snapshot);
        if self.followed.is_empty() || self.seen.as_ref().is_some_and(is_seen) {
            return;
        }
        let followed = self.followed.iter_mut();
        let changed = followed.filter_map(|one| one.look(snapshot).then(|| one.names.clone()));
        let changed: Vec<usize> = changed.flatten().collect();
        changed.into_iter().for_each(|number| self.mark(number));
        self.seen = Some(Arc::clone(snapshot));
    }
}

/// Whether what a probe took changes shares.
fn goes_by_latency(config: &NameConfig) -> bool {
    let signals = Signals { latency_us: Some(1), ..Signals::default() };
    config.weighing().is_some_and(|weighing| (weighing.load)(&signals).is_some())
}
