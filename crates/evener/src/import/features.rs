//! Features that Evener got late or lacks. Each is decided here once for all source programs.
//!
//! A function returns the reason to leave the feature out. Once Evener has the feature, the
//! function writes its keys into the draft and returns `Ok`. Every importer then carries the
//! feature over.

use super::draft::{DraftHealth, DraftServer, DraftTls};
use super::reasons::{self, LeftReason};

/// `Ok` if a feature is carried over, or the reason why not.
pub(super) type Carried = Result<(), &'static LeftReason>;

/// Client affinity: connections from one client address go to the same server. The affinity expires
/// after `_seconds`, if the source has a time. `_keys` are keys of
/// `[[service]]`.
pub(super) fn affinity(_keys: &mut Vec<String>, _seconds: Option<u64>) -> Carried {
    Err(&reasons::AFFINITY)
}

/// Client affinity by a policy that hashes only the client's address.
pub(super) fn address_hash(keys: &mut Vec<String>) -> Carried {
    affinity(keys, None).map_err(|_| &reasons::ADDRESS_HASH)
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
