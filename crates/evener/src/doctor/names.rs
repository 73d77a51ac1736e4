//! Checks of listeners, receive buffers and names.
//! This host must be able to listen at the file's addresses. Receive buffers for queries must be
//! large enough. Names must have servers.

use std::net::{IpAddr, SocketAddr};

use evener_core::farm::network::Network;

use crate::config::{Config, DnsConfig};
use crate::runtime::receive_buffer::{WANTED, receive_buffer};
use crate::views::{Finding, NameView};

/// Maximum number of names without a server that are listed, and of servers of each.
const LISTED: usize = 4;

/// Finds addresses for queries and group requests that this host lacks.
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

/// Finds names without an address for their answers. `names` must be grouped by name.
pub(super) fn check_servers(names: &[NameView]) -> Vec<Finding> {
    const CHECK: &str = "names";
    let by_name = names.chunk_by(|one, next| one.name == next.name);
    let empty: Vec<_> = by_name.filter(|of_name| of_name.iter().all(|one| one.rank.is_none())).collect();
    let message = |of_name: &[NameView]| {
        let name = of_name.first().map_or("", |one| &one.name);
        let servers = of_name.iter().take(LISTED).map(|one| match one.cause == one.state {
            true => format!("{} is {}", one.address, one.state),
            false => format!("{} is {} ({})", one.address, one.state, one.cause),
        });
        let more = of_name.len().saturating_sub(LISTED);
        let more = (more > 0).then(|| format!("and {more} more"));
        format!(
            "{name} has no working server: {}. Clients get all its addresses, or the answer of `none_alive`: start a server, undrain one, or correct its `health`.",
            servers.chain(more).collect::<Vec<_>>().join(", ")
        )
    };
    let mut findings: Vec<Finding> =
        empty.iter().take(LISTED).map(|of_name| Finding::fail(CHECK, message(of_name))).collect();
    if let more @ 1.. = empty.len().saturating_sub(LISTED) {
        let message = format!("{more} more have no working server; `evener names` shows them.");
        findings.push(Finding::fail(CHECK, message));
    }
    findings
}

/// Checks the receive buffers of sockets, if the file has names.
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

    fn view(name: &str, address: &str, state: &str, cause: &str) -> NameView {
        let rank = (state == "up").then_some(1);
        serde_json::from_value(serde_json::json!({
            "name": name, "address": address, "server": address, "state": state, "rank": rank, "share": 0.0,
            "answers": 0, "policy": "power-of-two", "ttl_seconds": 5, "cause": cause,
        }))
        .unwrap()
    }

    #[test]
    fn name_without_healthy_server_fails_with_remedy() {
        let mut names = vec![
            view("a.example", "192.0.2.11", "down", "connection refused"),
            view("a.example", "192.0.2.12", "up", "weight 1"),
            view("b.example", "192.0.2.11", "down", "connection refused"),
            view("b.example", "192.0.2.13", "draining", "draining"),
        ];
        let findings = check_servers(&names);
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(finding.state, Severity::Fail);
        for part in [
            "b.example has no working server",
            "192.0.2.11 is down (connection refused), 192.0.2.13 is draining.",
            "correct its `health`",
        ] {
            assert!(finding.message.contains(part), "{}", finding.message);
        }
        assert_eq!(check_servers(&names[..2]), []);
        let more = (0..10).map(|number| view(&format!("c{number}.example"), "192.0.2.1", "down", "down"));
        names.extend(more);
        let findings = check_servers(&names);
        assert_eq!(findings.len(), LISTED + 1);
        assert!(findings[LISTED].message.starts_with("7 more "), "{findings:?}");
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
