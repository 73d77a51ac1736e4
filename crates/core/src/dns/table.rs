//! List that many threads read while a few entries are replaced. A new list shares unchanged
//! entries with the previous one.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Number of entries per chunk. A change copies one chunk of references, and the references of all
/// chunks.
const CHUNK: usize = 128;

/// A list of shared entries.
#[derive(Debug)]
pub struct SharedList<T> {
    chunks: Vec<Arc<[Arc<T>]>>,
}

impl<T> SharedList<T> {
    /// Returns the entry at an index.
    pub fn get(&self, at: usize) -> Option<&Arc<T>> {
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    pub fn len(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        self.chunks.last().map_or(0, |last| full + last.len())
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns all entries in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Returns a list with other entries at these indexes. Indexes beyond the end are ignored.
    #[must_use]
    pub fn with(&self, changes: impl IntoIterator<Item = (usize, Arc<T>)>) -> SharedList<T> {
        let mut by_chunk: BTreeMap<usize, Vec<(usize, Arc<T>)>> = BTreeMap::new();
        for (at, entry) in changes {
            by_chunk.entry(at / CHUNK).or_default().push((at % CHUNK, entry));
        }
        let mut chunks = self.chunks.clone();
        for (at, changes) in by_chunk {
            let Some(chunk) = chunks.get_mut(at) else { continue };
            let mut entries = chunk.to_vec();
            for (at, entry) in changes {
                if let Some(place) = entries.get_mut(at) {
                    *place = entry;
                }
            }
            *chunk = entries.into();
        }
        SharedList { chunks }
    }
}

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        SharedList { chunks: Vec::new() }
    }
}

impl<T> FromIterator<Arc<T>> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = Arc<T>>>(entries: I) -> Self {
        let mut entries = entries.into_iter().peekable();
        let mut chunks = Vec::new();
        while entries.peek().is_some() {
            chunks.push(entries.by_ref().take(CHUNK).collect());
        }
        SharedList { chunks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_entries_are_new_and_others_are_shared() {
        for count in [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let before: SharedList<usize> = (0..count).map(Arc::new).collect();
            assert_eq!((before.len(), before.is_empty()), (count, count == 0));
            assert!(before.iter().map(|one| **one).eq(0..count));
            let changed = [0, count / 2, count].map(|at| (at, Arc::new(at + 1_000)));
            let after = before.with(changed);
            assert_eq!((after.len(), after.get(count)), (count, None));
            for at in 0..count {
                let is_changed = at == 0 || at == count / 2;
                let (old, new) = (before.get(at).unwrap(), after.get(at).unwrap());
                assert_eq!((**old, **new), (at, at + if is_changed { 1_000 } else { 0 }));
                assert_eq!(Arc::ptr_eq(old, new), !is_changed);
            }
        }
    }
}
