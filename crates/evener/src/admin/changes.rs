//! Commands that change the farm at run time: `drain`, `undrain`, `maintenance`, `weight`, `add`,
//! `remove`, `undo` and `state`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use axum::http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::{Client, escape};
use super::command::{CommandError, admin_client, daemon, json as as_json, runtime};
use super::state::{ChangeResult, ChangeView, DifferenceView, StateView};
use super::table;
use crate::cli::{AddArgs, AdminArgs, ChangeArgs, Command, DrainArgs, DrainedArgs, ServerArg, StateArgs};
use crate::runtime::terminal;
use crate::views::{ServerView, StatusView};

/// Interval at which the sessions of a draining server are counted.
const LOOK: Duration = Duration::from_millis(500);

/// Executes a command, and returns the text to print.
pub(super) fn run(command: &Command) -> Result<String, CommandError> {
    match command {
        Command::Drain(args) => drain(args),
        Command::Undrain(args) => {
            let path = drained_path(&args.drained);
            change(&args.change, Method::PATCH, &path, Some(&json!({"drain": false})))
        }
        Command::Maintenance(args) => {
            let body = json!({"maintenance": true});
            change(&args.change, Method::PATCH, &server_path(&args.server), Some(&body))
        }
        Command::Weight(args) => {
            let body = json!({"weight": args.weight});
            change(&args.change, Method::PATCH, &server_path(&args.server), Some(&body))
        }
        Command::Add(args) => add(args),
        Command::Remove(args) => change(&args.change, Method::DELETE, &server_path(&args.server), None),
        Command::Undo(args) => match args.number {
            None => change(&args.change, Method::POST, "/v1/undo", None),
            Some(number) => change(&args.change, Method::DELETE, &format!("/v1/changes/{number}"), None),
        },
        Command::State(args) => state(args),
        _ => Err(CommandError::NotForDaemon),
    }
}

fn server_path(ServerArg { service, server }: &ServerArg) -> String {
    path_of(service, server)
}

fn path_of(service: &str, server: &str) -> String {
    format!("/v1/services/{}/servers/{}", escape(service), escape(server))
}

fn request<T: DeserializeOwned>(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<T, CommandError> {
    Ok(runtime()?.block_on(client.send(method, path, body))?)
}

fn change(
    args: &ChangeArgs,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<String, CommandError> {
    let client = daemon(&args.view.admin)?;
    let query = if args.dry_run { "?dry_run=true" } else { "" };
    let result: ChangeResult = request(&client, method, &format!("{path}{query}"), body)?;
    show(args, &result)
}

/// Changes a server, for other modules' commands. Returns a sentence.
pub(crate) fn send_change(
    admin: &AdminArgs,
    service: &str,
    server: &str,
    body: &Value,
) -> Result<String, String> {
    let (client, runtime) = admin_client(admin)?;
    let path = path_of(service, server);
    let result: ChangeResult =
        runtime.block_on(client.send(Method::PATCH, &path, Some(body))).map_err(|error| error.to_string())?;
    Ok(result.message)
}

fn show(args: &ChangeArgs, result: &ChangeResult) -> Result<String, CommandError> {
    if args.view.json {
        return as_json(result);
    }
    let width = terminal::width();
    let text = |text: &str| terminal::wrap(&table::message(text), width, 0) + "\n";
    match result.dry_run {
        false => Ok(text(&result.message)),
        true if result.differences.is_empty() => Ok("nothing would differ\n".to_owned()),
        true => Ok(result.differences.iter().map(|one| text(&difference(one))).collect()),
    }
}

fn difference(one: &DifferenceView) -> String {
    let place = match &one.server {
        Some(server) => format!("{}/{server}", one.service),
        None => one.service.clone(),
    };
    let value = |value: &Value| if value.is_null() { "unset".to_owned() } else { value.to_string() };
    match (&one.key, one.from.is_null(), one.to.is_null()) {
        (Some(key), ..) => format!("{place}: {key}: {} -> {}", value(&one.from), value(&one.to)),
        (None, true, _) => format!("+ {place}: {}", value(&one.to)),
        (None, _, true) => format!("- {place}: {}", value(&one.from)),
        (None, false, false) => format!("{place}: {} -> {}", value(&one.from), value(&one.to)),
    }
}

fn add(args: &AddArgs) -> Result<String, CommandError> {
    let AddArgs { server, address, weight, .. } = args;
    let key = if address.contains("://") { "url" } else { "address" };
    let mut body = json!({"name": server.server, key: address});
    if let (Some(weight), Some(object)) = (weight, body.as_object_mut()) {
        object.insert("weight".to_owned(), json!(weight));
    }
    let path = format!("/v1/services/{}/servers", escape(&server.service));
    change(&args.change, Method::POST, &path, Some(&body))
}

fn drained_path(drained: &DrainedArgs) -> String {
    drained.server.as_ref().map_or_else(|| "/v1/director".to_owned(), server_path)
}

fn drain(args: &DrainArgs) -> Result<String, CommandError> {
    let text =
        change(&args.change, Method::PATCH, &drained_path(&args.drained), Some(&json!({"drain": true})))?;
    let Some(time) = args.wait else { return Ok(text) };
    let until = time.or(args.timeout).and_then(|time| Instant::now().checked_add(time));
    let client = daemon(&args.change.view.admin)?;
    let left = match &args.drained.server {
        Some(server) => {
            let full = format!("{}/{}", server.service, server.server);
            wait_for_sessions(&full, until, || sessions_of(&client, server))?
        }
        None => wait_for_sessions("this director", until, || {
            let status: StatusView = request(&client, Method::GET, "/v1/status", None)?;
            Ok(Some(status.sessions))
        })?,
    };
    Ok(if args.change.view.json { text } else { format!("{text}{left}\n") })
}

/// Returns the number of a server's sessions. `None` if the server is unknown.
fn sessions_of(client: &Client, server: &ServerArg) -> Result<Option<u64>, CommandError> {
    let servers: Vec<ServerView> = request(client, Method::GET, "/v1/servers", None)?;
    let mut known = servers.into_iter();
    let known = known.find(|known| known.service == server.service && known.name == server.server);
    Ok(known.map(|known| known.sessions))
}

/// Waits until there are no sessions, or until the deadline. Returns a sentence.
fn wait_for_sessions(
    full: &str,
    until: Option<Instant>,
    look: impl Fn() -> Result<Option<u64>, CommandError>,
) -> Result<String, CommandError> {
    loop {
        let left = match look()? {
            None => return Ok(format!("{full} has no sessions of which anybody knows")),
            Some(0) => return Ok(format!("{full} has no sessions")),
            Some(left) => left,
        };
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(CommandError::Late(format!("{full} still has {left} sessions; the drain continues")));
        }
        std::thread::sleep(LOOK);
    }
}

fn state(args: &StateArgs) -> Result<String, CommandError> {
    let client = daemon(&args.change.view.admin)?;
    if args.changes {
        let changes: Vec<ChangeView> = request(&client, Method::GET, "/v1/changes", None)?;
        return if args.change.view.json { as_json(&changes) } else { Ok(list(&changes)) };
    }
    match &args.file {
        None => as_json(&request::<StateView>(&client, Method::GET, "/v1/state", None)?),
        Some(path) => change(&args.change, Method::PUT, "/v1/state", Some(&read(path)?)),
    }
}

fn list(changes: &[ChangeView]) -> String {
    if changes.is_empty() {
        return "nothing was changed: the farm is the file's\n".to_owned();
    }
    let line = |change: &ChangeView| {
        let ChangeView { generation, time, by, from, message } = change;
        let line = table::message(&format!("{generation} {time} {by} from {from}: {message}"));
        terminal::wrap(&line, terminal::width(), 2) + "\n"
    };
    changes.iter().map(line).collect()
}

fn read(path: &Path) -> Result<Value, CommandError> {
    let bad = |why: String| CommandError::File { path: path.display().to_string(), why };
    let text = fs::read(path).map_err(|error| bad(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| bad(format!("it is no JSON: {error}")))
}
