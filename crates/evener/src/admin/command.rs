//! Commands that query a running daemon.

use std::io::{self, IsTerminal};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use super::api::{CommandResult, ErrorBody};
use super::client::{Client, ClientError, escape};
use super::{changes, events, listing, table, trace};
use crate::cli::{AdminArgs, Command, ExplainArgs, ViewArgs};
use crate::runtime::Exit;
use crate::runtime::folders;
use crate::runtime::terminal::{self, Page, print};
use crate::views::{ServerView, ServiceView};

/// Number of sessions or affinity entries shown on a terminal by default.
const SESSIONS_SHOWN: usize = 100;

/// Executes a command with the daemon. Prints an error on standard error, and with `--json` also on
/// standard output, in the API's format.
pub fn run(command: &Command) -> Exit {
    let text = match command {
        Command::Status(view) => request(view, HttpMethod::Get, "/v1/status", table::status),
        Command::Hosts(view) => {
            request(view, HttpMethod::Get, "/v1/hosts", |all: &Vec<_>, page| table::hosts(all, page))
        }
        Command::Directors(view) => request(view, HttpMethod::Get, "/v1/directors", table::directors),
        Command::Names(view) => {
            request(view, HttpMethod::Get, "/v1/names", |all: &Vec<_>, page| table::names(all, page))
        }
        Command::Sessions(args) => {
            let client = args.client.map(|client| client.to_string());
            entries("/v1/sessions", &args.service, client, args.limit, &args.view, table::sessions)
        }
        Command::Affinity(args) => {
            let client = args.client.map(|client| client.to_string());
            entries("/v1/affinity", &args.service, client, args.limit, &args.view, table::affinity)
        }
        Command::Explain(args) => request(&args.view, HttpMethod::Get, &explain(args), table::explanation),
        Command::Drain(_)
        | Command::Undrain(_)
        | Command::Maintenance(_)
        | Command::Weight(_)
        | Command::Add(_)
        | Command::Remove(_)
        | Command::Undo(_)
        | Command::State(_) => changes::run(command),
        Command::Reload(args) => {
            let path = if args.forget { "/v1/reload?forget=true" } else { "/v1/reload" };
            request(&args.view, HttpMethod::Post, path, done)
        }
        Command::Reopen(view) => request(view, HttpMethod::Post, "/v1/reopen", done),
        // Printed while the response arrives.
        Command::Services(args) => {
            listing::run::<ServiceView>(&args.list, args.state.as_deref()).map(|()| String::new())
        }
        Command::Servers(args) => {
            listing::run::<ServerView>(&args.list, args.state.as_deref()).map(|()| String::new())
        }
        Command::Trace(args) => trace::run(args).map(|()| String::new()),
        Command::Events(args) => events::run(args).map(|()| String::new()),
        _ => Err(CommandError::NotForDaemon),
    };
    match text.and_then(|text| print(&text).map_err(CommandError::Output)) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            let exit = match error {
                CommandError::Client(ClientError::NoDaemon { .. }) => Exit::NoDaemon,
                _ => Exit::Failed,
            };
            let error = table::message(&error.to_string());
            eprintln!("evener: {error}");
            if wants_json(command) {
                // A failure to print is already reported on standard error.
                let refusal = serde_json::to_string_pretty(&ErrorBody { error });
                let _ = refusal.map(|text| print(&(text + "\n")));
            }
            exit
        }
    }
}

fn wants_json(command: &Command) -> bool {
    match command {
        Command::Status(view)
        | Command::Hosts(view)
        | Command::Directors(view)
        | Command::Names(view)
        | Command::Reopen(view) => view.json,
        Command::Services(args) => args.list.view.json,
        Command::Servers(args) => args.list.view.json,
        Command::Reload(args) => args.view.json,
        Command::Sessions(args) => args.view.json,
        Command::Affinity(args) => args.view.json,
        Command::Explain(args) => args.view.json,
        Command::Drain(args) => args.change.view.json,
        Command::Undrain(args) => args.change.view.json,
        Command::Maintenance(args) => args.change.view.json,
        Command::Weight(args) => args.change.view.json,
        Command::Add(args) => args.change.view.json,
        Command::Remove(args) => args.change.view.json,
        Command::Undo(args) => args.change.view.json,
        Command::State(args) => args.change.view.json,
        Command::Trace(args) => args.json,
        Command::Events(args) => args.json,
        _ => false,
    }
}

/// Error of a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("failed to read the network namespace: {0}; is /proc mounted?")]
    Namespace(io::Error),
    #[error("failed to query the daemon: {0}")]
    Runtime(io::Error),
    #[error("failed to encode the answer as JSON: {0}")]
    Json(serde_json::Error),
    #[error("failed to write the answer: {0}")]
    Output(io::Error),
    /// A file that the command line names can't be read.
    #[error("failed to read {path}: {why}")]
    File { path: String, why: String },
    /// The service does not exist.
    #[error("{0}")]
    Unknown(String),
    /// The command took too long.
    #[error("{0}")]
    Late(String),
    #[error("this command does not use the daemon")]
    NotForDaemon,
}

#[derive(Clone, Copy)]
enum HttpMethod {
    Get,
    Post,
}

/// Sends a request, and formats the response.
fn request<T: DeserializeOwned + Serialize>(
    view: &ViewArgs,
    order: HttpMethod,
    path: &str,
    show: fn(&T, Page) -> String,
) -> Result<String, CommandError> {
    let answer: T = answer(view, order, path)?;
    match view.json {
        true => json(&answer),
        false => Ok(show(&answer, Page::of_stdout())),
    }
}

fn answer<T: DeserializeOwned>(view: &ViewArgs, order: HttpMethod, path: &str) -> Result<T, CommandError> {
    let client = daemon(&view.admin)?;
    let answer = runtime()?.block_on(async {
        match order {
            HttpMethod::Get => client.get(path).await,
            HttpMethod::Post => client.post(path).await,
        }
    });
    Ok(answer?)
}

pub(super) fn json<T: Serialize>(answer: &T) -> Result<String, CommandError> {
    Ok(serde_json::to_string_pretty(answer).map_err(CommandError::Json)? + "\n")
}

/// Returns a client of the daemon, for other modules' commands.
pub(crate) fn admin_client(admin: &AdminArgs) -> Result<(Client, Runtime), String> {
    let client = daemon(admin).map_err(|error| error.to_string())?;
    Ok((client, runtime().map_err(|error| error.to_string())?))
}

/// Returns a client of the daemon.
pub(super) fn daemon(admin: &AdminArgs) -> Result<Client, CommandError> {
    Ok(match &admin.socket {
        Some(path) => Client::new(path),
        None => Client::new(folders::admin_socket().map_err(CommandError::Namespace)?),
    })
}

/// Returns the runtime of a command.
pub(super) fn runtime() -> Result<Runtime, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(CommandError::Runtime)
}

fn done(done: &CommandResult, page: Page) -> String {
    terminal::wrap(&table::message(&done.message), page.width, 0) + "\n"
}

/// Shows entries of the session table. On a terminal the number is limited by default.
fn entries<T: Serialize + DeserializeOwned>(
    path: &str,
    service: &Option<String>,
    client: Option<String>,
    limit: Option<usize>,
    view: &ViewArgs,
    draw: fn(&[T], Page) -> String,
) -> Result<String, CommandError> {
    let is_cut = io::stdout().is_terminal() && !view.json && limit.is_none();
    let shown = is_cut.then_some(SESSIONS_SHOWN);
    // Requests one entry more than is shown, to detect if there are more.
    let limit = shown.map(|shown| shown + 1).or(limit).map(|limit| limit.to_string());
    let query = [("service", service.clone()), ("client", client), ("limit", limit)];
    let all: Vec<T> = answer(view, HttpMethod::Get, &with_query(path, query))?;
    match view.json {
        true => json(&all),
        false => Ok(first_entries(&all, shown, Page::of_stdout(), draw)),
    }
}

fn first_entries<T>(all: &[T], shown: Option<usize>, page: Page, draw: fn(&[T], Page) -> String) -> String {
    match shown.and_then(|shown| all.get(..shown)).filter(|first| first.len() < all.len()) {
        None => draw(all, page),
        Some(first) => {
            let count = first.len();
            draw(first, page)
                + &format!(
                    "There are more than these {count}: --limit N shows more, --client and --service fewer.\n"
                )
        }
    }
}

fn explain(args: &ExplainArgs) -> String {
    let query = [
        ("client", args.client.map(|client| client.to_string())),
        ("vip", args.vip.map(|vip| vip.to_string())),
        ("protocol", args.vip.map(|_| args.protocol.to_string())),
        ("request", args.request.as_ref().map(ToString::to_string)),
        ("service", args.service.clone()),
    ];
    with_query("/v1/explain", query)
}

/// Returns a path with the query pairs that have a value.
fn with_query<const N: usize>(path: &str, query: [(&str, Option<String>); N]) -> String {
    let query = query.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", escape(&value?))));
    format!("{path}?{}", query.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::SessionView;

    const PAGE: Page = Page { width: 80, has_colour: false, breaks_names: false };

    #[test]
    fn terminal_shows_first_sessions_with_a_note() {
        let session = |number: usize| SessionView {
            service: "web".into(),
            address: "192.0.2.100:80".into(),
            client: format!("198.51.100.7:{}", 40_000 + number),
            server: "web1".into(),
            state: "established".into(),
            idle_seconds: 0,
            expires_seconds: 900,
        };
        let all: Vec<SessionView> = (0..SESSIONS_SHOWN + 1).map(session).collect();
        let lines = |shown| first_entries(&all, shown, PAGE, table::sessions).lines().count();
        assert_eq!(lines(None), 1 + all.len(), "what is no terminal gets all");
        assert_eq!(lines(Some(SESSIONS_SHOWN)), 1 + SESSIONS_SHOWN + 1);
        assert!(
            first_entries(&all, Some(SESSIONS_SHOWN), PAGE, table::sessions)
                .ends_with("--client and --service fewer.\n")
        );
        let few = &all[..SESSIONS_SHOWN];
        assert_eq!(
            first_entries(few, Some(SESSIONS_SHOWN), PAGE, table::sessions).lines().count(),
            1 + SESSIONS_SHOWN
        );
    }
}
