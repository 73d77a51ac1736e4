//! Views of sessions.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use evener_core::path::sessions::{self, State, ms};
use evener_core::path::tables::VipKey;
use serde::{Deserialize, Serialize};

use super::services::has_service;
use crate::board::PublishedState;
use crate::board::request::SessionFilter;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionView {
    /// Name of the service.
    pub service: String,
    pub address: String,
    /// `ip:port`, `[ip]:port` with IPv6.
    pub client: String,
    /// Name of the server.
    pub server: String,
    /// `new`, `established`, `half-closed`, `closing` or `udp`.
    pub state: String,
    /// Seconds since the last packet, accurate to a 64th of the idle time, at most four seconds.
    pub idle_seconds: u64,
    /// Seconds until the session expires without a packet.
    pub expires_seconds: u64,
}

/// Returns matching sessions.
///
/// # Errors
/// If the service does not exist or has no sessions.
pub(crate) fn sessions(
    published: &PublishedState,
    filter: &SessionFilter,
) -> Result<Vec<SessionView>, String> {
    let (snapshot, readings) = (&published.snapshot, &published.readings);
    filter.service.as_ref().map_or(Ok(()), |service| has_service(&snapshot.farm, service))?;
    let now = readings.now();
    let vips: BTreeMap<u16, &VipKey> =
        snapshot.plan.tables.vips.iter().map(|(key, vip)| (vip.id, key)).collect();
    let sessions = readings.memory().sessions;
    let shown = sessions
        .list(now)
        .filter(|session| filter.admits(session))
        .filter_map(|session| session_of(published, &session, &vips, now))
        .filter(|session| filter.service.as_ref().is_none_or(|service| *service == session.service))
        .take(filter.limit.unwrap_or(usize::MAX));
    Ok(shown.collect())
}

fn session_of(
    published: &PublishedState,
    session: &sessions::Session,
    vips: &BTreeMap<u16, &VipKey>,
    now: u32,
) -> Option<SessionView> {
    let plan = &published.snapshot.plan;
    let key = *vips.get(&session.key.vip)?;
    let vip = plan.tables.vips.get(key)?;
    let state = session.value.state();
    let left = session.value.expires().wrapping_sub(now);
    let server = plan.servers.get(&session.value.server());
    Some(SessionView {
        service: plan.services.get(&vip.service).map(|service| service.name.clone()).unwrap_or_default(),
        address: SocketAddr::new(key.address, key.port).to_string(),
        client: SocketAddr::new(session.key.client, session.key.port).to_string(),
        // Without a server yet: the connection is being read here, or moves.
        server: server.map_or_else(|| "-".to_owned(), |name| name.server.clone()),
        state: shown(state).to_owned(),
        idle_seconds: ms(state.idle(&vip.idle).saturating_sub(left)) / 1000,
        expires_seconds: ms(left) / 1000,
    })
}

impl SessionFilter {
    fn admits(&self, session: &sessions::Session) -> bool {
        self.client.is_none_or(|client| client == session.key.client)
            && self.client_port.is_none_or(|port| port == session.key.port)
    }
}

/// Returns the name of a session's state. States that only differ internally have one name.
fn shown(state: State) -> &'static str {
    match state {
        State::Answered => State::New.name(),
        State::UdpNew | State::UdpAnswered => State::Udp.name(),
        State::ServerClosed => State::HalfClosed.name(),
        other => other.name(),
    }
}
