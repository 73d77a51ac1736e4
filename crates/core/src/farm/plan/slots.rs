//! Numbers that keep their meaning: sessions name servers and VIPs by number, so a number is not
//! given to another while a session may still hold it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use super::VIPS_MAX;
use crate::farm;
use crate::path::tables::{NO_SERVER, SERVER_SLOTS, Tables, VIP_IDS, VipKey};

/// The most services of a farm, each having a VIP: their numbers are less than this.
pub const SERVICES_MAX: usize = VIPS_MAX;

/// The servers' numbers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Slots {
    /// Server slots, by identity; the retired ones too.
    servers: BTreeMap<u64, u16>,
    /// Every slot in `servers`.
    taken: BTreeSet<u16>,
    /// All below this one are taken.
    full_below: u16,
    /// Slots of servers that are gone, but whose sessions may not be.
    retired: BTreeSet<u16>,
    vips: BTreeMap<VipKey, u16>,
    last_vip_id: u16,
    services: BTreeMap<String, u16>,
    /// Numbers of rings beside those of services: of the servers that a service's routes name
    /// together.
    pools: BTreeMap<(u16, Vec<String>), u16>,
    /// Service numbers found in a running data plane, by VIP, until the first plan names them.
    adopted: BTreeMap<VipKey, u16>,
}

impl Slots {
    /// Takes over the numbers of a running data plane. Numbers out of range, or in use for two, are
    /// ignored.
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

    /// Slots of servers that are gone. Each stays reserved until [`Slots::released`].
    pub fn retired(&self) -> impl Iterator<Item = u16> + '_ {
        self.retired.iter().copied()
    }

    /// No session names this retired slot any more: it can be given to another server.
    pub fn released(&mut self, slot: u16) {
        if self.retired.remove(&slot) {
            self.taken.remove(&slot);
            self.full_below = self.full_below.min(slot);
            self.servers.retain(|_, of| *of != slot);
        }
    }

    /// The slot of a server, a new one if it has none; `None` if there is no room.
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

    /// The number of a VIP, a new one if it has none.
    pub(super) fn vip_id(&mut self, key: VipKey) -> u16 {
        if let Some(&id) = self.vips.get(&key) {
            return id;
        }
        let ids = 1..VIP_IDS as u16;
        let after_last = ids.clone().filter(|id| *id > self.last_vip_id).chain(ids);
        let is_free = |id: &u16| self.vips.values().all(|taken| taken != id);
        // A plan has at most VIPS_MAX of them, and those of the plan before are forgotten after it.
        let id = after_last.into_iter().find(is_free).unwrap_or_default();
        self.vips.insert(key, id);
        self.last_vip_id = id;
        id
    }

    /// The numbers of services, in their order: the one they have, or had in the data plane, or the
    /// lowest that is free.
    pub(super) fn number_services<'a>(
        &mut self,
        services: impl Iterator<Item = &'a farm::Service> + Clone,
    ) -> Vec<u16> {
        let adopted = core::mem::take(&mut self.adopted);
        let names: BTreeSet<&str> = services.clone().map(|service| service.name.as_str()).collect();
        self.services.retain(|name, _| names.contains(name.as_str()));
        // Those that had a number come first, lest another is given it.
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

    /// Forgets the rings of sets of servers that no route of these services names any more, so that
    /// there is room for others. Rings change with the routes in one moment, so a number may be
    /// given away at once.
    pub(super) fn retain_pools<'a>(&mut self, services: impl Iterator<Item = (u16, &'a farm::Service)>) {
        let named = |(number, service): (u16, &'a farm::Service)| {
            service.routes.sets().iter().map(move |set| (number, set))
        };
        let wanted: BTreeSet<(u16, &Vec<String>)> = services.flat_map(named).collect();
        self.pools.retain(|(number, set), _| wanted.contains(&(*number, set)));
    }

    /// The number of the ring of these servers of a service; `None` if there is no room.
    pub(super) fn pool(&mut self, service: u16, servers: &[String]) -> Option<u16> {
        let key = (service, servers.to_vec());
        if let Some(&number) = self.pools.get(&key) {
            return Some(number);
        }
        let number = (0..SERVICES_MAX as u16).find(|number| self.is_free(*number))?;
        self.pools.insert(key, number);
        Some(number)
    }

    /// Retires the servers, and forgets the VIPs, that the tables no longer have.
    pub(super) fn retain(&mut self, tables: &Tables) {
        let gone = self.taken.iter().filter(|slot| !tables.servers.contains_key(slot));
        self.retired = gone.copied().collect();
        self.vips.retain(|key, _| tables.vips.contains_key(key));
    }
}
