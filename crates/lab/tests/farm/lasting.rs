//! Connections that must outlive their director.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use evener_lab::clients::http_connection::HttpConnection;
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
