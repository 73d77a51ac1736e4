//! Probes: does a server do what its clients want of it?
//!
//! A server that is reached by layer two has the service address itself, so this host's own stack would
//! keep a probe or misroute it. A small user-space TCP sends it instead, to the server's MAC address and
//! the service address: the way that clients' traffic takes.

mod arp;
mod device;
mod dialogue;
mod link;
mod local;
mod tcp;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use evener_core::farm::HealthKind;
use evener_core::health::Failure;
use evener_core::wire::Mac;

/// Whom to probe, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server's MAC.
    pub mac: Mac,
    /// The interface that leads to it.
    pub ifindex: u32,
    /// That interface's MAC.
    pub own_mac: Mac,
    /// This host's address on that interface.
    pub source: Ipv4Addr,
    /// The service address, and the port to probe.
    pub destination: SocketAddrV4,
    /// The server is this host, and its own stack reaches it.
    pub local: bool,
    /// The server's own address; unknown for a discovered one.
    pub server_address: Option<Ipv4Addr>,
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
        HealthKind::Tcp | HealthKind::Http { .. } if target.local => {
            local::probe(target, kind, timeout).await?
        }
        HealthKind::Tcp | HealthKind::Http { .. } => tcp::probe(target, kind, timeout).await?,
    }
    Ok(u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX))
}
