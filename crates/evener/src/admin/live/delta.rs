//! Difference between two versions of a table.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::views::{HostView, NameView, ServerView, ServiceView};

/// A row of a table. Usually only its counters change.
pub(super) trait LiveRow: Clone + PartialEq + Serialize {
    /// Counters of a row, in an order that the page knows.
    type Counters: Copy + PartialEq + Serialize;

    /// True if both rows describe the same object.
    fn is_same(&self, other: &Self) -> bool;

    fn counters(&self) -> Self::Counters;

    /// Returns this row with the counters and ages of another.
    fn with_counters_of(&self, other: &Self) -> Self;
}

/// Rows that differ. All rows if any were added, removed or moved.
#[derive(Debug, Serialize)]
pub(super) struct TableDelta<'a, T: LiveRow> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) all: Option<&'a [T]>,
    /// Row numbers with their counters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) counters: Vec<(usize, T::Counters)>,
    /// Row numbers with their other changed fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) fields: Vec<(usize, Map<String, Value>)>,
}

impl<'a, T: LiveRow> TableDelta<'a, T> {
    pub(super) fn between(before: &[T], now: &'a [T]) -> TableDelta<'a, T> {
        let mut delta = TableDelta { all: None, counters: Vec::new(), fields: Vec::new() };
        let pairs = || before.iter().zip(now);
        if before.len() != now.len() || !pairs().all(|(before, now)| before.is_same(now)) {
            delta.all = Some(now);
            return delta;
        }
        for (row, (before, now)) in pairs().enumerate() {
            if before.counters() != now.counters() {
                delta.counters.push((row, now.counters()));
            }
            if now.with_counters_of(before) != *before {
                delta.fields.push((row, fields(&before.with_counters_of(now), now)));
            }
        }
        delta
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_none() && self.counters.is_empty() && self.fields.is_empty()
    }
}

/// Returns the changed fields. Removed fields are null.
pub(super) fn fields(before: &impl Serialize, now: &impl Serialize) -> Map<String, Value> {
    let (before, now) = (object(before), object(now));
    let gone = before.keys().filter(|name| !now.contains_key(*name));
    let gone: Vec<_> = gone.map(|name| (name.clone(), Value::Null)).collect();
    let changed = now.into_iter().filter(|(name, value)| before.get(name) != Some(value));
    changed.chain(gone).collect()
}

fn object(row: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(row) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

impl LiveRow for ServerView {
    type Counters = (u64, u64, u64, u64, Option<f64>);

    fn is_same(&self, other: &Self) -> bool {
        (&self.service, &self.name) == (&other.service, &other.name)
    }

    fn counters(&self) -> Self::Counters {
        (self.sessions, self.connections, self.packets, self.bytes, self.probe_seconds)
    }

    fn with_counters_of(&self, other: &Self) -> Self {
        let mut row = self.clone();
        (row.sessions, row.connections, row.packets, row.bytes, row.probe_seconds) = other.counters();
        for (mine, other) in row.overrides.iter_mut().zip(&other.overrides) {
            mine.age_seconds = other.age_seconds;
        }
        row
    }
}

impl LiveRow for ServiceView {
    type Counters = (u64, u64, u64, u64);

    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
    }

    fn counters(&self) -> Self::Counters {
        (self.sessions, self.connections, self.packets, self.bytes)
    }

    fn with_counters_of(&self, other: &Self) -> Self {
        let mut row = self.clone();
        (row.sessions, row.connections, row.packets, row.bytes) = other.counters();
        for (mine, other) in row.overrides.iter_mut().zip(&other.overrides) {
            mine.age_seconds = other.age_seconds;
        }
        row
    }
}

impl LiveRow for NameView {
    type Counters = (u64,);

    fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.address, &self.server) == (&other.name, &other.address, &other.server)
    }

    fn counters(&self) -> Self::Counters {
        (self.answers,)
    }

    fn with_counters_of(&self, other: &Self) -> Self {
        NameView { answers: other.answers, ..self.clone() }
    }
}

impl LiveRow for HostView {
    type Counters = (u64, Option<f64>);

    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
    }

    fn counters(&self) -> Self::Counters {
        (self.load, self.last_seen_seconds)
    }

    fn with_counters_of(&self, other: &Self) -> Self {
        HostView { load: other.load, last_seen_seconds: other.last_seen_seconds, ..self.clone() }
    }
}
