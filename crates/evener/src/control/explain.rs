//! Why a flow gets the server it gets, by the decisions of core themselves.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evener_core::select::{Counts, select};
use evener_core::sessions::{SessionKey, ms};
use evener_core::tables::{NO_SERVER, Pick, ServerEntry, Vip, VipKey, Way};

use super::director::Director;
use super::request::Flow;
use crate::admin::views::Explanation;

impl Director {
    /// Which server a flow gets, and why.
    pub(super) fn explain(&self, flow: &Flow) -> Explanation {
        let key = VipKey { address: flow.vip.ip(), port: flow.vip.port(), protocol: flow.protocol };
        let Some(vip) = self.plan.tables.vips.get(&key) else {
            let because = vec![format!(
                "no service has {} {}: the packet goes up the director's own stack",
                flow.protocol, flow.vip
            )];
            return Explanation { service: None, server: None, because };
        };
        let service = self.plan.services.get(&vip.service);
        let mut because =
            vec![format!("{} {} is service {}", flow.protocol, flow.vip, service.map_or("?", |s| &s.name))];
        let slot = self.explain_choice(flow, vip, &mut because);
        let server = self.plan.servers.get(&slot).map(|name| name.server.clone());
        if let Some(entry) = self.plan.tables.servers.get(&slot) {
            because.extend(self.explain_way(entry));
        }
        Explanation { service: service.map(|service| service.name.clone()), server, because }
    }

    fn explain_way(&self, entry: &ServerEntry) -> Vec<String> {
        if entry.local {
            return vec!["that server is this host: the packet goes up its own stack".to_owned()];
        }
        let name = self.network.interfaces.get(&entry.ifindex).map_or("?", |interface| &interface.name);
        let frames = format!("frames go to {} on {name}", entry.mac);
        let rewritten = match entry.way {
            Way::Link => None,
            Way::Nat { to, own, source_nat: true, .. } => {
                Some(format!("it is rewritten to go from {own}, with a port of its own, to {to}"))
            }
            Way::Nat { to, .. } => Some(format!("it is rewritten to go to {to}")),
            Way::Tunnel { encapsulation, from, to, mtu, last: _ } => Some(format!(
                "it is put into a packet from {from} to {to} ({encapsulation}), which may be {mtu} bytes long"
            )),
        };
        rewritten.into_iter().chain([frames]).collect()
    }

    fn explain_choice(&self, flow: &Flow, vip: &Vip, because: &mut Vec<String>) -> u16 {
        let memory = self.engine.memory();
        let key = SessionKey { client: flow.client.ip(), port: flow.client.port(), vip: vip.id };
        let hash = key.hash(memory.seed);
        let now = self.engine.now();
        let name = |slot: u16| self.plan.servers.get(&slot).map_or("no server", |name| name.server.as_str());
        if let Some(found) = memory.sessions.find(key, hash, now) {
            let value = found.value;
            because.push(format!(
                "there is a session, {}, for {} more seconds: its server is {}",
                value.state().name(),
                ms(value.expires().wrapping_sub(now)) / 1000,
                name(value.server())
            ));
            return value.server();
        }
        because.push("there is no session: a new one would be chosen by the policy".to_owned());
        // Copies, so that asking doesn't move the ring on.
        let cursors: Vec<_> = memory.counts.cursors.iter().map(|n| AtomicU64::new(n.load(Relaxed))).collect();
        let counts = Counts { cursors: &cursors, active: memory.counts.active };
        let ring_hash = key.ring_hash(memory.ring_seed);
        let slot = select(&self.plan.tables, counts, vip, ring_hash);
        let policy = self.plan.services.get(&vip.service).map_or("?", |service| service.policy);
        because.push(match (slot, vip.pick) {
            (NO_SERVER, _) => format!("{policy}: no server takes new sessions"),
            (_, Pick::Hash) => {
                format!("{policy}: slot {} of the hash table is {}", ring_hash.hash_slot(), name(slot))
            }
            (_, Pick::Cursor) => format!("{policy}: the ring stands at {}", name(slot)),
            (_, Pick::Least) => format!("{policy}: {} has the fewest sessions for its weight", name(slot)),
        });
        slot
    }
}
