//! Completions that ask the running daemon: names of servers.

use std::time::Duration;

use clap::CommandFactory;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

use super::client::Client;
use crate::cli::Cli;
use crate::runtime::folders;
use crate::views::ServerView;

/// Maximum time for the daemon's answer: a shell waits for it.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Commands with an argument `server`.
const OF_SERVERS: [&str; 5] = ["drain", "undrain", "maintenance", "weight", "remove"];

/// Returns the command line with completions of servers.
pub fn command() -> clap::Command {
    OF_SERVERS.into_iter().fold(Cli::command(), |command, name| {
        command.mut_subcommand(name, |command| {
            command.mut_arg("server", |argument| argument.add(ArgValueCandidates::new(servers)))
        })
    })
}

/// Returns all servers as `SERVICE/SERVER`, or nothing if no daemon answers in time.
fn servers() -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (Ok(socket), Ok(runtime)) = (folders::admin_socket(), runtime) else { return Vec::new() };
    let client = Client::new(socket);
    let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, client.get("/v1/servers")).await });
    let servers: Vec<ServerView> = answer.ok().and_then(Result::ok).unwrap_or_default();
    let full = |server: ServerView| format!("{}/{}", server.service, server.name);
    servers.into_iter().map(|server| CompletionCandidate::new(full(server))).collect()
}
