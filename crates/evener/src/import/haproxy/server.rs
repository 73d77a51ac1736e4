//! `server` lines and their options.

use std::net::IpAddr;

use super::words::HaproxyLine;
use crate::import::draft::{DraftHealth, DraftServer, DraftTls, Placeholders, Sourced, usable_name};
use crate::import::features;
use crate::import::ledger::Ledger;
use crate::import::reasons::{self, LeftReason};
use crate::import::values::{self, EndpointHost};

/// Options of servers: name, number of arguments, and why they have no counterpart.
/// Options without a reason are applied in [`ServerOptions::take`].
const OPTIONS: [(&str, usize, Option<&LeftReason>); 94] = [
    ("check", 0, None),
    ("no-check", 0, None),
    ("weight", 1, None),
    ("inter", 1, None),
    ("rise", 1, None),
    ("fall", 1, None),
    ("port", 1, None),
    ("backup", 0, None),
    ("no-backup", 0, None),
    ("disabled", 0, None),
    ("enabled", 0, None),
    ("maxconn", 1, None),
    ("slowstart", 1, None),
    ("agent-check", 0, None),
    ("agent-port", 1, None),
    ("agent-inter", 1, None),
    ("check-ssl", 0, None),
    ("no-check-ssl", 0, None),
    ("no-agent-check", 0, None),
    ("no-ssl", 0, None),
    ("no-send-proxy", 0, None),
    ("no-send-proxy-v2", 0, None),
    ("non-stick", 0, None),
    ("stick", 0, None),
    ("fastinter", 1, None),
    ("downinter", 1, Some(&reasons::CHECK_DETAIL)),
    ("addr", 1, Some(&reasons::CHECK_DETAIL)),
    ("agent-addr", 1, Some(&reasons::CHECK_DETAIL)),
    ("agent-send", 1, Some(&reasons::CHECK_DETAIL)),
    ("check-send-proxy", 0, Some(&reasons::CHECK_DETAIL)),
    ("check-sni", 1, None),
    ("check-alpn", 1, Some(&reasons::HTTPS_CHECK)),
    ("check-via-socks4", 0, Some(&reasons::CHECK_DETAIL)),
    ("observe", 1, Some(&reasons::CHECK_DETAIL)),
    ("error-limit", 1, Some(&reasons::CHECK_DETAIL)),
    ("on-error", 1, Some(&reasons::CHECK_DETAIL)),
    ("on-marked-down", 1, Some(&reasons::CONNECTION)),
    ("on-marked-up", 1, Some(&reasons::CONNECTION)),
    ("track", 1, Some(&reasons::CHECK_DETAIL)),
    ("minconn", 1, Some(&reasons::MAX_CONNECTIONS)),
    ("maxqueue", 1, Some(&reasons::QUEUES)),
    ("cookie", 1, Some(&reasons::COOKIES)),
    ("ssl", 0, Some(&reasons::TLS_TO_SERVERS)),
    ("verify", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("verifyhost", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("ca-file", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("crt", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("crl-file", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("sni", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("alpn", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("ciphers", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("ssl-min-ver", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("send-proxy", 0, Some(&reasons::PROXY_PROTOCOL)),
    ("send-proxy-v2", 0, Some(&reasons::PROXY_PROTOCOL)),
    ("send-proxy-v2-ssl", 0, Some(&reasons::PROXY_PROTOCOL)),
    ("proto", 1, Some(&reasons::UPSTREAM_PROTOCOL)),
    ("resolvers", 1, Some(&reasons::DISCOVERY)),
    ("resolve-prefer", 1, Some(&reasons::DISCOVERY)),
    ("resolve-opts", 1, Some(&reasons::DISCOVERY)),
    ("init-addr", 1, Some(&reasons::DISCOVERY)),
    ("id", 1, Some(&reasons::PROCESS)),
    ("source", 1, Some(&reasons::CONNECTION)),
    ("usesrc", 1, Some(&reasons::CONNECTION)),
    ("socks4", 1, Some(&reasons::CONNECTION)),
    ("redir", 1, Some(&reasons::REDIRECTS)),
    ("tcp-ut", 1, Some(&reasons::CONNECTION)),
    ("pool-max-conn", 1, Some(&reasons::CONNECTION)),
    ("tfo", 0, Some(&reasons::CONNECTION)),
    ("check-proto", 1, Some(&reasons::CHECK_DETAIL)),
    ("check-reuse-pool", 0, Some(&reasons::CONNECTION)),
    ("ciphersuites", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("curves", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("force-tlsv12", 0, Some(&reasons::TLS_TO_SERVERS)),
    ("force-tlsv13", 0, Some(&reasons::TLS_TO_SERVERS)),
    ("guid", 1, Some(&reasons::PROCESS)),
    ("hash-key", 1, Some(&reasons::POLICY)),
    ("idle-ping", 1, Some(&reasons::CONNECTION)),
    ("init-state", 1, Some(&reasons::CHECK_DETAIL)),
    ("log-proto", 1, Some(&reasons::LOGGING)),
    ("max-reuse", 1, Some(&reasons::CONNECTION)),
    ("namespace", 1, Some(&reasons::CONNECTION)),
    ("no-sslv3", 0, Some(&reasons::TLS_TO_SERVERS)),
    ("no-tlsv10", 0, Some(&reasons::TLS_TO_SERVERS)),
    ("no-tlsv11", 0, Some(&reasons::TLS_TO_SERVERS)),
    ("no-verifyhost", 0, Some(&reasons::TLS_TO_SERVERS)),
    ("npn", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("pool-low-conn", 1, Some(&reasons::CONNECTION)),
    ("pool-purge-delay", 1, Some(&reasons::CONNECTION)),
    ("proxy-v2-options", 1, Some(&reasons::PROXY_PROTOCOL)),
    ("shard", 1, Some(&reasons::STICK_TABLES)),
    ("ssl-max-ver", 1, Some(&reasons::TLS_TO_SERVERS)),
    ("ssl-reuse", 0, Some(&reasons::TLS_TO_SERVERS)),
    ("no-ssl-reuse", 0, Some(&reasons::TLS_TO_SERVERS)),
    ("ws", 1, Some(&reasons::CONNECTION)),
];

/// A server, and its options that affect the whole backend.
#[derive(Clone, Debug)]
pub(super) struct ServerOptions {
    pub(super) server: DraftServer,
    pub(super) health: DraftHealth,
    pub(super) is_checked: bool,
    pub(super) is_backup: bool,
    /// True if an operator has to enable the server first. Its weight is then 0.
    is_disabled: bool,
    pub(super) slow_start_ms: Option<u64>,
    pub(super) has_agent: bool,
    pub(super) agent_port: Option<u16>,
    pub(super) agent_interval_ms: Option<u64>,
    tls: ServerTls,
}

/// TLS options of a server, for its checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ServerTls {
    is_on: bool,
    /// `Some(true)` for `check-ssl`, `Some(false)` for `no-check-ssl`.
    check: Option<bool>,
    believes_all: bool,
    /// File of certificate authorities; `@system-ca` means those of the system.
    ca: Option<String>,
    /// `check-sni` takes precedence over `verifyhost`, and that over `sni`.
    check_name: Option<String>,
    verify_name: Option<String>,
    name: Option<String>,
    /// True if checks go to another address or port than requests.
    is_elsewhere: bool,
}

/// Parses a line `server NAME ADDRESS ...`. The options of `default-server` precede its own.
/// Returns `None`, and leaves the line, if the server has no usable address.
pub(super) fn read(
    line: &HaproxyLine,
    defaults: &[&HaproxyLine],
    ledger: &mut Ledger<'_>,
    places: &mut Placeholders,
) -> Option<ServerOptions> {
    if values::has_port_offset(line.word(2)) {
        ledger.leave(line.line, &reasons::PORT_OFFSET);
        return None;
    }
    let endpoint = values::haproxy_endpoint(line.word(2));
    let (address, remark): (IpAddr, _) = match endpoint.host {
        EndpointHost::Address(address) => (address, None),
        EndpointHost::Any { .. } | EndpointHost::Other(_) if line.word(2).is_empty() => {
            ledger.leave(line.line, &reasons::NOT_ADDRESS);
            return None;
        }
        EndpointHost::Any { .. } | EndpointHost::Other(_) => {
            let address = places.server();
            let todo = format!("the address of {:?} ({})", line.word(1), line.word(2));
            ledger.blank(line.line, address, todo.clone());
            (address, Some(format!("TO FILL IN: {todo}.")))
        }
    };
    let server = DraftServer {
        name: Some(usable_name(line.word(1))),
        address: Sourced { value: address, line: line.line, remark },
        port: endpoint.port,
        weight: 1,
        keys: Vec::new(),
        lines: Vec::new(),
    };
    let mut options = ServerOptions {
        server,
        health: DraftHealth::default(),
        is_checked: false,
        is_backup: false,
        is_disabled: false,
        slow_start_ms: None,
        has_agent: false,
        agent_port: None,
        agent_interval_ms: None,
        tls: ServerTls::default(),
    };
    for default in defaults {
        options.take(default.line, default.words.get(1..).unwrap_or_default(), ledger);
    }
    options.take(line.line, line.words.get(3..).unwrap_or_default(), ledger);
    if options.is_disabled {
        options.server.weight = 0;
    }
    Some(options)
}

impl ServerTls {
    fn note(&mut self, word: &str, value: &str) {
        let text = || Some(value.to_owned());
        match word {
            "ssl" => self.is_on = true,
            "no-ssl" => self.is_on = false,
            "check-ssl" => self.check = Some(true),
            "no-check-ssl" => self.check = Some(false),
            "verify" => self.believes_all = value == "none",
            "ca-file" => self.ca = text(),
            "check-sni" => self.check_name = text(),
            "verifyhost" => self.verify_name = text(),
            "sni" => {
                let name = value.strip_prefix("str(").and_then(|name| name.strip_suffix(')'));
                self.name = name.map(|name| name.trim_matches('\'').to_owned());
            }
            "addr" | "port" => self.is_elsewhere = true,
            _ => {}
        }
    }
}

impl ServerOptions {
    /// Returns the check settings of the server, without the backend's.
    pub(super) fn check_settings(&self) -> (&DraftHealth, bool, Option<DraftTls>) {
        (&self.health, self.checks_by_tls(), self.tls())
    }

    /// True if checks use TLS. By default, they do if requests use TLS and go to the same port.
    pub(super) fn checks_by_tls(&self) -> bool {
        self.tls.check.unwrap_or(self.tls.is_on && !self.tls.is_elsewhere)
    }

    /// Returns how checks verify certificates, or `None` if the file of authorities isn't known.
    pub(super) fn tls(&self) -> Option<DraftTls> {
        let ServerTls { check_name, verify_name, name, .. } = self.tls.clone();
        let name = check_name.or(verify_name).or(name);
        match (self.tls.believes_all, self.tls.ca.as_deref()) {
            (true, _) => Some(DraftTls { name, ca: None, verify: false }),
            (false, Some("@system-ca")) => Some(DraftTls { name, ca: None, verify: true }),
            // The folder of a relative name depends on settings of the process.
            (false, Some(ca)) if ca.starts_with('/') => {
                Some(DraftTls { name, ca: Some(ca.to_owned()), verify: true })
            }
            (false, _) => None,
        }
    }

    fn take(&mut self, line: usize, words: &[String], ledger: &mut Ledger<'_>) {
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let Some((_, takes, reason)) = OPTIONS.iter().find(|(name, ..)| *name == word) else {
                ledger.leave_part(line, word, &reasons::UNKNOWN);
                continue;
            };
            let value = if *takes > 0 { words.next().unwrap_or_default() } else { "" };
            let part = format!("{word} {value}");
            self.tls.note(word, value);
            let refused = match reason {
                // `proto h1` is the default.
                Some(_) if (word, value) == ("proto", "h1") => None,
                Some(reason) => Some(*reason),
                None => self.set(word, value).err(),
            };
            if let Some(reason) = refused {
                ledger.leave_part(line, part.trim(), reason);
            }
        }
    }

    /// Applies an option that has a counterpart.
    fn set(&mut self, word: &str, value: &str) -> Result<(), &'static LeftReason> {
        let interval = values::time_ms(value, 1).filter(|ms| values::interval_limits_ms().contains(ms));
        let count = value.parse::<u64>().ok().filter(|count| (1..=100).contains(count));
        match word {
            "check" => self.is_checked = true,
            "no-check" => self.is_checked = false,
            "weight" => self.server.weight = value.parse().map_err(|_| &reasons::UNKNOWN)?,
            "inter" => self.health.interval_ms = Some(interval.ok_or(&reasons::CHECK_TIME)?),
            "fastinter" => self.health.fast_interval_ms = Some(interval.ok_or(&reasons::CHECK_TIME)?),
            "rise" => self.health.rise = Some(count.ok_or(&reasons::CHECK_DETAIL)?),
            "fall" => self.health.fall = Some(count.ok_or(&reasons::CHECK_DETAIL)?),
            "port" => self.health.port = Some(values::port(value).ok_or(&reasons::CHECK_DETAIL)?),
            "backup" => self.is_backup = true,
            "no-backup" => self.is_backup = false,
            "disabled" => self.is_disabled = true,
            "enabled" => self.is_disabled = false,
            "maxconn" => {
                return features::max_connections(&mut self.server, value.parse().unwrap_or_default());
            }
            "slowstart" => {
                let ms = values::time_ms(value, 1).filter(|ms| *ms <= 3_600_000);
                self.slow_start_ms = Some(ms.ok_or(&reasons::CHECK_TIME)?);
            }
            "agent-check" => self.has_agent = true,
            "no-agent-check" => self.has_agent = false,
            "agent-port" => self.agent_port = Some(values::port(value).ok_or(&reasons::CHECK_DETAIL)?),
            "agent-inter" => self.agent_interval_ms = Some(interval.ok_or(&reasons::CHECK_TIME)?),
            _ => {}
        }
        Ok(())
    }
}
