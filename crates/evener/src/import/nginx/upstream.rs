//! `upstream` blocks, and servers that `proxy_pass` names directly.

use crate::import::assemble::DraftPool;
use crate::import::draft::{DraftServer, Placeholders, Sourced, usable_name};
use crate::import::features;
use crate::import::ledger::Ledger;
use crate::import::reasons::{self, LeftReason};
use crate::import::settle::SERVERS;
use crate::import::tree::Statement;
use crate::import::values::{self, EndpointHost};

/// Reads the servers of an upstream. `port` is the default port of the servers.
pub(super) fn read(
    upstream: &Statement,
    port: Option<u16>,
    ledger: &mut Ledger<'_>,
    places: &mut Placeholders,
) -> DraftPool {
    let mut pool = DraftPool { policy: Some("round-robin"), ..DraftPool::default() };
    let mut backups = Vec::new();
    for statement in upstream.inner() {
        let name = statement.word(0);
        let left: Option<&LeftReason> = match name {
            "server" if pool.servers.len() >= SERVERS => {
                ledger.leave_statement(statement, &reasons::TOO_MANY);
                continue;
            }
            "server" => {
                match server(statement, port, &mut pool, ledger, places) {
                    Some((server, false)) => pool.servers.push(server),
                    Some((server, true)) => backups.push((server, statement)),
                    None => {}
                }
                continue;
            }
            "least_conn" | "least_time" => {
                pool.policy = Some("least-connections");
                (name == "least_time").then_some(&reasons::POLICY)
            }
            "random" => {
                pool.policy = Some("power-of-two");
                None
            }
            "ip_hash" => {
                pool.policy = Some("hash");
                features::address_hash(&mut pool.keys);
                // nginx takes the first three bytes of an IPv4 address.
                features::affinity_mask(&mut pool.keys, [24, 64]);
                None
            }
            "hash" => {
                pool.policy = Some("hash");
                match statement.word(1) {
                    "$remote_addr$remote_port" => None,
                    "$remote_addr" | "$binary_remote_addr" => {
                        features::address_hash(&mut pool.keys);
                        None
                    }
                    _ => Some(&reasons::POLICY),
                }
            }
            other => {
                let why = match other {
                    "keepalive" | "ntlm" => &reasons::CONNECTION,
                    "zone" | "state" => &reasons::PROCESS,
                    "sticky" => &reasons::COOKIES,
                    "queue" => &reasons::QUEUES,
                    other => super::words::reason(other),
                };
                ledger.leave_statement(statement, why);
                continue;
            }
        };
        pool.lines.extend(statement.lines());
        if let Some(reason) = left {
            ledger.leave_statement(statement, reason);
        }
    }
    // If all servers are backups, they become ordinary servers.
    let is_alone = pool.servers.is_empty();
    for (mut server, statement) in backups {
        match if is_alone { Ok(()) } else { features::backup(&mut server) } {
            Ok(()) => pool.servers.push(server),
            Err(reason) => ledger.leave_statement(statement, reason),
        }
    }
    if !pool.servers.is_empty() {
        pool.lines.extend(upstream.lines());
    }
    pool
}

/// Returns the pool for a server that `proxy_pass` names without an upstream.
pub(super) fn direct(
    text: &str,
    port: Option<u16>,
    line: usize,
    ledger: &mut Ledger<'_>,
    places: &mut Placeholders,
) -> DraftPool {
    let server = at(text, port, line, ledger, places);
    DraftPool { servers: vec![server], policy: Some("round-robin"), ..DraftPool::default() }
}

/// Returns the server at an address. A name or a socket gets a placeholder.
fn at(
    text: &str,
    port: Option<u16>,
    line: usize,
    ledger: &mut Ledger<'_>,
    places: &mut Placeholders,
) -> DraftServer {
    let endpoint = values::endpoint(text);
    let (address, remark) = match endpoint.host {
        EndpointHost::Address(address) => (address, None),
        EndpointHost::Any { .. } | EndpointHost::Other(_) => {
            let address = places.server();
            let todo = format!("the address of the server {text}");
            ledger.blank(line, address, todo.clone());
            (address, Some(format!("TO FILL IN: {todo}.")))
        }
    };
    let name = text.trim_start_matches("unix:").trim_matches('/');
    DraftServer {
        name: Some(usable_name(name)),
        address: Sourced { value: address, line, remark },
        port: endpoint.port.or(port),
        weight: 1,
        keys: Vec::new(),
        lines: Vec::new(),
    }
}

/// Parses a line `server ADDRESS ...`. Also returns true if the server is a backup.
fn server(
    statement: &Statement,
    port: Option<u16>,
    pool: &mut DraftPool,
    ledger: &mut Ledger<'_>,
    places: &mut Placeholders,
) -> Option<(DraftServer, bool)> {
    let line = statement.first;
    if statement.word(1).is_empty() {
        ledger.leave_statement(statement, &reasons::NOT_ADDRESS);
        return None;
    }
    let mut server = at(statement.word(1), port, line, ledger, places);
    let (mut is_backup, mut is_down) = (false, false);
    for word in statement.words.iter().skip(2) {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let left: Option<&LeftReason> = match key {
            "weight" => match value.parse() {
                Ok(weight) => {
                    server.weight = weight;
                    None
                }
                Err(_) => Some(&reasons::UNKNOWN),
            },
            "down" => {
                is_down = true;
                None
            }
            "backup" => {
                is_backup = true;
                None
            }
            "max_conns" => features::max_connections(&mut server, value.parse().unwrap_or_default()).err(),
            "max_fails" | "fail_timeout" => Some(&reasons::PASSIVE_CHECKS),
            "slow_start" => {
                pool.slow_start_ms = values::time_ms(value, 1_000).filter(|ms| *ms <= 3_600_000);
                pool.slow_start_ms.is_none().then_some(&reasons::CHECK_TIME)
            }
            "resolve" | "service" => Some(&reasons::DISCOVERY),
            "route" => Some(&reasons::COOKIES),
            _ => Some(&reasons::UNKNOWN),
        };
        if let Some(reason) = left {
            ledger.leave_part(line, word, reason);
        }
    }
    // `weight` may come after `down`, so this is done last.
    if is_down {
        server.weight = 0;
    }
    server.lines.extend(statement.lines());
    Some((server, is_backup))
}
