//! The loop's part in names: their own servers are probed, and whoever answers goes by what is known of all of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use evener_core::director::{ServerState, Snapshot};
use evener_core::dns::{self, Address, Balanced, Known, Zone, shares};
use evener_core::farm::group::{MemberState, State};
use evener_core::farm::report::Report;
use evener_core::farm::signals::Signals;
use evener_core::farm::{Service, policy::Weighing};
use evener_core::path::sessions::Seed;
use tokio::sync::mpsc;

mod own;

use own::OwnServers;
pub(super) use own::Told;

use super::groups::moment;
use crate::config::{Config, DnsConfig, From, NameConfig, ZoneError, zones};
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
    /// A zone can't be had.
    #[error(transparent)]
    Zone(#[from] ZoneError),
}

/// What a file's names need, before anybody answers by it.
pub(super) struct OpenedNames {
    sockets: Opened,
    zones: Vec<Arc<Zone>>,
}

/// A balanced name.
struct Running {
    config: NameConfig,
    /// Its own servers, if it has some.
    own: Option<OwnServers>,
    /// How often addresses were given, by server.
    given: BTreeMap<(String, IpAddr), Arc<AtomicU64>>,
}

/// All that names are answered by.
pub(super) struct Names {
    dns: DnsConfig,
    zones: Vec<Arc<Zone>>,
    /// In the order of the file.
    running: Vec<Running>,
    servers: Servers,
    answering: Arc<Answering>,
    key: Seed,
    bus: Bus,
    results: mpsc::Sender<Told>,
    pub(super) told: mpsc::Receiver<Told>,
    shown: Arc<Shown>,
    /// By what was answered last.
    seen: Option<(Arc<Snapshot>, Arc<Vec<ShownGroup>>)>,
}

/// A server that may be given, as it is now.
struct Candidate {
    server: String,
    address: IpAddr,
    state: &'static str,
    lives: bool,
    known: Known,
    /// Why it isn't up.
    reason: Option<String>,
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
            zones: Vec::new(),
            running: Vec::new(),
            servers: Servers::new(Arc::clone(&answering)),
            answering,
            key,
            bus,
            results,
            told,
            shown,
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
    pub(super) fn open(&self, config: &Config) -> Result<OpenedNames, OpenError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Serial numbers wrap (RFC 1982).
        let zones = zones(&config.dns, since.as_secs() as u32)?.into_iter().map(Arc::new).collect();
        Ok(OpenedNames { sockets: self.servers.open(&config.dns.listen)?, zones })
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
                Running { config: name.clone(), own, given }
            })
            .collect();
        self.dns = config.dns.clone();
        self.zones = opened.zones;
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
        if self.next_at() <= moment().now_ms {
            self.settle();
        }
    }

    /// When there is something to do next, in milliseconds of the monotonic clock.
    pub(super) fn next_at(&self) -> u64 {
        self.own().map(OwnServers::next_at).min().unwrap_or(u64::MAX)
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
        if self.dns.zones.is_empty() && self.zones.is_empty() || self.seen.as_ref().is_some_and(is_seen) {
            return;
        }
        let before = self.answering.names.load_full();
        let (mut balanced, mut names) = (Vec::new(), Vec::new());
        for (number, running) in self.running.iter_mut().enumerate() {
            let turn = before.balanced().get(number).map_or(0, |balanced| balanced.turn());
            let shown = running.look(snapshot, groups);
            let addresses: Vec<Address> = shown.addresses.iter().map(address).collect();
            balanced.push(Arc::new(Balanced::new(running.config.settings.clone(), &addresses, turn)));
            names.push(shown);
        }
        let zones = self.zones.iter().cloned();
        self.answering.names.store(Arc::new(dns::Names::new(zones, balanced, self.key, &self.dns.nsid)));
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
        let weighing = self.config.policy.load.and_then(|policy| policy.weighing());
        let alive: Vec<Known> = candidates.iter().filter(|one| one.lives).map(|one| one.known).collect();
        let mut shares = shares(weighing, &alive).into_iter();
        let addresses = candidates.into_iter().map(|candidate| {
            let share = if candidate.lives { shares.next() } else { None };
            let cause = cause(&candidate, weighing, share);
            let Candidate { server, address, state, known: Known { signals, weight, .. }, .. } = candidate;
            let given = self.given.entry((server.clone(), address)).or_default();
            ShownAddress {
                address,
                state,
                // What lives no more keeps its weight, for when nobody does.
                share: share.map_or(weight, |share| share.share),
                given: Arc::clone(given),
                delay_us: signals.report.delay_us,
                age_ms: signals.age_ms,
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
            addresses,
        }
    }
}

/// Why an address has its share, in words.
fn cause(candidate: &Candidate, weighing: Option<&Weighing>, share: Option<dns::Share>) -> String {
    let Some(share) = share else {
        return candidate.reason.clone().unwrap_or_else(|| candidate.state.to_owned());
    };
    let starts = match candidate.known.tenths {
        10.. => String::new(),
        tenths => format!("slow start {} %", tenths * 10),
    };
    let load = weighing.map(|weighing| match (weighing.said)(&candidate.known.signals) {
        Some(said) => said,
        None => "no report: median".to_owned(),
    });
    let weight = weighing.is_none().then(|| format!("weight {}", candidate.known.weight));
    let said = [Some(starts).filter(|text| !text.is_empty()), load, weight];
    let said: Vec<String> = said.into_iter().flatten().collect();
    match weighing {
        Some(_) => format!("{}: {} % of its weight", said.join(", "), share.permille / 10),
        None => said.join(", "),
    }
}

fn of_service(name: &str, own: bool, snapshot: &Snapshot, groups: &[ShownGroup]) -> Vec<Candidate> {
    if let Some(shown) = groups.iter().find(|shown| shown.group.name == name) {
        let members: Vec<Candidate> = shown.members.iter().filter_map(of_member).collect();
        return if own {
            site(name, shown.group.addresses.iter().map(|at| at.ip()), &members)
        } else {
            members
        };
    }
    let Some(service) = snapshot.farm.service(name) else { return Vec::new() };
    let Some(seen) = snapshot.services.iter().find(|seen| seen.name == name) else { return Vec::new() };
    let servers: Vec<Candidate> = seen
        .servers
        .iter()
        .flat_map(|server| {
            let known =
                Known { weight: server.member.weight, tenths: server.tenths, signals: server.signals };
            published(service, &server.name.server, server.address).into_iter().map(move |address| {
                Candidate {
                    server: server.name.server.clone(),
                    address,
                    state: server.state.name(),
                    lives: server.state == ServerState::Up,
                    known,
                    reason: server.reason.clone(),
                }
            })
        })
        .collect();
    if own { site(name, service.addresses.iter().map(|at| at.ip()), &servers) } else { servers }
}

/// By which addresses clients come to a server: its own, or where every host decides those that it answers for.
fn published(service: &Service, server: &str, own: Option<IpAddr>) -> Vec<IpAddr> {
    let listed = service.servers.iter().find(|listed| listed.name == server);
    match listed.filter(|_| service.is_on_every_host()) {
        Some(listed) => listed.publish.clone(),
        None => own.into_iter().collect(),
    }
}

/// A service's own addresses, which live as long as one of its servers does, and have all their weight.
fn site(name: &str, addresses: impl Iterator<Item = IpAddr>, servers: &[Candidate]) -> Vec<Candidate> {
    let alive = || servers.iter().filter(|server| server.lives);
    let weight = alive().map(|server| u32::from(server.known.weight)).sum::<u32>();
    let lives = weight > 0;
    let mut addresses: Vec<IpAddr> = addresses.collect();
    addresses.dedup();
    let candidate = |address| Candidate {
        server: name.to_owned(),
        address,
        state: if lives { ServerState::Up.name() } else { ServerState::Down.name() },
        lives,
        known: Known {
            weight: u16::try_from(weight.max(1)).unwrap_or(u16::MAX),
            tenths: 10,
            signals: Signals::default(),
        },
        reason: (!lives).then(|| "none of its servers lives".to_owned()),
    };
    addresses.into_iter().map(candidate).collect()
}

/// The address in a member's URL. One that has a name there is resolved by its clients.
fn address_of(member: &MemberState) -> Option<IpAddr> {
    member.joiner.url.host().trim_matches(['[', ']']).parse().ok()
}

/// A member that has an address.
fn of_member(member: &MemberState) -> Option<Candidate> {
    let address = address_of(member)?;
    let signals = Signals {
        latency_us: member.latency_us,
        report: Report { load_milli: member.reported, ..Report::default() },
        age_ms: member.age_ms,
        ..Signals::default()
    };
    let failed = member.last_failure.as_ref().filter(|_| member.state == State::Down);
    Some(Candidate {
        server: member.name.clone(),
        address,
        state: member.state.name(),
        lives: member.state == State::Up && member.joiner.weight > 0,
        known: Known {
            weight: member.joiner.weight,
            tenths: u16::try_from(member.weight_percent.div_ceil(10)).unwrap_or(10),
            signals,
        },
        reason: failed.map(|(_, failure)| failure.to_string()),
    })
}
