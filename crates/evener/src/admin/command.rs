//! The commands that ask a running daemon.

use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use super::client::{Client, ClientError, escape};
use super::{api::Done, table, trace};
use crate::cli::{Admin, Command, Drain, Exit, Explain, Protocol, Sessions, View};
use crate::control::paths;

/// Carries out `status`, `services`, `servers`, `hosts`, `sessions`, `explain`, `trace`, `drain`, `undrain` or `reload`,
/// and says on stderr what went wrong if something did.
pub fn run(command: &Command) -> Exit {
    let text = match command {
        Command::Status(view) => ask(view, Order::Get, "/v1/status", table::status),
        Command::Services(view) => ask(view, Order::Get, "/v1/services", |all: &Vec<_>| table::services(all)),
        Command::Servers(view) => ask(view, Order::Get, "/v1/servers", |all: &Vec<_>| table::servers(all)),
        Command::Hosts(view) => ask(view, Order::Get, "/v1/hosts", |all: &Vec<_>| table::hosts(all)),
        Command::Sessions(args) => {
            ask(&args.view, Order::Get, &sessions(args), |all: &Vec<_>| table::sessions(all))
        }
        Command::Explain(args) => ask(&args.view, Order::Get, &explain(args), table::explanation),
        Command::Drain(args) => ask(&args.view, Order::Post, &drain("drain", args), done),
        Command::Undrain(args) => ask(&args.view, Order::Post, &drain("undrain", args), done),
        Command::Reload(view) => ask(view, Order::Post, "/v1/reload", done),
        // Printed while it comes.
        Command::Trace(args) => trace::run(args).map(|()| String::new()),
        _ => Err(CommandError::NotForDaemon),
    };
    match text.and_then(|text| print(&text).map_err(CommandError::Output)) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            eprintln!("evener: {}", table::message(&error.to_string()));
            Exit::Failed
        }
    }
}

/// Why a command has nothing to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the network namespace can't be told: {0}; is /proc mounted?")]
    Namespace(io::Error),
    #[error("the daemon can't be asked: {0}")]
    Runtime(io::Error),
    #[error("the answer can't be written as JSON: {0}")]
    Json(serde_json::Error),
    #[error("the answer can't be written: {0}")]
    Output(io::Error),
    #[error("this command is not one for the daemon")]
    NotForDaemon,
}

#[derive(Clone, Copy)]
enum Order {
    Get,
    Post,
}

/// Asks, and makes of the answer what is to be printed.
fn ask<T: DeserializeOwned + Serialize>(
    view: &View,
    order: Order,
    path: &str,
    show: fn(&T) -> String,
) -> Result<String, CommandError> {
    let client = daemon(&view.admin)?;
    let answer: T = runtime()?.block_on(async {
        match order {
            Order::Get => client.get(path).await,
            Order::Post => client.post(path).await,
        }
    })?;
    match view.json {
        true => Ok(serde_json::to_string_pretty(&answer).map_err(CommandError::Json)? + "\n"),
        false => Ok(show(&answer)),
    }
}

/// Where the daemon is asked.
pub(super) fn daemon(admin: &Admin) -> Result<Client, CommandError> {
    Ok(match &admin.socket {
        Some(path) => Client::new(path),
        None => Client::new(paths::admin_socket().map_err(CommandError::Namespace)?),
    })
}

/// What it is waited for with.
pub(super) fn runtime() -> Result<Runtime, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(CommandError::Runtime)
}

fn done(done: &Done) -> String {
    table::message(&done.message) + "\n"
}

/// To stdout. A reader that wants no more, such as `head`, is no failure.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn sessions(args: &Sessions) -> String {
    let client = args.client.map(|client| client.to_string());
    let limit = args.limit.map(|limit| limit.to_string());
    with_query("/v1/sessions", [("service", args.service.clone()), ("client", client), ("limit", limit)])
}

fn explain(args: &Explain) -> String {
    let protocol = match args.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    let query = [
        ("client", args.client.map(|client| client.to_string())),
        ("vip", args.vip.map(|vip| vip.to_string())),
        ("protocol", args.vip.map(|_| protocol.to_owned())),
        ("request", args.request.as_ref().map(ToString::to_string)),
        ("service", args.service.clone()),
    ];
    with_query("/v1/explain", query)
}

/// A path with those of the pairs that have a value.
fn with_query<const N: usize>(path: &str, query: [(&str, Option<String>); N]) -> String {
    let query = query.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", escape(&value?))));
    format!("{path}?{}", query.collect::<Vec<_>>().join("&"))
}

fn drain(order: &str, args: &Drain) -> String {
    format!("/v1/{order}/{}/{}", escape(&args.server.service), escape(&args.server.server))
}
