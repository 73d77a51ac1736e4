//! The farm as far as the source describes it: what becomes of it is TOML.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::source::Source;
use crate::runtime::shown::is_shown;

/// How connections get to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DraftMethod {
    L2,
    Nat { source_nat: bool },
    Tunnel { gue: bool },
    Handoff,
}

impl DraftMethod {
    /// Whether a server's own port counts.
    pub(super) const fn has_ports(self) -> bool {
        matches!(self, DraftMethod::Nat { .. })
    }
}

/// A service.
#[derive(Clone, Debug)]
pub(super) struct DraftService {
    pub(super) name: String,
    /// Comments above it.
    pub(super) comments: Vec<String>,
    pub(super) addresses: Vec<Sourced<SocketAddr>>,
    /// Addresses by UDP of a service of TCP, which become a service of their own.
    pub(super) udp_addresses: Vec<Sourced<SocketAddr>>,
    pub(super) is_udp: bool,
    pub(super) method: DraftMethod,
    /// Whether the source chooses for each request, and not once for a connection.
    pub(super) chooses_each_request: bool,
    pub(super) policy: Option<&'static str>,
    pub(super) slow_start_ms: Option<u64>,
    pub(super) servers: Vec<DraftServer>,
    pub(super) routes: Vec<DraftRoute>,
    pub(super) health: DraftHealth,
    /// Further keys, as they are written.
    pub(super) keys: Vec<String>,
    /// Keys of `[service.report]`.
    pub(super) report: Vec<String>,
    /// The time after which the session of an idle connection, or flow, is forgotten.
    pub(super) idle_ms: Option<u64>,
    /// Keys of `[service.timeouts]`, in milliseconds.
    pub(super) timeouts: Vec<(&'static str, u64)>,
    /// The lines that it comes from, besides those of its parts.
    pub(super) lines: BTreeSet<usize>,
}

/// A value, the line that it is from, and a remark on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sourced<T> {
    pub(super) value: T,
    pub(super) line: usize,
    pub(super) remark: Option<String>,
}

/// A server.
#[derive(Clone, Debug)]
pub(super) struct DraftServer {
    pub(super) name: Option<String>,
    pub(super) address: Sourced<IpAddr>,
    pub(super) port: Option<u16>,
    pub(super) weight: u64,
    /// Further keys, as they are written.
    pub(super) keys: Vec<String>,
    /// Its lines besides the one of its address.
    pub(super) lines: Vec<usize>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DraftRoute {
    pub(super) host: Option<String>,
    pub(super) path: Option<String>,
    pub(super) methods: Vec<String>,
    /// By name.
    pub(super) servers: Vec<String>,
    pub(super) lines: BTreeSet<usize>,
}

/// How a probe takes the certificate of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftTls {
    /// The name that servers are called by.
    pub(super) name: Option<String>,
    /// A file of authorities; `None`: the system's.
    pub(super) ca: Option<String>,
    pub(super) verify: bool,
}

/// How servers are probed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DraftHealth {
    /// `None`: by Evener's default.
    pub(super) kind: Option<&'static str>,
    pub(super) path: Option<String>,
    pub(super) host: Option<String>,
    /// Of a probe by TLS.
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
    /// One without servers, by a method.
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

    /// The port of its first address.
    pub(super) fn port(&self) -> Option<u16> {
        self.addresses.first().map(|address| address.value.port())
    }

    /// Whether clients can connect to it.
    pub(super) fn has_address(&self) -> bool {
        !self.addresses.is_empty() || !self.udp_addresses.is_empty()
    }

    /// All lines that it comes from.
    pub(super) fn all_lines(&self) -> BTreeSet<usize> {
        let addresses = self.addresses.iter().chain(&self.udp_addresses).map(|address| address.line);
        let servers =
            self.servers.iter().flat_map(|server| server.lines.iter().copied().chain([server.address.line]));
        let routes = self.routes.iter().flat_map(|route| route.lines.iter().copied());
        self.lines.iter().copied().chain(addresses).chain(servers).chain(routes).collect()
    }
}

/// Networks for documentation, from which placeholders are (RFC 5737).
const DOCUMENTED: [&str; 2] = ["203.0.113.", "198.51.100."];

/// Addresses that stand for those that the source doesn't have.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    /// Those of the networks for documentation that the source has itself.
    taken: BTreeSet<Ipv4Addr>,
    services: u32,
    servers: u32,
}

impl Placeholders {
    /// Those that a source has room for.
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

    /// One for a service.
    pub(super) fn service(&mut self) -> IpAddr {
        next(&mut self.services, [203, 0, 113], &self.taken)
    }

    /// One for a server.
    pub(super) fn server(&mut self) -> IpAddr {
        next(&mut self.servers, [198, 51, 100], &self.taken)
    }
}

/// The next address of a network; beyond its end, of the one for measurements (RFC 2544), which has
/// room.
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

/// A name as the file takes it: no spaces, slashes and characters that aren't shown, no dot
/// segment, and not too long.
pub(super) fn usable_name(text: &str) -> String {
    let usable = |c: char| if c.is_whitespace() || !is_shown(c) || c == '/' { '-' } else { c };
    let name: String = text.chars().map(usable).take(64).collect();
    match name.as_str() {
        "" | "." | ".." => "unnamed".to_owned(),
        _ => name,
    }
}

/// The name, or one like it where it is in use.
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
