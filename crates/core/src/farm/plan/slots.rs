//! Stable numbers of servers, VIPs and services. Sessions contain the numbers of their server and
//! VIP, so a number is not reused while a session may still contain it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use crate::farm;
use crate::path::tables::{NO_SERVER, SERVER_SLOTS, SERVICES_MAX, Tables, VIP_IDS, VipKey};

/// Assignment of numbers to servers, VIPs and services.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Slots {
    /// Slots by server identity, including retired ones.
    servers: BTreeMap<u64, u16>,
    /// All slots in `servers`.
    taken: BTreeSet<u16>,
    /// Lower bound of free slots: all slots below are taken.
    full_below: u16,
    /// Slots of removed servers to which sessions may still refer.
    retired: BTreeSet<u16>,
    vips: BTreeMap<VipKey, u16>,
    last_vip_id: u16,
    services: BTreeMap<String, u16>,
    /// Numbers of the rings for sets of servers in routes, by service number and servers' names.
    pools: BTreeMap<(u16, Vec<String>), u16>,
    /// Service numbers of a running data plane by VIP, until the first plan names the services.
    adopted: BTreeMap<VipKey, u16>,
}

impl Slots {
    /// Adopts the numbers of a running data plane. Numbers out of range or used twice are ignored.
    pub fn adopt(&mut self, running: &Tables) {
        for (&slot, server) in &running.servers {
            let fits = slot != NO_SERVER && usize::from(slot) < SERVER_SLOTS;
            let news = !self.servers.contains_key(&server.identity) && !self.taken.contains(&slot);
            if fits && news {
                self.servers.insert(server.identity, slot);
                self.taken.insert(slot);
            }
        }
        for (&key, vip) in &running.vips {
            let id_fits = vip.id != 0 && usize::from(vip.id) < VIP_IDS;
            if id_fits && self.vips.values().all(|id| *id != vip.id) {
                self.vips.insert(key, vip.id);
                self.last_vip_id = self.last_vip_id.max(vip.id);
            }
            if usize::from(vip.service) < SERVICES_MAX {
                self.adopted.insert(key, vip.service);
            }
        }
    }

    /// Returns the slots of removed servers. Each slot stays reserved until [`Slots::released`].
    pub fn retired(&self) -> impl Iterator<Item = u16> + '_ {
        self.retired.iter().copied()
    }

    /// Frees a retired slot, to which no session refers any more.
    pub fn released(&mut self, slot: u16) {
        if self.retired.remove(&slot) {
            self.taken.remove(&slot);
            self.full_below = self.full_below.min(slot);
            self.servers.retain(|_, of| *of != slot);
        }
    }

    /// Returns the slot of a server. A server without a slot gets a free one; `None` if all slots
    /// are taken.
    pub(super) fn server(&mut self, identity: u64) -> Option<u16> {
        if let Some(&slot) = self.servers.get(&identity) {
            self.retired.remove(&slot);
            return Some(slot);
        }
        let from = self.full_below.max(NO_SERVER + 1);
        let free = (from..SERVER_SLOTS as u16).find(|slot| !self.taken.contains(slot));
        self.full_below = free.map_or(SERVER_SLOTS as u16, |slot| slot + 1);
        let slot = free?;
        self.servers.insert(identity, slot);
        self.taken.insert(slot);
        Some(slot)
    }

    /// Returns the number of a VIP. A VIP without a number gets a free one.
    pub(super) fn vip_id(&mut self, key: VipKey) -> u16 {
        if let Some(&id) = self.vips.get(&key) {
            return id;
        }
        let ids = 1..VIP_IDS as u16;
        let after_last = ids.clone().filter(|id| *id > self.last_vip_id).chain(ids);
        let is_free = |id: &u16| self.vips.values().all(|taken| taken != id);
        // A plan uses at most `VIPS_MAX` numbers, and the numbers of the previous plan are freed
        // later. So a number is always free.
        let id = after_last.into_iter().find(is_free).unwrap_or_default();
        self.vips.insert(key, id);
        self.last_vip_id = id;
        id
    }

    /// Returns the numbers of services, in the order of the services. A service keeps its number,
    /// or gets its number in the running data plane, or the lowest free number.
    pub(super) fn number_services<'a>(
        &mut self,
        services: impl Iterator<Item = &'a farm::Service> + Clone,
    ) -> Vec<u16> {
        let adopted = core::mem::take(&mut self.adopted);
        let names: BTreeSet<&str> = services.clone().map(|service| service.name.as_str()).collect();
        self.services.retain(|name, _| names.contains(name.as_str()));
        // Services that have a number come first, so that no other service gets this number.
        for service in services.clone() {
            let mut keys = service.vip_keys().filter_map(|key| adopted.get(&key).copied());
            let number = keys.find(|number| self.is_free(*number));
            if let (Some(number), None) = (number, self.services.get(&service.name)) {
                self.services.insert(service.name.clone(), number);
            }
        }
        services.map(|service| self.service(&service.name)).collect()
    }

    fn service(&mut self, name: &str) -> u16 {
        if let Some(&number) = self.services.get(name) {
            return number;
        }
        let number = (0..SERVICES_MAX as u16).find(|number| self.is_free(*number)).unwrap_or_default();
        self.services.insert(name.into(), number);
        number
    }

    fn is_free(&self, number: u16) -> bool {
        self.services.values().chain(self.pools.values()).all(|taken| *taken != number)
    }

    /// Frees the ring numbers of sets that no route of these services names any more. Rings and
    /// routes change together, so a number can be reused at once.
    pub(super) fn retain_pools<'a>(&mut self, services: impl Iterator<Item = (u16, &'a farm::Service)>) {
        let named = |(number, service): (u16, &'a farm::Service)| {
            service.routes.sets().iter().map(move |set| (number, set))
        };
        let wanted: BTreeSet<(u16, &Vec<String>)> = services.flat_map(named).collect();
        self.pools.retain(|(number, set), _| wanted.contains(&(*number, set)));
    }

    /// Returns the ring number of a set of servers; `None` if all numbers are taken.
    pub(super) fn pool(&mut self, service: u16, servers: &[String]) -> Option<u16> {
        let key = (service, servers.to_vec());
        if let Some(&number) = self.pools.get(&key) {
            return Some(number);
        }
        let number = (0..SERVICES_MAX as u16).find(|number| self.is_free(*number))?;
        self.pools.insert(key, number);
        Some(number)
    }

    /// Retires the slots of servers, and frees the numbers of VIPs, that are not in the tables.
    pub(super) fn retain(&mut self, tables: &Tables) {
        let gone = self.taken.iter().filter(|slot| !tables.servers.contains_key(slot));
        self.retired = gone.copied().collect();
        self.vips.retain(|key, _| tables.vips.contains_key(key));
    }
}
