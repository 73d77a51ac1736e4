//! Imports a backend: servers, balancing and checks.

use super::checks;
use super::server::{self, ServerOptions};
use super::words::HaproxyLine;
use crate::import::assemble::DraftPool;
use crate::import::draft::Placeholders;
use crate::import::features;
use crate::import::ledger::Ledger;
use crate::import::reasons::{self, LeftReason};
use crate::import::settle::SERVERS;
use crate::import::values;

/// Reads a backend from the lines of its `defaults` and its own.
pub(super) fn read(lines: &[&HaproxyLine], ledger: &mut Ledger<'_>, places: &mut Placeholders) -> DraftPool {
    let mut pool = DraftPool::default();
    balance(lines, &mut pool, ledger);
    stick(lines, &mut pool, ledger);
    // A `default-server` line applies to the servers after it, together with earlier ones.
    let mut defaults: Vec<&HaproxyLine> = Vec::new();
    let mut options: Vec<ServerOptions> = Vec::new();
    for line in lines {
        match line.word(0) {
            "default-server" => defaults.push(line),
            "server" if options.len() >= SERVERS => ledger.leave(line.line, &reasons::TOO_MANY),
            "server" => {
                options.extend(server::read(line, &defaults, ledger, places));
            }
            "server-template" => ledger.leave(line.line, &reasons::DISCOVERY),
            _ => {}
        }
    }
    // If all servers are backups, they become ordinary servers.
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
    backups(lines, &options, &mut pool, ledger);
    checks::read(lines, &options, &mut pool, ledger);
    agents(&options, &mut pool, ledger);
    pool.lines.extend(defaults.iter().filter(|_| !options.is_empty()).map(|line| line.line));
    pool.servers = options.into_iter().map(|of| of.server).collect();
    pool
}

/// Handles several backups: HAProxy uses one at a time, unless `allbackups` is set.
fn backups(lines: &[&HaproxyLine], options: &[ServerOptions], pool: &mut DraftPool, ledger: &mut Ledger<'_>) {
    let written = lines.iter().rev().find(|line| line.words.iter().any(|word| word == "allbackups"));
    match written.filter(|line| line.word(0) == "option") {
        Some(line) => drop(pool.lines.insert(line.line)),
        None => {
            for other in options.iter().filter(|of| of.is_backup).skip(1) {
                ledger.leave_part(other.server.address.line, "backup", &reasons::ONE_BACKUP);
            }
        }
    }
}

fn balance(lines: &[&HaproxyLine], pool: &mut DraftPool, ledger: &mut Ledger<'_>) {
    let written = lines.iter().rev().find(|line| line.word(0) == "balance");
    let (policy, left): (_, Option<&LeftReason>) = match written.map_or("roundrobin", |line| line.word(1)) {
        "roundrobin" | "static-rr" => ("round-robin", None),
        "leastconn" => ("least-connections", None),
        random if random == "random" || random.starts_with("random(") => ("power-of-two", None),
        "source" => {
            features::address_hash(&mut pool.keys);
            ("hash", None)
        }
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

/// Reads `stick on src` with the stick table of the backend itself. Other tables and rules are
/// left.
fn stick(lines: &[&HaproxyLine], pool: &mut DraftPool, ledger: &mut Ledger<'_>) {
    let last = |is: fn(&HaproxyLine) -> bool| lines.iter().rev().find(|line| is(line));
    let Some(rule) = last(|line| line.word(0) == "stick" && line.word(1) == "on") else { return };
    let Some(table) = last(|line| line.word(0) == "stick-table") else { return };
    let value = |name: &str| table.words.iter().skip_while(|word| *word != name).nth(1);
    let is_by_address = value("type").is_some_and(|kind| kind == "ip" || kind == "ipv6");
    // Without a time entries stay until the table is full.
    let time_ms = match value("expire") {
        Some(time) => values::time_ms(time, 1),
        None => Some(*values::affinity_limits_ms().end()),
    };
    let Some(lens) = client_of(rule.word(2)).filter(|_| rule.words.len() == 3 && is_by_address) else {
        return;
    };
    if let Err(reason) = features::affinity(&mut pool.keys, time_ms) {
        return ledger.leave(table.line, reason);
    }
    features::affinity_mask(&mut pool.keys, lens);
    pool.stick = Some(rule.line);
    pool.lines.extend([rule.line, table.line]);
}

/// Reads the expression of the client's address: `src`, or `src,ipmask(LENGTH[,LENGTH])`. Returns
/// the prefix lengths of IPv4 and IPv6.
fn client_of(text: &str) -> Option<[u8; 2]> {
    if text == "src" {
        return Some([32, 64]);
    }
    let (four, six) = match text.strip_prefix("src,ipmask(")?.strip_suffix(')')?.split_once(',') {
        Some((four, six)) => (four, six),
        None => (text.strip_prefix("src,ipmask(")?.strip_suffix(')')?, "64"),
    };
    let len = |text: &str, most: u8| text.parse().ok().filter(|len| (1..=most).contains(len));
    Some([len(four, 32)?, len(six, 128)?])
}

/// Sets slow start and agent checks, which are settings of the service in Evener.
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
