//! Addresses of `bind` in a frontend.

use std::net::{IpAddr, SocketAddr};

use super::HaproxyReader;
use super::words::{HaproxyLine, HaproxySection};
use crate::import::draft::{DraftService, Sourced};
use crate::import::reasons::{self, LeftReason};
use crate::import::values::{self, EndpointHost};

/// Prefixes of addresses that are local sockets.
const SOCKETS: [&str; 8] = ["unix@", "uxst@", "uxdg@", "abns@", "abnsz@", "fd@", "sockpair@", "rhttp@"];
/// Prefixes of UDP addresses.
const UDP: [&str; 3] = ["udp@", "udp4@", "udp6@"];
/// Prefixes of HTTP/3 addresses.
const QUIC: [&str; 2] = ["quic4@", "quic6@"];

/// Options of `bind`: name, number of arguments, and why they have no counterpart.
const OPTIONS: [(&str, usize, &LeftReason); 66] = [
    ("ssl", 0, &reasons::TLS_HERE),
    ("accept-proxy", 0, &reasons::PROXY_PROTOCOL),
    ("accept-netscaler-cip", 1, &reasons::PROXY_PROTOCOL),
    ("expect-proxy", 1, &reasons::PROXY_PROTOCOL),
    ("allow-0rtt", 0, &reasons::TLS_HERE),
    ("alpn", 1, &reasons::TLS_HERE),
    ("backlog", 1, &reasons::PROCESS),
    ("ca-file", 1, &reasons::RULES),
    ("ca-ignore-err", 1, &reasons::RULES),
    ("ca-sign-file", 1, &reasons::TLS_HERE),
    ("ca-sign-pass", 1, &reasons::TLS_HERE),
    ("ca-verify-file", 1, &reasons::RULES),
    ("cc", 1, &reasons::CONNECTION),
    ("ciphers", 1, &reasons::TLS_HERE),
    ("ciphersuites", 1, &reasons::TLS_HERE),
    ("client-sigalgs", 1, &reasons::TLS_HERE),
    ("crl-file", 1, &reasons::RULES),
    ("crt", 1, &reasons::TLS_HERE),
    ("crt-ignore-err", 1, &reasons::RULES),
    ("crt-list", 1, &reasons::TLS_HERE),
    ("curves", 1, &reasons::TLS_HERE),
    ("default-crt", 1, &reasons::TLS_HERE),
    ("defer-accept", 0, &reasons::CONNECTION),
    ("ecdhe", 1, &reasons::TLS_HERE),
    ("force-sslv3", 0, &reasons::TLS_HERE),
    ("force-tlsv10", 0, &reasons::TLS_HERE),
    ("force-tlsv11", 0, &reasons::TLS_HERE),
    ("force-tlsv12", 0, &reasons::TLS_HERE),
    ("force-tlsv13", 0, &reasons::TLS_HERE),
    ("generate-certificates", 0, &reasons::TLS_HERE),
    ("gid", 1, &reasons::PROCESS),
    ("group", 1, &reasons::PROCESS),
    ("guid-prefix", 1, &reasons::PROCESS),
    ("id", 1, &reasons::PROCESS),
    ("idle-ping", 1, &reasons::CONNECTION),
    ("interface", 1, &reasons::INTERFACE),
    ("label", 1, &reasons::PROCESS),
    ("level", 1, &reasons::PROCESS),
    ("maxconn", 1, &reasons::MAX_CONNECTIONS),
    ("mode", 1, &reasons::PROCESS),
    ("mss", 1, &reasons::CONNECTION),
    ("name", 1, &reasons::PROCESS),
    ("namespace", 1, &reasons::INTERFACE),
    ("nbconn", 1, &reasons::PROCESS),
    ("nice", 1, &reasons::PROCESS),
    ("no-alpn", 0, &reasons::TLS_HERE),
    ("no-ca-names", 0, &reasons::TLS_HERE),
    ("no-sslv3", 0, &reasons::TLS_HERE),
    ("no-strict-sni", 0, &reasons::TLS_HERE),
    ("no-tls-tickets", 0, &reasons::TLS_HERE),
    ("no-tlsv10", 0, &reasons::TLS_HERE),
    ("no-tlsv11", 0, &reasons::TLS_HERE),
    ("no-tlsv12", 0, &reasons::TLS_HERE),
    ("no-tlsv13", 0, &reasons::TLS_HERE),
    ("npn", 1, &reasons::TLS_HERE),
    ("ocsp-update", 1, &reasons::TLS_HERE),
    ("prefer-client-ciphers", 0, &reasons::TLS_HERE),
    ("process", 1, &reasons::PROCESS),
    ("proto", 1, &reasons::UPSTREAM_PROTOCOL),
    ("severity-output", 1, &reasons::PROCESS),
    ("shards", 1, &reasons::PROCESS),
    ("sigalgs", 1, &reasons::TLS_HERE),
    ("ssl-max-ver", 1, &reasons::TLS_HERE),
    ("ssl-min-ver", 1, &reasons::TLS_HERE),
    ("strict-sni", 0, &reasons::TLS_HERE),
    ("thread", 1, &reasons::PROCESS),
];

/// Further options, in the form of [`OPTIONS`].
const MORE: [(&str, usize, &LeftReason); 9] = [
    ("tcp-md5sig", 1, &reasons::RULES),
    ("tcp-ut", 1, &reasons::CONNECTION),
    ("tfo", 0, &reasons::CONNECTION),
    ("tls-ticket-keys", 1, &reasons::TLS_HERE),
    ("transparent", 0, &reasons::INTERFACE),
    ("uid", 1, &reasons::PROCESS),
    ("user", 1, &reasons::PROCESS),
    ("v4v6", 0, &reasons::SECOND_FAMILY),
    ("verify", 1, &reasons::RULES),
];

impl HaproxyReader<'_, '_> {
    /// Adds the addresses that clients connect to.
    pub(super) fn addresses(&mut self, service: &mut DraftService, section: &HaproxySection) {
        let mut binds: Vec<(&str, &HaproxyLine)> = Vec::new();
        if section.head.word(2).contains(':') {
            binds.extend(section.head.word(2).split(',').map(|address| (address, &section.head)));
        }
        for line in section.lines.iter().filter(|line| line.word(0) == "bind") {
            binds.extend(line.word(1).split(',').map(|address| (address, line)));
        }
        let is_tls = |line: &HaproxyLine| line.words.iter().any(|word| word == "ssl");
        let has_plain = binds.iter().any(|(_, line)| !is_tls(line));
        let mut any: Option<IpAddr> = None;
        for (address, line) in binds {
            let endpoint = values::haproxy_endpoint(address);
            let is_of = |beginnings: &[&str]| beginnings.iter().any(|of| address.starts_with(of));
            let refused = match endpoint.port {
                _ if is_of(&QUIC) => Some(&reasons::QUIC),
                _ if address.contains('/') || is_of(&SOCKETS) => Some(&reasons::LOCAL_SOCKET),
                None => Some(&reasons::ANY_PORT),
                Some(_) => None,
            };
            if let Some(reason) = refused {
                self.ledger.leave_part(line.line, address, reason);
                continue;
            }
            if is_tls(line) && has_plain {
                self.ledger.leave(line.line, &reasons::PLAIN_SERVERS);
                continue;
            }
            let (ip, remark) = match endpoint.host {
                EndpointHost::Address(ip) => (ip, None),
                EndpointHost::Any { is_v6: true } if service.has_address() => {
                    self.ledger.leave(line.line, &reasons::SECOND_FAMILY);
                    continue;
                }
                EndpointHost::Any { .. } | EndpointHost::Other(_) => {
                    let ip = *any.get_or_insert_with(|| self.places.service());
                    let todo =
                        format!("the address that clients of {:?} connect to ({address})", section.name);
                    self.ledger.blank(line.line, ip, todo.clone());
                    (ip, Some(format!("TO FILL IN: {todo}.")))
                }
            };
            let value = SocketAddr::new(ip, endpoint.port.unwrap_or_default());
            let addresses = if is_of(&UDP) { &mut service.udp_addresses } else { &mut service.addresses };
            if !addresses.iter().any(|known| known.value == value) {
                addresses.push(Sourced { value, line: line.line, remark });
            }
            self.bind_options(line);
        }
    }

    /// Leaves the options of a line `bind ADDRESS ...` with reasons.
    fn bind_options(&mut self, line: &HaproxyLine) {
        let skip = if line.word(0) == "bind" { 2 } else { 3 };
        let mut words = line.words.iter().skip(skip).map(String::as_str);
        while let Some(word) = words.next() {
            // The head of a section may name its `defaults`.
            if skip == 3 && word == "from" {
                words.next();
                continue;
            }
            let known = OPTIONS.iter().chain(&MORE).find(|(name, ..)| *name == word);
            let (takes, reason) =
                known.map_or((0, &reasons::UNKNOWN), |(_, takes, reason)| (*takes, *reason));
            let value = if takes > 0 { words.next().unwrap_or_default() } else { "" };
            // These values are the defaults, so nothing is lost.
            if !matches!((word, value), ("verify", "none") | ("proto", "h1")) {
                self.ledger.leave_part(line.line, format!("{word} {value}").trim(), reason);
            }
        }
    }
}
