//! Features that Evener has late, or is to have: each is decided in one place, for all programs.
//!
//! A function here returns the reason why the feature is left. Once Evener has it, the function
//! writes its keys into the draft and returns `Ok`, and every importer carries it over.

use super::draft::{DraftHealth, DraftServer, DraftTls};
use super::reasons::{self, LeftReason};

/// Whether a feature is carried over.
pub(super) type Carried = Result<(), &'static LeftReason>;

/// Connections of one client's address go to one server, for so many seconds where the source has
/// them. The keys are those of `[[service]]`.
pub(super) fn affinity(_keys: &mut Vec<String>, _seconds: Option<u64>) -> Carried {
    Err(&reasons::AFFINITY)
}

/// The same by a policy that hashes the address alone.
pub(super) fn address_hash(keys: &mut Vec<String>) -> Carried {
    affinity(keys, None).map_err(|_| &reasons::ADDRESS_HASH)
}

/// A server that gets connections only while no other is up.
pub(super) fn backup(server: &mut DraftServer) -> Carried {
    server.keys.push("backup = true".to_owned());
    Ok(())
}

/// The most connections of a server; 0 is no limit, as in all the sources.
pub(super) fn max_connections(server: &mut DraftServer, most: u64) -> Carried {
    // One of the server itself stands behind one of the defaults.
    server.keys.retain(|key| !key.starts_with("max_connections = "));
    if most > 0 {
        server.keys.push(format!("max_connections = {most}"));
    }
    Ok(())
}

/// Probes by TLS, which are by HTTP too: they need a name to verify, unless every certificate is
/// believed. Without one a connection that opens has to do.
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
