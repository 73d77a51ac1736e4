//! The servers of one pool: what is due for any of them, and what came of it.

use alloc::vec::Vec;

use super::server::{DueChecks, Fact, PoolServer, ServerChange};

/// Servers, each by a key of whoever made the pool. There may be hundreds of thousands of pools, and most have few
/// servers.
#[derive(Clone, Debug)]
pub struct Pool<K> {
    /// In the order of their keys.
    servers: Vec<(K, PoolServer)>,
    /// Nothing is due for any of them before this, in milliseconds.
    next_ms: u64,
}

impl<K: Ord + Clone> Default for Pool<K> {
    fn default() -> Pool<K> {
        Pool { servers: Vec::new(), next_ms: u64::MAX }
    }
}

impl<K: Ord + Clone> Pool<K> {
    /// Goes on with the servers of these keys, which come in order: each as it is known by now, or as `new` makes it.
    pub fn follow(&mut self, keys: impl IntoIterator<Item = K>, mut new: impl FnMut(&K) -> PoolServer) {
        let mut known = core::mem::take(&mut self.servers).into_iter().peekable();
        for key in keys {
            while known.next_if(|(before, _)| *before < key).is_some() {}
            let server = match known.next_if(|(before, _)| *before == key) {
                Some((_, server)) => server,
                None => new(&key),
            };
            self.servers.push((key, server));
        }
        self.servers.shrink_to_fit();
        debug_assert!(self.servers.is_sorted_by(|(one, _), (other, _)| one < other));
        self.schedule();
    }

    /// The servers themselves, in the order of their keys, for another pool.
    pub fn into_servers(self) -> impl DoubleEndedIterator<Item = PoolServer> + ExactSizeIterator {
        self.servers.into_iter().map(|(_, server)| server)
    }

    /// A server.
    pub fn get(&self, key: &K) -> Option<&PoolServer> {
        let at = self.servers.binary_search_by(|(known, _)| known.cmp(key)).ok()?;
        self.servers.get(at).map(|(_, server)| server)
    }

    /// Changes a server.
    pub fn change<T>(&mut self, key: &K, change: impl FnOnce(&mut PoolServer) -> T) -> Option<T> {
        let at = self.servers.binary_search_by(|(known, _)| known.cmp(key)).ok()?;
        let (_, server) = self.servers.get_mut(at)?;
        let changed = change(server);
        self.next_ms = self.next_ms.min(server.next_at());
        Some(changed)
    }

    /// Changes all servers.
    pub fn change_all<T>(&mut self, mut change: impl FnMut(&K, &mut PoolServer) -> T) {
        for (key, server) in &mut self.servers {
            change(key, server);
        }
        self.schedule();
    }

    /// All servers, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &PoolServer)> {
        self.servers.iter().map(|(key, server)| (key, server))
    }

    /// Takes in what came of a question to a server; nothing where it is none any more.
    pub fn apply_fact(&mut self, key: &K, fact: Fact, now_ms: u64) -> Option<ServerChange> {
        self.change(key, |server| server.apply_fact(fact, now_ms))
    }

    /// When [`Pool::poll`] has something to do, in milliseconds.
    pub fn next_at(&self) -> u64 {
        self.next_ms
    }

    /// The questions due now.
    pub fn poll(&mut self, now_ms: u64) -> Vec<(K, DueChecks)> {
        if self.next_ms > now_ms {
            return Vec::new();
        }
        let is_due = |(_, server): &&mut (K, PoolServer)| server.next_at() <= now_ms;
        let due = self.servers.iter_mut().filter(is_due);
        let due = due.map(|(key, server)| (key.clone(), server.poll(now_ms))).collect();
        self.schedule();
        due
    }

    fn schedule(&mut self) {
        let next = self.servers.iter().map(|(_, server)| server.next_at()).min();
        self.next_ms = next.unwrap_or(u64::MAX);
    }
}
