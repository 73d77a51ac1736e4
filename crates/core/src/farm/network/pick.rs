//! Selection of the interfaces that the engine uses: those named in the file, or all on which
//! clients' packets may arrive.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::{Interface, Network, is_link_local};
use crate::farm::Service;
use crate::net::wire::Mac;

/// Reason why no interfaces could be selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// A configured interface does not exist.
    #[error("there is no interface {name:?} on this host; it has {}", known.join(", "))]
    NoSuchInterface {
        /// Name in the file.
        name: String,
        known: Vec<String>,
    },
    /// A configured interface is not Ethernet, so MAC addresses cannot be rewritten.
    #[error("interface {name} is not Ethernet, and {why}: the director sends only Ethernet frames")]
    NotEthernet {
        name: String,
        /// Reason why the interface is needed, in words.
        why: String,
    },
    /// No interface can be used.
    #[error(
        "no Ethernet interface of this host is up and has an address or a route: set `interfaces` in [engine], for example interfaces = [\"eth0\"]"
    )]
    NoInterface,
}

impl Network {
    /// Returns the interfaces of these names with their MAC addresses. Without names, returns every
    /// Ethernet interface that is up and has an address or a route, since clients' packets may
    /// arrive on any of them. Interfaces that lead to listed servers are included even while they
    /// are down.
    ///
    /// # Errors
    /// An interface does not exist or isn't Ethernet, or no interface is left.
    pub fn pick_interfaces(
        &self,
        configured: &[String],
        services: &[Service],
    ) -> Result<BTreeMap<u32, Mac>, PickError> {
        let picked = match configured {
            [] => &self.leading_somewhere() | &self.leading_to_servers(services)?,
            names => names.iter().map(|name| self.named(name)).collect::<Result<_, _>>()?,
        };
        if picked.is_empty() {
            return Err(PickError::NoInterface);
        }
        Ok(self
            .interfaces
            .iter()
            .filter(|(i, _)| picked.contains(*i))
            .map(|(i, found)| (*i, found.mac))
            .collect())
    }

    fn named(&self, name: &str) -> Result<u32, PickError> {
        let found = self.interfaces.iter().find(|(_, interface)| interface.name == name);
        let Some((&ifindex, interface)) = found else {
            let ethernet = self.interfaces.values().filter(|found| found.ethernet);
            let known = ethernet.map(|found| found.name.clone()).collect();
            return Err(PickError::NoSuchInterface { name: name.into(), known });
        };
        ethernet(interface, || "[engine] names it".into())?;
        Ok(ifindex)
    }

    /// Returns the interfaces by which replies and later packets of these services' servers arrive:
    /// those that lead to servers and service addresses, and those of default routes. If a service
    /// address is on no link, all Ethernet interfaces with an address or a route are included.
    pub fn passing_answers<'a>(&self, services: impl IntoIterator<Item = &'a Service>) -> BTreeSet<u32> {
        let mut passing: BTreeSet<u32> = self.default_routes().collect();
        for service in services {
            let servers = service.servers.iter().filter_map(|server| self.interface_towards(server.address));
            passing.extend(servers.map(|(ifindex, _)| ifindex));
            for address in &service.addresses {
                match self.route_to(address.ip()) {
                    Some(ifindex) => drop(passing.insert(ifindex)),
                    None => passing.extend(self.leading_somewhere()),
                }
            }
        }
        passing
    }

    fn leading_to_servers(&self, services: &[Service]) -> Result<BTreeSet<u32>, PickError> {
        let mut picked = BTreeSet::new();
        for service in services {
            for server in &service.servers {
                let found = match service.is_routed() {
                    false => self.interface_to(server.address),
                    true => self.interface_towards(server.address),
                };
                if let Some((ifindex, interface)) = found {
                    ethernet(interface, || {
                        format!("server {} ({}) is reached by it", server.name, server.address)
                    })?;
                    picked.insert(ifindex);
                }
            }
        }
        Ok(picked)
    }

    fn interface_to(&self, address: IpAddr) -> Option<(u32, &Interface)> {
        let ifindex = self.route_to(address)?;
        Some((ifindex, self.interfaces.get(&ifindex)?))
    }

    /// Returns the interface that leads to an address. The address may be behind a gateway.
    fn interface_towards(&self, address: IpAddr) -> Option<(u32, &Interface)> {
        let ifindex = self.next_hop(address)?.ifindex;
        Some((ifindex, self.interfaces.get(&ifindex)?))
    }

    /// Returns the Ethernet interfaces of default routes.
    fn default_routes(&self) -> impl Iterator<Item = u32> {
        let defaults = self.routes.iter().filter(|route| route.destination.1 == 0 && route.gateway.is_some());
        let ethernet =
            |ifindex: &u32| self.interfaces.get(ifindex).is_some_and(|interface| interface.ethernet);
        defaults.filter_map(|route| route.ifindex).filter(ethernet)
    }

    /// Returns the Ethernet interfaces that are up and have an address or a route. Link-local
    /// addresses and routes don't count, since every interface has them.
    fn leading_somewhere(&self) -> BTreeSet<u32> {
        let routed = |ifindex| {
            let mut routes = self.routes.iter().filter(|route| route.ifindex == Some(ifindex));
            routes.any(|route| !is_link_local(route.destination.0))
        };
        let has_address = |found: &Interface| found.addresses.iter().any(|(own, _)| !is_link_local(*own));
        let leads = self.interfaces.iter().filter(|(ifindex, found)| {
            found.up && found.ethernet && (has_address(found) || routed(**ifindex))
        });
        leads.map(|(ifindex, _)| *ifindex).collect()
    }
}

fn ethernet(interface: &Interface, why: impl FnOnce() -> String) -> Result<(), PickError> {
    if interface.ethernet {
        return Ok(());
    }
    Err(PickError::NotEthernet { name: interface.name.clone(), why: why() })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{director, interface, ip, route, via};
    use super::*;
    use crate::farm::{Announce, Method, Service, example};
    use alloc::borrow::ToOwned;
    use alloc::string::ToString;
    use alloc::vec;
    use core::net::SocketAddr;

    fn service(address: &str, servers: &[&str]) -> Service {
        let servers = servers.iter().map(|address| example::server(&format!("at {address}"), ip(address)));
        Service {
            announce: Announce::Never,
            ..example::service("web", SocketAddr::new(ip(address), 80), servers.collect())
        }
    }

    fn picked(names: &[&str], services: &[Service]) -> Result<Vec<u32>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let picked = director().pick_interfaces(&names, services);
        picked.map(|picked| picked.into_keys().collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn names_are_taken_at_their_word() {
        assert_eq!(picked(&["eth1", "eth2"], &[service("192.0.2.100", &[])]), Ok(vec![3, 5]));
        let wrong = picked(&["eht0"], &[]).unwrap_err();
        assert_eq!(wrong, "there is no interface \"eht0\" on this host; it has eth0, eth1, eth2");
        let tunnel = picked(&["wg0"], &[]).unwrap_err();
        assert!(tunnel.starts_with("interface wg0 is not Ethernet, and [engine] names it"), "{tunnel}");
    }

    #[test]
    fn clients_may_come_by_any_interface_that_leads_somewhere() {
        let services = [service("198.51.100.100", &["198.51.100.11"])];
        assert_eq!(picked(&[], &services), Ok(vec![2, 3]), "eth0 leads to neither");
        let mut network = director();
        network.routes.push(via("2001:db8:c::", 48, 5, "fe80::9"));
        let picked = |network: &Network| {
            network.pick_interfaces(&[], &services).unwrap().into_keys().collect::<Vec<_>>()
        };
        assert_eq!(picked(&network), [2, 3, 5], "without an address, but a route goes over it");
        network.interfaces.get_mut(&2).unwrap().up = false;
        assert_eq!(picked(&network), [3, 5]);
        network.interfaces.get_mut(&3).unwrap().up = false;
        assert_eq!(picked(&network), [3, 5], "servers are there");
    }

    #[test]
    fn answers_pass_where_servers_addresses_and_default_routes_lead() {
        let passing = |vip, server| {
            let passing = director().passing_answers(&[service(vip, &[server])]);
            passing.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(passing("192.0.2.101", "192.0.2.11"), [2]);
        assert_eq!(passing("192.0.2.101", "192.0.2.200"), [2, 3], "by the gateway's interface");
        assert_eq!(passing("203.0.113.9", "192.0.2.11"), [2, 3], "the address is on no link");
    }

    #[test]
    fn servers_are_reached_by_ethernet() {
        let tunnel = picked(&[], &[service("192.0.2.100", &["10.9.0.7"])]).unwrap_err();
        assert!(tunnel.contains("server at 10.9.0.7 (10.9.0.7) is reached by it"), "{tunnel}");
    }

    #[test]
    fn servers_to_be_discovered_may_be_anywhere() {
        let discovering =
            Service { discover: Some(crate::farm::Discover::Arp), ..service("192.0.2.100", &[]) };
        assert_eq!(picked(&[], &[discovering]), Ok(vec![2, 3]));
    }

    #[test]
    fn routed_servers_may_be_behind_gateways() {
        let mut network = director();
        network.interfaces.values_mut().for_each(|interface| interface.up = false);
        let by = |method, server| {
            let service = Service { method, ..service("192.0.2.101", &[server]) };
            let picked = network.pick_interfaces(&[], &[service]);
            picked.map(|picked| picked.into_keys().collect::<Vec<_>>()).map_err(|error| error.to_string())
        };
        assert!(by(Method::L2, "192.0.2.200").is_err(), "l2 can't go there");
        assert_eq!(by(Method::Tunnel, "192.0.2.200"), Ok(vec![3]), "by the gateway's interface");
        assert_eq!(by(Method::Tunnel, "198.51.100.11"), Ok(vec![3]));
        assert_eq!(by(Method::Tunnel, "2001:db8:9::11"), Ok(vec![3]));
        assert_eq!(by(Method::Nat, "203.0.113.9"), Ok(vec![2]), "by the default route");
        assert!(by(Method::Tunnel, "10.9.0.7").unwrap_err().contains("wg0 is not Ethernet"));
    }

    #[test]
    fn a_network_of_ipv6_alone_will_do() {
        let network = Network {
            interfaces: BTreeMap::from([
                (2, interface("eth0", 2, &[("fe80::2", 64), ("2001:db8::2", 64)])),
                (3, interface("eth1", 3, &[("fe80::3", 64)])),
            ]),
            routes: vec![route("2001:db8::", 64, 2, true), via("::", 0, 2, "fe80::1")],
            ..Network::default()
        };
        for service in [service("2001:db8::100", &["2001:db8::11"]), service("2001:db9::100", &[])] {
            let picked = network.pick_interfaces(&[], &[service]).unwrap();
            assert_eq!(picked.into_keys().collect::<Vec<_>>(), [2]);
        }
    }

    #[test]
    fn pick_without_routes_tries_all_interfaces() {
        assert_eq!(picked(&[], &[service("203.0.113.9", &[])]), Ok(vec![2, 3]));
        let nowhere = Network::default().pick_interfaces(&[], &[service("203.0.113.9", &[])]);
        assert!(matches!(nowhere, Err(PickError::NoInterface)));
    }
}
