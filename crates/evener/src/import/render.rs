//! Renders the draft as TOML, and records the part of the draft that each line belongs to.

use std::fmt::{Display, Write};
use std::net::SocketAddr;

use super::draft::{DraftHealth, DraftMethod, DraftRoute, DraftServer, DraftService, DraftTls};
use crate::runtime::shown::is_shown;

/// Part of a draft that a line of TOML belongs to. The first number is that of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DraftPart {
    Farm,
    Service(usize),
    Address(usize, usize),
    Server(usize, usize),
    Route(usize, usize),
    /// The probes of a service.
    Health(usize),
}

/// The text, and the part of each of its lines.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    pub(super) text: String,
    pub(super) parts: Vec<DraftPart>,
}

impl Rendered {
    fn line(&mut self, part: DraftPart, line: impl Display) {
        let _ = writeln!(self.text, "{line}");
        self.parts.push(part);
    }

    fn key(&mut self, part: DraftPart, key: &str, value: impl Display) {
        self.line(part, format!("{key} = {value}"));
    }

    fn comment(&mut self, part: DraftPart, text: &str) {
        for line in textwrap::wrap(text, 96) {
            self.line(part, format!("# {line}"));
        }
    }
}

/// Returns the text as a TOML string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    // Escapes `${`, which would begin a variable.
    for c in text.replace("${", "$${").chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if !is_shown(c) => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn list(texts: impl IntoIterator<Item = String>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(|text| quoted(&text)).collect();
    match &quoted[..] {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Returns a time as a TOML string with the largest unit that fits.
pub(super) fn time(ms: u64) -> String {
    quoted(&match ms {
        0 => "0s".to_owned(),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    })
}

/// Renders the whole farm. `director` is the placeholder for the address of a director.
pub(super) fn farm(services: &[DraftService], head: &[String], director: &str) -> Rendered {
    let mut out = Rendered::default();
    head.iter().for_each(|line| out.comment(DraftPart::Farm, line));
    let hands_over = services.iter().any(|service| service.method == DraftMethod::Handoff);
    let tunnels = services.iter().any(|service| matches!(service.method, DraftMethod::Tunnel { .. }));
    if hands_over || tunnels {
        out.line(DraftPart::Farm, "\n[farm]");
        // The text above has two lines.
        out.parts.push(DraftPart::Farm);
        if hands_over {
            out.comment(DraftPart::Farm, "`evener keygen FILE` writes it; copy it to every server.");
            out.key(DraftPart::Farm, "secret_file", quoted("/etc/evener/farm.key"));
        }
        out.comment(DraftPart::Farm, "TO FILL IN: the own address of each host that runs `evener run`.");
        out.key(DraftPart::Farm, "directors", format!("[{}]", quoted(director)));
    }
    for (at, service) in services.iter().enumerate() {
        one(&mut out, at, service);
    }
    out
}

fn one(out: &mut Rendered, at: usize, service: &DraftService) {
    let whole = DraftPart::Service(at);
    out.line(whole, "");
    service.comments.iter().for_each(|comment| out.comment(whole, comment));
    out.line(whole, "[[service]]");
    out.key(whole, "name", quoted(&service.name));
    addresses(out, at, service);
    if service.is_udp {
        out.key(whole, "protocol", quoted("udp"));
    }
    let name = match service.method {
        DraftMethod::L2 => "l2",
        DraftMethod::Nat { .. } => "nat",
        DraftMethod::Tunnel { .. } => "tunnel",
        DraftMethod::Handoff => "handoff",
    };
    out.key(whole, "method", quoted(name));
    match service.method {
        DraftMethod::Nat { source_nat: true } => out.key(whole, "source_nat", true),
        DraftMethod::Tunnel { gue } => {
            out.key(whole, "encapsulation", quoted(if gue { "gue" } else { "ipip" }));
        }
        DraftMethod::Nat { source_nat: false } | DraftMethod::L2 | DraftMethod::Handoff => {}
    }
    if service.chooses_each_request {
        out.key(whole, "later_requests", quoted("rehandoff"));
    }
    if let Some(policy) = service.policy {
        out.key(whole, "policy", quoted(policy));
    }
    if let Some(ms) = service.slow_start_ms {
        out.key(whole, "slow_start", time(ms));
    }
    service.keys.iter().for_each(|key| out.line(whole, key));
    for (number, server) in service.servers.iter().enumerate() {
        self::server(out, DraftPart::Server(at, number), server, service);
    }
    for (number, route) in service.routes.iter().enumerate() {
        self::route(out, DraftPart::Route(at, number), route);
    }
    health(out, DraftPart::Health(at), &service.health);
    if !service.report.is_empty() {
        out.line(whole, "");
        out.line(whole, "[service.report]");
        service.report.iter().for_each(|key| out.line(whole, key));
    }
    let idle = service.idle_ms.map(|ms| (if service.is_udp { "udp" } else { "tcp" }, ms));
    let timeouts: Vec<(&str, u64)> = idle.into_iter().chain(service.timeouts.iter().copied()).collect();
    if !timeouts.is_empty() {
        out.line(whole, "");
        out.line(whole, "[service.timeouts]");
        timeouts.iter().for_each(|(key, ms)| out.key(whole, key, time(*ms)));
    }
}

fn addresses(out: &mut Rendered, at: usize, service: &DraftService) {
    for address in &service.addresses {
        if let Some(remark) = &address.remark {
            out.comment(DraftPart::Service(at), remark);
        }
    }
    match &service.addresses[..] {
        [one] => out.key(DraftPart::Address(at, 0), "address", quoted(&one.value.to_string())),
        several => {
            out.line(DraftPart::Service(at), "addresses = [");
            for (number, address) in several.iter().enumerate() {
                let entry = format!("    {},", quoted(&address.value.to_string()));
                out.line(DraftPart::Address(at, number), entry);
            }
            out.line(DraftPart::Service(at), "]");
        }
    }
}

fn server(out: &mut Rendered, part: DraftPart, server: &DraftServer, service: &DraftService) {
    out.line(part, "");
    if let Some(remark) = &server.address.remark {
        out.comment(part, remark);
    }
    out.line(part, "[[service.server]]");
    if let Some(name) = &server.name {
        out.key(part, "name", quoted(name));
    }
    let port = server.port.filter(|port| service.method.has_ports() && Some(*port) != service.port());
    let address = match port {
        Some(port) => SocketAddr::new(server.address.value, port).to_string(),
        None => server.address.value.to_string(),
    };
    out.key(part, "address", quoted(&address));
    if server.weight != 1 {
        out.key(part, "weight", server.weight);
    }
    server.keys.iter().for_each(|key| out.line(part, key));
}

fn route(out: &mut Rendered, part: DraftPart, route: &DraftRoute) {
    out.line(part, "");
    out.line(part, "[[service.route]]");
    if let Some(host) = &route.host {
        out.key(part, "host", quoted(host));
    }
    if let Some(path) = &route.path {
        out.key(part, "path", quoted(path));
    }
    if !route.methods.is_empty() {
        out.key(part, "methods", list(route.methods.clone()));
    }
    out.key(part, "servers", list(route.servers.clone()));
}

fn health(out: &mut Rendered, part: DraftPart, health: &DraftHealth) {
    if *health == DraftHealth::default() {
        return;
    }
    out.line(part, "");
    out.line(part, "[service.health]");
    let texts = [("kind", health.kind.map(str::to_owned)), ("path", health.path.clone())];
    let more = [("host", health.host.clone()), ("body", health.body.clone())];
    for (key, value) in texts.into_iter().chain(more) {
        if let Some(value) = value {
            out.key(part, key, quoted(&value));
        }
    }
    if let Some(DraftTls { name, ca, verify }) = &health.tls {
        for (key, value) in [("name", name), ("ca", ca)] {
            if let Some(value) = value {
                out.key(part, key, quoted(value));
            }
        }
        if !verify {
            out.comment(part, "The source believes every certificate too.");
            out.key(part, "verify", false);
        }
    }
    if !health.status.is_empty() {
        out.key(part, "status", list(health.status.clone()));
    }
    if let Some(port) = health.port {
        out.key(part, "port", port);
    }
    for (key, value) in [
        ("interval", health.interval_ms),
        ("fast_interval", health.fast_interval_ms),
        ("timeout", health.timeout_ms),
    ] {
        if let Some(ms) = value {
            out.key(part, key, time(ms));
        }
    }
    for (key, value) in [("rise", health.rise), ("fall", health.fall)] {
        if let Some(count) = value {
            out.key(part, key, count);
        }
    }
}
