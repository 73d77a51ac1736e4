//! Signals of servers: sessions, latencies and reports, by which policies compare servers.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Director;
use crate::farm::plan::{ServerName, identity};
use crate::node::peers::KnownHost;
use crate::pool::PoolServer;
use crate::pool::signals::Signals;

/// Maximum interval between counts of sessions, in milliseconds.
const COUNTS_MS: u64 = 1_000;

/// Slots sorted by the identity of their servers.
pub(super) struct SlotsByIdentity(Vec<(u64, u16)>);

impl SlotsByIdentity {
    pub(super) fn of(&self, name: &ServerName) -> Option<u16> {
        let named = identity(&name.service, &name.server);
        let at = self.0.binary_search_by_key(&named, |(identity, _)| *identity).ok()?;
        self.0.get(at).map(|(_, slot)| *slot)
    }
}

impl Director {
    /// Returns the slots whose active sessions the caller counts for the next
    /// [`Input::Time`](super::Input::Time).
    pub fn due_counts(&self, now_ms: u64) -> impl Iterator<Item = u16> {
        let is_due = self.next_report_at().min(self.counted_ms + COUNTS_MS) <= now_ms;
        self.plan.servers.keys().copied().filter(move |_| is_due)
    }

    /// Stores the counts of active sessions.
    pub(super) fn counted(&mut self, active: BTreeMap<u16, u64>, now_ms: u64) {
        if !active.is_empty() {
            (self.active, self.counted_ms) = (active, now_ms);
        }
    }

    /// Returns the slots of the tables in force for lookups by identity, which are faster than
    /// lookups by name.
    pub(super) fn slots_by_identity(&self) -> SlotsByIdentity {
        let servers = self.plan.tables.servers.iter();
        let mut slots: Vec<(u64, u16)> = servers.map(|(slot, server)| (server.identity, *slot)).collect();
        slots.sort_unstable();
        SlotsByIdentity(slots)
    }

    /// Returns the signals of a server. They contain its sessions if the server has a slot. `known`
    /// contains all hosts of an every-host farm.
    pub(super) fn signals(
        &self,
        name: &ServerName,
        server: Option<&PoolServer>,
        slot: Option<u16>,
        known: &[KnownHost],
        now_ms: u64,
    ) -> Signals {
        let is_host = || self.farm.every_host().any(|service| service.name == name.service);
        let host = known.iter().find(|host| host.name == name.server && is_host());
        let received_ms = host.and_then(|host| if host.own { Some(now_ms) } else { host.received_ms });
        let own = server.map(|server| server.signals(now_ms)).unwrap_or_default();
        let silent_for_ms = received_ms.map(|received_ms| now_ms.saturating_sub(received_ms));
        Signals {
            active: slot.and_then(|slot| self.active.get(&slot).copied()),
            reported: host.filter(|_| received_ms.is_some()).map(|host| host.load.into()),
            age_ms: own.age_ms.or(silent_for_ms),
            ..own
        }
    }
}
