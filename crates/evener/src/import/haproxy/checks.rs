//! Checks of the servers of a backend.

use std::collections::BTreeSet;

use super::server::ServerOptions;
use super::words::{self, HaproxyLine};
use crate::import::assemble::DraftPool;
use crate::import::draft::DraftHealth;
use crate::import::features;
use crate::import::ledger::Ledger;
use crate::import::reasons;
use crate::import::values;

/// Checks as the lines of a backend describe them.
#[derive(Default)]
struct BackendChecks {
    /// True if the last kind of check in the backend is HTTP.
    has_http: bool,
    health: DraftHealth,
    /// Lines of rules for HTTP checks. `httpchk` is the last line that turns on such checks.
    lines: BTreeSet<usize>,
    httpchk: Option<usize>,
    has_sent: bool,
    /// Value and line of `timeout check`.
    timeout: Option<(u64, usize)>,
}

/// Sets the probes. The backend sets their kind, and the first checked server their times.
pub(super) fn read(
    lines: &[&HaproxyLine],
    options: &[ServerOptions],
    pool: &mut DraftPool,
    ledger: &mut Ledger<'_>,
) {
    let Some(first) = options.iter().find(|of| of.is_checked) else {
        // HAProxy regards servers without checks as up.
        pool.health.kind = (!options.is_empty()).then_some("none");
        return;
    };
    pool.health = first.health.clone();
    for other in options.iter().filter(|of| of.is_checked && of.check_settings() != first.check_settings()) {
        ledger.leave_part(other.server.address.line, "its own settings of checks", &reasons::ONE_CHECK);
    }
    for other in options.iter().filter(|of| !of.is_checked && of.server.weight > 0) {
        ledger.leave_part(other.server.address.line, "that it is not checked", &reasons::UNCHECKED);
    }
    // The rules of a section replace all rules of its defaults.
    let is_rule = |line: &&&HaproxyLine| line.word(0) == "http-check";
    let rules_of = lines.iter().rfind(is_rule).map(|line| line.section);
    let mut checks = BackendChecks::default();
    for line in lines.iter().filter(|line| line.word(0) != "http-check" || Some(line.section) == rules_of) {
        checks.take(line, pool, ledger);
    }
    if checks.has_http {
        // With a rule for the text, HAProxy accepts every status.
        if checks.health.body.is_some() && checks.health.status.is_empty() {
            checks.health.status.push("100-599".to_owned());
        }
        pool.lines.extend(checks.lines.into_iter().chain(checks.httpchk));
        let (own, health) = (checks.health, &mut pool.health);
        (health.kind, health.path, health.host) = (Some("http"), own.path, own.host);
        (health.status, health.body) = (own.status, own.body);
    }
    let tls = first.tls().map(|mut tls| {
        tls.name = tls.name.or(pool.health.host.clone());
        tls
    });
    if first.checks_by_tls()
        && let Err(reason) = features::https_check(&mut pool.health, tls, checks.has_http)
    {
        ledger.leave_part(first.server.address.line, "its checks by TLS", reason);
    }
    // With no server up, HAProxy answers 503.
    pool.keys.push("keep_last = false".to_owned());
    pool.health.kind = pool.health.kind.or(Some("tcp"));
    // HAProxy waits for a response until the next check, or for `timeout check`.
    let interval = *pool.health.interval_ms.get_or_insert(2_000);
    let timeout = checks.timeout.map_or(interval, |(ms, _)| ms.max(1));
    pool.health.timeout_ms = Some(values::fitting_timeout_ms(timeout, interval));
    pool.lines.extend(checks.timeout.map(|(_, line)| line));
}

impl BackendChecks {
    fn take(&mut self, line: &HaproxyLine, pool: &mut DraftPool, ledger: &mut Ledger<'_>) {
        match (line.word(0), line.word(1)) {
            ("option", "httpchk") => {
                self.has_http = true;
                self.httpchk = Some(line.line);
                self.httpchk(line, ledger);
            }
            // Checks without a kind only connect.
            ("option", "tcp-check") => {
                self.has_http = false;
                pool.lines.insert(line.line);
            }
            ("option", kind) if words::CHECKS.contains(&kind) || kind == "external-check" => {
                self.has_http = false;
            }
            ("no", "option") if line.word(2) == "httpchk" => {
                self.has_http = false;
                pool.lines.insert(line.line);
            }
            ("http-check", "send") if self.has_sent => ledger.leave(line.line, &reasons::CHECK_DETAIL),
            ("http-check", "send") => {
                self.has_sent = true;
                self.lines.insert(line.line);
                self.send(line, ledger);
            }
            ("http-check", "expect") => self.expect(line, ledger),
            ("timeout", "check") => match values::time_ms(line.word(2), 1) {
                Some(ms) => self.timeout = Some((ms, line.line)),
                None => ledger.leave(line.line, &reasons::CHECK_TIME),
            },
            _ => {}
        }
    }

    /// Parses `option httpchk [METHOD] URI [VERSION]`. Headers may follow the version.
    fn httpchk(&mut self, line: &HaproxyLine, ledger: &mut Ledger<'_>) {
        (self.health.path, self.health.host) = (None, None);
        let (method, uri, version) = match (line.word(2), line.word(3), line.word(4)) {
            (uri, "", _) => ("", uri, ""),
            (method, uri, version) => (method, uri, version),
        };
        match method {
            "GET" => {}
            "" => ledger.leave_part(line.line, "OPTIONS, its default", &reasons::CHECK_METHOD),
            method => ledger.leave_part(line.line, method, &reasons::CHECK_METHOD),
        }
        match uri {
            "" => {}
            path if path.starts_with('/') => self.health.path = Some(path.to_owned()),
            other => ledger.leave_part(line.line, other, &reasons::CHECK_DETAIL),
        }
        let whole = line.words.get(4..).map(|words| words.join(" ")).unwrap_or_default();
        let mut parts = whole.split(['\r', '\n']).map(str::trim).filter(|part| !part.is_empty());
        if let Some(other) = parts.next().filter(|_| !version.is_empty())
            && !other.starts_with("HTTP/")
        {
            ledger.leave_part(line.line, other, &reasons::CHECK_DETAIL);
        }
        for header in parts {
            let (name, value) = header.split_once(':').unwrap_or((header, ""));
            self.header(line.line, name.trim(), value.trim(), ledger);
        }
    }

    /// Reads a header of the request. Probes have only a setting for the host.
    fn header(&mut self, line: usize, name: &str, value: &str, ledger: &mut Ledger<'_>) {
        match name.eq_ignore_ascii_case("host") && !value.is_empty() && !value.contains('%') {
            true => self.health.host = Some(value.to_owned()),
            false => {
                let part = format!("the header {name}: {value}");
                ledger.leave_part(line, &part, &reasons::CHECK_DETAIL);
            }
        }
    }

    /// Parses `http-check send meth GET uri / ver HTTP/1.1 hdr host NAME`.
    fn send(&mut self, line: &HaproxyLine, ledger: &mut Ledger<'_>) {
        let mut words = line.words.iter().skip(2).map(String::as_str);
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_default();
            match (word, value) {
                ("meth", "GET") | ("ver", _) => {}
                ("meth", _) => {
                    ledger.leave_part(line.line, &format!("meth {value}"), &reasons::CHECK_METHOD);
                }
                ("uri", path) if path.starts_with('/') => self.health.path = Some(path.to_owned()),
                ("hdr", name) => self.header(line.line, name, words.next().unwrap_or_default(), ledger),
                _ => ledger.leave_part(line.line, &format!("{word} {value}"), &reasons::CHECK_DETAIL),
            }
        }
    }

    /// Parses `http-check expect status CODES` or `http-check expect string TEXT`.
    fn expect(&mut self, line: &HaproxyLine, ledger: &mut Ledger<'_>) {
        let is_code = |text: &str| {
            let (low, high) = text.split_once('-').unwrap_or((text, text));
            let range = low.parse::<u16>().ok().zip(high.parse::<u16>().ok());
            range.is_some_and(|(low, high)| {
                low <= high && (100..=599).contains(&low) && (100..=599).contains(&high)
            })
        };
        match (line.word(2), line.word(3)) {
            ("status", _) if !self.health.status.is_empty() => {
                ledger.leave(line.line, &reasons::CHECK_DETAIL)
            }
            ("string", _) if self.health.body.is_some() => ledger.leave(line.line, &reasons::CHECK_DETAIL),
            ("status", codes) if !codes.is_empty() && codes.split(',').all(is_code) => {
                self.health.status = codes.split(',').map(str::to_owned).collect();
                self.lines.insert(line.line);
            }
            ("string", text) if !text.is_empty() => {
                self.health.body = Some(text.to_owned());
                self.lines.insert(line.line);
            }
            _ => ledger.leave(line.line, &reasons::CHECK_DETAIL),
        }
    }
}
