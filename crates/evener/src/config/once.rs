//! Values that may stand in the file only once.

use std::collections::BTreeMap;

use super::problems::{Problem, Span};
use super::section::Section;

/// Where each value was seen first.
pub(super) struct FirstSeen<K>(BTreeMap<K, Span>);

impl<K: Ord> FirstSeen<K> {
    pub(super) fn new() -> Self {
        FirstSeen(BTreeMap::new())
    }

    /// Takes note of `key` without complaint.
    pub(super) fn note(&mut self, key: K, span: Span) {
        self.0.entry(key).or_insert(span);
    }

    /// Whether `key` is new; if not, notes the problem, with the first place beside the second.
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
