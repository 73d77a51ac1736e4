//! Features that Evener got late or lacks. Each is decided here once for all source programs.
//!
//! A function returns the reason to leave the feature out. Once Evener has the feature, the
//! function writes its keys into the draft and returns `Ok`. Every importer then carries the
//! feature over.

use super::draft::{DraftHealth, DraftServer, DraftTls};
use super::reasons::{self, LeftReason};
use super::render::time;
use super::values::affinity_limits_ms;

/// `Ok` if a feature is carried over, or the reason why not.
pub(super) type Carried = Result<(), &'static LeftReason>;

/// Time of affinity by a hash, which does not depend on the time.
const ANY_TIME_MS: u64 = 600_000;

/// Client affinity: connections from one client address go to the same server, until `time_ms`
/// after the client's last one. `keys` are keys of `[[service]]`.
pub(super) fn affinity(keys: &mut Vec<String>, time_ms: Option<u64>) -> Carried {
    let time_ms = time_ms.filter(|ms| affinity_limits_ms().contains(ms)).ok_or(&reasons::AFFINITY)?;
    // A time that is written beside a hash counts.
    keys.retain(|key| !key.starts_with("affinity = "));
    keys.push(format!("affinity = {}", time(time_ms)));
    Ok(())
}

/// Sets what counts as one client: the prefix lengths of IPv4 and IPv6. Does nothing for single
/// addresses, since that is the default.
pub(super) fn affinity_mask(keys: &mut Vec<String>, lens: [u8; 2]) {
    keys.retain(|key| !key.starts_with("affinity_mask = "));
    if lens != [32, 64] {
        keys.push(format!("affinity_mask = {lens:?}"));
    }
}

/// True if these keys have affinity.
pub(super) fn has_affinity(keys: &[String]) -> bool {
    keys.iter().any(|key| key.starts_with("affinity = "))
}

/// Removes affinity and its mask.
pub(super) fn remove_affinity(keys: &mut Vec<String>) {
    keys.retain(|key| !key.starts_with("affinity"));
}

/// Client affinity by a policy that hashes only the client's address.
pub(super) fn address_hash(keys: &mut Vec<String>) {
    if !has_affinity(keys) {
        keys.push(format!("affinity = {}", time(ANY_TIME_MS)));
    }
}

/// Marks a server as a backup, which gets connections only while no other server is up.
pub(super) fn backup(server: &mut DraftServer) -> Carried {
    server.keys.push("backup = true".to_owned());
    Ok(())
}

/// Sets the maximum number of connections of a server. In all source programs, 0 is no limit.
pub(super) fn max_connections(server: &mut DraftServer, most: u64) -> Carried {
    // The server's own value comes after the default, and replaces it.
    server.keys.retain(|key| !key.starts_with("max_connections = "));
    if most > 0 {
        server.keys.push(format!("max_connections = {most}"));
    }
    Ok(())
}

/// Sets up HTTPS probes, the only probes over TLS. An HTTPS probe must have a name to verify or
/// accept every certificate. Otherwise, or if the source doesn't probe by HTTP, the probe only
/// opens a TCP connection.
pub(super) fn https_check(health: &mut DraftHealth, tls: Option<DraftTls>, is_http: bool) -> Carried {
    let tls = tls.filter(|tls| is_http && (!tls.verify || tls.name.is_some()));
    match tls {
        Some(tls) => {
            health.kind = Some("https");
            health.tls = Some(tls);
            Ok(())
        }
        None => {
            let (port, times) = (health.port, (health.interval_ms, health.timeout_ms));
            let (rise, fall, fast_interval_ms) = (health.rise, health.fall, health.fast_interval_ms);
            *health = DraftHealth {
                kind: Some("tcp"),
                port,
                rise,
                fall,
                fast_interval_ms,
                ..DraftHealth::default()
            };
            (health.interval_ms, health.timeout_ms) = times;
            Err(&reasons::HTTPS_CHECK)
        }
    }
}
