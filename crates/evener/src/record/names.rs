//! Names of services and servers, by the addresses and slots that the data plane reports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use evener_core::farm::plan::Plan;
use evener_core::net::Protocol;
use evener_core::path::content::RouteIndex;
use evener_core::path::tables::{Tables, VipKey};

/// Names of the services and servers in force.
#[derive(Debug, Default)]
pub(crate) struct TableNames {
    tables: Arc<Tables>,
    services: BTreeMap<u16, String>,
    servers: BTreeMap<u16, String>,
}

impl TableNames {
    /// Returns the names of a plan with these tables.
    pub(crate) fn of(plan: &Plan, tables: Arc<Tables>) -> TableNames {
        let services = plan.services.iter().map(|(number, service)| (*number, service.name.clone()));
        let servers = plan.servers.iter().map(|(slot, name)| (*slot, name.server.clone()));
        TableNames { tables, services: services.collect(), servers: servers.collect() }
    }

    /// Returns the name of the service at an address.
    pub(super) fn service(&self, at: SocketAddr) -> Option<&str> {
        Some(self.services.get(&self.number(at)?)?)
    }

    /// Returns the name of the server of a slot.
    pub(super) fn server(&self, slot: u16) -> Option<&str> {
        self.servers.get(&slot).map(String::as_str)
    }

    /// Returns the routes of the service at an address.
    pub(super) fn routes(&self, at: SocketAddr) -> Option<Arc<RouteIndex>> {
        self.tables.routes.get(&self.number(at)?).cloned()
    }

    fn number(&self, at: SocketAddr) -> Option<u16> {
        let key = VipKey { address: at.ip(), port: at.port(), protocol: Protocol::Tcp };
        self.tables.vips.get(&key).map(|vip| vip.service)
    }
}
