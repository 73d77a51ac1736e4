//! Selects the connection that is evicted if all slots are taken: the oldest of the source with the
//! most connections.
//!
//! An attacker can open any number of connections and send almost nothing on them. Slots are
//! therefore counted by source: a source that occupies all slots evicts its own connections. Among
//! sources with equally many, the source with the oldest connection is evicted first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Length in bits of the shortest prefix that a network assigns to a customer (RFC 6177, section
/// 2).
const PREFIX6_LEN: u32 = 64;

/// Source of a connection: an IPv4 address, or an IPv6 /64.
pub(crate) type ClientSource = IpAddr;

/// Sort key of a source. The source with the greatest key loses a connection first.
type Rank = (usize, Reverse<u64>, ClientSource);

/// Slots by source. `T` identifies a slot's holder.
pub(crate) struct SlotsBySource<T> {
    tickets: u64,
    /// Holders by source and ticket, and so the oldest first.
    held: BTreeMap<ClientSource, BTreeMap<u64, T>>,
    order: BTreeSet<Rank>,
}

impl<T> Default for SlotsBySource<T> {
    fn default() -> Self {
        SlotsBySource { tickets: 0, held: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<T> SlotsBySource<T> {
    /// Returns a new, unique ticket, greater than all earlier ones.
    pub(crate) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Inserts a slot of a source. A smaller ticket means an older slot.
    pub(crate) fn insert(&mut self, source: ClientSource, ticket: u64, holder: T) {
        self.change(source, |held| held.insert(ticket, holder));
    }

    /// Removes a slot, and returns its holder if it was there.
    pub(crate) fn give_back(&mut self, source: ClientSource, ticket: u64) -> Option<T> {
        self.change(source, |held| held.remove(&ticket))
    }

    /// Removes the oldest slot of the source with the most slots.
    pub(crate) fn take_away(&mut self) -> Option<(ClientSource, T)> {
        let &(.., source) = self.order.last()?;
        let (_, holder) = self.change(source, BTreeMap::pop_first)?;
        Some((source, holder))
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.order.is_empty()
    }

    fn rank(&self, source: ClientSource) -> Option<Rank> {
        let held = self.held.get(&source)?;
        let (oldest, _) = held.first_key_value()?;
        Some((held.len(), Reverse(*oldest), source))
    }

    fn change<R>(&mut self, source: ClientSource, change: impl FnOnce(&mut BTreeMap<u64, T>) -> R) -> R {
        if let Some(rank) = self.rank(source) {
            self.order.remove(&rank);
        }
        let held = self.held.entry(source).or_default();
        let changed = change(held);
        if held.is_empty() {
            self.held.remove(&source);
        }
        self.order.extend(self.rank(source));
        changed
    }
}

/// Returns the source of a client.
pub(crate) fn source(client: IpAddr) -> ClientSource {
    match client.to_canonical() {
        IpAddr::V6(client) => IpAddr::V6((client.to_bits() >> PREFIX6_LEN << PREFIX6_LEN).into()),
        client => client,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn client(address: &str) -> IpAddr {
        source(address.parse().unwrap())
    }

    #[test]
    fn largest_source_loses_oldest_and_ties_go_to_slowest() {
        let mut shares = SlotsBySource::default();
        for (address, holder) in [("192.0.2.1", 0), ("192.0.2.2", 1), ("192.0.2.2", 2), ("192.0.2.3", 3)] {
            let ticket = shares.ticket();
            shares.insert(client(address), ticket, holder);
        }
        let order: Vec<_> = std::iter::from_fn(|| shares.take_away()).map(|(_, holder)| holder).collect();
        assert_eq!(order, [1, 0, 2, 3]);
        assert!(shares.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        assert_eq!(client("2001:db8:0:1::1"), client("2001:db8:0:1:ffff::2"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        assert_eq!(client("::ffff:203.0.113.7"), client("203.0.113.7"));
    }
}
