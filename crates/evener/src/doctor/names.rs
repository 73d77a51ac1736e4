//! Whether this host can answer queries and requests where the file wants it, and whether queries
//! have room to wait in.

use std::net::{IpAddr, SocketAddr};

use evener_core::farm::network::Network;

use crate::config::{Config, DnsConfig};
use crate::runtime::receive_buffer::{WANTED, receive_buffer};
use crate::views::Finding;

/// Looks for addresses on which `evener run` is to listen for queries and for requests of groups,
/// and which this host lacks.
pub(super) fn check_listeners(config: &Config, network: &Network) -> Vec<Finding> {
    let groups = config.groups.iter().flat_map(|configured| &configured.group.addresses);
    let wanted = config.dns.listen.iter().chain(groups).copied();
    let own = network.interfaces.values().flat_map(|link| link.addresses.iter().map(|(ip, _)| *ip));
    missing(wanted, &own.collect::<Vec<IpAddr>>())
}

fn missing(wanted: impl Iterator<Item = SocketAddr>, own: &[IpAddr]) -> Vec<Finding> {
    let missing = wanted.filter(|address| !address.ip().is_unspecified() && !own.contains(&address.ip()));
    let finding = |address: SocketAddr| {
        let (ip, bits) = (address.ip(), if address.is_ipv4() { 32 } else { 128 });
        let message = format!(
            "{ip} is no address of this host, so `evener run` can't listen at {address}: \
             `ip addr add {ip}/{bits} dev lo`, or name an address that it has."
        );
        Finding::fail("listen", message)
    };
    missing.map(finding).collect()
}

/// Looks at the room that sockets of a process like this one get, if the file has names.
pub(super) fn check_names(dns: &DnsConfig) -> Option<Finding> {
    let buffer = receive_buffer().ok().filter(|_| !dns.listen.is_empty())?;
    Some(finding(buffer))
}

fn finding(buffer: usize) -> Finding {
    const CHECK: &str = "queries";
    match buffer {
        WANTED.. => {
            Finding::ok(CHECK, format!("Sockets of names have {} KiB for queries that wait.", buffer >> 10))
        }
        _ => Finding::warn(
            CHECK,
            format!(
                "Sockets of names have {} KiB for queries that wait, so many at once are lost: \
                 `sysctl -w net.core.rmem_max={WANTED}`, or grant CAP_NET_ADMIN.",
                buffer >> 10
            ),
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::views::Severity;

    #[test]
    fn listen_address_of_another_host_fails_with_remedy() {
        let wanted = ["192.0.2.53:53", "192.0.2.2:53", "0.0.0.0:53", "[2001:db8::53]:53"];
        let wanted = wanted.iter().map(|address| address.parse().unwrap());
        let findings = missing(wanted, &["192.0.2.2".parse().unwrap()]);
        let messages: Vec<&str> = findings.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(messages[0].contains("`ip addr add 192.0.2.53/32 dev lo`"), "{messages:?}");
        assert!(messages[1].contains("2001:db8::53/128"), "{messages:?}");
    }

    #[test]
    fn small_receive_buffer_gives_warning_with_remedy() {
        assert_eq!(finding(WANTED).state, Severity::Ok);
        let little = finding(212_992);
        assert_eq!(little.state, Severity::Warn);
        assert!(
            little.message.contains("208 KiB") && little.message.contains("rmem_max=2097152"),
            "{}",
            little.message
        );
    }
}
