//! `evener announce --status`: shows the addresses that need routes, and their routes.

use std::io;
use std::path::Path;

use serde::Serialize;

use super::state::{self, AnnouncedState};
use crate::config::AnnounceConfig;
use crate::runtime::lock::Lock;
use crate::runtime::{Exit, folders, terminal};

#[derive(Debug, Serialize)]
struct AnnouncerView {
    /// True if the announcer runs. Otherwise the state is the last announcer's.
    running: bool,
    #[serde(flatten)]
    state: AnnouncedState,
}

pub(super) fn run(json: bool) -> Exit {
    let shown = folders::directory().and_then(|directory| view(&directory)).and_then(|view| {
        let text = if json { serde_json::to_string_pretty(&view)? + "\n" } else { render(&view) };
        terminal::print(&text)
    });
    match shown {
        Ok(()) => Exit::Ok,
        Err(error) => {
            eprintln!("evener: the announcer's state can't be shown: {error}");
            Exit::Failed
        }
    }
}

fn view(directory: &Path) -> io::Result<AnnouncerView> {
    let running = Lock::is_held(&folders::announcer_lock_path(directory));
    Ok(AnnouncerView { running, state: state::read(directory)?.unwrap_or_default() })
}

fn render(view: &AnnouncerView) -> String {
    let AnnouncedState { settings, problem, addresses, .. } = &view.state;
    let mut lines = vec![format!("announcer  {}", if view.running { "runs" } else { "does not run" })];
    if let Some(AnnounceConfig { table, protocol, .. }) = settings {
        lines.push(format!("routes     in table {table} by protocol {protocol}"));
    }
    lines.extend(problem.iter().map(|problem| format!("problem    {problem}")));
    lines.extend(addresses.iter().map(|one| format!("address    {} is {}", one.address, one.describe())));
    lines.join("\n") + "\n"
}
