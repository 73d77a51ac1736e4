//! Imports drains of group members that the previous version stored with the members. They become
//! ordinary run-time changes. Remove this module in the next version.
//!
//! The changes are written before the members. If the daemon is killed before the members are
//! written, the next daemon finds the drains in both files. It does not import the drains again. No
//! request is served before both files are written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evener_core::farm::group::{drained_in_record, without_drains};
use evener_core::farm::plan::ServerName;
use evener_core::net::http::Url;
use evener_core::pool::OperatorState;

use super::clocks;
use super::groups::record_path;
use crate::config::{Config, GroupService};
use crate::runtime::files;
use crate::state::store::{AuditEntry, Store};
use crate::state::{Author, Change, EditTarget, FarmState, operator_value};

/// Converts drains that aren't run-time changes yet. Returns the state with these changes.
pub(super) fn import(store: &Store, state: FarmState, config: &Config, directory: &Path) -> FarmState {
    let (mut drained, mut records) = (Vec::new(), Vec::<(PathBuf, String)>::new());
    for service in &config.groups {
        let path = record_path(directory, &service.group.name);
        let Ok(record) = fs::read_to_string(&path) else { continue };
        let found = drained_in_record(&record);
        if !found.is_empty() {
            drained.extend(found.iter().map(|url| member(service, url)));
            records.push((path, without_drains(&record)));
        }
    }
    drained.retain(|server| !state.states.servers.contains_key(server));
    let state = if drained.is_empty() { state } else { changed(&state, &drained) };
    if !drained.is_empty()
        && let Err(error) = write(store, &state)
    {
        tracing::error!("failed to save the drains of members; they are lost at a restart: {error}");
        return state;
    }
    for (path, record) in records {
        if let Err(error) = files::replace(&path, record.as_bytes()) {
            let path = path.display();
            tracing::warn!(%path, %error, "failed to remove an old record; its members will be drained again at the next start");
        }
    }
    state
}

/// Returns a member's name in the file, or its URL if the file doesn't list it.
fn member(service: &GroupService, url: &Url) -> ServerName {
    let listed = service.group.members.iter().find(|member| member.url == *url);
    let server = listed.map_or_else(|| url.to_string(), |member| member.name.clone());
    ServerName { service: service.group.name.to_string(), server }
}

fn changed(state: &FarmState, drained: &[ServerName]) -> FarmState {
    let author = Author { by: "evener".to_owned(), from: "a start".to_owned() };
    let names: Vec<String> =
        drained.iter().map(|server| format!("{}/{}", server.service, server.server)).collect();
    let message = format!("drained before, by the version before: {}", names.join(", "));
    let edits = drained.iter().map(|ServerName { service, server }| {
        let place = EditTarget::Operator { service: service.clone(), server: server.clone() };
        (place, operator_value(OperatorState::Drain))
    });
    let mut record = state.record.clone();
    record.add(clocks().unix_ms, author, message, edits.collect(), &state.file);
    FarmState::new(Arc::clone(&state.file), Arc::clone(&state.sources), record)
}

fn write(store: &Store, state: &FarmState) -> io::Result<()> {
    store.write(&state.record)?;
    let entry = |change: &Arc<Change>| AuditEntry {
        unix_ms: change.unix_ms,
        author: change.author.clone(),
        generation: change.number,
        message: change.message.clone(),
    };
    store.log(&state.record.changes.last().map(entry).into_iter().collect::<Vec<_>>())
}
