//! nginx.conf: virtual hosts that pass requests on, and servers of `stream`, become services.

mod location;
mod server;
mod upstream;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use super::assemble::{DraftPool, Wording};
use super::draft::{DraftService, Placeholders};
use super::ledger::Ledger;
use super::reasons;
use super::source::{ImportError, Source};
use super::tree::{self, Statement, Syntax};

const WORDING: Wording = Wording {
    nat: "nginx ends connections, so servers see its address: nat with source_nat does the same. \
          With method \"l2\" servers on this link see the client, and answer it directly.",
    handoff: "Routes by content: method \"handoff\" needs `evener agent` on the servers, which answer \
              clients directly. Without routes \"nat\" would do; \"redirect\" sends clients to URLs of servers.",
    unmatched: "Requests that no route takes go to all servers.",
};

/// `http` or `stream`: its statements, and the pools that were read.
struct Context<'t> {
    is_http: bool,
    statements: Vec<&'t Statement>,
    upstreams: BTreeMap<&'t str, &'t Statement>,
    /// By the number that choices have.
    pools: BTreeMap<usize, DraftPool>,
    /// The numbers of pools, by the name of the upstream or the address itself.
    numbers: BTreeMap<String, usize>,
}

struct NginxReader<'s, 'p> {
    ledger: Ledger<'s>,
    places: &'p mut Placeholders,
    services: Vec<DraftService>,
}

/// The services of a file, and the account of its lines.
pub(super) fn read<'s>(
    source: &'s Source,
    places: &mut Placeholders,
) -> Result<(Vec<DraftService>, Ledger<'s>), ImportError> {
    let (statements, significant) = tree::read(source, Syntax::Semicolons)?;
    let mut reader = NginxReader { ledger: Ledger::new(source, significant), places, services: Vec::new() };
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
    // Files of conf.d have what is in `http` elsewhere.
    let (inside, outside): (Vec<&Statement>, Vec<&Statement>) =
        statements.iter().filter(|statement| !is_context(statement)).partition(|statement| {
            matches!(statement.word(0), "server" | "upstream" | "map" | "geo" | "split_clients")
        });
    reader.context(true, inside);
    reader.leave_all(outside);
    Ok((reader.services, reader.ledger))
}

impl NginxReader<'_, '_> {
    fn context(&mut self, is_http: bool, statements: Vec<&Statement>) {
        let upstreams = statements.iter().filter(|statement| statement.word(0) == "upstream");
        let upstreams = upstreams.map(|statement| (statement.word(1), *statement)).collect();
        let (pools, numbers) = (BTreeMap::new(), BTreeMap::new());
        let mut context = Context { is_http, statements, upstreams, pools, numbers };
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

    /// Leaves what is open in these, with the reason of each; whole blocks as one.
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
            match (structural, has_carried) {
                (true, true) => self.ledger.carry_all(statement.lines()),
                (true, false) => self.ledger.leave_open(statement.lines(), &reasons::NO_PROXY),
                (false, _) => self.ledger.leave_open(statement.lines(), words::reason(statement.word(0))),
            }
        }
    }

    /// The number of the pool that a name or address stands for.
    fn pool(&mut self, context: &mut Context<'_>, text: &str, line: usize) -> usize {
        if let Some(number) = context.numbers.get(text) {
            return *number;
        }
        let port = context.is_http.then_some(80);
        let pool = match context.upstreams.get(text) {
            Some(upstream) => upstream::read(upstream, port, &mut self.ledger, self.places),
            None => upstream::direct(text, port, line, &mut self.ledger, self.places),
        };
        let number = context.numbers.len();
        context.numbers.insert(text.to_owned(), number);
        context.pools.insert(number, pool);
        number
    }

    /// Keeps a service that has servers.
    fn keep(&mut self, service: DraftService) {
        if !service.servers.is_empty() {
            let lines: BTreeSet<usize> = service.all_lines();
            self.ledger.carry_all(lines);
            self.services.push(service);
        }
    }
}
