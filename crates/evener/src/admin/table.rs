//! The views for people: columns as wide as they must be, numbers to the right and in units that are read at
//! a glance.

use std::collections::BTreeMap;
use std::time::Duration;

use super::views::{Dispatcher, Explanation, Host, Server, Service, Session, Status};

/// Between two columns.
const GAP: &str = "  ";

/// A column: its heading, which side its cells stand on, and what is in them.
struct Column<T> {
    heading: &'static str,
    right: bool,
    cell: fn(&T) -> String,
}

fn words<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, right: false, cell }
}

fn figures<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, right: true, cell }
}

/// Services, one line each.
pub(super) fn services(services: &[Service]) -> String {
    table(
        services,
        "There are no services.",
        &[
            words("SERVICE", |service| service.name.clone()),
            words("ADDRESS", |service| format!("{} {}", service.protocol, service.addresses.join(","))),
            words("METHOD", |service| service.method.clone()),
            words("POLICY", |service| service.policy.clone()),
            figures("UP", |service| format!("{}/{}", service.servers_up, service.servers)),
            figures("SESSIONS", |service| count(service.sessions)),
            figures("CONNECTIONS", |service| count(service.connections)),
            figures("PACKETS", |service| count(service.packets)),
            figures("BYTES", |service| bytes(service.bytes)),
            words("NOTE", |service| match service.degraded {
                true => "all servers fail; the last that were up are kept".to_owned(),
                false => String::new(),
            }),
        ],
    )
}

/// Servers, one line each.
pub(super) fn servers(servers: &[Server]) -> String {
    let chosen = |server: &Server| -> u64 {
        servers.iter().filter(|other| other.service == server.service).map(|other| other.connections).sum()
    };
    let shared: Vec<_> = servers.iter().map(|server| (server, chosen(server))).collect();
    table(
        &shared,
        "There are no servers.",
        &[
            words("SERVICE", |(server, _)| server.service.clone()),
            words("SERVER", |(server, _)| server.name.clone()),
            words("ADDRESS", |(server, _)| server.address.clone()),
            words("VIA", |(server, _)| match (&server.interface, server.local) {
                (_, true) => "this host".to_owned(),
                (Some(interface), _) => interface.clone(),
                (None, _) => "-".to_owned(),
            }),
            words("STATE", |(server, _)| server.state.clone()),
            figures("WEIGHT", |(server, _)| server.weight.to_string()),
            figures("SESSIONS", |(server, _)| count(server.sessions)),
            figures("CONNECTIONS", |(server, _)| count(server.connections)),
            figures("SHARE", |(server, chosen)| share(server.connections, *chosen)),
            figures("PACKETS", |(server, _)| count(server.packets)),
            figures("BYTES", |(server, _)| bytes(server.bytes)),
            figures("PROBE", |(server, _)| server.probe_seconds.map_or_else(|| "-".to_owned(), seconds)),
            words("NOTE", |(server, _)| note(server)),
        ],
    )
}

fn note(server: &Server) -> String {
    let said = [&server.reason, &server.probe_error];
    let mut said: Vec<&str> = said.into_iter().flatten().map(String::as_str).collect();
    said.dedup();
    said.join("; ")
}

/// Hosts, one line each.
pub(super) fn hosts(hosts: &[Host]) -> String {
    table(
        hosts,
        "No service has placement \"every-host\": there is no talk between hosts.",
        &[
            words("HOST", |host| host.name.clone()),
            words("ADDRESS", |host| host.address.clone()),
            words(
                "STATE",
                |host| if host.own { format!("{} (this host)", host.state) } else { host.state.clone() },
            ),
            figures("LOAD", |host| count(host.load)),
            figures("HEARD", |host| host.heard_seconds.map_or_else(|| "-".to_owned(), seconds)),
            words("UP", |host| host.up.join(",")),
            words("DRAINING", |host| host.draining.join(",")),
            words("OWNS", |host| host.owns.join(",")),
            words("OWNED ELSEWHERE", |host| host.put_off.join(",")),
        ],
    )
}

/// Sessions, one line each.
pub(super) fn sessions(sessions: &[Session]) -> String {
    table(
        sessions,
        "There are no sessions.",
        &[
            words("SERVICE", |session| session.service.clone()),
            words("CLIENT", |session| session.client.clone()),
            words("ADDRESS", |session| session.address.clone()),
            words("SERVER", |session| session.server.clone()),
            words("STATE", |session| session.state.clone()),
            figures("IDLE", |session| duration(session.idle_seconds)),
            figures("EXPIRES", |session| duration(session.expires_seconds)),
        ],
    )
}

/// The daemon as a whole, one fact a line.
pub(super) fn status(status: &Status) -> String {
    let percent = share(status.sessions, status.sessions_max);
    let mut facts = vec![
        ("version", status.version.clone()),
        ("process", format!("{}, running for {}", status.pid, duration(status.uptime_seconds))),
        ("engine", engine(status)),
        ("config", status.config.clone()),
        ("reloads", status.reloads.to_string()),
        ("sessions", format!("{} of {} ({percent})", count(status.sessions), count(status.sessions_max))),
    ];
    if status.adopted {
        facts.push(("adopted", "yes: it carries on with what an earlier daemon left running".to_owned()));
    }
    if let Some(error) = &status.reload_error {
        facts.push(("reload failed", error.clone()));
    }
    if let Some(keys) = &status.restart_for {
        facts.push(("needs restart", keys.clone()));
    }
    if !status.asked.is_empty() {
        facts.push(("asked", counts(&status.asked)));
    }
    if !status.nodes.is_empty() {
        facts.push(("lccp", counts(&status.lccp)));
        let nodes = status.nodes.iter().map(|(node, state)| format!("{node} {}", clean(state)));
        facts.push(("nodes", nodes.collect::<Vec<_>>().join(", ")));
    }
    if let Some(Dispatcher { address, decides }) = &status.dispatcher {
        let says = if *decides { "decides" } else { "doesn't answer: this host decides by its own tables" };
        facts.push(("dispatcher", format!("{} {says}", clean(address))));
    }
    if let Some(path) = &status.access_log.path {
        let (written, lost) = (count(status.access_log.written), count(status.access_log.lost));
        facts.push(("access log", format!("{path}: {written} lines written, {lost} lost")));
    }
    if status.traces > 0 {
        facts.push(("traces", status.traces.to_string()));
    }
    facts.push(("packets", counts(&status.packets)));
    facts.push(("refused ARP", counts(&status.refused)));
    if !status.peers.is_empty() {
        facts.push(("datagrams", counts(&status.peers)));
    }
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let indent = " ".repeat(width + 1 + GAP.len());
    let line = |(name, value): &(&str, String)| {
        let (label, value) = (format!("{name}:"), message(value).replace('\n', &format!("\n{indent}")));
        let text = format!("{label:<0$}{GAP}{value}", width + 1);
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>()
    };
    facts.iter().map(line).collect()
}

/// How it is attached; engines mostly begin with their own name.
fn engine(status: &Status) -> String {
    match status.engine_detail.starts_with(&status.engine) {
        true => status.engine_detail.clone(),
        false => format!("{}: {}", status.engine, status.engine_detail),
    }
}

/// What was counted, without the zeros.
fn counts(counts: &BTreeMap<String, u64>) -> String {
    let seen = counts.iter().filter(|(_, number)| **number > 0);
    let seen: Vec<_> = seen.map(|(reason, number)| format!("{} {reason}", count(*number))).collect();
    if seen.is_empty() { "none".to_owned() } else { seen.join(", ") }
}

/// An explanation: its sentences, then what comes of them.
pub(super) fn explanation(explanation: &Explanation) -> String {
    let mut text: String = explanation.because.iter().map(|why| sentence(why) + "\n").collect();
    match (&explanation.service, &explanation.server) {
        (Some(service), Some(server)) => text += &format!("=> {}/{}\n", clean(service), clean(server)),
        (Some(_), None) if explanation.waits && explanation.request.is_some() => {
            let servers = explanation.request.iter().flat_map(|request| &request.servers);
            let servers: Vec<String> = servers.map(|server| clean(server)).collect();
            text += &format!("=> one of {}\n", servers.join(", "));
        }
        (Some(service), None) if explanation.waits => {
            text += &format!("=> a server of {}, by what is asked for\n", clean(service));
        }
        (Some(service), None) => text += &format!("=> no server of {}\n", clean(service)),
        (None, _) => text += "=> no service\n",
    }
    text
}

/// As it should end.
fn sentence(text: &str) -> String {
    let text = clean(text);
    if text.ends_with(['.', '!', '?']) { text } else { format!("{text}.") }
}

/// Rows under their headings; `empty` if there is none. Columns that no row has anything in are left out.
fn table<T>(rows: &[T], empty: &str, columns: &[Column<T>]) -> String {
    if rows.is_empty() {
        return format!("{empty}\n");
    }
    let mut lines: Vec<String> = vec![String::new(); rows.len() + 1];
    for column in columns {
        let cells: Vec<String> = rows.iter().map(|row| clean(&(column.cell)(row))).collect();
        if cells.iter().all(String::is_empty) {
            continue;
        }
        let cells = std::iter::once(column.heading).chain(cells.iter().map(String::as_str));
        let width = cells.clone().map(|cell| cell.chars().count()).max().unwrap_or_default();
        for (line, cell) in lines.iter_mut().zip(cells) {
            let gap = if line.is_empty() { "" } else { GAP };
            *line += &match column.right {
                true => format!("{gap}{cell:>width$}"),
                false => format!("{gap}{cell:<width$}"),
            };
        }
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Names and reasons may come from elsewhere: what could steer a terminal is shown as `?`.
pub(super) fn clean(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// The same for a text that may have several lines.
pub(crate) fn message(text: &str) -> String {
    text.trim_end().replace(|c: char| c.is_control() && c != '\n', "?")
}

/// A number of things.
fn count(number: u64) -> String {
    match number {
        0..1_000_000 => number.to_string(),
        _ => scaled(number, 1e3, &["", "k", "M", "G", "T", "P"]),
    }
}

/// Bytes.
fn bytes(number: u64) -> String {
    match number {
        0..1024 => format!("{number} B"),
        _ => scaled(number, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"]),
    }
}

/// With the largest unit of which there is at least one, or the last.
fn scaled(number: u64, step: f64, units: &[&str]) -> String {
    let mut value = number as f64;
    let mut unit = units.first();
    for larger in units.iter().skip(1) {
        // 999.95 would be shown as 1000.0
        if value < step - 0.05 {
            break;
        }
        (value, unit) = (value / step, Some(larger));
    }
    format!("{value:.1}{}", unit.unwrap_or(&""))
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.0}%", part as f64 * 100.0 / whole as f64),
    }
}

/// A whole number of seconds, in two units at most.
fn duration(seconds: u64) -> String {
    let coarse = match seconds {
        0..3_600 => seconds,
        3_600..86_400 => seconds - seconds % 60,
        _ => seconds - seconds % 3_600,
    };
    humantime::format_duration(Duration::from_secs(coarse)).to_string()
}

/// A short time.
pub(super) fn seconds(value: f64) -> String {
    match value {
        ..0.001 => format!("{:.0} us", value * 1e6),
        0.001..1.0 => format!("{:.1} ms", value * 1e3),
        _ => format!("{value:.1} s"),
    }
}
