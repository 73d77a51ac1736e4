//! Probes: test if a server works as its clients need it.
//!
//! A server on the link or at the end of a tunnel has the service address itself. This host's own
//! stack would keep or misroute a probe to that address. Instead, a small user-space TCP sends the
//! probe to the service address. Like clients' traffic, the probe goes to the server's MAC address
//! or through the tunnel. A NAT server has its own address, to which this host's stack sends probes
//! on the same path as clients' traffic.

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

/// Probes a server once. Returns the duration of a successful probe in microseconds. For handoff
/// servers, the handshake is made here with `keys`.
///
/// Runs for at most `timeout`, and needs about 80 KB. Cancel safe.
///
/// # Errors
/// The reason why the server, or the path to it, does not work.
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
