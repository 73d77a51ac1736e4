//! Whether a member does what its clients want of it: asked by this host's own stack, as clients ask.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use evener_core::director::{ProbePath, Target};
use evener_core::farm::health::Failure;
use evener_core::farm::{Health, HealthKind};
use evener_core::net::http::Url;
use tokio::net::lookup_host;

use crate::io::probe::probe;

/// Probes a member once: how long a good answer took, in microseconds.
///
/// # Errors
/// Why it does not work.
pub(crate) async fn probe_member(url: &Url, health: &Health) -> Result<u64, Failure> {
    let timeout = Duration::from_millis(health.timeout_ms);
    if health.kind == HealthKind::None {
        return Ok(0);
    }
    let begun = Instant::now();
    let found = tokio::time::timeout(timeout, address(url, health.port)).await;
    let address = found.map_err(|_| Failure::Other("its name was not resolved in time".to_owned()))??;
    let target = Target { destination: address, way: ProbePath::Direct { to: address } };
    let left = timeout.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
    probe(&target, None, &kind(url, health), left).await
}

/// What is asked of a member: below its URL, and by its own name. One that wants TLS is seen to listen, since probes don't speak it.
fn kind(url: &Url, health: &Health) -> HealthKind {
    match &health.kind {
        HealthKind::Http { .. } if url.is_secure() && health.port.is_none() => HealthKind::Tcp,
        HealthKind::Http { path, host, status, body } => HealthKind::Http {
            path: format!("{}{path}", url.path()),
            host: Some(host.clone().unwrap_or_else(|| url.authority().to_owned())),
            status: status.clone(),
            body: body.clone(),
        },
        other => other.clone(),
    }
}

async fn address(url: &Url, port: Option<u16>) -> Result<SocketAddr, Failure> {
    let port = port.unwrap_or(url.port());
    let found = lookup_host((url.host(), port)).await;
    let first = found.map(|mut addresses| addresses.next());
    match first {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(Failure::Other(format!("{} has no address", url.host()))),
        Err(error) => Err(Failure::Other(format!("{} can't be resolved: {error}", url.host()))),
    }
}
