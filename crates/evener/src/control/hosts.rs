//! This host among others, where every host decides: who it is, what it says to the others and hears of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evener_core::farm::Service;
use evener_core::load::Balance;
use evener_core::mark::Marker;
use evener_core::peers::{HostSetting, HostState, Key, LABEL, Peers, Publishable, Secret, Settings};
use evener_core::plan::{self, ServerName};
use evener_core::sessions::Seed;
use evener_core::wire::Mac;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::network::Network;

/// A datagram, and where it is said to be from.
pub(super) type Heard = (SocketAddr, Vec<u8>);

/// Longer than any datagram of ours.
const DATAGRAM_BYTES: usize = 1_024;
/// Datagrams that wait for the control loop; more than that are lost, as on any network.
const QUEUE: usize = 256;
/// What the key of the hash tables' hash is derived by.
const RING_LABEL: &str = "evener ring";

/// Who this host is in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its name.
    pub(crate) name: String,
    /// Its own address.
    pub(crate) address: IpAddr,
}

impl Identity {
    /// Finds this host in the file; `None` where no service is decided by every host.
    ///
    /// # Errors
    /// A sentence, when it isn't there, or twice.
    pub(crate) fn find(config: &Config, network: &Network) -> Result<Option<Identity>, String> {
        let Some(service) = config.every_host().next() else { return Ok(None) };
        let servers = config.every_host().flat_map(|service| &service.servers);
        let here = servers.filter(|server| network.is_local(server.address));
        let here: BTreeMap<&str, IpAddr> =
            here.map(|server| (server.name.as_str(), server.address)).collect();
        let mut here = here.into_iter();
        match (here.next(), here.next()) {
            (Some((name, address)), None) => Ok(Some(Identity { name: name.to_owned(), address })),
            (Some((first, _)), Some((second, _))) => Err(format!(
                "the file has this host twice, as {first} and as {second}: both have an address that is here"
            )),
            (None, _) => Err(format!(
                "this host is none of the file's: service {:?} has placement \"every-host\", and none of its servers \
                 has an address that is here ({}). List it as [[service.server]], in the same file for every host",
                service.name,
                network.own_addresses()
            )),
        }
    }
}

/// The key by which all hosts come to the same choice.
pub(super) fn ring_seed(secret: &Secret) -> Seed {
    Seed::from_bytes(secret.derive_short(RING_LABEL))
}

/// What the hosts of this file are to know of each other.
pub(super) fn settings(config: &Config, identity: &Identity, secret: &Secret) -> Settings {
    let servers = || config.every_host().flat_map(|service| &service.servers);
    let hosts: BTreeMap<&str, IpAddr> =
        servers().map(|server| (server.name.as_str(), server.address)).collect();
    let announced = config.every_host().filter(|service| service.announce);
    let addresses: BTreeSet<IpAddr> =
        announced.flat_map(|service| &service.addresses).map(|address| address.ip()).collect();
    let publisher = |address: &IpAddr| {
        servers().find(|server| server.publish.contains(address)).map(|server| server.name.clone())
    };
    Settings {
        name: identity.name.clone(),
        hosts: hosts
            .into_iter()
            .map(|(name, address)| HostSetting { name: name.to_owned(), address })
            .collect(),
        services: config.every_host().map(|service| service.name.clone()).collect(),
        addresses: addresses
            .into_iter()
            .map(|address| Publishable { publisher: publisher(&address), address })
            .collect(),
        generation: generation(config),
        interval_ms: config.farm.peers.interval_ms,
        silence_ms: config.farm.peers.silence_ms,
        key: Key(secret.derive(LABEL)),
    }
}

/// What this host writes marks with.
pub(super) fn marker(config: &Config, secret: &Secret) -> Marker {
    Marker { key: crate::secret::mark_key(secret), generation: generation(config) as u32 }
}

/// A digest of all that hosts must agree on before they can believe each other.
fn generation(config: &Config) -> u64 {
    let of = |service: &Service| {
        let Service { name, addresses, protocol, method, encapsulation, .. } = service;
        let Service { stateless, policy, announce, servers, keep_last, routes, .. } = service;
        let routes = if routes.is_empty() { String::new() } else { format!(" {routes:?}") };
        format!(
            "{name} {addresses:?} {protocol} {method} {encapsulation} {stateless} {policy} {announce} {keep_last} \
             {servers:?}{routes}\n"
        )
    };
    let peers = config.farm.peers;
    let text = config.every_host().map(of).collect::<String>();
    plan::digest(&format!("{text}{} {}", peers.interval_ms, peers.silence_ms))
}

/// This host's part in the talk of hosts.
pub(super) struct Hosts {
    pub(super) identity: Identity,
    pub(super) secret: Secret,
    pub(super) peers: Peers,
    port: u16,
    socket: Arc<UdpSocket>,
    /// For services whose policy goes by load: whether this host keeps what it gets.
    pub(super) balances: BTreeMap<String, Balance>,
    /// What follows: shares of what this host is asked for.
    pub(super) shares: BTreeMap<ServerName, u16>,
    /// This host's load: see [`super::every_host`].
    pub(super) load: u64,
    /// Other hosts' MACs by which a data plane goes that ran before this daemon; they count until those hosts are heard.
    pub(super) adopted_macs: BTreeSet<Mac>,
    /// How often in a row the lease to answer for addresses was found to have ended.
    pub(super) lapsed: u32,
    /// Addresses that were just claimed, and how often they are still to be announced.
    pub(super) to_announce: BTreeMap<IpAddr, u32>,
}

impl Hosts {
    /// Begins to listen; datagrams come by the receiver.
    ///
    /// # Errors
    /// When the port can't be had on the host's own address.
    pub(super) async fn open(
        config: &Config,
        identity: Identity,
        secret: Secret,
        now_ms: u64,
    ) -> io::Result<(Hosts, mpsc::Receiver<Heard>)> {
        let mut incarnation = [0; 8];
        crate::secret::random(&mut incarnation)?;
        let port = config.farm.peers.port;
        let socket = Arc::new(UdpSocket::bind((identity.address, port)).await?);
        let (heard, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(listen(socket.clone(), heard));
        let settings = settings(config, &identity, &secret);
        let peers = Peers::new(settings, u64::from_ne_bytes(incarnation), now_ms);
        let hosts = Hosts {
            identity,
            secret,
            peers,
            port,
            socket,
            balances: BTreeMap::new(),
            shares: BTreeMap::new(),
            load: 0,
            lapsed: 0,
            adopted_macs: BTreeSet::new(),
            to_announce: BTreeMap::new(),
        };
        Ok((hosts, receiver))
    }

    /// Sends a datagram to a host. One that can't be sent is lost, as any may be.
    pub(super) fn send(&self, to: IpAddr, datagram: &[u8]) {
        if let Err(error) = self.socket.try_send_to(datagram, SocketAddr::new(to, self.port)) {
            tracing::debug!(%to, %error, "a report was not sent");
        }
    }

    /// What is known of a host.
    pub(super) fn state(&self, name: &str) -> Option<HostState> {
        self.peers.hosts().into_iter().find(|host| host.name == name)
    }
}

async fn listen(socket: Arc<UdpSocket>, heard: mpsc::Sender<Heard>) {
    let mut buffer = [0; DATAGRAM_BYTES];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((len, from)) => {
                let datagram = buffer.get(..len).unwrap_or_default().to_vec();
                if let Err(mpsc::error::TrySendError::Closed(_)) = heard.try_send((from, datagram)) {
                    return;
                }
            }
            // What came back for a datagram that reached nobody.
            Err(error) => tracing::trace!(%error, "a host is not there"),
        }
    }
}
