//! Operators' run-time changes of the file's farm.

use std::collections::BTreeMap;
use std::sync::Arc;

use evener_core::farm::plan::ServerName;
use evener_core::pool::OperatorState;
use serde::{Deserialize, Serialize};
use toml::Value;

use super::document::FarmDocument;
use super::edit::{Edit, EditTarget, director_state, operator_state, operator_value};
use super::order::OrderError;

/// Maximum number of changes that can be undone. Older changes are merged into the oldest of these
/// changes.
const CHANGES_MAX: usize = 1_000;

/// Operator states. A file has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorStates {
    /// States of servers that are not ready.
    pub servers: BTreeMap<ServerName, OperatorState>,
    /// True if this director gets no new clients.
    pub is_director_drained: bool,
}

impl OperatorStates {
    /// Returns the operator state at a place, as an edit's value. `None` if the state is ready, or
    /// if the place is not an operator state.
    pub(super) fn at(&self, place: &EditTarget) -> Option<Value> {
        match place {
            EditTarget::Operator { service, server } => {
                let name = ServerName { service: service.clone(), server: server.clone() };
                operator_value(self.servers.get(&name).copied().unwrap_or_default())
            }
            EditTarget::Director => operator_value(director_state(self.is_director_drained)),
            _ => None,
        }
    }

    /// Returns the servers whose state differs from `next`, with their state in `next`.
    pub fn changes_to(&self, next: &OperatorStates) -> BTreeMap<ServerName, OperatorState> {
        let state = |states: &OperatorStates, name| states.servers.get(name).copied().unwrap_or_default();
        let names = self.servers.keys().chain(next.servers.keys());
        let changed = names.filter(|name| state(self, name) != state(next, name));
        changed.map(|name| (name.clone(), state(next, name))).collect()
    }

    /// Sets the operator state at a place. No value means ready. Ignores places that are not
    /// operator states.
    pub(super) fn put(&mut self, place: &EditTarget, value: Option<&Value>) {
        let state = operator_state(value);
        match place {
            EditTarget::Operator { service, server } => {
                let name = ServerName { service: service.clone(), server: server.clone() };
                match state {
                    OperatorState::Ready => drop(self.servers.remove(&name)),
                    state => drop(self.servers.insert(name, state)),
                }
            }
            EditTarget::Director => self.is_director_drained = state != OperatorState::Ready,
            _ => {}
        }
    }
}

/// Values in force that differ from the file's, by service and server.
pub type Overrides = BTreeMap<(String, Option<String>), Vec<Override>>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// User of this host, or name of a token or certificate.
    pub by: String,
    /// Address, or the admin socket.
    pub from: String,
}

/// One change. All its edits are made and undone together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Generation of the farm after the change.
    pub number: u64,
    /// Time in milliseconds since 1970.
    pub unix_ms: u64,
    #[serde(flatten)]
    pub author: Author,
    /// Sentence that describes the change.
    pub message: String,
    pub edits: Vec<Edit>,
}

/// All changes, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Increases with each change, with each undo, and when a reload or a start drops changes.
    pub generation: u64,
    pub changes: Vec<Arc<Change>>,
    /// True if the first change includes older changes that were merged into it. The first change
    /// can't be undone then.
    #[serde(default)]
    pub is_cut: bool,
}

/// A value in force that differs from the file's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Override {
    pub key: String,
    /// Value in force, as in a file. `None` if the key, server or service is removed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub value: Option<Value>,
    /// Value in the file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<Value>,
    pub by: String,
    /// Time of the change in milliseconds since 1970.
    pub unix_ms: u64,
}

impl Record {
    /// Returns the farm in force: the file's farm with all changes applied.
    pub fn farm(&self, file: &FarmDocument) -> FarmDocument {
        let mut farm = file.clone();
        for edit in self.edits() {
            // A change that added the edit's service may have been undone.
            let _ = farm.put(&edit.place, edit.value.as_ref());
        }
        farm
    }

    pub fn operator_states(&self) -> OperatorStates {
        let mut states = OperatorStates::default();
        self.edits().for_each(|edit| states.put(&edit.place, edit.value.as_ref()));
        states
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Adds a change. `edits` are places with their new values, and `file` is the file that they
    /// change.
    pub fn add(
        &mut self,
        unix_ms: u64,
        author: Author,
        message: String,
        edits: Vec<(EditTarget, Option<Value>)>,
        file: &FarmDocument,
    ) {
        self.generation += 1;
        let edits = edits.into_iter().map(|(place, value)| Edit { file: file.at(&place), place, value });
        let number = self.generation;
        self.changes.push(Arc::new(Change { number, unix_ms, author, message, edits: edits.collect() }));
        if self.changes.len() > CHANGES_MAX {
            self.join_oldest();
        }
    }

    /// Removes the change with a number, or the last change. If a later change has changed the same
    /// places, it must be undone first.
    ///
    /// # Errors
    /// If there is no change with the number, no change at all, or if the change can't be undone.
    pub fn undo(&mut self, number: Option<u64>) -> Result<Arc<Change>, OrderError> {
        let mut changes = self.changes.iter().enumerate();
        let (at, undone) = match number {
            None => changes.next_back().ok_or_else(|| {
                OrderError::Conflict("there is no run-time change to undo: the farm is the file's".into())
            }),
            Some(number) => changes.find(|(_, change)| change.number == number).ok_or_else(|| {
                OrderError::NotFound(format!(
                    "there is no change {number} to undo: `evener state --changes` lists them"
                ))
            }),
        }?;
        if self.is_cut && at == 0 {
            return Err(OrderError::Conflict(
                "changes older than these can't be undone one by one: `evener reload --forget` drops all"
                    .into(),
            ));
        }
        let overlaps = |a: &EditTarget, b: &EditTarget| a == b || a.holds(b) || b.holds(a);
        for later in self.changes.iter().skip(at + 1) {
            let mut places = later.edits.iter().map(|edit| &edit.place);
            if let Some(place) =
                places.find(|place| undone.edits.iter().any(|edit| overlaps(&edit.place, place)))
            {
                return Err(OrderError::Conflict(format!(
                    "change {} can't be undone before change {}, which changed {place} again: undo that first",
                    undone.number, later.number
                )));
            }
        }
        self.generation += 1;
        Ok(self.changes.remove(at))
    }

    /// Adapts the changes to another file. Edits of places that the file itself has changed, or
    /// that no longer exist, are dropped and returned. Operator states stay.
    pub fn rebase(&mut self, file: &FarmDocument) -> Vec<Edit> {
        let mut dropped = Vec::new();
        let mut farm = file.clone();
        for change in &mut self.changes {
            Arc::make_mut(change).edits.retain(|edit| {
                let is_kept = edit.place.is_operators()
                    || file.at(&edit.place) == edit.file && farm.put(&edit.place, edit.value.as_ref());
                if !is_kept {
                    dropped.push(edit.clone());
                }
                is_kept
            });
        }
        self.changes.retain(|change| !change.edits.is_empty());
        if !dropped.is_empty() {
            self.generation += 1;
        }
        self.is_cut &= !self.changes.is_empty();
        dropped
    }

    pub fn forget(&mut self) {
        *self = Record { generation: self.generation + 1, ..Record::default() };
    }

    /// Returns the values in force that differ from the file's, by service and server.
    pub fn overrides(&self, file: &FarmDocument) -> Overrides {
        let mut last: BTreeMap<&EditTarget, (&Edit, &Change)> = BTreeMap::new();
        for change in &self.changes {
            for edit in &change.edits {
                if edit.place.is_whole() {
                    last.retain(|known, _| !edit.place.holds(known));
                }
                last.insert(&edit.place, (edit, change));
            }
        }
        let mut overrides = Overrides::new();
        for (place, (edit, change)) in last {
            let (of, key) = match place {
                EditTarget::Service { service } => ((service, None), "service"),
                EditTarget::ServiceKey { service, key } => ((service, None), key.as_str()),
                EditTarget::Server { service, server } => ((service, Some(server)), "server"),
                EditTarget::ServerKey { service, server, key } => ((service, Some(server)), key.as_str()),
                EditTarget::Operator { service, server } => ((service, Some(server)), "state"),
                EditTarget::Director => continue,
            };
            let file = file.at(place);
            if file == edit.value {
                continue;
            }
            // For a whole service or server, only its presence matters.
            let shown = |value: Option<Value>| match place.is_whole() {
                true => value.map(|_| Value::Boolean(true)),
                false => value,
            };
            overrides.entry((of.0.clone(), of.1.cloned())).or_default().push(Override {
                key: key.to_owned(),
                value: shown(edit.value.clone()),
                file: shown(file),
                by: change.author.by.clone(),
                unix_ms: change.unix_ms,
            });
        }
        overrides
    }

    fn edits(&self) -> impl Iterator<Item = &Edit> {
        self.changes.iter().flat_map(|change| &change.edits)
    }

    /// Merges the two oldest changes. The result can't be undone.
    fn join_oldest(&mut self) {
        let oldest = self.changes.remove(0);
        if let Some(next) = self.changes.first_mut() {
            let next = Arc::make_mut(next);
            let later = std::mem::replace(&mut next.edits, oldest.edits.clone());
            for edit in later {
                // An edit replaces earlier edits of its place. An edit that restores the file's
                // value is left out, unless an edit of its whole service or server precedes it.
                next.edits.retain(|known| !edit.place.holds(&known.place));
                if edit.value != edit.file || next.edits.iter().any(|known| known.place.holds(&edit.place)) {
                    next.edits.push(edit);
                }
            }
            self.is_cut = true;
        }
    }
}
