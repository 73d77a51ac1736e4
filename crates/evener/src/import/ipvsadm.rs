//! Imports the output of `ipvsadm -S`, and scripts of ipvsadm commands.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::draft::{DraftMethod, DraftServer, DraftService, Placeholders, Sourced};
use super::features;
use super::ledger::{Ledger, Left};
use super::reasons::{self, LeftReason};
use super::settle::{ADDRESSES, SERVERS};
use super::source::Source;
use super::values::{self, EndpointHost};

/// Returns the policy for an IPVS scheduler, and the reason for a part of it that is left.
pub(super) fn policy(scheduler: &str) -> (Option<&'static str>, Option<&'static LeftReason>) {
    match scheduler {
        "rr" | "wrr" => (Some("round-robin"), None),
        "lc" | "wlc" => (Some("least-connections"), None),
        "twos" => (Some("power-of-two"), None),
        "sed" | "nq" | "lblc" | "lblcr" => (Some("least-connections"), Some(&reasons::POLICY)),
        "sh" | "mh" => (Some("hash"), None),
        "dh" => (Some("hash"), Some(&reasons::POLICY)),
        _ => (None, Some(&reasons::POLICY)),
    }
}

/// True if an IPVS scheduler with these flags hashes the client's address without its port.
pub(super) fn hashes_address(scheduler: &str, flags: &str) -> bool {
    matches!(scheduler, "sh" | "mh") && !flags.contains(&format!("{scheduler}-port"))
}

/// Time of IPVS for persistence without a time, in seconds.
const PERSISTENCE: &str = "300";

/// Options: short name, long name and number of arguments.
const OPTIONS: [(&str, &str, usize); 32] = [
    ("-A", "--add-service", 0),
    ("-a", "--add-server", 0),
    ("-t", "--tcp-service", 1),
    ("-u", "--udp-service", 1),
    ("-f", "--fwmark-service", 1),
    ("", "--sctp-service", 1),
    ("-s", "--scheduler", 1),
    ("-r", "--real-server", 1),
    ("-g", "--gatewaying", 0),
    ("-m", "--masquerading", 0),
    ("-i", "--ipip", 0),
    ("-w", "--weight", 1),
    ("-x", "--u-threshold", 1),
    ("-y", "--l-threshold", 1),
    ("-p", "--persistent", 0),
    ("-M", "--netmask", 1),
    ("-b", "--sched-flags", 1),
    ("-o", "--ops", 0),
    ("-6", "--ipv6", 0),
    ("-n", "--numeric", 0),
    ("", "--pe", 1),
    ("", "--tun-type", 1),
    ("", "--tun-port", 1),
    ("", "--tun-nocsum", 0),
    ("", "--tun-csum", 0),
    ("", "--tun-remcsum", 0),
    ("", "--set", 3),
    ("", "--start-daemon", 0),
    ("-C", "--clear", 0),
    ("-E", "--edit-service", 0),
    ("-e", "--edit-server", 0),
    ("-D", "--delete-service", 0),
];

/// Options of a command by their long names, and the unknown words.
struct IpvsCommand {
    options: BTreeMap<&'static str, String>,
    unknown: Vec<String>,
}

impl IpvsCommand {
    fn read(text: &str) -> IpvsCommand {
        let mut words = text.split_whitespace().map(|word| word.trim_matches(['"', '\''])).peekable();
        let (mut options, mut unknown) = (BTreeMap::new(), Vec::new());
        while let Some(word) = words.next() {
            if word == "ipvsadm" || word.ends_with("/ipvsadm") {
                continue;
            }
            // `-At` means `-A -t`.
            let (first, second) = match word.strip_prefix('-') {
                Some(letters) if letters.len() == 2 && letters.is_ascii() && !letters.starts_with('-') => (
                    format!("-{}", letters.get(..1).unwrap_or_default()),
                    letters.get(1..).map(|l| format!("-{l}")),
                ),
                _ => (word.to_owned(), None),
            };
            for word in [Some(first), second].into_iter().flatten() {
                let known = OPTIONS
                    .iter()
                    .find(|(short, long, _)| *long == word || !short.is_empty() && *short == word);
                let Some((_, long, takes)) = known else {
                    unknown.push(word);
                    continue;
                };
                let mut value: Vec<&str> = (0..*takes).filter_map(|_| words.next()).collect();
                // Only this option may come without its argument.
                if *long == "--persistent" {
                    value.extend(words.next_if(|next| next.parse::<u64>().is_ok()));
                }
                // An option given twice is ambiguous, so its first value is left as unknown.
                if let Some(before) = options.insert(*long, value.join(" ")) {
                    unknown.push(format!("{long} {before}"));
                }
            }
        }
        IpvsCommand { options, unknown }
    }

    fn get(&self, option: &str) -> Option<&str> {
        self.options.get(option).map(String::as_str)
    }

    fn has(&self, option: &str) -> bool {
        self.options.contains_key(option)
    }

    /// Returns the option and address that identify the virtual service, as a key.
    fn service(&self) -> Option<String> {
        ["--tcp-service", "--udp-service", "--fwmark-service", "--sctp-service"]
            .iter()
            .find_map(|option| self.get(option).map(|value| format!("{option} {value}")))
    }
}

struct IpvsadmReader<'s, 'p> {
    ledger: Ledger<'s>,
    places: &'p mut Placeholders,
    services: Vec<DraftService>,
    /// Numbers of services by their keys.
    known: BTreeMap<String, usize>,
    /// Keys of services that were left, so that their servers are left too.
    refused: BTreeSet<String>,
    timeouts: Vec<(&'static str, u64)>,
}

/// Returns the services of a table, and the ledger of its lines.
pub(super) fn read<'s>(source: &'s Source, places: &mut Placeholders) -> (Vec<DraftService>, Ledger<'s>) {
    let is_text = |text: &str| !text.trim().is_empty() && !text.trim_start().starts_with('#');
    let lines = source.lines.iter().enumerate().filter(|(_, line)| is_text(&line.text));
    let significant: BTreeSet<usize> = lines.map(|(at, _)| at + 1).collect();
    let mut reader = IpvsadmReader {
        ledger: Ledger::new(source, significant.clone()),
        places,
        services: Vec::new(),
        known: BTreeMap::new(),
        refused: BTreeSet::new(),
        timeouts: Vec::new(),
    };
    // A line that ends in a backslash continues on the next line.
    let mut text = String::new();
    let mut first = None;
    for (at, line) in source.lines.iter().enumerate().filter(|(at, _)| significant.contains(&(at + 1))) {
        let start = *first.get_or_insert(at + 1);
        text.push_str(line.text.trim().trim_end_matches('\\'));
        text.push(' ');
        if !line.text.trim_end().ends_with('\\') || at + 1 == source.lines.len() {
            reader.commands(&text, start, at + 1);
            text.clear();
            first = None;
        }
    }
    let IpvsadmReader { mut services, ledger, timeouts, .. } = reader;
    services.iter_mut().for_each(|service| service.timeouts.clone_from(&timeouts));
    (services, ledger)
}

impl IpvsadmReader<'_, '_> {
    /// Reads the commands of a line; a shell script may have several in one line.
    fn commands(&mut self, text: &str, first: usize, last: usize) {
        let text = text.split(" #").next().unwrap_or_default();
        let commands = text.split([';', '|', '&']).map(str::trim).filter(|command| !command.is_empty());
        commands.for_each(|command| self.command(command, first, last));
    }

    fn command(&mut self, text: &str, first: usize, last: usize) {
        let command = IpvsCommand::read(text);
        let open_before = self.ledger.left.len();
        if command.has("--add-service") {
            self.add_service(&command, first);
        } else if command.has("--add-server") {
            self.add_server(&command, first);
        } else if let Some(times) = command.get("--set") {
            self.timeouts = timeouts(times);
            self.ledger.carry(first);
        } else if command.has("--start-daemon") {
            self.ledger.leave(first, &reasons::SYNC);
        } else if text.contains("ipvsadm") || !command.options.is_empty() {
            self.ledger.leave(first, &reasons::TABLE);
        } else {
            self.ledger.leave(first, &reasons::UNKNOWN);
        }
        // The lines that continue a command are treated as its first line.
        if last > first {
            match self.ledger.carried.contains(&first) {
                true => self.ledger.carry_all(first + 1..=last),
                false => {
                    let left = self.ledger.left.get(open_before).map(Left::reason);
                    let reason = left.unwrap_or_else(|| reasons::UNKNOWN.clone());
                    self.ledger.leave_span(first + 1..=last, None, &reason);
                }
            }
        }
    }

    /// Leaves a virtual service, and so its servers, with a reason.
    fn refuse(&mut self, command: &IpvsCommand, line: usize, reason: &LeftReason) {
        self.ledger.leave(line, reason);
        self.refused.extend(command.service());
    }

    fn add_service(&mut self, command: &IpvsCommand, line: usize) {
        if self.services.len() >= ADDRESSES {
            return self.refuse(command, line, &reasons::TOO_MANY);
        }
        let (is_udp, text) = match (command.get("--tcp-service"), command.get("--udp-service")) {
            (Some(text), _) => (false, text),
            (None, Some(text)) => (true, text),
            (None, None) if command.has("--fwmark-service") => {
                return self.refuse(command, line, &reasons::FWMARK);
            }
            (None, None) => return self.refuse(command, line, &reasons::PROTOCOL),
        };
        let endpoint = values::endpoint(text);
        let address = match (endpoint.host, endpoint.port) {
            (EndpointHost::Address(address), Some(port)) => SocketAddr::new(address, port),
            (EndpointHost::Address(_), None) => return self.refuse(command, line, &reasons::ANY_PORT),
            _ => return self.refuse(command, line, &reasons::NOT_ADDRESS),
        };
        // The first server sets the method later.
        let mut service = DraftService::new(text, DraftMethod::Nat { source_nat: false });
        service.is_udp = is_udp;
        service.addresses.push(Sourced { value: address, line, remark: None });
        service.lines.insert(line);
        self.ledger.carry(line);
        let scheduler = command.get("--scheduler").unwrap_or("wlc");
        let (policy, left) = policy(scheduler);
        let flags = command.get("--sched-flags").unwrap_or_default();
        service.policy = policy;
        if hashes_address(scheduler, flags) {
            features::address_hash(&mut service.keys);
        }
        if let Some(reason) = left {
            self.ledger.leave_part(line, &format!("-s {scheduler}"), reason);
        }
        self.persistence(command, line, &mut service);
        self.details(command, line, &["--pe", "--ops"]);
        service.comments.push("IPVS probes no servers; Evener does, by its default.".to_owned());
        if let Some(name) = command.service() {
            self.known.insert(name, self.services.len());
        }
        self.services.push(service);
    }

    /// Reads the persistence of a service, and what counts as one client.
    fn persistence(&mut self, command: &IpvsCommand, line: usize, service: &mut DraftService) {
        let Some(written) = command.get("--persistent") else { return };
        let seconds = if written.is_empty() { PERSISTENCE } else { written };
        if let Err(reason) = features::affinity(&mut service.keys, values::seconds_ms(seconds)) {
            return self.ledger.leave_part(line, format!("-p {written}").trim(), reason);
        }
        let Some(mask) = command.get("--netmask") else { return };
        match values::client_mask(mask) {
            Some(lens) => features::affinity_mask(&mut service.keys, lens),
            None => self.ledger.leave_part(line, &format!("-M {mask}"), &reasons::AFFINITY),
        }
    }

    /// Leaves the options that have no counterpart.
    fn details(&mut self, command: &IpvsCommand, line: usize, options: &[&str]) {
        for option in options {
            if let Some(value) = command.get(option) {
                let reason = match *option {
                    "--pe" => &reasons::AFFINITY,
                    "--ops" => &reasons::ONE_PACKET,
                    "--u-threshold" | "--l-threshold" => &reasons::MAX_CONNECTIONS,
                    _ => &reasons::TUNNEL_CHECKSUM,
                };
                self.ledger.leave_part(line, format!("{option} {value}").trim(), reason);
            }
        }
        for word in &command.unknown {
            self.ledger.leave_part(line, word, &reasons::UNKNOWN);
        }
    }

    fn add_server(&mut self, command: &IpvsCommand, line: usize) {
        let name = command.service().unwrap_or_default();
        let Some(at) = self.known.get(&name).copied().filter(|_| !self.refused.contains(&name)) else {
            return self.ledger.leave(line, &reasons::NO_SERVICE);
        };
        let gue = command.get("--tun-type") == Some("gue");
        let method = match () {
            () if command.has("--masquerading") => DraftMethod::Nat { source_nat: false },
            () if command.has("--ipip") => DraftMethod::Tunnel { gue },
            () => DraftMethod::L2,
        };
        let endpoint = values::endpoint(command.get("--real-server").unwrap_or_default());
        let (address, remark) = match endpoint.host {
            EndpointHost::Address(address) => (address, None),
            EndpointHost::Other(name) if !name.is_empty() => {
                let address = self.places.server();
                let todo = format!("the address of {name}");
                self.ledger.blank(line, address, todo.clone());
                (address, Some(format!("TO FILL IN: {todo}.")))
            }
            _ => return self.ledger.leave(line, &reasons::NOT_ADDRESS),
        };
        let Some(service) = self.services.get_mut(at) else { return };
        if service.servers.len() >= SERVERS {
            return self.ledger.leave(line, &reasons::TOO_MANY);
        }
        if service.servers.is_empty() {
            service.method = method;
        } else if service.method != method {
            return self.ledger.leave(line, &reasons::ONE_METHOD);
        }
        let is_own_tunnel = matches!(command.get("--tun-type"), Some("gre"))
            || command.get("--tun-port").is_some_and(|port| port != "6080");
        if is_own_tunnel {
            return self.ledger.leave(line, &reasons::TUNNEL_DETAIL);
        }
        let port = endpoint.port.or(service.port());
        if has_server(service, address, port) {
            return self.ledger.leave(line, &reasons::DUPLICATE);
        }
        let mut server = DraftServer {
            name: None,
            address: Sourced { value: address, line, remark },
            port,
            weight: command.get("--weight").and_then(|weight| weight.parse().ok()).unwrap_or(1),
            keys: Vec::new(),
            lines: Vec::new(),
        };
        if let Some(most) =
            command.get("--u-threshold").and_then(|most| most.parse().ok()).filter(|most| *most > 0)
            && let Err(reason) = features::max_connections(&mut server, most)
        {
            self.ledger.leave_part(line, &format!("-x {most}"), reason);
        }
        if !method.has_ports() && server.port != service.port() {
            let part = server.port.map(|port| format!(":{port}")).unwrap_or_default();
            self.ledger.leave_part(line, &part, &reasons::KEEPS_PORT);
        }
        service.servers.push(server);
        self.ledger.carry(line);
        self.details(command, line, &["--l-threshold", "--tun-csum", "--tun-remcsum"]);
    }
}

/// True if the service has a server at this address. The port is compared only if servers can have
/// their own port.
pub(super) fn has_server(service: &DraftService, address: IpAddr, port: Option<u16>) -> bool {
    service
        .servers
        .iter()
        .any(|known| known.address.value == address && (!service.method.has_ports() || known.port == port))
}

/// Parses the timeouts of `--set TCP TCPFIN UDP`, in seconds. A zero keeps the current timeout.
fn timeouts(text: &str) -> Vec<(&'static str, u64)> {
    let times = text.split_whitespace().map(|seconds| seconds.parse::<u64>().ok());
    let keyed = ["tcp", "closing", "udp"].into_iter().zip(times);
    keyed
        .filter_map(|(key, seconds)| Some((key, seconds?.checked_mul(1_000)?)))
        .filter(|(_, ms)| values::idle_limits_ms().contains(ms))
        .collect()
}
