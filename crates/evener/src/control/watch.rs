//! What the log says of servers and services besides the words of those who decide: who is missing, and what is left.

use std::collections::{BTreeMap, BTreeSet};

use evener_core::membership::{Event, Notice};
use evener_core::plan::{Plan, ServerName};

use super::director::Director;
use crate::network::Network;

/// Looks, one a second, before a server that nobody has found is told of: first answers take a moment.
const LOOKS: u32 = 3;

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Servers that have not been found, and how often they were missed.
    missing: BTreeMap<ServerName, u32>,
    /// Services that had servers and have none.
    without: BTreeSet<String>,
    /// Interfaces that no packets can be taken from.
    pub(super) unattached: BTreeSet<u32>,
}

impl Director {
    /// Says which servers can't be found, once for each.
    pub(super) fn tell_missing(&mut self) {
        let mut missing = BTreeMap::new();
        for service in &self.config.services {
            let members = self.membership.members(&service.name).into_iter();
            for member in members.filter(|member| !member.local && member.mac.is_none()) {
                let why = self.why_not_found(service.method, member.address);
                let name = ServerName { service: service.name.clone(), server: member.name };
                let looks = self.told.missing.get(&name).map_or(1, |looks| looks.saturating_add(1));
                if looks == LOOKS {
                    let ServerName { service, server } = &name;
                    tracing::warn!(service, server, "server can't be found: {why}");
                }
                missing.insert(name, looks);
            }
        }
        let told = self.told.missing.iter().filter(|(_, looks)| **looks >= LOOKS).map(|(name, _)| name);
        for name in told.filter(|name| !missing.contains_key(*name)) {
            let ServerName { service, server } = name;
            if self.membership.members(service).iter().any(|member| member.name == *server) {
                tracing::info!(service, server, "server is found");
            }
        }
        self.told.missing = missing;
    }

    /// Says what a plan changes for whole services.
    pub(super) fn tell_changes(&mut self, plan: &Plan) {
        for (number, service) in &plan.services {
            let was = self.plan.services.get(number).filter(|was| was.name == service.name);
            let had = was.is_some_and(|was| !was.ring_members.is_empty());
            let name = &service.name;
            if had && service.ring_members.is_empty() {
                self.told.without.insert(name.clone());
                tracing::warn!(service = name, "no server takes new sessions: new connections are dropped");
            } else if !service.ring_members.is_empty() && self.told.without.remove(name) {
                tracing::info!(service = name, "servers take new sessions again");
            }
            match (was.is_some_and(|was| was.degraded), service.degraded) {
                (false, true) => tracing::warn!(
                    service = name,
                    "every server fails: those that worked last are kept, since an empty farm helps nobody"
                ),
                // What isn't kept any more may also have been drained or taken out of the file.
                (true, false) if !service.ring_members.is_empty() => {
                    tracing::info!(service = name, "servers work again");
                }
                _ => {}
            }
        }
        self.told.without.retain(|name| plan.services.values().any(|service| service.name == *name));
        for name in plan.left_out.iter().filter(|name| !self.plan.left_out.contains(name)) {
            tracing::warn!(
                service = name.service,
                server = name.server,
                "no room for this server: the farm is full"
            );
        }
    }

    /// What an operator who has just drained a server of this service should know: that there is no other.
    pub(super) fn without_servers(&self, service: &str) -> Option<&'static str> {
        let planned = self.plan.services.values().find(|planned| planned.name == service)?;
        match (planned.ring_members.is_empty(), planned.degraded) {
            (true, _) => Some("no other server takes new sessions, so new connections are dropped"),
            (_, true) => Some("all others fail, and new sessions go to those that worked last"),
            _ => None,
        }
    }

    /// Says which of the attached interfaces are not as they were.
    pub(super) fn tell_links(&self, network: &Network) {
        for (ifindex, was) in self.network.interfaces.iter().filter(|(i, _)| self.interfaces.contains_key(i))
        {
            let name = &was.name;
            let Some(is) = network.interfaces.get(ifindex) else {
                tracing::warn!(interface = name, "the interface is gone");
                continue;
            };
            match ((was.up, is.up), (was.carrier, is.carrier)) {
                ((true, false), _) => tracing::warn!(interface = name, "the interface is switched off"),
                (_, (true, false)) => {
                    tracing::warn!(
                        interface = name,
                        "the interface has no carrier: look at the cable, or its other end"
                    );
                }
                ((false, true), (_, true)) | ((true, true), (false, true)) => {
                    tracing::info!(interface = name, "the interface works again");
                }
                _ => {}
            }
        }
    }

    pub(super) fn log(&self, notices: &[Notice]) {
        let name = |ifindex| Some(self.network.interfaces.get(&ifindex)?.name.clone());
        for notice in notices {
            let text = notice.told(name);
            match notice.event {
                Event::Refused { .. } | Event::Moved { .. } | Event::Silent { .. } => {
                    tracing::warn!("{text}")
                }
                _ => tracing::info!("{text}"),
            }
        }
    }
}
