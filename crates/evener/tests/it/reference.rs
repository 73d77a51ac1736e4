//! The reference manual: pages generated from the program's tables.
//! `EVENER_BLESS=1 cargo test -p evener --test it reference` rewrites the pages.

pub mod alerts;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::{Arg, CommandFactory};
use evener::admin::API_PATHS;
use evener::admin::metrics::{self, Format};
use evener::cli::Cli;
use evener::manual::{ENVIRONMENT, FILES, example_entries};
use evener_core::director;
use evener_core::path::decide::Reason;
use evener_core::server;

use super::admin::scraped;
use super::tree::root;
use alerts::ALERTS;

const LINE: usize = 100;

/// Returns the generated pages by file name.
fn pages() -> [(&'static str, String); 6] {
    [
        ("keys.md", keys()),
        ("commands.md", commands()),
        ("metrics.md", metrics_page()),
        ("events.md", events()),
        ("api.md", api()),
        ("packets.md", packets()),
    ]
}

#[test]
fn reference_pages_are_those_of_the_code() {
    let folder = root().join("docs/reference");
    for (file, text) in pages() {
        bless(&folder.join(file), &text);
    }
    let there: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        there
            .iter()
            .map(String::as_str)
            .eq(pages().map(|(file, _)| file).into_iter().collect::<BTreeSet<_>>())
    );
}

#[test]
fn figures_of_papers_are_those_of_measured_points() {
    let folder = root().join("docs/points");
    let report = evener_lab::papers::report::Report::of(&folder).unwrap();
    // the page that contains all others isn't kept
    for (file, text) in report.files.iter().filter(|(file, _)| *file != "index.html") {
        bless(&folder.join(file), text);
    }
}

/// Compares a file with its expected text. With EVENER_BLESS, writes the file first.
pub fn bless(path: &Path, text: &str) {
    if std::env::var_os("EVENER_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let written = fs::read_to_string(path).unwrap_or_default();
    let first = text.lines().zip(written.lines()).find(|(wanted, written)| wanted != written);
    assert!(
        text == written,
        "{} isn't what the tables have ({first:?}): EVENER_BLESS=1 cargo test -p evener --test it",
        path.display()
    );
}

pub fn metric_names() -> BTreeSet<String> {
    families().into_keys().collect()
}

/// Appends a paragraph in lines of at most 100 columns. Code spans are not broken.
pub fn paragraph(page: &mut String, text: &str) {
    let mut words: Vec<String> = Vec::new();
    let mut is_code = false;
    for word in text.split_whitespace() {
        match words.last_mut().filter(|_| is_code) {
            Some(last) => *last += &format!(" {word}"),
            None => words.push(word.to_owned()),
        }
        is_code ^= word.matches('`').count() % 2 == 1;
    }
    let mut column = 0;
    for word in words {
        let wide = word.chars().count();
        if column > 0 && column + 1 + wide > LINE {
            page.push('\n');
            column = 0;
        } else if column > 0 {
            page.push(' ');
            column += 1;
        }
        *page += &word;
        column += wide;
    }
    *page += "\n\n";
}

fn begin(title: &str, about: &str) -> String {
    let mut page = format!("# {title}\n\n");
    paragraph(&mut page, about);
    page
}

/// Returns the page with exactly one line break at the end.
fn finish(mut page: String) -> String {
    page.truncate(page.trim_end().len());
    page + "\n"
}

/// Returns a text as a table cell.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Returns a line whose references to pages of the book are links.
fn linked(line: &str) -> String {
    let link = |word: &str| {
        let bare = word.trim_end_matches(['.', ',']);
        let page = bare.strip_prefix("docs/").filter(|page| page.ends_with(".md"))?;
        let name = page.split('/').next_back()?.trim_end_matches(".md");
        Some(format!("[{name}](../{page}){}", &word[bare.len()..]))
    };
    let words: Vec<String> =
        line.split(' ').map(|word| link(word).unwrap_or_else(|| word.to_owned())).collect();
    words.join(" ")
}

fn keys() -> String {
    let mut page = begin(
        "Keys of evener.toml",
        "Every key, as evener.example.toml explains it and evener.toml(5) shows it. The value beside a key is its default, \
         unless the text says otherwise. Times have a unit: `500ms`, `2s`, `5m`, `1h`.",
    );
    let mut headings: Vec<String> = Vec::new();
    for entry in example_entries() {
        if let Some(heading) = entry.heading {
            let title = heading.trim_matches(['[', ']']);
            let before = headings.iter().filter(|known| *known == title).count();
            headings.push(title.to_owned());
            let more = if before == 0 { String::new() } else { format!(", example {}", before + 1) };
            let _ = writeln!(page, "## `{heading}`{more}\n");
        } else if headings.is_empty() && entry.keys.is_empty() {
            continue;
        }
        if !entry.keys.is_empty() {
            let _ = writeln!(page, "```text\n{}\n```\n", entry.keys.join("\n"));
        }
        let comment: Vec<String> = entry.comment.iter().map(|line| linked(line)).collect();
        paragraph(&mut page, &comment.join(" "));
    }
    finish(page)
}

fn commands() -> String {
    let mut page = begin(
        "Commands",
        "Every command with its arguments, as its own `--help` has them. Views and orders reach the daemon over its admin \
         socket, so they take root, or the user that runs the daemon. Off a terminal, views keep to 80 columns and leave \
         columns out; scripts use `--json`.",
    );
    let mut cli = Cli::command();
    cli.build();
    for command in cli.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let name = command.get_name().to_owned();
        let _ = writeln!(page, "## `evener {name}`\n");
        paragraph(&mut page, &format!("{}.", command.get_about().unwrap()));
        let usage = command.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        let usage: Vec<&str> = usage.lines().map(str::trim).collect();
        let _ = writeln!(page, "```text\n{}\n```\n", usage.join("\n"));
        let arguments: Vec<&Arg> =
            command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help").collect();
        if arguments.is_empty() {
            continue;
        }
        page += "| argument | meaning | default |\n|---|---|---|\n";
        for argument in arguments {
            let values: Vec<String> = argument
                .get_value_names()
                .unwrap_or_default()
                .iter()
                .map(|name| format!("<{name}>"))
                .collect();
            let takes = argument.get_action().takes_values();
            let written = match (argument.get_long(), takes) {
                (Some(long), true) => format!("--{long} {}", values.join(" ")),
                (Some(long), false) => format!("--{long}"),
                (None, _) => values.join(" "),
            };
            let default = argument.get_default_values().first().filter(|_| takes);
            let default = default.map(|value| format!("`{}`", value.to_string_lossy())).unwrap_or_default();
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(page, "| `{}` | {} | {default} |", cell(&written), cell(&help));
        }
        page.push('\n');
    }
    let exit = cli.get_after_help().unwrap().to_string();
    let _ = writeln!(page, "## Exit status\n\n```text\n{}\n```\n", exit.trim_start_matches("Exit status:\n"));
    for (title, list) in [("Environment", &ENVIRONMENT[..]), ("Files", &FILES[..])] {
        let _ = writeln!(page, "## {title}\n\n| | |\n|---|---|");
        for (name, about) in list {
            let _ = writeln!(page, "| `{name}` | {} |", cell(about));
        }
        page.push('\n');
    }
    finish(page)
}

/// Returns the type, description and labels of each metric family.
fn families() -> BTreeMap<String, (String, String, BTreeSet<String>)> {
    let text = metrics::text(scraped(), Format::Text);
    let mut families: BTreeMap<String, (String, String, BTreeSet<String>)> = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(about)) => {
                last = name.to_owned();
                families.entry(last.clone()).or_default().1 = about.to_owned();
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                last = name.to_owned();
                families.entry(last.clone()).or_default().0 = kind.to_owned();
            }
            _ => {
                let labels = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
                for label in labels.iter().flat_map(|(labels, _)| labels.split("\",")) {
                    let label = label.split('=').next().unwrap();
                    if label != "le" {
                        families.get_mut(&last).unwrap().2.insert(label.to_owned());
                    }
                }
            }
        }
    }
    families
}

fn metrics_page() -> String {
    let mut page = begin(
        "Metrics",
        "Every metric of `/metrics`, from the program's own registry. *Alert* is a rule for Prometheus where one is useful; \
         [Metrics and alerts](../operating/metrics.md) shows how to scrape them and which to begin with. Metrics of hosts are \
         there with `placement = \"every-host\"`, metrics of names with `[dns]`.",
    );
    let families = families();
    assert!(families.len() > 50, "{families:?}");
    let chapters = [
        ("The daemon", ""),
        ("Services", "evener_service_"),
        ("Servers", "evener_server_"),
        ("Names", "evener_name_"),
        ("Hosts", "evener_host_"),
        ("The process", "process_"),
    ];
    let chapter =
        |name: &str| chapters.iter().rposition(|(_, prefix)| name.starts_with(prefix)).unwrap_or_default();
    for (number, (title, _)) in chapters.iter().enumerate() {
        let _ = writeln!(
            page,
            "## {title}\n\n| metric | type | labels | meaning | alert |\n|---|---|---|---|---|"
        );
        for (name, (kind, about, labels)) in families.iter().filter(|(name, _)| chapter(name) == number) {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let alert = ALERTS.iter().find(|alert| alert.metric == name);
            let alert = alert.map(|alert| format!("`{}`", alert.expr));
            let _ = writeln!(
                page,
                "| `{name}` | {kind} | {} | {} | {} |",
                labels.join(", "),
                cell(about),
                cell(&alert.unwrap_or_default())
            );
        }
        page.push('\n');
    }
    finish(page)
}

fn events() -> String {
    let mut page = begin(
        "Events",
        "Every event, by the name that `evener events`, `/v1/events` and `evener_events_total` have. \
         [Logs, events and traces](../operating/logs.md) shows what an event looks like and how to follow them.",
    );
    for (title, table) in [("The daemon", evener::events::EVENTS), ("The farm", director::EVENTS)] {
        let _ = writeln!(page, "## {title}\n\n| event | what happened |\n|---|---|");
        for (name, about) in table {
            let _ = writeln!(page, "| `{name}` | {} |", cell(about));
        }
        page.push('\n');
    }
    finish(page)
}

/// Event names are written in match arms. Each is in the table of its file, and the table has no
/// others.
#[test]
fn every_event_is_in_the_table_of_its_names() {
    let sources = [
        (include_str!("../../../core/src/director/name.rs"), director::EVENTS),
        (include_str!("../../src/events/mod.rs"), evener::events::EVENTS),
    ];
    for (source, table) in sources {
        let written: BTreeSet<&str> = source
            .lines()
            .filter_map(|line| line.split_once("=> \"").and_then(|(_, rest)| rest.strip_suffix("\",")))
            .collect();
        let listed: BTreeSet<&str> = table.iter().map(|(name, _)| *name).collect();
        assert_eq!(written, listed);
        assert_eq!(listed.len(), table.len(), "a name is listed twice");
    }
}

fn api() -> String {
    let mut page = begin(
        "API",
        "Every call, as the router has it; `/v1/openapi.json` describes it for programs, as OpenAPI 3.1. The admin socket \
         answers all calls. At the admin address (`[admin] listen`) a call takes a token with the role, and those of server \
         groups a member's credential; without `token_file` whoever reaches a loopback address has role `read`. Answers are JSON \
         with the names that the commands' `--json` have; refusals are `{\"error\": \"...\"}`. \
         [Changes at run time](../operating/run-time.md) explains the calls that change the farm, \
         [Metrics and alerts](../operating/metrics.md#access) which requests are answered, and \
         [the group protocol](../how-it-works/server-groups.md#as-json) the bodies of group calls.",
    );
    page += "| call | query parameters | role | meaning |\n|---|---|---|---|\n";
    for path in API_PATHS {
        for method in path.methods {
            let query = method.query.split(", ").filter(|name| !name.is_empty());
            let query: Vec<String> = query.map(|name| format!("`{name}`")).collect();
            let _ = writeln!(
                page,
                "| `{} {}` | {} | {} | {} |",
                method.method,
                path.path,
                query.join(", "),
                method.role.name(),
                cell(method.about)
            );
        }
    }
    page
}

/// Treatment of segments without a session, by method.
const SEGMENTS_WITHOUT_SESSION: &str = "\
| method | such a segment |
|---|---|
| `l2`, `tunnel` | goes to the server that the hash names (`no_session`), whose stack answers it, by a reset as a rule |
| `nat` | is dropped (`no_session`), since its server's answer would find no way back; where the same comes again after 3 s, it is reset (`reset`) |
| `handoff` | is dropped (`cookie_bad`); where the same comes again after 3 s, it is reset (`reset`). A keep-alive probe whose cookie holds is acknowledged (`keepalive_acked`) |
| `redirect` | is the host's own stack's |
";

fn packets() -> String {
    let mut page = begin(
        "Packet reasons",
        "Each packet that the director sees is counted under one reason; those *beside the verdict* are counted besides. \
         `evener status` and `evener trace` show them, `evener_packets_total` has them as `reason`, and so has \
         evener-packets(7).",
    );
    page += "| reason | meaning |\n|---|---|\n";
    for reason in Reason::ALL {
        let _ = writeln!(page, "| `{}` | {} |", reason.name(), cell(reason.about()));
    }
    page += "\n## Segments without a session\n\n";
    paragraph(
        &mut page,
        "A TCP segment that begins no connection, and belongs to none that is known, is of a connection that was idle \
         for longer than `timeouts`, or whose server was removed; or it has overtaken the first one of its connection. \
         A UDP datagram always begins a session.",
    );
    page += SEGMENTS_WITHOUT_SESSION;
    page += "\n";
    paragraph(
        &mut page,
        "Resets go back where the segment came from, have the number that it acknowledges, and answer no reset. Of 1,024 \
         flows at a time it is remembered that they were met, so there are at most 341 in a second.",
    );
    page += "\n## On servers\n\n";
    paragraph(
        &mut page,
        "Tunnel packets and handed-over segments that reach a server, by `evener agent --status`; with \
         `placement = \"every-host\"` by `tunnels` of `evener status` and `evener_tunnel_packets_total`.",
    );
    page += "| reason | dropped | meaning |\n|---|---|---|\n";
    for reason in server::Reason::ALL {
        let drops = if reason.is_refusal() { "yes" } else { "" };
        let _ = writeln!(page, "| `{}` | {drops} | {} |", reason.name(), cell(reason.about()));
    }
    page
}
