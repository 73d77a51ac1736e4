//! `evener doctor`: finds problems of the host, the network and the farm, with or without a running
//! daemon. It changes, mounts and attaches nothing. It sends ARP requests for the addresses that
//! this host should announce. It also queries the agents of servers for their findings, and sends
//! full-size packets to servers.

mod admin;
mod daemon;
mod farm;
mod host;
mod hosts;
mod ingress;
mod installs;
mod links;
mod names;
mod owners;
mod routed_servers;
mod servers;

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::admin::{Client, message};
use crate::agent;
use crate::cli::{CONFIG_FILE, DoctorArgs};
use crate::io::network;
use crate::runtime::Exit;
use crate::runtime::folders;
use crate::runtime::terminal::{self, Colour, Page, print};
use crate::views::{Finding, Severity};

/// Runs all checks, and prints the findings. The exit status is 4 if a check failed, and 1 for a
/// warning with `--strict`.
pub fn run(DoctorArgs { config, strict, view }: &DoctorArgs) -> Exit {
    if let Some(path) = config
        && let Err(error) = File::open(path)
    {
        eprintln!("evener: failed to read {}: {error}", path.display());
        return Exit::Failed;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("evener: failed to check this host: {error}");
            return Exit::Environment;
        }
    };
    let findings = runtime.block_on(check_all(view.admin.socket.as_deref(), config.as_deref()));
    let text = match view.json {
        true => serde_json::to_string_pretty(&findings).map(|text| text + "\n").map_err(Into::into),
        false => Ok(render(&findings, Page::of_stdout())),
    };
    if let Err(error) = text.and_then(|text| print(&text)) {
        eprintln!("evener: what was found can't be written: {error}");
        return Exit::Failed;
    }
    let has = |state| findings.iter().any(|finding| finding.state == state);
    match (has(Severity::Fail), *strict && has(Severity::Warn)) {
        (true, _) => Exit::Environment,
        (false, true) => Exit::Failed,
        (false, false) => Exit::Ok,
    }
}

/// Runs all checks. `socket` is the daemon's admin socket, if it is not the default. `config` is
/// the file to check, if it is not the running one.
async fn check_all(socket: Option<&Path>, config: Option<&Path>) -> Vec<Finding> {
    let mut findings = host::findings();
    findings.extend(installs::findings());
    let socket = socket.map_or_else(folders::admin_socket, |path| Ok(path.to_owned()));
    let daemon = match socket {
        Ok(socket) => daemon::check_daemon(&Client::new(socket), &mut findings).await,
        Err(error) => {
            findings.push(Finding::fail(
                "namespace",
                format!("failed to read the network namespace: {error}; mount /proc."),
            ));
            None
        }
    };
    let links = match links::Links::read().await {
        Ok(links) => links,
        Err(error) => {
            let message = format!("failed to list the interfaces: {error}.");
            findings.push(Finding::fail("interfaces", message));
            return findings;
        }
    };
    let network = match network::read().await {
        Ok(network) => network,
        Err(error) => {
            findings.push(Finding::fail(
                "network",
                format!("failed to read the network configuration: {error}."),
            ));
            return findings;
        }
    };
    let directs = daemon.is_some();
    let attached = daemon.as_ref().map(|status| status.interfaces.iter().cloned().collect());
    let running = || daemon.map(|status| PathBuf::from(status.config)).or_else(agent::doctor::config_file);
    let path = config.map(Path::to_owned).or_else(running);
    let config = farm::load(&path.unwrap_or_else(|| PathBuf::from(CONFIG_FILE)), &mut findings);
    if config.as_ref().is_some_and(|config| !config.takes_packets()) {
        host::without_engine(&mut findings);
    }
    findings.extend(config.as_ref().and_then(|config| names::check_names(&config.dns)));
    let serves = config.as_ref().map(|config| agent::doctor::findings(config, &network)).unwrap_or_default();
    match config {
        Some(config) if directs || serves.is_empty() => {
            findings.extend(names::check_listeners(&config, &network));
            farm::check_farm(&config, &network, &links, attached, &mut findings).await;
            findings.extend(servers::check_servers(&config, &network).await);
        }
        _ => links.check_links(links.ethernet(), &mut findings),
    }
    findings.extend(serves);
    findings
}

/// Formats findings for people: one line each, then the number of problems.
fn render(findings: &[Finding], page: Page) -> String {
    let width = findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for finding in findings {
        let (state, colour) = match finding.state {
            Severity::Ok => ("ok", Colour::Green),
            Severity::Warn => ("warn", Colour::Yellow),
            Severity::Fail => ("FAIL", Colour::Red),
        };
        let line = format!("{state:<4}  {:<width$}  {}", finding.check, message(&finding.message));
        let line = terminal::wrap(&line, page.width, width + 8);
        let rest = line.strip_prefix(state).unwrap_or_default();
        text += &format!("{}{rest}\n", page.paint(colour, state));
    }
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    text + &match (count(Severity::Fail), count(Severity::Warn)) {
        (0, 0) => "\nNothing is wrong.\n".to_owned(),
        (fails, warns) => format!("\n{fails} failed, {warns} to know about.\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_line_up_and_are_counted() {
        let findings = [Finding::ok("kernel", "6.18."), Finding::fail("config", "Wrong.\nSee there.")];
        let text = "ok    kernel  6.18.\nFAIL  config  Wrong.\n              See there.\n\n1 failed, 0 to know about.\n";
        let page = Page { width: 80, has_colour: false, breaks_names: false };
        assert_eq!(render(&findings, page), text);
        let coloured = text.replace("ok", "\x1b[32mok\x1b[0m").replace("FAIL", "\x1b[31mFAIL\x1b[0m");
        assert_eq!(render(&findings, Page { has_colour: true, ..page }), coloured);
        assert_eq!(
            serde_json::to_value(&findings[1]).ok(),
            Some(serde_json::json!({"check": "config", "state": "fail", "message": "Wrong.\nSee there."}))
        );
    }
}
