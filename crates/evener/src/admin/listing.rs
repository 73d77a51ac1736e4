//! `evener services` and `evener servers`: table rows, filtered by service and state, once or
//! repeatedly.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::command::{CommandError, daemon, json, runtime};
use super::table;
use crate::cli::ListArgs;
use crate::record;
use crate::runtime::terminal::{self, Page};
use crate::views::{ServerView, ServiceView, is_service};

const INTERVAL: Duration = Duration::from_secs(2);

/// A row of a list.
pub(super) trait ListRow: DeserializeOwned + Serialize {
    /// Path of the list.
    const PATH: &str;
    /// Text printed if no row matches.
    const NO_MATCH: &str;

    fn service(&self) -> &str;

    fn state(&self) -> &str;

    /// Formats the rows that `is_shown` selects.
    fn table(all: &[Self], is_shown: &dyn Fn(&Self) -> bool, page: Page) -> String;
}

impl ListRow for ServiceView {
    const PATH: &str = "/v1/services";
    const NO_MATCH: &str = "No service matches.\n";

    fn service(&self) -> &str {
        &self.name
    }

    fn state(&self) -> &str {
        &self.state
    }

    fn table(all: &[Self], is_shown: &dyn Fn(&Self) -> bool, page: Page) -> String {
        table::services(all, is_shown, page)
    }
}

impl ListRow for ServerView {
    const PATH: &str = "/v1/servers";
    const NO_MATCH: &str = "No server matches.\n";

    fn service(&self) -> &str {
        &self.service
    }

    fn state(&self) -> &str {
        &self.state
    }

    fn table(all: &[Self], is_shown: &dyn Fn(&Self) -> bool, page: Page) -> String {
        table::servers(all, is_shown, page)
    }
}

/// Prints the rows, optionally only of one service and in one state.
pub(super) fn run<T: ListRow>(args: &ListArgs, state: Option<&str>) -> Result<(), CommandError> {
    let (client, runtime) = (daemon(&args.view.admin)?, runtime()?);
    let service = args.service.as_deref();
    let is_shown = |row: &T| {
        service.is_none_or(|name| row.service() == name) && state.is_none_or(|state| row.state() == state)
    };
    let look = || {
        let all: Vec<T> = runtime.block_on(client.get(T::PATH))?;
        if let Some(name) = service.filter(|name| !all.iter().any(|row| row.service() == *name)) {
            // A service without servers is a valid name, too.
            let services: Vec<ServiceView> = runtime.block_on(client.get(ServiceView::PATH))?;
            let names = services.iter().map(|service| service.name.as_str());
            is_service(name, names).map_err(CommandError::Unknown)?;
        }
        if !args.view.json {
            let has_match = all.is_empty() || all.iter().any(is_shown);
            return Ok(match has_match {
                true => T::table(&all, &is_shown, Page::of_stdout()),
                false => T::NO_MATCH.to_owned(),
            });
        }
        let shown: Vec<&T> = all.iter().filter(|row| is_shown(row)).collect();
        if args.watch { Ok(record::json(&shown)) } else { json(&shown) }
    };
    let interval = args.watch.then_some(INTERVAL);
    terminal::show(interval, args.view.json, look, CommandError::Output)
}
