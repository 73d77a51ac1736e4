//! Manual pages: the program's from its command line, the file's from the example file, and the
//! packets' from the counted reasons. So they can't be outdated.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use evener_core::path::decide::Reason;
use roff::{Roff, bold, italic, roman};

use crate::cli::{CONFIG_FILE, Cli};
use crate::runtime::spelling::meant;

/// Example file with all keys. A test compares it with the defaults.
const EXAMPLE: &str = include_str!("../../../evener.example.toml");
/// Pages that don't belong to a command.
const PAGES: [&str; 3] = ["evener", "evener.toml", "evener-packets"];

/// Environment variables of the program.
pub const ENVIRONMENT: [(&str, &str); 6] = [
    (
        "EVENER_LOG",
        "The level of the log of `evener run`, `agent` and `announce`: error, warn, info (the default), debug or trace, or \
         several such as evener=debug,evener_dataplane=trace.",
    ),
    (
        "EVENER_RUN_DIR",
        "The folder to use instead of /run/evener, for the daemon and for its commands. Without it, users other than root \
         who can't write to /run/evener have $XDG_RUNTIME_DIR/evener.",
    ),
    (
        "EVENER_STATE_DIR",
        "The folder to use instead of /var/lib/evener, for changes at run time. Without it they are in the folder state \
         below EVENER_RUN_DIR where that is set, else for users other than root in $XDG_STATE_HOME/evener or \
         ~/.local/state/evener.",
    ),
    (
        "NO_COLOR",
        "Not empty: states and errors in a file are shown without colours, as on a terminal whose TERM is dumb.",
    ),
    (
        "JOURNAL_STREAM",
        "Set by systemd: where standard error goes to the journal, lines begin with their priority (sd-daemon(3)), and \
         have no time.",
    ),
    (
        "NOTIFY_SOCKET",
        "Set by systemd: the daemon reports there when it is ready, reloads and stops (sd_notify(3)).",
    ),
];

/// Files that the program reads and writes.
pub const FILES: [(&str, &str); 13] = [
    (CONFIG_FILE, "The configuration, evener.toml(5)."),
    ("/etc/evener/farm.key", "Usual for the farm's secret, which `evener keygen` writes."),
    ("/etc/evener/admin.token", "Usual for the tokens of the admin address."),
    (
        "/run/evener/net-N/admin.sock",
        "The socket that commands talk to; N is the number of the network namespace (ls -i /proc/self/ns/net).",
    ),
    (
        "/var/lib/evener/host/changes.json",
        "Changes at run time, drains among them. In place of host it is netns-NAME in a network namespace of ip-netns(8), \
         and net-N in another one.",
    ),
    ("/var/lib/evener/host/audit.log", "The authors of these changes, with a line of JSON for each change."),
    (
        "/var/lib/evener/host/events.log",
        "Past events, and events.log.1 with earlier ones, of at most 1 MiB each.",
    ),
    ("/run/evener/net-N/announce.json", "Addresses and routes of `evener announce`."),
    ("/run/evener/net-N/settings", "Settings of the kernel as they were before, to be restored."),
    ("/run/evener/net-N/sessions", "Sessions of the packet engine."),
    ("/run/evener/net-N/verifier.log", "The kernel's words on a BPF program that it refused."),
    (
        "/sys/fs/bpf/evener/net-N, server-N",
        "Programs and maps of the kernel engine, and of the agent: they outlive the daemon.",
    ),
    ("/var/log/evener/access.log", "Usual for the access log."),
];

/// Prints a page, by default the program's.
///
/// # Errors
/// If there is no such page, or it can't be written.
pub fn print(name: Option<&str>, out: &mut impl Write) -> io::Result<()> {
    out.write_all(&page(name.unwrap_or(PAGES[0]))?)
}

/// Writes all pages into a folder, including one per command.
///
/// # Errors
/// If a page can't be written.
pub fn write_all(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command(), dir)?;
    PAGES
        .iter()
        .zip(["evener.1", "evener.toml.5", "evener-packets.7"])
        .try_for_each(|(name, file)| fs::write(dir.join(file), page(name)?))
}

fn page(name: &str) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    match name {
        "evener" => program(&mut page)?,
        "evener.toml" => page = configuration().render().into_bytes(),
        "evener-packets" => page = packets().render().into_bytes(),
        other => {
            let why = format!("there is no page {other}; {}", meant(other, PAGES.into_iter()));
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
    }
    Ok(page)
}

/// Builds the command line's own page, with further sections.
fn program(out: &mut Vec<u8>) -> io::Result<()> {
    clap_mangen::Man::new(Cli::command()).render(out)?;
    let mut more = Roff::new();
    list(&mut more, "ENVIRONMENT", &ENVIRONMENT);
    list(&mut more, "FILES", &FILES);
    more.control("SH", ["SEE ALSO"]);
    more.text([roman("evener.toml(5), evener-packets(7), ip(8), systemd.exec(5)")]);
    more.to_writer(out)
}

fn list(page: &mut Roff, title: &str, entries: &[(&str, &str)]) {
    page.control("SH", [title]);
    for (name, about) in entries {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(*about)]);
    }
}

fn begin(name: &str, section: &str, about: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", [name, section, "", concat!("evener ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - {about}"))]);
    page
}

/// Adjacent keys of the example, with the comment above them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleEntry<'e> {
    /// Table that begins with this entry, such as `[engine]`.
    pub heading: Option<&'e str>,
    /// Lines such as `kind = "auto"`. Empty if the comment describes the table.
    pub keys: Vec<&'e str>,
    /// Lines of the comment.
    pub comment: Vec<&'e str>,
}

/// Returns all entries of [`EXAMPLE`]. Keys without a comment are explained elsewhere, and omitted.
pub fn example_entries() -> Vec<ExampleEntry<'static>> {
    let mut entries = Vec::new();
    let (mut heading, mut keys, mut comment) = (None, Vec::new(), Vec::new());
    let mut end = |heading: &mut Option<&'static str>, keys: &mut Vec<_>, comment: &mut Vec<_>| {
        let (keys, comment) = (std::mem::take(keys), std::mem::take(comment));
        if !comment.is_empty() {
            entries.push(ExampleEntry { heading: heading.take(), keys, comment });
        }
    };
    for line in EXAMPLE.lines().chain([""]) {
        let line = commented_key(line).unwrap_or(line);
        let is_key = !line.starts_with('#') && !line.starts_with('[') && line.contains('=');
        if !is_key && !keys.is_empty() {
            end(&mut heading, &mut keys, &mut comment);
        }
        if let Some(text) = line.strip_prefix('#') {
            comment.push(text.strip_prefix(' ').unwrap_or(text));
        } else if is_key {
            keys.push(line);
        } else {
            if line.starts_with('[') {
                heading = Some(line);
            }
            end(&mut heading, &mut keys, &mut comment);
        }
    }
    entries
}

/// Returns the description of a key, by the path of its table (empty for the file) and its name.
/// Tables that services, names and members share are described with services.
pub fn key_description(table: &str, key: &str) -> Option<String> {
    let shared = ["dns.name.", "agent.member."].iter().find_map(|owner| table.strip_prefix(owner));
    let of_service = || explained(&format!("service.{}", shared?), key);
    explained(table, key).or_else(of_service)
}

fn explained(table: &str, key: &str) -> Option<String> {
    let mut heading = "";
    let found = example_entries().into_iter().find(|entry| {
        heading = entry.heading.map_or(heading, |heading| heading.trim_matches(['[', ']']));
        let has_key = |line: &&str| line.split_once(" = ").is_some_and(|(name, _)| name == key);
        heading == table && entry.keys.iter().any(has_key)
    });
    found.map(|entry| entry.comment.join(" "))
}

/// Returns the key of a line `# KEY = VALUE`. In the example, a key that conflicts with another key
/// is a comment. Code within a comment is indented further.
fn commented_key(line: &str) -> Option<&str> {
    let key = line.strip_prefix("# ")?;
    let (name, _) = key.split_once(" = ")?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (!name.is_empty() && name.bytes().all(is_name)).then_some(key)
}

/// Builds the page of the file from the example's comments and keys.
fn configuration() -> Roff {
    let mut page = begin("evener.toml", "5", "the configuration of evener");
    page.control("SH", ["DESCRIPTION"]);
    example_entries().iter().for_each(|one| entry(&mut page, one));
    page.control("SH", ["FILES"]);
    page.text([italic(CONFIG_FILE)]);
    page.control("SH", ["SEE ALSO"]);
    page.text([roman("evener(1), evener-check(1)")]);
    page
}

fn entry(page: &mut Roff, ExampleEntry { heading, keys, comment }: &ExampleEntry<'_>) {
    if let Some(heading) = heading {
        page.control("SS", [*heading]);
    }
    for (number, key) in keys.iter().enumerate() {
        page.control(if number == 0 { "TP" } else { "TQ" }, []);
        page.text([bold(*key)]);
    }
    for line in comment {
        match line.strip_prefix("    ") {
            Some(code) => {
                page.control("br", []);
                page.text([bold(code)]);
            }
            None if line.is_empty() => drop(page.control("PP", [])),
            None => drop(page.text([roman(*line)])),
        }
    }
    if keys.is_empty() {
        page.control("PP", []);
    }
}

fn packets() -> Roff {
    let mut page =
        begin("evener-packets", "7", "what becomes of packets, by the names that evener counts them by");
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "Each packet that the director sees is counted under one reason; a few are counted beside it. `evener status` shows \
         them, `evener trace` says each packet's, and the metric is evener_packets_total with the label reason.",
    )]);
    for reason in Reason::ALL {
        page.control("TP", []);
        page.text([bold(reason.name())]);
        page.text([roman(reason.about())]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([roman("evener(1), evener-trace(1)")]);
    page
}
