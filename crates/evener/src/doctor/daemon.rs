//! Checks a running daemon by its own views, or the remains of a daemon that is gone.

use std::path::Path;

use evener_dataplane::xdp::pins;

use super::names;
use crate::admin::{Client, ClientError};
use crate::views;
use crate::views::Finding;

const CHECK: &str = "daemon";

/// Queries the daemon, if there is one. Returns its status.
pub(super) async fn check_daemon(client: &Client, findings: &mut Vec<Finding>) -> Option<views::StatusView> {
    let status: views::StatusView = match client.get("/v1/status").await {
        Ok(status) => status,
        Err(error) => {
            findings.push(silent(client.path(), &error));
            return None;
        }
    };
    findings.push(Finding::ok(CHECK, format!("Process {}, engine {}.", status.pid, status.engine)));
    findings.extend(judge(&status));
    match client.get::<Vec<views::ServerView>>("/v1/servers").await {
        Ok(servers) => {
            findings.extend(servers.iter().filter_map(server));
            findings.extend(stalling(&servers));
        }
        Err(error) => {
            findings.push(Finding::warn("servers", format!("The daemon does not list them: {error}.")))
        }
    }
    match client.get::<Vec<views::ServiceView>>("/v1/services").await {
        Ok(services) => findings.extend(services.iter().filter_map(service)),
        Err(error) => {
            findings.push(Finding::warn("services", format!("The daemon does not list them: {error}.")));
        }
    }
    match client.get::<Vec<views::HostView>>("/v1/hosts").await {
        Ok(hosts) => findings.extend(hosts.iter().flat_map(host)),
        Err(error) => {
            findings.push(Finding::warn("hosts", format!("The daemon does not list them: {error}.")))
        }
    }
    match client.get::<views::DirectorsView>("/v1/directors").await {
        Ok(all) => findings.extend(all.directors.iter().filter_map(director)),
        // The daemon is of an earlier release, and should be restarted.
        Err(error) => {
            findings.push(Finding::warn("directors", format!("The daemon does not list them: {error}.")))
        }
    }
    if !status.dns.is_empty() {
        match client.get::<Vec<views::NameView>>("/v1/names").await {
            Ok(names) => findings.extend(names::check_servers(&names)),
            Err(error) => {
                findings.push(Finding::warn("names", format!("The daemon does not list them: {error}.")))
            }
        }
    }
    Some(status)
}

fn silent(socket: &Path, error: &ClientError) -> Finding {
    match error {
        ClientError::NoDaemon { .. } => match (pins::existing_directory(), socket.exists()) {
            (Some(pins), _) => Finding::warn(
                CHECK,
                format!(
                    "No daemon answers, but the data plane of an earlier one still runs (pinned in {}); `evener run` adopts it, and removes it when stopped.",
                    pins.display()
                ),
            ),
            (None, true) => Finding::warn(
                CHECK,
                "None answers, and one did not end as it should have; `evener run` clears up after it.",
            ),
            (None, false) => Finding::ok(CHECK, "None runs in this network namespace."),
        },
        other => Finding::fail(CHECK, format!("{other}.")),
    }
}

/// Returns the problems of the daemon's status.
fn judge(status: &views::StatusView) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(error) = &status.reload_error {
        let message = format!("The last one changed nothing; mend the file and `evener reload`:\n{error}");
        findings.push(Finding::warn("reload", message));
    }
    findings.extend(status.installed.iter().filter_map(|part| {
        let error = part.missing.as_ref()?;
        let message = format!(
            "Another program has removed or changed {}, and restoring it failed: {error}.",
            part.location
        );
        Some(Finding::fail(part.kind.as_str(), message))
    }));
    if let Some(dispatcher) = status.dispatcher.as_ref().filter(|dispatcher| !dispatcher.responding) {
        let message = format!(
            "{} does not answer, and this host decides by its own tables: look whether `evener run` is at work there, with the \
             same file and secret, this host among its [farm] directors, and IP protocol 253 let through.",
            dispatcher.address
        );
        findings.push(Finding::warn("dispatcher", message));
    }
    findings.extend(
        status
            .nodes_refused
            .iter()
            .map(|(node, refused)| Finding::fail("nodes", format!("{node}: {}.", refused.text))),
    );
    let full = status.packets.get("table_full").copied().unwrap_or_default();
    if full > 0 {
        let message = format!(
            "{full} found no room and were spread by hash; raise `sessions_max` in [engine], now {}.",
            status.sessions_max
        );
        findings.push(Finding::warn("sessions", message));
    }
    let refused: Vec<_> = status.refused.iter().filter(|(_, count)| **count > 0).collect();
    if !refused.is_empty() {
        let listed: Vec<_> = refused.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let message =
            format!("Replies were refused: {}; the daemon's log has their senders.", listed.join(", "));
        findings.push(Finding::warn("ARP", message));
    }
    findings
}

fn server(server: &views::ServerView) -> Option<Finding> {
    if server.state == "up" {
        return None;
    }
    let why = [&server.reason, &server.probe_error].into_iter().flatten().next();
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let check = format!("{}/{}", server.service, server.name);
    Some(Finding::warn(check, format!("{} ({}){why}.", server.state, server.address)))
}

/// Returns servers or services with stalled connections, although probes succeed.
fn stalling(servers: &[views::ServerView]) -> Vec<Finding> {
    let found = servers.iter().filter_map(|server| {
        let finding = server.handshakes.as_ref()?.finding.as_ref()?;
        let probes = if server.state == "up" { "its probes succeed" } else { "it is not up" };
        let message = format!(
            "{finding}, from {} networks; {probes}: a firewall that admits only the director, a wrong way back to clients, or a \
             reverse path filter.",
            server.handshakes.as_ref().map_or(0, |handshakes| handshakes.networks)
        );
        Some(Finding::fail(format!("{}/{}", server.service, server.name), message))
    });
    found.collect()
}

/// Returns problems of the exchange with another host of an every-host farm.
fn host(host: &views::HostView) -> Vec<Finding> {
    const CHECK: &str = "hosts";
    let (name, address) = (&host.name, &host.address);
    let refused = host.refused.as_ref();
    let refused =
        refused.map(|refused| Finding::fail(CHECK, format!("{name} ({address}): {}.", refused.text)));
    let state = match host.state.as_str() {
        _ if refused.is_some() => refused,
        "differs" => Some(Finding::fail(
            CHECK,
            format!(
                "{name} ({address}) runs another configuration: bring the same file to all hosts, and reload."
            ),
        )),
        "unknown" => Some(Finding::warn(
            CHECK,
            format!(
                "{name} ({address}) has sent no report yet: check that it runs, has the same secret, and that the port is open."
            ),
        )),
        "silent" => Some(Finding::warn(CHECK, format!("{name} ({address}) sends no more reports."))),
        _ => None,
    };
    let elsewhere = host.deferred.iter().map(|owned| {
        let message = format!(
            "Another host answers for {owned}, which {name} should own; the daemon's log has its MAC."
        );
        Finding::fail(CHECK, message)
    });
    state.into_iter().chain(elsewhere).collect()
}

/// Returns a problem that keeps another director from replacing this director, or this director
/// from being ready.
fn director(director: &views::DirectorView) -> Option<Finding> {
    const CHECK: &str = "directors";
    let address = director.address;
    let differences = || director.differences.join("; ");
    match (director.state.as_str(), &director.refused) {
        (_, Some(refused)) => Some(Finding::fail(CHECK, format!("{address}: {}.", refused.text))),
        ("unready", _) => {
            let reason = director.reason.as_deref().unwrap_or("no reason given");
            let who = if director.own { "This director".to_owned() } else { address.to_string() };
            Some(Finding::warn(CHECK, format!("{who} isn't ready for clients: {reason}.")))
        }
        ("silent", _) => Some(Finding::warn(CHECK, format!("{address} sends no more reports."))),
        ("unknown", _) => Some(Finding::warn(
            CHECK,
            format!(
                "{address} has sent no report yet: check that it runs this release, has the same secret, and that the port is open."
            ),
        )),
        _ if director.differs.is_empty() => None,
        _ if director.differs.iter().any(|what| what == "file") => {
            Some(Finding::fail(CHECK, format!("{address}: {}.", differences())))
        }
        _ => Some(Finding::warn(CHECK, format!("{address}: {}.", differences()))),
    }
}

fn service(service: &views::ServiceView) -> Option<Finding> {
    let check = service.name.clone();
    match (service.servers_up, service.degraded) {
        (_, true) => Some(Finding::fail(
            check,
            "Too few of its servers work and accept new sessions; servers that are down or refuse them get some too.",
        )),
        (0, _) => Some(Finding::fail(check, "It has no server that accepts new sessions.")),
        _ => None,
    }
}
