//! Views of affinity entries.

use std::collections::BTreeMap;
use std::net::IpAddr;

use evener_core::path::affinity::AffinityClient;
use evener_core::path::sessions::{Value, ms};
use evener_core::path::tables::{Vip, VipKey};
use serde::{Deserialize, Serialize};

use super::services::has_service;
use crate::board::PublishedState;
use crate::board::request::SessionFilter;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AffinityView {
    /// Name of the service.
    pub service: String,
    /// The client: a network such as `192.0.2.7/32`.
    pub client: String,
    /// Name of the server that gets the client's new sessions.
    pub server: String,
    /// Seconds until the entry expires if the client has no open session.
    pub expires_seconds: u64,
}

/// Returns matching affinity entries. Of the filter, the client's port does not matter.
///
/// # Errors
/// If the service does not exist or has no affinity entries.
pub(crate) fn affinity(
    published: &PublishedState,
    filter: &SessionFilter,
) -> Result<Vec<AffinityView>, String> {
    let (snapshot, readings) = (&published.snapshot, &published.readings);
    filter.service.as_ref().map_or(Ok(()), |service| has_service(&snapshot.farm, service))?;
    let (memory, now) = (readings.memory(), readings.now());
    let vips = || {
        let name = |vip: &Vip| snapshot.plan.services.get(&vip.service).map(|service| service.name.as_str());
        let wanted = |found: &str| filter.service.as_ref().is_none_or(|service| service == found);
        let vips = snapshot.plan.tables.vips.iter().filter(|(_, vip)| vip.entry_numbers().is_some());
        vips.filter_map(move |(key, vip)| Some((key, vip, name(vip).filter(|name| wanted(name))?)))
    };
    if let (Some(service), None) = (&filter.service, vips().next()) {
        return Err(no_entries(
            service,
            snapshot.farm.service(service).is_some_and(|one| one.affinity.is_some()),
        ));
    }
    let view = |(_, vip, service): &(&VipKey, &Vip, &str), client: IpAddr, value: Value| AffinityView {
        service: (*service).to_owned(),
        client: vip.affinity.map_or_else(String::new, |affinity| affinity.client(client).to_string()),
        server: snapshot.plan.servers.get(&value.server()).map_or("-", |name| &name.server).to_owned(),
        expires_seconds: ms(value.expires().wrapping_sub(now)) / 1000,
    };
    // The addresses of a service that have one IP version share their entries.
    let shared = |(key, vip, _): &(&VipKey, &Vip, &str)| (vip.entry_numbers(), key.address.is_ipv4());
    let services: BTreeMap<_, _> = vips().map(|one| (shared(&one), one)).collect();
    let limit = filter.limit.unwrap_or(usize::MAX);
    if let Some(client) = filter.client {
        let same_version = services.values().filter(|(key, ..)| key.address.is_ipv4() == client.is_ipv4());
        let found = same_version.filter_map(|one| {
            let entry = AffinityClient::of(one.1, client, memory.sessions, memory.seed, now)?.value()?;
            Some(view(one, client, entry))
        });
        return Ok(found.take(limit).collect());
    }
    let found = memory.sessions.list(now).filter_map(|session| {
        let numbers = (Some((session.key.vip, session.key.port)), session.key.client.is_ipv4());
        Some(view(services.get(&numbers)?, session.key.client, session.value))
    });
    Ok(found.take(limit).collect())
}

fn no_entries(service: &str, has_affinity: bool) -> String {
    match has_affinity {
        true => format!("service {service} chooses by the client's address alone, and needs no entries"),
        false => {
            format!("service {service} has no affinity: `affinity` = \"10m\" in its [[service]] adds it")
        }
    }
}
