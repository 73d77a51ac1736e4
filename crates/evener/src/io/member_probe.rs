//! Probes members through this host's own stack, as clients connect.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use evener_core::director::{ProbePath, Target};
use evener_core::farm::group::Reach;
use evener_core::net::http::Url;
use evener_core::pool::health::Failure;
use evener_core::pool::{HealthCheck, HealthKind, ProbeTls};

use super::locating::locate;
use crate::io::probe::probe;

/// Probes a member once. Returns the duration of a successful probe in microseconds. `elsewhere` is
/// the address that the operator wants to be probed instead. `reach` limits the allowed addresses.
/// `own` are this daemon's addresses: a member there would be the daemon itself under another name,
/// and redirect its clients in a loop.
///
/// # Errors
/// The reason of the failure.
pub(crate) async fn probe_member(
    url: &Url,
    elsewhere: Option<IpAddr>,
    reach: Option<&Reach>,
    health: &HealthCheck,
    own: &[SocketAddr],
) -> Result<u64, Failure> {
    let timeout = Duration::from_millis(health.timeout_ms);
    let started = Instant::now();
    let found = match elsewhere {
        Some(address) => Ok(SocketAddr::new(address, url.port())),
        None => {
            let found = tokio::time::timeout(timeout, locate(url, reach, own)).await;
            let found = found.map_err(|_| Failure::Other("its name was not resolved in time".to_owned()))?;
            found.map_err(Failure::from)
        }
    };
    if health.kind == HealthKind::None {
        // Without a probe, only the address is checked. A name that can't be resolved now is no
        // failure.
        return match found {
            Ok(_) => Ok(0),
            Err(Failure::Forbidden(why)) => Err(Failure::Forbidden(why)),
            Err(other) => Err(Failure::NotProbed(other.to_string())),
        };
    }
    let mut address = found?;
    address.set_port(health.port.unwrap_or(url.port()));
    let target = Target { destination: address, way: ProbePath::Direct { to: address } };
    let left = timeout.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
    probe(&target, None, &kind(url, health), left).await
}

/// Returns the probe of a member, below its URL and with its own name. With kind "http", a member
/// with TLS is only probed for an open port.
fn kind(url: &Url, health: &HealthCheck) -> HealthKind {
    match &health.kind {
        HealthKind::Http { tls: None, .. } if url.is_secure() && health.port.is_none() => HealthKind::Tcp,
        HealthKind::Http { path, host, status, body, tls } => HealthKind::Http {
            path: format!("{}{path}", url.path()),
            host: Some(host.clone().unwrap_or_else(|| url.authority().to_owned())),
            status: status.clone(),
            body: body.clone(),
            tls: tls.as_ref().map(|tls| {
                let name = tls.name.clone().unwrap_or_else(|| url.host().to_owned());
                ProbeTls { name: Some(name), ..tls.clone() }
            }),
        },
        other => other.clone(),
    }
}
