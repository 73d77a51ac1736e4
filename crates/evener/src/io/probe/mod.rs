//! Probes: does a server do what its clients want of it?
//!
//! A server that is reached by layer two or by a tunnel has the service address itself, so this
//! host's own stack would keep a probe or misroute it. A small user-space TCP sends it instead, to
//! the server's MAC address, or into the tunnel, and the service address: the way that clients'
//! traffic takes. A server by NAT has an address of its own, which this host's stack reaches as the
//! traffic does.

mod arp;
mod device;
mod dialogue;
mod link;
mod local;
mod outer;
pub(crate) mod size;
mod syn_cookie;
mod tcp;
mod tls;

use std::time::{Duration, Instant};

pub use evener_core::director::{Adjacency, ProbePath, Target};
use evener_core::path::cookie::Keys;
use evener_core::pool::HealthKind;
use evener_core::pool::health::Failure;

/// Probes a server once: how long a good answer took, in microseconds. Where connections are handed
/// over, the handshake is made here by these keys.
///
/// Takes no longer than `timeout`, and some 80 KB at most. May be dropped at any time.
///
/// # Errors
/// Why the server, or the way to it, does not work.
pub async fn probe(
    target: &Target,
    keys: Option<&Keys>,
    kind: &HealthKind,
    timeout: Duration,
) -> Result<u64, Failure> {
    let started = Instant::now();
    match kind {
        HealthKind::None => {}
        HealthKind::Arp => arp::probe(target, timeout).await?,
        HealthKind::Tcp | HealthKind::Http { .. } => match target.way {
            ProbePath::Local { to } | ProbePath::Direct { to } => {
                local::probe(target, to, kind, timeout).await?
            }
            ProbePath::Link { .. } | ProbePath::Tunnel { .. } => {
                tcp::probe(target, keys, kind, timeout).await?
            }
        },
    }
    Ok(u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX))
}
