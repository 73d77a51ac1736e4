//! The draft of a farm, as far as the source describes it. The TOML is rendered from the draft.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::source::Source;
use crate::runtime::shown::is_shown;

/// Forwarding method of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DraftMethod {
    L2,
    Nat { source_nat: bool },
    Tunnel { gue: bool },
    Handoff,
}

impl DraftMethod {
    /// True if servers can have a port of their own.
    pub(super) const fn has_ports(self) -> bool {
        matches!(self, DraftMethod::Nat { .. })
    }
}

#[derive(Clone, Debug)]
pub(super) struct DraftService {
    pub(super) name: String,
    /// Comments to write above the service.
    pub(super) comments: Vec<String>,
    pub(super) addresses: Vec<Sourced<SocketAddr>>,
    /// UDP addresses of a TCP service. They become a service of their own.
    pub(super) udp_addresses: Vec<Sourced<SocketAddr>>,
    pub(super) is_udp: bool,
    pub(super) method: DraftMethod,
    /// True if the source selects a server for each request, not once per connection.
    pub(super) chooses_each_request: bool,
    pub(super) policy: Option<&'static str>,
    pub(super) slow_start_ms: Option<u64>,
    pub(super) servers: Vec<DraftServer>,
    pub(super) routes: Vec<DraftRoute>,
    pub(super) health: DraftHealth,
    /// Further keys, as lines of TOML.
    pub(super) keys: Vec<String>,
    /// Keys of `[service.report]`, as lines of TOML.
    pub(super) report: Vec<String>,
    /// Time after which the session of an idle connection or flow expires.
    pub(super) idle_ms: Option<u64>,
    /// Keys and values of `[service.timeouts]`, in milliseconds.
    pub(super) timeouts: Vec<(&'static str, u64)>,
    /// Places in the source, besides the places of addresses, servers and routes.
    pub(super) lines: BTreeSet<usize>,
}

/// A value with its place in the source and an optional comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sourced<T> {
    pub(super) value: T,
    pub(super) line: usize,
    pub(super) remark: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct DraftServer {
    pub(super) name: Option<String>,
    pub(super) address: Sourced<IpAddr>,
    pub(super) port: Option<u16>,
    pub(super) weight: u64,
    /// Further keys, as lines of TOML.
    pub(super) keys: Vec<String>,
    /// Places in the source, besides the place of the address.
    pub(super) lines: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DraftRoute {
    pub(super) host: Option<String>,
    pub(super) path: Option<String>,
    pub(super) methods: Vec<String>,
    /// Names of the servers.
    pub(super) servers: Vec<String>,
    pub(super) lines: BTreeSet<usize>,
}

/// How a probe verifies the certificate of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftTls {
    /// Name that the certificate has to contain.
    pub(super) name: Option<String>,
    /// File of certificate authorities. `None` uses the system's.
    pub(super) ca: Option<String>,
    pub(super) verify: bool,
}

/// How servers are probed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftHealth {
    /// Kind of the probe. `None` uses Evener's default.
    pub(super) kind: Option<&'static str>,
    pub(super) path: Option<String>,
    pub(super) host: Option<String>,
    /// Only for probes over TLS.
    pub(super) tls: Option<DraftTls>,
    pub(super) status: Vec<String>,
    pub(super) body: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) interval_ms: Option<u64>,
    pub(super) fast_interval_ms: Option<u64>,
    pub(super) timeout_ms: Option<u64>,
    pub(super) rise: Option<u64>,
    pub(super) fall: Option<u64>,
}

impl DraftService {
    /// Creates a service without servers.
    pub(super) fn new(name: &str, method: DraftMethod) -> DraftService {
        DraftService {
            name: name.to_owned(),
            comments: Vec::new(),
            addresses: Vec::new(),
            udp_addresses: Vec::new(),
            is_udp: false,
            method,
            chooses_each_request: false,
            policy: None,
            slow_start_ms: None,
            servers: Vec::new(),
            routes: Vec::new(),
            health: DraftHealth::default(),
            keys: Vec::new(),
            report: Vec::new(),
            idle_ms: None,
            timeouts: Vec::new(),
            lines: BTreeSet::new(),
        }
    }

    /// Returns the port of its first address.
    pub(super) fn port(&self) -> Option<u16> {
        self.addresses.first().map(|address| address.value.port())
    }

    /// True if the service has an address, of TCP or UDP.
    pub(super) fn has_address(&self) -> bool {
        !self.addresses.is_empty() || !self.udp_addresses.is_empty()
    }

    /// Returns all its places in the source.
    pub(super) fn all_lines(&self) -> BTreeSet<usize> {
        let addresses = self.addresses.iter().chain(&self.udp_addresses).map(|address| address.line);
        let servers =
            self.servers.iter().flat_map(|server| server.lines.iter().copied().chain([server.address.line]));
        let routes = self.routes.iter().flat_map(|route| route.lines.iter().copied());
        self.lines.iter().copied().chain(addresses).chain(servers).chain(routes).collect()
    }
}

/// Networks for documentation, from which placeholders are allocated (RFC 5737).
const DOCUMENTED: [&str; 2] = ["203.0.113.", "198.51.100."];

/// Allocates placeholders for addresses that the source doesn't have.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    /// Addresses of these networks that the source itself contains.
    taken: BTreeSet<Ipv4Addr>,
    services: u32,
    servers: u32,
}

impl Placeholders {
    /// Creates the allocator for a source.
    pub(super) fn of(source: &Source) -> Placeholders {
        let mut taken = BTreeSet::new();
        for line in &source.lines {
            for network in DOCUMENTED {
                for (at, _) in line.text.match_indices(network) {
                    let rest = line.text.get(at..).unwrap_or_default();
                    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
                    taken.extend(rest.get(..end).and_then(|address| address.parse::<Ipv4Addr>().ok()));
                }
            }
        }
        Placeholders { taken, services: 0, servers: 0 }
    }

    /// Allocates an address for a service.
    pub(super) fn service(&mut self) -> IpAddr {
        next(&mut self.services, [203, 0, 113], &self.taken)
    }

    /// Allocates an address for a server.
    pub(super) fn server(&mut self) -> IpAddr {
        next(&mut self.servers, [198, 51, 100], &self.taken)
    }
}

/// Returns the next unused address of a network. When the network is used up, the addresses come
/// from the network for benchmarks (RFC 2544).
fn next(count: &mut u32, [a, b, c]: [u8; 3], taken: &BTreeSet<Ipv4Addr>) -> IpAddr {
    loop {
        *count += 1;
        let [_, high, middle, low] = count.to_be_bytes();
        let address = match *count {
            1..=253 => Ipv4Addr::new(a, b, c, low),
            _ => Ipv4Addr::new(198, 18 | (c & 1), middle ^ high, low),
        };
        if !taken.contains(&address) {
            return IpAddr::V4(address);
        }
    }
}

/// Returns the text as a valid name of at most 64 characters.
/// Spaces, slashes and characters that can't be printed become hyphens. Empty names and dot
/// segments become `unnamed`.
pub(super) fn usable_name(text: &str) -> String {
    let usable = |c: char| if c.is_whitespace() || !is_shown(c) || c == '/' { '-' } else { c };
    let name: String = text.chars().map(usable).take(64).collect();
    match name.as_str() {
        "" | "." | ".." => "unnamed".to_owned(),
        _ => name,
    }
}

/// Returns the valid name for a text, with a number at its end if the name is in use.
pub(super) fn unused_name(used: &BTreeSet<String>, text: &str) -> String {
    let name = usable_name(text);
    let stem: String = name.chars().take(56).collect();
    let more = (2_u32..).map(|number| format!("{stem}-{number}"));
    std::iter::once(name).chain(more).find(|name| !used.contains(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imported_names_are_names_of_a_file() {
        for (text, expected) in [
            ("..", "unnamed"),
            ("", "unnamed"),
            ("a b/c", "a-b-c"),
            ("a\u{202e}b\u{200b}", "a-b-"),
            ("web1", "web1"),
        ] {
            assert_eq!(usable_name(text), expected);
        }
    }
}
