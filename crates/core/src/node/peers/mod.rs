//! Hosts of an every-host farm: their liveness, load, health and ownership of service addresses.
//!
//! Every host sends its report to every other host in separate datagrams, several times in the time
//! after which a host counts as silent (`docs/how-it-works/peers.md`). A datagram is accepted if it
//! is authentic, in order and fresh, which [`super::association`] decides. Refused datagrams only
//! change counters. Clocks are not compared, so they may be wrong or jump.
//!
//! [`Peers`] is a state machine: its inputs are datagrams and the time. Its outputs are datagrams,
//! addresses to probe or announce, and [`PeerEvent`]s. [`Peers::hosts`] and [`Peers::owned`] return
//! its state.
//!
//! Sequence of calls: [`Peers::new`] once, then [`Peers::set_own`]; [`Peers::tick`] at
//! [`Peers::next_at`]; [`Peers::receive`] for each datagram, which may return an answer. Two hosts
//! are associated once each has received an echo of its own incarnation.
//!
//! ```
//! use evener_core::node::peers::{HostSetting, PeerSettings, Peers};
//! use evener_core::node::secret::Key;
//!
//! let names = ["web1", "web2"];
//! let host = |number: usize| HostSetting {
//!     name: names[number].to_owned(),
//!     address: [192, 0, 2, 11 + number as u8].into(),
//! };
//! let begin = |number: usize| {
//!     let settings = PeerSettings {
//!         name: names[number].to_owned(),
//!         hosts: vec![host(0), host(1)],
//!         services: vec!["web".to_owned()],
//!         addresses: Vec::new(),
//!         generation: 1,
//!         interval_ms: 500,
//!         silence_ms: 3_000,
//!         key: Key([7; 32]),
//!     };
//!     Peers::new(settings, 100 + number as u64, 0)
//! };
//! let mut hosts = [begin(0), begin(1)];
//! for now_ms in (0..5_000).step_by(100) {
//!     for number in 0..2 {
//!         let mut datagrams: Vec<Vec<u8>> = Vec::new();
//!         if hosts[number].next_at() <= now_ms {
//!             datagrams.extend(hosts[number].tick(now_ms).datagrams.into_iter().map(|(_, one)|
//!             one));
//!         }
//!         let mut to = 1 - number;
//!         while let Some(datagram) = datagrams.pop() {
//!             let effect = hosts[to].receive(now_ms, &datagram);
//!             datagrams = effect.answer.into_iter().map(|(_, one)| one).collect();
//!             to = 1 - to;
//!         }
//!     }
//! }
//! assert!(hosts.iter().all(|peers| peers.hosts().iter().all(|host| host.alive)));
//! ```

mod event;
mod host;
mod hosted;
mod link;
mod owner;
mod receive;
#[cfg(test)]
mod tests;
pub mod wire;

pub use event::{PeerEvent, REFUSALS};
pub use host::{BITS, DatagramEffect, HostSetting, KnownHost, OwnStatus, PeerSettings, Publishable, Tick};
pub use hosted::HostedServer;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::association::{Association, Delivery, MessageCounters, Numbers, SenderCounts};
use super::envelope::digest;
use super::sending::{SendTimes, pause_ms};
use link::{LastReport, PeerState};
use owner::{AddressOwnership, ConflictOutcome, HostCandidate};
use wire::{Body, Datagram, HostReport};

/// Label for the derivation of the datagrams' key: see [`super::secret::Secret::derive`].
pub const LABEL: &str = "evener peers";

/// State of this host and of all other hosts.
#[derive(Clone, Debug)]
pub struct Peers {
    settings: PeerSettings,
    incarnation: u64,
    /// Highest sequence number that was sent to a removed host. If the host is configured again,
    /// numbers continue after this one, since the host may remember earlier numbers.
    last_sequence_of_removed: u64,
    /// Time from which this host takes part even without reports of other hosts, in milliseconds.
    ready_at_ms: u64,
    ready: bool,
    /// True while the engine applies tables.
    waits: bool,
    left: bool,
    own: OwnStatus,
    /// Other hosts, by digest of their names.
    links: BTreeMap<u64, PeerState>,
    owner: AddressOwnership,
    /// Counters of datagrams without a known sender, and of removed hosts.
    others: SenderCounts,
    claims: u64,
    claimed_twice: u64,
    sending: SendTimes,
    started_ms: u64,
    /// Time of the last call, in milliseconds.
    looked_ms: u64,
}

impl Peers {
    /// Returns the state before any datagram. `incarnation` is random for each start.
    pub fn new(settings: PeerSettings, incarnation: u64, now_ms: u64) -> Peers {
        let ready_at_ms = now_ms.saturating_add(settings.silence_ms);
        let mut peers = Peers {
            settings,
            // 0 in a datagram means that nothing was received.
            incarnation: incarnation.max(1),
            last_sequence_of_removed: 0,
            ready_at_ms,
            ready: false,
            waits: false,
            left: false,
            own: OwnStatus::default(),
            links: BTreeMap::new(),
            owner: AddressOwnership::default(),
            others: SenderCounts::default(),
            claims: 0,
            claimed_twice: 0,
            sending: SendTimes::new(now_ms),
            started_ms: now_ms,
            looked_ms: now_ms,
        };
        peers.arrange_links(now_ms);
        peers
    }

    /// Applies other settings after a reload. The last reports of hosts that are still configured
    /// stay, with the servers of services that are still configured. The caller must call
    /// [`Peers::set_own`] afterwards.
    pub fn reconfigure(&mut self, settings: PeerSettings, now_ms: u64) -> Vec<PeerEvent> {
        let old = core::mem::replace(&mut self.settings, settings);
        let moved = |servers: &BTreeMap<u8, HostedServer>| {
            let places = places(&old.services, &self.settings.services);
            places.filter_map(|(new, old)| Some((new, *servers.get(&old)?))).collect()
        };
        self.own.servers = moved(&self.own.servers);
        for link in self.links.values_mut() {
            if let Some(content) = &mut link.content {
                content.servers = moved(&content.servers);
            }
        }
        self.others.reset_logged();
        self.arrange_links(now_ms);
        self.send_soon();
        let lost = self.owner.reconfigure(publishable(&self.settings));
        lost.into_iter().map(|address| PeerEvent::Released { address, to: None }).collect()
    }

    /// Resumes after a restart of the daemon during which the data plane continued. Until their
    /// reports are overdue, `hosts` count as alive and taking part, with these servers. This host
    /// takes part at once and keeps its addresses.
    pub fn resume<'a>(
        &mut self,
        now_ms: u64,
        hosts: impl Iterator<Item = (&'a str, BTreeMap<u8, HostedServer>)>,
        owned: &BTreeSet<IpAddr>,
    ) {
        self.ready_at_ms = now_ms;
        for (name, servers) in hosts {
            if let Some(link) = self.links.get_mut(&digest(name)) {
                link.content = Some(LastReport { ready: true, servers, ..LastReport::default() });
                link.association.mark_alive(now_ms);
                link.since_ms = now_ms;
                link.note_presence(now_ms);
            }
        }
        let known = self.addresses().iter().map(|one| one.address);
        let kept: Vec<IpAddr> = known.filter(|address| owned.contains(address)).collect();
        kept.into_iter().for_each(|address| self.owner.resume(address));
        self.settle_ready(now_ms);
    }

    /// Returns what this host reports about its server of the service at this position.
    pub fn own_server(&self, service: u8) -> Option<&HostedServer> {
        self.own.servers.get(&service)
    }

    /// Sets the status of this host. A change is reported soon, unless only loads change. Returns
    /// true if anything but loads changed.
    pub fn set_own(&mut self, own: OwnStatus) -> bool {
        let before = core::mem::replace(&mut self.own, own);
        let is_news = before.without_loads() != self.own.without_loads();
        if is_news {
            self.send_soon();
        }
        is_news
    }

    /// Sets whether the engine is applying tables.
    pub fn wait_for_tables(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Expires silent hosts, continues claims of addresses, and returns the datagrams that are due.
    pub fn tick(&mut self, now_ms: u64) -> Tick {
        self.wake(now_ms);
        let mut tick = Tick::default();
        for link in self.links.values_mut() {
            if link.association.expire(now_ms) {
                tick.changed = true;
                link.since_ms = now_ms;
                tick.notices.push(PeerEvent::Silent { host: link.name.clone() });
            }
            link.note_presence(now_ms);
        }
        tick.changed |= self.settle_ready(now_ms);
        self.release(now_ms, &mut tick.notices, &mut tick.changed);
        self.claim(now_ms, &mut tick);
        if now_ms >= self.sending.due_ms() {
            tick.datagrams = self.datagrams(now_ms);
        }
        tick
    }

    /// Extends other hosts' liveness by the time during which this host was not scheduled, for
    /// instance while the machine was suspended. Reports that arrived in this time are still
    /// unread. Without this, other hosts would count as silent, and this host would apply a ring
    /// that no other host ever had.
    fn wake(&mut self, now_ms: u64) {
        let due_ms = self.next_at().max(self.looked_ms);
        let late_ms = now_ms.saturating_sub(due_ms);
        self.looked_ms = now_ms;
        if late_ms > self.settings.interval_ms {
            self.ready_at_ms = self.ready_at_ms.saturating_add(late_ms);
            self.links.values_mut().for_each(|link| link.association.extend_liveness(late_ms));
        }
    }

    /// Time of the next work for [`Peers::tick`], in milliseconds.
    pub fn next_at(&self) -> u64 {
        let expiries = self.links.values().filter_map(|link| link.association.alive_until_ms());
        let ready = (!self.ready && !self.waits && !self.left).then_some(self.ready_at_ms);
        expiries.chain(ready).chain(self.owner.next_at()).fold(self.sending.due_ms(), u64::min)
    }

    /// Applies another host's ARP or neighbour discovery reply for a service address.
    pub fn answered(&mut self, now_ms: u64, address: IpAddr) -> Vec<PeerEvent> {
        match self.owner.answered(address, now_ms.saturating_add(self.settings.silence_ms)) {
            ConflictOutcome::Nothing => Vec::new(),
            ConflictOutcome::ClaimDeferred { news } => {
                news.then_some(PeerEvent::ClaimDeferred { address }).into_iter().collect()
            }
            ConflictOutcome::Twice { news } => {
                self.claimed_twice += 1;
                news.then_some(PeerEvent::AddressConflict { address }).into_iter().collect()
            }
        }
    }

    /// Leaves the farm: this host no longer takes part and owns no address. Returns reports that
    /// the caller must send, so that other hosts take over at once.
    pub fn leave(&mut self, now_ms: u64) -> Vec<(IpAddr, Vec<u8>)> {
        self.left = true;
        self.ready = false;
        self.owner.leave();
        self.datagrams(now_ms)
    }

    /// Returns all hosts in the order of the settings, including this one.
    pub fn hosts(&self) -> Vec<KnownHost> {
        let state = |host: &HostSetting| match self.links.get(&digest(&host.name)) {
            Some(link) => KnownHost::of(link, self.settings.generation),
            None => self.own_host(host),
        };
        self.settings.hosts.iter().map(state).collect()
    }

    /// Service addresses that this host owns.
    pub fn owned(&self) -> &BTreeSet<IpAddr> {
        self.owner.owned()
    }

    /// Service addresses that this host should own, but for which another host answers ARP.
    pub fn put_off(&self) -> &BTreeSet<IpAddr> {
        self.owner.put_off()
    }

    /// Counters of datagrams since the start.
    pub fn counters(&self) -> MessageCounters {
        let mut all = self.others.counters;
        self.links.values().for_each(|link| all.add(link.association.counters()));
        all
    }

    /// Returns all counters by name. They count datagrams by result, claims of addresses, and
    /// replies of other hosts for addresses that this host owns.
    pub fn counted(&self) -> BTreeMap<&'static str, u64> {
        let claims = [("claims", self.claims), ("claimed_twice", self.claimed_twice)];
        self.counters().named(&REFUSALS).chain(claims).collect()
    }

    fn own_host(&self, host: &HostSetting) -> KnownHost {
        KnownHost {
            name: host.name.clone(),
            address: host.address,
            own: true,
            alive: true,
            believed: true,
            ready: self.ready,
            servers: self.own.servers.clone(),
            load: self.own.load,
            generation_differs: false,
            refused: None,
            macs: self.own.macs.clone(),
            owned: self.owned().iter().copied().collect(),
            received_ms: None,
            since_ms: self.started_ms,
        }
    }

    fn addresses(&self) -> &[Publishable] {
        publishable(&self.settings)
    }

    /// Creates a link for every other host of the settings, and removes all other links.
    fn arrange_links(&mut self, now_ms: u64) {
        let mut old = core::mem::take(&mut self.links);
        for host in self.settings.hosts.iter().filter(|host| host.name != self.settings.name) {
            let digest = digest(&host.name);
            let mut link = old.remove(&digest).unwrap_or_else(|| {
                let silence_ms = self.settings.silence_ms;
                let association = Association::new(
                    Delivery::Latest,
                    self.incarnation,
                    silence_ms,
                    self.last_sequence_of_removed,
                );
                PeerState::new(&host.name, host.address, association, now_ms)
            });
            link.address = host.address;
            link.differs_since_ms = None;
            link.association.set_silence(self.settings.silence_ms);
            self.links.insert(digest, link);
        }
        for PeerState { association, .. } in old.values() {
            self.last_sequence_of_removed = self.last_sequence_of_removed.max(association.sequence());
            self.others.counters.add(association.counters());
        }
    }

    /// Makes the next reports due soon, within the rate limit.
    fn send_soon(&mut self) {
        self.sending.send_soon(self.settings.interval_ms);
    }

    /// Decides if this host begins to take part. It does so one interval after all other hosts have
    /// reported, or once their reports are overdue. Until then this host's ring equals the ring of
    /// the other hosts. That ring must be in force first, so this host waits while the engine
    /// applies tables. Returns true if this host takes part from now on.
    fn settle_ready(&mut self, now_ms: u64) -> bool {
        if self.ready || self.left {
            return false;
        }
        if self.links.values().all(|link| link.association.is_alive() && link.content.is_some()) {
            self.ready_at_ms = self.ready_at_ms.min(now_ms.saturating_add(self.settings.interval_ms));
        }
        self.ready = now_ms >= self.ready_at_ms && !self.waits;
        if self.ready {
            self.send_soon();
        }
        self.ready
    }

    /// True if a host other than `host` takes part.
    fn is_accompanied_but_for(&self, host: Option<u64>) -> bool {
        let others = self.links.iter().filter(|(digest, _)| Some(**digest) != host);
        others.map(|(_, link)| link).any(|link| link.association.is_alive() && link.is_ready())
    }

    fn release(&mut self, now_ms: u64, notices: &mut Vec<PeerEvent>, changed: &mut bool) {
        let silence_ms = self.settings.silence_ms;
        let hosts = candidates(&self.settings, &self.links, self.ready.then_some(self.started_ms));
        let released = self.owner.release(now_ms, publishable(&self.settings), &hosts, silence_ms);
        if !released.is_empty() {
            *changed = true;
            self.send_soon();
        }
        notices
            .extend(released.into_iter().map(|(address, to)| PeerEvent::Released { address, to: Some(to) }));
    }

    fn claim(&mut self, now_ms: u64, tick: &mut Tick) {
        if !self.ready {
            return;
        }
        let hosts = candidates(&self.settings, &self.links, Some(self.started_ms));
        let step = self.owner.advance(now_ms, publishable(&self.settings), &hosts);
        if !step.gained.is_empty() {
            tick.changed = true;
            self.send_soon();
        }
        self.claims += step.gained.len() as u64;
        tick.notices.extend(step.gained.into_iter().map(|address| PeerEvent::Claimed { address }));
        tick.probes = step.probes;
        tick.claimed = step.claimed;
    }

    /// Returns datagrams for all other hosts, and schedules the next datagrams.
    fn datagrams(&mut self, now_ms: u64) -> Vec<(IpAddr, Vec<u8>)> {
        self.sending.sent(now_ms, self.settings.interval_ms);
        let to: Vec<(u64, Numbers)> =
            self.links.iter().map(|(digest, link)| (*digest, link.association.echo())).collect();
        to.into_iter().filter_map(|(digest, echo)| self.datagram(now_ms, digest, echo)).collect()
    }

    /// Returns an answer that echoes a datagram; `None` if the rate limit forbids an answer.
    fn answer(&mut self, now_ms: u64, datagram: &Datagram) -> Option<(IpAddr, Vec<u8>)> {
        let pause_ms = pause_ms(self.settings.interval_ms);
        let link = self.links.get_mut(&datagram.sender);
        let may = link.is_some_and(|link| link.association.may_answer(now_ms, pause_ms));
        may.then(|| self.datagram(now_ms, datagram.sender, datagram.numbers))?
    }

    fn datagram(&mut self, now_ms: u64, to: u64, echo: Numbers) -> Option<(IpAddr, Vec<u8>)> {
        let report = self.report(to);
        let link = self.links.get_mut(&to)?;
        let datagram = Datagram {
            sender: digest(&self.settings.name),
            receiver: to,
            numbers: link.association.next_at(now_ms),
            echo,
            body: Body::Report(report),
        };
        Some((link.address, datagram.write(&self.settings.key)))
    }

    fn report(&self, to: u64) -> HostReport {
        let owned = (0..).zip(self.addresses()).filter(|(_, one)| self.owned().contains(&one.address));
        HostReport {
            generation: self.settings.generation,
            load: self.own.load,
            ready: self.ready,
            accompanied: self.is_accompanied_but_for(Some(to)),
            owned: owned.fold(0, |bits, (at, _)| bits | 1 << at),
            macs: self.own.macs.clone(),
            servers: self.own.servers.clone(),
        }
    }
}

fn publishable(settings: &PeerSettings) -> &[Publishable] {
    settings.addresses.get(..BITS).unwrap_or(&settings.addresses)
}

/// Returns all hosts as candidates for owners. `own_since_ms` is the time since which this host
/// takes part.
fn candidates<'a>(
    settings: &'a PeerSettings,
    links: &'a BTreeMap<u64, PeerState>,
    own_since_ms: Option<u64>,
) -> Vec<HostCandidate<'a>> {
    let own = HostCandidate {
        name: &settings.name,
        own: true,
        is_alive: true,
        present_since_ms: own_since_ms,
        claims: None,
    };
    let others = links.values().map(|link| HostCandidate {
        name: &link.name,
        own: false,
        is_alive: link.association.is_alive() && !link.left,
        present_since_ms: link.present_since_ms,
        claims: link
            .content
            .as_ref()
            .filter(|_| link.association.is_alive() && link.agrees(settings.generation))
            .map(|content| &content.owned),
    });
    core::iter::once(own).chain(others).collect()
}

/// Returns the positions of the services that are in both lists: in the new list, and in the old.
fn places<'a>(old: &'a [String], new: &'a [String]) -> impl Iterator<Item = (u8, u8)> + 'a {
    let old = || (0..).zip(old.iter().take(BITS));
    let new = (0..).zip(new.iter().take(BITS));
    new.filter_map(move |(at, name)| old().find(|(_, other)| *other == name).map(|(old, _)| (at, old)))
}
