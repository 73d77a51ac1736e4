//! Addresses of `listen` in a `server` block.

use std::net::{IpAddr, SocketAddr};

use super::NginxReader;
use crate::import::draft::{DraftService, Sourced};
use crate::import::reasons::{self, LeftReason};
use crate::import::tree::Statement;
use crate::import::values::{self, EndpointHost};

/// An address that a block listens on.
#[derive(Clone, Debug)]
pub(super) struct Listen<'t> {
    text: &'t str,
    pub(super) host: EndpointHost,
    pub(super) port: u16,
    pub(super) line: usize,
    is_tls: bool,
    pub(super) is_default: bool,
    pub(super) is_udp: bool,
}

impl NginxReader<'_, '_> {
    /// Returns the addresses of a block.
    /// If the block has plain addresses, addresses with TLS are left.
    pub(super) fn listens<'t>(&mut self, statement: &'t Statement) -> Vec<Listen<'t>> {
        let has_tls = statement.inner().iter().any(|one| one.word(0) == "ssl" && one.word(1) == "on");
        let written: Vec<&Statement> =
            statement.inner().iter().filter(|one| one.word(0) == "listen").collect();
        let mut listens: Vec<Listen<'t>> =
            written.iter().filter_map(|one| self.listen(one, has_tls)).collect();
        let has_plain = listens.iter().any(|listen| !listen.is_tls);
        listens.retain(|listen| {
            let stays = !(listen.is_tls && has_plain);
            if !stays {
                self.ledger.leave(listen.line, &reasons::PLAIN_SERVERS);
            }
            stays
        });
        if written.is_empty() {
            listens.push(Listen {
                text: "*:80, by default",
                host: EndpointHost::Any { is_v6: false },
                port: 80,
                line: statement.first,
                is_tls: false,
                is_default: false,
                is_udp: false,
            });
        }
        listens
    }

    /// Parses one `listen ADDRESS ...`. Returns `None` if a service can't have the address.
    fn listen<'t>(&mut self, one: &'t Statement, has_tls: bool) -> Option<Listen<'t>> {
        let text = one.word(1);
        let has = |word: &str| one.words.iter().any(|one| one == word);
        let refused = match text {
            "" => Some(&reasons::NOT_ADDRESS),
            text if text.starts_with("unix:") => Some(&reasons::LOCAL_SOCKET),
            text if values::has_port_range(text) => Some(&reasons::ANY_PORT),
            _ if has("quic") => Some(&reasons::QUIC),
            _ => None,
        };
        if let Some(reason) = refused {
            self.ledger.leave_statement(one, reason);
            return None;
        }
        let endpoint = match text.parse::<u16>() {
            Ok(port) => values::Endpoint { host: EndpointHost::Any { is_v6: false }, port: Some(port) },
            Err(_) => values::endpoint(text),
        };
        for word in one.words.iter().skip(2) {
            if let Some(reason) = option(word) {
                self.ledger.leave_part(one.first, word, reason);
            }
        }
        Some(Listen {
            text,
            host: endpoint.host,
            port: endpoint.port.filter(|port| *port > 0).unwrap_or(80),
            line: one.first,
            is_tls: has("ssl") || has_tls,
            is_default: has("default_server") || has("default"),
            is_udp: has("udp"),
        })
    }

    /// Adds the addresses of a block to a service.
    pub(super) fn addresses(&mut self, service: &mut DraftService, listens: &[Listen<'_>]) {
        let mut any: Option<IpAddr> =
            service.addresses.iter().find(|known| known.remark.is_some()).map(|known| known.value.ip());
        for listen in listens {
            let (ip, remark) = match &listen.host {
                EndpointHost::Address(ip) => (*ip, None),
                EndpointHost::Any { is_v6: true } if service.has_address() => {
                    self.ledger.leave(listen.line, &reasons::SECOND_FAMILY);
                    continue;
                }
                EndpointHost::Any { .. } | EndpointHost::Other(_) => {
                    let ip = *any.get_or_insert_with(|| self.places.service());
                    let name = &service.name;
                    let todo = format!("the address that clients of {name:?} connect to ({})", listen.text);
                    self.ledger.blank(listen.line, ip, todo.clone());
                    (ip, Some(format!("TO FILL IN: {todo}.")))
                }
            };
            let value = SocketAddr::new(ip, listen.port);
            let addresses = if listen.is_udp { &mut service.udp_addresses } else { &mut service.addresses };
            if !addresses.iter().any(|known| known.value == value) {
                addresses.push(Sourced { value, line: listen.line, remark });
            }
            service.lines.insert(listen.line);
            if listen.is_tls {
                self.ledger.leave_part(listen.line, "ssl", &reasons::TLS_HERE);
            }
        }
    }
}

/// Returns why an option of `listen` has no counterpart.
fn option(word: &str) -> Option<&'static LeftReason> {
    match word.split('=').next().unwrap_or_default() {
        "default_server" | "default" | "ssl" | "udp" => None,
        "proxy_protocol" => Some(&reasons::PROXY_PROTOCOL),
        "http2" | "spdy" => Some(&reasons::CONNECTION),
        "backlog" | "rcvbuf" | "sndbuf" | "reuseport" | "deferred" | "bind" | "so_keepalive" | "fastopen"
        | "accept_filter" | "setfib" | "multipath" | "ipv6only" => Some(&reasons::PROCESS),
        _ => Some(&reasons::UNKNOWN),
    }
}
