//! `[[service.server]]`: the servers that the operator listed.

use std::net::{Ipv4Addr, SocketAddrV4};

use evener_core::farm::Server;
use evener_core::wire::Mac;
use toml::Spanned;

use super::once::Once;
use super::problems::{Problem, Span};
use super::section::Section;
use super::{addresses, defaults, values};

/// The servers of one service while they are read.
pub(super) struct Servers<'a> {
    service: &'a [Spanned<SocketAddrV4>],
    names: Once<String>,
    addresses: Once<Ipv4Addr>,
    macs: Once<Mac>,
}

impl<'a> Servers<'a> {
    /// Reads all servers of a service that has the addresses `service`; without any there must be discovery.
    pub(super) fn read(
        section: &mut Section<'_>,
        service: &'a [Spanned<SocketAddrV4>],
        discovered: bool,
    ) -> Vec<Server> {
        let mut servers = Servers { service, names: Once::new(), addresses: Once::new(), macs: Once::new() };
        let listed = section.sections("server", |section| servers.one(section));
        if !discovered && !section.has("server") {
            section.missing(
                "server",
                "this service has no servers and does not look for any",
                "add [[service.server]] with its address, or discover = \"arp\"",
            );
        }
        if listed.len() > defaults::SERVERS {
            let message = format!("this service lists {} servers", listed.len());
            let help = format!("a service can have {}; make several services of it", defaults::SERVERS);
            section.problem(Problem::new(section.span(), message, help));
        }
        listed.into_iter().flatten().collect()
    }

    fn one(&mut self, section: &mut Section<'_>) -> Option<Server> {
        let name = section.get("name", values::name);
        let address = section.get("address", addresses::server_address);
        let mac = section.get("mac", addresses::mac);
        let weight = section.or("weight", values::count(defaults::WEIGHTS), defaults::WEIGHT);
        section.later("publish", "it belongs to placement \"every-host\"; this version has \"director\"");
        if section.key_span("address").is_none() {
            let help = "add the server's own address, such as address = \"192.0.2.11\"";
            section.missing("address", "this server has no address", help);
        }
        let address = address?;
        self.check(section, name.as_ref(), &address, mac.as_ref());
        Some(Server {
            name: name.map_or_else(|| address.get_ref().to_string(), Spanned::into_inner),
            address: address.into_inner(),
            mac: mac.map(Spanned::into_inner),
            weight,
        })
    }

    fn check(
        &mut self,
        section: &Section<'_>,
        name: Option<&Spanned<String>>,
        address: &Spanned<Ipv4Addr>,
        mac: Option<&Spanned<Mac>>,
    ) {
        let (text, name_span): (String, Span) = match name {
            Some(name) => (name.get_ref().clone(), name.span()),
            None => (address.get_ref().to_string(), address.span()),
        };
        let named = format!("two servers of this service are called {text:?}");
        let at = format!("two servers of this service have the address {}", address.get_ref());
        // a server without a name takes its address for one: one complaint is enough
        if !self.addresses.first(section, *address.get_ref(), address.span(), at, "give each its own address")
        {
            self.names.note(text, name_span);
        } else {
            self.names.first(section, text, name_span, named, "give each a name of its own");
        }
        if let Some(mac) = mac {
            let same = format!("two servers of this service have the MAC address {}", mac.get_ref());
            let help = "method \"l2\" tells servers apart by it: give each its own";
            self.macs.first(section, *mac.get_ref(), mac.span(), same, help);
        }
        if let Some(service) = self.service.iter().find(|service| service.get_ref().ip() == address.get_ref())
        {
            let message = format!("the server's address {} is that of the service", address.get_ref());
            let help = "write the server's own address, by which it is told from the others";
            section
                .problem(Problem::new(address.span(), message, help).also(service.span(), "the service's"));
        }
    }
}
