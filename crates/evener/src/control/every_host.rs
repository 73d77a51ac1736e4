//! What the director makes of the other hosts, and what it tells them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use evener_core::farm::Service;
use evener_core::health::{self, Health, State};
use evener_core::load::Loaded;
use evener_core::membership::Member;
use evener_core::peers::{HostState, Notice, Own, Received, Tick};
use evener_core::plan::{self, MemberState, ServerName};
use evener_core::policy;
use evener_core::sessions::ticks;
use evener_core::tables::{NO_SERVER, Tables};
use evener_core::wire::Mac;

use super::RESTART;
use super::director::{DirectError, Director};
use super::hosts::{self, Hosts, Identity};
use crate::config::Config;
use crate::network::Network;
use crate::secret;

/// Reports of others that a host waits for before it answers again.
const REPORTS_HEARD_FIRST: u32 = 2;
/// A claimed address is announced so often, once with each report (RFC 5227, section 2.3).
const ANNOUNCEMENTS: u32 = 3;
/// Load counts in hundredths of a session, and a report moves it by a quarter of the way to what is now: sessions
/// come and go many times between two reports.
const LOAD_UNIT: u64 = 100;
const LOAD_STEP: u64 = 4;

/// What is to be sent on the links after a report.
#[derive(Debug, Default)]
pub(super) struct Errands {
    /// Addresses to ask everyone for.
    pub(super) asks: Vec<IpAddr>,
    /// Addresses to tell everyone of.
    pub(super) announcements: BTreeSet<IpAddr>,
}

impl Director {
    /// The bit that stands for a service in what hosts say, if every host decides it.
    fn bit(&self, service: &str) -> Option<u64> {
        bits().zip(self.config.every_host()).find(|(_, known)| known.name == service).map(|(bit, _)| bit)
    }

    /// A server that is one of the hosts, and all that decides whether it takes new sessions. Of itself a host knows;
    /// what it knows of others they have said.
    pub(super) fn host_state(
        &self,
        hosts: &Hosts,
        known: &[HostState],
        service: &Service,
        member: Member,
    ) -> MemberState {
        let name = ServerName { service: service.name.clone(), server: member.name.clone() };
        let said = known.iter().find(|host| host.name == member.name);
        let bit = self.bit(&service.name).unwrap_or_default();
        let takes_part = |host: &HostState| host.alive && host.ready;
        // Where nobody takes part yet, this host does what it can.
        let ready = said.is_some_and(takes_part) || !known.iter().any(takes_part);
        let health = match self.healths.get(&name).map(Health::status) {
            Some(own) if member.local && ready => own,
            // Its ring is that of the others first, whom second chances are for (`plan`).
            _ if member.local => health::Status::UNKNOWN,
            _ => said.map_or(health::Status::UNKNOWN, |host| status(host, bit)),
        };
        let drained = self.drained.contains(&name);
        MemberState {
            health,
            admin_draining: if member.local { drained } else { said.is_some_and(|h| h.draining & bit != 0) },
            share: hosts.shares.get(&name).copied(),
            member,
        }
    }

    /// What the plan is to know of this host among others.
    pub(super) fn planned_hosts(&self) -> plan::Hosts {
        let own = plan::Hosts {
            asks: self.config.hands_over(),
            seed: self.engine.memory().seed,
            ..plan::Hosts::default()
        };
        let Some(hosts) = &self.hosts else { return own };
        let others: Vec<HostState> = hosts.peers.hosts().into_iter().filter(|host| !host.own).collect();
        let unheard = others.iter().any(|host| host.alive && host.heard_ms.is_none());
        let adopted = hosts.adopted_macs.iter().filter(|_| unheard).copied();
        plan::Hosts {
            owned: hosts.peers.owned().clone(),
            macs: others.iter().flat_map(|host| &host.macs).copied().chain(adopted).collect(),
            ..own
        }
    }

    /// The addresses that this host owns, as long as it may answer for them: what was claimed alone, behind a cable
    /// that was out, may be another's again.
    pub(super) fn answered_for(&self) -> impl Iterator<Item = IpAddr> {
        let holds = self.engine.memory().lease.holds(self.engine.now());
        let hosts = self.hosts.iter().filter(move |_| holds);
        hosts.flat_map(|hosts| hosts.peers.owned().iter().copied())
    }

    /// Takes in what another host says, and answers.
    ///
    /// # Errors
    /// As [`Director::replan`].
    pub(super) fn hear_host(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        now_ms: u64,
    ) -> Result<(), DirectError> {
        let Some(hosts) = &mut self.hosts else { return Ok(()) };
        let Received { notices, answer, changed } = hosts.peers.receive(now_ms, datagram);
        for notice in &notices {
            match notice {
                // Who it is from can't be believed, but it is where to look.
                Notice::Refused { .. } => tracing::warn!(%from, "{notice}"),
                other => log(std::slice::from_ref(other)),
            }
        }
        // The answer says that what was heard is heeded: it must be, before.
        let done = if changed { self.replan() } else { Ok(()) };
        if let (Some(hosts), Some((to, answer))) = (&self.hosts, answer) {
            hosts.send(to, &answer);
        }
        done
    }

    /// Somebody answers for an address.
    pub(super) fn answered(&mut self, address: IpAddr, mac: Mac, now_ms: u64) {
        let Some(hosts) = &mut self.hosts else { return };
        for notice in hosts.peers.answered(now_ms, address) {
            tracing::warn!(%mac, "{notice}");
        }
    }

    /// When hosts are next to be told something; never where there are none.
    pub(super) fn next_report_at(&self) -> u64 {
        self.hosts.as_ref().map_or(u64::MAX, |hosts| hosts.peers.next_at())
    }

    /// Tells the other hosts how this one is, if it is time, and draws conclusions from what they have said.
    ///
    /// # Errors
    /// As [`Director::replan`].
    pub(super) fn report(&mut self, now_ms: u64) -> Result<Errands, DirectError> {
        if self.next_report_at() > now_ms {
            return Ok(Errands::default());
        }
        self.renew_lease();
        self.measure_load();
        self.say_own();
        let Some(hosts) = &mut self.hosts else { return Ok(Errands::default()) };
        let Tick { datagrams, asks, claimed, notices, changed } = hosts.peers.tick(now_ms);
        log(&notices);
        for (to, datagram) in &datagrams {
            hosts.send(*to, datagram);
        }
        hosts.to_announce.extend(claimed.into_iter().map(|address| (address, ANNOUNCEMENTS)));
        if self.share_out() || changed {
            // Only who answers for an address may announce it.
            self.replan()?;
        }
        Ok(Errands { asks, announcements: self.due_announcements() })
    }

    /// Addresses that are still to be announced, and may be.
    fn due_announcements(&mut self) -> BTreeSet<IpAddr> {
        let answered: BTreeSet<IpAddr> = self.answered_for().collect();
        let Some(hosts) = &mut self.hosts else { return BTreeSet::new() };
        let owned = hosts.peers.owned();
        hosts.to_announce.retain(|address, left| *left > 0 && owned.contains(address));
        let due = hosts.to_announce.iter_mut().filter(|(address, _)| answered.contains(address));
        due.map(|(address, left)| {
            *left -= 1;
            *address
        })
        .collect()
    }

    /// The engine may answer for addresses for a while: less than it takes until others think that this host is gone.
    ///
    /// A host without a cable doesn't need to, and a daemon that was stopped, or without one, for longer waits for some
    /// reports: others may own what it did, and are heard first.
    fn renew_lease(&mut self) {
        let (now, lease) = (self.engine.now(), self.engine.memory().lease);
        let Some(hosts) = &mut self.hosts else { return };
        let mut links = self.interfaces.keys().filter_map(|ifindex| self.network.interfaces.get(ifindex));
        if !links.any(|link| link.carrier) {
            return;
        }
        hosts.lapsed = if lease.holds(now) { 0 } else { hosts.lapsed + 1 };
        if hosts.lapsed == 0 || hosts.lapsed > REPORTS_HEARD_FIRST {
            let lease_ms = self.config.farm.peers.silence_ms * 2 / 3;
            lease.set(Some(now.wrapping_add(ticks(lease_ms))));
            hosts.lapsed = 0;
        }
    }

    fn measure_load(&mut self) {
        let active: u64 = self.own_slots().iter().map(|slot| self.active(*slot)).sum();
        if let Some(hosts) = &mut self.hosts {
            hosts.load = (hosts.load * (LOAD_STEP - 1) + active * LOAD_UNIT) / LOAD_STEP;
        }
    }

    /// Has the next report say how this host is; one that says something new goes out soon.
    pub(super) fn say_own(&mut self) {
        let Some(hosts) = &mut self.hosts else { return };
        let (mut up, mut draining) = (0, 0);
        for (bit, service) in bits().zip(self.config.every_host()) {
            let name = ServerName { service: service.name.clone(), server: hosts.identity.name.clone() };
            let is_up = self.healths.get(&name).is_some_and(|health| health.status().state == State::Up);
            up |= if is_up { bit } else { 0 };
            draining |= if self.drained.contains(&name) { bit } else { 0 };
        }
        let load = u32::try_from(hosts.load.div_ceil(LOAD_UNIT)).unwrap_or(u32::MAX);
        hosts.peers.set_own(Own { load, up, draining, macs: self.interfaces.values().copied().collect() });
    }

    /// This host's own slots, each once.
    fn own_slots(&self) -> BTreeSet<u16> {
        self.plan.tables.vips.values().map(|vip| vip.own).filter(|own| *own != NO_SERVER).collect()
    }

    fn active(&self, slot: u16) -> u64 {
        self.engine.memory().counts.active.get(usize::from(slot)).map_or(0, |active| active.load(Relaxed))
    }

    /// Shares out anew what this host is asked for, where the policy goes by load; whether that changed anything.
    fn share_out(&mut self) -> bool {
        let by_load =
            |service: &&Service| policy::by_name(service.policy).is_some_and(|policy| policy.by_load());
        let services = self.config.every_host().filter(by_load);
        let usable: Vec<_> =
            services.map(|service| (service.name.clone(), self.usable_members(service))).collect();
        let Some(hosts) = &mut self.hosts else { return false };
        let known = hosts.peers.hosts();
        let loaded = |member: &Member| Loaded {
            weight: member.weight,
            load: known.iter().find(|host| host.name == member.name).map_or(0, |host| host.load),
        };
        let mut shares = BTreeMap::new();
        let mut balances = BTreeMap::new();
        for (service, members) in usable {
            let (own, others): (Vec<_>, Vec<_>) = members.iter().partition(|member| member.local);
            let Some(own) = own.first() else { continue };
            let mut balance = hosts.balances.get(&service).copied().unwrap_or_default();
            let loads: Vec<Loaded> = others.iter().map(|member| loaded(member)).collect();
            let of = balance.shares(loaded(own), &loads);
            let names = std::iter::once(own).chain(&others).map(|member| member.name.clone());
            let named = names.map(|server| ServerName { service: service.clone(), server });
            shares.extend(named.zip(of));
            balances.insert(service, balance);
        }
        hosts.balances = balances;
        let changed = hosts.shares != shares;
        hosts.shares = shares;
        changed
    }

    /// The servers that may be given new sessions, and this host in any case.
    fn usable_members(&self, service: &Service) -> Vec<Member> {
        let usable = |state: &MemberState| {
            state.member.local || state.health.state == State::Up && !state.admin_draining
        };
        self.member_states(service).into_iter().filter(usable).map(|state| state.member).collect()
    }

    /// Whether a new file leaves this host who it is.
    ///
    /// # Errors
    /// A sentence: what a running daemon can't become.
    pub(super) fn still_this_host(&self, config: &Config, network: &Network) -> Result<(), String> {
        let found = Identity::find(config, network)?;
        let restart = RESTART;
        match (&self.hosts, found) {
            (None, None) => Ok(()),
            (Some(hosts), Some(found)) if hosts.identity == found => {
                let path = config.farm.secret_file.as_deref().unwrap_or(Path::new(""));
                if secret::read(path).map_err(|error| error.to_string())? != hosts.secret {
                    return Err(format!("{} has another secret now: {restart}", path.display()));
                }
                let same = (&config.farm.secret_file, config.farm.peers.port)
                    == (&self.config.farm.secret_file, self.config.farm.peers.port);
                if same {
                    Ok(())
                } else {
                    Err(format!("[farm] secret_file and port are read at the start only: {restart}"))
                }
            }
            (Some(hosts), Some(found)) => {
                let Identity { name, address } = &hosts.identity;
                Err(format!(
                    "this host is {name} ({address}) and would be {} ({}): {restart}",
                    found.name, found.address
                ))
            }
            _ => Err(format!("placement \"every-host\" comes and goes only with a start: {restart}")),
        }
    }

    /// Whose a server is that isn't this host's, if every host decides.
    pub(super) fn other_host(&self, server: &ServerName) -> Option<String> {
        let hosts = self.hosts.as_ref().filter(|_| self.bit(&server.service).is_some())?;
        (hosts.identity.name != server.server).then(|| server.server.clone())
    }

    /// Has what is passed on say that this host does so, by the file that is in force.
    pub(super) fn mark_what_is_passed_on(&self) {
        if let Some(hosts) = &self.hosts {
            self.engine.memory().marker.set(&hosts::marker(&self.config, &hosts.secret));
        }
    }

    /// Has the others know what is new in the file; what comes of that.
    pub(super) fn reconfigure_hosts(&mut self, now_ms: u64) -> Vec<Notice> {
        self.mark_what_is_passed_on();
        let Some(hosts) = &mut self.hosts else { return Vec::new() };
        let settings = hosts::settings(&self.config, &hosts.identity, &hosts.secret);
        hosts.peers.reconfigure(settings, now_ms)
    }

    /// Takes up what ran before this daemon: who was there, and which addresses this host answered for.
    pub(super) fn resume_hosts(&mut self, running: &Tables, now_ms: u64) {
        let lease = self.engine.memory().lease;
        if self.hosts.is_none() {
            // What ran may have had hosts.
            lease.set(None);
        }
        let answers = lease.until().is_some() && lease.holds(self.engine.now());
        let announced =
            running.vips.iter().filter(|(_, vip)| vip.announce && vip.own != NO_SERVER && answers);
        let owned: BTreeSet<IpAddr> = announced.map(|(key, _)| key.address).collect();
        let up = up_bits(&self.config, running);
        if let Some(hosts) = self.hosts.as_mut().filter(|_| !up.is_empty()) {
            hosts.adopted_macs.clone_from(&running.peers);
            hosts.peers.resume(now_ms, up.into_iter(), &owned);
        }
    }

    /// Tells the others that this host leaves, and falls silent for its addresses. Their new owners need a moment, in
    /// which packets still flow.
    pub(super) fn leave_hosts(&mut self, now_ms: u64) -> bool {
        let now = self.engine.now();
        let Some(hosts) = &mut self.hosts else { return false };
        for (to, datagram) in hosts.peers.leave(now_ms) {
            hosts.send(to, &datagram);
        }
        self.engine.memory().lease.set(Some(now));
        true
    }
}

/// The bits of services, in the order of the file.
pub(super) fn bits() -> impl Iterator<Item = u64> {
    (0..u64::BITS).map(|number| 1 << number)
}

/// What a host has said of its own server.
fn status(host: &HostState, bit: u64) -> health::Status {
    let state = match (host.alive, host.ready, host.up & bit != 0) {
        (true, true, true) => State::Up,
        // Not yet, or not any more, by its own choice: it hasn't failed.
        (true, false, _) => State::Unknown,
        (false, ..) if host.heard_ms.is_none() => State::Unknown,
        _ => State::Down,
    };
    health::Status { state, since_ms: host.since_ms, was_up: host.heard_ms.is_some() }
}

/// The hosts that a running data plane sends new sessions to, with the bits of the services.
fn up_bits<'a>(config: &'a Config, running: &Tables) -> BTreeMap<&'a str, u64> {
    let mut hosts = BTreeMap::<&str, u64>::new();
    for (bit, service) in bits().zip(config.every_host()) {
        for server in &service.servers {
            let identity = plan::identity(&service.name, &server.name);
            if running.servers.values().any(|entry| entry.identity == identity && entry.up) {
                *hosts.entry(&server.name).or_default() |= bit;
            }
        }
    }
    hosts
}

pub(super) fn log(notices: &[Notice]) {
    for notice in notices {
        match notice {
            Notice::Heard { .. }
            | Notice::Returned { .. }
            | Notice::Agrees { .. }
            | Notice::Claimed { .. }
            | Notice::Released { .. } => {
                tracing::info!("{notice}");
            }
            _ => tracing::warn!("{notice}"),
        }
    }
}
