//! Probes: does a server do what its clients want of it?
//!
//! A server that is reached by layer two or by a tunnel has the service address itself, so this host's own
//! stack would keep a probe or misroute it. A small user-space TCP sends it instead, to the server's MAC
//! address, or into the tunnel, and the service address: the way that clients' traffic takes. A server by NAT
//! has an address of its own, which this host's stack reaches as the traffic does.

mod arp;
mod device;
mod dialogue;
mod greeter;
mod link;
mod local;
mod outer;
mod tcp;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use evener_core::cookie::Keys;
use evener_core::farm::{Encapsulation, HealthKind};
use evener_core::health::Failure;
use evener_core::wire::Mac;

/// Whom to probe, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The service address, and the port to probe.
    pub destination: SocketAddr,
    /// How the probe gets there.
    pub way: Way,
    /// Where connections are handed over: the keys of the handshake, which is then made here.
    pub handed_over: Option<Keys>,
}

/// How a probe gets to its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The server is this host: its own stack connects here.
    Local {
        /// The service address if this host has it, else its own.
        to: SocketAddr,
    },
    /// This host's own stack connects to the server's own address, as NAT would have it.
    Direct {
        /// That address, and the port to probe.
        to: SocketAddr,
    },
    /// By the server's MAC address.
    Link {
        /// The server itself.
        hop: Hop,
        /// This host's address towards it; of the family of what is asked for.
        source: IpAddr,
        /// The server's own address, which ARP probes ask for; unknown for a discovered one.
        server: Option<IpAddr>,
    },
    /// Inside another packet, as traffic by a tunnel comes. Answers come as they are, by any interface.
    Tunnel {
        /// The server, or the router before it.
        hop: Hop,
        /// The address of this host's that answers go to; of the service address's family.
        source: IpAddr,
        /// What it is put into.
        encapsulation: Encapsulation,
        /// The outer source.
        from: IpAddr,
        /// The outer destination: the server's own address. Of the same family as `from`.
        to: IpAddr,
    },
}

/// The next station on the way, by its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The interface that leads to it.
    pub ifindex: u32,
    /// Its MAC.
    pub mac: Mac,
    /// The interface's own MAC.
    pub own_mac: Mac,
}

/// Probes a server once: how long a good answer took, in microseconds.
///
/// Takes no longer than `timeout`, and some 80 KB at most. May be dropped at any time.
///
/// # Errors
/// Why the server, or the way to it, does not work.
pub async fn probe(target: &Target, kind: &HealthKind, timeout: Duration) -> Result<u64, Failure> {
    let started = Instant::now();
    match kind {
        HealthKind::None => {}
        HealthKind::Arp => arp::probe(target, timeout).await?,
        HealthKind::Tcp | HealthKind::Http { .. } => match target.way {
            Way::Local { to } | Way::Direct { to } => local::probe(target, to, kind, timeout).await?,
            Way::Link { .. } | Way::Tunnel { .. } => tcp::probe(target, kind, timeout).await?,
        },
    }
    Ok(u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX))
}
