//! Views for people: tables with minimal column widths, right-aligned numbers, and readable units.
//! A table that is too wide loses its least important columns. `--json` shows all.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::runtime::shown::is_shown;
use crate::runtime::terminal::{self, Colour, Page};
use crate::views::{
    AffinityView, DirectorView, DirectorsView, Dispatcher, Explanation, HostView, NameView, OverrideView,
    RequestView, ServerView, ServiceView, SessionView, StatusView,
};

/// Space between two columns.
const GAP: &str = "  ";
/// Indentation of notes on a row.
const NOTE: &str = "    ";

/// A column: its heading, alignment and cells. A cell has several lines if it lists several values.
struct Column<T> {
    heading: &'static str,
    right: bool,
    /// Priority of omission if there is too little room. The column with the highest value is
    /// omitted first, and 0 is never omitted.
    spare: u8,
    cell: fn(&T) -> String,
    /// True if the cells are states, which are coloured.
    is_state: bool,
}

/// Marks a column as omittable.
fn spare<T>(spare: u8, column: Column<T>) -> Column<T> {
    Column { spare, ..column }
}

fn words<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, right: false, spare: 0, cell, is_state: false }
}

fn figures<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, right: true, spare: 0, cell, is_state: false }
}

/// Returns a column of states.
fn states<T>(cell: fn(&T) -> String) -> Column<T> {
    Column { is_state: true, ..words("STATE", cell) }
}

/// Returns the colour of a state of a server, a service, a name's address or a host.
fn colour(state: &str) -> Option<Colour> {
    match state.split(' ').next()? {
        "up" | "ok" | "alive" => Some(Colour::Green),
        "draining" | "maintenance" | "partial" | "joining" | "differs" | "version" | "unknown" => {
            Some(Colour::Yellow)
        }
        "down" | "degraded" | "empty" | "silent" => Some(Colour::Red),
        _ => None,
    }
}

/// Formats the services that `is_shown` selects.
pub(super) fn services(
    services: &[ServiceView],
    is_shown: impl Fn(&ServiceView) -> bool,
    page: Page,
) -> String {
    let address = |service: &ServiceView, address: &String| match service.protocol.as_str() {
        "tcp" => address.clone(),
        other => format!("{address}/{other}"),
    };
    let shown: Vec<_> = services
        .iter()
        .filter(|service| is_shown(service))
        .map(|service| {
            let addresses: Vec<_> = service.addresses.iter().map(|one| address(service, one)).collect();
            (service, addresses.join("\n"))
        })
        .collect();
    let columns = vec![
        words("SERVICE", |(service, _): &(&ServiceView, String)| service.name.clone()),
        words("ADDRESS", |(_, addresses)| addresses.clone()),
        spare(3, words("METHOD", |(service, _)| service.method.clone())),
        spare(4, words("POLICY", |(service, _)| service.policy.clone())),
        states(|(service, _)| service.state.clone()),
        figures("UP", |(service, _)| format!("{}/{}", service.servers_up, service.servers)),
        figures("SESSIONS", |(service, _)| count(service.sessions)),
        spare(1, figures("CONNS", |(service, _)| count(service.connections))),
        spare(5, figures("PACKETS", |(service, _)| count(service.packets))),
        spare(2, figures("BYTES", |(service, _)| bytes(service.bytes))),
    ];
    let note = |(service, _): &(&ServiceView, String)| match (service.degraded, service.servers_up) {
        (true, _) => "too few servers work; some that fail or refuse are used".to_owned(),
        (false, 0) => "no server accepts new sessions".to_owned(),
        _ => String::new(),
    };
    table(&shown, "There are no services.", columns, note, page)
}

/// Formats the servers that `is_shown` selects. Shares refer to all servers.
pub(super) fn servers(servers: &[ServerView], is_shown: impl Fn(&ServerView) -> bool, page: Page) -> String {
    let chosen = |server: &ServerView| -> u64 {
        servers.iter().filter(|other| other.service == server.service).map(|other| other.connections).sum()
    };
    let shown = servers.iter().filter(|server| is_shown(server));
    let shared: Vec<_> = shown.map(|server| (server, chosen(server))).collect();
    let columns = vec![
        words("SERVICE", |(server, _): &(&ServerView, u64)| server.service.clone()),
        words("SERVER", |(server, _)| server.name.clone()),
        // A discovered server may be known by its MAC address only, which is its name.
        spare(
            1,
            words("ADDRESS", |(server, _)| {
                match server.address == server.name && server.source == "discovered" {
                    true => "-".to_owned(),
                    false => server.address.clone(),
                }
            }),
        ),
        spare(
            5,
            words("VIA", |(server, _)| match (&server.interface, server.local) {
                (_, true) => "this host".to_owned(),
                (Some(interface), _) => interface.clone(),
                (None, _) => "-".to_owned(),
            }),
        ),
        states(|(server, _)| server.state.clone()),
        spare(3, words("SINCE", |(server, _)| since(server.state_since_seconds))),
        figures("WEIGHT", |(server, _)| weight(server)),
        figures("SESSIONS", |(server, _)| count(server.sessions)),
        figures("CONNS", |(server, _)| count(server.connections)),
        figures("SHARE", |(server, chosen)| share(server.connections, *chosen)),
        spare(6, figures("PACKETS", |(server, _)| count(server.packets))),
        spare(4, figures("BYTES", |(server, _)| bytes(server.bytes))),
        spare(
            2,
            figures("PROBE", |(server, _)| server.probe_seconds.map_or_else(|| "-".to_owned(), seconds)),
        ),
    ];
    table(&shared, "There are no servers.", columns, |(server, _)| server_note(server), page)
}

/// Formats a weight, with the effective weight if it differs.
fn weight(server: &ServerView) -> String {
    match is_spared(server) || stands_by(server) {
        true => format!("{}/{}", (server.effective_weight * 10.0).round() / 10.0, server.weight),
        false => server.weight.to_string(),
    }
}

/// True if a server's effective weight is reduced, but not to zero.
fn is_spared(server: &ServerView) -> bool {
    server.effective_weight > 0.0 && server.effective_weight < f64::from(server.weight)
}

/// True if a server is a working backup without new sessions.
fn stands_by(server: &ServerView) -> bool {
    server.backup && server.state == "up" && server.effective_weight == 0.0
}

fn server_note(server: &ServerView) -> String {
    let cause = server.cause.as_ref().filter(|_| is_spared(server) || stands_by(server));
    let error = server.report.as_ref().and_then(|report| report.error.as_ref());
    let stalling = server.handshakes.as_ref().and_then(|handshakes| handshakes.finding.as_ref());
    let notes = [server.reason.as_ref(), server.probe_error.as_ref(), stalling, cause, error];
    let mut notes: Vec<String> = notes.into_iter().flatten().cloned().collect();
    notes.dedup();
    notes.extend(server.overrides.iter().map(OverrideView::sentence));
    notes.join("; ")
}

pub(super) fn hosts(hosts: &[HostView], page: Page) -> String {
    let columns = vec![
        words("HOST", |host: &HostView| host.name.clone()),
        words("ADDRESS", |host| host.address.clone()),
        states(|host| if host.own { format!("{} (this host)", host.state) } else { host.state.clone() }),
        figures("LOAD", |host| count(host.load)),
        spare(2, figures("HEARD", |host| host.last_seen_seconds.map_or_else(|| "-".to_owned(), seconds))),
        spare(1, words("UP", |host| host.up.join("\n"))),
        words("OWNS", |host| host.addresses_owned.join("\n")),
    ];
    let note = |host: &HostView| {
        let drains = host.draining.join(", ");
        let elsewhere = host.deferred.join(", ");
        let drains = (!drains.is_empty()).then(|| format!("drained for {drains}"));
        let elsewhere = (!elsewhere.is_empty()).then(|| format!("another host answers for {elsewhere}"));
        let refused = host.refused.as_ref().map(|refused| clean(&refused.text));
        refused.into_iter().chain(drains).chain(elsewhere).collect::<Vec<_>>().join("; ")
    };
    let empty = "No service has placement \"every-host\": there is no talk between hosts.";
    table(hosts, empty, columns, note, page)
}

pub(super) fn directors(all: &DirectorsView, page: Page) -> String {
    let columns = vec![
        words("DIRECTOR", |director: &DirectorView| director.address.to_string()),
        states(|one| if one.own { format!("{} (this one)", one.state) } else { one.state.clone() }),
        words("RELEASE", |director| director.release.as_deref().map_or_else(|| "-".to_owned(), clean)),
        spare(1, figures("HEARD", |one| one.last_seen_seconds.map_or_else(|| "-".to_owned(), seconds))),
        words("DIFFERS IN", |director| director.differs.join("\n")),
    ];
    let note = |director: &DirectorView| {
        let refused = director.refused.as_ref().map(|refused| clean(&refused.text));
        let reason = director.reason.as_deref().map(clean);
        let differences = director.differences.iter().map(|sentence| clean(sentence));
        refused.into_iter().chain(reason).chain(differences).collect::<Vec<_>>().join("; ")
    };
    let obstacle = all.obstacle.as_deref().map_or("no other one is known", |obstacle| obstacle);
    let empty = format!("Directors exchange no reports: {}.", clean(obstacle));
    table(&all.directors, &empty, columns, note, page)
}

pub(super) fn names(names: &[NameView], page: Page) -> String {
    let columns = vec![
        words("NAME", |name: &NameView| name.name.clone()),
        words("ADDRESS", |name| name.address.clone()),
        spare(2, words("SERVER", |name| name.server.clone())),
        states(|name| name.state.clone()),
        spare(1, figures("RANK", |name| name.rank.map_or_else(|| "-".to_owned(), count))),
        figures("SHARE", |name| format!("{:.0}%", name.share * 100.0)),
        figures("ANSWERS", |name| count(name.answers)),
        spare(3, figures("DELAY", |name| name.delay_seconds.map_or_else(|| "-".to_owned(), seconds))),
        spare(4, figures("TTL", |name| name.ttl_seconds.to_string())),
    ];
    let note = |name: &NameView| match name.cause == name.state || name.cause.starts_with("weight ") {
        true => String::new(),
        false => clean(&name.cause),
    };
    table(names, "No name is answered for: the file has no [[dns.name]].", columns, note, page)
}

/// Formats the open requests of a server, and their sums.
pub(crate) fn requests(requests: &[RequestView], page: Page) -> String {
    let unknown = || "-".to_owned();
    let columns = vec![
        words("CLIENT", |request: &RequestView| request.client.clone()),
        spare(3, words("SERVICE", |request| request.service.clone().unwrap_or_else(|| "-".to_owned()))),
        spare(4, words("METHOD", |request| clean(request.method.as_deref().unwrap_or("-")))),
        words("URL", |request| clean(request.url.as_deref().unwrap_or("-"))),
        spare(2, figures("SENT", |request| request.bytes_sent.map_or_else(|| "-".to_owned(), bytes))),
        figures("LEFT", |request| match request.source.as_str() {
            "exact" => bytes(request.bytes_left),
            _ => format!("{}+", bytes(request.bytes_left)),
        }),
        spare(1, figures("RATE", |request| request.rate_bps.map_or_else(|| "-".to_owned(), rate))),
        figures("TIME", |request| request.seconds_left.map_or_else(|| "-".to_owned(), seconds)),
    ];
    let shown = table(requests, "No request is open.", columns, |_| String::new(), page);
    if requests.is_empty() {
        return shown;
    }
    let sent: u64 = requests.iter().filter_map(|request| request.bytes_sent).sum();
    let left: u64 = requests.iter().map(|request| request.bytes_left).sum();
    let speed: f64 = requests.iter().filter_map(|request| request.rate_bps).sum();
    let bound = if requests.iter().all(|request| request.source == "exact") { "" } else { " at least" };
    let time = if speed > 0.0 { seconds(left as f64 * 8.0 / speed) } else { unknown() };
    let number = requests.len();
    format!(
        "{shown}{number} open: {} sent, {}{bound} left, {}, {time}\n",
        bytes(sent),
        bytes(left),
        rate(speed)
    )
}

/// Formats bits per second.
fn rate(bps: f64) -> String {
    scaled(bps as u64, 1_000.0, &[" bit/s", " kbit/s", " Mbit/s", " Gbit/s", " Tbit/s"])
}

/// Formats sessions, one line each.
pub(super) fn sessions(sessions: &[SessionView], page: Page) -> String {
    let columns = vec![
        words("SERVICE", |session: &SessionView| session.service.clone()),
        words("CLIENT", |session| session.client.clone()),
        spare(1, words("ADDRESS", |session| session.address.clone())),
        words("SERVER", |session| session.server.clone()),
        words("STATE", |session| session.state.clone()),
        figures("IDLE", |session| duration(session.idle_seconds)),
        spare(2, figures("EXPIRES", |session| duration(session.expires_seconds))),
    ];
    table(sessions, "There are no sessions.", columns, |_| String::new(), page)
}

/// Formats affinity entries, one line each.
pub(super) fn affinity(entries: &[AffinityView], page: Page) -> String {
    let columns = vec![
        words("SERVICE", |entry: &AffinityView| entry.service.clone()),
        words("CLIENT", |entry| entry.client.clone()),
        words("SERVER", |entry| entry.server.clone()),
        figures("EXPIRES", |entry| duration(entry.expires_seconds)),
    ];
    table(entries, "No client has an affinity entry.", columns, |_| String::new(), page)
}

/// Formats the usage of the session table.
fn session_table(status: &StatusView) -> String {
    let moving = if status.sessions_resizing { "; it is being resized" } else { "" };
    format!("{} places of {}{moving}", count(status.session_slots), count(status.session_slots_max))
}

/// Formats the daemon's status, one fact per line.
pub(super) fn status(status: &StatusView, page: Page) -> String {
    let mut facts = vec![
        ("version", status.version.clone()),
        ("process", format!("{}, running for {}", status.pid, duration(status.uptime_seconds))),
        ("engine", engine(status)),
        ("config", status.config.clone()),
        ("reloads", status.reloads.to_string()),
    ];
    // Without an engine there are never sessions.
    if status.engine != "none" {
        // The table holds somewhat more sessions than its nominal maximum, before new sessions
        // evict others.
        let percent = match status.sessions > status.sessions_max {
            true => "full".to_owned(),
            false => share(status.sessions, status.sessions_max),
        };
        let (assured, embryonic) = (count(status.sessions_assured), count(status.sessions_embryonic));
        facts.extend([
            ("sessions", format!("{} of {} ({percent})", count(status.sessions), count(status.sessions_max))),
            ("assured", format!("{assured}; {embryonic} embryonic")),
            ("session table", session_table(status)),
        ]);
    }
    if status.adopted {
        facts.push(("adopted", "yes: it carries on with what an earlier daemon left running".to_owned()));
    }
    if status.drained {
        facts.push(("drained", "this director: `evener undrain --director` ends that".to_owned()));
    }
    facts.extend(status.directors.iter().map(|trouble| ("director", clean(trouble))));
    if status.reload_pending {
        facts.push(("reload", "on its way: what is shown here is in force until it is".to_owned()));
    }
    if status.generation_wanted > status.generation {
        let (is, wanted) = (status.generation, status.generation_wanted);
        facts.push((
            "not in force",
            format!("generation {wanted}: refused by the engine, so {is} stays in force; retrying"),
        ));
    }
    if let Some(error) = &status.reload_error {
        facts.push(("reload failed", error.clone()));
    }
    if let Some(keys) = &status.restart_needed_for {
        facts.push(("needs restart", keys.clone()));
    }
    if !status.punted.is_empty() {
        facts.push(("punted", counts(&status.punted)));
    }
    if !status.nodes.is_empty() {
        facts.push(("lccp", counts(&status.lccp)));
        let nodes = status.nodes.iter().map(|(node, state)| format!("{node} {}", clean(state)));
        facts.push(("nodes", nodes.collect::<Vec<_>>().join(", ")));
    }
    for (node, refused) in &status.nodes_refused {
        facts.push(("refused nodes", format!("{node}: {}", clean(&refused.text))));
    }
    for (part, error) in status.installed.iter().filter_map(|part| Some((part, part.missing.as_ref()?))) {
        facts.push(("missing", format!("{} {}: {}", part.kind, clean(&part.location), clean(error))));
    }
    if let Some(Dispatcher { address, responding }) = &status.dispatcher {
        let state =
            if *responding { "responding" } else { "doesn't answer: this host decides by its own tables" };
        facts.push(("dispatcher", format!("{} {state}", clean(address))));
    }
    if let Some(path) = &status.access_log.path {
        let (written, lost) = (count(status.access_log.written), count(status.access_log.lost));
        facts.push(("access log", format!("{path}: {written} lines written, {lost} lost")));
    }
    if status.traces > 0 {
        facts.push(("traces", status.traces.to_string()));
    }
    facts.push(("packets", counts(&status.packets)));
    if !status.tunnels.is_empty() {
        facts.push(("tunnels", counts(&status.tunnels)));
    }
    facts.push(("refused ARP", counts(&status.refused)));
    if !status.dns.is_empty() {
        facts.push(("dns", counts(&status.dns)));
    }
    if !status.peers.is_empty() {
        facts.push(("datagrams", counts(&status.peers)));
    }
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let line = |(name, value): &(&str, String)| {
        let text = format!("{:<1$}{GAP}{value}", format!("{name}:"), width + 1, value = message(value));
        // Lines like the file's are shown unchanged. Other values are sentences and lists.
        let page = if value.contains('\n') { usize::MAX } else { page.width };
        let text = terminal::wrap(&text, page, width + 1 + GAP.len());
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>()
    };
    facts.iter().map(line).collect()
}

/// Formats the engine's attachment. Most engines begin with their own name.
fn engine(status: &StatusView) -> String {
    match status.engine_detail.starts_with(&status.engine) {
        true => status.engine_detail.clone(),
        false => format!("{}: {}", status.engine, status.engine_detail),
    }
}

/// Formats counts without zeros.
fn counts(counts: &BTreeMap<String, u64>) -> String {
    let seen = counts.iter().filter(|(_, number)| **number > 0);
    let seen: Vec<_> = seen.map(|(reason, number)| format!("{} {reason}", count(*number))).collect();
    if seen.is_empty() { "none".to_owned() } else { seen.join(", ") }
}

/// Formats an explanation: its sentences, then the result.
pub(super) fn explanation(explanation: &Explanation, page: Page) -> String {
    let because =
        explanation.reasons.iter().map(|why| terminal::wrap(&sentence(why), page.width, GAP.len()) + "\n");
    let mut text: String = because.collect();
    match (&explanation.service, &explanation.server) {
        (Some(service), Some(server)) => text += &format!("=> {}/{}\n", clean(service), clean(server)),
        (Some(_), None) if explanation.pending && explanation.request.is_some() => {
            let servers = explanation.request.iter().flat_map(|request| &request.servers);
            let servers: Vec<String> = servers.map(|server| clean(server)).collect();
            text += &format!("=> one of {}\n", servers.join(", "));
        }
        (Some(service), None) if explanation.pending => {
            text += &format!("=> a server of {}, by what is asked for\n", clean(service));
        }
        (Some(service), None) => text += &format!("=> no server of {}\n", clean(service)),
        (None, _) => text += "=> no service\n",
    }
    text
}

/// Adds a full stop if needed.
fn sentence(text: &str) -> String {
    let text = clean(text);
    if text.ends_with(['.', '!', '?']) { text } else { format!("{text}.") }
}

/// Minimum width of a column of names whose names are broken into lines.
const NARROWEST: usize = 12;

struct FilledColumn {
    heading: &'static str,
    right: bool,
    is_state: bool,
    spare: u8,
    width: usize,
    cells: Vec<Vec<String>>,
}

impl FilledColumn {
    fn new<T>(column: &Column<T>, rows: &[T]) -> FilledColumn {
        let lines = |row| (column.cell)(row).lines().map(clean).collect::<Vec<_>>();
        let cells: Vec<Vec<String>> = rows.iter().map(lines).collect();
        let widths = cells.iter().flatten().map(|line| line.chars().count());
        let width = widths.chain([column.heading.len()]).max().unwrap_or_default();
        let Column { heading, right, spare, is_state, .. } = *column;
        FilledColumn { heading, right, is_state, spare, width, cells }
    }

    /// Breaks the cells into lines of at most `width` characters.
    fn fold(&mut self, width: usize) {
        let broken = |line: String| -> Vec<String> {
            let letters: Vec<char> = line.chars().collect();
            letters.chunks(width).map(String::from_iter).collect()
        };
        for cell in &mut self.cells {
            *cell = std::mem::take(cell).into_iter().flat_map(broken).collect();
        }
        self.width = width;
    }

    /// Pads a cell to the column's width.
    fn pad(&self, text: &str, page: Page) -> String {
        let padding = " ".repeat(self.width.saturating_sub(text.chars().count()));
        match colour(text).filter(|_| self.is_state) {
            Some(colour) => page.paint(colour, text) + &padding,
            None if self.right => padding + text,
            None => text.to_owned() + &padding,
        }
    }
}

/// Formats rows under their headings, and notes under each row. `empty` is the text if there is no
/// row. Columns without any content are omitted, and so are omittable columns that `page` has no
/// room for.
fn table<T>(
    rows: &[T],
    empty: &str,
    columns: Vec<Column<T>>,
    note: impl Fn(&T) -> String,
    page: Page,
) -> String {
    if rows.is_empty() {
        return format!("{empty}\n");
    }
    let mut columns: Vec<FilledColumn> =
        columns.iter().map(|column| FilledColumn::new(column, rows)).collect();
    columns.retain(|column| column.cells.iter().any(|cell| !cell.is_empty()));
    let excess = |columns: &[FilledColumn]| {
        let width = columns.iter().map(|column| column.width + GAP.len()).sum::<usize>();
        width.saturating_sub(page.width.saturating_add(GAP.len()))
    };
    while excess(&columns) > 0 {
        let most = columns.iter().map(|column| column.spare).max().unwrap_or_default();
        if most > 0 {
            columns.retain(|column| column.spare < most);
            continue;
        }
        if !page.breaks_names {
            break;
        }
        let excess = excess(&columns);
        let names = columns.iter_mut().filter(|column| !column.right && !column.is_state);
        let Some(widest) = names.max_by_key(|column| column.width) else { break };
        let width = widest.width.saturating_sub(excess).max(widest.heading.len()).max(NARROWEST);
        if width >= widest.width {
            break;
        }
        widest.fold(width);
    }
    let line = |cell: &dyn Fn(&FilledColumn) -> String| {
        let cells: Vec<String> = columns.iter().map(|column| column.pad(&cell(column), page)).collect();
        format!("{}\n", cells.join(GAP).trim_end())
    };
    let mut text = line(&|column| column.heading.to_owned());
    for (row, of) in rows.iter().enumerate() {
        let cell = |column: &FilledColumn, number: usize| {
            column.cells.get(row).and_then(|cell| cell.get(number).cloned())
        };
        let lines = columns.iter().filter_map(|column| column.cells.get(row)).map(Vec::len).max();
        for number in 0..lines.unwrap_or_default() {
            text += &line(&|column| cell(column, number).unwrap_or_default());
        }
        let note = clean(&note(of));
        if !note.is_empty() {
            text += &format!("{}\n", terminal::wrap(&format!("{NOTE}{note}"), page.width, NOTE.len()));
        }
    }
    text
}

/// Replaces characters that could control a terminal by `?`. Names and reasons may come from other
/// hosts.
pub(super) fn clean(text: &str) -> String {
    text.replace(|c| !is_shown(c), "?")
}

/// Like [`clean`], for a text with several lines.
pub(crate) fn message(text: &str) -> String {
    text.trim_end().replace(|c: char| !is_shown(c) && c != '\n', "?")
}

/// Formats a number of objects.
fn count(number: u64) -> String {
    match number {
        0..1_000_000 => number.to_string(),
        _ => scaled(number, 1e3, &["", "k", "M", "G", "T", "P"]),
    }
}

/// Formats a number of bytes.
fn bytes(number: u64) -> String {
    match number {
        0..1024 => format!("{number} B"),
        _ => scaled(number, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"]),
    }
}

/// Formats with the largest unit in which the value is at least one.
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

/// Formats a number of seconds, in at most two units.
fn duration(seconds: u64) -> String {
    let coarse = match seconds {
        0..3_600 => seconds,
        3_600..86_400 => seconds - seconds % 60,
        _ => seconds - seconds % 3_600,
    };
    humantime::format_duration(Duration::from_secs(coarse)).to_string()
}

/// Formats the time since a moment, in at most two units.
fn since(unix_seconds: Option<f64>) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    unix_seconds.map_or_else(|| "-".to_owned(), |then| duration((now - then).max(0.0) as u64))
}

/// Formats a short duration.
pub(super) fn seconds(value: f64) -> String {
    match value {
        ..0.001 => format!("{:.0} us", value * 1e6),
        0.001..1.0 => format!("{:.1} ms", value * 1e3),
        _ => format!("{value:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_name_is_broken_into_lines_for_people_alone() {
        let name = "a-server-with-a-name-of-38-characters-";
        let rows = [name.to_owned()];
        let shown = |breaks_names| {
            let columns =
                vec![words("SERVER", |name: &String| name.clone()), figures("WEIGHT", |_| "1".into())];
            table(&rows, "", columns, |_| String::new(), Page { width: 30, has_colour: false, breaks_names })
        };
        assert!(shown(false).contains(name));
        let broken = shown(true);
        assert!(broken.lines().all(|line| line.len() <= 30), "{broken}");
        let parts = broken.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        assert_eq!(parts.collect::<String>(), name);
    }

    #[test]
    fn colours_of_states_leave_columns_as_wide_as_without() {
        let rows = ["up", "draining", "alive (this host)", "other"];
        let shown = |has_colour| {
            let columns = vec![states(|state: &&str| (*state).to_owned()), figures("N", |_| "7".to_owned())];
            table(&rows, "", columns, |_| String::new(), Page { width: 40, has_colour, breaks_names: false })
        };
        let coloured = shown(true);
        assert_eq!(coloured.lines().nth(1), Some("\x1b[32mup\x1b[0m                 7"));
        assert_eq!(coloured.matches("\x1b[0m").count(), 3, "neither headings nor unknown states");
        let plain = ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"];
        let plain = plain.iter().fold(coloured, |text, code| text.replace(code, ""));
        assert_eq!(plain, shown(false));
    }
}
