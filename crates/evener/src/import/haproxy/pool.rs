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

/// Reads a backend from the lines of its `defaults` and its own.
pub(super) fn read(lines: &[&HaproxyLine], ledger: &mut Ledger<'_>, places: &mut Placeholders) -> DraftPool {
    let mut pool = DraftPool::default();
    balance(lines, &mut pool, ledger);
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
