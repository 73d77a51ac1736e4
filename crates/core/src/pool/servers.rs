//! Servers of one pool: the schedule of their checks, and the application of results.

use alloc::vec::Vec;

use super::ClockReading;
use super::change::ServerChange;
use super::server::{DueChecks, Fact, PoolServer};

/// Entry of a pool: a server with its owner's data.
pub trait PoolEntry {
    fn server(&self) -> &PoolServer;

    fn server_mut(&mut self) -> &mut PoolServer;

    /// True if the server is probed and queried for reports.
    fn is_polled(&self) -> bool {
        true
    }
}

impl PoolEntry for PoolServer {
    fn server(&self) -> &PoolServer {
        self
    }

    fn server_mut(&mut self) -> &mut PoolServer {
        self
    }
}

/// Servers of one service, group or name, by keys that the owner chooses. A farm may have hundreds
/// of thousands of pools, most of them with few servers.
#[derive(Clone, Debug)]
pub struct Pool<K, E = PoolServer> {
    /// Servers in the order of their keys.
    servers: Vec<(K, E)>,
    /// Time of the next check in milliseconds; `None` if it must be computed anew, since servers
    /// have changed.
    next_ms: Option<u64>,
}

impl<K: Ord + Clone, E: PoolEntry> Default for Pool<K, E> {
    fn default() -> Pool<K, E> {
        Pool { servers: Vec::new(), next_ms: None }
    }
}

impl<K: Ord, E> FromIterator<(K, E)> for Pool<K, E> {
    fn from_iter<I: IntoIterator<Item = (K, E)>>(servers: I) -> Pool<K, E> {
        let mut servers: Vec<(K, E)> = servers.into_iter().collect();
        servers.sort_by(|(one, _), (other, _)| one.cmp(other));
        servers.shrink_to_fit();
        Pool { servers, next_ms: None }
    }
}

impl<K: Ord + Clone, E: PoolEntry> Pool<K, E> {
    /// Replaces the set of keys, which must be sorted. Servers whose keys are in both sets stay.
    /// `new` creates the others.
    pub fn follow(&mut self, keys: impl IntoIterator<Item = K>, mut new: impl FnMut(&K) -> E) {
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
        self.next_ms = None;
    }

    /// Adds a server, in place of a server with the same key.
    pub fn insert(&mut self, key: K, server: E) {
        self.remove(&key);
        self.next_ms = None;
        let at = self.servers.partition_point(|(known, _)| *known < key);
        self.servers.insert(at, (key, server));
    }

    /// Removes a server and returns it.
    pub fn remove(&mut self, key: &K) -> Option<E> {
        let at = self.position(key).ok()?;
        Some(self.servers.remove(at).1)
    }

    /// Removes the servers for which `stays` is false.
    pub fn retain(&mut self, mut stays: impl FnMut(&E) -> bool) {
        self.servers.retain(|(_, server)| stays(server));
    }

    /// Returns the entries in key order, and consumes the pool.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = E> + ExactSizeIterator {
        self.servers.into_iter().map(|(_, server)| server)
    }

    fn position(&self, key: &K) -> Result<usize, usize> {
        self.servers.binary_search_by(|(known, _)| known.cmp(key))
    }

    pub fn get(&self, key: &K) -> Option<&E> {
        self.servers.get(self.position(key).ok()?).map(|(_, server)| server)
    }

    /// Returns a server so that the caller can change it. The time of the next check is computed
    /// anew.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut E> {
        let at = self.position(key).ok()?;
        self.next_ms = None;
        self.servers.get_mut(at).map(|(_, server)| server)
    }

    /// Changes a server and updates the time of the next check.
    pub fn change<T>(&mut self, key: &K, change: impl FnOnce(&mut PoolServer) -> T) -> Option<T> {
        let at = self.position(key).ok()?;
        let (_, entry) = self.servers.get_mut(at)?;
        let changed = change(entry.server_mut());
        let due_ms = due_ms(entry);
        self.next_ms = self.next_ms.map(|next_ms| next_ms.min(due_ms));
        Some(changed)
    }

    /// Returns all keys and servers, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &E)> {
        self.servers.iter().map(|(key, server)| (key, server))
    }

    /// Returns all keys and servers in key order, so that the caller can change the servers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut E)> {
        self.next_ms = None;
        self.servers.iter_mut().map(|(key, server)| (&*key, server))
    }

    /// Returns all servers, in key order.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &E> {
        self.servers.iter().map(|(_, server)| server)
    }

    /// Returns all servers in key order, so that the caller can change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut E> {
        self.iter_mut().map(|(_, server)| server)
    }

    /// Applies the result of a check. Returns `None` if the server no longer exists.
    pub fn apply_fact(&mut self, key: &K, fact: Fact, now_ms: u64) -> Option<ServerChange> {
        self.change(key, |server| server.apply_fact(fact, now_ms))
    }

    /// Returns the time of the next work for [`Pool::poll`], in milliseconds.
    pub fn next_at(&self) -> u64 {
        self.next_ms.unwrap_or_else(|| self.values().map(due_ms).min().unwrap_or(u64::MAX))
    }

    /// Returns the checks due now.
    pub fn poll(&mut self, now: ClockReading) -> Vec<(K, DueChecks)> {
        let now_ms = now.now_ms;
        let mut due = Vec::new();
        let mut next_ms = self.next_at();
        if next_ms <= now_ms {
            for (key, entry) in self.servers.iter_mut().filter(|(_, entry)| due_ms(entry) <= now_ms) {
                due.push((key.clone(), entry.server_mut().poll(now)));
            }
            self.next_ms = None;
            next_ms = self.next_at();
        }
        self.next_ms = Some(next_ms);
        due
    }
}

fn due_ms(entry: &impl PoolEntry) -> u64 {
    if entry.is_polled() { entry.server().next_at() } else { u64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::farm::example;
    use crate::pool::health::Failure;
    use crate::pool::{HealthKind, PoolSettings};
    use alloc::sync::Arc;

    fn pool(keys: &[u8], now_ms: u64) -> Pool<u8> {
        let mut pool = Pool::default();
        follow(&mut pool, keys, now_ms);
        pool
    }

    fn follow(pool: &mut Pool<u8>, keys: &[u8], now_ms: u64) {
        let settings = Arc::new(PoolSettings::of(&example::check(HealthKind::Tcp), None, 0));
        pool.follow(keys.iter().copied(), |key| PoolServer::new(&settings, u64::from(*key), now_ms, false));
    }

    fn due(pool: &mut Pool<u8>, now_ms: u64) -> Vec<u8> {
        pool.poll(ClockReading::at(now_ms)).into_iter().map(|(key, _)| key).collect()
    }

    fn works(pool: &mut Pool<u8>, key: u8, now_ms: u64) -> Option<ServerChange> {
        pool.apply_fact(&key, Fact::Probed(Ok(5)), now_ms)
    }

    #[test]
    fn each_server_is_due_by_itself_and_the_pool_with_the_first_of_them() {
        let mut all = pool(&[1, 2], 0);
        assert_eq!((all.next_at(), due(&mut all, 0)), (0, [1, 2].into()));
        assert_eq!((all.next_at(), due(&mut all, 100)), (u64::MAX, Vec::new()), "probes are under way");
        works(&mut all, 2, 200);
        assert_eq!((all.next_at(), due(&mut all, 999)), (1_000, Vec::new()));
        assert_eq!((due(&mut all, 1_000), all.next_at()), ([2].into(), u64::MAX));
        works(&mut all, 1, 5_000);
        assert_eq!(
            (all.next_at(), due(&mut all, 5_000)),
            (5_000, [1].into()),
            "its time has passed meanwhile"
        );
        assert_eq!(pool(&[], 0).next_at(), u64::MAX);
    }

    #[test]
    fn servers_that_stay_are_known_and_those_that_go_are_forgotten() {
        let mut all = pool(&[1, 3, 5], 0);
        due(&mut all, 0);
        for key in [1, 3, 5] {
            works(&mut all, key, 1);
        }
        follow(&mut all, &[2, 3, 5, 6], 10);
        let up: Vec<(u8, bool)> = all.iter().map(|(key, server)| (*key, server.is_up())).collect();
        assert_eq!(up, [(2, false), (3, true), (5, true), (6, false)]);
        assert_eq!((all.next_at(), due(&mut all, 10)), (0, [2, 6].into()), "the new ones are probed");
        assert!(all.get(&3).is_some() && all.get(&1).is_none());
        assert_eq!(works(&mut all, 1, 20), None, "an answer of one that is gone changes nothing");
        assert_eq!(all.apply_fact(&7, Fact::Probed(Err(Failure::Refused)), 20), None);
        assert_eq!(
            all.into_values().map(|server| server.is_up()).collect::<Vec<_>>(),
            [false, true, true, false]
        );
    }

    #[test]
    fn a_server_that_can_be_reached_again_is_due() {
        let mut all = pool(&[1, 2], 0);
        all.values_mut().for_each(|server| server.set_reachable(false));
        assert_eq!((all.next_at(), due(&mut all, 0)), (u64::MAX, Vec::new()));
        all.change(&2, |server| server.set_reachable(true));
        assert_eq!((all.next_at(), due(&mut all, 0)), (0, [2].into()));
        assert_eq!(all.change(&9, |_| ()), None);
    }
}
