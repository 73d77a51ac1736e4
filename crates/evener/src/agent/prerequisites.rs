//! Prerequisites of a server for handoff, shown by `evener doctor`. A director detects failures by
//! its probes, which take the same path as handed-off connections.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use evener_core::net::wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use evener_core::node::lccp::PROTOCOL;
use evener_dataplane::server::{self, Hook, ProgramError, Reason};

use super::desired::ServedService;
use super::doctor::finding;
use super::place::{dotted, read_setting};
use crate::config::Config;
use crate::runtime::folders;
use crate::runtime::lock::Lock;
use crate::runtime::secret;
use crate::views::{Finding, Severity};

/// Settings that must not be 0, or else handed-off connections are refused or hang. Each setting
/// has the reason why.
const SETTINGS: [(&str, &str); 4] = [
    ("ipv4/tcp_syncookies", "the kernel refuses what it didn't greet itself"),
    ("ipv4/tcp_sack", "the director has agreed on selective acknowledgments"),
    ("ipv4/tcp_timestamps", "the director has agreed on timestamps"),
    ("ipv4/tcp_window_scaling", "the director has agreed on window scaling"),
];
/// Setting by which connection tracking accepts connections without their handshake.
const LOOSE: &str = "netfilter/nf_conntrack_tcp_loose";

/// Returns the findings for handoff services.
pub(super) fn findings(roles: &[ServedService<'_>], config: &Config) -> Vec<Finding> {
    let handed_over: Vec<_> = roles.iter().filter(|role| role.is_handed_over()).collect();
    let Some(first) = handed_over.first() else { return Vec::new() };
    let check = first.service.name.as_str();
    let mut findings = vec![kernel(check)];
    findings.extend(SETTINGS.iter().filter_map(|(path, why)| setting(check, path, why)));
    findings.extend(tracking(check));
    findings.extend(known_secret(check, config));
    findings.push(running(first));
    findings.extend(hearing(&handed_over));
    findings.extend(sharers(check));
    findings.extend(refusals(check));
    findings.extend(handed_over.iter().flat_map(|role| multipath(role)));
    findings
}

fn kernel(check: &str) -> Finding {
    let loaded =
        server::handoff_support().map_err(ProgramError::from).and_then(|()| server::try_load(Hook::Accept));
    match loaded {
        // Without the right to load programs, only the kernel's feature check counts.
        Ok(()) | Err(ProgramError::Privilege { .. }) => {
            finding(check, Severity::Ok, "The kernel can make connections of what is handed over.".to_owned())
        }
        Err(error) => finding(check, Severity::Fail, format!("Nothing can be handed over: {error}.")),
    }
}

fn setting(check: &str, path: &str, why: &str) -> Option<Finding> {
    (read_setting(path)? == 0).then(|| {
        let name = dotted(path);
        finding(
            check,
            Severity::Fail,
            format!("{name} is 0, but {why}: `sysctl -w {name}=1`; until then what is handed over is lost."),
        )
    })
}

fn tracking(check: &str) -> Option<Finding> {
    (read_setting(LOOSE)? == 0).then(|| {
        let name = dotted(LOOSE);
        let message = format!(
            "{name} is 0: connection tracking considers handed-off connections invalid. Set it to 1, or don't track the service's port."
        );
        finding(check, Severity::Warn, message)
    })
}

fn known_secret(check: &str, config: &Config) -> Option<Finding> {
    let file = config.farm.secret_file.as_ref()?;
    secret::read(file).err().map(|error| finding(check, Severity::Fail, format!("{error}.")))
}

fn running(role: &ServedService<'_>) -> Finding {
    let check = role.service.name.as_str();
    let attached = server::existing_directory().map(|pins| server::attached(&pins)).unwrap_or_default();
    match attached.iter().any(|(_, hook)| *hook == Hook::Accept) {
        true => finding(check, Severity::Ok, "Connections that are handed over are made here.".to_owned()),
        false => {
            let who = if role.service.is_on_every_host() { "run" } else { "agent" };
            let message = format!("No program accepts handed-off connections; run `evener {who}`.");
            finding(check, Severity::Fail, message)
        }
    }
}

/// Checks for raw sockets of LCCP. The agent has a raw socket on each address by which directors
/// know this host.
fn hearing(roles: &[&ServedService<'_>]) -> Option<Finding> {
    let role = roles.iter().find(|role| !role.service.is_on_every_host())?;
    // Without a running agent there are no raw sockets. Another finding reports the missing agent.
    if !folders::directory().is_ok_and(|directory| Lock::is_held(&folders::agent_lock_path(&directory))) {
        return None;
    }
    let tables = ["raw", "raw6"].map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")));
    let is_open = tables.iter().flatten().any(|table| has_raw_socket(table, PROTOCOL));
    (!is_open).then(|| {
        let message = "The agent can't receive messages of directors (LCCP, IP protocol 253), so this server gets no connections that the director proxies or moves: the agent needs CAP_NET_RAW; see its log."
            .to_owned();
        finding(&role.service.name, Severity::Fail, message)
    })
}

/// True if a table of raw sockets (/proc/net/raw) has a socket of this protocol. The port column
/// contains the protocol.
fn has_raw_socket(table: &str, protocol: u8) -> bool {
    let bound = |line: &str| {
        let (_, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    table.lines().skip(1).filter_map(bound).any(|port| port == u16::from(protocol))
}

/// Reports packet sockets that share IP frames with the host's stack. A shared frame loses its
/// assigned socket.
fn sharers(check: &str) -> Option<Finding> {
    let table = fs::read_to_string("/proc/net/packet").ok()?;
    let kinds = [ETHERTYPE_IPV4, ETHERTYPE_IPV6].map(|kind| format!("{kind:04x}"));
    let of_ip =
        |line: &&str| line.split_whitespace().nth(3).is_some_and(|kind| kinds.iter().any(|ip| ip == kind));
    let count = table.lines().skip(1).filter(of_ip).count();
    (count > 0).then(|| {
        let message = format!(
            "{count} packet sockets on this host receive only IP packets (`ss -0`), such as those of some DHCP clients: while they are open, handed-off connections are reset. Sockets that receive all packets, such as tcpdump's, do no harm."
        );
        finding(check, Severity::Fail, message)
    })
}

/// Reports the programs' refusals, with their likely cause.
fn refusals(check: &str) -> Vec<Finding> {
    let counted = server::existing_directory().and_then(|pins| server::counters(&pins)).unwrap_or_default();
    let signs = [
        (
            Reason::BadCookie,
            "segments came that follow no handshake that this host believes: is the secret that of the director, and \
             is the clock right (`date`), within a minute?",
        ),
        (Reason::NoListener, "connections were handed over to a port that nothing listened on"),
        (
            Reason::Refused,
            "connections were refused by the kernel: does the listener use MPTCP, or was one of the settings 0?",
        ),
    ];
    let of = |(reason, what): (Reason, &str)| {
        let count = counted.get(&reason).copied().filter(|count| *count > 0)?;
        Some(finding(check, Severity::Warn, format!("Since the programs were loaded, {count} {what}")))
    };
    signs.into_iter().filter_map(of).collect()
}

/// Reports MPTCP listeners, which can't accept handed-off connections. Go's listeners use MPTCP
/// since 1.24.
fn multipath(role: &ServedService<'_>) -> Vec<Finding> {
    let Ok(output) = Command::new("ss").args(["-H", "-M", "-l", "-t", "-n"]).output() else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let listens = |service: &SocketAddr| {
        let port = format!(":{}", service.port());
        let mut lines = text.lines().filter(|line| line.contains("mptcp"));
        lines.any(|line| line.split_whitespace().any(|word| word.ends_with(&port)))
    };
    let services = role.service.addresses.iter().filter(|service| listens(service));
    services
        .map(|service| {
            let message = format!(
                "What listens on port {} speaks MPTCP, which can't be handed a connection: `sysctl -w \
                 net.mptcp.enabled=0` and restart it, or GODEBUG=multipathtcp=0 for a program in Go.",
                service.port()
            );
            finding(&role.service.name, Severity::Fail, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::has_raw_socket;

    #[test]
    fn raw_sockets_are_known_by_their_protocol() {
        let table = "  sl  local_address rem_address   st\n  1: 00000000:0001 00000000:0000 07 0\n 253: 0B0200C0:00FD 00000000:0000 07\n";
        assert!(has_raw_socket(table, 253) && has_raw_socket(table, 1));
        assert!(!has_raw_socket(table, 254) && !has_raw_socket("head\nrubbish\n", 253));
    }
}
