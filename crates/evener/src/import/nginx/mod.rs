//! Imports nginx.conf: virtual hosts with `proxy_pass`, and servers of `stream`, become services.

mod listen;
mod location;
mod server;
mod stream;
mod upstream;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use super::assemble::{DraftPool, Wording};
use super::draft::{DraftService, Placeholders};
use super::ledger::Ledger;
use super::reasons;
use super::tree::{Statement, Tree};

const WORDING: Wording = Wording {
    nat: "nginx ends connections, so servers see its address: nat with source_nat does the same. \
          With method \"l2\" servers on this link see the client, and answer it directly.",
    handoff: "Routes by content: method \"handoff\" needs `evener agent` on the servers, which answer \
              clients directly. Without routes \"nat\" would do; \"redirect\" sends clients to URLs of servers.",
};

/// A context `http` or `stream`: its statements, and the pools read so far.
struct Context<'t> {
    statements: Vec<&'t Statement>,
    upstreams: BTreeMap<String, &'t Statement>,
    pools: BTreeMap<usize, DraftPool>,
    /// Numbers of pools, by upstream name or address, and port.
    numbers: BTreeMap<String, usize>,
}

struct NginxReader<'s, 'p> {
    ledger: Ledger<'s>,
    places: &'p mut Placeholders,
    services: Vec<DraftService>,
}

/// Returns the services of a file, and the ledger of its places.
pub(super) fn read<'s>(tree: &'s Tree, places: &mut Placeholders) -> (Vec<DraftService>, Ledger<'s>) {
    let statements = &tree.statements;
    let mut reader = NginxReader {
        ledger: Ledger::new(&tree.source, tree.significant.clone()),
        places,
        services: Vec::new(),
    };
    let is_context = |statement: &&Statement| matches!(statement.word(0), "http" | "stream");
    for statement in statements.iter().filter(is_context) {
        let inner = statement.inner().iter().collect();
        let before = reader.services.len();
        reader.context(statement.word(0) == "http", inner);
        match reader.services.len() > before {
            true => reader.ledger.carry_all(statement.lines()),
            false => reader.ledger.leave_open(statement.lines(), &reasons::UNUSED),
        }
    }
    // Files of conf.d contain the statements of `http` or `stream` without that block.
    let (inside, outside): (Vec<&Statement>, Vec<&Statement>) =
        statements.iter().filter(|statement| !is_context(statement)).partition(|statement| {
            matches!(statement.word(0), "server" | "upstream" | "map" | "geo" | "split_clients")
        });
    let is_stream_server = |one: &&Statement| one.word(0) == "server" && server::passes_directly(one);
    let (of_stream, of_http): (Vec<&Statement>, Vec<&Statement>) = match inside.iter().any(is_stream_server) {
        true => inside.iter().partition(|one| one.word(0) != "server" || is_stream_server(one)),
        false => (Vec::new(), inside.clone()),
    };
    if !of_stream.is_empty() {
        // Upstreams may be used by `http` and by `stream`.
        let shared = inside.iter().copied().filter(|one| one.word(0) != "server");
        reader.context(false, of_stream);
        reader.context(true, of_http.into_iter().chain(shared).collect());
    } else {
        reader.context(true, of_http);
    }
    reader.leave_all(outside);
    (reader.services, reader.ledger)
}

impl NginxReader<'_, '_> {
    fn context(&mut self, is_http: bool, statements: Vec<&Statement>) {
        let upstreams = statements.iter().filter(|statement| statement.word(0) == "upstream");
        // nginx compares names of upstreams without case.
        let upstreams =
            upstreams.map(|statement| (statement.word(1).to_ascii_lowercase(), *statement)).collect();
        let (pools, numbers) = (BTreeMap::new(), BTreeMap::new());
        let mut context = Context { statements, upstreams, pools, numbers };
        match is_http {
            true => self.virtual_hosts(&mut context),
            false => self.stream_servers(&mut context),
        }
        let (upstreams, others): (Vec<&Statement>, Vec<&Statement>) =
            context.statements.iter().partition(|statement| statement.word(0) == "upstream");
        for upstream in upstreams {
            self.ledger.leave_open(upstream.whole(), &reasons::UNREFERENCED);
        }
        self.leave_all(others);
    }

    /// Leaves the remaining places of these statements with their reasons. A whole block becomes
    /// one entry.
    fn leave_all<'t>(&mut self, statements: impl IntoIterator<Item = &'t Statement>) {
        for statement in statements {
            let inside = statement.inner();
            let is_open = self.ledger.is_open(statement.whole());
            let has_reason = *words::reason(statement.word(0)) != reasons::UNKNOWN;
            let is_one = inside.is_empty() || has_reason && !matches!(statement.word(0), "events");
            if is_open && (is_one || statement.word(0) == "events") {
                self.ledger.leave_statement(statement, words::reason(statement.word(0)));
                continue;
            }
            self.leave_all(inside);
            let structural = matches!(statement.word(0), "server" | "location");
            let has_carried = inside.iter().any(|inner| self.ledger.has_carried(inner.whole()));
            // nginx answers requests itself that none of the inner locations matches.
            let is_whole = statement.word(0) == "server" || server::passes_directly(statement);
            match (structural, has_carried && is_whole) {
                (true, true) => self.ledger.carry_all(statement.lines()),
                (true, false) => {
                    let is_server = statement.word(0) == "server";
                    let passes =
                        server::passes_directly(statement) || is_server && server::passes_on(statement);
                    let why = if passes { &reasons::NOT_MADE } else { &reasons::NO_PROXY };
                    self.ledger.leave_open(statement.lines(), why);
                }
                (false, _) => self.ledger.leave_open(statement.lines(), words::reason(statement.word(0))),
            }
        }
    }

    /// Returns the number of the pool for an upstream name or address.
    /// Returns `None` if the target has a variable. `port` is the default port of its servers.
    fn pool(
        &mut self,
        context: &mut Context<'_>,
        text: &str,
        port: Option<u16>,
        line: usize,
    ) -> Option<usize> {
        // Servers without a port use the port that the client connects to.
        let (target, port) = match text.strip_suffix(":$server_port") {
            Some(host) => (host, None),
            None => (text, port),
        };
        if target.is_empty() || target.contains('$') {
            return None;
        }
        let key = format!("{} {port:?}", target.to_ascii_lowercase());
        if let Some(number) = context.numbers.get(&key) {
            return Some(*number);
        }
        let pool = match context.upstreams.get(&target.to_ascii_lowercase()) {
            // For servers of an upstream, the default port doesn't depend on the scheme.
            Some(upstream) => upstream::read(upstream, port.and(Some(80)), &mut self.ledger, self.places),
            None => upstream::direct(target, port, line, &mut self.ledger, self.places),
        };
        let number = context.numbers.len();
        context.numbers.insert(key, number);
        context.pools.insert(number, pool);
        Some(number)
    }

    /// Adds the service if it has servers.
    fn keep(&mut self, service: DraftService) {
        if !service.servers.is_empty() {
            let lines: BTreeSet<usize> = service.all_lines();
            self.ledger.carry_all(lines);
            self.services.push(service);
        }
    }
}
