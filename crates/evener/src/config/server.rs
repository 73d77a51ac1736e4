//! `[[service.server]]`: listed servers.

use std::net::{IpAddr, SocketAddr};

use evener_core::farm::{Method, Server};
use evener_core::net::wire::Mac;
use toml::Spanned;

use super::keys::tables::{server as keys, service};
use super::method::MethodConfig;
use super::once::FirstSeen;
use super::placement::PublishedAddress;
use super::problems::{Problem, Span};
use super::section::Section;
use super::{addresses, defaults, values};

/// Reader of a service's servers.
pub(super) struct ServersReader<'a> {
    service: &'a [Spanned<SocketAddr>],
    reach: &'a MethodConfig,
    published: Vec<PublishedAddress>,
    names: FirstSeen<String>,
    addresses: FirstSeen<(IpAddr, Option<u16>)>,
    macs: FirstSeen<Mac>,
}

/// Servers of a service.
pub(super) struct ConfiguredServers {
    pub(super) servers: Vec<Server>,
    /// Service addresses that the servers own.
    pub(super) published: Vec<PublishedAddress>,
    /// True if the list is complete: all entries are valid.
    pub(super) whole: bool,
}

/// Address of a server, as written.
struct WrittenAddress {
    address: IpAddr,
    port: Option<u16>,
    span: Span,
}

impl WrittenAddress {
    /// Returns the default name of a server.
    fn text(&self) -> String {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).to_string(),
            None => self.address.to_string(),
        }
    }
}

impl<'a> ServersReader<'a> {
    /// Creates the reader for a service with the addresses `service`.
    pub(super) fn new(service: &'a [Spanned<SocketAddr>], reach: &'a MethodConfig) -> ServersReader<'a> {
        let (names, addresses, macs) = (FirstSeen::new(), FirstSeen::new(), FirstSeen::new());
        ServersReader { service, reach, published: Vec::new(), names, addresses, macs }
    }

    /// Reads all servers. There must be at least one server, unless servers are discovered.
    pub(super) fn read(mut self, section: &Section<'_>, discovered: bool) -> ConfiguredServers {
        let listed = section.sections(&service::SERVER, |section| self.one(section));
        if !discovered && !section.has("server") {
            section.missing(
                "server",
                "this service has no servers and does not look for any",
                match self.reach.method().needs_link_layer() {
                    true => "add [[service.server]] with its address, or discover = \"arp\"",
                    false => "add [[service.server]] with its address",
                },
            );
        }
        if listed.len() > defaults::SERVERS {
            let message = format!("this service lists {} servers", listed.len());
            let help = format!("a service can have {}; make several services of it", defaults::SERVERS);
            section.problem(Problem::new(section.span(), message, help));
        }
        let whole = listed.iter().all(Option::is_some);
        ConfiguredServers {
            servers: listed.into_iter().flatten().collect(),
            published: self.published,
            whole,
        }
    }

    fn one(&mut self, section: &Section<'_>) -> Option<Server> {
        let name = section.get(&keys::NAME, values::name);
        let at = self.place(section);
        let mac = section.get(&keys::MAC, addresses::mac);
        let weight = section.number_or(&keys::WEIGHT);
        let backup = section.flag(&keys::BACKUP);
        let max_connections = section.number_or(&keys::MAX_CONNECTIONS);
        let health_address = section.get(&keys::HEALTH_ADDRESS, addresses::address);
        let published = section.one_or_list(&keys::PUBLISH, addresses::published);
        let at = at?;
        self.check(section, name.as_ref(), &at, mac.as_ref());
        let name = name.map_or_else(|| at.text(), Spanned::into_inner);
        let publish = published.iter().map(|address| *address.get_ref()).collect();
        let owned = |address| PublishedAddress { host: name.clone(), address };
        self.published.extend(published.into_iter().map(owned));
        Some(Server {
            name,
            address: at.address,
            port: at.port,
            mac: mac.map(Spanned::into_inner),
            weight,
            backup,
            max_connections,
            health_address: health_address.map(Spanned::into_inner),
            publish,
        })
    }

    /// Reads address and port, which may be written together or as two keys.
    fn place(&self, section: &Section<'_>) -> Option<WrittenAddress> {
        let address = section.get(&keys::ADDRESS, addresses::server_address);
        let port = section.number::<u16>(&keys::PORT);
        if section.key_span("address").is_none() {
            let help = "add the server's own address, such as address = \"192.0.2.11\"";
            section.missing("address", "this server has no address", help);
        }
        let address = address?;
        let (span, (ip, address_port)) = (address.span(), address.into_inner());
        match (address_port, &port, self.reach.written) {
            (Some(address_port), _, Some(written)) if !written.translates() => {
                let message = format!("`address` has a port: \"{}\"", SocketAddr::new(ip, address_port));
                let help =
                    format!("write \"{ip}\": method \"{written}\" keeps the port that the client asked for");
                section.problem(Problem::new(span.clone(), message, help));
            }
            (Some(_), Some(port), _) => {
                let help = "write it in one place only";
                let problem = Problem::new(port.span(), "this server's port is given twice", help);
                section.problem(problem.also(span.clone(), "first here"));
            }
            _ => {}
        }
        Some(WrittenAddress { address: ip, port: address_port.or(port.map(Spanned::into_inner)), span })
    }

    fn check(
        &mut self,
        section: &Section<'_>,
        name: Option<&Spanned<String>>,
        at: &WrittenAddress,
        mac: Option<&Spanned<Mac>>,
    ) {
        let (text, name_span): (String, Span) = match name {
            Some(name) => (name.get_ref().clone(), name.span()),
            None => (at.text(), at.span.clone()),
        };
        let named = format!("two servers of this service are called {text:?}");
        let same = format!("two servers of this service have the address {}", at.text());
        let help = "give each its own address";
        // A server without a port has the port of the service's first address.
        let port = at.port.or(self.service.first().map(|service| service.get_ref().port()));
        // A server without a name is named by its address. One complaint is enough.
        if !self.addresses.first(section, (at.address, port), at.span.clone(), same, help) {
            self.names.note(text, name_span);
        } else {
            self.names.first(section, text, name_span, named, "give each a name of its own");
        }
        if let Some(mac) = mac {
            let same = format!("two servers of this service have the MAC address {}", mac.get_ref());
            let help = "method \"l2\" identifies servers by it: give each its own";
            self.macs.first(section, *mac.get_ref(), mac.span(), same, help);
        }
        self.check_against_service(section, at);
    }

    fn check_against_service(&self, section: &Section<'_>, at: &WrittenAddress) {
        if let Some(service) = self.service.iter().find(|service| service.get_ref().ip() == at.address) {
            let message = format!("the server's address {} is that of the service", at.address);
            let help = "write the server's own address, which identifies it";
            section
                .problem(Problem::new(at.span.clone(), message, help).also(service.span(), "the service's"));
        }
        let Some(service) =
            self.service.first().filter(|_| self.reach.written.is_some_and(Method::translates))
        else {
            return;
        };
        if service.get_ref().is_ipv4() != at.address.is_ipv4() {
            let message = "method \"nat\" keeps the IP version, but this server has another than the service";
            let help = "list it under a service of its own IP version, or use method = \"tunnel\"";
            section
                .problem(Problem::new(at.span.clone(), message, help).also(service.span(), "the service's"));
        }
    }
}
