//! Values that must be unique in the file.

use std::collections::BTreeMap;

use super::problems::{Problem, Span};
use super::section::Section;

/// First position of each value.
pub(super) struct FirstSeen<K>(BTreeMap<K, Span>);

impl<K: Ord> FirstSeen<K> {
    pub(super) fn new() -> Self {
        FirstSeen(BTreeMap::new())
    }

    /// Records `key`. A key that is recorded already is not reported.
    pub(super) fn note(&mut self, key: K, span: Span) {
        self.0.entry(key).or_insert(span);
    }

    /// Returns true if `key` is new. Otherwise reports the problem with both positions.
    pub(super) fn first(
        &mut self,
        section: &Section<'_>,
        key: K,
        span: Span,
        message: String,
        help: &str,
    ) -> bool {
        match self.0.get(&key) {
            None => {
                self.0.insert(key, span);
                true
            }
            Some(first) => {
                section.problem(Problem::new(span, message, help).also(first.clone(), "first here"));
                false
            }
        }
    }
}
