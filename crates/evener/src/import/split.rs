//! Splits services of the source that need several services in Evener.

use std::collections::BTreeSet;

use super::draft::{DraftHealth, DraftService};

/// Makes one service per protocol. A service whose servers use the client's destination port also
/// becomes one service per port.
pub(super) fn services(services: Vec<DraftService>) -> Vec<DraftService> {
    services.into_iter().flat_map(by_protocol).flat_map(by_port).collect()
}

fn by_protocol(mut service: DraftService) -> Vec<DraftService> {
    let udp = std::mem::take(&mut service.udp_addresses);
    if udp.is_empty() {
        return vec![service];
    }
    let mut other = service.clone();
    other.is_udp = true;
    other.addresses = udp;
    // All checks of the source use TCP.
    other.health = DraftHealth::default();
    if service.addresses.is_empty() {
        return vec![other];
    }
    other.name.push_str("-udp");
    vec![service, other]
}

fn by_port(service: DraftService) -> Vec<DraftService> {
    let ports: BTreeSet<u16> = service.addresses.iter().map(|address| address.value.port()).collect();
    let keeps_port = service.method.has_ports() && service.servers.iter().any(|server| server.port.is_none());
    if ports.len() < 2 || !keeps_port {
        return vec![service];
    }
    let of_port = |port: u16| {
        let mut one = service.clone();
        one.name = format!("{}-{port}", service.name);
        one.addresses.retain(|address| address.value.port() == port);
        one
    };
    ports.into_iter().map(of_port).collect()
}
