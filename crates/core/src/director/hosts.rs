//! Local host of an every-host farm: its identity and its state.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::farm::network::Network;
use crate::farm::plan::{self, ServerName};
use crate::farm::{Announce, Farm, Server, Service};
use crate::net::wire::Mac;
use crate::node::peers::{HostSetting, PeerSettings, Peers, Publishable};
use crate::node::secret::Key;
use crate::pool::policy::Sharing;

/// Identity of this host in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    pub address: IpAddr,
}

/// Reason why this host can't take part in an every-host farm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Two servers of the file have addresses of this host.
    #[error("servers {0} and {1} both have an address of this host: a host is one server of the file")]
    Twice(String, String),
    /// No server has an address of this host.
    #[error(
        "this host is not in the file: service {service:?} has placement \"every-host\", and no server of it has an address of this host ({here}). Add this host as [[service.server]], in the same file on all hosts"
    )]
    NoOwnAddress {
        /// A service with placement `every-host`.
        service: String,
        /// Addresses of this host.
        here: String,
    },
}

impl Identity {
    /// Finds this host in the farm; `None` if the farm has no `every-host` services.
    ///
    /// # Errors
    /// The farm file does not list this host, or lists it under two names.
    pub fn find(farm: &Farm, network: &Network) -> Result<Option<Identity>, IdentityError> {
        let Some(service) = farm.every_host().next() else { return Ok(None) };
        let servers = farm.every_host().flat_map(|service| &service.servers);
        let here = servers.filter(|server| network.is_local(server.address));
        let here: BTreeMap<&String, IpAddr> = here.map(|server| (&server.name, server.address)).collect();
        let mut here = here.into_iter();
        match (here.next(), here.next()) {
            (Some((name, address)), None) => Ok(Some(Identity { name: name.clone(), address })),
            (Some((first, _)), Some((second, _))) => Err(IdentityError::Twice(first.clone(), second.clone())),
            (None, _) => Err(IdentityError::NoOwnAddress {
                service: service.name.clone(),
                here: network.own_addresses(),
            }),
        }
    }
}

/// Returns the settings that the hosts of this farm have in common.
pub(super) fn settings(farm: &Farm, name: &str, key: Key) -> PeerSettings {
    let servers = || farm.every_host().flat_map(|service| &service.servers);
    let hosts: BTreeMap<&String, IpAddr> = servers().map(|server| (&server.name, server.address)).collect();
    let announced = farm.every_host().filter(|service| service.announce == Announce::Director);
    let addresses: BTreeSet<IpAddr> =
        announced.flat_map(|service| &service.addresses).map(|address| address.ip()).collect();
    let publisher = |address: &IpAddr| {
        servers().find(|server| server.publish.contains(address)).map(|server| server.name.clone())
    };
    PeerSettings {
        name: name.into(),
        hosts: hosts.into_iter().map(|(name, address)| HostSetting { name: name.clone(), address }).collect(),
        services: farm.every_host().map(|service| service.name.clone()).collect(),
        addresses: addresses
            .into_iter()
            .map(|address| Publishable { publisher: publisher(&address), address })
            .collect(),
        generation: generation(farm),
        interval_ms: farm.peers.interval_ms,
        silence_ms: farm.peers.silence_ms,
        key,
    }
}

/// Digest of all settings that hosts must have in common to accept each other's reports. A host
/// reports the weight and the connection limit of its own server, so these may differ.
pub fn generation(farm: &Farm) -> u64 {
    let of = |service: &Service| {
        let Service { name, addresses, protocol, method, encapsulation, .. } = service;
        let Service { stateless, policy, affinity, announce, servers, keep_last, routes, .. } = service;
        let announce = *announce == Announce::Director;
        let servers = servers.iter().map(|server| {
            let Server { name, address, backup, publish, .. } = server;
            format!("{name} {address} {backup} {publish:?}")
        });
        let servers: Vec<String> = servers.collect();
        // Hosts with other clients select other servers.
        let affinity = affinity.map_or_else(String::new, |affinity| format!(" {affinity:?}"));
        let routes = if routes.is_empty() { String::new() } else { format!(" {routes:?}") };
        format!(
            "{name} {addresses:?} {protocol} {method} {encapsulation} {stateless} {policy} {announce} {keep_last} \
             {servers:?}{affinity}{routes}\n"
        )
    };
    let peers = farm.peers;
    let text = farm.every_host().map(of).collect::<String>();
    plan::digest(&format!("{text}{} {}", peers.interval_ms, peers.silence_ms))
}

/// State of this host in an every-host farm.
#[derive(Clone, Debug)]
pub(super) struct LocalHost {
    pub(super) name: String,
    pub(super) key: Key,
    pub(super) peers: Peers,
    /// State of sharing policies, by service and policy name.
    pub(super) sharings: BTreeMap<(String, &'static str), Box<dyn Sharing>>,
    /// Share of each server in the sessions that reach this host.
    pub(super) shares: BTreeMap<ServerName, u16>,
    /// Load of this host, in hundredths of a session.
    pub(super) load: u64,
    /// MAC addresses of other hosts in the tables of an earlier daemon, valid until those hosts
    /// report.
    pub(super) adopted_macs: BTreeSet<Mac>,
    /// Time in milliseconds at which carrier returned, while this host receives reports before it
    /// renews its expired lease.
    pub(super) listens_since_ms: Option<u64>,
    /// Claimed addresses with the number of announcements left.
    pub(super) to_announce: BTreeMap<IpAddr, u32>,
}

impl LocalHost {
    /// Returns the state of a host that has received no report yet. `incarnation` is random for
    /// each start.
    pub(super) fn new(farm: &Farm, name: String, key: Key, incarnation: u64, now_ms: u64) -> LocalHost {
        let settings = settings(farm, &name, key);
        LocalHost {
            name,
            key,
            peers: Peers::new(settings, incarnation, now_ms),
            sharings: BTreeMap::new(),
            shares: BTreeMap::new(),
            load: 0,
            adopted_macs: BTreeSet::new(),
            listens_since_ms: None,
            to_announce: BTreeMap::new(),
        }
    }
}
