//! Connections that must outlive their director.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
use evener_lab::evener::Evener;
use evener_lab::harness::wait;
use evener_lab::network::host::Host;

/// Number of connections that must go on.
pub(crate) const CONNECTIONS: usize = 200;

/// Opens connections to these services in turn. Returns each with its server.
pub(crate) fn open(client: &Host, services: &[SocketAddr]) -> Result<Vec<(HttpConnection, String)>> {
    let services = services.iter().cycle().take(CONNECTIONS);
    services
        .map(|service| {
            let mut visit = HttpConnection::open(client, *service)?;
            let server = visit.who()?;
            Ok((visit, server))
        })
        .collect()
}

/// Waits until a director knows the session of each connection, its own or another director's.
pub(crate) fn are_known_to(visits: &[(HttpConnection, String)], director: &Evener) -> Result<()> {
    wait::until("the director knows the sessions", || {
        let sessions = director.sessions()?;
        let known: BTreeSet<(&str, &str)> =
            sessions.iter().map(|one| (one.client.as_str(), one.server.as_str())).collect();
        Ok(visits
            .iter()
            .all(|(visit, server)| known.contains(&(&*visit.client().to_string(), server.as_str()))))
    })
}

/// Checks that the same server answers on each connection as before.
pub(crate) fn go_on(visits: &mut [(HttpConnection, String)], when: &str) -> Result<()> {
    let broken = visits.iter_mut().filter_map(|(visit, server)| match visit.who() {
        Ok(other) if other == *server => None,
        Ok(other) => Some(format!("{server} became {other}")),
        Err(error) => Some(error.to_string()),
    });
    let broken: Vec<String> = broken.collect();
    ensure!(broken.is_empty(), "{when}: {} of {CONNECTIONS} are broken: {broken:?}", broken.len());
    Ok(())
}
