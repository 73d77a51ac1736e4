//! Small inputs for each importer, with their results: in `kinds/*.txt`, a line `== TITLE` precedes
//! each input and a line `--` its result. `EVENER_BLESS=1` rewrites the results for review.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use evener::config::{self, Config};
use evener::import::{ImportReport, import};
use evener_core::farm::{Announce, Method, Service};
use evener_core::net::Protocol;
use evener_core::pool::HealthKind;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/import/kinds");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn health(service: &Service) -> String {
    let health = &service.health;
    let mut out = match &health.kind {
        HealthKind::Http { path, host, tls, status, body, .. } => {
            let mut out = format!("{} {path}", if tls.is_some() { "https" } else { "http" });
            if let Some(host) = host {
                let _ = write!(out, " host {host}");
            }
            if let Some(tls) = tls {
                let name = tls.name.as_ref().map(ToString::to_string).unwrap_or_default();
                let _ = write!(out, " name {name:?} ca {:?} verify {}", tls.ca, tls.verify);
            }
            if let Some(body) = body {
                let _ = write!(out, " body {body:?}");
            }
            format!("{out} status {status:?}")
        }
        other => format!("{other:?}").to_lowercase(),
    };
    if let Some(port) = health.port {
        let _ = write!(out, " port {port}");
    }
    format!("{out} {}/{} ms {}/{}", health.interval_ms, health.timeout_ms, health.rise, health.fall)
}

fn described(config: &Config) -> String {
    let mut out = String::new();
    for service in &config.services {
        let addresses: Vec<String> = service.addresses.iter().map(ToString::to_string).collect();
        let protocol = if service.protocol == Protocol::Udp { " udp" } else { "" };
        let method = format!("{:?}", service.method).to_lowercase();
        let source = if service.method == Method::Nat && service.source_nat { "+source" } else { "" };
        let announce = match service.announce {
            Announce::Director => "",
            Announce::Host => " of-host",
            Announce::Route => " by-route",
            Announce::Never => " unannounced",
        };
        let name = &service.name;
        let _ = writeln!(
            out,
            "service {name} {}{protocol} {method}{source} {}{announce}",
            addresses.join(","),
            service.policy
        );
        for server in &service.servers {
            let port = server.port.map(|port| format!(":{port}")).unwrap_or_default();
            let backup = if server.backup { " backup" } else { "" };
            let weight = server.weight;
            let _ = writeln!(out, "  server {} {}{port} *{weight}{backup}", server.name, server.address);
        }
        for (host, path, servers) in super::choices::routes(service) {
            let _ = writeln!(out, "  route {host:?} {path:?} to {}", servers.join(","));
        }
        if let Some(affinity) = service.affinity {
            let _ = writeln!(out, "  affinity {} s {:?}", affinity.time_ms / 1_000, affinity.prefix_lens);
        }
        let _ = writeln!(out, "  health {}", health(service));
    }
    out
}

fn result(report: &ImportReport) -> String {
    let mut out = match report.services {
        0 => String::new(),
        _ => described(&config::parse(&report.toml, "evener.toml").unwrap()),
    };
    for blank in &report.blanks {
        let _ = writeln!(out, "fill in {}: {}", blank.placeholder, blank.todo);
    }
    for left in &report.left {
        let weight = format!("{:?}", left.weight).to_lowercase();
        let _ = writeln!(out, "{weight} {}: {} | {}", left.line, left.text, left.why);
    }
    out
}

/// Returns the cases of a file: title, input and result.
fn cases(text: &str) -> Vec<(String, String, String)> {
    let cases = text.split("== ").skip(1).map(|case| {
        let (title, rest) = case.split_once('\n').unwrap();
        let (input, result) = rest.split_once("\n--\n").unwrap_or((rest.trim_end(), ""));
        (title.to_owned(), input.to_owned(), result.to_owned())
    });
    cases.collect()
}

#[test]
fn small_inputs_become_what_the_other_program_did() {
    let mut wrong = String::new();
    for path in files() {
        let text = fs::read_to_string(&path).unwrap();
        let mut written = String::new();
        let found = cases(&text);
        assert!(found.len() >= 3, "{}: fewer than three inputs", path.display());
        for (title, input, expected) in found {
            let report =
                import(input.as_bytes(), "f", None, None).unwrap_or_else(|why| panic!("{title}: {why}"));
            super::check_account(&report);
            let result = result(&report);
            let _ = write!(written, "== {title}\n{input}\n--\n{result}\n");
            if result.trim() != expected.trim() {
                let _ = writeln!(wrong, "{}: {title}\n{result}\nnot\n{expected}", path.display());
            }
        }
        if std::env::var_os("EVENER_BLESS").is_some() {
            fs::write(&path, format!("{}\n", written.trim_end())).unwrap();
            wrong.clear();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
