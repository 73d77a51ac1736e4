//! The changes that operators made since the file was written.

use std::collections::BTreeMap;
use std::sync::Arc;

use evener_core::farm::plan::ServerName;
use evener_core::pool::OperatorState;
use serde::{Deserialize, Serialize};
use toml::Value;

use super::document::FarmDocument;
use super::edit::{Edit, EditTarget, director_state, operator_state, operator_value};

/// Changes that can be undone. Older ones are made one with the oldest that is kept.
const CHANGES_MAX: usize = 1_000;

/// The operator's word, which no file has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorStates {
    /// On servers: those that are not ready.
    pub servers: BTreeMap<ServerName, OperatorState>,
    /// Whether this director is to be given no new clients.
    pub is_director_drained: bool,
}

impl OperatorStates {
    /// The value of a place; none where that is no operator's, or where nothing was said.
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

    /// The servers whose states differ from those of `next`, with their state there.
    pub fn changes_to(&self, next: &OperatorStates) -> BTreeMap<ServerName, OperatorState> {
        let state = |states: &OperatorStates, name| states.servers.get(name).copied().unwrap_or_default();
        let names = self.servers.keys().chain(next.servers.keys());
        let changed = names.filter(|name| state(self, name) != state(next, name));
        changed.map(|name| (name.clone(), state(next, name))).collect()
    }

    /// Gives an operator's place another value.
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

/// Values in force that aren't the file's, by the service and the server that has them.
pub type Overrides = BTreeMap<(String, Option<String>), Vec<Override>>;

/// The author of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// A user of this host, or the name of a token or certificate.
    pub by: String,
    /// An address, or the admin socket.
    pub from: String,
}

/// One change: all of its edits were made at once, and are undone at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The generation that it made.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Its author.
    #[serde(flatten)]
    pub author: Author,
    /// A sentence on it.
    pub message: String,
    /// The edits.
    pub edits: Vec<Edit>,
}

/// All changes, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Greater with each change, undoing one included.
    pub generation: u64,
    /// The changes.
    pub changes: Vec<Arc<Change>>,
    /// Whether changes before the first are part of it, which is not undone then.
    #[serde(default)]
    pub is_cut: bool,
}

/// A value in force that isn't the file's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Override {
    /// The key.
    pub key: String,
    /// The value in force, as in the file; none where there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub value: Option<Value>,
    /// The file's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<Value>,
    /// The author of the change.
    pub by: String,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
}

impl Record {
    /// The farm in force: the file's with all changes made.
    pub fn farm(&self, file: &FarmDocument) -> FarmDocument {
        let mut farm = file.clone();
        for edit in self.edits() {
            // Its service may be another change's that was undone.
            let _ = farm.put(&edit.place, edit.value.as_ref());
        }
        farm
    }

    /// The operator's word.
    pub fn operator_states(&self) -> OperatorStates {
        let mut states = OperatorStates::default();
        self.edits().for_each(|edit| states.put(&edit.place, edit.value.as_ref()));
        states
    }

    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Adds a change; `edits` are places with their new values, and `file` is what they lie over.
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

    /// Takes back the last change; `None` if there is none that can be.
    pub fn undo(&mut self) -> Option<Arc<Change>> {
        if self.is_cut && self.changes.len() == 1 {
            return None;
        }
        let undone = self.changes.pop()?;
        self.generation += 1;
        Some(undone)
    }

    /// Goes on over another file: edits of places where the file itself has changed are dropped and
    /// given, and so are those that have no place any more. What operators said of servers stays.
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

    /// Drops everything.
    pub fn forget(&mut self) {
        *self = Record { generation: self.generation + 1, ..Record::default() };
    }

    /// The values in force that aren't the file's, by the service or the server that has them.
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
            // Of a whole server it is enough to know that the file has it.
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

    /// Makes one of the two oldest changes, which can't be undone any more.
    fn join_oldest(&mut self) {
        let oldest = self.changes.remove(0);
        if let Some(next) = self.changes.first_mut() {
            let next = Arc::make_mut(next);
            let later = std::mem::replace(&mut next.edits, oldest.edits.clone());
            for edit in later {
                // Those that it lies over are needed no more, and neither is one that puts back
                // what the file has.
                next.edits.retain(|known| !edit.place.holds(&known.place));
                if edit.value != edit.file || next.edits.iter().any(|known| known.place.holds(&edit.place)) {
                    next.edits.push(edit);
                }
            }
            self.is_cut = true;
        }
    }
}
