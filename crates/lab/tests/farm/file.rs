//! Builds configurations from parts, in the order of the file.

use std::net::SocketAddr;

use evener_lab::evener::in_turn;
use evener_lab::farm::Farm;
use evener_lab::network::host::Host;

/// Servers without probes, for tests of other properties. On a busy machine, probes could fail.
pub(crate) const ALWAYS_UP: &str = "[service.health]\nkind = \"none\"\n";

/// Returns an engine section with a small session table.
pub(crate) fn engine(kind: &str) -> String {
    format!("[engine]\nkind = \"{kind}\"\nsessions_max = 65536\n")
}

/// Returns a service. `keys` are its additional lines, with [round robin](in_turn) if they name no
/// policy.
/// Tables of the service must follow.
pub(crate) fn service(name: &str, address: impl Into<SocketAddr>, keys: &str) -> String {
    let keys = in_turn(keys);
    format!("[[service]]\nname = \"{name}\"\naddress = \"{}\"\n{keys}\n", address.into())
}

/// Returns the named servers of the preceding service.
pub(crate) fn servers(hosts: &[Host]) -> String {
    hosts.iter().map(|host| server(host, 1)).collect()
}

/// Returns a server of the preceding service.
pub(crate) fn server(host: &Host, weight: u16) -> String {
    let (name, address) = (host.name(), host.address());
    format!("[[service.server]]\nname = \"{name}\"\naddress = \"{address}\"\nweight = {weight}\n")
}

/// Returns a service with all servers of the farm by name.
pub(crate) fn listed(kind: &str, farm: &Farm, keys: &str) -> String {
    engine(kind) + &service("web", farm.service(), keys) + ALWAYS_UP + &servers(farm.servers())
}

/// Keys of fast discovery.
pub(crate) const DISCOVER: &str = "discover = \"arp\"\ndiscover_interval = \"300ms\"\n";

/// Returns a service that discovers its servers.
pub(crate) fn discovered(kind: &str, farm: &Farm, keys: &str) -> String {
    engine(kind) + &service("web", farm.service(), &format!("{DISCOVER}{keys}")) + ALWAYS_UP
}
