//! Exchange of reports between the directors of a farm. A report contains the director's release,
//! configuration, readiness, and the values that operators have set.
//!
//! Directors with the same file and key select the same servers without this protocol. Reports are
//! for status output only, and no packet depends on them. [`super::association`] decides which
//! datagrams are accepted, so clocks may differ by hours. A director is identified by its address
//! in the file.
//!
//! [`Directors`] is a state machine: its inputs are datagrams and the time, and its outputs are
//! datagrams and events. [`Directors::known`] is the state. Sequence of calls: [`Directors::new`],
//! then [`Directors::set_own`]; [`Directors::tick`] at [`Directors::next_at`];
//! [`Directors::receive`] for each datagram.

mod replication;
#[cfg(test)]
mod tests;
mod wire;

pub use replication::{ReplicatedSession, ReplicationCounts, SessionPlace};
pub use wire::{Changes, DirectorReport, VERSION};

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use super::association::{
    Association, Delivery, Handshake, MessageVerdict, Numbers, ReceivedMessage, Refusal, SenderCounts,
};
use super::envelope::{Envelope, ReadError, digest};
use super::secret::Key;
use super::sending::{SendTimes, pause_ms};
use replication::Streams;

/// Label for the derivation of the datagrams' key: see [`super::secret::Secret::derive`].
pub const LABEL: &str = "evener directors";

/// Settings of this director and the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectorSettings {
    /// Own address, as in the file.
    pub own: IpAddr,
    /// Addresses of the other directors.
    pub others: BTreeSet<IpAddr>,
    /// Time between two datagrams to a director, in milliseconds.
    pub interval_ms: u64,
    /// Time without datagrams after which a director is silent, in milliseconds.
    pub silence_ms: u64,
    /// Key derived from the farm's secret with [`LABEL`].
    pub key: Key,
}

/// Known state of another director.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDirector {
    /// Address in the file.
    pub address: IpAddr,
    /// Counters of the sessions that both directors have told.
    pub replication: ReplicationCounts,
    /// True unless the director is silent.
    pub alive: bool,
    /// Time of the last change of `alive`, in milliseconds.
    pub since_ms: u64,
    /// Time of the last accepted datagram, in milliseconds.
    pub received_ms: Option<u64>,
    /// Last report; `None` if the director has another protocol version, or has not reported.
    pub report: Option<DirectorReport>,
    /// Reason why all datagrams of the director are refused; `None` if one is accepted or the
    /// reason is unknown.
    pub trouble: Option<Refusal>,
}

/// Difference between another director and this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectorDifference {
    /// The file or the key differs.
    File,
    Release {
        /// Release of the other director.
        theirs: String,
    },
    /// The values that operators have set differ.
    Changes {
        /// Values that only the other director has, as far as its report contains them.
        theirs: Vec<String>,
        /// Values that only this director has.
        ours: Vec<String>,
    },
    /// Both directors have this service address at the same time.
    Shared(IpAddr),
}

/// Event that concerns another director.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectorEvent {
    /// A silent director sends datagrams again.
    Answers(IpAddr),
    /// A director is silent.
    Silent(IpAddr),
    /// A datagram was refused, for the first time for this reason.
    Refused {
        /// Claimed sender; `None` if unknown.
        director: Option<IpAddr>,
        refusal: Refusal,
    },
    /// Another director and this one have had the same service address for the time of silence.
    AddressShared { director: IpAddr, address: IpAddr },
}

impl DirectorEvent {
    /// Director that the event concerns; `None` if that is not certain.
    pub fn director(&self) -> Option<IpAddr> {
        match self {
            DirectorEvent::Answers(director)
            | DirectorEvent::Silent(director)
            | DirectorEvent::AddressShared { director, .. } => Some(*director),
            DirectorEvent::Refused { director, .. } => *director,
        }
    }
}

impl fmt::Display for DirectorEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectorEvent::Answers(director) => write!(f, "director {director} sends reports"),
            DirectorEvent::Silent(director) => write!(f, "director {director} sends no more reports"),
            DirectorEvent::Refused { director: Some(director), refusal } => {
                write!(f, "director {director}: {refusal}")
            }
            DirectorEvent::Refused { director: None, refusal } => {
                write!(f, "a message to directors: {refusal}")
            }
            DirectorEvent::AddressShared { director, address } => {
                write!(
                    f,
                    "this host and director {director} both have {address}: do they hear each other's VRRP?"
                )
            }
        }
    }
}

/// Effect of a datagram or of a tick.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DirectorEffect {
    pub datagrams: Vec<(IpAddr, Vec<u8>)>,
    pub events: Vec<DirectorEvent>,
    /// Sessions that another director has told.
    pub replicated: Vec<ReplicatedSession>,
}

#[derive(Clone, Debug)]
struct DirectorLink {
    address: IpAddr,
    association: Association,
    since_ms: u64,
    report: Option<DirectorReport>,
    streams: Streams,
}

/// State of the other directors.
#[derive(Clone, Debug)]
pub struct Directors {
    settings: DirectorSettings,
    incarnation: u64,
    /// Highest sequence number that was sent to a removed director. If the director is configured
    /// again, numbers continue after this one, since the director may remember earlier numbers.
    last_sequence_of_removed: u64,
    own: DirectorReport,
    /// Other directors, by digest of their addresses.
    links: BTreeMap<u64, DirectorLink>,
    /// Counters of datagrams without a known sender.
    others: SenderCounts,
    sending: SendTimes,
    /// Service addresses that another director has as well: since when, in milliseconds, and
    /// whether an event was emitted.
    shared: BTreeMap<(IpAddr, IpAddr), (u64, bool)>,
}

impl Directors {
    /// Returns the state before any datagram. `incarnation` is random for each start.
    pub fn new(settings: DirectorSettings, incarnation: u64, now_ms: u64) -> Directors {
        let mut directors = Directors {
            settings,
            incarnation: incarnation.max(1),
            last_sequence_of_removed: 0,
            own: DirectorReport::default(),
            links: BTreeMap::new(),
            others: SenderCounts::default(),
            sending: SendTimes::new(now_ms),
            shared: BTreeMap::new(),
        };
        directors.arrange(now_ms);
        directors
    }

    /// Applies other settings after a reload. The state of directors that are still configured
    /// stays.
    pub fn reconfigure(&mut self, settings: DirectorSettings, now_ms: u64) {
        self.settings = settings;
        self.arrange(now_ms);
        self.sending.send_soon(self.settings.interval_ms);
    }

    fn arrange(&mut self, now_ms: u64) {
        let wanted: BTreeMap<u64, IpAddr> =
            self.settings.others.iter().map(|address| (name_of(*address), *address)).collect();
        let last_sequence_of_removed = &mut self.last_sequence_of_removed;
        self.links.retain(|name, link| {
            let stays = wanted.contains_key(name);
            *last_sequence_of_removed = if stays {
                *last_sequence_of_removed
            } else {
                link.association.sequence().max(*last_sequence_of_removed)
            };
            stays
        });
        let silence_ms = self.settings.silence_ms;
        for (name, address) in wanted {
            let link = self.links.entry(name).or_insert_with(|| DirectorLink {
                address,
                association: Association::new(
                    Delivery::Latest,
                    self.incarnation,
                    silence_ms,
                    self.last_sequence_of_removed,
                ),
                since_ms: now_ms,
                report: None,
                streams: Streams::default(),
            });
            link.association.set_silence(silence_ms);
        }
    }

    /// Sets this director's report. A changed report is sent soon.
    pub fn set_own(&mut self, own: DirectorReport) {
        if self.own != own {
            self.own = own;
            self.sending.send_soon(self.settings.interval_ms);
        }
    }

    /// Applies a datagram from any sender.
    pub fn receive(&mut self, now_ms: u64, bytes: &[u8]) -> DirectorEffect {
        let envelope = match Envelope::read(bytes, &self.settings.key) {
            Ok(envelope) if ![wire::KIND, replication::KIND].contains(&envelope.kind) => {
                return self.refuse(None, Refusal::Malformed);
            }
            Ok(envelope) => envelope,
            Err(ReadError::Malformed) => return self.refuse(None, Refusal::Malformed),
            Err(ReadError::Forged { claimed }) => {
                if let Some(link) = self.links.get_mut(&claimed) {
                    link.association.suspect(Refusal::Forged);
                }
                return self.refuse(None, Refusal::Forged);
            }
        };
        let own = name_of(self.settings.own);
        if envelope.sender == own {
            let is_mirrored = envelope.numbers.incarnation == self.incarnation;
            return self.refuse(None, if is_mirrored { Refusal::Replayed } else { Refusal::Namesake });
        }
        let Some(link) = self.links.get_mut(&envelope.sender) else {
            return self.refuse(None, Refusal::Stranger);
        };
        if envelope.receiver != own {
            return self.refuse(Some(envelope.sender), Refusal::Misdirected);
        }
        if envelope.kind == replication::KIND {
            return self.receive_replication(now_ms, &envelope);
        }
        let Envelope { sender, numbers, echo, .. } = envelope;
        let message = ReceivedMessage { numbers, echo, handshake: Handshake::Hello };
        let mut effect = DirectorEffect::default();
        let is_answered = match link.association.judge(now_ms, message) {
            MessageVerdict::Refused(Refusal::Stale) => {
                link.association.refuse(Refusal::Stale);
                true
            }
            MessageVerdict::Refused(refusal) => return self.refuse(Some(sender), refusal),
            MessageVerdict::Hello => true,
            MessageVerdict::Good { first, revived } => {
                if revived {
                    link.since_ms = now_ms;
                    effect.events.push(DirectorEvent::Answers(link.address));
                }
                effect.events.extend(link.believe(&envelope));
                first
            }
        };
        effect.datagrams.extend(is_answered.then(|| self.answer(now_ms, sender, numbers)).flatten());
        effect
    }

    /// Expires silent directors, and returns the datagrams that are due.
    pub fn tick(&mut self, now_ms: u64) -> DirectorEffect {
        let mut effect = DirectorEffect::default();
        for link in self.links.values_mut().filter(|link| link.association.is_alive()) {
            if link.association.expire(now_ms) {
                link.since_ms = now_ms;
                // The director misses what is told while it is silent.
                link.streams.restart();
                effect.events.push(DirectorEvent::Silent(link.address));
            }
        }
        effect.events.extend(self.look_for_shared(now_ms));
        if now_ms >= self.sending.due_ms() {
            self.sending.sent(now_ms, self.settings.interval_ms);
            let to: Vec<(u64, Numbers)> =
                self.links.iter().map(|(name, link)| (*name, link.association.echo())).collect();
            effect.datagrams =
                to.into_iter().filter_map(|(name, echo)| self.datagram(now_ms, name, echo)).collect();
        }
        effect
    }

    /// Returns an event for each address that has just been shared for the time of silence. An
    /// address that moves may be in the reports of both directors for a moment.
    fn look_for_shared(&mut self, now_ms: u64) -> Vec<DirectorEvent> {
        let alive = self.links.values().filter(|link| link.association.is_alive());
        let reports = alive.filter_map(|link| Some((link.address, link.report.as_ref()?)));
        let shared: BTreeSet<(IpAddr, IpAddr)> = reports
            .flat_map(|(director, report)| report.held.iter().map(move |address| (director, *address)))
            .filter(|(_, address)| self.own.held.contains(address))
            .collect();
        // A director that is silent for a moment may still have the address.
        let is_silent = |director: &IpAddr| {
            let mut links = self.links.values().filter(|link| link.address == *director);
            links.any(|link| !link.association.is_alive())
        };
        self.shared.retain(|known, _| shared.contains(known) || is_silent(&known.0));
        let mut events = Vec::new();
        for (director, address) in shared {
            let (since_ms, is_reported) = self.shared.entry((director, address)).or_insert((now_ms, false));
            if !*is_reported && now_ms.saturating_sub(*since_ms) >= self.settings.silence_ms {
                *is_reported = true;
                events.push(DirectorEvent::AddressShared { director, address });
            }
        }
        events
    }

    /// Time of the next work for [`Directors::tick`], in milliseconds.
    pub fn next_at(&self) -> u64 {
        let expiries = self.links.values().filter_map(|link| link.association.alive_until_ms());
        expiries.fold(self.sending.due_ms(), u64::min)
    }

    /// Applies a datagram with sessions. The reports decide which incarnations are believed.
    fn receive_replication(&mut self, now_ms: u64, envelope: &Envelope<'_>) -> DirectorEffect {
        let own = self.incarnation;
        let Some(link) = self.links.get_mut(&envelope.sender) else { return DirectorEffect::default() };
        let is_believed = link.replicates()
            && envelope.version == VERSION
            && envelope.echo.incarnation == own
            && link.association.believed() == Some(envelope.numbers.incarnation);
        if !is_believed {
            return DirectorEffect::default();
        }
        link.streams.follow(envelope.numbers.incarnation);
        match link.streams.receive(now_ms, envelope.numbers.sequence, envelope.body) {
            Ok(replicated) => DirectorEffect { replicated, ..DirectorEffect::default() },
            Err(_) => self.refuse(Some(envelope.sender), Refusal::Malformed),
        }
    }

    /// True if sessions are exchanged with any director.
    pub fn has_listeners(&self) -> bool {
        self.links.values().any(DirectorLink::replicates)
    }

    /// Tells all other directors of a session.
    pub fn replicate(&mut self, session: &ReplicatedSession) {
        let links = self.links.values_mut().filter(|link| link.replicates());
        links.for_each(|link| link.streams.replicate(session));
    }

    /// Returns the directors whose bulk has room for sessions, with the next bucket of each.
    pub fn bulks(&self) -> Vec<(IpAddr, usize)> {
        let links = self.links.values().filter(|link| link.replicates());
        links.filter_map(|link| Some((link.address, link.streams.bulk_from()?))).collect()
    }

    /// Tells a director the sessions of its bulk up to a bucket. `next` is `None` at the end.
    pub fn replicate_bulk(&mut self, to: IpAddr, sessions: &[ReplicatedSession], next: Option<usize>) {
        if let Some(link) = self.links.get_mut(&name_of(to)) {
            sessions.iter().for_each(|session| link.streams.replicate(session));
            link.streams.bulk_to(next);
        }
    }

    /// Returns the datagrams with sessions that are due. Call it every few dozen milliseconds.
    pub fn replication_datagrams(&mut self, now_ms: u64) -> Vec<(IpAddr, Vec<u8>)> {
        let (sender, incarnation) = (name_of(self.settings.own), self.incarnation);
        let mut datagrams = Vec::new();
        for (receiver, link) in self.links.iter_mut().filter(|(_, link)| link.replicates()) {
            let Some(theirs) = link.association.believed() else { continue };
            link.streams.follow(theirs);
            for body in link.streams.bodies(now_ms) {
                let envelope = Envelope {
                    version: VERSION,
                    kind: replication::KIND,
                    sender,
                    receiver: *receiver,
                    numbers: Numbers { incarnation, sequence: link.streams.next_sequence() },
                    echo: Numbers { incarnation: theirs, sequence: 0 },
                    body: &body,
                };
                datagrams.push((link.address, envelope.write(&self.settings.key)));
            }
        }
        datagrams
    }

    /// Returns the directors that have not told all of their sessions yet, or are silent.
    pub fn incomplete(&self) -> Vec<IpAddr> {
        let is_incomplete = |link: &&DirectorLink| match link.replicates() {
            true => !link.streams.is_complete(),
            // A director of another release tells nothing.
            false => !link.association.is_alive(),
        };
        self.links.values().filter(is_incomplete).map(|link| link.address).collect()
    }

    /// Returns the other directors, sorted by address. If a director has reported several addresses
    /// of the file, only the address from which it sends is included.
    pub fn known(&self) -> Vec<KnownDirector> {
        let reports = self.links.values().filter_map(|link| Some((link.address, link.report.as_ref()?)));
        let more: BTreeSet<IpAddr> = reports
            .flat_map(|(at, report)| report.addresses.iter().copied().filter(move |address| *address != at))
            .collect();
        let is_own_name =
            |link: &&DirectorLink| link.association.received_ms().is_some() || !more.contains(&link.address);
        let links = self.links.values().filter(is_own_name);
        let mut known: Vec<KnownDirector> = links.map(DirectorLink::known).collect();
        known.sort_unstable_by_key(|one| one.address);
        known
    }

    /// Returns the differences between another director and this one. The list is empty while the
    /// other director is silent.
    pub fn differences(&self, other: &KnownDirector) -> Vec<DirectorDifference> {
        let Some(theirs) = other.report.as_ref().filter(|_| other.alive) else { return Vec::new() };
        let differ =
            |ours: &Option<_>, theirs: &Option<_>| ours.is_some() && theirs.is_some() && ours != theirs;
        let mut found = Vec::new();
        found.extend(differ(&self.own.fingerprint, &theirs.fingerprint).then_some(DirectorDifference::File));
        let release = theirs.release.clone().filter(|theirs| self.own.release.as_ref() != Some(theirs));
        found.extend(release.map(|theirs| DirectorDifference::Release { theirs }));
        if let (Some(ours), Some(theirs)) = (&self.own.changes, &theirs.changes)
            && ours.digest != theirs.digest
        {
            let only = |of: &Changes, than: &Changes| -> Vec<String> {
                of.lines.iter().filter(|line| !than.lines.contains(line)).cloned().collect()
            };
            let (theirs, ours) = (only(theirs, ours), only(ours, theirs));
            found.push(DirectorDifference::Changes { theirs, ours });
        }
        let shared = theirs.held.iter().filter(|address| self.own.held.contains(address));
        found.extend(shared.map(|address| DirectorDifference::Shared(*address)));
        found
    }

    /// Counters of datagrams since the start.
    #[cfg(test)]
    fn counters(&self) -> super::association::MessageCounters {
        let mut all = self.others.counters;
        self.links.values().for_each(|link| all.add(link.association.counters()));
        all
    }

    fn refuse(&mut self, sender: Option<u64>, refusal: Refusal) -> DirectorEffect {
        let (director, is_news) = match sender.and_then(|sender| self.links.get_mut(&sender)) {
            Some(link) => {
                link.association.suspect(refusal);
                (Some(link.address), link.association.refuse(refusal))
            }
            None => (None, self.others.refuse(refusal)),
        };
        let event = is_news.then_some(DirectorEvent::Refused { director, refusal });
        DirectorEffect { events: event.into_iter().collect(), ..DirectorEffect::default() }
    }

    /// Returns an answer that echoes a datagram, for the director's address in the file. `None` if
    /// the rate limit forbids an answer.
    fn answer(&mut self, now_ms: u64, to: u64, echo: Numbers) -> Option<(IpAddr, Vec<u8>)> {
        let pause_ms = pause_ms(self.settings.interval_ms);
        let may = self.links.get_mut(&to).is_some_and(|link| link.association.may_answer(now_ms, pause_ms));
        may.then(|| self.datagram(now_ms, to, echo))?
    }

    fn datagram(&mut self, now_ms: u64, to: u64, echo: Numbers) -> Option<(IpAddr, Vec<u8>)> {
        let link = self.links.get_mut(&to)?;
        let envelope = Envelope {
            version: VERSION,
            kind: wire::KIND,
            sender: name_of(self.settings.own),
            receiver: to,
            numbers: link.association.next_at(now_ms),
            echo,
            body: &self.own.write(),
        };
        Some((link.address, envelope.write(&self.settings.key)))
    }
}

impl DirectorLink {
    /// True if sessions are exchanged with the director.
    fn replicates(&self) -> bool {
        self.association.is_alive() && self.report.as_ref().is_some_and(|report| report.replicates)
    }

    fn believe(&mut self, envelope: &Envelope<'_>) -> Option<DirectorEvent> {
        let refusal = match envelope.version {
            VERSION => match DirectorReport::read(envelope.body) {
                Ok(report) => {
                    let before = self.report.as_ref().and_then(|before| before.fingerprint);
                    if before.is_some() && before != report.fingerprint {
                        self.streams.repeat_bulk();
                    }
                    self.report = Some(report);
                    return None;
                }
                Err(_) => Refusal::Malformed,
            },
            theirs => Refusal::Version { theirs, ours: VERSION },
        };
        self.report = None;
        self.association.suspect(refusal);
        let is_news = self.association.refuse(refusal);
        is_news.then_some(DirectorEvent::Refused { director: Some(self.address), refusal })
    }

    fn known(&self) -> KnownDirector {
        KnownDirector {
            address: self.address,
            replication: self.streams.counts,
            alive: self.association.is_alive(),
            since_ms: self.since_ms,
            received_ms: self.association.received_ms(),
            report: self.report.clone(),
            trouble: self.association.trouble(),
        }
    }
}

/// Returns the digest of an address, by which datagrams name a director.
fn name_of(address: IpAddr) -> u64 {
    digest(&address.to_string())
}
