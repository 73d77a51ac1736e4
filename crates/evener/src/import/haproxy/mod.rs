//! Imports haproxy.cfg: frontends with their backends become services.

mod bind;
mod checks;
mod conditions;
mod pool;
mod server;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use conditions::{Acls, ConditionPatterns};
use words::{HaproxyLine, HaproxySection};

use super::assemble::{self, DraftPool, PoolChoice, Wording};
use super::draft::{DraftMethod, DraftService, Placeholders, usable_name};
use super::ledger::Ledger;
use super::reasons;
use super::settle::{ADDRESSES, ROUTES};
use super::source::Source;
use super::values;

const WORDING: Wording = Wording {
    nat: "HAProxy ends connections, so servers see its address: nat with source_nat does the same. \
          With method \"l2\" servers on this link see the client, and answer it directly.",
    handoff: "Routes by content: method \"handoff\" needs `evener agent` on the servers, which answer \
              clients directly. Without routes \"nat\" would do; \"redirect\" sends clients to URLs of servers.",
};

struct HaproxyReader<'s, 'p> {
    ledger: Ledger<'s>,
    places: &'p mut Placeholders,
    sections: Vec<HaproxySection>,
    /// Backends read so far, by the number of their section.
    pools: BTreeMap<usize, DraftPool>,
    services: Vec<DraftService>,
}

/// Returns the services of a file, and the ledger of its lines.
pub(super) fn read<'s>(source: &'s Source, places: &mut Placeholders) -> (Vec<DraftService>, Ledger<'s>) {
    let (lines, conditional) = words::lines(source);
    let significant = lines.iter().chain(&conditional).map(|line| line.line).collect();
    let (sections, before) = words::sections(lines);
    let ledger = Ledger::new(source, significant);
    let mut reader = HaproxyReader { ledger, places, sections, pools: BTreeMap::new(), services: Vec::new() };
    before.iter().for_each(|line| reader.ledger.leave(line.line, words::reason(line)));
    for line in &conditional {
        let is_variable = words::has_variable(source.line(line.line).map_or("", |line| &line.text));
        let why = if is_variable { &reasons::VARIABLE } else { &reasons::CONDITION };
        reader.ledger.leave(line.line, why);
    }
    for at in 0..reader.sections.len() {
        let Some(section) = reader.sections.get(at).cloned() else { continue };
        if matches!(section.kind.as_str(), "frontend" | "listen") {
            reader.frontend(at, &section);
        }
    }
    reader.leave_rest();
    (reader.services, reader.ledger)
}

impl HaproxyReader<'_, '_> {
    /// Returns the lines of the section's `defaults`, followed by the lines of the section.
    /// A section `defaults` may itself have `defaults`.
    fn lines(&self, section: &HaproxySection) -> Vec<HaproxyLine> {
        let of = |section: &HaproxySection| section.defaults.and_then(|at| self.sections.get(at));
        // A section's defaults always precede it, so the chain ends.
        let chain = std::iter::successors(Some(section), |section| of(section));
        let mut sections: Vec<&HaproxySection> = chain.collect();
        sections.reverse();
        sections.into_iter().flat_map(|section| &section.lines).cloned().collect()
    }

    /// True if a section is disabled by its own lines or by its defaults.
    fn is_disabled(&self, section: &HaproxySection) -> bool {
        let lines = self.lines(section);
        let last = lines.iter().rev().find(|line| matches!(line.word(0), "disabled" | "enabled"));
        last.is_some_and(|line| line.word(0) == "disabled")
    }

    /// True if a backend is disabled or has no servers.
    fn is_off(&mut self, at: usize) -> bool {
        let is_disabled = self.sections.get(at).is_some_and(|section| self.is_disabled(section));
        is_disabled || self.pool(at).servers.is_empty()
    }

    fn frontend(&mut self, at: usize, section: &HaproxySection) {
        let whole = section.head.line..=section.last;
        if self.is_disabled(section) {
            return self.ledger.leave_open(whole, &reasons::DISABLED);
        }
        let has_address =
            section.head.word(2).contains(':') || section.lines.iter().any(|line| line.word(0) == "bind");
        if !has_address || self.services.len() >= ADDRESSES {
            let why = if has_address { &reasons::TOO_MANY } else { &reasons::NO_ADDRESS };
            return self.ledger.leave_open(section.head.line..=section.head.line, why);
        }
        let lines = self.lines(section);
        let mode = lines.iter().rev().find(|line| line.word(0) == "mode");
        if !matches!(mode.map_or("tcp", |line| line.word(1)), "http" | "tcp") {
            return self.ledger.leave_open(whole, &reasons::UPSTREAM_PROTOCOL);
        }
        let mut service =
            DraftService::new(&usable_name(&section.name), DraftMethod::Nat { source_nat: true });
        service.chooses_each_request = mode.is_some_and(|line| line.word(1) == "http");
        service.lines = BTreeSet::from([section.head.line]);
        service.lines.extend(mode.map(|line| line.line));
        service.lines.extend(lines.iter().filter(|line| line.word(0) == "enabled").map(|line| line.line));
        self.addresses(&mut service, section);
        if !service.has_address() {
            return;
        }
        let is_http = service.chooses_each_request;
        let (choices, default) = self.choices(at, section, &lines, is_http, &mut service.lines);
        let used: BTreeSet<usize> = choices.iter().map(|choice| choice.pool).chain(default).collect();
        let servers: usize = used.iter().map(|at| self.pool(*at).servers.len()).sum();
        if servers == 0 {
            return;
        }
        assemble::fill(&mut self.ledger, &mut service, &choices, default, &self.pools, &WORDING);
        if service.servers.is_empty() {
            return;
        }
        let backends = used.iter().filter_map(|at| self.sections.get(*at)).map(|of| self.lines(of));
        let all: Vec<HaproxyLine> = backends.flatten().chain(lines).collect();
        Self::timeouts(&mut service, &all);
        self.ledger.carry_all(service.all_lines());
        self.services.push(service);
    }

    /// Returns the backends with their conditions, and the default backend.
    fn choices(
        &mut self,
        at: usize,
        section: &HaproxySection,
        lines: &[HaproxyLine],
        is_http: bool,
        used: &mut BTreeSet<usize>,
    ) -> (Vec<PoolChoice>, Option<usize>) {
        let mut acls = Acls::default();
        section.lines.iter().filter(|line| line.word(0) == "acl").for_each(|line| acls.add(line));
        let mut choices = Vec::new();
        let mut routes = 0;
        // A rule without a condition makes later rules unreachable: `is_decided` is true after such
        // a rule. `default_line` is the line of the default backend.
        let (mut is_decided, mut default_line) = (false, None);
        let mut default =
            (section.kind == "listen" && section.lines.iter().any(|l| l.word(0) == "server")).then_some(at);
        for line in lines {
            let named = |reader: &Self| {
                let fits = |of: &HaproxySection| {
                    of.name == line.word(1) && matches!(of.kind.as_str(), "backend" | "listen")
                };
                reader.sections.iter().position(fits)
            };
            let named = named(self);
            let is_rule = matches!(line.word(0), "use_backend" | "default_backend");
            let is_off = named.filter(|_| is_rule).is_some_and(|at| self.is_off(at));
            match (line.word(0), named) {
                ("use_backend" | "default_backend", _) if is_decided => {
                    self.ledger.leave(line.line, &reasons::UNREACHED);
                }
                ("default_backend", _) if is_off => {
                    default = None;
                    self.ledger.leave(line.line, &reasons::BACKEND_OFF);
                }
                ("use_backend", _) if is_off => self.ledger.leave(line.line, &reasons::BACKEND_OFF),
                ("default_backend", Some(backend)) => {
                    default = Some(backend);
                    default_line = Some(line.line);
                    used.insert(line.line);
                }
                ("use_backend", Some(backend)) if line.word(2).is_empty() => {
                    // The default applies only if no rule does, wherever its line is.
                    if let Some(line) = default_line.filter(|line| used.remove(line)) {
                        self.ledger.leave(line, &reasons::UNREACHED);
                    }
                    is_decided = true;
                    default = Some(backend);
                    used.insert(line.line);
                }
                // Without `mode http`, there is no request to examine.
                ("use_backend", Some(_))
                    if !is_http && acls.needs_request(line.words.get(3..).unwrap_or_default()) =>
                {
                    self.ledger.leave(line.line, &reasons::CONTENT);
                }
                ("use_backend", Some(backend)) if line.word(2) == "if" => {
                    let routes_left = ROUTES.saturating_sub(routes);
                    if let Some(choice) = self.choice(backend, line, lines, &acls, routes_left) {
                        routes += choice.patterns.len();
                        choices.push(choice);
                    }
                }
                ("default_backend", None) => self.ledger.leave(line.line, &reasons::NO_SECTION),
                ("use_backend", None) if !line.word(1).contains('%') => {
                    self.ledger.leave(line.line, &reasons::NO_SECTION);
                }
                ("use_backend", _) => self.ledger.leave(line.line, &reasons::CONTENT),
                _ => {}
            }
        }
        (choices, default)
    }

    /// Returns the choice of a backend by a condition.
    /// Returns `None`, and leaves the line, if routes can't express the condition or exceed
    /// `routes_left`.
    fn choice(
        &mut self,
        pool: usize,
        line: &HaproxyLine,
        lines: &[HaproxyLine],
        acls: &Acls,
        routes_left: usize,
    ) -> Option<PoolChoice> {
        let Some((alternatives, of_acls)) = acls.condition(line.words.get(3..).unwrap_or_default()) else {
            self.ledger.leave(line.line, &reasons::CONTENT);
            return None;
        };
        if alternatives.iter().map(ConditionPatterns::count).fold(0, usize::saturating_add) > routes_left {
            self.ledger.leave(line.line, &reasons::TOO_MANY_ROUTES);
            return None;
        }
        let of_choice: BTreeSet<usize> = of_acls.into_iter().chain([line.line]).collect();
        for line in lines.iter().filter(|line| of_choice.contains(&line.line)) {
            if line.words.iter().any(|word| word.starts_with("hdr_dom(")) {
                self.ledger.leave_part(line.line, "hdr_dom", &reasons::DOMAIN);
            }
            if conditions::ignores_case(&line.words) {
                self.ledger.leave_part(line.line, "-i", &reasons::CASE);
            }
        }
        let patterns = alternatives.iter().flat_map(ConditionPatterns::routes).collect();
        Some(PoolChoice { pool, patterns, lines: of_choice })
    }

    fn pool(&mut self, at: usize) -> &DraftPool {
        if !self.pools.contains_key(&at) {
            let section = self.sections.get(at).cloned();
            let lines = section.as_ref().map(|section| self.lines(section)).unwrap_or_default();
            let lines: Vec<&HaproxyLine> = lines.iter().collect();
            let mut pool = pool::read(&lines, &mut self.ledger, self.places);
            let head = section.map(|section| section.head.line).filter(|_| !pool.servers.is_empty());
            let mode = lines.iter().rev().find(|line| line.word(0) == "mode");
            pool.lines.extend(head.into_iter().chain(mode.map(|line| line.line)));
            self.pools.insert(at, pool);
        }
        self.pools.entry(at).or_default()
    }

    /// Sets the idle timeout of the sessions to the longest timeout of HAProxy for idle
    /// connections.
    fn timeouts(service: &mut DraftService, lines: &[HaproxyLine]) {
        let mut longest = None;
        for line in lines.iter().filter(|line| line.word(0) == "timeout") {
            if matches!(line.word(1), "client" | "server" | "tunnel") {
                let ms = values::time_ms(line.word(2), 1).filter(|ms| values::idle_limits_ms().contains(ms));
                longest = longest.max(ms);
                service.lines.extend(ms.map(|_| line.line));
            }
        }
        service.idle_ms = longest;
    }

    /// Leaves every remaining line with its reason.
    fn leave_rest(&mut self) {
        for (at, section) in self.sections.clone().into_iter().enumerate() {
            let all = section.lines.iter().chain([&section.head]);
            if let Some(name) = section.head.after("from").filter(|_| section.defaults.is_none()) {
                self.ledger.leave_part(section.head.line, &format!("from {name}"), &reasons::NO_SECTION);
            }
            match section.kind.as_str() {
                "defaults" => {
                    let is_used = all.clone().any(|line| self.ledger.carried.contains(&line.line));
                    self.leave_lines(&section.lines, true);
                    let head = section.head.line;
                    match is_used {
                        true => self.ledger.carry(head),
                        false => self.ledger.leave_open(head..=head, &reasons::UNUSED),
                    }
                }
                "frontend" | "listen" | "backend" => {
                    let is_used = self.ledger.carried.contains(&section.head.line);
                    if self.is_disabled(&section) {
                        self.ledger.leave_open(section.head.line..=section.last, &reasons::DISABLED);
                    }
                    self.leave_lines(&section.lines, is_used || self.pools.contains_key(&at));
                    let why = match section.kind.as_str() {
                        "backend" => &reasons::UNREFERENCED,
                        _ => &reasons::UNUSED,
                    };
                    self.ledger.leave_open(section.head.line..=section.last, why);
                }
                kind => {
                    let why = words::section_reason(kind);
                    self.ledger.leave_open(section.head.line..=section.last, why);
                }
            }
        }
    }

    /// Leaves those of the lines that are neither carried over nor left yet. If the section isn't
    /// used, lines that Evener could import are left as unused.
    fn leave_lines(&mut self, lines: &[HaproxyLine], is_used: bool) {
        const HANDLED: [&str; 11] = [
            "acl",
            "bind",
            "balance",
            "default_backend",
            "default-server",
            "mode",
            "server",
            "use_backend",
            "timeout",
            "option",
            "http-check",
        ];
        for line in lines {
            let why = words::reason(line);
            let why = match HANDLED.contains(&line.word(0)) {
                true if !is_used || *why == reasons::UNKNOWN => &reasons::UNUSED,
                _ => why,
            };
            self.ledger.leave_open(line.line..=line.line, why);
        }
    }
}
