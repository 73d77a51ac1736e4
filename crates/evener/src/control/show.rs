//! The director's state in the words of [`views`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use evener_core::decide::Reason;
use evener_core::farm::{Method, Service};
use evener_core::health::{self, Health};
use evener_core::membership::{Member, Source};
use evener_core::peers::{HostState, Refusal};
use evener_core::plan::{MemberState, ServerName};
use evener_core::sessions::{Session, State, ms};
use evener_core::tables::{ServerEntry, VipKey, Way};
use evener_dataplane::{Counters, ServerCounters};

use super::executor::Executor;
use super::request::SessionFilter;
use crate::admin::views;
use crate::agent::resident::Resident;
use crate::handoff::Outcomes;
use crate::lccp::Speaker;
use crate::spelling::meant;

/// What a daemon is, besides its farm.
#[derive(Clone, Debug)]
pub(super) struct About {
    /// When it started, in milliseconds of the monotonic clock.
    pub(super) started_ms: u64,
    /// The configuration file.
    pub(super) config: String,
    /// Whether it carries on with what another left running.
    pub(super) adopted: bool,
    /// Why `auto` didn't choose the kernel engine.
    pub(super) engine_note: Option<String>,
    /// Successful reloads.
    pub(super) reloads: u64,
    /// Reloads that changed nothing, for an error.
    pub(super) reloads_refused: u64,
    /// Why the last one failed.
    pub(super) reload_error: Option<String>,
    /// What of the file in force takes a restart.
    pub(super) restart_for: Option<String>,
    /// When the configuration in force was read.
    pub(super) config_loaded: SystemTime,
}

impl Executor {
    /// The daemon as a whole.
    pub(super) fn show_status(
        &self,
        about: &About,
        resident: Option<&Resident>,
        now_ms: u64,
    ) -> views::Status {
        let (asked, speaker) = (resident.and_then(Resident::outcomes), resident.and_then(Resident::speaker));
        let memory = self.engine.memory();
        let counters = self.counters();
        let packets = Reason::ALL.iter().map(|reason| {
            (reason.name().to_owned(), counters.reasons.get(reason).copied().unwrap_or_default())
        });
        let mut detail = self.engine.describe();
        if let Some(note) = &about.engine_note {
            detail = format!("{detail}; {note}");
        }
        let sessions = memory.counts.active.iter().map(|count| count.load(Relaxed)).sum::<u64>();
        let assured = memory.sessions.shares().all_assured();
        views::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: now_ms.saturating_sub(about.started_ms) / 1000,
            engine: self.engine.kind().to_owned(),
            engine_detail: detail,
            adopted: about.adopted,
            config: about.config.clone(),
            reloads: about.reloads,
            reloads_refused: about.reloads_refused,
            reload_error: about.reload_error.clone(),
            restart_for: about.restart_for.clone(),
            config_loaded_seconds: unix_seconds(about.config_loaded),
            sessions,
            sessions_assured: assured,
            sessions_embryonic: sessions.saturating_sub(assured),
            sessions_max: memory.sessions.sized_for() as u64,
            session_slots: memory.sessions.capacity() as u64,
            packets: packets.collect(),
            refused: self.refused(),
            peers: self.peer_counters(),
            tunnels: resident.map(Resident::tunnels).unwrap_or_default(),
            asked: asked.map(counted).unwrap_or_default(),
            access_log: self.telling.recorder.show_log(),
            traces: self.telling.recorder.traces(),
            deciding: self.telling.recorder.show_took().collect(),
            lccp: speaker.map(Speaker::counted).unwrap_or_default(),
            nodes: speaker.map(Speaker::nodes).unwrap_or_default(),
            dispatcher: speaker.and_then(Speaker::dispatcher).map(dispatcher),
            interfaces: self
                .director
                .plan()
                .tables
                .interfaces
                .keys()
                .filter_map(|i| self.director.network().interfaces.get(i))
                .map(|i| i.name.clone())
                .collect(),
        }
    }

    /// What became of datagrams from and to other hosts.
    fn peer_counters(&self) -> BTreeMap<String, u64> {
        let Some(counters) = self.director.host_counters() else { return BTreeMap::new() };
        let refused = Refusal::ALL.iter().map(|refusal| (refusal.name(), counters.refused(*refusal)));
        let others = [
            ("sent", counters.sent),
            ("accepted", counters.accepted),
            ("hellos", counters.hellos),
            ("claims", counters.claims),
            ("claimed_twice", counters.claimed_twice),
        ];
        others.into_iter().chain(refused).map(|(name, count)| (name.to_owned(), count)).collect()
    }

    /// All hosts, where every one decides.
    pub(super) fn show_hosts(&self, now_ms: u64) -> Vec<views::Host> {
        self.director.hosts().iter().map(|host| self.show_host(host, now_ms)).collect()
    }

    fn show_host(&self, host: &HostState, now_ms: u64) -> views::Host {
        let state = match (host.heard_ms, host.alive, host.ready) {
            (None, false, _) if !host.own => "unknown",
            (_, false, _) => "silent",
            _ if host.generation_differs => "differs",
            (_, true, false) => "joining",
            (_, true, true) => "alive",
        };
        let heard_ms = host.heard_ms.filter(|_| !host.own);
        let put_off = if host.own { self.director.put_off() } else { BTreeSet::new() };
        views::Host {
            name: host.name.clone(),
            address: host.address.to_string(),
            own: host.own,
            state: state.to_owned(),
            load: host.load.into(),
            up: self.director.services_of(host.up),
            draining: self.director.services_of(host.draining),
            // What a silent one owned is another's by now.
            owns: host.owned.iter().filter(|_| host.alive).map(ToString::to_string).collect(),
            put_off: put_off.iter().map(ToString::to_string).collect(),
            heard_seconds: heard_ms.map(|at| now_ms.saturating_sub(at) as f64 / 1e3),
        }
    }

    fn refused(&self) -> BTreeMap<String, u64> {
        let mut refused = BTreeMap::new();
        let services = self.director.farm().services.iter().map(|service| Some(service.name.as_str()));
        for service in services.chain([None]) {
            for (refusal, count) in self.director.membership().refused(service).iter() {
                *refused.entry(refusal.name().to_owned()).or_default() += count;
            }
        }
        refused
    }

    /// All services.
    pub(super) fn show_services(&self) -> Vec<views::Service> {
        let servers = self.show_servers();
        self.director.farm().services.iter().map(|service| self.show_service(service, &servers)).collect()
    }

    fn show_service(&self, service: &Service, servers: &[views::Server]) -> views::Service {
        let own: Vec<_> = servers.iter().filter(|server| server.service == service.name).collect();
        let sum = |of: fn(&views::Server) -> u64| own.iter().map(|server| of(server)).sum::<u64>();
        let gone = self.totals.of(&service.name);
        let planned = self.director.plan().services.values().find(|planned| planned.name == service.name);
        views::Service {
            name: service.name.clone(),
            addresses: service.addresses.iter().map(ToString::to_string).collect(),
            protocol: service.protocol.to_string(),
            method: service.method.to_string(),
            placement: service.placement.to_string(),
            policy: service.policy.to_owned(),
            servers: own.len() as u64,
            servers_up: own.iter().filter(|server| server.state == "up").count() as u64,
            degraded: planned.is_some_and(|planned| planned.degraded),
            sessions: sum(|server| server.sessions),
            connections: gone.connections + sum(|server| server.connections),
            packets: gone.packets + sum(|server| server.packets),
            bytes: gone.bytes + sum(|server| server.bytes),
        }
    }

    /// All servers.
    pub(super) fn show_servers(&self) -> Vec<views::Server> {
        let counters = self.counters();
        let slots: BTreeMap<&ServerName, u16> =
            self.director.plan().servers.iter().map(|(slot, name)| (name, *slot)).collect();
        let mut servers = Vec::new();
        for service in &self.director.farm().services {
            for state in self.director.member_states(service) {
                let name = ServerName { service: service.name.clone(), server: state.member.name.clone() };
                let slot = slots.get(&name).copied();
                servers.push(self.show_server(&name, service.method, &state, slot, &counters));
            }
        }
        servers
    }

    fn show_server(
        &self,
        name: &ServerName,
        method: Method,
        state: &MemberState,
        slot: Option<u16>,
        counters: &Counters,
    ) -> views::Server {
        let member = &state.member;
        let count = slot.and_then(|slot| counters.servers.get(&slot).copied());
        let ServerCounters { packets, bytes, connections } = count.unwrap_or_default();
        let active = slot.and_then(|slot| self.engine.memory().counts.active.get(usize::from(slot)));
        let health = self.director.health(name);
        let (word, reason) = self.director.state_of(name, method, state);
        let interface = member.ifindex.and_then(|ifindex| self.director.network().interfaces.get(&ifindex));
        let mac = member.mac.map(|mac| mac.to_string());
        views::Server {
            service: name.service.clone(),
            name: name.server.clone(),
            address: member
                .address
                .or_else(|| self.known_address(member))
                .map(|address| address.to_string())
                .or_else(|| mac.clone())
                .unwrap_or_default(),
            state: word.to_owned(),
            reason,
            weight: member.weight,
            sessions: active.map_or(0, |active| active.load(Relaxed)),
            connections,
            packets,
            bytes,
            mac,
            interface: interface.map(|interface| interface.name.clone()),
            source: match member.source {
                Source::Listed => "listed".to_owned(),
                Source::Discovered => "discovered".to_owned(),
            },
            local: member.local,
            way: way(method, slot.and_then(|slot| self.director.plan().tables.servers.get(&slot))).to_owned(),
            probe_seconds: health.and_then(|health| health.latency_us()).map(|us| us as f64 / 1e6),
            probe_error: health
                .filter(|_| state.health.state != health::State::Up)
                .and_then(|health| health.last_failure())
                .map(|(_, failure)| failure.to_string()),
            probe_failures: health.map_or(0, Health::failures),
            state_changes: health.map_or(0, Health::changes),
        }
    }

    /// The own address of a server that was discovered by its MAC address, if the host's neighbour table has it.
    fn known_address(&self, member: &Member) -> Option<IpAddr> {
        let (mac, ifindex) = (member.mac?, member.ifindex?);
        let is_service = |address: &IpAddr| {
            self.director
                .farm()
                .services
                .iter()
                .flat_map(|service| &service.addresses)
                .any(|vip| vip.ip() == *address)
        };
        let mut there = self.director.network().neighbours.iter().filter(|(_, known)| **known == mac);
        there
            .find(|((link, address), _)| *link == ifindex && !is_service(address))
            .map(|((_, address), _)| *address)
    }

    /// Sessions that match.
    ///
    /// # Errors
    /// A sentence, if there is no such service.
    pub(super) fn show_sessions(&self, filter: &SessionFilter) -> Result<Vec<views::Session>, String> {
        filter.service.as_ref().map_or(Ok(()), |service| self.has_service(service))?;
        let now = self.engine.now();
        let vips: BTreeMap<u16, &VipKey> =
            self.director.plan().tables.vips.iter().map(|(key, vip)| (vip.id, key)).collect();
        let sessions = self.engine.memory().sessions.list(now).filter(|session| filter.admits(session));
        let shown = sessions
            .filter_map(|session| self.show_session(&session, &vips, now))
            .filter(|session| filter.service.as_ref().is_none_or(|service| *service == session.service))
            .take(filter.limit.unwrap_or(usize::MAX));
        Ok(shown.collect())
    }

    /// Whether there is a service of this name.
    ///
    /// # Errors
    /// A sentence, with the name that may have been meant.
    pub(super) fn has_service(&self, name: &str) -> Result<(), String> {
        let names = self.director.farm().services.iter().map(|service| service.name.as_str());
        match names.clone().any(|known| known == name) {
            true => Ok(()),
            false => Err(format!("there is no service {name}; {}", meant(name, names))),
        }
    }

    fn show_session(
        &self,
        session: &Session,
        vips: &BTreeMap<u16, &VipKey>,
        now: u32,
    ) -> Option<views::Session> {
        let key = *vips.get(&session.key.vip)?;
        let vip = self.director.plan().tables.vips.get(key)?;
        let state = session.value.state();
        let left = session.value.expires().wrapping_sub(now);
        let server = self.director.plan().servers.get(&session.value.server());
        Some(views::Session {
            service: self
                .director
                .plan()
                .services
                .get(&vip.service)
                .map(|service| service.name.clone())
                .unwrap_or_default(),
            address: SocketAddr::new(key.address, key.port).to_string(),
            client: SocketAddr::new(session.key.client, session.key.port).to_string(),
            // Without a server yet: it is read here, or moves.
            server: server.map_or_else(|| "-".to_owned(), |name| name.server.clone()),
            state: shown(state).to_owned(),
            idle_seconds: ms(state.idle(&vip.idle).saturating_sub(left)) / 1000,
            expires_seconds: ms(left) / 1000,
        })
    }
}

impl SessionFilter {
    fn admits(&self, session: &Session) -> bool {
        self.client.is_none_or(|client| client == session.key.client)
            && self.client_port.is_none_or(|port| port == session.key.port)
    }
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A session's state in a word: what only this host's own bookkeeping tells apart is one.
fn shown(state: State) -> &'static str {
    match state {
        State::Answered => State::New.name(),
        State::UdpNew => State::Udp.name(),
        State::ServerClosed => State::HalfClosed.name(),
        other => other.name(),
    }
}

fn dispatcher((address, decides): (IpAddr, bool)) -> views::Dispatcher {
    views::Dispatcher { address: address.to_string(), decides }
}

fn counted(outcomes: &Outcomes) -> BTreeMap<String, u64> {
    outcomes.counted().into_iter().map(|(what, count)| (what.to_owned(), count)).collect()
}

/// The way to a server, in a word: its own, or what its method will make of it.
fn way(method: Method, entry: Option<&ServerEntry>) -> &'static str {
    match (entry.filter(|entry| !entry.local).map(|entry| entry.way), method) {
        (Some(Way::Link), _) | (None, Method::L2 | Method::Handoff) => "link",
        (Some(Way::Nat { .. }), _) | (None, Method::Nat) => "nat",
        (Some(Way::Tunnel { .. }), _) | (None, Method::Tunnel) => "tunnel",
    }
}
