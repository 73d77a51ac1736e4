//! Whether a member does what its clients want of it: asked by this host's own stack, as clients
//! ask.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use evener_core::director::{ProbePath, Target};
use evener_core::farm::group::Reach;
use evener_core::net::http::Url;
use evener_core::pool::health::Failure;
use evener_core::pool::{HealthCheck, HealthKind, ProbeTls};

use super::locating::locate;
use crate::io::probe::probe;

/// Probes a member once: how long a good answer took, in microseconds. It is asked `elsewhere` if
/// the operator says so. `reach` bounds where it may be, and `own` is where this daemon listens: a
/// member there would be itself under another name, and its clients would be sent to and fro.
///
/// # Errors
/// Why it does not work.
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
        // Nobody asks whether it works: only where it is. A name that can't be looked up now says
        // nothing.
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

/// The probe of a member: below its URL, and by its own name. With kind "http" one that wants TLS
/// is only seen to listen.
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
