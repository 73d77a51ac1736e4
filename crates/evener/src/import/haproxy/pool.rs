//! A backend: servers, balancing and checks.

use std::collections::BTreeSet;

use super::server::{self, ServerOptions};
use super::words::{self, HaproxyLine};
use crate::import::assemble::DraftPool;
use crate::import::draft::{DraftHealth, Placeholders};
use crate::import::features;
use crate::import::ledger::Ledger;
use crate::import::reasons::{self, LeftReason};
use crate::import::settle::SERVERS;
use crate::import::values;

/// Reads a backend from the lines of its `defaults` and its own.
pub(super) fn read(lines: &[&HaproxyLine], ledger: &mut Ledger<'_>, places: &mut Placeholders) -> DraftPool {
    let mut pool = DraftPool::default();
    balance(lines, &mut pool, ledger);
    let defaults: Vec<&HaproxyLine> =
        lines.iter().filter(|line| line.word(0) == "default-server").copied().collect();
    let mut options: Vec<ServerOptions> = Vec::new();
    for line in lines {
        match line.word(0) {
            "server" if options.len() >= SERVERS => ledger.leave(line.line, &reasons::TOO_MANY),
            "server" => {
                options.extend(server::read(line, &defaults, ledger, places));
            }
            "server-template" => ledger.leave(line.line, &reasons::DISCOVERY),
            _ => {}
        }
    }
    // Without another server, one for emergencies is a server.
    let has_others = options.iter().any(|of| !of.is_backup);
    options.retain_mut(|of| match of.is_backup && has_others {
        true => match features::backup(&mut of.server) {
            Ok(()) => true,
            Err(reason) => {
                ledger.leave(of.server.address.line, reason);
                false
            }
        },
        false => true,
    });
    checks(lines, &options, &mut pool, ledger);
    agents(&options, &mut pool, ledger);
    pool.lines.extend(defaults.iter().filter(|_| !options.is_empty()).map(|line| line.line));
    pool.servers = options.into_iter().map(|of| of.server).collect();
    pool
}

fn balance(lines: &[&HaproxyLine], pool: &mut DraftPool, ledger: &mut Ledger<'_>) {
    let written = lines.iter().rev().find(|line| line.word(0) == "balance");
    let (policy, left): (_, Option<&LeftReason>) = match written.map_or("roundrobin", |line| line.word(1)) {
        "roundrobin" | "static-rr" => ("round-robin", None),
        "leastconn" => ("least-connections", None),
        random if random == "random" || random.starts_with("random(") => ("power-of-two", None),
        "source" => ("hash", features::address_hash(&mut pool.keys).err()),
        _ => ("hash", Some(&reasons::POLICY)),
    };
    pool.policy = Some(policy);
    if let Some(line) = written {
        pool.lines.insert(line.line);
        if let Some(reason) = left {
            ledger.leave(line.line, reason);
        }
    }
}

/// How the servers are probed: kind by the backend, times by the first server that is checked.
fn checks(lines: &[&HaproxyLine], options: &[ServerOptions], pool: &mut DraftPool, ledger: &mut Ledger<'_>) {
    let Some(first) = options.iter().find(|of| of.is_checked) else {
        // HAProxy takes such servers for good.
        pool.health.kind = (!options.is_empty()).then_some("none");
        return;
    };
    pool.health = first.health.clone();
    for other in options.iter().filter(|of| of.is_checked && of.health != first.health) {
        ledger.leave_part(other.server.address.line, "its own settings of checks", &reasons::ONE_CHECK);
    }
    if options.iter().any(|of| !of.is_checked) {
        let comment = "HAProxy checks some of the servers only; Evener probes all of them.";
        pool.comments.push(comment.to_owned());
    }
    let mut http = DraftHealth { kind: Some("http"), ..DraftHealth::default() };
    let (mut has_http, mut of_http) = (false, BTreeSet::new());
    for line in lines {
        match (line.word(0), line.word(1)) {
            ("option", "httpchk") => {
                has_http = true;
                of_http.insert(line.line);
                httpchk(line, &mut http, ledger);
            }
            // The last kind of check counts; a plain connection is the one without any.
            ("option", "tcp-check") => {
                has_http = false;
                pool.lines.insert(line.line);
            }
            ("option", kind) if words::CHECKS.contains(&kind) => has_http = false,
            ("no", "option") if line.word(2) == "httpchk" => {
                has_http = false;
                pool.lines.insert(line.line);
            }
            ("http-check", "send") => {
                of_http.insert(line.line);
                http_check_send(line, &mut http, ledger);
            }
            ("http-check", "expect") => http_check_expect(line, &mut http, &mut of_http, ledger),
            ("timeout", "check") => match values::time_ms(line.word(2), 1) {
                Some(ms) if ms > 0 && ms < pool.health.interval_ms.unwrap_or(2_000) => {
                    pool.health.timeout_ms = Some(ms);
                    pool.lines.insert(line.line);
                }
                _ => ledger.leave(line.line, &reasons::CHECK_TIME),
            },
            _ => {}
        }
    }
    if has_http {
        pool.lines.extend(of_http);
    }
    if has_http && pool.health.kind.is_none() {
        let health = &mut pool.health;
        (health.kind, health.path, health.host) = (http.kind, http.path, http.host);
        (health.status, health.body) = (http.status, http.body);
    }
    pool.health.kind = pool.health.kind.or(Some("tcp"));
}

/// `option httpchk [METHOD] URI [VERSION]`, where the version may have a Host behind it.
fn httpchk(line: &HaproxyLine, health: &mut DraftHealth, ledger: &mut Ledger<'_>) {
    let words = line.words.get(2..).unwrap_or_default();
    for word in words {
        match word.as_str() {
            "GET" => {}
            path if path.starts_with('/') => health.path = Some(path.to_owned()),
            version if version.starts_with("HTTP/") => {
                let host = version.split_once("Host:").map(|(_, host)| host.trim());
                health.host = host.and_then(|host| host.split(['\\', '\r', ' ']).next()).map(str::to_owned);
            }
            other => ledger.leave_part(line.line, other, &reasons::CHECK_DETAIL),
        }
    }
}

/// `http-check send meth GET uri / ver HTTP/1.1 hdr host NAME`
fn http_check_send(line: &HaproxyLine, health: &mut DraftHealth, ledger: &mut Ledger<'_>) {
    let mut words = line.words.iter().skip(2).map(String::as_str);
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_default();
        match (word, value) {
            ("meth", "GET") | ("ver", _) => {}
            ("uri", path) if path.starts_with('/') => health.path = Some(path.to_owned()),
            ("hdr", name) if name.eq_ignore_ascii_case("host") => {
                health.host = words.next().map(str::to_owned);
            }
            ("hdr", name) => {
                let part = format!("hdr {name} {}", words.next().unwrap_or_default());
                ledger.leave_part(line.line, &part, &reasons::CHECK_DETAIL);
            }
            _ => ledger.leave_part(line.line, &format!("{word} {value}"), &reasons::CHECK_DETAIL),
        }
    }
}

/// `http-check expect status CODES` or `string TEXT`
fn http_check_expect(
    line: &HaproxyLine,
    health: &mut DraftHealth,
    used: &mut BTreeSet<usize>,
    ledger: &mut Ledger<'_>,
) {
    let is_code = |text: &str| {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let range = low.parse::<u16>().ok().zip(high.parse::<u16>().ok());
        range.is_some_and(|(low, high)| {
            low <= high && (100..=599).contains(&low) && (100..=599).contains(&high)
        })
    };
    match (line.word(2), line.word(3)) {
        ("status", codes) if !codes.is_empty() && codes.split(',').all(is_code) => {
            health.status = codes.split(',').map(str::to_owned).collect();
            used.insert(line.line);
        }
        ("string", text) if !text.is_empty() => {
            health.body = Some(text.to_owned());
            used.insert(line.line);
        }
        _ => ledger.leave(line.line, &reasons::CHECK_DETAIL),
    }
}

/// Slow start and agents, which are the service's.
fn agents(options: &[ServerOptions], pool: &mut DraftPool, ledger: &mut Ledger<'_>) {
    pool.slow_start_ms = options.iter().find_map(|of| of.slow_start_ms);
    for other in options.iter().filter(|of| of.slow_start_ms != pool.slow_start_ms) {
        let part = match other.slow_start_ms {
            Some(_) => "its own slow start",
            None => "that it has no slow start",
        };
        ledger.leave_part(other.server.address.line, part, &reasons::ONE_PACE);
    }
    let Some(agent) = options.iter().find(|of| of.has_agent) else { return };
    let Some(port) = agent.agent_port else {
        ledger.leave_part(agent.server.address.line, "agent-check", &reasons::CHECK_DETAIL);
        return;
    };
    let settings = |of: &ServerOptions| (of.has_agent, of.agent_port, of.agent_interval_ms);
    for other in options.iter().filter(|of| settings(of) != settings(agent)) {
        let part = if other.has_agent { "its own agent-check" } else { "that it has no agent-check" };
        ledger.leave_part(other.server.address.line, part, &reasons::ONE_PACE);
    }
    pool.report = vec!["kind = \"agent-check\"".to_owned(), format!("port = {port}")];
    if let Some(ms) = agent.agent_interval_ms {
        pool.report.push(format!("interval = {}", crate::import::render::time(ms)));
    }
}
