//! Groups that this host should join, from the file.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use evener_core::farm::group::{Group, GroupMember};
use evener_core::net::http::Url;
use evener_core::pool::{HealthCheck, HealthKind};

use crate::agent::desired::AgentIdentity;
use crate::config::{AgentListen, Config, GroupService, MemberConfig};
use crate::io::network::Network;

/// Default probe of a server: any status but a server error is good.
const STATUS: (u16, u16) = (100, 499);
const TIMEOUT_MS: u64 = 2_000;

/// A group that this host should join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct MembershipConfig {
    pub(super) group: Url,
    /// URL of the server for clients. `None`: this host's address towards the group.
    pub(super) url: Option<Url>,
    /// Token file of the service that lists this host. The file may exist on this host, too.
    pub(super) token_file: Option<PathBuf>,
    /// Probe of the server before each message. `is_probed` is true if the director probes it, too.
    pub(super) health: HealthCheck,
    pub(super) is_probed: bool,
    pub(super) settings: MemberConfig,
    /// Address of the agent's own listener.
    pub(super) listen: Option<AgentListen>,
    /// `[farm] directors`, which may also query.
    pub(super) directors: Vec<IpAddr>,
}

impl MembershipConfig {
    /// True if both are the same member of the same group, with any settings.
    pub(super) fn is_same_member(&self, other: &MembershipConfig) -> bool {
        (&self.group, &self.url) == (&other.group, &other.url)
    }

    /// Returns the rate of a director's HTTP probes, in thousandths per second.
    pub(in crate::agent) fn probes_milli(&self) -> u64 {
        let is_request = self.is_probed && matches!(self.health.kind, HealthKind::Http { .. });
        if is_request { 1_000_000 / self.health.interval_ms.max(1) } else { 0 }
    }

    /// Returns the name in logs and views.
    pub(super) fn name(&self) -> String {
        match &self.url {
            Some(url) => format!("{url} in {}", self.group),
            None => format!("this host in {}", self.group),
        }
    }
}

/// Returns the group of `[agent.member]`, and the services of the file that list this host and can
/// be joined.
pub(in crate::agent) fn wanted(
    config: &Config,
    identity: &AgentIdentity,
    network: &Network,
) -> Vec<MembershipConfig> {
    let settings = &config.agent.member;
    let directors = config.farm.directors.clone();
    let named = settings.group.as_ref().map(|group| MembershipConfig {
        group: group.clone(),
        url: settings.url.clone(),
        token_file: settings.token_file.clone(),
        health: health(),
        is_probed: false,
        settings: settings.clone(),
        listen: config.agent.listen,
        directors: directors.clone(),
    });
    let is_this = |member: &&GroupMember| match &identity.host {
        Some(host) => member.name == *host,
        None => member.url.address().is_some_and(|address| network.is_local(address)),
    };
    let listed = config.groups.iter().flat_map(|service| {
        let here = service.group.members.iter().filter(is_this).map(move |member| (service, member));
        here.filter(|(service, _)| may_be_joined(service))
    });
    let listed = listed.filter_map(|(service, member)| {
        let group = group_url(service, &directors)?;
        let (Group { health, .. }, token_file) = (&*service.group, &service.token_file);
        let own = settings.token_file.clone().or_else(|| token_file.clone());
        Some(MembershipConfig {
            group,
            url: Some(member.url.clone()),
            token_file: own,
            health: if health.kind == HealthKind::None { self::health() } else { health.clone() },
            is_probed: health.kind != HealthKind::None,
            settings: MemberConfig {
                weight: member.weight,
                anonymous: member.anonymous,
                control: member.control.clone().or_else(|| settings.control.clone()),
                paths: Vec::new(),
                hosts: Vec::new(),
                ..settings.clone()
            },
            listen: config.agent.listen,
            directors: directors.clone(),
        })
    });
    let mut all: Vec<MembershipConfig> = named.into_iter().collect();
    for one in listed {
        // If a group is named twice, the file's own section takes precedence.
        if !all.iter().any(|known| (&known.group, &known.url) == (&one.group, &one.url)) {
            all.push(one);
        }
    }
    all
}

fn may_be_joined(service: &GroupService) -> bool {
    service.group.joining.insecure || service.token_file.is_some() || service.client_ca.is_some()
}

/// Returns the URL of a service: its first address, or a director's if that is unspecified.
fn group_url(service: &GroupService, directors: &[IpAddr]) -> Option<Url> {
    let address = service.group.addresses.first()?;
    let ip = match address.ip().is_unspecified() {
        true => directors.iter().find(|director| director.is_ipv4() == address.is_ipv4()).copied()?,
        false => address.ip(),
    };
    let scheme = if service.tls.is_some() { "https" } else { "http" };
    Url::parse(&format!("{scheme}://{}", SocketAddr::new(ip, address.port()))).ok()
}

fn health() -> HealthCheck {
    HealthCheck {
        kind: HealthKind::Http {
            path: "/".to_owned(),
            host: None,
            status: vec![STATUS],
            body: None,
            tls: None,
        },
        interval_ms: TIMEOUT_MS,
        timeout_ms: TIMEOUT_MS,
        rise: 1,
        fall: 1,
        jitter_percent: 0,
        ..HealthCheck::default()
    }
}
