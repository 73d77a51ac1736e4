//! External view of a node's data plane: servers for new connections, and addresses that it answers
//! ARP for.

use std::net::IpAddr;
use std::sync::Arc;

use evener_core::farm::plan::ServerName;
use evener_core::path::tables::Ring;

use crate::farms;
use crate::node::Node;

/// Number of hash table slots to inspect: with few servers each has some of them.
const LOOKED_AT: usize = 128;

impl Node {
    /// Servers that the data plane selects for new connections of a service, as bits.
    pub(crate) fn ring(&self, vip: IpAddr) -> u32 {
        let Some(ring) = self.table(vip) else { return 0 };
        let bit = |name: &ServerName| farms::number(&name.server).map_or(0, |server| 1 << server);
        let bits: Vec<(u16, u32)> = self.names.iter().map(|(slot, name)| (*slot, bit(name))).collect();
        let of = |slot: &u16| bits.iter().find(|(of, _)| of == slot).map_or(0, |(_, bit)| *bit);
        ring.order.iter().chain(ring.hash.iter().take(LOOKED_AT)).fold(0, |all, slot| all | of(slot))
    }

    /// Servers of the first service that are up in the data plane, as bits.
    pub(crate) fn up(&self) -> u32 {
        let is_up = |slot| self.engine.tables.servers.get(slot).is_some_and(|server| server.up);
        let of_first = self.names.iter().filter(|(_, name)| name.service == farms::service(0));
        let numbers = of_first.filter(|(slot, _)| is_up(slot)).map(|(_, name)| farms::number(&name.server));
        numbers.flatten().fold(0, |all, server| all | 1 << server)
    }

    /// Returns the data plane's ring of a service.
    pub(crate) fn table(&self, vip: IpAddr) -> Option<&Arc<Ring>> {
        let tables = &self.engine.tables;
        let (_, vip) = tables.vips.iter().find(|(key, _)| key.address == vip)?;
        tables.rings.get(&vip.service)
    }

    /// True if the node answers ARP for an address.
    pub(crate) fn answers(&self, address: IpAddr, now_ms: u64) -> bool {
        self.has_carrier && self.engine.answers(address, self.ticks(now_ms))
    }
}
