//! The servers of one pool: what is due for any of them, and what came of it.

use alloc::vec::Vec;

use super::server::{DueChecks, Fact, PoolServer, ServerChange};

/// Servers, each by a key of whoever made the pool. There may be hundreds of thousands of pools,
/// and most have few servers.
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
    /// Goes on with the servers of these keys, which come in order: each as it is known by now, or
    /// as `new` makes it.
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
        pool.poll(now_ms).into_iter().map(|(key, _)| key).collect()
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
            all.into_servers().map(|server| server.is_up()).collect::<Vec<_>>(),
            [false, true, true, false]
        );
    }

    #[test]
    fn a_server_that_can_be_reached_again_is_due() {
        let mut all = pool(&[1, 2], 0);
        all.change_all(|_, server| server.set_reachable(false));
        assert_eq!((all.next_at(), due(&mut all, 0)), (u64::MAX, Vec::new()));
        all.change(&2, |server| server.set_reachable(true));
        assert_eq!((all.next_at(), due(&mut all, 0)), (0, [2].into()));
        assert_eq!(all.change(&9, |_| ()), None);
    }
}
