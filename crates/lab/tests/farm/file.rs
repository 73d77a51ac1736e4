//! Configurations, put together from parts that read as the file does.

use std::net::SocketAddr;

use evener_lab::evener::in_turn;
use evener_lab::farm::Farm;
use evener_lab::host::Host;

/// Servers that are never probed: for tests of anything else, lest a busy machine decide them.
pub(crate) const ALWAYS_UP: &str = "[service.health]\nkind = \"none\"\n";

/// The engine, with a small table.
pub(crate) fn engine(kind: &str) -> String {
    format!("[engine]\nkind = \"{kind}\"\nsessions_max = 65536\n")
}

/// A service. `keys` are lines of its own, [in turn](in_turn) without a policy; those of its tables
/// come behind it.
pub(crate) fn service(name: &str, address: impl Into<SocketAddr>, keys: &str) -> String {
    let keys = in_turn(keys);
    format!("[[service]]\nname = \"{name}\"\naddress = \"{}\"\n{keys}\n", address.into())
}

/// Servers of the service above, by their names and addresses.
pub(crate) fn servers(hosts: &[Host]) -> String {
    hosts.iter().map(|host| server(host, 1)).collect()
}

/// A server of the service above.
pub(crate) fn server(host: &Host, weight: u16) -> String {
    let (name, address) = (host.name(), host.address());
    format!("[[service.server]]\nname = \"{name}\"\naddress = \"{address}\"\nweight = {weight}\n")
}

/// One service of all the farm's servers by name.
pub(crate) fn listed(kind: &str, farm: &Farm, keys: &str) -> String {
    engine(kind) + &service("web", farm.service(), keys) + ALWAYS_UP + &servers(farm.servers())
}

/// The keys of quick discovery.
pub(crate) const DISCOVER: &str = "discover = \"arp\"\ndiscover_interval = \"300ms\"\n";

/// One service of whoever answers.
pub(crate) fn discovered(kind: &str, farm: &Farm, keys: &str) -> String {
    engine(kind) + &service("web", farm.service(), &format!("{DISCOVER}{keys}")) + ALWAYS_UP
}
