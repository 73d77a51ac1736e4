//! `server` blocks of `stream`, by address.

use super::listen::Listen;
use super::{Context, NginxReader, WORDING, location};
use crate::import::assemble::{self, DraftPattern, PoolChoice};
use crate::import::draft::{DraftMethod, DraftService};
use crate::import::reasons;
use crate::import::settle::ADDRESSES;
use crate::import::tree::Statement;
use crate::import::values;

impl NginxReader<'_, '_> {
    pub(super) fn stream_servers(&mut self, context: &mut Context<'_>) {
        let servers: Vec<&Statement> =
            context.statements.iter().copied().filter(|one| one.word(0) == "server").collect();
        for statement in servers {
            let passed = statement.inner().iter().find(|one| one.word(0) == "proxy_pass");
            let Some(passed) = passed else { continue };
            if self.services.len() >= ADDRESSES {
                self.ledger.leave_statement(statement, &reasons::TOO_MANY);
                continue;
            }
            let listens = self.listens(statement);
            self.stream_server(context, statement, passed, &listens);
        }
    }

    fn stream_server(
        &mut self,
        context: &mut Context<'_>,
        statement: &Statement,
        passed: &Statement,
        listens: &[Listen<'_>],
    ) {
        let (choices, default) = match passed.word(1) {
            name if name.starts_with('$') => self.by_server_name(context, statement, passed),
            target => match self.pool(context, target, None, passed.first) {
                Some(pool) => (Vec::new(), Some(pool)),
                None => return self.ledger.leave_statement(passed, &reasons::CONTENT),
            },
        };
        let port = listens.first().map_or(0, |listen| listen.port);
        let mut service = DraftService::new(&format!("stream-{port}"), DraftMethod::Nat { source_nat: true });
        service.lines.extend(statement.lines().chain(passed.lines()));
        self.addresses(&mut service, listens);
        self.stream_timeout(&mut service, statement);
        if service.has_address() && (default.is_some() || !choices.is_empty()) {
            let pools = &context.pools;
            assemble::fill(&mut self.ledger, &mut service, &choices, default, pools, &WORDING);
            self.keep(service);
        }
    }

    /// Sets the idle timeout of sessions to `proxy_timeout`.
    fn stream_timeout(&mut self, service: &mut DraftService, statement: &Statement) {
        for one in statement.inner().iter().filter(|one| one.word(0) == "proxy_timeout") {
            let ms = values::time_ms(one.word(1), 1_000).filter(|ms| values::idle_limits_ms().contains(ms));
            if ms.is_some() {
                service.idle_ms = ms;
                service.lines.extend(one.lines());
            }
        }
    }

    /// Converts `map $ssl_preread_server_name $variable` to routes by host.
    fn by_server_name(
        &mut self,
        context: &mut Context<'_>,
        server: &Statement,
        passed: &Statement,
    ) -> (Vec<PoolChoice>, Option<usize>) {
        let is_map = |one: &&&Statement| {
            one.word(0) == "map" && one.word(1) == "$ssl_preread_server_name" && one.word(2) == passed.word(1)
        };
        let Some(map) = context.statements.iter().find(is_map).copied() else {
            self.ledger.leave_statement(passed, &reasons::CONTENT);
            return (Vec::new(), None);
        };
        let (mut choices, mut default) = (Vec::new(), None);
        self.ledger.carry_all(map.lines());
        let around = server.inner().iter().chain(context.statements.iter().copied());
        let preread: Vec<&Statement> =
            around.filter(|one| one.word(0) == "ssl_preread" && one.word(1) == "on").collect();
        preread.iter().for_each(|one| self.ledger.carry_all(one.lines()));
        let has_hostnames = map.inner().iter().any(|entry| entry.word(0) == "hostnames");
        for entry in map.inner() {
            if matches!(entry.word(0), "hostnames" | "volatile") {
                self.ledger.carry_all(entry.lines());
                continue;
            }
            if entry.word(0) == "include" {
                self.ledger.leave_statement(entry, &reasons::NOT_FOLLOWED);
                continue;
            }
            // Without `hostnames`, such a key is compared literally and never matches a name.
            let name = Some(entry.word(0)).filter(|name| has_hostnames || !name.contains('*'));
            let name = name.filter(|name| has_hostnames || !name.starts_with('.'));
            let hosts = name.map(|name| location::hosts(&[name.to_owned()]).0);
            let pool = self.pool(context, entry.word(1), None, entry.first);
            match (entry.word(0), hosts.filter(|hosts| !hosts.is_empty()), pool) {
                // Without `ssl_preread`, the name is always empty in nginx.
                (name, ..) if name != "default" && preread.is_empty() => {
                    self.ledger.leave_statement(entry, &reasons::UNREACHED);
                }
                (_, _, None) => self.ledger.leave_statement(entry, &reasons::CONTENT),
                ("default", _, pool) => {
                    default = pool;
                    self.ledger.carry_all(entry.lines());
                }
                (_, Some(hosts), Some(pool)) => choices.extend(hosts.into_iter().map(|host| {
                    let pattern = DraftPattern { host: Some(host), ..DraftPattern::default() };
                    PoolChoice { pool, patterns: vec![pattern], lines: entry.lines().collect() }
                })),
                (_, None, Some(_)) => self.ledger.leave_statement(entry, &reasons::REGEX),
            }
        }
        location::sort_by_host(&mut choices);
        (choices, default)
    }
}
