//! A node's data plane, seen from outside: whom it would give new connections, and for which
//! addresses it would answer.

use std::net::IpAddr;
use std::sync::Arc;

use evener_core::farm::plan::ServerName;
use evener_core::path::tables::Ring;

use crate::farms;
use crate::node::Node;

/// Slots of a hash table in which each of few servers has some.
const LOOKED_AT: usize = 128;

impl Node {
    /// The servers that its data plane gives new connections of a service, by bits.
    pub(crate) fn ring(&self, vip: IpAddr) -> u32 {
        let Some(ring) = self.table(vip) else { return 0 };
        let bit = |name: &ServerName| farms::number(&name.server).map_or(0, |server| 1 << server);
        let bits: Vec<(u16, u32)> = self.names.iter().map(|(slot, name)| (*slot, bit(name))).collect();
        let of = |slot: &u16| bits.iter().find(|(of, _)| of == slot).map_or(0, |(_, bit)| *bit);
        ring.order.iter().chain(ring.hash.iter().take(LOOKED_AT)).fold(0, |all, slot| all | of(slot))
    }

    /// The servers of the first service that its data plane takes for working, by bits.
    pub(crate) fn up(&self) -> u32 {
        let is_up = |slot| self.engine.tables.servers.get(slot).is_some_and(|server| server.up);
        let of_first = self.names.iter().filter(|(_, name)| name.service == farms::service(0));
        let numbers = of_first.filter(|(slot, _)| is_up(slot)).map(|(_, name)| farms::number(&name.server));
        numbers.flatten().fold(0, |all, server| all | 1 << server)
    }

    /// The table by which its data plane gives them.
    pub(crate) fn table(&self, vip: IpAddr) -> Option<&Arc<Ring>> {
        let tables = &self.engine.tables;
        let (_, vip) = tables.vips.iter().find(|(key, _)| key.address == vip)?;
        tables.rings.get(&vip.service)
    }

    /// Whether it answers ARP for an address.
    pub(crate) fn answers(&self, address: IpAddr, now_ms: u64) -> bool {
        self.has_carrier && self.engine.answers(address, self.ticks(now_ms))
    }
}
